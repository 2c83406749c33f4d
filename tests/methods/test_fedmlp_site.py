"""FedMLP's site side against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsift.methods.fedmlp import TAGGED_IN, TAGS, ClassPrototypes, MakePrototypes, TagCounts, TagMissing
from fedsift.protocol.messages import SiteFacts
from fedsift.protocol.notebook import EVIDENCE, LabelEvidence, Notebook
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob
from fedsift.training.objective import BinaryCrossEntropy, LabelsAndTeacher, MissingTo, PartialClass, as_objective
from fedsift.training.plan import plan
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train
from fedsift.training.trainer import known_in
from tests.methods.by_hand import plain_weights, site, view

LOG2, LOG3 = math.log(2), math.log(3)


# Losses: at z = 0 an entry costs log 2; with log-odds -log 3 (pi = 1/4) a positive log 4, a negative log 4/3


def test_partial_loss_counts_known_entries_alone() -> None:
    at = view([[0.0, 0.0], [0.0, 5.0]], [[1, 0], [0, 0]], known=[[1, 1], [1, 0]])
    assert PartialClass(adjust=0).value(at).item() == pytest.approx(LOG2)
    assert PartialClass(adjust=0, norm="classes").value(at).item() == pytest.approx(3 * LOG2 / 4)
    everything = replace(at, known=None)
    expected = (3 * LOG2 + math.log1p(math.exp(5))) / 4
    assert PartialClass(adjust=0).value(everything).item() == pytest.approx(expected)


def test_logit_adjustment_adds_the_log_odds() -> None:
    at = view([[0.0, 0.0]], [[1, 0]], known=[[1, 1]], log_prior=[[-LOG3, -LOG3]])
    assert PartialClass(adjust=1).value(at).item() == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)
    # twice the shift: sigmoid(-2 log 3) = 1 / 10
    assert PartialClass(adjust=2).value(at).item() == pytest.approx((math.log(10) + math.log(10 / 9)) / 2)
    assert PartialClass(adjust=0).value(at).item() == pytest.approx(LOG2)
    assert PartialClass(adjust=0).needs == frozenset()
    assert PartialClass(adjust=1).needs == {"prior"}
    assert PartialClass(adjust=1, prior_over="known").needs == {"known prior"}


def test_padding_does_not_count() -> None:
    short = view([[1.0, -1.0]], [[1, 0]], known=[[1, 0]], teacher=[[0.5, 0.5]], log_prior=[[-LOG3, 0.0]])
    padded = view(
        [[1.0, -1.0], [9.0, 9.0]],
        [[1, 0], [0, 0]],
        known=[[1, 0], [1, 1]],
        teacher=[[0.5, 0.5], [0.0, 0.0]],
        present=[1, 0],
        log_prior=[[-LOG3, 0.0]],
    )
    for term in (PartialClass(), PartialClass(norm="classes"), LabelsAndTeacher(), MissingTo()):
        assert term.value(padded).item() == pytest.approx(term.value(short).item())


def test_a_stacked_cohort_has_the_single_sites_losses() -> None:
    random = torch.Generator().manual_seed(3)

    def of(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    logits, teacher, prior = of(3, 4, 2), of(3, 4, 2), of(3, 1, 2)
    target, known = (of(3, 4, 2) > 0).double(), (of(3, 4, 2) > 0).double()
    both = view(logits, target, teacher=teacher, known=known, log_prior=prior)
    for term in (PartialClass(), LabelsAndTeacher(), LabelsAndTeacher(norm="separate"), MissingTo()):
        alone = [
            term.value(view(logits[c], target[c], teacher=teacher[c], known=known[c], log_prior=prior[c]))
            for c in range(3)
        ]
        torch.testing.assert_close(term.value(both), torch.stack(alone))


def test_second_stage_loss_takes_the_teacher_where_no_label_is_known() -> None:
    # p = (3/4, 1/2), teacher (1/2, 3/4): a label costs -log 3/4, the soft entry (1/2 - 3/4)^2 = 1/16
    at = view([[LOG3, 0.0]], [[1, 0]], known=[[1, 0]], teacher=[[0.0, LOG3]])
    assert LabelsAndTeacher(adjust=0).value(at).item() == pytest.approx((math.log(4 / 3) + 1 / 16) / 2)
    separate = LabelsAndTeacher(adjust=0, norm="separate").value(at).item()
    assert separate == pytest.approx(math.log(4 / 3) + 1 / 16)
    # the adjustment touches labels alone: z + log-odds = 0
    shifted = replace(at, log_prior=torch.tensor([[-LOG3, 7.0]], dtype=torch.float64))
    assert LabelsAndTeacher(adjust=1).value(shifted).item() == pytest.approx((LOG2 + 1 / 16) / 2)
    assert LabelsAndTeacher(adjust=0).needs == {"teacher"}
    assert LabelsAndTeacher(adjust=1).needs == {"teacher", "prior"}


def test_first_stage_consistency_is_a_mean_over_missing_classes() -> None:
    at = view([[LOG3, 0.0, 0.0]], [[0, 0, 0]], known=[[0, 0, 1]], teacher=[[0.0, 0.0, 9.0]])
    assert MissingTo().value(at).item() == pytest.approx((1 / 16 + 0) / 2)
    nothing_missing = replace(at, known=None)
    assert MissingTo().value(nothing_missing).item() == 0.0


# What the trainer prepares


def four_samples(**more: object) -> Site:
    return site(
        [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]],
        [[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]],
        classes=3,
        **more,  # type: ignore[arg-type]
    )


def job(at: Site, term: PartialClass) -> TrainingJob:
    return TrainingJob(at, plain_weights([[0.0, 0.0]] * 3), Recipe(objective=as_objective(term)))


def test_multilabel_prior_is_log_odds_within_bounds() -> None:
    # pi = 1/4; no positive: 1/5; all positive: 4/5
    shift = job(four_samples(), PartialClass()).log_prior()
    torch.testing.assert_close(shift, torch.tensor([[-LOG3, -math.log(4), math.log(4)]]))


def test_prior_over_known_labels_alone() -> None:
    known = torch.tensor([[1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]])
    at = four_samples(notebook=Notebook({EVIDENCE: LabelEvidence(known=known)}))
    shift = job(at, PartialClass(prior_over="known")).log_prior()
    # one of two; none known at all: no shift; all four positive: 4/5
    torch.testing.assert_close(shift, torch.tensor([[0.0, 0.0, math.log(4)]]))
    over_samples = job(at, PartialClass()).log_prior()
    assert over_samples[0, 0].item() == pytest.approx(-LOG3)


def test_known_entries_come_from_the_facts_until_a_page_says_more() -> None:
    at = four_samples(annotated=(0, 2))
    assert at.known_entries is not None
    assert torch.equal(at.known_entries, torch.tensor([1.0, 0, 1]).expand(4, 3))
    page = torch.zeros(4, 3, dtype=torch.bool)
    page[2, 1] = True
    at.keep_evidence("test", known=page)
    assert torch.equal(at.known_entries, page.float())
    assert four_samples().known_entries is None


def test_mask_follows_the_samples_and_needs_both_parts_of_a_mix() -> None:
    known = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    [batch] = plan(3, Recipe(batch_size=3), torch.Generator().manual_seed(0))
    mask = known_in(batch, known)
    assert mask is not None
    assert torch.equal(mask, known[batch.positions])
    mixed = replace(batch, mix_with=torch.tensor([1, 2, 0]))
    both = known_in(mixed, known)
    assert both is not None
    assert torch.equal(both, mask * mask[[1, 2, 0]])
    assert known_in(batch, None) is None


def test_two_views_double_the_batch_with_draws_of_their_own() -> None:
    recipe = Recipe(batch_size=4, views=2, augment=Augment(degrees=10, translate=0.1))
    batches = list(plan(6, recipe, torch.Generator().manual_seed(5)))
    assert [len(batch.positions) for batch in batches] == [8, 4]
    first = batches[0]
    assert torch.equal(first.positions[:4], first.positions[4:])
    assert first.draws.angle is not None
    assert first.draws.move is not None
    assert not bool((first.draws.angle[:4] == first.draws.angle[4:]).any())
    assert first.draws.move.shape == (8, 2)
    assert sorted(torch.cat([b.positions[: len(b.positions) // 2] for b in batches]).tolist()) == [*range(6)]


def test_two_equal_views_train_as_one() -> None:
    """Without augmentation both views are equal: the mean loss, so the step, is that of one."""
    trained = []
    for views in (1, 2):
        recipe = Recipe(batch_size=4, lr=0.5, views=views, objective=as_objective(PartialClass()))
        reply = Train(plain_weights([[0.3, -0.2]] * 3), recipe).answer(four_samples(annotated=(0,)))
        trained.append(reply)
    torch.testing.assert_close(trained[0].weights["head.weight"], trained[1].weights["head.weight"])
    assert trained[0].loss == pytest.approx(trained[1].loss)


# Tagging: prototypes (1, 0) for absent and (0, 1) for present, so Z = cos - sin of the sample's angle


PROTOTYPES = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2)
HELD = np.ones((2, 2), np.bool_)


def request(**changes: object) -> TagMissing:
    whole = TagMissing(plain_weights([[0.0, 0.0]] * 2), PROTOTYPES, HELD, np.ones(2), t0=0.5, t1=0.5)
    return replace(whole, **changes)  # type: ignore[arg-type]


def tagged_site(notebook: Notebook | None = None, **more: object) -> Site:
    """Class 0 is annotated, class 1 is not; samples lean 0, 0, 1, 1, more and less."""
    return site(
        [[1.0, 0.2], [1.0, 0.1], [0.1, 1.0], [0.3, 1.0]],
        [[1, 0], [0, 0], [1, 0], [0, 0]],
        classes=2,
        annotated=(0,),
        notebook=notebook,
        **more,  # type: ignore[arg-type]
    )


def test_the_surest_of_each_side_are_tagged() -> None:
    at = tagged_site(round_=7)
    assert request().answer(at) == TagCounts(new=2, left=2)
    assert at.notebook[TAGS].tolist() == [[-1, -1], [-1, 0], [-1, 1], [-1, -1]]
    assert at.labels.tolist() == [[1, 0], [0, 0], [1, 1], [0, 0]]
    assert at.known_entries is not None
    assert at.known_entries.tolist() == [[1, 0], [1, 1], [1, 1], [1, 0]]
    assert at.notebook[TAGGED_IN].tolist() == [[0, 0], [0, 8], [0, 8], [0, 0]]
    assert at.evidence.flagged.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    z = [
        0.8 / math.hypot(1, 0.2),
        0.9 / math.hypot(1, 0.1),
        -0.9 / math.hypot(1, 0.1),
        -0.7 / math.hypot(1, 0.3),
    ]
    assert at.evidence.suspicion[:, 1].tolist() == pytest.approx([-value for value in z], rel=1e-6)
    assert at.evidence.suspicion[:, 0].isnan().all()
    assert at.given.tolist() == [[1, 0], [0, 0], [1, 0], [0, 0]]


def test_tags_are_for_good() -> None:
    at = tagged_site()
    request().answer(at)
    before = dict(at.notebook.pages())
    swapped = request(prototypes=PROTOTYPES[:, ::-1])
    assert swapped.answer(at) == TagCounts(new=0, left=2)  # one is left on each side: floor(0.5 * 1) = 0
    assert swapped.answer(tagged_site(Notebook(before), round_=9)) == TagCounts(0, 2)
    later = tagged_site(Notebook(before), round_=9)
    assert request(t0=1.0, t1=1.0, prototypes=PROTOTYPES[:, ::-1]).answer(later) == TagCounts(2, 0)
    assert later.notebook[TAGS][:, 1].tolist() == [1, 0, 1, 0]
    assert later.notebook[TAGGED_IN][:, 1].tolist() == [10, 1, 1, 10]
    # the two that were open lean the other way now; the suspicion of the tagged ones is that of their tagging
    signs = later.evidence.suspicion[:, 1].sign().tolist()
    assert signs == [1, -1, 1, -1]
    assert before[TAGS][:, 1].tolist() == [-1, 0, 1, -1], "an older copy of the notebook changed"


def test_a_difficult_class_is_tagged_less_and_min_select_goes_on() -> None:
    hard = request(difficulty=np.array([1.0, 0.4]))  # floor(0.4 * 0.5 * 2) = 0
    assert hard.answer(tagged_site()) == TagCounts(0, 4)
    assert replace(hard, min_select=1).answer(tagged_site()) == TagCounts(2, 2)
    assert request(t1=0.0).answer(tagged_site()) == TagCounts(1, 3)
    assert request(t0=0.0).answer(tagged_site()) == TagCounts(1, 3)


def test_without_both_prototypes_nothing_is_tagged() -> None:
    held = HELD.copy()
    held[1, 1] = False
    at = tagged_site()
    assert request(held=held).answer(at) == TagCounts(0, 4)
    assert at.known_entries is not None
    assert at.known_entries[:, 1].tolist() == [0, 0, 0, 0]


def test_a_site_that_misses_nothing_writes_nothing() -> None:
    at = site([[1.0, 0.0]], [[1, 0]], classes=2)
    assert request().answer(at) == TagCounts(0, 0)
    assert not at.notebook.written


def test_a_single_sample_can_be_tagged() -> None:
    at = site([[1.0, 0.0]], [[0, 0]], classes=2, annotated=(1,))
    assert request(min_select=1).answer(at) == TagCounts(1, 0)
    assert at.notebook[TAGS].tolist() == [[0, -1]]


def test_labels_of_missing_classes_that_leaked_in_are_not_believed() -> None:
    at = site([[1.0, 0.0], [0.0, 1.0]], [[1, 1], [0, 1]], classes=2, annotated=(0,))
    request(t0=0.0, t1=0.0).answer(at)
    assert at.labels.tolist() == [[1, 0], [0, 0]]


def test_tag_counts_that_cannot_be_are_refused() -> None:
    facts = SiteFacts("s", 4, annotated=(0,))
    assert TagCounts(2, 2).refusal(request(), facts) is None
    for bad in (TagCounts(-1, 0), TagCounts(3, 2), TagCounts(0, 5), TagCounts(True, 0), TagCounts(0.5, 0)):  # type: ignore[arg-type]
        assert bad.refusal(request(), facts), bad


# Portraits


def portrait_site(**more: object) -> Site:
    return site(
        [[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [4.0, 4.0]],
        [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]],
        classes=3,
        annotated=(0, 2),
        **more,  # type: ignore[arg-type]
    )


WEIGHTS = plain_weights([[0.0, 0.0], [10.0, 0.0], [0.0, 0.0]], bias=[0.0, -20.0, math.log(4)])
ASK = MakePrototypes(WEIGHTS, classes=3, width=2)


def test_prototypes_are_means_of_each_side_of_annotated_classes() -> None:
    portrait = ASK.answer(portrait_site())
    assert portrait.prototypes.tolist() == [[[2, 0], [2, 3]], [[2, 1.5], [0, 0]]]
    assert portrait.held.tolist() == [[True, True], [True, False]]
    assert portrait.refusal(ASK, portrait_site().facts) is None


def test_difficulty_is_the_share_of_sure_predictions() -> None:
    # class 1: z = -10, 10, -20, 20: all sure; class 0: p = 1/2, never; class 2: p = 4/5, always
    assert ASK.answer(portrait_site()).difficulty.tolist() == [1.0]
    assert replace(ASK, difficulty_over="active").answer(portrait_site()).difficulty.tolist() == [0.0, 1.0]
    wider = replace(ASK, difficulty_over="active", high=0.85)
    assert wider.answer(portrait_site()).difficulty.tolist() == [0.0, 0.0]
    assert replace(ASK, low=0.0, high=1.0).answer(portrait_site()).difficulty.tolist() == [0.0]


def test_small_groups_are_withheld_on_request() -> None:
    portrait = replace(ASK, least_members=3).answer(portrait_site())
    assert portrait.held.tolist() == [[False, False], [True, False]]
    assert portrait.prototypes[0].tolist() == [[0, 0], [0, 0]]


def test_a_portrait_of_another_shape_is_refused() -> None:
    facts = portrait_site().facts
    good = ASK.answer(portrait_site())
    bad = [
        replace(good, prototypes=good.prototypes[:, :, :1]),
        replace(good, prototypes=good.prototypes.double()),
        replace(good, held=good.held[:1]),
        replace(good, held=good.held.float()),
        replace(good, difficulty=torch.zeros(2, dtype=torch.float64)),
        replace(good, difficulty=torch.tensor([1.5], dtype=torch.float64)),
    ]
    assert [bool(reply.refusal(ASK, facts)) for reply in bad] == [True] * len(bad)


def test_one_visit_tags_with_the_received_and_portrays_the_trained_model() -> None:
    """The head starts sure that class 1 is present everywhere; one large step of training makes it unsure."""
    received = plain_weights([[0.0, 0.0], [0.0, 0.0]], bias=[0.0, 4.0])
    recipe = Recipe(batch_size=4, lr=1.0, objective=as_objective(BinaryCrossEntropy()))
    visit = Train(
        received,
        replace(recipe, lr=8.0),
        before=(request(weights=None),),
        then=(MakePrototypes(None, classes=2, width=2),),
    )
    at = tagged_site()
    reply = visit.answer(at)
    counts, portrait = reply.then
    assert counts == TagCounts(2, 2)
    assert isinstance(portrait, ClassPrototypes)
    sure = MakePrototypes(received, classes=2, width=2).answer(tagged_site()).difficulty
    assert sure.tolist() == [1.0]
    assert portrait.difficulty.tolist() == MakePrototypes(reply.weights, 2, 2).answer(tagged_site()).difficulty.tolist()
    assert portrait.difficulty.tolist() != [1.0]
    assert reply.refusal(visit, at.facts) is None
    assert replace(reply, then=reply.then[:1]).refusal(visit, at.facts)


def test_training_uses_the_tags_of_the_same_visit() -> None:
    """Without tags nothing tells the head about class 1; with them its row moves."""
    received = plain_weights([[0.0, 0.0], [0.0, 0.0]])
    recipe = Recipe(batch_size=4, lr=1.0, objective=as_objective(PartialClass(adjust=0)))
    without = Train(received, recipe).answer(tagged_site())
    assert without.weights["head.weight"][1].tolist() == [0.0, 0.0]
    tagged = Train(received, recipe, before=(request(weights=None),)).answer(tagged_site())
    # 6 known entries; sample 1 is tagged absent, sample 2 present: row += (x_2 - x_1) / 2 / 6
    expected = (torch.tensor([0.1, 1.0]) - torch.tensor([1.0, 0.1])) / 12
    torch.testing.assert_close(tagged.weights["head.weight"][1], expected)
