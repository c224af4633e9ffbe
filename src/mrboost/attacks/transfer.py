"""Attack one model with what fools another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks.base import Attack, Classifier
from mrboost.errors import InputError, NanLogitsError


@dataclass(frozen=True)
class Transfer:
    """Adversarial examples made on ``source``, whichever model they are then shown to.

    ``own`` says that the source is a part of that model, so that it is attacked with
    gradients of its own.
    """

    attack: Attack
    source: Classifier
    own: bool = False

    @property
    def black_box(self) -> bool:
        """Whether the model's gradients are not used."""
        return not self.own or bool(getattr(self.attack, "black_box", False))

    @property
    def eps(self) -> float:
        return self.attack.eps

    @property
    def norm(self) -> str:
        return self.attack.norm

    def work(self, classes: int) -> int:
        return int(getattr(self.attack, "work", lambda _: 1)(classes))

    def __call__(
        self,
        model: Classifier,  # noqa: ARG002 — part of the protocol
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        try:
            return self.attack(self.source, x, y, generator=generator)
        except NanLogitsError:
            raise
        except InputError as error:
            raise InputError(f"of the model that the examples are made on: {error}") from error
