"""FedDPCont: the release, its ledger, the recovered shares, the contrastive loss and the server's step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError, DataError
from fedsift.methods.feddpcont import (
    RELEASE,
    Contrastive,
    FedDPCont,
    FedDPContState,
    LargestLogit,
    ReleasedCounts,
    ReleaseLabels,
    WatchLogits,
    draw_peers,
    label_shares,
)
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import Reply, Request, SiteFacts
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.study.study import Study
from fedsift.testing import Scripted
from fedsift.training.job import TrainingJob
from fedsift.training.objective import CrossEntropy, as_objective
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained
from tests.methods.by_hand import PLAIN, plain_weights, site, view
from tests.promises.federations import contract_study, play

LOG3 = math.log(3)
"""With K = 3, epsilon = log 3 keeps a label with 3/5 and gives each other one 1/5."""


def labelled(labels: list[int], classes: int = 3, **more: Any) -> Site:
    return site([[0.0]] * len(labels), labels, classes=classes, **more)


def ask(epsilon: float | None, classes: int = 3, budget: float | None = None) -> ReleaseLabels:
    return ReleaseLabels(epsilon, classes, budget)


# The release


@pytest.mark.parametrize("epsilon", [None, 60.0, 1000.0])
def test_no_noise_or_hardly_any_sends_the_true_counts(epsilon: float | None) -> None:
    at = labelled([0, 0, 2, 2, 2])
    assert ask(epsilon).answer(at).counts.tolist() == [2, 0, 3]


def test_a_label_is_kept_with_the_probability_of_the_mechanism() -> None:
    n = 20_000
    reply = ask(0.81, classes=10).answer(labelled([4] * n, classes=10))
    keep = math.exp(0.81) / (math.exp(0.81) + 9)
    assert int(reply.counts.sum()) == n
    assert abs(int(reply.counts[4]) - n * keep) < 4 * math.sqrt(n * keep * (1 - keep))
    other = (1 - keep) / 9
    federated = 4.5 * math.sqrt(n * other * (1 - other))
    assert all(abs(int(c) - n * other) < federated for k, c in enumerate(reply.counts) if k != 4)


def test_epsilon_0_tells_nothing() -> None:
    one, two = (ask(0.0).answer(labelled([k] * 9000)) for k in (0, 2))
    for counts in (one.counts, two.counts):
        assert all(abs(int(c) - 3000) < 4 * math.sqrt(9000 * 2 / 9) for c in counts)


def test_a_single_label_can_be_released() -> None:
    assert int(ask(LOG3).answer(labelled([1])).counts.sum()) == 1


def test_asking_again_sends_the_first_release_and_spends_nothing() -> None:
    labels = [k % 3 for k in range(60)]
    first_site = labelled(labels)
    first = ask(LOG3).answer(first_site)
    pages = first_site.notebook.pages()
    for again in (ask(LOG3), ask(2 * LOG3), ask(None)):
        later = labelled(labels, notebook=Notebook(pages), round_=8, ask=3, seed=99)
        reply = again.answer(later)
        assert reply.counts.tolist() == first.counts.tolist()
        assert (reply.epsilon, reply.releases) == (LOG3, 1)
        assert not later.notebook.written


def test_a_release_less_private_than_asked_is_not_sent() -> None:
    at = labelled([0, 1, 2])
    ask(LOG3).answer(at)
    with pytest.raises(DataError, match=r"'here'.*before.*more than the 0\.5"):
        ask(0.5).answer(at)
    open_site = labelled([0, 1, 2])
    ask(None).answer(open_site)
    with pytest.raises(DataError, match="inf"):
        ask(LOG3).answer(open_site)


def test_changed_labels_are_not_released_silently() -> None:
    at = labelled([0, 1, 2])
    ask(LOG3).answer(at)
    with pytest.raises(DataError, match=f"remove the page '{RELEASE}'"):
        ask(LOG3).answer(labelled([0, 1, 1], notebook=Notebook(at.notebook.pages())))


@pytest.mark.parametrize("epsilon", [1.0, None])
def test_a_budget_is_kept(epsilon: float | None) -> None:
    with pytest.raises(DataError, match=r"budget is 0\.9"):
        ask(epsilon, budget=0.9).answer(labelled([0, 1]))
    stricter = labelled([0, 1], privacy_budget=0.5)
    with pytest.raises(DataError, match=r"budget is 0\.5"):
        ask(epsilon, budget=0.9).answer(stricter)
    assert RELEASE not in stricter.notebook
    assert ask(0.5, budget=0.9).answer(stricter).epsilon == 0.5


def test_the_draw_is_the_sites_own() -> None:
    """It repeats after a crash, whatever the round; it differs between sites, seeds and secrets."""
    labels = [k % 3 for k in range(300)]

    def counts(**more: Any) -> list[int]:
        return ask(LOG3).answer(labelled(labels, **more)).counts.tolist()

    assert counts() == counts(round_=5, ask=2)
    drawn = [counts(), counts(seed=2), counts(name="there"), counts(secret="x"), counts(secret="y")]
    assert len({tuple(c) for c in drawn}) == len(drawn)
    assert counts(secret="x") == counts(secret="x") == counts(secret="x", seed=2)
    other = [
        *labels[:-1],
        (labels[-1] + 1) % 3,
    ]  # with one draw, two releases would differ by this very label
    differ = torch.tensor(counts(secret="x")) - ask(LOG3).answer(labelled(other, secret="x")).counts
    assert int(differ.abs().sum()) > 2
    assert ask(2 * LOG3).answer(labelled(labels, secret="x")).counts.tolist() != counts(secret="x")
    assert ask(LOG3).answer(labelled(labels)).private is False
    assert ask(LOG3).answer(labelled(labels, secret="x")).private is True


def test_no_label_is_drawn_from_fewer_classes_than_there_are() -> None:
    """Of two classes asked for, a third one's samples could only be told as themselves."""
    with pytest.raises(DataError, match="has 3 classes"):
        ask(LOG3, classes=2).answer(labelled([2] * 50))


def test_releases_that_cannot_be_are_refused() -> None:
    facts = SiteFacts("s", 5)
    good = ReleasedCounts(torch.tensor([2, 0, 3]), LOG3, 1, True)
    assert good.refusal(ask(LOG3), facts) is None
    bad = [
        replace(good, counts=torch.tensor([2, 0, 4])),
        replace(good, counts=torch.tensor([6, 0, -1])),
        replace(good, counts=torch.tensor([2, 3])),
        replace(good, counts=torch.tensor([2.0, 0.0, 3.0])),
        replace(good, epsilon=-1.0),
        replace(good, epsilon=2.0),
        replace(good, epsilon=None),
        replace(good, releases=0),
        replace(good, private=1),  # type: ignore[arg-type]
    ]
    assert [bool(reply.refusal(ask(LOG3), facts)) for reply in bad] == [True] * len(bad)


# Recovered shares: raw = (5 p - 1) / 2 for K = 3 and epsilon = log 3


def released(counts: list[int], epsilon: float | None = LOG3) -> ReleasedCounts:
    return ReleasedCounts(torch.tensor(counts), epsilon, 1, False)


def test_expected_counts_give_the_shares_back() -> None:
    # q = (1/2, 1/2, 0) is released as p = (2/5, 2/5, 1/5)
    raw, q = label_shares([released([3, 1, 1]), released([1, 3, 1])], "clip")
    np.testing.assert_allclose(raw, [0.5, 0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(q, [0.5, 0.5, 0.0], atol=1e-12)


def test_negative_shares_are_cut_projected_or_left() -> None:
    # p = (6, 3, 1) / 10: raw = (1, 1/4, -1/4)
    counts = [released([6, 3, 1])]
    np.testing.assert_allclose(label_shares(counts, "raw")[1], [1, 0.25, -0.25])
    np.testing.assert_allclose(label_shares(counts, "clip")[1], [0.8, 0.2, 0])
    np.testing.assert_allclose(label_shares(counts, "project")[1], [0.875, 0.125, 0])


def test_shrunken_shares_keep_what_noise_cannot_explain() -> None:
    # T_ii = 3/5, T_ij = 1/5: noise (0.24 + 0.32) / (10 * 0.16) = 0.35; ||raw - 1/3||^2 = 19/24
    kept = (19 / 24 - 0.35) / (19 / 24)
    expected = 1 / 3 + kept * (np.array([1, 0.25, -0.25]) - 1 / 3)
    np.testing.assert_allclose(label_shares([released([6, 3, 1])], "shrink")[1], expected)
    exact = [released([6, 3, 1], None)]
    np.testing.assert_allclose(label_shares(exact, "shrink")[1], [0.6, 0.3, 0.1])
    # half of the labels came without noise, so a quarter of it is left
    raw, q = label_shares([released([6, 3, 1]), *exact], "shrink")
    energy = float(((raw - 1 / 3) ** 2).sum())
    np.testing.assert_allclose(q, 1 / 3 + (energy - 0.35 / 4) / energy * (raw - 1 / 3))


def test_releases_at_different_epsilons_are_undone_apart() -> None:
    raw, _ = label_shares([released([4, 4, 2]), released([0, 0, 10], None), released([90, 0, 0], 0.0)], "clip")
    np.testing.assert_allclose(raw, [0.25, 0.25, 0.5], atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 1e-12, 1e-320])
def test_a_site_that_tells_next_to_nothing_does_not_drown_the_others(epsilon: float) -> None:
    """Undone at 0.01, counts of 10 are stretched by a hundred: noise 6,700 of a length that is at most 2 / 3."""
    usual, _ = label_shares([released([4, 4, 2])], "project")
    raw, q = label_shares([released([4, 4, 2]), released([10, 0, 0], epsilon)], "project")
    np.testing.assert_allclose(raw, usual)
    assert np.isfinite(q).all() and q.sum() == pytest.approx(1.0)
    _, alone = label_shares([released([10, 0, 0], epsilon)], "project")
    assert alone.sum() == pytest.approx(1.0)


def test_epsilon_0_everywhere_is_uniform() -> None:
    for recovery in ("clip", "project", "shrink", "raw"):
        _, q = label_shares([released([9, 0, 0], 0.0)], recovery)  # type: ignore[arg-type]
        np.testing.assert_allclose(q, [1 / 3] * 3)


# The loss


def test_with_beta_1_and_no_eps_it_is_a_difference_of_logits() -> None:
    at = view([[1.0, 5.0, 2.0]], [[1, 0, 0]], chance=[0.6])
    term = Contrastive((0.25, 0.25, 0.5), beta=1.0, eps=0.0)  # 0.6 falls in the last class
    assert term.value(at).item() == pytest.approx(2.0 - 1.0)
    half = replace(term, beta=0.5)
    log_p = torch.log_softmax(at.logits[0], -1)
    assert half.value(at).item() == pytest.approx((-log_p[0] + 0.5 * log_p[2]).item())


def test_expectation_is_the_mean_over_the_peers() -> None:
    q = (0.25, 0.25, 0.5)
    every_quarter = view([[1.0, -2.0, 0.5]] * 4, [[0, 1, 0]] * 4, chance=[0.0, 0.25, 0.5, 0.75])
    sampled = Contrastive(q).value(every_quarter).item()
    assert Contrastive(q, peers="expectation").value(every_quarter).item() == pytest.approx(sampled)
    assert Contrastive(q, peers="expectation").needs == frozenset()
    assert Contrastive(q).needs == {"chance"}
    assert Contrastive().needs == {"chance", "prior"}


def test_expected_gradient_is_q_minus_the_label() -> None:
    q = (0.2, 0.3, 0.5)
    at = view([[0.3, -1.0, 2.0]], [[0, 1, 0]])
    at.logits.requires_grad_()
    Contrastive(q, eps=0.0, peers="expectation").value(at).backward()
    torch.testing.assert_close(at.logits.grad, torch.tensor([[0.2, 0.3 - 1.0, 0.5]], dtype=torch.float64))


def test_eps_bounds_what_can_be_gained() -> None:
    at = view([[0.0, 1000.0]], [[0, 1]], chance=[0.0])
    q = (1.0, 0.0)
    assert Contrastive(q, eps=0.0).value(at).item() == pytest.approx(-1000.0)
    assert Contrastive(q, eps=1e-3).value(at).item() == pytest.approx(math.log(1e-3))


def test_peers_follow_the_shares_and_never_fall_on_an_absent_class() -> None:
    chance = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 0.999999999], dtype=torch.float64)
    drawn = draw_peers(torch.tensor([0.25, 0.25, 0.5]), chance).argmax(-1)
    assert drawn.tolist() == [0, 0, 1, 1, 2, 2]
    for q in ([0.0, 1.0, 0.0], [0.0, 0.3, 0.0, 0.7, 0.0]):
        peers = draw_peers(torch.tensor(q), torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1])
        assert set(peers.argmax(-1).tolist()) == {k for k, share in enumerate(q) if share}


def test_local_contrast_uses_each_sites_own_shares() -> None:
    prior = torch.log(torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]], dtype=torch.float64))
    at = view([[[1.0, 5.0, 2.0]]] * 2, [[[0, 1, 0]]] * 2, chance=[[0.5], [0.5]], log_prior=prior)
    assert Contrastive(eps=0.0).value(at).tolist() == pytest.approx([1.0 - 5.0, 2.0 - 5.0])
    expectation = Contrastive(eps=0.0, peers="expectation").value(at)
    assert expectation.tolist() == pytest.approx([-4.0, -3.0])


def test_local_shares_come_from_the_sites_labels() -> None:
    recipe = Recipe(objective=as_objective(Contrastive()))
    prior = TrainingJob(labelled([0, 0, 2, 2]), {}, recipe).log_prior().exp()
    assert prior.tolist() == [[0.5, 0.0, 0.5]]


def test_training_draws_new_peers_every_epoch() -> None:
    """Two samples at the origin: only the bias moves, by lr (e_y - e_y') a step; a seed fixes it."""
    weights = plain_weights([[0.0]] * 3)
    recipe = Recipe(epochs=40, batch_size=2, lr=1.0, objective=as_objective(Contrastive((0.5, 0.5, 0.0), eps=0.0)))
    one = Train(weights, recipe).answer(labelled([0, 0]))
    two = Train(weights, recipe).answer(labelled([0, 0]))
    assert torch.equal(one.weights["head.bias"], two.weights["head.bias"])
    moved = one.weights["head.bias"].tolist()
    assert moved[2] == 0.0
    assert moved[0] == pytest.approx(-moved[1])
    # 80 fair draws: class 0 moves up by the number of times that the peer was class 1, over 2
    assert 10 < moved[0] < 30


# The server


FACTS = [SiteFacts(name, 10, model=PLAIN) for name in ("a", "b")]


def answering(epsilon: float | None = LOG3) -> Callable[[str, Request[Any]], Reply | None]:
    def answer(site: str, request: Request[Any]) -> Reply | None:
        if isinstance(request, ReleaseLabels):
            return released([4, 4, 2], epsilon)
        assert isinstance(request, Train)
        value = {"a": 1.0, "b": 3.0}[site]
        parts = tuple(LargestLogit(value) for _ in request.then)
        return Trained(plain_weights([[value]] * 3), 10, value, parts)

    return answer


def stub(epsilon: float | None = LOG3) -> Scripted:
    return Scripted(FACTS, answering(epsilon), plain_weights([[0.0]] * 3), classes=3)


def test_the_release_is_recorded_in_a_ledger() -> None:
    federation = stub()
    method = FedDPCont(epsilon=LOG3)
    state = method.release_labels(method.start(federation), federation)
    np.testing.assert_allclose(state.q, [0.5, 0.5, 0.0], atol=1e-12)
    ledger = federation.recorded["privacy"]
    assert ledger["epsilon_spent_per_label"] == LOG3
    assert ledger["releases_per_label"] == 1
    assert ledger["entropy"] == "run seed (simulation)"
    assert federation.recorded_sites["label_epsilon_spent"] == {"a": LOG3, "b": LOG3}
    assert federation.recorded["label_shares_shift"] == pytest.approx(0.0, abs=1e-12)
    assert federation.warnings == []


def test_an_earlier_release_is_told() -> None:
    federation = stub(epsilon=0.5)
    method = FedDPCont(epsilon=LOG3)
    method.release_labels(method.start(federation), federation)
    assert "nothing more was spent" in federation.warnings[0]
    assert federation.recorded["privacy"]["epsilon_spent_per_label"] == 0.5


def test_no_noise_spends_without_bound() -> None:
    federation = stub(epsilon=None)
    method = FedDPCont(epsilon=None)
    state = method.release_labels(method.start(federation), federation)
    np.testing.assert_allclose(state.q, [0.4, 0.4, 0.2])
    assert federation.recorded["privacy"]["epsilon_spent_per_label"] is None
    [request] = federation.requests
    assert isinstance(request, ReleaseLabels)
    assert request.epsilon is None


def test_shares_that_cannot_be_drawn_from_are_refused() -> None:
    federation = Scripted(FACTS, lambda site, request: released([6, 3, 1]), plain_weights([[0.0]] * 3), classes=3)
    raw = FedDPCont(epsilon=LOG3, recovery="raw")
    with pytest.raises(ConfigError, match="negative"):
        raw.release_labels(raw.start(federation), federation)
    mean = replace(raw, contrast="expectation")
    state = mean.release_labels(mean.start(federation), federation)
    np.testing.assert_allclose(state.q, [1, 0.25, -0.25])
    cut = replace(raw, recovery="clip")
    cut.release_labels(cut.start(federation), federation)
    assert federation.recorded["label_shares_shift"] == pytest.approx((0.2 + 0.05 + 0.25) / 2)


def trained(method: FedDPCont, index: int = 0) -> tuple[FedDPContState, Scripted, Train]:
    federation = stub()
    federation.round = Round("train", index, index + 1)
    state = FedDPContState(federation.weights, np.array([0.5, 0.5, 0.0]))
    state = method.train(state, federation)
    [visit] = federation.requests
    assert isinstance(visit, Train)
    return state, federation, visit


def test_the_server_steps_towards_the_average() -> None:
    for rate, expected in ((1.0, 2.0), (0.5, 1.0), (1.5, 3.0)):
        state, _, _ = trained(FedDPCont(fraction=1.0, server_lr=rate))
        assert state.weights["head.weight"][0, 0].item() == pytest.approx(expected)
    state, _, _ = trained(FedDPCont(fraction=0.5))
    assert state.weights["head.weight"][0, 0].item() == 1.0


def test_switches_reach_the_loss() -> None:
    def term(index: int = 0, **switches: Any) -> Any:
        [(weight, found)] = trained(FedDPCont(**switches), index)[2].recipe.objective.terms
        assert weight == 1.0
        return found

    assert term() == Contrastive((0.5, 0.5, 0.0), 1.0, 1e-8, "sample")
    assert term(contrast="expectation", contrast_eps=0.1) == Contrastive((0.5, 0.5, 0.0), 1.0, 0.1, "expectation")
    assert term(scope="local") == Contrastive((), 1.0, 1e-8, "sample")
    assert term(beta=0.0) == CrossEntropy()
    assert [term(t, beta=2.0, beta_warmup=4) for t in (0, 1, 4, 9)] == [
        CrossEntropy(),
        Contrastive((0.5, 0.5, 0.0), 0.5),
        Contrastive((0.5, 0.5, 0.0), 2.0),
        Contrastive((0.5, 0.5, 0.0), 2.0),
    ]


def test_nothing_is_released_when_nothing_is_needed() -> None:
    assert [stage.name for stage in FedDPCont().stages()] == ["label release", "train"]
    assert [stage.name for stage in FedDPCont(scope="local").stages()] == ["train"]
    assert [stage.name for stage in FedDPCont(beta=0.0).stages()] == ["train"]


def test_logits_can_be_watched() -> None:
    _, federation, visit = trained(FedDPCont(fraction=1.0, watch_logits=True))
    assert [type(part) for part in visit.then] == [WatchLogits]
    assert federation.recorded["largest_logit"] == 3.0
    _, silent, plain_visit = trained(FedDPCont())
    assert plain_visit.then == ()
    assert "largest_logit" not in silent.recorded
    at = site([[1.0], [-2.0]], [0, 1], classes=2)
    assert WatchLogits(plain_weights([[3.0], [1.0]], bias=[1.0, 0.0])).answer(at).value == 5.0
    assert LargestLogit(-1.0).refusal(WatchLogits(), at.facts)


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": -0.1}, {"epsilon": math.nan}, {"beta": -1.0}, {"server_lr": 0.0}, {"contrast_eps": -1.0}],
)
def test_impossible_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedDPCont(**wrong)


def test_epsilon_above_the_budget_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="budget"):
        FedDPCont(epsilon=2.0, budget=1.0)
    with pytest.raises(ConfigError, match="budget"):
        FedDPCont(epsilon=None, budget=1.0)
    assert FedDPCont(epsilon=2.0, budget=1.0, scope="local").budget == 1.0


def test_no_privacy_noise_survives_the_study_file(tmp_path: Path) -> None:
    study = contract_study("feddpcont", tmp_path, method={"name": "feddpcont", "epsilon": math.inf})
    assert replace(study, method=replace(study.method, epsilon=None)).method == study.method
    assert "epsilon = inf" in study.to_toml()
    path = tmp_path / "study.toml"
    path.write_text(study.to_toml())
    assert Study.from_file(path).method == study.method


def test_a_run_keeps_its_ledger(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = play(contract_study("feddpcont", tmp_path), tmp_path)
    first = folder.rounds()[0]
    assert first["stage"] == "label release"
    assert first["privacy"]["epsilon_spent_per_label"] == 0.81
    assert first["privacy"]["sites"] == 5
    assert abs(sum(first["label_shares"]) - 1) < 1e-9
    json.dumps(first, allow_nan=False)
    header = (folder.path / "sites.csv").read_text().splitlines()[0]
    assert "label_epsilon_spent" in header
