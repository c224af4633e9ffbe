"""Solve games that are too large to write down as a matrix: strategies are added as best responses,
and a linear programme solves the game of those found so far.

``column_generation`` trains classifiers on a finite S_aug (LPBoost, Demiriz et al. 2002);
``double_oracle`` (McMahan, Gordon and Blum 2003) takes best responses for both players, so that
either may have infinitely many strategies. Both keep an interval that holds the value, and stop
when it is narrow enough.

python examples/double_oracle.py        a second
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from mrboost.game import Learner, Solution, solve

Floats = np.ndarray

H = TypeVar("H")
Z = TypeVar("Z")


@dataclass(frozen=True, eq=False)
class OracleSolution(Solution, Generic[H, Z]):
    """A solution over the strategies found; ``learner`` and ``adversary`` are
    weights for them, in order."""

    classifiers: Sequence[H]
    points: Sequence[Z]
    interval: Floats
    """The certified (lower, upper) after each round."""


def column_generation(
    learner: Learner,
    *,
    nu: float | None = None,
    tolerance: float = 1e-6,
    rounds: int = 1000,
) -> OracleSolution[int, int]:
    """Solve the game of the classifiers found, train one more for its optimal P, until that one
    earns no more than the value found. The classifier of the learner's k-th call has weight
    ``learner[k]``; ``nu`` as in ``solve``.

    With an exact learner the value is that of the whole class, to within ``tolerance``. With
    another it is the value over the classifiers that were found, and ``upper`` is infinite.
    """
    rows = [learner(np.full(learner.points, 1 / learner.points))]
    best = _Best()
    for _ in range(rounds):
        found = solve(np.array(rows), nu=nu)
        rows.append(learner(found.adversary))
        earned = float(found.adversary @ rows[-1])
        best.update(found, found.lower, earned if learner.exact else math.inf)
        if earned <= found.lower + tolerance:
            break
    return best.solution(found.value, range(len(rows)), range(learner.points))


def double_oracle(
    learner: Callable[[Sequence[Z], Floats], H],
    adversary: Callable[[Sequence[H], Floats], Z],
    payoff: Callable[[H, Z], float],
    start: Z,
    *,
    tolerance: float = 1e-6,
    rounds: int = 1000,
) -> OracleSolution[H, Z]:
    """Solve the game of the classifiers and points found, add each player's best response to the
    other's optimal mixture, until neither gains more than ``tolerance``.

    Args:
        learner: the best classifier for points with these weights.
        adversary: the worst point for a mixture of classifiers with these weights.
        payoff: what a classifier earns at a point.
        start: any point to begin with.

    The interval is certified as far as the oracles are exact: a heuristic learner (adversary)
    leaves upper (lower) unproved.
    """
    points = [start]
    classifiers = [learner(points, np.ones(1))]
    matrix = np.array([[payoff(classifiers[0], start)]], dtype=np.float64)
    best = _Best()
    for _ in range(rounds):
        found = solve(matrix)
        h, z = learner(points, found.adversary), adversary(classifiers, found.learner)
        row = np.array([payoff(h, point) for point in points])
        column = np.array([payoff(classifier, z) for classifier in classifiers])
        earned, least = float(row @ found.adversary), float(column @ found.learner)
        best.update(found, least, earned)
        if max(earned - found.value, found.value - least) <= tolerance:
            break
        matrix = np.block([[matrix, column[:, None]], [row[None], np.array([[payoff(h, z)]])]])
        classifiers.append(h)
        points.append(z)
    return best.solution(found.value, classifiers, points)


class _Best:
    """The best bounds so far, and the mixtures that prove them."""

    def __init__(self) -> None:
        self.lower, self.upper = -math.inf, math.inf
        self.trace: list[tuple[float, float]] = []

    def update(self, found: Solution, lower: float, upper: float) -> None:
        if lower > self.lower:
            self.lower, self.learner = lower, found.learner
        if upper < self.upper or not self.trace:
            self.upper, self.adversary = upper, found.adversary
        self.trace.append((self.lower, self.upper))

    def solution(
        self, value: float, classifiers: Sequence[H], points: Sequence[Z]
    ) -> OracleSolution[H, Z]:
        return OracleSolution(
            value=float(np.clip(value, self.lower, max(self.lower, self.upper))),
            lower=self.lower,
            upper=self.upper,
            learner=np.pad(self.learner, (0, len(classifiers) - len(self.learner))),
            adversary=np.pad(self.adversary, (0, len(points) - len(self.adversary))),
            classifiers=classifiers,
            points=points,
            interval=np.array(self.trace),
        )


def main() -> None:
    """(a − b)² for a and b in [0, 1]: the learner mixes 0 and 1, the adversary answers 1/2, and the
    value is 1/4."""
    found = double_oracle(
        lambda points, p: float(max((0.0, 1.0), key=lambda a: p @ (a - np.array(points)) ** 2)),
        lambda chosen, q: float(q @ np.array(chosen)),
        lambda a, b: (a - b) ** 2,
        start=0.9,
    )
    print("| round | the value is at least | and at most |\n|---|---|---|")
    for number, (lower, upper) in enumerate(found.interval, 1):
        print(f"| {number} | {lower:.6f} | {upper:.6f} |")


if __name__ == "__main__":
    main()
