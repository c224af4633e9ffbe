"""The game solved exactly, as one linear program.

H holds the stumps of all useful thresholds with any two labels (or given trees with any labels at their leaves) and the
constants. A mixture Q over H is described by its mass: per threshold and class what it votes left and right. The votes
of a cell are linear in it, and the adversary's best move in a term is a minimum over the cells in reach, one variable
per group of points. So the exponentially many moves of the adversary become nearly linearly many rows:

    maximise rho - sum_i w_i xi_i / nu   with   sum_terms min_cells (votes_y - votes_y') >= rho - xi_i,  xi >= 0.

nu = 0 leaves xi out: the hard game of Algorithm 1. With nu > 0 the adversary may put at most w_i / nu on point i, and
the value is the mean margin of the worst fraction nu of the points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from mrboost.errors import InputError

from .cells import Cells, Floats, Ints
from .cover import Cover, StumpCover
from .models import Pairs


@dataclass
class Rows:
    """Rows of a sparse matrix, put together piece by piece."""

    count: int = 0
    row: list[Ints] = field(default_factory=list)
    column: list[Ints] = field(default_factory=list)
    entry: list[Floats] = field(default_factory=list)

    def new(self, n: int) -> Ints:
        self.count += n
        return np.arange(self.count - n, self.count)

    def add(self, row: Ints, column: Ints, entry: float) -> None:
        row, column = np.broadcast_arrays(row, column)
        self.row.append(row.ravel())
        self.column.append(column.ravel())
        self.entry.append(np.full(row.size, entry))

    def matrix(self, width: int) -> sparse.csr_array:
        where = (np.concatenate(self.row), np.concatenate(self.column))
        return sparse.csr_array((np.concatenate(self.entry), where), shape=(self.count, width))


def solve(
    cover: Cover, offset: Ints, y: Ints, weight: Floats, pairs: Pairs, nu: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Votes of cells (cells, K) and of the constants (K); the adversary's mass on (cell, y, y') per term, on points.

    ``offset`` tells the terms' cells apart; ``weight`` sums to one.
    """
    k_all, n = pairs.classes, len(y)
    width = 0

    def variables(*shape: int) -> Ints:
        nonlocal width
        block = width + np.arange(int(np.prod(shape))).reshape(shape)
        width += block.size
        return block

    votes, constant = variables(cover.count, k_all), variables(k_all)
    equal, upper = Rows(), Rows()
    total = equal.new(1)
    equal.add(total, constant, 1.0)
    if isinstance(cover, StumpCover):
        _stump_votes(cover.cells, votes, variables, equal, total)
    else:
        mass = variables(len(offset) - 1)
        equal.add(total, mass, 1.0)
        rows = equal.new(cover.count)
        equal.add(rows[:, None], votes, 1.0)
        equal.add(rows, np.repeat(mass, np.diff(offset)), -1.0)
    slack = variables(n if nu > 0 else 0)
    signed = width
    rho = variables(1)
    inside: list[tuple[Ints, int, int]] = []
    owned: list[tuple[Ints, Ints]] = []
    for k in np.unique(y):
        points = np.flatnonzero(y == k)
        groups, place = np.unique(cover.group[points], return_inverse=True)
        place = place.reshape(len(points), -1)
        for other in pairs.others(k):
            least = variables(len(groups))
            lead = variables(cover.count)  # votes_y - votes_y' in each cell, or less
            rows = upper.new(cover.count)
            upper.add(rows, lead, 1.0)
            upper.add(rows, votes[:, k], -1.0)
            upper.add(rows, votes[:, other], 1.0)
            inside.append((rows, int(k), int(other)))
            if isinstance(cover, StumpCover):
                _range_minima(cover.low[groups], cover.high[groups], lead, least, variables, upper)
            else:
                position, cell = cover.members(groups)
                _at_most(upper, least[position], lead[cell])
            rows = upper.new(len(points))
            owned.append((rows, points))
            # rho - xi <= sum of least + constants
            upper.add(rows, rho, 1.0)
            upper.add(rows[:, None], least[place], -1.0)
            upper.add(rows, constant[k], -1.0)
            upper.add(rows, constant[other], 1.0)
            if nu > 0:
                upper.add(rows, slack[points], -1.0)
    objective = np.zeros(width)
    objective[rho] = -1.0
    if nu > 0:
        objective[slack] = weight / nu
    right = np.zeros(equal.count)
    right[total] = 1.0
    low = np.where(np.arange(width) < signed, 0.0, -np.inf)
    result = linprog(
        objective,
        A_ub=upper.matrix(width),
        b_ub=np.zeros(upper.count),
        A_eq=equal.matrix(width),
        b_eq=right,
        bounds=np.stack([low, np.full(width, np.inf)], axis=1),
        method="highs-ipm",
    )
    if result.status != 0:
        raise InputError(f"the linear program was not solved ({result.message}): use solver='smooth' or a larger nu")
    found, constants = np.maximum(result.x[votes], 0.0), np.maximum(result.x[constant], 0.0)
    played = np.zeros((cover.count, k_all, k_all))
    for rows, k, other in inside:
        played[:, k, other] = np.maximum(-result.ineqlin.marginals[rows], 0.0)
    on_points = np.zeros(n)
    for rows, points in owned:
        on_points[points] += np.maximum(-result.ineqlin.marginals[rows], 0.0)
    return found, constants, played, on_points


Variables = Callable[..., Ints]


def _at_most(upper: Rows, small: Ints, large: Ints) -> None:
    rows = upper.new(len(small))
    upper.add(rows, small, 1.0)
    upper.add(rows, large, -1.0)


def _range_minima(low: Ints, high: Ints, lead: Ints, least: Ints, variables: Variables, upper: Rows) -> None:
    """``least`` at most every ``lead`` in its range, by a sparse table of variables: two rows per range instead of one
    per cell."""
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    for k in range(int(level.max()) + 1):
        if k:
            half = 2 ** (k - 1)
            longer = variables(len(lead) - half)
            _at_most(upper, longer, lead[:-half])
            _at_most(upper, longer, lead[half:])
            lead = longer
        here = np.flatnonzero(level == k)
        _at_most(upper, least[here], lead[low[here]])
        if k:
            _at_most(upper, least[here], lead[high[here] - 2**k + 1])


def _stump_votes(cells: Cells, votes: Ints, variables: Variables, equal: Rows, total: Ints) -> None:
    """Votes of cells from the votes left and right of thresholds, which are equally many."""
    inner = np.flatnonzero(~cells.first)  # the cell right of each threshold
    left, right = variables(len(inner), votes.shape[1]), variables(len(inner), votes.shape[1])
    equal.add(total, left, 1.0)
    rows = equal.new(len(inner))
    equal.add(rows[:, None], left, 1.0)
    equal.add(rows[:, None], right, -1.0)
    rows = equal.new(left.size).reshape(left.shape)  # votes step by right - left at a threshold
    equal.add(rows, votes[inner], 1.0)
    equal.add(rows, votes[inner - 1], -1.0)
    equal.add(rows, right, -1.0)
    equal.add(rows, left, 1.0)
    leftmost = np.flatnonzero(cells.first)  # where every stump of the column votes left
    rows = equal.new(len(leftmost) * votes.shape[1]).reshape(len(leftmost), -1)
    equal.add(rows, votes[leftmost], 1.0)
    column = np.repeat(np.arange(len(leftmost)), np.diff(cells.offset) - 1)
    equal.add(rows[column], left, -1.0)
