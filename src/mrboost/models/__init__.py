"""Networks by name: build one, or register your own.

    network = models.build("resnet18", shape=(3, 32, 32), classes=10)    # models.names() lists all

A model is a function of the image shape and the number of classes; ``register`` gives it a name.
``add("file.py:function")`` does so for a function, a class or a network in a file or module;
``timm:NAME``, ``torchvision:NAME`` and ``hf:ORG/NAME`` are names where the package is installed.
Networks take images in [0, 1] and normalise inside, so that eps always means the same thing.
"""

from . import networks  # noqa: F401 — importing it fills the registry
from .black_box import BlackBox
from .registry import Normalize, add, build, check, given, names, register
from .source import Logits

__all__ = ["BlackBox", "Logits", "Normalize", "add", "build", "check", "given", "names", "register"]
