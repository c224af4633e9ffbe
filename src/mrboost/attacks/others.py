"""Attacks of foolbox and torchattacks as attacks of ours: ``evaluate(model, x, y, theirs)``.

foolbox's get the model and the radius when they are called. Those of torchattacks own a model and
a radius: the model must be the one that is evaluated.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.threat import no_radius

from .base import Attack
from .model import Rounded, attacked

_NORMS: dict[Any, str] = {math.inf: "Linf", 2: "L2", 1: "L1"}


def adapted(attack: Any, eps: float | None, norm: str) -> Any:
    """An attack of foolbox within the ball, or one of torchattacks, as an ``Attack``; anything else
    as it is."""
    libraries = {base.__module__.partition(".")[0] for base in type(attack).__mro__}
    if "foolbox" in libraries:
        own = _NORMS.get(getattr(getattr(attack, "distance", None), "p", None))
        if own not in (None, norm):
            problem = f"foolbox's {type(attack).__name__} keeps to {own} balls, the norm is {norm}"
            raise InputError(f"{problem}: give norm={own!r} and an eps for it")
        if eps is None:
            raise no_radius(f"foolbox's {type(attack).__name__}")
        return Foolbox(attack, eps, own)
    return Torchattacks(attack) if "torchattacks" in libraries else attack


@dataclass(frozen=True)
class Foolbox(Attack):
    """An attack of foolbox with a radius; ``norm`` is None where it keeps to no ball."""

    attack: Any
    eps: float
    norm: str | None

    @property
    def name(self) -> str:
        return f"foolbox {type(self.attack).__name__}"

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        foolbox: Any = sys.modules["foolbox"]  # the attack is one of its
        module = model if isinstance(model, nn.Module) else Rounded(model, x.dtype)
        with attacked(model, module):
            theirs = foolbox.PyTorchModel(module, bounds=(0, 1), device=x.device)
            found: Tensor = self.attack(theirs, x, y, epsilons=self.eps)[1]
        return found.detach()


@dataclass(frozen=True)
class Torchattacks(Attack):
    """An attack of torchattacks, ``attack(images, labels)``."""

    attack: Any

    @property
    def name(self) -> str:
        return f"torchattacks {type(self.attack).__name__}"

    @property
    def eps(self) -> float | None:  # type: ignore[override]
        return getattr(self.attack, "eps", None)

    @property
    def norm(self) -> str | None:  # type: ignore[override]
        """Its own word for it, or else what its name says."""
        if self.eps is None:
            return None
        usual = "L2" if type(self.attack).__name__.endswith("L2") else "Linf"
        return str(getattr(self.attack, "norm", usual))

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        if self.attack.model is not model:
            problem = f"{self.name} attacks a model of its own, and another one is evaluated"
            raise InputError(f"{problem}: make it with the same object")
        with attacked(model):
            found: Tensor = self.attack(x, y)
        return found.detach()
