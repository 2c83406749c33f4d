"""The interface of a transport, which carries a study's requests to its sites and is named in `[engine]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from fedsift.core.registry import Registry

if TYPE_CHECKING:
    from fedsift.data.dataset import FederatedDataset
    from fedsift.runs.folder import RunFolder
    from fedsift.runtime.loop import Listener
    from fedsift.study.study import Study


class Transport(ABC):
    """Carries the requests of a simulated study to its sites. A new one is registered, or named `package.module:Name`.

    Most transports only open an engine in this process: they derive from `study.running.EngineTransport`. One that
    needs a process of its own implements `run` itself.
    """

    summary: ClassVar[str] = ""
    """One line for listings."""

    @abstractmethod
    def run(
        self,
        study: Study,
        folder: RunFolder,
        listen: Listener | None = None,
        data: FederatedDataset | None = None,
    ) -> dict[str, Any]:
        """Run or go on with a study in its folder; returns the summary.

        data: the study's data, where the caller has them at hand.
        """


transports: Registry[type[Transport]] = Registry("transport", base=Transport, group="fedsift.transports")
