"""One HTML page about one or several runs."""

from .report import write_report

__all__ = ["write_report"]
