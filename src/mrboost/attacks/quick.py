r"""Quick: AutoAttack's verdict for a fraction of its time.

Most of AutoAttack's time goes into images that stand far from any boundary: 100 iterations at each
of nine targets, nine runs of FAB and 5,000 queries of Square, of which a short search would have
said the same. Three parts, each on the images that the last ones left standing:

1. **All images**: apgd-t, of 12 iterations at AutoAttack's nine targets.
2. **Images that came near a boundary**: AutoAttack's own apgd-ce and apgd-t where the lead is now
   at most ``NEAR`` of what it was, and its fab-t where at most ``NEAREST`` is left. An image has
   the same random numbers in these as in AutoAttack of the same seed.
3. **A sample of what stands**: apgd-ce, a shorter fab-t and square, for what the others miss where
   gradients mislead. What they break counts; where it is more than chance, the evaluation says
   that the figure is not to be trusted (``evaluation.doubts``).

What becomes of an image depends on the image and the seed alone, as in every search; so does
whether it is in the sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mrboost.errors import InputError

from .apgd import APGD
from .fab import FAB
from .square import Square
from .survivors import InTurn, Search

NEAR = 0.15
"""On the networks that it was chosen on, no image that falls to apgd-ce or apgd-t was left with
more than 0.11 of its lead (``docs/evaluation.md``)."""

NEAREST = 0.03
"""fab-t costs as much as apgd-t, and what it alone breaks was left with less than 0.01."""


@dataclass(frozen=True)
class Quick(InTurn):
    """Nearly what ``AutoAttack`` leaves standing, for an answer between two trainings; the figure
    to publish is AutoAttack's.

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
