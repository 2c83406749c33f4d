"""Cross-fitting: a model is untouched by the fold that it leaves out, whole groups stay together, predictions fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Samples, Site
from fedsift.training.crossfit import COPIES, FOLDS, CrossTrain, folds_of, out_of_fold_logits
from fedsift.training.predict import logits_of
from fedsift.training.recipe import Recipe
from fedsift.training.requests import LocalSite

FOLDS_ASKED = 3
RECIPE = Recipe(epochs=1, batch_size=8, lr=0.1)


def made_site(n: int = 40, **changes: object) -> Site:
    draw = torch.Generator().manual_seed(4)
    pool = torch.rand(n, 5, generator=draw)
    labels = torch.arange(n) % 3
    site = LocalSite(
        facts=SiteFacts("north", n, model="linear"),
        samples=Samples(pool, torch.arange(n)),
        given=labels,
        classes=("a", "b", "c"),
        moment=RequestMoment(1, "fit", 0, 0),
    )
    return replace(site, **changes)  # type: ignore[arg-type]


def request() -> CrossTrain:
    start = initial_weights("linear", (5,), 3, 0)
    return CrossTrain((start,) * FOLDS_ASKED, RECIPE)


def test_a_model_never_sees_the_labels_of_its_own_fold() -> None:
    first = made_site()
    before = request().answer(first)
    fold = folds_of(first, FOLDS_ASKED)
    for number in range(FOLDS_ASKED):
        labels = first.given.clone()
        labels[fold == number] = (labels[fold == number] + 1) % 3
        # folds are kept, so that the other labels do not move a sample to another fold
        other = made_site(given=labels, notebook=Notebook({FOLDS: fold}))
        after = request().answer(other)
        for k in range(FOLDS_ASKED):
            same = all(torch.equal(before.models[k][name], after.models[k][name]) for name in before.models[k])
            assert same == (k == number)


def test_sizes_and_folds_add_up() -> None:
    site = made_site(n=41)
    reply = request().answer(site)
    fold = site.notebook[FOLDS]
    assert reply.samples == tuple(int((fold != k).sum()) for k in range(FOLDS_ASKED))
    assert sum(41 - count for count in reply.samples) == 41
    assert reply.refusal(request(), site.facts) is None


def test_folds_are_dealt_once_and_keep_groups_and_copies_together() -> None:
    groups = torch.arange(40) // 4
    site = made_site(groups=groups)
    site.samples.pool[20] = site.samples.pool[3]  # a copy in another group
    fold = folds_of(site, FOLDS_ASKED)
    assert torch.equal(folds_of(site, FOLDS_ASKED), fold)
    for group in groups.unique():
        assert len(fold[groups == group].unique()) == 1
    assert fold[20] == fold[3]
    same = site.notebook[COPIES]
    assert same[20] == same[3]
    assert len(same.unique()) == 39


def test_predictions_are_by_the_model_that_left_the_sample_out() -> None:
    site = made_site()
    models = [initial_weights("linear", (5,), 3, seed) for seed in range(FOLDS_ASKED)]
    found = out_of_fold_logits(site, models)
    fold = folds_of(site, FOLDS_ASKED)
    for k, weights in enumerate(models):
        every = logits_of(site.network(weights), site.samples)
        assert torch.allclose(found[fold == k], every[fold == k], atol=1e-6)
    assert torch.allclose(out_of_fold_logits(site, models[:1]), logits_of(site.network(models[0]), site.samples))


def test_a_site_with_fewer_samples_than_folds_sends_back_what_it_could_not_train() -> None:
    site = made_site(n=1)
    reply = request().answer(site)
    assert sorted(reply.samples) == [0, 1, 1]
    empty = reply.samples.index(0)
    assert all(torch.equal(value, request().models[empty][name]) for name, value in reply.models[empty].items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ()}, "0 models came back, 3 were sent"),
        ({"samples": (1, 2)}, "models came back"),
        ({"samples": (1, 2, 99)}, "model 3: samples = 99 is outside"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    good = request().answer(made_site())
    assert words in str(replace(good, **change).refusal(request(), made_site().facts))  # type: ignore[arg-type]


def test_each_model_is_judged_for_itself() -> None:
    """One bad model among good ones must not hide behind them."""
    asked = request()
    good = asked.answer(made_site())
    assert [own for own, _ in good.moves(asked)] == list(good.models)
    assert [sent for _, sent in good.moves(asked)] == list(asked.models)
