"""A site's policy: what it does not allow is neither computed nor sent, and the list of what left says so."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import ConfigError
from fedsift.deploy.app import narrowest_policy, write_app
from fedsift.deploy.site import policy as policies
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import allowed_runs
from fedsift.deploy.site.policy import Policy, fields_in, requests_in
from fedsift.deploy.site.site_file import read_site_file
from fedsift.methods._base import methods
from fedsift.methods.feddpcont import ReleaseLabels
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment, SiteFacts
from fedsift.study.study import Study
from fedsift.training.requests import Evaluate, Trained
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest
from tests.deploy.test_site_data import train, write_site

FIELDS = ["Trained.weights", "Trained.samples", "Trained.loss"]
OPEN = {"requests": ["Train"], "fields": FIELDS, "min_count": 0}


def ask(path: Path, asked: Any, model: str = "mlp") -> Any:
    """What leaves the site's own process."""
    return decode(worker._reply(encode(asked).with_note(model=model, session="1"), path))


def egress(path: Path) -> list[dict[str, Any]]:
    file = path.parent / "notebook" / "north" / "egress.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def site(folder: Path, **policy: Any) -> Path:
    path = write_site(folder, policy={**OPEN, **policy})
    (folder / "notebook" / "north").mkdir(parents=True)
    return path


def test_what_is_allowed_leaves_and_is_listed(tmp_path: Path) -> None:
    path = site(tmp_path)
    reply = ask(path, train())
    assert isinstance(reply, ReplyEnvelope)
    assert isinstance(reply.reply, Trained)
    assert isinstance(ask(path, IntroductionRequest()), Introduction)
    first, second = egress(path)
    assert (first["run"], first["request"]) == ("run", "Train")
    assert first["fields"] == ["Trained.weights", "Trained.samples", "Trained.loss"]
    assert first["bytes"] > 100
    assert "refused" not in first
    assert second["request"] == "IntroductionRequest"


def test_a_request_that_is_not_listed_is_not_even_computed(tmp_path: Path) -> None:
    path = site(tmp_path, requests=["Evaluate"])
    reply = ask(path, train())
    assert reply.reply is None
    assert reply.failure == "Refused: this site's policy does not allow the request Train"
    assert not (tmp_path / "notebook" / "north" / "runs").exists()
    [line] = egress(path)
    assert (line["fields"], line["refused"]) == ([], reply.failure)


def test_a_request_that_rides_on_another_is_looked_at_too(tmp_path: Path) -> None:
    envelope = train()
    both = dataclasses.replace(envelope, request=dataclasses.replace(envelope.request, then=(Evaluate(None),)))
    assert list(requests_in(both.request)) == ["Train", "Evaluate"]
    assert "the request Evaluate" in ask(site(tmp_path), both).failure


def test_a_field_that_is_not_listed_does_not_leave(tmp_path: Path) -> None:
    path = site(tmp_path, fields=["Trained.weights", "Trained.loss"])
    reply = ask(path, train())
    assert reply.reply is None
    assert reply.failure == "Refused: this site's policy does not let Trained.samples out"
    again = ask(path, train())  # the stored answer of a repeated request is held back as well
    assert again == reply


def test_a_field_that_the_methods_can_spare_is_left_out(tmp_path: Path) -> None:
    """The policy of docs/deployment.md: it does not list the training loss, and refused every Train for it."""
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    listed = tomllib.loads("fields" + page.partition("\n    fields")[2].partition("\n")[0])["fields"]
    assert "Trained.loss" not in listed
    path = site(tmp_path, fields=listed)
    reply = ask(path, train())
    assert reply.failure == ""
    assert reply.reply.loss is None
    assert reply.reply.refusal(train().request, SiteFacts("north", 6, classes=3)) is None
    [line] = egress(path)
    assert line["fields"] == ["Trained.weights", "Trained.samples"]


STUDY = {"seed": 1, "method": {"name": "fedavg", "rounds": 3}, "model": {"name": "mlp"}, "train": {"epochs": 2}}


def allowed(path: Path, run: str = "run", **changes: Any) -> str:
    """The run, allowed by an app's study; what the command says."""
    place = path.parent / f"app-{len(list(path.parent.glob('app-*')))}"
    write_app(Study.from_table({**STUDY, **changes}), place)
    result = CliRunner().invoke(app, ["flower", "allow", "--app", str(place), run, str(path)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_operator_is_asked_first(tmp_path: Path) -> None:
    path = site(tmp_path, ask_first=True)
    assert "has not allowed the run 'run' yet" in ask(path, train()).failure
    allowed(path)
    assert ask(path, train()).failure == ""
    assert "'other'" in ask(path, train(run="other")).failure
    notebook = tmp_path / "notebook" / "north"
    allowed(path, "other")
    assert set(allowed_runs(notebook)) == {"run", "other"}


def changed(**changes: Any) -> RequestEnvelope:
    envelope = train()
    moment = {key: changes.pop(key) for key in ("seed", "stage", "round") if key in changes}
    recipe = dataclasses.replace(envelope.request.recipe, **changes)
    request = dataclasses.replace(envelope.request, recipe=recipe)
    return dataclasses.replace(envelope, moment=dataclasses.replace(envelope.moment, **moment), request=request)


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (changed(seed=2), "it has seed 2, the study 1"),
        (changed(stage="warm up"), "it has a stage 'warm up', the study train"),
        (changed(round=3), "it is in round 4, the study has 3"),
        (changed(epochs=400), "it trains for 400 epochs, the study for 2"),
        (changed(lr=9.0), "it trains by lr 9"),
        (changed(batch_size=1), "it trains on 1 samples at once"),
        (dataclasses.replace(train(), request=ReleaseLabels(0.1, 3)), "it asks ReleaseLabels in the stage 'train'"),
    ],
)
def test_what_is_allowed_is_a_study_and_not_a_name(tmp_path: Path, envelope: RequestEnvelope, words: str) -> None:
    path = site(tmp_path, ask_first=True, requests=["Train", "ReleaseLabels"])
    allowed(path)
    failure = ask(path, envelope).failure
    assert "this is not the study that was allowed as the run 'run'" in failure and words in failure
    assert "the study mlp" in ask(path, train(), "cnn").failure.replace("'s", "")
    assert ask(path, train()).failure == ""


def test_what_differs_from_what_was_allowed_asks_again_and_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site(tmp_path, ask_first=True)
    allowed(path)
    write_site(tmp_path, policy={**OPEN, "ask_first": True, "passes": 900.0})
    assert "policy.passes: 500.0 -> 900.0" in ask(path, train()).failure
    assert "policy.passes: 500.0 -> 900.0" in allowed(path)
    assert ask(path, train()).failure == ""
    monkeypatch.setattr("fedsift.deploy.site.consent._source_digest", lambda package: "other")
    assert "has changed since: code of fedsift" in ask(path, train()).failure
    monkeypatch.undo()
    assert "train.epochs: 2 -> 4" in allowed(path, train={"epochs": 4})
    assert ask(path, changed(epochs=4, round=1)).failure == ""


def test_a_permission_that_was_altered_is_none(tmp_path: Path) -> None:
    path = site(tmp_path, ask_first=True)
    allowed(path)
    file = tmp_path / "notebook" / "north" / "allowed-runs.json"
    file.write_text(file.read_text("utf-8").replace("rounds = 3", "rounds = 9"), "utf-8")
    assert "has not allowed the run 'run' yet" in ask(path, train()).failure


def test_a_changed_policy_counts_from_the_next_request_on(tmp_path: Path) -> None:
    path = site(tmp_path)
    assert ask(path, train()).failure == ""
    write_site(tmp_path, policy={**OPEN, "requests": []})
    assert "does not allow" in ask(path, train()).failure
    write_site(tmp_path, policy={"reqests": []})
    with pytest.raises(ConfigError, match="reqests"):
        ask(path, train())


def test_no_policy_is_no_rule_and_an_empty_one_refuses_all(tmp_path: Path) -> None:
    assert read_site_file(write_site(tmp_path / "a")).policy is None
    assert read_site_file(write_site(tmp_path / "b", policy={})).policy == Policy()
    envelope = RequestEnvelope("run", "north", RequestMoment(1, "train", 0, 0), "", Evaluate(None))
    assert Policy().objection_to_request(envelope) is not None
    assert Policy().objection_to_request("text") is not None
    assert Policy().objection_to_request(IntroductionRequest()) is None


@pytest.mark.parametrize("method", ["fedavg", "fedcorr", "fednoro", "label-audit"])
def test_the_narrowest_policy_holds_what_a_study_declares(method: str, tmp_path: Path) -> None:
    study = Study.from_table({"method": {"name": method}, "model": {"name": "mlp"}})
    table = tomllib.loads(narrowest_policy(study))["policy"]
    assert ("Evaluate" in table["requests"]) == (method != "label-audit")  # an audit evaluates nothing
    policy = read_site_file(write_site(tmp_path, policy=table)).policy
    assert policy is not None
    assert policy.requests == tuple(table["requests"])
    assert method in methods.names()
    assert len(set(table["fields"])) == len(table["fields"]) > 3


def test_the_operator_s_page_and_the_module_list_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    for text in (page.replace("\n    ", "\n"), str(policies.__doc__)):
        block = text.partition("[policy]\nrequests")[2].partition("\n\n")[0]
        table = tomllib.loads(f"requests{block}")
        assert set(table) == {field.name for field in dataclasses.fields(Policy)}
        for key in ("passes", "questions", "embeddings"):
            assert table[key] == getattr(Policy(), key)


def test_empty_fields_do_not_leave() -> None:
    assert list(fields_in({"a": ()})) == []


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when somebody imports the module `not_asked_for`, which has a network and an extractor."""
    mark = tmp_path / "imported"
    code = f"""
from pathlib import Path
from torch import nn
Path({str(mark)!r}).touch()
def look():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
def net(shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, n_classes))
"""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "not_asked_for.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "not_asked_for", raising=False)
    monkeypatch.setattr("fedsift.training.features.cache_root", lambda: tmp_path / "cache")
    return mark


@pytest.mark.parametrize("policy", [{}, {"requests": [], "fields": [], "ask_first": True}])
@pytest.mark.parametrize("model", ["features:not_asked_for:look", "not_asked_for:net"])
@pytest.mark.parametrize("asked", [IntroductionRequest(), train()])
def test_a_message_cannot_choose_what_code_the_site_imports(
    tmp_path: Path, called: Path, asked: Any, model: str, policy: dict[str, Any]
) -> None:
    path = site(tmp_path / "site", **policy)
    reply = ask(path, asked, model)
    assert isinstance(reply, ReplyEnvelope) and reply.failure.startswith("Refused: ")
    if not policy or isinstance(asked, IntroductionRequest):
        assert "at site 'north'" in reply.failure
        assert f'networks = ["{model}"]' in reply.failure
    assert not called.exists()


def test_an_address_that_the_sites_own_file_names_may_come_in_a_message(tmp_path: Path, called: Path) -> None:
    path = write_site(tmp_path / "site", networks=["features:not_asked_for:look"])
    (path.parent / "notebook" / "north").mkdir(parents=True)
    reply = ask(path, IntroductionRequest(), "features:not_asked_for:look")
    assert isinstance(reply, Introduction) and reply.shape == (3,)
    assert called.exists()
    assert "Refused" in ask(path, IntroductionRequest(), "not_asked_for:net").failure


def test_a_site_with_a_network_of_its_own_does_not_mind_what_the_study_names(tmp_path: Path, called: Path) -> None:
    path = write_site(tmp_path / "site", model="mlp")
    (path.parent / "notebook" / "north").mkdir(parents=True)
    reply = ask(path, IntroductionRequest(), "not_asked_for:net")
    assert isinstance(reply, Introduction) and reply.facts.model == "mlp"
    assert not called.exists()


@pytest.mark.parametrize("run", ["withdrawn.json", "allowed-runs.json", "approved.json"])
def test_no_name_of_a_run_closes_the_site(tmp_path: Path, run: str) -> None:
    path = site(tmp_path)
    assert ask(path, dataclasses.replace(train(), run=run)).failure == ""
    assert isinstance(ask(path, IntroductionRequest()), Introduction)
    assert ask(path, train()).failure == ""


def test_a_site_that_such_a_run_closed_is_open_again_after_a_start(tmp_path: Path) -> None:
    path = site(tmp_path)
    notebook = tmp_path / "notebook" / "north"
    (notebook / "withdrawn.json").mkdir()
    (notebook / "withdrawn.json" / ".lock").touch()
    assert "has withdrawn" in ask(path, IntroductionRequest()).failure
    worker.check_notebook("north", notebook)
    assert isinstance(ask(path, IntroductionRequest()), Introduction)


@pytest.mark.parametrize("run", ["..", "a/b", "$(touch x)", "a\nfedsift.site refused", "r" * 101, ""])
def test_a_run_with_another_name_is_refused_with_or_without_a_policy(tmp_path: Path, run: str) -> None:
    for path in (site(tmp_path / "ruled"), write_site(tmp_path / "free")):
        (path.parent / "notebook" / "north").mkdir(parents=True, exist_ok=True)
        assert "is no name of a run" in ask(path, dataclasses.replace(train(), run=run)).failure
        assert not (path.parent / "notebook" / "north" / "runs").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 7},
        {"site": None},
        {"expects": ["0.0:train"]},
        {"moment": "0.0:train"},
        {"moment": RequestMoment("1", "train", 0, 0)},  # type: ignore[arg-type]
        {"request": "Train"},
        {"request": dataclasses.replace(train().request, then=("Evaluate",))},
    ],
)
def test_an_envelope_that_is_none_is_refused_and_the_site_lives_on(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = site(tmp_path)
    assert "the request cannot be served: " in ask(path, dataclasses.replace(train(), **changes)).failure
    assert ask(path, train()).failure == ""
    assert [("refused" in line) for line in egress(path)] == [True, False]
