"""AutoAttack: four attacks in turn, each on the points that the last ones left standing.

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
