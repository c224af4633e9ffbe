"""Run folders: what they hold, and what is done with finished ones."""

from .folder import Run, check_kind, load, slug

__all__ = [
    "Run",
    "check_kind",
    "load",
    "slug",
]
