"""Traps of released code that are known: each is named on its method's page, beside what is done here."""

from __future__ import annotations

from pathlib import Path

import pytest

METHODS = Path(__file__).parents[2] / "docs" / "methods"

TRAPS: dict[str, tuple[str, ...]] = {
    "fedavg": ("left out on each epoch's first batch", "the plain norm"),
    "scaffold": (
        "the same number of batches at every site",
        "absent from its models",
        "gradient clipping | none | 10",
    ),
    "feddyn": (
        "as weight decay, so outside the gradient clipping",
        "a coin for each site",
        "absent from its models",
    ),
    "fedbn": ("How a *federation's* accuracy is formed the comparisons do not say",),
    "fedmedian": ("scalars are left untouched",),
    "aggregation": ("fails when that is none", "0-d tensors"),
    "arfl": (
        "overwritten while they are judged",
        "becomes 1 by a NaN rule",
        "on a GPU alone",
        "`m^2` slopes a value",
        "buffers of whole numbers",
    ),
    "poc": ("of all sites, every round", "at random", "average | plain | plain | by size"),
    "rofl": (
        "features are detached: the distance to centroids has no gradient at all",
        "summed over samples and features",
        "the first common centroids are random",
        "sites count alike whatever their size",
        "it ends without a GPU",
        "in batches of one",
        "with one seed for all clients",
        "has the centroid 0",
    ),
    "fedlsr": (
        "a second softmax",
        "`K` times smaller",
        '"FedLSR+"',
        "half precision without scaling",
        "sites' data overlap",
        "many classes",
        "on the normalised batch",
    ),
    "fedrn": (
        "with random weights",
        "0 / 0",
        "moves batch norm's statistics",
        "stays filtered",
        "IID mode breaks its second phase, Dirichlet mode ignores labels",
        "ends without a GPU",
    ),
    "dividemix": (
        "StopIteration",
        "bare `except`",
        "a site's few hundred",
        "low or asymmetric noise",
        "`.next()`",
    ),
    "joint-opt": (
        "cross-entropy: another constant",
        "divides by its whole length",
        "of the training step, augmented",
        "uniform",
        "a separate script",
    ),
    "co-teaching": ("divided by their number again", "known | known | estimated at each site"),
    "t-revision": (
        r"the n-th sees $T + n\,\Delta T$",
        "divides columns by row sums",
        "sample by sample in Python",
        "may turn negative",
        "`is_available` is not called",
        "5e-7",
        "forward (FedDPCont)",
    ),
    "lc": (r"10^{-8}", "row is that of the identity"),
    "fedmd": ("mean of logits", "private alone", 'digest = "l1"'),
    "feddf": ("10,000 batches", "gradient clipping | 5"),
    "rscfed": ("again for each of its groups", "6 or 200 times", "hinge on the partition"),
    "fedirm": ("so it leaves nothing out", "all sites alike", "label smoothing"),
    "cbafed": ("second-best", "a batch of one sample", "0.84"),
    "fedfixmatch": ("0.95 in the original",),
    "rhfl": (
        "the site whose loss rose **most** gets the largest weight",
        "neither paper says",
        "ln 1e-4 = -9.21",
        "in training mode",
    ),
    "feddiv": (
        "$(n_k/n)^2$",
        "softmax of softmax",
        "3 steps",
        "1,000 artificial points",
        "against labels from the end of the last one",
        "from a site's sixth visit",
        "typed int",
        "more than 0.85",
        "applied twice",
        "from ten, whatever the number of classes",
        "at most one batch",
        "0/0 where all are alike",
        "the common filter collapses",
        "decays like $m^t$",
        "the smaller mean is clean",
    ),
    "fedclean": (
        "no value anywhere",
        "a local learner that memorises disputes nothing",
        "a mixture parts anything, clean labels too",
        "weights by size",
        "underflows",
        "an absent one",
        "App. eq. 38",
        "Alg. 1: $B_k$, then $C_k$",
    ),
    "fedelc": (
        "$1/51$ with 100 classes",
        "$C$ times more slowly",
        "divided by the batch's size",
        "half precision without scaling",
        "0/0",
        "full: singular but for 1e-6",
        "one fixed partition whatever the seed",
        "an endless loop",
        "drops its last batch",
        "nobody seeds",
        "30 x 0.1 is not exactly 3",
        "10, whatever $K_u$",
        "computed, not used",
        "tensor by tensor and without weights",
    ),
    "fedmlp": (
        "drops the 1 side too",
        "0 / 0, which corrupts the global prototype",
        "commented out",
        "replaced by 1",
        "the nominal batch size",
    ),
}


@pytest.mark.parametrize("page", TRAPS)
def test_known_traps_are_on_the_page(page: str) -> None:
    text = " ".join((METHODS / f"{page}.md").read_text("utf-8").replace("**", "").split())
    missing = [words for words in TRAPS[page] if " ".join(words.replace("**", "").split()) not in text]
    assert not missing, f"docs/methods/{page}.md does not say: {missing}"
