"""One bad site of five: each fault is refused with its reason, and costs no more than that site's absence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study
from fedsift.training.requests import Trained
from tests.promises.federations import contract_table, play, tampering
from tests.promises.tamper import TAMPERS, huge, missing_key, nan, other_run

torch.set_num_threads(1)

EVERYTHING = {
    **TAMPERS,
    "another run": (other_run, "belongs to run"),
    "missing key": (missing_key, "keys"),
    "huge update": (huge, "times the usual"),
    "silence": (lambda answer: None, "no reply before the deadline"),
}


def short_study(folder: Path, method: str = "fedavg") -> Study:
    table = contract_table(method, folder, noise={"name": "clean"}, method={"name": method, "rounds": 4})
    if method == "fednoro":
        table["method"]["warm_up"] = 2
    return Study.from_table(table)


@pytest.fixture(scope="module")
def without_the_site(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Accuracy when the last site never answers at all."""
    folder = tmp_path_factory.mktemp("absent")
    made = play(short_study(folder), folder, tampering(lambda answer, envelope: None))
    return float(made.read_json("summary.json")["accuracy"]["final"])


@pytest.mark.parametrize("fault", list(EVERYTHING))
def test_fault_is_refused_and_harmless(fault: str, tmp_path: Path, without_the_site: float) -> None:
    change, word = EVERYTHING[fault]
    made = play(short_study(tmp_path), tmp_path, tampering(lambda answer, envelope: change(answer)))
    rows = made.rounds()
    assert len(rows) == 4
    for row in rows:
        assert list(row["refused"]) == ["site-04"]
        assert word in row["refused"]["site-04"]
        assert row["participants"] == 4
    # the refused reply must not count at all, so the runs are the same run
    assert made.read_json("summary.json")["accuracy"]["final"] == pytest.approx(without_the_site, abs=1e-9)


@pytest.mark.parametrize(("gate", "refused"), [({}, 0), ({"heuristics": "always"}, 4), ({"heuristics": "never"}, 0)])
def test_a_simulation_judges_form_alone_unless_asked(gate: dict[str, Any], refused: int, tmp_path: Path) -> None:
    """A model that is ten times too large is set aside where heuristics judge; NaN is everywhere."""

    def played(change: Callable[[ReplyEnvelope], ReplyEnvelope | None]) -> int:
        table = contract_table("fedavg", tmp_path, method={"name": "fedavg", "rounds": 4}, gate=gate)
        made = play(Study.from_table(table), tmp_path, tampering(lambda answer, envelope: change(answer)))
        return int(made.read_json("summary.json")["refused"])

    assert played(far) == refused
    assert played(nan) == 4


def far(answer: ReplyEnvelope) -> ReplyEnvelope:
    """A model ten times too large."""
    assert isinstance(answer.reply, Trained)
    weights = {name: 10 * tensor for name, tensor in answer.reply.weights.items()}
    return dataclasses.replace(answer, reply=dataclasses.replace(answer.reply, weights=weights))


@pytest.mark.parametrize("first", [0, 1])
def test_a_noisy_site_that_was_away_for_33_rounds_is_not_refused(first: int, tmp_path: Path) -> None:
    """The others have learnt and hardly move; a site with half of its labels wrong goes twelve times as far as they."""

    class Away(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            gone = first <= self.round.number < first + 33
            return {site: answer for site, answer in answers.items() if site != victim or not gone}

    study = Study.from_table(
        {
            "seed": 3,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 5},
            "noise": {"name": "fedcorr", "rho": 0.2, "tau": 0.3, "sites": "exact"},
            "model": {"name": "mlp"},
            "train": {"epochs": 1, "batch_size": 32, "lr": 0.1, "momentum": 0.5},
            "method": {"name": "fedavg", "rounds": 38},
            "evaluate": {"every": 38},
            "gate": {"heuristics": "always"},
            "engine": {"threads": 1},
        }
    )
    truth = study.load_data().truth
    assert truth is not None
    (victim,) = truth.noisy
    rows = play(study, tmp_path, Away).rounds()
    assert [list(row["refused"]) for row in rows] == [[victim] * (first < row["round"] <= first + 33) for row in rows]


def test_a_site_without_indicator_is_treated_as_noisy(tmp_path: Path) -> None:
    def silent_in_detection(answer: ReplyEnvelope, envelope: RequestEnvelope) -> ReplyEnvelope | None:
        return None if envelope.moment.stage == "find noisy sites" else answer

    made = play(short_study(tmp_path, "fednoro"), tmp_path, tampering(silent_in_detection))
    row = next(row for row in made.rounds() if row["stage"] == "find noisy sites")
    assert row["findings"]["unmeasured"] == ["site-04"]
    assert any("site-04" in warning for warning in row["warnings"])


def test_too_few_replies_stop_the_run_resumably(tmp_path: Path) -> None:
    from fedsift.core.errors import QuorumError
    from fedsift.runs.folder import RunFolder
    from fedsift.study.running import InProcessTransport, new_run, run

    class Collapsing(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            return {} if self.round.number == 2 else answers

    study = short_study(tmp_path)
    made = new_run(study, tmp_path)
    with pytest.raises(QuorumError, match=r"0 of 5 replies accepted, 3 needed"):
        InProcessTransport(Collapsing).run(study, made)
    assert len(RunFolder.open(made.path).rounds()) == 2
    run(study, RunFolder.open(made.path))
    whole = play(short_study(tmp_path), tmp_path)
    assert (made.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_quorum_of_a_stage(tmp_path: Path) -> None:
    from fedsift.core.errors import QuorumError

    table = contract_table("fednoro", tmp_path, federation={"stages": {"find noisy sites": {"quorum": 1.0}}})
    table["method"].update(rounds=2, warm_up=1)
    silent = tampering(lambda answer, envelope: None)
    with pytest.raises(QuorumError, match=r"\(find noisy sites\): 4 of 5 replies accepted, 5 needed"):
        play(Study.from_table(table), tmp_path, silent)


def test_a_failing_site_is_named_with_its_error(tmp_path: Path) -> None:
    class Broken(InProcess):
        def site(self, envelope: RequestEnvelope) -> Any:
            site = super().site(envelope)
            if envelope.site == "site-02":
                site.given = torch.full_like(site.given, 99)
            return site

    made = play(short_study(tmp_path), tmp_path, Broken)
    reason = made.rounds()[0]["refused"]["site-02"]
    assert reason.startswith("the site failed")


def test_refused_replies_do_not_move_the_notebook(tmp_path: Path) -> None:
    """A reply that was set aside leaves the site's notebook where the coordinator last knew it."""
    from fedsift.protocol.federation import Round
    from fedsift.protocol.messages import Reply, Request, disclosed

    @dataclasses.dataclass(frozen=True)
    class AskCount(Reply):
        count: float = disclosed("how often the site was asked", "count")

    @dataclasses.dataclass(frozen=True)
    class CountAsks(Request[AskCount]):
        reply_type = AskCount

        def answer(self, site: Any) -> AskCount:
            site.notebook["count"] = site.notebook.get("count", 0) + 1
            return AskCount(float(site.notebook["count"]))

    study = short_study(tmp_path)
    lost = {1}
    Tampered = tampering(lambda answer, envelope: None if envelope.moment.ask in lost else answer)
    from fedsift.study.running import open_in_process

    federation = open_in_process(study, study.load_data(), "notes", Tampered)
    federation.begin(Round("notes", 0, 0), (CountAsks,))
    counts = []
    for _ in range(3):
        counts.append({site: reply.count for site, reply in federation.ask(CountAsks()).items()})
    assert counts[0]["site-04"] == 1.0
    assert "site-04" not in counts[1]
    assert counts[2]["site-04"] == 2.0
    assert counts[2]["site-00"] == 3.0
