"""Run folders: what they hold, and what is done with finished ones."""

from .folder import Follower, Run, check_kind, load, slug

__all__ = [
    "Follower",
    "Run",
    "check_kind",
    "load",
    "slug",
]
