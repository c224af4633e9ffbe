"""One HTML page about one or several runs: ``report`` composes it, ``words`` has what it says."""

from .report import write_report

__all__ = [
    "write_report",
]
