"""Accuracy against growing radii, and margins: what the plots of a report show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from mrboost.attacks import Attack, Classifier, named
from mrboost.data.dataset import count
from mrboost.errors import InputError
from mrboost.losses import margin
from mrboost.progress import Meter
from mrboost.threat import radius

from .batches import attacked_batches, is_correct
from .inputs import Chunk, Images, chunks, fitted
from .result import format_eps
from .statistics import Interval, wilson_interval


class Radius(NamedTuple):
    """One point of a curve: the accuracy within ``eps``, and its 95 % interval."""

    eps: float
    accuracy: float
    interval: Interval


def robustness_curve(
    model: Classifier,
    x: Images,
    y: Tensor | None,
    radii: Iterable[float] | float,
    *,
    attack: str = "pgd-20",
    norm: str = "Linf",
    progress: bool = False,
) -> list[Radius]:
    """Accuracy against growing radii, the clean one first.

    The balls are nested, so an image that falls at one radius has fallen at all larger ones: each
    radius attacks the survivors of the last.

    Args:
        model, x, y: as for ``evaluate``.
        radii: one or several.
        attack: its name, to make one for each radius.
        norm: of the balls.
        progress: show a progress bar on standard error.

    Returns:
        The accuracy within each radius, with its interval.

    Example:
        >>> robustness_curve(model, x, y, [0.05, 0.1, 0.2])  # doctest: +SKIP
    """
    if not isinstance(attack, str):
        raise InputError(f"a curve takes an attack's name, as 'pgd-20', got {attack!r}")
    try:
        several = list(radii)  # type: ignore[arg-type]
    except TypeError:  # one number, perhaps of numpy's or torch's
        several = [radii]  # type: ignore[list-item]
    every = sorted({0.0, *map(radius, several)})
    attacks = [named(attack, eps, norm) if eps != 0 else None for eps in every]
    seen = 0
    standing = torch.zeros(len(every), dtype=torch.float64)
    with Meter(progress, "curve", " images") as meter:
        for chunk in chunks(model, x, y):
            if chunk.number == 0 and (whole := count(x)) is not None:
                meter.begin(whole * len(every))
            # probabilities, for a randomised classifier
            alive = torch.ones(len(chunk.x), dtype=torch.float64)
            for number, (eps, one) in enumerate(zip(every, attacks, strict=True)):
                label = f"eps {format_eps(eps)}"
                meter.doing(label)
                _attack_survivors(alive, chunk, one)
                standing[number] += alive.sum()
                meter(len(alive))
                meter.say(
                    f"eps {format_eps(eps)} is done, {alive.mean():.2%} of {len(alive)} stand"
                )
            seen += len(alive)
    return [
        Radius(eps, n / seen, wilson_interval(n, seen))
        for eps, n in zip(every, standing.tolist(), strict=True)
    ]


def _attack_survivors(alive: Tensor, chunk: Chunk, attack: Attack | None) -> None:
    """Attack the images that are ``alive``, and change that where they fall."""
    survivors = alive.nonzero().squeeze(1)
    if len(survivors) == 0:
        return
    part = chunk.part(survivors)
    batches = attacked_batches(part.model, part.x, part.y, attack, numbers=part.numbers)
    correct = torch.cat([is_correct(part.model, *batch) for batch in batches])
    alive[survivors] = alive[survivors].minimum(correct.double())


def probability_margins(model: Classifier, x: Tensor, y: Tensor, attack: Attack) -> list[float]:
    """``p_y − max_{j≠y} p_j`` of each attacked image, p the softmax: in [−1, 1] whatever the
    scale of the logits."""
    found: list[float] = []
    for _, logits, labels in attacked_batches(*fitted(model, x), y, attack):
        found += (-margin(logits.softmax(dim=1), labels, reduction="none")).tolist()
    return found
