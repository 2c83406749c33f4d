"""FedCorr at a site, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsift.methods.fedcorr import (
    HIGHEST_LID,
    LOSSES,
    Corrected,
    CorrectLabels,
    RelabelConfident,
    Scored,
    ScoreModel,
    losses_of,
)
from fedsift.protocol.messages import SiteFacts
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from tests.methods.by_hand import plain_weights, site

FACTS = SiteFacts("here", 8)
SURE = plain_weights([[4.0, 0.0], [0.0, 4.0]])
"""Logits 4 x: class 0 for samples (1, 0), class 1 for (0, 1), both with p = e^4 / (e^4 + 1) = 0.982."""
P = math.exp(4) / (math.exp(4) + 1)


def eight(given: list[int], notebook: Notebook | None = None) -> Site:
    """Four samples of class 0, then four of class 1, slightly apart from each other."""
    samples = [[1 + 0.01 * i, 0.0] for i in range(4)] + [[0.0, 1 + 0.01 * i] for i in range(4)]
    return site(samples, given, classes=2, notebook=notebook)


def test_losses_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])  # p = (3/4, 1/4)
    labels = torch.tensor([1])
    assert losses_of(logits, labels, "ce").item() == pytest.approx(math.log(4))
    assert losses_of(logits, labels, "ce_on_softmax").item() == pytest.approx(
        math.log(math.exp(0.75) + math.exp(0.25)) - 0.25
    )


def test_scoring_keeps_losses_at_home() -> None:
    here = eight([0, 0, 0, 1, 1, 1, 1, 1])
    here.keep_evidence("test", labels=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    here.workbench["trained"] = SURE
    reply = ScoreModel(k=3).answer(here)
    assert reply.refusal(ScoreModel(k=3), FACTS) is None
    assert vars(reply).keys() == {"lid", "samples"}
    assert 0 < reply.lid <= HIGHEST_LID
    kept = here.notebook[LOSSES]
    assert kept.shape == (8,)
    assert kept.argmax() != 3  # under the believed label the fourth sample is fine
    assert here.evidence.suspicion.argmax() == 3  # under the given one it is not
    low = math.log(math.exp(P) + math.exp(1 - P))
    assert here.evidence.suspicion[0].item() == pytest.approx(low - P, abs=1e-6)


def test_scoring_options_change_the_score() -> None:
    here = eight([0, 0, 0, 0, 1, 1, 1, 1])
    here.workbench["trained"] = SURE
    base = ScoreModel(k=3).answer(here).lid
    assert ScoreModel(k=2).answer(here).lid != pytest.approx(base)
    assert ScoreModel(k=20, form="official").answer(here).lid != pytest.approx(ScoreModel(k=20).answer(here).lid)
    plain = here.notebook[LOSSES]
    ScoreModel(k=3, sample_loss="ce").answer(here)
    assert not torch.allclose(here.notebook[LOSSES], plain)
    assert ScoreModel(weights=plain_weights([[1.0, 0.0], [0.0, 1.0]]), k=3).answer(here).lid != pytest.approx(base)


def test_duplicates_score_0_unless_distances_have_a_floor() -> None:
    here = site([[1.0, 0.0]] * 5 + [[0.0, 1.0]] * 5, [0] * 5 + [1] * 5, classes=2)
    here.workbench["trained"] = SURE
    assert ScoreModel().answer(here).lid == 0.0
    assert ScoreModel(floor=1e-12).answer(here).lid > 0.0


def test_equidistant_predictions_do_not_run_away() -> None:
    """Two samples are one neighbour apart: the formula gives millions or less than nothing, the guard does not."""
    here = site([[5.0, 0.0], [0.0, 5.0]], [0, 1], classes=2)
    here.workbench["trained"] = SURE
    assert 0 <= ScoreModel().answer(here).lid <= HIGHEST_LID
    assert abs(ScoreModel(form="official").answer(here).lid) > 1e5


def test_a_site_of_one_sample_can_be_scored_and_asked() -> None:
    here = site([[1.0, 0.0]], [1], classes=2)
    here.workbench["trained"] = SURE
    assert ScoreModel().answer(here) == Scored(0.0, 1)
    reply = CorrectLabels(SURE).answer(here)
    assert reply == Corrected(0, 0, 0, 1)
    assert here.labels.tolist() == [1]
    assert RelabelConfident(SURE).answer(here) == Corrected(1, 1, 1, 1)
    assert here.labels.tolist() == [0]


def noisy_notebook() -> Notebook:
    """Samples 2, 3 and 7 have the large losses, 3 the largest."""
    return Notebook({LOSSES: torch.tensor([0.1, 0.11, 2.0, 2.3, 0.12, 0.1, 0.09, 2.1], dtype=torch.float64)})


def test_correction_by_hand() -> None:
    """D_n = {2, 3, 7}: mu_hat = 3/8; int(8 * 3/8 * 0.7) = 2 candidates by loss: 3 and 7; both confident."""
    here = eight([0, 0, 1, 1, 1, 1, 1, 0], noisy_notebook())
    request = CorrectLabels(SURE, ratio=0.7)
    reply = request.answer(here)
    assert reply == Corrected(flagged=3, relabelled=2, changed=2, samples=8)
    assert reply.level == pytest.approx(3 / 8)
    assert reply.refusal(request, FACTS) is None
    assert here.labels.tolist() == [0, 0, 1, 0, 1, 1, 1, 1]
    assert here.given.tolist() == [0, 0, 1, 1, 1, 1, 1, 0]
    assert here.evidence.flagged.tolist() == [False, False, True, True, False, False, False, True]
    assert here.evidence.proposed.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_correction_switches() -> None:
    given = [0, 0, 1, 1, 1, 1, 1, 0]

    def after(**options: object) -> tuple[Corrected, list[int]]:
        here = eight(given, noisy_notebook())
        reply = CorrectLabels(SURE, **options).answer(here)  # type: ignore[arg-type]
        return reply, here.labels.tolist()

    assert after(ratio=1.0)[1] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert after(ratio=0.0) == (Corrected(3, 0, 0, 8), given)
    assert after(ratio=1.0, theta=0.99)[1] == given  # p = 0.982 to 0.984 is not enough
    assert after(relabel=False) == (Corrected(3, 0, 0, 8), given)
    # the global model finds 3, 2, 7 wrong in this order of its own losses (p of sample 3 is the largest)
    assert after(ratio=0.4)[1] == [0, 0, 1, 0, 1, 1, 1, 0]
    at_7 = Notebook({LOSSES: torch.tensor([0.1, 0.1, 2.0, 2.0, 0.1, 0.1, 0.1, 2.3], dtype=torch.float64)})
    here = eight(given, at_7)
    CorrectLabels(SURE, ratio=0.4, rank_by="local").answer(here)
    assert here.labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    here = eight([0, 0, 0, 1, 1, 1, 1, 1], Notebook({LOSSES: at_7[LOSSES]}))
    CorrectLabels(SURE, ratio=0.4, rank_by="global").answer(here)
    assert here.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]  # sample 3 is the global model's worst


def test_paper_and_official_forms_differ_at_the_threshold() -> None:
    """A model that knows nothing is sure to exactly 1/2: >= relabels, > does not."""
    nothing = plain_weights([[0.0, 0.0], [0.0, 0.0]])
    for form, changed in (("paper", 3), ("official", 0)):
        here = eight([1] * 8, noisy_notebook())
        reply = CorrectLabels(nothing, ratio=1.0, theta=0.5, form=form).answer(here)  # type: ignore[arg-type]
        assert reply.changed == changed
        here = eight([1] * 8)
        assert RelabelConfident(nothing, 0.5, form).answer(here).changed == (8 if changed else 0)  # type: ignore[arg-type]


def test_equal_losses_flag_nobody() -> None:
    """All labels and predictions alike: a mixture without a guard would call every sample noisy."""
    here = site([[1.0, 0.0]] * 6, [0] * 6, classes=2)
    here.workbench["trained"] = SURE
    ScoreModel().answer(here)
    assert CorrectLabels(SURE).answer(here) == Corrected(0, 0, 0, 6)


def test_relabelling_after_fine_tuning_ignores_losses() -> None:
    here = eight([1, 1, 0, 0, 0, 0, 1, 1])
    reply = RelabelConfident(SURE, theta=0.9).answer(here)
    assert reply == Corrected(flagged=4, relabelled=8, changed=4, samples=8)
    assert here.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert here.evidence.flagged.tolist() == [True, True, False, False, True, True, False, False]
    assert here.evidence.suspicion.argmax().item() in (0, 1, 4, 5)
    assert RelabelConfident(SURE, theta=0.99).answer(eight([1] * 8)).relabelled == 0


def test_a_changed_label_stays_flagged_later() -> None:
    here = eight([0, 0, 1, 1, 1, 1, 1, 0], noisy_notebook())
    CorrectLabels(SURE, ratio=1.0).answer(here)
    here.notebook[LOSSES] = torch.tensor(np.r_[2.0, np.full(7, 0.1)])
    CorrectLabels(SURE, ratio=0.0).answer(here)
    assert here.evidence.flagged.tolist() == [True, False, True, True, False, False, False, True]


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Scored(-1.0, 8), "dimensionality"),
        (Scored(1.0, 9), "samples"),
        (Scored(1, 8), "dimensionality"),
        (Corrected(9, 0, 0, 8), "flagged"),
        (Corrected(-1, 0, 0, 8), "flagged"),
        (Corrected(3, 9, 0, 8), "relabelled"),
        (Corrected(3, 2, 3, 8), "changed"),
        (Corrected(3, 2, 1, 0), "samples"),
    ],
)
def test_implausible_replies_are_refused(reply: Scored | Corrected, word: str) -> None:
    request = ScoreModel() if isinstance(reply, Scored) else CorrectLabels({})
    reason = reply.refusal(request, FACTS)  # type: ignore[arg-type]
    assert reason is not None
    assert word in reason


def test_a_new_measurement_ends_old_suspicions() -> None:
    """A site that is judged clean this time is not asked to split: only a label that was changed stays marked."""
    here = eight([0, 0, 0, 1, 1, 1, 1, 1])
    here.keep_evidence(
        "fedcorr", labels=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), flagged=torch.ones(8, dtype=torch.bool)
    )
    ScoreModel(SURE, k=3).answer(here)
    assert here.evidence.flagged is not None
    assert here.evidence.flagged.tolist() == [False, False, False, True, False, False, False, False]
    assert (here.evidence.method, here.evidence.round) == ("fedcorr", here.moment.round + 1)


def test_the_posterior_weighs_the_given_label_too() -> None:
    """A model that knows nothing (p = 1/2 for both classes) has no argmax to speak of; the posterior keeps what was
    given, also where the method had written another label before."""
    given = [0, 0, 0, 0, 1, 1, 1, 1]
    blind = plain_weights([[0.0, 0.0], [0.0, 0.0]])
    here = eight(given)
    here.keep_evidence("test", labels=torch.tensor([1, 0, 0, 0, 1, 1, 1, 1]))
    reply = RelabelConfident(blind, theta=0.5, by="posterior").answer(here)
    assert here.labels.tolist() == given
    assert reply == Corrected(flagged=1, relabelled=8, changed=1, samples=8)
    assert here.evidence.proposed.tolist() == given


def test_the_posterior_corrects_what_a_sure_model_denies() -> None:
    here = eight([0, 0, 1, 1, 1, 1, 1, 0], noisy_notebook())
    sure = plain_weights([[20.0, 0.0], [0.0, 20.0]])
    reply = CorrectLabels(sure, ratio=1.0, by="posterior").answer(here)
    assert here.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert reply == Corrected(flagged=3, relabelled=3, changed=3, samples=8)
