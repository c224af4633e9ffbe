"""Checks of the gradients: whether there are any, and whether they lead attacks anywhere.

Each gives its message, or None.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrboost.attacks import PGD, Square
from mrboost.attacks.survivors import run
from mrboost.errors import NanLogitsError
from mrboost.losses import margin

from .sample import Sample, is_right

_QUERIES = 300


def useless(sample: Sample) -> dict[str, str | None]:
    """Whether there are gradients, and whether they lead attacks anywhere."""
    seen = {"non-finite": _non_finite(sample), "zero-gradient": _zero_gradient(sample)}
    if not any(seen.values()):
        seen["large-eps"] = _large_eps(sample)
    return seen


def _non_finite(sample: Sample) -> str | None:
    margins = margin(sample.logits, sample.y, reduction="none")
    values = torch.stack([margins, sample.slope, sample.ce_slope])
    count = int((~values.isfinite()).any(dim=0).sum())
    if count == 0:
        return None
    return (
        f"For {count} of {len(sample.y)} images the logits or the loss's gradient are not finite: "
        "attacks stand still there, or end in images that are none. Look for overflow, division "
        "by zero, roots and logarithms of zero."
    )


def _zero_gradient(sample: Sample) -> str | None:
    zero = sample.slope == 0
    if zero.sum() <= 0.05 * len(zero):
        return None
    return (
        f"For {int(zero.sum())} of {len(zero)} images ({int((zero & sample.right).sum())} of them "
        "classified correctly) the gradient of the margin is exactly zero: attacks by gradient "
        "cannot move, and what they leave standing is not robust. Look for rounding or detaching; "
        "attack a smooth version of the model, or with square."
    )


def _large_eps(sample: Sample) -> str | None:
    """Within a radius that reaches the grey image from anywhere, an attack has to break
    what that image breaks."""
    reach = 0.5 if sample.norm == "Linf" else 0.5 * math.sqrt(sample.x[0].numel())
    radius = max(sample.eps, reach)
    x, y = sample.of_right()
    if len(x) == 0:
        return None
    stands = sample.withstands(PGD(radius, sample.norm, steps=20, loss=margin, seed=sample.seed))
    missed = stands & ~is_right(sample.model, torch.full_like(x, 0.5), y)
    if missed.sum() < max(2, 0.05 * len(sample.y)):
        return None
    return (
        f"PGD at {sample.norm} eps {radius:.3g} leaves {int(stands.sum())} of {len(x)} correctly "
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


def more_steps(sample: Sample, stands: Tensor) -> tuple[str | None, tuple[Tensor, Tensor]]:
    """Of what falls to 20 steps or to more effort, sound models keep less than a
    fifth for the latter.

    Also the images that stand after all that, with their labels.
    """
    x, y = sample.of_right()
    x, y = x[stands], y[stands]
    broken = [int((~stands).sum())]
    for restart in range(1, 4):
        if len(x) == 0 or (restart > 1 and broken[-1] == 0):
            break
        attack = PGD(sample.eps, sample.norm, steps=50, loss=margin, seed=sample.seed + restart)
        stand = is_right(sample.model, attack(sample.model, x, y), y)
        broken.append(int((~stand).sum()))
        x, y = x[stand], y[stand]
    few, more = broken[0], sum(broken[1:])
    if not _beyond(0.2, more, few + more):
        return None, (x, y)
    message = (
        f"PGD with 20 steps breaks {few} of {int(sample.right.sum())} correctly classified images, "
        f"with 50 steps and {len(broken) - 1} restarts {more} more: it has not converged, and the "
        "accuracy it leaves is too high. Use autoattack, and raise steps and restarts until the "
        "figure stays."
    )
    return message, (x, y)


def squares(sample: Sample, left: tuple[Tensor, Tensor]) -> dict[str, str | None]:
    """Of sound models a few hundred random squares break nothing that gradients, with
    restarts, leave standing."""
    x, y = left
    if len(x) == 0:
        return {}
    attack = Square(sample.eps, sample.norm, steps=_QUERIES)
    try:
        broken = int((~run(sample.model, x, y, [attack], sample.seed).alive).sum())
    except NanLogitsError:  # attacks will name the image
        message = (
            "Some images within the ball, made by the square attack, get logits that are NaN: "
            "attacks fail there."
        )
        return {"non-finite": message}
    if broken < max(3, 0.04 * int(sample.right.sum())):
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
