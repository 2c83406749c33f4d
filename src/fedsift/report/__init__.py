"""What a person sees of a run: the one-file report and the summary in the terminal, from its folder alone."""

from fedsift.report.build import write_report
from fedsift.report.terminal import print_comparison, print_summary

__all__ = ["print_comparison", "print_summary", "write_report"]
