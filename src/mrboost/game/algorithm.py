r"""MRBoost, the paper's Algorithm 1: the adversary plays exponential weights, the
learner its best response.

    P_t ∝ exp(η Σ_{j<t} mg_L(h_j, ·)),   h_t = argmin_h E_{P_t}[mg_L(h, ·)],
    Q(T) = uniform on h_1 … h_T

After every round the value v of the game is between two numbers that cost nothing more: the minimum
margin of Q(t) is at most v, and what the best response earns against P_t, or against the average of
P_1 … P_t, is at least v.

Theorem 4 bounds v − mg_rob(Q(T), S) by ξ(T) = 3 log|S_aug| / √T for η <= 1/(2√T). For η = 1/(2√T)
that is so, since the adversary's regret is at most log|S_aug| / η + η T / 2 (Hoeffding's lemma).
For smaller η the first term grows and the statement fails: with η near 0, P_t stays uniform and one
classifier is played for ever. Nor does it hold midway through a run whose η was set for a longer
one; ``regret_bound`` does, and with η_t = 1/(2√t) ("anytime") ξ(t) holds at every t.

Here S_aug is finite. For an infinite B(ε), with n K Vol(B(ε)) in the place of |S_aug|, the
statement fails for every η: P_1 has a density, so have all P_t, and none of them sees a set of
measure 0. Let S = {(0, 1)}, K = 2, B(ε) = [−1, 1], and two classifiers: h_a is wrong at δ = 0 only,
h_b on [0.2, 0.3]. The value is 0, by half of each. But h_a is right with probability 1 under P_1,
and its loss is constant outside {0}, so P_2 = P_1: h_a is chosen in every round, and the margin
stays at −1, while ξ(T) = 3 log 4 / √T is below 1 from T = 18 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from mrboost.errors import InputError, look_up

from .payoff import Floats, Payoff, as_payoff


@dataclass(frozen=True, eq=False)
class Learner:
    """Classifiers that come from a training procedure instead of a list.

    Args:
        respond: given P, a weight for each point of S_aug, trains a classifier and returns its
            payoffs there (as ``SAug.labels`` or ``SAug.scores`` make them from its outputs). The
            classifier of the k-th call is number k.
        points: ``|S_aug|``.
        scale: no payoff exceeds it; 1 for hard labels.
        exact: whether the answer is the best classifier for P. If not, nothing bounds
            the value from above.
    """

    respond: Callable[[Floats], ArrayLike]
    points: int
    scale: float = 1.0
    exact: bool = True

    def __post_init__(self) -> None:
        if self.points < 1 or not 0 < self.scale < math.inf:
            given = f"{self.points!r} and {self.scale!r}"
            raise InputError(f"a learner needs points >= 1 and scale > 0, got {given}")

    def __call__(self, adversary: Floats) -> Floats:
        row = np.asarray(self.respond(adversary), dtype=np.float64)
        if row.shape != (self.points,):
            raise InputError(f"give a payoff for each of {self.points} points, got {row.shape}")
        largest = np.abs(row).max()
        if not largest <= self.scale:  # also for NaN
            raise InputError(f"payoffs must lie within ±{self.scale:g}, got {largest:g}")
        return row


@dataclass(frozen=True, eq=False)
class Boosting:
    """A run of MRBoost; arrays over rounds have one entry for each.

    Attributes:
        eta: η of each round's P_t.
        choices: h_t.
        margin: the minimum margin of Q(t), the uniform mixture of h_1 … h_t.
        response: what h_t earns against P_t.
        lower: the value is at least this: the best margin so far, that of ``mixture(1 +
            margin.argmax())`` at the end.
        upper: the value is at most this: the least best response to any P_t or their average so
            far.
        learner: Q(T).
        adversary: P_avg, the mean of P_1 … P_T.
        margins: of Q(T), at each point of S_aug.
    """

    eta: Floats
    choices: NDArray[np.int64]
    margin: Floats
    response: Floats
    lower: Floats
    upper: Floats
    learner: Floats
    adversary: Floats
    margins: Floats

    @property
    def concentration(self) -> float:
        """How far P_avg is from the worst points of Q(T): E_{P_avg}[margin] − min margin. The
        second part of Theorem 4 bounds it by ξ(T)."""
        return float(self.adversary @ self.margins - self.margins.min())

    def mixture(self, rounds: int) -> Floats:
        """Q(t)."""
        if not 1 <= rounds <= len(self.choices):
            raise InputError(f"there are mixtures of 1 … {len(self.choices)} rounds, got {rounds}")
        return np.bincount(self.choices[:rounds], minlength=len(self.learner)) / rounds


def mrboost(
    game: Payoff | Learner | ArrayLike,
    rounds: int,
    *,
    eta: float | str = "practical",
    tolerance: float | None = None,
    progress: bool = False,
) -> Boosting:
    """Algorithm 1. Ties between classifiers go to the first.

    Args:
        game: a payoff matrix, or a ``Learner``.
        rounds: T.
        eta: a number, or "practical" √(log|S_aug| / T), "theorem" 1/(2√T), "anytime" 1/(2√t) in
            round t; the named ones are divided by the largest absolute payoff.
        tolerance: stop as soon as the certified interval is no wider; without it
            all rounds are played.
        progress: show a progress bar.

    Example:
        >>> run = mrboost([[1.0, -0.5], [-1.0, 1.0]], rounds=1000)
        >>> bool(run.lower[-1] <= 1 / 7 <= run.upper[-1])
        True
    """
    if tolerance is not None and not tolerance >= 0:
        raise InputError(f"tolerance must be at least 0, got {tolerance!r}")
    game = game if isinstance(game, Learner) else as_payoff(game)
    rates = _rates(eta, rounds, game)
    gains = np.zeros(game.points)  # Σ_j payoff(h_j, ·), so −gains are the losses in the exponent
    average = np.zeros(game.points)  # Σ_j P_j
    earned = np.zeros(0 if isinstance(game, Learner) else game.classifiers)  # against Σ_j P_j
    choices, margins, responses, bounds = [], [], [], []
    lower, upper = -math.inf, math.inf
    disable = None if progress else True
    for t, rate in enumerate(tqdm(rates, "MRBoost", unit="round", disable=disable, leave=False)):
        weights = exponential_weights(gains, rate)
        average += weights
        choice, row, response, bound = _best_response(game, weights, earned, t)
        gains += row
        choices.append(choice)
        responses.append(response)
        margins.append(float(gains.min()) / (t + 1))
        bounds.append(bound)
        lower, upper = max(lower, margins[-1]), min(upper, bound)
        if tolerance is not None and upper - lower <= tolerance:
            break
    played = len(choices)
    classifiers = played if isinstance(game, Learner) else game.classifiers
    return Boosting(
        eta=rates[:played],
        choices=np.array(choices),
        margin=np.array(margins),
        response=np.array(responses),
        lower=np.maximum.accumulate(margins),
        upper=np.minimum.accumulate(bounds),
        learner=np.bincount(choices, minlength=classifiers) / played,
        adversary=average / played,
        margins=gains / played,
    )


def _best_response(
    game: Payoff | Learner, weights: Floats, earned: Floats, t: int
) -> tuple[int, Floats, float, float]:
    """h_t, its payoffs, what it earns against P_t, and an upper bound of the value, for t = 0, 1,
    …; ``earned`` is brought up to date."""
    if isinstance(game, Learner):
        row = game(weights)
        response = float(weights @ row)
        return t, row, response, response if game.exact else math.inf
    payoffs = game.expected(weights)
    earned += payoffs
    choice = int(payoffs.argmax())
    response = float(payoffs[choice])
    return choice, game.row(choice), response, min(response, float(earned.max()) / (t + 1))


def exponential_weights(gains: Floats, eta: float) -> Floats:
    """P ∝ exp(−η gains), the uniform distribution tilted towards the points where the
    learner has earned least."""
    weights = np.exp(-eta * (gains - gains.min()))
    return np.asarray(weights / weights.sum())


def theorem_bound(points: int, rounds: int, scale: float = 1.0) -> float:
    """ξ(T) = 3 log|S_aug| / √T of Theorem 4, for payoffs within ±scale."""
    return 3 * scale * math.log(points) / math.sqrt(rounds)


def regret_bound(points: int, rounds: int, eta: float, scale: float = 1.0) -> float:
    """What v − mg_rob(Q(t), S) is at most after t rounds with any constant η: log|S_aug| /
    (η t) + η scale² / 2."""
    return math.log(points) / (eta * rounds) + eta * scale**2 / 2


def _rates(eta: float | str, rounds: int, game: Payoff | Learner) -> Floats:
    """η of each round."""
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, got {rounds!r}")
    if isinstance(eta, str):
        named = {
            "practical": np.full(rounds, math.sqrt(math.log(max(game.points, 2)) / rounds)),
            "theorem": np.full(rounds, 1 / (2 * math.sqrt(rounds))),
            "anytime": 1 / (2 * np.sqrt(np.arange(1, rounds + 1))),
        }
        return look_up("eta", eta, named, "or a positive number") / (game.scale or 1.0)
    if not 0 < eta < math.inf:
        raise InputError(f"eta must be positive and finite, got {eta}: try eta='practical'")
    return np.full(rounds, float(eta))
