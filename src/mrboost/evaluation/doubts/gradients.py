"""Checks of the gradients: whether there are any, and whether they lead attacks anywhere.

Each gives its message, or None.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrboost.attacks import PGD, Classifier, Square
from mrboost.attacks.survivors import run
from mrboost.errors import NanLogitsError
from mrboost.losses import margin

from .look import Look, is_right

_QUERIES = 300


def useless(
    model: Classifier, look: Look, norm: str, eps: float, seed: int
) -> dict[str, str | None]:
    """Whether there are gradients, and whether they lead attacks anywhere."""
    seen = {"non-finite": _non_finite(look), "zero-gradient": _zero_gradient(look)}
    return (
        seen
        if any(seen.values())
        else seen | {"large-eps": _large_eps(model, look, norm, eps, seed)}
    )


def _non_finite(look: Look) -> str | None:
    values = torch.stack([margin(look.logits, look.y, reduction="none"), look.slope, look.ce_slope])
    count = int((~values.isfinite()).any(dim=0).sum())
    if count == 0:
        return None
    return (
        f"For {count} of {len(look.y)} images the logits or the loss's gradient are not finite: "
        "attacks stand still there, or end in images that are none. Look for overflow, division "
        "by zero, roots and logarithms of zero."
    )


def _zero_gradient(look: Look) -> str | None:
    zero = look.slope == 0
    if zero.sum() <= 0.05 * len(zero):
        return None
    return (
        f"For {int(zero.sum())} of {len(zero)} images ({int((zero & look.right).sum())} of them "
        "classified correctly) the gradient of the margin is exactly zero: attacks by gradient "
        "cannot move, and what they leave standing is not robust. Look for rounding or detaching; "
        "attack a smooth version of the model, or with square."
    )


def _large_eps(model: Classifier, look: Look, norm: str, eps: float, seed: int) -> str | None:
    """Within a radius that reaches the grey image from anywhere, an attack has to break
    what that image breaks."""
    radius = max(eps, 0.5 if norm == "Linf" else 0.5 * math.sqrt(look.x[0].numel()))
    x, y = look.x[look.right], look.y[look.right]
    if len(x) == 0:
        return None
    stands = is_right(model, PGD(radius, norm, steps=20, loss=margin, seed=seed)(model, x, y), y)
    missed = stands & ~is_right(model, torch.full_like(x, 0.5), y)
    if missed.sum() < max(2, 0.05 * len(look.y)):
        return None
    return (
        f"PGD at {norm} eps {radius:.3g} leaves {int(stands.sum())} of {len(x)} correctly "
        "classified images standing, but painting them grey, within that radius, fools the model "
        f"on {int(missed.sum())} of them: the gradients mislead attacks. Attack a smooth version "
        "of the model, or with square."
    )


def weak_loss(stands: Tensor, stands_ce: Tensor) -> str | None:
    """Of what falls to 20 steps on either loss, sound models keep less than a seventh
    for the margin alone."""
    few, more = int((~stands_ce).sum()), int((stands_ce & ~stands).sum())
    if not _beyond(0.15, more, few + more):
        return None
    return (
        f"PGD with 20 steps on the cross-entropy breaks {few} of {len(stands)} correctly "
        f"classified images, on the margin {more} others: attacks on the cross-entropy (fgsm, pgd, "
        "apgd-ce) are weak here, as they are where logits are small. Trust those on margins (cw, "
        "apgd-dlr, apgd-t), or autoattack."
    )


def more_steps(
    model: Classifier, look: Look, stands: Tensor, norm: str, eps: float, seed: int
) -> tuple[str | None, tuple[Tensor, Tensor]]:
    """Of what falls to 20 steps or to more effort, sound models keep less than a
    fifth for the latter.

    Also the images that stand after all that, with their labels.
    """
    x, y = look.x[look.right][stands], look.y[look.right][stands]
    broken = [int((~stands).sum())]
    for restart in range(1, 4):
        if len(x) == 0 or (restart > 1 and broken[-1] == 0):
            break
        left = is_right(
            model, PGD(eps, norm, steps=50, loss=margin, seed=seed + restart)(model, x, y), y
        )
        broken.append(int((~left).sum()))
        x, y = x[left], y[left]
    few, more = broken[0], sum(broken[1:])
    if not _beyond(0.2, more, few + more):
        return None, (x, y)
    message = (
        f"PGD with 20 steps breaks {few} of {int(look.right.sum())} correctly classified images, "
        f"with 50 steps and {len(broken) - 1} restarts {more} more: it has not converged, and the "
        "accuracy it leaves is too high. Use autoattack, and raise steps and restarts until the "
        "figure stays."
    )
    return message, (x, y)


def squares(
    model: Classifier, look: Look, left: tuple[Tensor, Tensor], norm: str, eps: float, seed: int
) -> dict[str, str | None]:
    """Of sound models a few hundred random squares break nothing that gradients, with
    restarts, leave standing."""
    x, y = left
    if len(x) == 0:
        return {}
    try:
        broken = int((~run(model, x, y, [Square(eps, norm, steps=_QUERIES)], seed).alive).sum())
    except NanLogitsError:  # attacks will name the image
        message = (
            "Some images within the ball, made by the square attack, get logits that are NaN: "
            "attacks fail there."
        )
        return {"non-finite": message}
    if broken < max(3, 0.04 * int(look.right.sum())):
        return {}
    message = (
        f"The square attack with {_QUERIES} queries, which needs no gradients, breaks {broken} of "
        f"{len(x)} images that PGD with restarts leaves standing: the gradients mislead attacks. "
        "Use autoattack, and give the worst case; better still, attack a smooth version of the "
        "model."
    )
    return {"squares": message}


def _beyond(share: float, count: int, of: int) -> bool:
    """Whether a count is no chance if each of so many has this share: five at least, two
    standard deviations above."""
    return count >= 5 and count > share * of + 2 * math.sqrt(share * (1 - share) * of)
