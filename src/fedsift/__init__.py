"""fedsift: federated learning where labels cannot be trusted.

    import fedsift
    run = fedsift.run("study.toml", method={"name": "fednoro"}, seed=3)
    run.summary["bacc"]["last"], run.noisy_sites, run.predict(images)

The names in `__all__` are the public API (docs/api.md); they are imported when they are first used.
"""

from typing import TYPE_CHECKING

from fedsift.core.lazy import lazy
from fedsift.core.version import __version__

if TYPE_CHECKING:
    from fedsift.api.auditing import audit
    from fedsift.api.benching import Bench, bench
    from fedsift.api.predictions import Predictions
    from fedsift.api.run import Run
    from fedsift.api.start import load, resume, run
    from fedsift.audit.from_probabilities import audit_labels
    from fedsift.core.errors import FedsiftError
    from fedsift.data.dataset import Dataset
    from fedsift.data.noise.base import Noise, Scene, Spoiled
    from fedsift.data.partitions.base import Partition, Placement, Pool
    from fedsift.data.sources.arrays import Arrays
    from fedsift.data.sources.base import Source
    from fedsift.methods._base import TrainingMethod
    from fedsift.protocol.federation import Federation
    from fedsift.protocol.messages import Reply, Request
    from fedsift.protocol.method import Method, Stage, State
    from fedsift.study.study import Study
    from fedsift.training.objective import Term, View
    from fedsift.training.recipe import Recipe

_NAMES = {
    "api.auditing": ("audit",),
    "api.benching": ("Bench", "bench"),
    "api.predictions": ("Predictions",),
    "api.run": ("Run",),
    "api.start": ("load", "resume", "run"),
    "audits.labels": ("audit_labels",),
    "contract.errors": ("FedsiftError",),
    "contract.federation": ("Federation",),
    "contract.messages": ("Reply", "Request"),
    "contract.method": ("Method", "Stage", "State"),
    "data.dataset": ("Dataset",),
    "data.noise.base": ("Noise", "Scene", "Spoiled"),
    "data.partitions.base": ("Partition", "Placement", "Pool"),
    "data.sources.arrays": ("Arrays",),
    "data.sources.base": ("Source",),
    "local.objective": ("Term", "View"),
    "local.recipe": ("Recipe",),
    "methods.base": ("TrainingMethod",),
    "study.study": ("Study",),
}

__getattr__ = lazy(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Arrays",
    "Bench",
    "Dataset",
    "Federation",
    "FedsiftError",
    "Method",
    "Noise",
    "Partition",
    "Placement",
    "Pool",
    "Predictions",
    "Recipe",
    "Reply",
    "Request",
    "Run",
    "Scene",
    "Source",
    "Spoiled",
    "Stage",
    "State",
    "Study",
    "Term",
    "TrainingMethod",
    "View",
    "__version__",
    "audit",
    "audit_labels",
    "bench",
    "load",
    "resume",
    "run",
]
