r"""Which false labels to aim at first: those whose boundaries are nearest.

Where the model is taken for linear around an image x, the boundary between the label y and another
one j lies at the distance

    (g_y − g_j) / ‖∇ (g_y − g_j)‖*,

with ‖·‖* the dual of the ball's norm. For a linear model that is exact. The order by this distance
finds the label that gives way within fewer targets than the order by the logits alone.

Melamed et al., "MALT powers up adversarial attacks", 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrboost.speed.memory import halved
from mrboost.threat import Threat

from .model import Classifier, check_gradient, column_gradients, finite

CANDIDATES = 9
"""Only the labels that AutoAttack aims at are put in order: a gradient for each of a thousand would
cost more than the attack."""

_BATCH = 256


def nearest_first(model: Classifier, x: Tensor, ranking: Tensor, threat: Threat) -> Tensor:
    """The ``CANDIDATES`` most likely false labels by the distance of their boundaries.

    Args:
        model, x: the model and the images.
        ranking: classes by falling logit, the true one first, ``(N, K)``.
        threat: a ball, in whose norm distances are measured.

    Returns:
        The ranking with these labels in their new order; the others stay where they are.
    """
    found = [ranking[:0]]
    position, size = 0, _BATCH
    while position < len(x):
        part = slice(position, position + size)
        labels = ranking[part, : CANDIDATES + 1]
        try:
            distances = boundary_distances(model, x[part], labels, threat)
        except torch.OutOfMemoryError as error:
            size = halved(size, error)
            continue
        order = distances.argsort(dim=1, stable=True)
        rest = ranking[part, CANDIDATES + 1 :]
        found.append(torch.cat([labels[:, :1], labels[:, 1:].gather(1, order), rest], dim=1))
        position += size
    return torch.cat(found)


def boundary_distances(model: Classifier, x: Tensor, labels: Tensor, threat: Threat) -> Tensor:
    """How far the boundaries between the first label and each of the others are, ``(N, J)`` for
    ``(N, 1 + J)`` labels, where the model is taken for linear."""

    def leads(images: Tensor) -> Tensor:
        logits = model(images).to(images.dtype).gather(1, labels)
        return logits[:, :1] - logits[:, 1:]

    found, gradients = column_gradients(leads, x)
    slopes = [threat.slope(finite(check_gradient(gradient), x)) for gradient in gradients]
    return found / (torch.stack(slopes, dim=1) + 1e-12)
