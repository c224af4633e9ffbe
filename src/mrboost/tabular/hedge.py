"""Algorithm 1 of the paper (MRBoost) on stumps, exactly, without sampling.

    P_t(i, y', δ) ∝ exp(eta * Σ_{j<t} ([h_j(x_i + δ) = y'] - [h_j(x_i + δ) = y_i])),
    h_t = the best stump against P_t

The votes of stumps add up over columns and δ ranges over a product of cells. So, given (i, y'), the
columns are independent: the total weight is a product of range sums, the share of a cell comes from
its own column alone, and one pass over the cells finds the best stump. The uniform P_1 counts each
combination of cells once.

Each round gives an interval for the value of the game: P_t's best response bounds it from above,
the exact margin of the votes from below. With ``nu`` the adversary's mass on point i is at most
w_i / nu: P_t is the distribution within these caps that is nearest in relative entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from mrboost.game.value import soft_minimum

from .cells import Floats, RangeSums
from .cover import StumpCover, Table
from .models import Stump, StumpModel
from .smooth import class_views, robust_margins


def best_response(cover: StumpCover, mass: Floats) -> tuple[float, Stump]:
    """The greatest E[h = y] - E[h = y'], and the stump that attains it; ``mass`` (cells, y, y') is
    the adversary's in each column."""
    # Of voting a in a cell: what has y = a less what has y' = a
    gain = mass.sum(axis=2) - mass.sum(axis=1)
    tails = cover.cells.sums_to_right(gain)
    whole = tails[cover.cells.first][0]
    best = float(whole.max())
    stump = Stump(-1, -1, int(whole.argmax()), int(whole.argmax()))
    inner = np.flatnonzero(~cover.cells.first)
    if not len(inner):
        return best, stump
    beyond = tails[inner]
    column = np.searchsorted(cover.cells.offset, inner, side="right") - 1
    before = tails[cover.cells.offset[column]] - beyond
    payoff = before.max(axis=1) + beyond.max(axis=1)
    t = int(payoff.argmax())
    if payoff[t] <= best:
        return best, stump
    left, right = int(before[t].argmax()), int(beyond[t].argmax())
    return float(payoff[t]), Stump(int(column[t]), int(inner[t]) - 1, left, right)


def capped(log_weight: Floats, cap: Floats) -> Floats:
    """Probabilities proportional to exp(log_weight) but at most ``cap``: the nearest ones
    in relative entropy."""
    share = softmax(log_weight)
    full = np.zeros(len(share), dtype=bool)
    while True:
        free = max(1.0 - cap[full].sum(), 0.0)
        rest = share[~full].sum()
        scaled = np.where(full, cap, share * (free / rest if rest > 0 else 0.0))
        over = (scaled > cap * (1 + 1e-12)) & ~full
        if not over.any():
            return np.asarray(scaled / scaled.sum())
        full |= over


class Game:
    """The votes of the rounds so far, and the adversary that answers them."""

    def __init__(self, cover: StumpCover, table: Table, nu: float) -> None:
        self.cover, self.table, self.nu = cover, table, nu
        self.votes = np.zeros((cover.count, table.classes))
        self.constant = np.zeros(table.classes)
        self.views = class_views(cover, table.y)

    def log_size(self) -> float:
        """log |S_aug|: false labels times combinations of cells, over all points."""
        cells = np.log(self.cover.size)[self.cover.group].sum(axis=1)
        return float(np.logaddexp.reduce(cells) + math.log(self.table.classes - 1))

    def adversary(self, eta: float) -> tuple[Floats, Floats]:
        """P_t: its mass on (cell, y, y') in each column, and on the points."""
        weight, classes = self.table.weight, self.table.classes
        log_weight = np.full((len(weight), classes), -np.inf)
        parts = []
        for k, rows, part in self.views:
            others = self.table.pairs.others(k)
            lead = eta * (self.votes[:, others] - self.votes[:, [k]])
            sums = RangeSums.of(lead, part.start, part.last)
            constant = eta * (self.constant[others] - self.constant[k])
            log_weight[np.ix_(rows, others)] = part.incidence @ sums.total + constant
            parts.append((k, others, rows, part, sums))
        by_point = np.logaddexp.reduce(log_weight, axis=1)
        cap = weight / self.nu if self.nu > 0 else np.ones(len(weight))
        # A row of weight w counts as w equal points
        point = capped(by_point + np.log(weight), cap)
        joint = point[:, None] * np.exp(log_weight - by_point[:, None])
        mass = np.zeros((self.cover.count, classes, classes))
        for k, others, rows, part, sums in parts:
            mass[:, k, others] = sums.spread(part.incidence.T @ joint[np.ix_(rows, others)])
        return mass, point


def play(
    game: Game, rounds: int, tick: Callable[[], object] = lambda: None
) -> tuple[StumpModel, tuple[float, float]]:
    """Play T ``rounds`` of Algorithm 1 with eta = sqrt(log|S_aug| / T).

    Returns:
        The model of all votes, and an interval that holds the game's value.
    """
    eta = math.sqrt(game.log_size() / rounds)
    cells = game.cover.cells
    stumps: list[Stump] = []
    upper = 1.0
    for _ in range(rounds):
        bound, stump = best_response(game.cover, game.adversary(eta)[0])
        upper = min(upper, bound)
        stump.vote(cells, game.votes, game.constant)
        stumps.append(stump)
        tick()
    model = StumpModel.voting(cells, game.votes, game.constant, stumps)
    margins = robust_margins(game.views, model.pairs, model.values, model.bias)
    return model, (soft_minimum(margins, game.table.weight, game.nu) / rounds, upper)
