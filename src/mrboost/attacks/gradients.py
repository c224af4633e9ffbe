"""Gradients of a model in its input."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mrboost.errors import InputError

from .base import Classifier


def input_gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of losses in the images; refuses a model that has none."""
    gradient = None
    if value.requires_grad:
        gradient = torch.autograd.grad(value, x, allow_unused=True)[0]
    return check_gradient(gradient)


def finite_input_gradient(value: Tensor, x: Tensor) -> Tensor:
    """``input_gradient``, with zeros for what is not a number."""
    return finite(input_gradient(value, x), x)


def check_gradient(gradient: Tensor | None) -> Tensor:
    """Refuse a model that has no gradient."""
    if gradient is None:
        raise InputError(
            "the model's logits have no gradient in its input: it detaches or rounds on the way. "
            "Use square, which needs none"
        )
    return gradient


def finite(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient with zeros for NaN and infinity, so that a search can go on.

    Laid out in memory as the images are, whatever the network does inside: what
    follows is faster for it.
    """
    return torch.nan_to_num(gradient, 0.0, 0.0, 0.0, out=torch.empty_like(x))


def column_gradients(function: Classifier, x: Tensor) -> tuple[Tensor, Iterator[Tensor | None]]:
    """The values ``(N, K)`` of a function of images, and the gradient of each column in turn.

    A gradient is None where the column does not depend on the images. All share one forward pass,
    unless the model is compiled: the graph of a compiled one can be used only once.
    """
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        values = function(x.clone())
        sums = values.sum(dim=0).unbind()

    def gradient(k: int) -> Tensor | None:
        if not sums[k].requires_grad:
            return None
        try:
            return torch.autograd.grad(sums[k], x, retain_graph=True, allow_unused=True)[0]
        except RuntimeError as error:
            # torch.compile's error has no type of its own
            if "donated buffers" not in str(error):
                raise
        with torch.enable_grad():
            again = function(x.clone())[:, k].sum()
        return torch.autograd.grad(again, x, allow_unused=True)[0]

    return values.detach(), map(gradient, range(len(sums)))
