"""What a person sees of a run: the one-file report and the summary in the terminal, from its folder alone."""

from typing import TYPE_CHECKING

from fedsift.contract.lazy import lazy

if TYPE_CHECKING:
    from fedsift.report.build import write_report
    from fedsift.report.terminal import print_comparison, print_summary

__getattr__ = lazy(
    __name__,
    {
        "write_report": f"{__name__}.build",
        "print_comparison": f"{__name__}.terminal",
        "print_summary": f"{__name__}.terminal",
    },
)

__all__ = ["print_comparison", "print_summary", "write_report"]
