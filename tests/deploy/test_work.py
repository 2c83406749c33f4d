"""Work that messages may ask of a site: embeddings and passes over its samples are bounded, refused before they begin,
and listed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsift.core.files import cache_root
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import known_requests
from fedsift.deploy.site.data import _open_site
from fedsift.deploy.site.embeddings import EMBEDDINGS
from fedsift.deploy.site.policy import Policy
from fedsift.label_audit.at_site import CountLabels, FitFolds, JudgeGrid
from fedsift.methods.co_teaching import TrainCoTaught
from fedsift.methods.divide_mix import TrainDivided
from fedsift.methods.fedclean import SortByOwnLearner
from fedsift.methods.feddiv import TrainBehindFilter
from fedsift.methods.fedrn import TrainAmongNeighbours
from fedsift.methods.joint_opt import JointLabels
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import STEP, ReplyEnvelope, Request, RequestEnvelope, RequestMoment, SiteFacts
from fedsift.training import features
from fedsift.training.crossfit import CrossTrain
from fedsift.training.features import Extractor, extractors
from fedsift.training.objective import CrossEntropy, Objective
from fedsift.training.own_models import EvaluateOwn
from fedsift.training.public_learning import Collaborate, PublicLesson, PublicPart, PublicPredictions
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate, Indicate, Train
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest
from fedsift.transports.remote.messages import EncodedMessage
from tests.deploy.test_policy import ask, egress
from tests.deploy.test_site_data import train, write_site

# Embeddings ---------------------------------------------------------------------------------------------------------


class Eye(nn.Module):
    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.mean((-2, -1))


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """Sides at which pictures were embedded, by an extractor that is registered here."""
    sides: list[int] = []
    real = features.embed

    def watched(images: Any, extractor: Extractor, side: int, **options: Any) -> Any:
        sides.append(side)
        return real(images, extractor, side, **options)

    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "embed", watched)
    extractors.register("test-eye")(lambda: Extractor(Eye()))
    yield sides
    extractors._entries.pop("test-eye")
    _open_site.cache_clear()


def place(folder: Path, **changes: Any) -> Path:
    path = write_site(folder, **changes)
    (folder / "notebook" / "north").mkdir(parents=True)
    return path


def test_a_message_has_only_so_many_kinds_of_features_made(tmp_path: Path, embedded: list[int]) -> None:
    path = place(tmp_path)
    names = [f"features:test-eye@{side}" for side in range(16, 40)]
    replies = [ask(path, IntroductionRequest(), name) for name in names]
    assert embedded == [16, 17, 18, 19]  # the default, without any table
    assert [type(reply) for reply in replies[:5]] == [Introduction] * 4 + [ReplyEnvelope]
    assert replies[4].failure == (
        "Refused: site 'north': features test-eye@20 would be one kind more than the 4 that this site makes of its "
        "pictures for messages: name one that it has, or let the site raise policy.embeddings in its site.toml"
    )
    assert [line.get("refused") for line in egress(path)[3:5]] == [None, replies[4].failure]
    assert len(list(cache_root().glob("features/*.npy"))) == 4
    # what it has it goes on using, whatever head is on it, in any request
    assert isinstance(ask(path, IntroductionRequest(), "features:test-eye@16+64"), Introduction)
    assert isinstance(ask(path, IntroductionRequest(), "features:test-eye@017"), Introduction)
    assert "policy.embeddings" in ask(path, train(), "features:test-eye@99").failure
    _open_site.cache_clear()  # another start of the site
    assert "policy.embeddings" in ask(path, IntroductionRequest(), "features:test-eye").failure
    assert len(embedded) == 4


def test_the_number_is_the_sites_own(tmp_path: Path, embedded: list[int]) -> None:
    written = "features:test-eye@300"
    path = place(tmp_path, policy={"embeddings": 1}, networks=[written])
    assert isinstance(ask(path, IntroductionRequest(), written), ReplyEnvelope | Introduction)
    assert embedded == [300]
    ask(path, IntroductionRequest(), "features:test-eye@20")
    assert embedded == [300, 20]  # what a person wrote is not counted
    assert "than the 1 that" in ask(path, IntroductionRequest(), "features:test-eye@21").failure
    none = place(tmp_path / "none", policy={"embeddings": 0})
    assert "than the 0 that" in ask(none, IntroductionRequest(), "features:test-eye@21").failure


def test_rows_of_features_and_broken_lists(tmp_path: Path, embedded: list[int]) -> None:
    arrays = {
        "images": np.zeros((6, 3), np.float32),
        "labels": np.array([0, 1] * 3),
        "classes": np.array(["a", "b"]),
    }
    rows = write_site(tmp_path / "rows", arrays)
    (tmp_path / "rows" / "notebook" / "north").mkdir(parents=True)
    for side in range(16, 22):
        assert isinstance(ask(rows, IntroductionRequest(), f"features:test-eye@{side}"), Introduction)
    assert embedded == []
    broken = place(tmp_path / "broken")
    (tmp_path / "broken" / "notebook" / "north" / EMBEDDINGS).write_text("[1]", "utf-8")
    assert "cannot be read" in ask(broken, IntroductionRequest(), "features:test-eye").failure
    assert embedded == []


# Passes -------------------------------------------------------------------------------------------------------------

SHAPE, CLASSES = (1, 2, 2), 3
WEIGHTS = initial_weights("mlp", SHAPE, CLASSES, 1)
FACTS = SiteFacts("north", 100, held_out=20, public=50, classes=CLASSES)
LONG = Recipe(epochs=100_000)


def envelope(request: Request[Any]) -> RequestEnvelope:
    return RequestEnvelope("run", "north", RequestMoment(1, "train", 0, 0), "", request)


def lesson(epochs: int) -> PublicLesson:
    return PublicLesson(PublicPart(0, 0, 50), torch.zeros(50, CLASSES), "mse", Recipe(epochs=epochs))


FOLDS = FitFolds(torch.zeros(5, 1, 3), (0,), 2, (0.1,), torch.ones(1, 3) / 3)

DEAR: dict[str, Request[Any]] = {
    "epochs": Train(WEIGHTS, LONG),
    "views": Train(WEIGHTS, Recipe(epochs=100, views=100)),
    "batches of one": Train(WEIGHTS, Recipe(epochs=200, batch_size=1)),
    "terms": Train(WEIGHTS, Recipe(epochs=5, objective=Objective(((1.0, CrossEntropy()),) * 10_000))),
    "two networks": TrainCoTaught(WEIGHTS, Recipe(epochs=600), twin=WEIGHTS),
    "models": CrossTrain((WEIGHTS,) * 50, Recipe(epochs=20)),
    "riders": Train(WEIGHTS, Recipe(), then=(Evaluate(None),) * 900),
    "hidden riders": Train(WEIGHTS, Recipe(), before=(Train(WEIGHTS, Recipe(), then=(Train(WEIGHTS, LONG),)),)),
    "hidden parts": SortByOwnLearner(WEIGHTS, {}, (Train({}, Recipe()), Train({}, LONG))),
    "guesses": TrainDivided(WEIGHTS, Recipe(), twin=WEIGHTS, views=10**6),
    "neighbours": TrainAmongNeighbours(WEIGHTS, Recipe(), neighbours=(WEIGHTS,) * 900, scores=(1.0,) * 901),
    "networks of folds": JudgeGrid((1, 3), torch.ones(1, 3), networks=(WEIGHTS,) * 900),
    "linear models": dataclasses.replace(FOLDS, held=(0,) * 10_000),
    "public epochs": Collaborate(learn=lesson(100_000)),
    "public samples": Collaborate(show=PublicPredictions(PublicPart(0, 0, 10**9), CLASSES)),
    "a part that pays for another": Collaborate(
        train=LONG, show=PublicPredictions(PublicPart(0, 10**12, 0), CLASSES), learn=lesson(1)
    ),
}


@pytest.mark.parametrize("what", DEAR)
def test_what_would_occupy_a_site_is_refused(what: str) -> None:
    reason = Policy().objection_to_work(DEAR[what], FACTS)
    assert reason is not None and reason.isprintable()
    assert type(DEAR[what]).__name__ in reason
    assert "its limit is 500" in reason and "policy.passes" in reason
    assert Policy(passes=1e9).objection_to_work(DEAR[what], FACTS) is None


def test_it_is_refused_before_anything_is_computed_and_egress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(tmp_path)  # without a policy: a trial has the limit too
    monkeypatch.setattr(worker, "answer", lambda *_, **__: pytest.fail("it was computed"))
    refused = ask(path, envelope(Train(WEIGHTS, LONG)))
    assert refused.failure == (
        "Refused: Train asks for 133,335 passes over this site's samples, its limit is 500: ask for fewer epochs or "
        "models at once, or let the site raise policy.passes in its site.toml"
    )
    [line] = egress(path)
    assert (line["request"], line["fields"], line["refused"]) == ("Train", [], refused.failure)
    assert not (tmp_path / "notebook" / "north" / "runs").exists()


def test_the_limit_is_the_sites_own_and_holds_to_the_pass(tmp_path: Path) -> None:
    request = Train(WEIGHTS, Recipe(epochs=3, batch_size=6))
    # 6 samples: two looks, and three epochs of one step, which counts as STEP samples
    passes = (2 * 6 + 3 * STEP) / 6
    assert request.work(SiteFacts("north", 6)) == 6 * passes
    policy = {
        "requests": ["Train"],
        "fields": ["Trained.weights", "Trained.samples", "Trained.loss"],
        "min_count": 0,
    }
    below = place(tmp_path / "a", policy={**policy, "passes": passes})
    assert ask(below, envelope(request)).failure == ""
    above = place(tmp_path / "b", policy={**policy, "passes": passes - 0.1})
    assert "policy.passes" in ask(above, envelope(request)).failure


def changed(request: Request[Any], old: str, new: str) -> EncodedMessage:
    encoded = encode(envelope(request))
    assert encoded.tree.count(old) == 1, encoded.tree
    return dataclasses.replace(encoded, tree=encoded.tree.replace(old, new)).with_note(model="mlp", session="1")


@pytest.mark.parametrize("epochs", ["2.5", '"3"', "1e999", "NaN", "-5", "0", "true", "null", "100001", "1" + "0" * 30])
def test_epochs_that_are_no_number_of_epochs(tmp_path: Path, epochs: str) -> None:
    path = place(tmp_path)
    encoded = changed(Train(WEIGHTS, Recipe(epochs=7)), '"epochs": 7', f'"epochs": {epochs}')
    refused = decode(worker._reply(encoded, path))
    assert refused.failure.startswith("Refused: ")
    assert len(egress(path)) == 1
    assert not (tmp_path / "notebook" / "north" / "runs").exists()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Indicate(WEIGHTS, 10**9), "Indicate speaks of 1000000000 classes, this site has 3"),
        (Train(WEIGHTS, Recipe(), then=(Indicate(None, 4),)), "speaks of 4 classes"),
        (CountLabels((1, 10**9)), "speaks of 1000000000 classes"),
        (dataclasses.replace(FOLDS, folds=10**9), "folds = 1e+09 is outside 1 to 100"),
        (dataclasses.replace(FOLDS, folds=-1), "folds = -1 is outside 1 to 100"),
        (TrainBehindFilter(WEIGHTS, Recipe(), em_steps=10**9), "em_steps = 1e+09 is outside 1 to 10000"),
        (
            Train(WEIGHTS, Recipe(objective=Objective(((1.0, JointLabels(window=10**9)),)))),
            "window = 1e+09 is outside 1 to 1000",
        ),
    ],
)
def test_numbers_that_would_only_fill_the_memory(tmp_path: Path, request_: Request[Any], words: str) -> None:
    refused = ask(place(tmp_path), envelope(request_))
    assert refused.failure.startswith("Refused: ") and words in refused.failure


def test_a_request_that_hides_in_a_part_of_another_must_be_egress() -> None:
    hidden = SortByOwnLearner(WEIGHTS, {}, (Train({}, Recipe(), then=(Evaluate(None),)),))
    policy = Policy(requests=("SortByOwnLearner",))
    assert "the request Evaluate" in str(policy.objection_to_request(envelope(hidden)))
    plain = SortByOwnLearner(WEIGHTS, {}, (Train({}, Recipe()),))
    assert policy.objection_to_request(envelope(plain)) is None


def test_what_is_no_number_is_too_much() -> None:
    class Odd(EvaluateOwn):
        def work(self, facts: SiteFacts) -> float:
            return math.nan

    assert Policy().objection_to_work(Odd(), FACTS) is not None


def test_every_request_that_carries_a_recipe_or_models_counts_them() -> None:
    """Whatever class, also one that is registered later: its fields count by themselves."""
    kinds = [kind for kind in known_requests() if kind.__module__.startswith("fedsift.")]
    assert len(kinds) > 40
    tried = 0
    for kind in kinds:
        names = {f.name for f in dataclasses.fields(kind)}
        made = object.__new__(kind)
        for f in dataclasses.fields(kind):
            default = f.default if f.default is not dataclasses.MISSING else None
            object.__setattr__(made, f.name, default)
        for name, value in (("held", ()), ("models", ()), ("parts", ()), ("views", 0)):
            if name in names:
                object.__setattr__(made, name, value)
        for name in names & {"recipe", "train"}:
            object.__setattr__(made, name, LONG)
            assert made.work(FACTS) > 100_000 * FACTS.samples, kind.__name__
            tried += 1
        if not names & {"recipe", "train"}:
            assert made.work(FACTS) >= FACTS.seen, kind.__name__
    assert tried > 15
