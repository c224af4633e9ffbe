"""Models by name: build one, or register your own."""

from . import cnn, resnet, wide_resnet  # noqa: F401 — importing them fills the registry
from .registry import Normalize, build, check, names, register

__all__ = ["Normalize", "build", "check", "names", "register"]
