"""Attack one model with what fools another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.attacks.base import Attack, Classifier, as_attack
from mrboost.errors import InputError, NanLogitsError


@dataclass(frozen=True)
class Transfer(Attack):
    """Adversarial examples made on ``source``, whichever model they are then shown to.

    Args:
        attack: what makes them.
        source: the model that it runs on.
        own: the source is a part of the model that they are shown to, so that gradients of the
            source are gradients of that model.
    """

    attack: Attack
    source: Classifier
    own: bool = False

    @property
    def uses_gradients(self) -> bool:  # type: ignore[override]
        """Whether they are made with gradients of the model that they are shown to."""
        return self.own and as_attack(self.attack).uses_gradients

    @property
    def eps(self) -> float | None:  # type: ignore[override]
        return as_attack(self.attack).eps

    @property
    def norm(self) -> str | None:  # type: ignore[override]
        return as_attack(self.attack).norm

    def work(self, classes: int) -> int:
        return as_attack(self.attack).work(classes)

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
