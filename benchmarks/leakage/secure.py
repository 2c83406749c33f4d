"""Which methods would work if the coordinator saw sums alone (secure aggregation), from what they declare."""

from __future__ import annotations

from collections.abc import Mapping

from fedsift.methods._base import Averaging, methods
from fedsift.protocol.disclosure import declared_replies

ADDS_UP: Mapping[str, str] = {
    "Trained": "a weighted sum of models",
    "Evaluated": "sums of counts and losses",
    "TrainingCount": "sums of counts and losses",
    "OwnEvaluated": "sums of counts and losses",
    "Controlled": "sums of models and of changes of the control variate",
    "TrainedPair": "two weighted sums of models",
    "CrossTrained": "a weighted sum of each fold's models",
    "FoldsFitted": "a weighted sum of each fold's models",
    "LabelsCounted": "sums of counts",
    "GridJudged": "sums of log-likelihoods and counts",
    "ReleasedCounts": "sums of counts of randomised labels",
    "OwnTrained": "a sum of losses for the progress display",
    "EstimatedTransition": "a sum of counts for the progress display",
    "TagCounts": "sums of counts",
    "UsedCount": "sums of counts",
    "TrainedOnParts": "a weighted sum of models",
    "RelationRows": "weighted sums of rows, and of the sizes of the sites that hold them",
    "ClassPrototypes": "sums of prototypes and of difficulties, and how many sites hold them",
}
"""What the coordinator makes of a reply; a kind that is not here is taken to be needed one by one."""
ONE_BY_ONE: Mapping[str, str] = {
    "Indicators": "a mixture over the sites' scores, one row a site",
    "Scored": "a mixture over the sites' LIDs",
    "Corrected": "each site's noise level decides how it is asked next",
    "PrivateLoss": "each site's loss makes its own weight",
    "PublicReply": "each site's predictions are weighed, or shown to the others",
    "ContributedModel": "networks of different kinds are averaged by kind, predictions by site",
    "ModelProfile": "each site's profile chooses its neighbours",
    "LargestLogit": "the largest value over the sites, not a sum",
    "FittedFilter": "each site's last filter is kept until it answers again",
    "TrainedBehindFilter": "each site's last filter is kept until it answers again",
    "SuspectCount": "a line for each site in the report",
    "LabelsJudged": "a line for each site in the consortium's table",
}
LOOKS: Mapping[str, str] = {
    "arfl": "weighs each value of each site's model by how far off it is",
    "fedmedian": "takes medians over the sites' models",
    "fednoro": "weighs sites by the distance of their models",
    "fedrn": "keeps each site's model, to show it to others",
    "rofl": "averages centroids by how alike they are",
    "rhfl-avg": "weighs sites by their own losses",
    "poc": "chooses sites by their own losses",
}
"""Methods whose server looks at single models, though their replies would add up."""
SUMS_ENOUGH = frozenset({"fedmd"})
"""Methods that make a sum of replies which others look at one by one: FedMD takes the mean of all predictions."""


def verdict(name: str) -> tuple[bool, str]:
    """Whether sums are enough for a method as it is by default, and why not."""
    if name in LOOKS:
        return False, LOOKS[name]
    replies = {cls.__name__ for kinds in declared_replies(methods.get(name)()).values() for cls in kinds}
    for reply in sorted(replies):
        if reply in ONE_BY_ONE and name not in SUMS_ENOUGH:
            return False, f"{reply}: {ONE_BY_ONE[reply]}"
        if reply not in ADDS_UP and reply not in ONE_BY_ONE:
            return False, f"{reply} has not been looked at"
    rules = ' with `aggregate = "mean"`' if issubclass(methods.get(name), Averaging) else ""
    return True, f"sums are enough{rules}"
