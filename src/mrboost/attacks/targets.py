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

from mrboost.devices import in_batches
from mrboost.ensemble import Classifier
from mrboost.threat import Threat

from .model import check_gradient, column_gradients, finite

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

    def ordered(rows: slice) -> Tensor:
        true, labels, rest = ranking[rows].tensor_split((1, CANDIDATES + 1), dim=1)
        distances = boundary_distances(model, x[rows], torch.cat([true, labels], dim=1), threat)
        order = distances.argsort(dim=1, stable=True)
        return torch.cat([true, labels.gather(1, order), rest], dim=1)

    return torch.cat([ranking[:0], *in_batches(ordered, len(x), _BATCH)])


def boundary_distances(model: Classifier, x: Tensor, labels: Tensor, threat: Threat) -> Tensor:
    """How far the boundaries between the first label and each of the others are, ``(N, J)`` for
    ``(N, 1 + J)`` labels, where the model is taken for linear."""

    def leads(images: Tensor) -> Tensor:
        logits = model(images).to(images.dtype).gather(1, labels)
        return logits[:, :1] - logits[:, 1:]

    found, gradients = column_gradients(leads, x)
    slopes = [threat.slope(finite(check_gradient(gradient), x)) for gradient in gradients]
    return found / (torch.stack(slopes, dim=1) + 1e-12)
