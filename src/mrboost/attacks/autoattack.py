"""AutoAttack: four attacks in turn, each on the points that the last ones left standing; and
``Quick``, nearly its verdict for a fraction of its time.

==========  =====================================================================================
standard    apgd-ce, apgd-t (9 targets), fab-t (9 targets), square (5,000 queries); in L1
            apgd-ce has 5 restarts, apgd-t 5 targets
plus        apgd-ce, apgd-dlr, fab (5 restarts each), square, apgd-t, fab-t
rand        apgd-ce, apgd-dlr with 20 gradients averaged in each step, for randomised models
==========  =====================================================================================

Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mrboost.errors import InputError, unknown_name
from mrboost.losses import dlr

from .apgd import APGD
from .fab import FAB
from .square import Square
from .survivors import InTurn, Search

VERSIONS: dict[str, Callable[[float, str], tuple[Search, ...]]] = {
    "standard": lambda eps, norm: (
        APGD(eps, norm, restarts=5 if norm == "L1" else 1),
        APGD(eps, norm, targets=5 if norm == "L1" else 9),
        FAB(eps, norm, targets=9),
        Square(eps, norm),
    ),
    "plus": lambda eps, norm: (
        APGD(eps, norm, restarts=5),
        APGD(eps, norm, loss=dlr, restarts=5),
        FAB(eps, norm, restarts=5),
        Square(eps, norm),
        APGD(eps, norm, targets=9),
        FAB(eps, norm, targets=9),
    ),
    "rand": lambda eps, norm: (APGD(eps, norm, eot=20), APGD(eps, norm, loss=dlr, eot=20)),
}


@dataclass(frozen=True)
class AutoAttack(InTurn):
    """The worst case over several attacks, with the settings of the reference.

    Args:
        eps, norm: the ball, "Linf", "L2" or "L1".
        version: "standard", "plus" or "rand".
        stages: only so many of its attacks, the first ones; all of them by default.
        seed: each image has its own random streams, so the result does not depend on the batch.

    Example:
        >>> x_adv = AutoAttack(eps=8 / 255)(model, x, y)  # doctest: +SKIP
    """

    version: str = field(default="standard", kw_only=True)
    stages: int | None = field(default=None, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version not in VERSIONS:
            raise unknown_name("version of AutoAttack", self.version, VERSIONS)
        most = len(VERSIONS[self.version](self.eps, self.norm))
        if self.stages is not None and not 1 <= self.stages <= most:
            allowed = f"1 to {most}, the attacks of version {self.version!r}"
            raise InputError(f"stages must be {allowed}, got {self.stages}")

    @property
    def name(self) -> str:
        name = "autoattack" if self.version == "standard" else f"autoattack-{self.version}"
        return name if self.stages is None else f"{name} up to {self.searches[-1].name}"

    @property
    def searches(self) -> tuple[Search, ...]:
        return VERSIONS[self.version](self.eps, self.norm)[: self.stages]


NEAR = 0.15
"""On the networks that it was chosen on, no image that falls to apgd-ce or apgd-t was left with
more than 0.11 of its lead (``docs/evaluation.md``)."""

NEAREST = 0.03
"""fab-t costs as much as apgd-t, and what it alone breaks was left with less than 0.01."""


@dataclass(frozen=True)
class Quick(InTurn):
    """Nearly what ``AutoAttack`` leaves standing, for an answer between two trainings; the figure
    to publish is AutoAttack's.

    Most of AutoAttack's time goes into images that stand far from any boundary: 100 iterations at
    each of nine targets, nine runs of FAB and 5,000 queries of Square, of which a short search
    would have said the same. Three parts, each on the images that the last ones left standing:

    1. **All images**: apgd-t, of 12 iterations at AutoAttack's nine targets.
    2. **Images that came near a boundary**: AutoAttack's own apgd-ce and apgd-t where the lead is
       now at most ``NEAR`` of what it was, and its fab-t where at most ``NEAREST`` is left. An
       image has the same random numbers in these as in AutoAttack of the same seed.
    3. **A sample of what stands**: apgd-ce, a shorter fab-t and square, for what the others miss
       where gradients mislead. What they break counts; where it is more than chance, the evaluation
       says that the figure is not to be trusted (``evaluation.doubts``).

    What becomes of an image depends on the image and the seed alone, as in every search; so does
    whether it is in the sample.

    Args:
        eps, norm: the ball, "Linf" or "L2".
        sample: the share of the standing images on which the last part tries what AutoAttack has
            against masked gradients.
        seed: each image has its own random streams, so the result does not depend on the batch.

    Example:
        >>> x_adv = Quick(eps=8 / 255)(model, x, y)  # doctest: +SKIP
    """

    sample: float = field(default=0.1, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm == "L1":
            raise InputError("quick is for Linf and L2, where it was measured: use autoattack")
        if not 0 <= self.sample <= 1:
            raise InputError(f"sample must be a share, 0 to 1, got {self.sample}: 0.1 is usual")

    @property
    def name(self) -> str:
        return "quick"

    @property
    def searches(self) -> tuple[Search, ...]:
        ball, some = (self.eps, self.norm), self.sample
        return (
            APGD(*ball, steps=12, targets=9),
            APGD(*ball, near=NEAR),
            APGD(*ball, targets=9, near=NEAR),
            FAB(*ball, targets=9, near=NEAREST),
            APGD(*ball, near=0, sample=some),
            FAB(*ball, targets=3, nearest=True, near=0, sample=some),
            Square(*ball, steps=1000, near=0, sample=some),
        )
