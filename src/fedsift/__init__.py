"""fedsift: federated learning where labels cannot be trusted.

    import fedsift
    run = fedsift.run("study.toml", method={"name": "fednoro"}, seed=3)
    run.summary["bacc"]["last"], run.noisy_sites, run.predict(images)

The names in `__all__` are the public API for users (docs/api.md); `fedsift.extend` is the one for adding a
method, a noise model or a dataset. They are imported when they are first used.
"""

from typing import TYPE_CHECKING

from fedsift.core.registry import lazy
from fedsift.core.version import __version__

if TYPE_CHECKING:
    from fedsift.api.benching import Bench, bench
    from fedsift.api.predictions import Predictions
    from fedsift.api.run import Run
    from fedsift.api.start import audit, load, resume, run
    from fedsift.core.errors import FedsiftError
    from fedsift.data.sources.arrays import Arrays
    from fedsift.label_audit.from_probabilities import audit_labels
    from fedsift.study.study import Study

__getattr__ = lazy(
    __name__,
    {
        "api.benching": ("Bench", "bench"),
        "api.predictions": ("Predictions",),
        "api.run": ("Run",),
        "api.start": ("audit", "load", "resume", "run"),
        "label_audit.from_probabilities": ("audit_labels",),
        "core.errors": ("FedsiftError",),
        "data.sources.arrays": ("Arrays",),
        "study.study": ("Study",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Arrays",
    "Bench",
    "FedsiftError",
    "Predictions",
    "Run",
    "Study",
    "__version__",
    "audit",
    "audit_labels",
    "bench",
    "load",
    "resume",
    "run",
]
