"""BPDA: a model with the gradient of a differentiable stand-in.

The forward pass is the model's own, so that whatever an attack finds is judged by it; gradients are
those of the stand-in, which the user names where the model rounds, sorts, encodes or is no network.

Athalye, Carlini & Wagner, "Obfuscated gradients give a false sense of security", ICML 2018.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mrboost.models.black_box import as_model

from .model import Classifier, attacked, networks


class BPDA(nn.Module):
    """The answers of ``model``, and the gradients of ``surrogate``.

    Args:
        model: what is attacked.
        surrogate: a differentiable stand-in for the whole of it, images to logits. For a step
            before a network, that is the network on images that keep their gradient:
            ``lambda x: network(x + (step(x) - x).detach())``, or simply ``network``.

    Example:
        >>> evaluate(BPDA(model, network), x, y, "autoattack")  # doctest: +SKIP
    """

    def __init__(self, model: Classifier, surrogate: Classifier) -> None:
        super().__init__()
        self.model = model
        self.surrogate = surrogate
        self.used = nn.ModuleList(networks(model) + networks(surrogate))  # of functions too

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.model(x)
        stand_in = self.surrogate(x.clone())  # either may work in place
        with torch.no_grad():
            logits = self.model(x.detach().clone())
        return _Through.apply(stand_in, logits)  # type: ignore[no-untyped-call, no-any-return]


def of_tensors(model: Classifier, x: Tensor, classes: int) -> Classifier:
    """``as_model``, also of the model inside a ``BPDA``."""
    inner = model.model if isinstance(model, BPDA) else model
    with attacked(inner):
        found: Classifier = as_model(inner, x, classes)
    return BPDA(found, model.surrogate) if isinstance(model, BPDA) else found


class _Through(torch.autograd.Function):
    """The second argument, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, logits: Tensor) -> Tensor:  # noqa: ARG004
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None
