"""What a policy does to replies: minimum count, clipping, noise, the account; approval; withdrawal."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.codec import digest_of
from fedsift.core.errors import ConfigError, RunError
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import approve, fields_that_left, rules_of, withdraw, withdrawn_since
from fedsift.deploy.site.policy import Policy, small_counts
from fedsift.deploy.site.privacy_account import BudgetRefused, PrivacyAccount, PrivacyCharge
from fedsift.deploy.site.site_file import read_site_file
from fedsift.formulas.privacy import GRID_BITS
from fedsift.label_audit.at_site import CountLabels
from fedsift.methods.feddpcont import ReleasedCounts, ReleaseLabels
from fedsift.protocol.messages import Reply, ReplyEnvelope, Request, RequestEnvelope, RequestMoment, disclosed
from fedsift.training.private_updates import NoiseMechanism, protected, protected_model
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Acknowledged, IntroductionRequest, SiteNotice
from tests.deploy.test_policy import FIELDS, OPEN, ask, egress, site
from tests.deploy.test_site_data import train, write_site

START = {"w": torch.zeros(3), "steps": torch.tensor(0)}


def repeated() -> Callable[[int], bytes]:
    """The same draws whenever it is made."""
    return np.random.default_rng(5).bytes


# Clipping and noise --------------------------------------------------------------------------------------------------


def test_a_long_update_is_shortened_and_a_short_one_is_not() -> None:
    trained = {"w": torch.tensor([3.0, 0.0, 4.0]), "steps": torch.tensor(7)}
    short = protected_model(trained, START, NoiseMechanism(clip=1.0))
    torch.testing.assert_close(short["w"], torch.tensor([0.6, 0.0, 0.8]))
    assert int(short["steps"]) == 7
    assert torch.equal(protected_model(trained, START, NoiseMechanism(clip=9.0))["w"], trained["w"])


def test_noise_has_the_size_that_the_account_is_told() -> None:
    big = {"w": torch.zeros(20_000)}
    noisy = protected_model(big, big, NoiseMechanism(clip=0.5, noise=4.0, entropy=np.random.default_rng(1).bytes))
    assert float(noisy["w"].double().std()) == pytest.approx(2.0, rel=0.03)
    again = protected_model(big, big, NoiseMechanism(clip=0.5, noise=4.0))
    assert not torch.equal(noisy["w"], again["w"])  # the operating system's chance


def test_a_variance_stays_one() -> None:
    start = {"norm.running_var": torch.full((4,), 1e-3)}
    found = protected_model(start, start, NoiseMechanism(clip=1.0, noise=5.0, entropy=repeated()))
    assert float(found["norm.running_var"].min()) > 0


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_an_update_that_overflowed_leaves_with_noise_like_one_that_did_not_move(broken: float) -> None:
    # a share of 0 times infinity is no number, and would say without any noise where the weights overflowed
    start = {"w": torch.ones(4)}

    def released(model: dict[str, Tensor]) -> Tensor:
        return protected_model(model, start, NoiseMechanism(clip=1.0, noise=1e6, entropy=repeated()))["w"]

    still = released(start)
    assert torch.isfinite(still).all() and not torch.equal(still, start["w"])
    for place in range(4):
        moved = start["w"].clone()
        moved[place] = broken
        assert torch.equal(released({"w": moved}), still)
    change = torch.tensor([broken, 3.0, 4.0])
    for length, told in (
        (9.0, [0.0, 3.0, 4.0]),
        (1.0, [0.0, 0.6, 0.8]),
    ):  # what is left is measured and clipped
        found = protected_model({"": change}, None, NoiseMechanism(length))[""]
        torch.testing.assert_close(found, torch.tensor(told))


def test_huge_moves_are_measured_and_shortened() -> None:
    far = torch.full((4,), 3e38)  # its square is infinite in single precision
    torch.testing.assert_close(
        protected_model({"w": far}, {"w": torch.zeros(4)}, NoiseMechanism(2.0))["w"], torch.ones(4)
    )
    beyond = torch.full((4,), 1e200, dtype=torch.float64)  # and this one's in double: told as no move
    assert protected_model({"w": beyond}, None, NoiseMechanism(2.0))["w"].tolist() == [0.0] * 4


def test_the_noise_joins_the_move_before_a_huge_weight_swallows_either() -> None:
    # above 2^60 doubles lie 256 apart: what leaves is 2^60 and the sum of move and noise, rounded once
    start = {"w": torch.full((2000,), 2.0**60, dtype=torch.float64)}
    moved = {"w": torch.full((2000,), 2.0**60, dtype=torch.float64)}
    moved["w"][:2] += 256
    small = protected_model({"w": moved["w"] - start["w"]}, None, NoiseMechanism(129.0, 0.5, repeated()))["w"]
    found = protected_model(moved, start, NoiseMechanism(129.0, 0.5, repeated()))["w"]
    assert torch.equal(found, start["w"] + small)
    assert float((found - start["w"]).abs().max()) == 256.0


def test_noised_numbers_lie_on_a_grid_that_says_nothing_of_the_data() -> None:
    """The last bits of a rounded sum of move and noise would tell one move from another (Mironov 2012)."""
    step = 4.0 * 0.5 / 2.0**GRID_BITS
    for seed in range(3):
        change = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        steps = protected_model({"": change}, None, NoiseMechanism(0.5, 4.0))[""] / step
        assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("length", [1e-9, 0.5, 3.0, 1e9])
def test_on_the_grid_no_update_is_longer_than_the_bound(length: float) -> None:
    same = repeated()
    change = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    change *= length / change.norm()
    noise = protected_model({"": torch.zeros(5000, dtype=torch.float64)}, None, NoiseMechanism(0.5, 4.0, same))[""]
    found = protected_model({"": change}, None, NoiseMechanism(0.5, 4.0, repeated()))[""] - noise
    assert float(found.norm()) <= 0.5
    assert float(found.norm()) == pytest.approx(min(length, 0.5), abs=5000**0.5 * 2.0 / 2**GRID_BITS)


def test_weights_that_are_no_numbers_are_no_start() -> None:
    start = {"w": torch.tensor([0.0, math.nan])}
    with pytest.raises(RunError, match="'w' that are not finite"):
        protected_model({"w": torch.zeros(2)}, start, NoiseMechanism(1.0))


def test_whole_numbers_leave_as_they_came_where_there_is_noise() -> None:
    # batches seen are the site's samples over the batch size; no noise hides a whole number
    trained = {"w": torch.zeros(3), "steps": torch.tensor(7)}
    assert int(protected_model(trained, START, NoiseMechanism(1.0, 2.0))["steps"]) == 0
    assert int(protected_model(trained, None, NoiseMechanism(1.0, 2.0))["steps"]) == 0
    assert int(protected_model(trained, START, NoiseMechanism(1.0))["steps"]) == 7


def asking_for_a_bright_pixel() -> RequestEnvelope:
    """Unit 0 fires if a sample's first pixel is bright; then weight decay, -10^6 a step, carries its weights out of
    range in the second step. All others stay where they are, or in range."""
    request = train().request
    assert isinstance(request, Train)
    weights = {name: torch.zeros_like(value) for name, value in request.weights.items()}
    weights["encoder.1.weight"][0, 0] = 1e10
    weights["encoder.1.bias"][0] = -0.5e10
    weights["encoder.3.weight"][0, 0] = 1.0
    weights["head.weight"][2, 0] = 1e25
    recipe = Recipe(epochs=2, lr=1000.0, weight_decay=1000.0)
    return dataclasses.replace(train(), request=Train(weights, recipe))


@pytest.mark.parametrize("bright", [False, True])
def test_no_model_makes_one_sample_show_through_the_noise(tmp_path: Path, bright: bool) -> None:
    path = site(tmp_path, clip=1.0, noise=1000.0, budget=1.0)
    images = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)
    images[3, 0, 0, 0] = 255 if bright else 0
    with np.load(tmp_path / "data.npz") as known:
        np.savez(tmp_path / "data.npz", **{**dict(known), "images": images})
    found = ask(path, asking_for_a_bright_pixel())
    assert found.failure == ""
    assert all(bool(value.isfinite().all()) for value in found.reply.weights.values())


@pytest.mark.parametrize("number", [{"lr": 1e30}, {"weight_decay": 1e30}, {"epochs": 10**15}])
def test_a_recipe_of_absurd_numbers_is_refused_by_name(number: dict[str, Any], tmp_path: Path) -> None:
    encoded = encode(train()).with_note(model="mlp", session="1")
    tree = json.loads(encoded.tree)
    tree["fields"]["request"]["fields"]["recipe"]["fields"].update(number)
    path = site(tmp_path)
    refused = decode(worker._reply(dataclasses.replace(encoded, tree=json.dumps(tree)), path))
    [(name, value)] = number.items()
    assert refused.failure.startswith(f"Refused: the request cannot be served: {name} = {value}: it must be")
    assert egress(path)[0]["refused"] == refused.failure


def test_updates_inside_other_replies_are_found() -> None:
    inner = Train(START, Recipe())
    request = Train(START, Recipe(), then=(inner,))
    model = {"w": torch.tensor([3.0, 0.0, 4.0]), "steps": torch.tensor(1)}
    outcome = protected(Trained(model, 10, 0.5, (Trained(model, 10, 0.5),)), request, NoiseMechanism(clip=1.0))
    assert outcome.updates == 2
    assert outcome.fields == ("Trained.weights", "Trained.weights")
    assert isinstance(outcome.reply, Trained)
    second = outcome.reply.then[0]
    assert isinstance(second, Trained)
    torch.testing.assert_close(second.weights["w"], torch.tensor([0.6, 0.0, 0.8]))


# The account ---------------------------------------------------------------------------------------------------------


def charge(rho: float) -> PrivacyCharge:
    return PrivacyCharge("run", "Train", rho, 1, 1.0, math.sqrt(2 / rho))


def test_releases_add_up_until_the_budget_is_spent(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path / "privacy" / "north.jsonl", budget=1.0)
    for _ in range(2):
        account.charge(charge(0.5))
    assert PrivacyAccount(account.path).spent == pytest.approx(1.0)
    with pytest.raises(BudgetRefused, match="0 of 1 is left, a release costs 0.5"):
        account.charge(charge(0.5))
    assert account.path.stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_off_in_writing_was_no_release(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path / "north.jsonl", budget=1.0)
    account.charge(charge(0.25))
    with account.path.open("a") as file:
        file.write('{"at": "2026-01-01", "rho": 0.')
    assert account.spent == 0.25
    account.charge(charge(0.25))
    assert [each.rho for each in account.charges()] == [0.25, 0.25]


def test_a_damaged_account_lets_nothing_out(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path / "north.jsonl", budget=1.0)
    account.path.write_text('{"rho": 0.1}\n')
    with pytest.raises(BudgetRefused, match="damaged"):
        account.charge(charge(0.1))


NOISY: dict[str, Any] = {"clip": 0.01, "noise": 2.0, "budget": 1.0, "fields": FIELDS[:2]}
"""2 / 2^2 = 1/2 for each release: two are allowed. The loss, which would cost as much, is left out."""


def test_updates_leave_with_noise_and_are_paid_for_once(tmp_path: Path) -> None:
    path = site(tmp_path, **NOISY)
    first = ask(path, train())
    assert first.failure == ""
    change = torch.cat([value.flatten() for value in first.reply.weights.values() if value.is_floating_point()])
    assert torch.isfinite(change).all()
    assert digest_of(ask(path, train())) == digest_of(first)  # the same noise, not another look at the data
    account = PrivacyAccount(tmp_path / "notebook" / "privacy" / "north.jsonl")
    assert [each.rho for each in account.charges()] == [0.5]
    [line, _] = egress(path)
    assert line["outside_budget"] == ["Trained.samples"]
    assert first.reply.loss is None
    second = ask(path, train(run="another-run"))
    assert second.failure == ""
    third = ask(path, train(run="a-third"))
    assert third.failure.startswith("Refused: this site's privacy budget does not allow it: 0 of 1 is left")
    assert account.spent == pytest.approx(1.0)


def test_the_account_is_the_datasets_not_the_sites(tmp_path: Path) -> None:
    path = site(tmp_path, **NOISY, dataset="chest 2024")
    assert ask(path, train()).failure == ""
    [file] = (tmp_path / "notebook" / "privacy").glob("*2024*.jsonl")
    assert "chest" in file.name


def test_the_budget_is_shown_with_what_it_does_not_cover(tmp_path: Path) -> None:
    path = site(tmp_path, **NOISY)
    ask(path, train())
    shown = CliRunner().invoke(app, ["flower", "budget", str(path), "--json"])
    assert shown.exit_code == 0, shown.output
    table = json.loads(shown.output)
    assert (table["spent"], table["budget"], table["releases"]) == (0.5, 1.0, 1)
    assert table["outside"] == {"Train": ["Trained.samples"]}
    # rho = 1/2, delta = 1e-6: the least of the bounds over all orders, at alpha = 5.907
    assert table["epsilon"] == pytest.approx(5.2215, abs=1e-4)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"noise": 1.0}, "policy.noise needs policy.clip"),
        ({"budget": 1.0}, "policy.budget needs policy.noise"),
        ({"clip": 0.0}, "clip"),
        ({"min_count": -1}, "min_count"),
    ],
)
def test_rules_that_make_no_sense_are_refused(table: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=word):
        read_site_file(write_site(tmp_path, policy=table))


# The floor -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tallied(Reply):
    found: int = disclosed("a count", "count")
    table: torch.Tensor = disclosed("counts", "count")
    version: int = disclosed("no count", "setting", default=3)


def test_a_plugins_small_count_does_not_leave_either() -> None:
    large, small = torch.tensor([0, 10, 25]), torch.tensor([0, 9, 25])
    assert list(small_counts(Tallied(10, large), 10)) == []
    assert list(small_counts(Tallied(9, small), 10)) == ["Tallied.found", "Tallied.table"]
    policy = Policy(fields=("Tallied.found", "Tallied.table", "Tallied.version"), min_count=10)
    assert policy.objection_to_reply(Tallied(0, large)) is None
    reason = policy.objection_to_reply(Tallied(1, large))
    assert reason == "Tallied.found counts fewer samples than this site's minimum count 10"


def test_a_site_below_its_own_minimum_count_stays_out(tmp_path: Path) -> None:
    path = site(tmp_path, min_count=10)  # it has six samples
    assert "fewer samples than its minimum count 10" in ask(path, IntroductionRequest()).failure
    assert "Trained.samples counts fewer" in ask(path, train()).failure


def test_an_audits_aggregates_need_a_word_of_their_own() -> None:
    asked = RequestEnvelope("run", "north", RequestMoment(1, "count", 0, 0), "", CountLabels((1, 3)))
    for audit in (False, True):
        policy = Policy(requests=("CountLabels",), audit=audit)
        reason = policy.objection_to_request(asked)
        assert (reason is None) == audit


# Approval and withdrawal ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class AskForMore(Request[Trained]):
    """As if a newer version had it."""


def test_what_was_not_there_on_approval_is_refused(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    notebook = tmp_path / "notebook" / "north"
    file = read_site_file(path)
    assert rules_of(file, notebook) is None  # a trial: nobody approved anything
    approve(notebook)
    known = json.loads((notebook / "approved.json").read_text("utf-8"))
    assert {"Train", "Evaluate", "Indicate"} <= set(known["requests"])
    known["requests"].remove("Train")  # as if Train were newer than the approval
    (notebook / "approved.json").write_text(json.dumps(known))
    assert "does not allow the request Train" in ask(path, train()).failure
    (notebook / "approved.json").write_text("{")  # damaged: that is no trial
    assert "does not allow the request Train" in ask(path, train()).failure
    approve(notebook)
    assert ask(path, train()).failure == ""


def test_a_policy_says_what_it_says_and_the_approval_the_rest(tmp_path: Path) -> None:
    path = write_site(tmp_path, policy={"requests": ["Train"], "min_count": 0})
    notebook = tmp_path / "notebook" / "north"
    assert "does not let Trained.weights out" in ask_made(path)
    approve(notebook)
    assert ask_made(path) == ""
    rules = rules_of(read_site_file(path), notebook)
    assert rules is not None
    assert rules.requests == ("Train",)
    assert set(FIELDS) <= set(rules.fields or ())


def ask_made(path: Path) -> str:
    (path.parent / "notebook" / "north").mkdir(parents=True, exist_ok=True)
    return str(ask(path, train()).failure)


def test_a_site_that_withdrew_answers_nothing_and_keeps_the_record(tmp_path: Path) -> None:
    path = site(tmp_path)
    assert ask(path, train()).failure == ""
    done = CliRunner().invoke(app, ["flower", "withdraw", str(path), "--erase"])
    assert done.exit_code == 0, done.output
    assert "run" in done.output
    notebook = tmp_path / "notebook" / "north"
    assert withdrawn_since(notebook) is not None
    assert not (notebook / "runs").exists()
    for asked in (IntroductionRequest(), train()):
        assert "site 'north' has withdrawn" in ask(path, asked).failure
    assert len(egress(path)) == 3
    assert withdraw(notebook) == []


def test_words_of_the_coordinator_are_for_the_person_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(ask(site(tmp_path), SiteNotice("write the classes\x1b[2J in order")), Acknowledged)
    [line] = [r.getMessage() for r in caplog.records if "the coordinator says" in r.getMessage()]
    assert line.isprintable()


def test_no_egress_no_list() -> None:
    assert fields_that_left(Path("/nowhere/egress.jsonl")) == {}
    assert OPEN["min_count"] == 0


LABELS = {
    "requests": ["ReleaseLabels"],
    "fields": [f"ReleasedCounts.{name}" for name in ("counts", "epsilon", "releases", "private")],
    "min_count": 0,
}


@pytest.mark.parametrize("policy", [{"policy": LABELS}, {}])
def test_what_all_releases_of_labels_spend_is_added_up_over_runs_and_seeds(
    policy: dict[str, Any], tmp_path: Path
) -> None:
    """Each run has a notebook of its own; by new runs and seeds the noise could be averaged away."""
    path = write_site(tmp_path, privacy_budget=1.0, **policy)
    (tmp_path / "notebook" / "north").mkdir(parents=True)

    def release(epsilon: float, number: int) -> ReplyEnvelope:
        moment = RequestMoment(number, "labels", 0, 0)
        found = ask(path, RequestEnvelope(f"run-{number}", "north", moment, "", ReleaseLabels(epsilon, 3)))
        assert isinstance(found, ReplyEnvelope)
        return found

    first, *again = [release(0.6, number) for number in range(20)]
    assert isinstance(first.reply, ReleasedCounts)
    assert all(digest_of(each.reply) == digest_of(first.reply) for each in again)
    assert release(0.3, 20).reply is not None  # another draw, and paid for
    refused = release(0.2, 21)
    assert refused.reply is None
    assert "privacy budget does not allow it: 0.1 of 1 is left, a release costs 0.2" in refused.failure
    assert release(0.6, 22).reply is not None
    shown = CliRunner().invoke(app, ["flower", "budget", str(path)])
    assert "2 releases of labels spent epsilon 0.9 on each, of 1" in " ".join(shown.output.split())


def test_a_loss_costs_what_an_update_does_and_leaves_with_noise(tmp_path: Path) -> None:
    path = site(tmp_path, **{**NOISY, "fields": FIELDS})
    losses = {ask(path, train(run=run)).reply.loss for run in ("one",)}
    assert losses != {ask(site(tmp_path / "plain"), train()).reply.loss}
    [charge] = PrivacyAccount(tmp_path / "notebook" / "privacy" / "north.jsonl").charges()
    assert (charge.updates, charge.rho) == (2, 1.0)
    [line] = egress(path)
    assert line["outside_budget"] == ["Trained.samples"]


@pytest.mark.parametrize(
    ("value", "kind", "most", "left"),
    [
        (0.123456, "loss", None, 0.12),
        (1e9, "loss", None, 10.0),
        (math.nan, "loss", None, 10.0),
        (-3.0, "loss", None, 0.0),
        (0.987654, "share", 1.0, 0.99),
        (torch.tensor([0.555, 1e9]), "score", None, [0.56, 100.0]),
        (torch.tensor([-3, -(10**6)]), "likelihood", 0.0, [-3, -10 * 7]),
    ],
)
def test_figures_are_bounded_and_rounded(value: Any, kind: Any, most: float | None, left: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class OneFigure(Reply):
        figure: Any = disclosed("a figure", kind, most=most)

    request = Train({}, Recipe())
    found = protected(OneFigure(value), request, None, min_count=10, samples=7).reply.figure  # type: ignore[attr-defined]
    assert type(found) is type(value)
    if isinstance(value, torch.Tensor):
        assert found.dtype == value.dtype
        torch.testing.assert_close(found, torch.tensor(left, dtype=value.dtype))
    else:
        assert found == left
    assert protected(OneFigure(value), request, None).reply.figure is value  # type: ignore[attr-defined]


def test_figures_get_noise_of_all_that_they_can_be(tmp_path: Path) -> None:
    """Two means of losses differ by 10 at most, however many samples moved them: noise of 4 times 5."""

    @dataclasses.dataclass(frozen=True)
    class ManyFigures(Reply):
        figures: torch.Tensor = disclosed("figures", "loss")

    noise = NoiseMechanism(clip=1e-9, noise=4.0, entropy=np.random.default_rng(3).bytes)
    reply = ManyFigures(torch.full((1,), 5.0, dtype=torch.float64))
    request = Train({}, Recipe())
    left = [float(protected(reply, request, noise).reply.figures) for _ in range(400)]  # type: ignore[attr-defined]
    # N(5, 20) cut to 0 ... 10 is at either end with chance 1 - Phi(1/4) = 0.401 each
    assert min(left) == 0.0 and max(left) == 10.0
    assert np.mean(np.array(left) == 0.0) == pytest.approx(0.401, abs=0.08)
    assert protected(reply, request, noise).updates == 1


def test_models_that_judge_a_sites_samples_are_counted_over_all_runs(tmp_path: Path) -> None:
    path = site(tmp_path, questions=3)
    for run in ("a", "b", "c"):
        assert ask(path, train(run=run)).failure == ""
        assert ask(path, train(run=run)).failure == ""  # the same answer again is no other question
    assert (
        "bound on questions (policy.questions) does not allow it: 0 of 3 is left" in ask(path, train(run="d")).failure
    )
    write_site(tmp_path, policy={**OPEN, "fields": FIELDS[:2], "questions": 3})
    assert ask(path, train(run="d")).failure == ""  # a model alone answers none


def test_a_slightly_different_epsilon_opens_no_fresh_account(tmp_path: Path) -> None:
    """400 runs at epsilon 0.1 (1 + k 1e-6) spent 40 on each label; the default budget of 4 allows 39 of them."""
    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    answered, refused = 0, 0
    for number in range(50):
        moment = RequestMoment(number, "labels", 0, 0)
        asked = ReleaseLabels(0.1 * (1 + number * 1e-6), 3)
        found = ask(path, RequestEnvelope(f"run-{number}", "north", moment, "", asked))
        answered += found.reply is not None
        refused += "privacy budget does not allow it" in found.failure
    assert (answered, refused) == (39, 11)
    shown = CliRunner().invoke(app, ["flower", "budget", str(path)])
    assert "39 releases of labels spent epsilon 3.9 on each, of 4" in " ".join(shown.output.split())


def test_true_counts_of_labels_need_a_site_without_a_limit(tmp_path: Path) -> None:
    for budget, wanted in ((4.0, False), (math.inf, True)):
        path = write_site(tmp_path / str(budget), privacy_budget=budget)
        (path.parent / "notebook" / "north").mkdir(parents=True)
        asked = RequestEnvelope("run", "north", RequestMoment(1, "labels", 0, 0), "", ReleaseLabels(None, 3))
        assert (ask(path, asked).reply is not None) == wanted
    with pytest.raises(ConfigError, match="privacy_budget"):
        read_site_file(write_site(tmp_path / "less", privacy_budget=-1.0))
