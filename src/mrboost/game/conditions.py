r"""When can boosting reach 100 % adversarial accuracy? Two weak-learning conditions,
each a linear programme.

Theorem 1 (margin boosting, necessary and sufficient): for every P' on S_aug some h has
E[I(h(x+δ) = y)] >= E[I(h(x+δ) = y')] + τ. The largest such τ is the value of the game.

RobBoost (Abernethy et al. 2021): for every P' on S̃_aug = {(x, y, y')} some h has E[I(∀δ: h(x+δ) =
y)] >= E[I(∃δ: h(x+δ) = y')] + τ. The difference of the two indicators is the least payoff over δ,
so the largest such τ is the value of a game whose payoffs are nowhere larger: their condition
implies ours. Proposition 3 shows by an example that ours does not imply theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mrboost.errors import InputError

from .payoff import Floats, Matrix, Payoff, SAug, as_payoff
from .value import TOLERANCE, Solution, solve


@dataclass(frozen=True, eq=False)
class Condition:
    """A weak-learning condition, decided. ``proof.learner`` is an ensemble that shows it holds,
    ``proof.adversary`` a distribution P' that shows it holds with no larger τ."""

    holds: bool
    tau: float
    """The largest τ for which the inequality can always be met; the condition
    asks for a positive one."""
    proof: Solution


def weak_learning(game: Payoff | ArrayLike) -> Condition:
    """The condition of Theorem 1: a mixture of the classifiers has a positive margin at
    every point of S_aug."""
    payoff = as_payoff(game)
    proof = solve(payoff)
    return Condition(proof.lower > TOLERANCE * payoff.scale, proof.value, proof)


def robboost_weak_learning(game: Payoff | ArrayLike, pairs: ArrayLike) -> Condition:
    """RobBoost's condition. ``pairs`` numbers the (x, y, y') of each column, as
    ``SAug.pairs`` does."""
    return weak_learning(worst_perturbation(game, pairs))


def worst_perturbation(game: Payoff | ArrayLike, pairs: ArrayLike) -> Payoff:
    """The game in which the adversary chooses δ after seeing the classifier: the least payoff over
    the columns of each pair, in ascending order of ``pairs``."""
    payoff, groups = as_payoff(game), np.asarray(pairs)
    if groups.shape != (payoff.points,):
        given = f"got shape {groups.shape}"
        raise InputError(f"pairs must number each of the {payoff.points} points, {given}")
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    return Payoff(np.minimum.reduceat(payoff.matrix[:, order], starts, axis=1))


@dataclass(frozen=True, eq=False)
class Intervals:
    """Proposition 3's example on a grid: one point x = 0 with label 1, |δ| <= 1, and classifiers
    that answer 0 on a closed interval [θ, θ + 0.1] and 1 elsewhere."""

    theta: Floats
    delta: Floats
    labels: Matrix  # h_θ(δ), (classifiers, δ)
    s_aug: SAug
    payoff: Payoff


def proposition_example(refine: int = 1) -> Intervals:
    """The 20 intervals [−1, −0.9] … [0.9, 1] of the proof, with δ at their ends and midpoints.

    ``refine`` = r takes θ in steps of 0.1/r and δ twice as fine. The grid is one of integers, so
    ends that two intervals share are shared exactly. The value is 4/5 for r = 1, and 17/19, that of
    all θ in [−1, 0.9], for r >= 18.
    """
    if refine < 1:
        raise InputError(f"refine must be at least 1, got {refine}")
    width = 2 * refine
    theta, delta = np.arange(0, 19 * width + 1, 2), np.arange(20 * width + 1)
    inside = (theta[:, None] <= delta) & (delta <= theta[:, None] + width)
    s_aug = SAug(np.ones_like(delta), 2, example=np.zeros_like(delta))
    labels = np.where(inside, 0, 1)
    payoff = Payoff(s_aug.labels(labels))
    return Intervals(theta / (10 * width) - 1, delta / (10 * width) - 1, labels, s_aug, payoff)
