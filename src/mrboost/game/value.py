r"""The value of a game by linear programming, and both players' optimal strategies.

    min_P max_h Σ_i P_i payoff(h, i) = max_Q min_i Σ_h Q_h payoff(h, i)

With ``nu``, the adversary may put at most 1/(ν |S_aug|) on a point: the learner then maximises the
mean of the ν worst share of its margins, a soft margin that a few hopeless points cannot spoil. ν =
1 leaves P uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from mrboost.errors import InputError

from .payoff import Floats, Matrix, Payoff, as_payoff

WHOLE = 1 << 20  # entries up to which the programme takes the whole matrix
BATCH = 64  # strategies that join a part at a time
TOLERANCE = 1e-9  # of the largest payoff


@dataclass(frozen=True, eq=False)
class Solution:
    """The value and what proves it: Q, the ``learner``'s weight for each classifier, earns at least
    ``lower`` whatever the adversary does, and against P, the ``adversary``'s weight for each point
    of S_aug, no classifier earns more than ``upper``."""

    value: float
    lower: float
    upper: float
    learner: Floats
    adversary: Floats


def solve(game: Payoff | ArrayLike, *, nu: float | None = None) -> Solution:
    """The game's value, exact to about 1e-9 of its largest payoff.

    ``lower`` and ``upper`` are computed from the strategies, and so hold whatever the solver did.
    Optimal strategies use few classifiers and points, so a large game is solved on a growing part
    of it: the best responses to the part's solution join it until neither player has a better one.

    Args:
        game: a payoff matrix, classifiers × points.
        nu: the adversary may put at most ``1/(ν |S_aug|)`` on a point; without it, everything on
            one.

    Example:
        >>> round(solve([[1.0, -0.5], [-1.0, 1.0]]).value, 6)
        0.142857
    """
    payoff = as_payoff(game)
    cap = _capacity(payoff.points, nu)
    if payoff.matrix.size <= WHOLE:
        return _evaluated(payoff, cap, *_programme(payoff.matrix, payoff.scale, cap))
    rows = np.sort(np.argsort(payoff.expected(np.full(payoff.points, 1 / payoff.points)))[-BATCH:])
    # A P that is capped needs many points, so all take part
    columns = np.arange(0, payoff.points, 1 if cap < 1 else -(-payoff.points // BATCH))
    while True:
        adversary, learner = np.zeros(payoff.points), np.zeros(payoff.classifiers)
        part = payoff.matrix[np.ix_(rows, columns)]
        adversary[columns], learner[rows] = _programme(part, payoff.scale, cap)
        found = _evaluated(payoff, cap, adversary, learner)
        more_rows = _extended(rows, -payoff.expected(adversary))
        more_columns = _extended(columns, payoff.margins(learner))
        grown = len(more_rows) > len(rows) or len(more_columns) > len(columns)
        if found.upper - found.lower <= TOLERANCE * payoff.scale or not grown:
            return found
        rows, columns = more_rows, more_columns


def _programme(matrix: Matrix, scale: float, cap: float) -> tuple[Floats, Floats]:
    """Optimal P and Q. Variables P_1 … P_N and v: minimise v subject to Σ_i P_i payoff(h,
    i) <= v for every h."""
    classifiers, points = matrix.shape
    result = scipy.optimize.linprog(
        c=np.r_[np.zeros(points), 1.0],
        # So the solver's tolerances are relative
        A_ub=np.c_[matrix / (scale or 1.0), -np.ones(classifiers)],
        b_ub=np.zeros(classifiers),
        A_eq=np.r_[np.ones(points), 0.0][None],
        b_eq=[1.0],
        bounds=[(0, cap)] * points + [(None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.success, result.message
    return _distribution(result.x[:-1]), _distribution(-result.ineqlin.marginals)


def _evaluated(payoff: Payoff, cap: float, adversary: Floats, learner: Floats) -> Solution:
    even = np.full(payoff.points, 1 / payoff.points)
    lower = soft_minimum(payoff.margins(learner), even, even[0] / cap)
    upper = float(payoff.expected(adversary).max())
    return Solution((lower + upper) / 2, lower, upper, learner, adversary)


def _extended(chosen: NDArray[np.int64], costs: Floats) -> NDArray[np.int64]:
    """With the strategies of the lowest cost."""
    return np.union1d(chosen, np.argpartition(costs, min(BATCH, len(costs)) - 1)[:BATCH])


def _capacity(points: int, nu: float | None) -> float:
    """The most that the adversary may put on one point."""
    if nu is None:
        return 1.0
    if not 0 < nu <= 1:
        raise InputError(f"nu must lie in (0, 1], got {nu}: the share of points that count")
    return min(1.0, 1 / (nu * points))


def soft_minimum(margins: Floats, weight: Floats, nu: float) -> float:
    """The mean margin of the worst fraction ``nu`` of the points' weight, which sums to
    one; the least for nu = 0."""
    order = np.argsort(margins)
    if nu <= 0:
        return float(margins[order[0]])
    taken = np.minimum(np.cumsum(weight[order]), nu)
    return float(np.diff(taken, prepend=0.0) @ margins[order] / taken[-1])


def _distribution(weights: Floats) -> Floats:
    clipped = np.clip(weights, 0, None)
    return np.asarray(clipped / clipped.sum())
