"""The value of the game, and both players' optimal strategies, by one linear program:

    maximise  rho - Σ_i w_i xi_i / nu
    such that Σ_terms min_{cells in reach} (votes_y - votes_y') >= rho - xi_i,  xi >= 0.

The classifiers are the stumps of all useful thresholds with any two labels (or the given trees with
any labels at their leaves) and the constants. A mixture Q is described by its weight per threshold
and class, left and right; the votes of a cell are linear in it. The adversary's moves, a cell for
each term, are exponentially many, but each term has its least cell on its own: one variable per
group of points, and the rows are about as many as cells and groups.

nu = 0 leaves xi out: the game of Algorithm 1. With nu > 0 the adversary may put at most w_i / nu on
point i, and the value is the mean margin of the worst fraction nu of the points, as in nu-LPBoost
(Demiriz, Bennett and Shawe-Taylor 2002).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.optimize import OptimizeResult, linprog

from mrboost.errors import InputError

from .cells import Cells, Floats, Ints
from .cover import Cover, StumpCover, Table, TreeCover


@dataclass
class Rows:
    """A sparse matrix that is built row by row."""

    count: int = 0
    row: list[Ints] = field(default_factory=list)
    column: list[Ints] = field(default_factory=list)
    entry: list[Floats] = field(default_factory=list)

    def new(self, n: int, *terms: tuple[Ints, float]) -> Ints:
        """n more rows; a term is a column for each row, or several, and their entry."""
        rows = np.arange(self.count, self.count + n)
        self.count += n
        for columns, entry in terms:
            self.add(rows[:, None], columns if np.ndim(columns) == 2 else columns[:, None], entry)
        return rows

    def add(self, row: Ints, column: Ints, entry: float) -> None:
        row, column = np.broadcast_arrays(row, column)
        self.row.append(row.ravel())
        self.column.append(column.ravel())
        self.entry.append(np.full(row.size, entry))

    def matrix(self, width: int) -> sparse.csr_array:
        where = (np.concatenate(self.row), np.concatenate(self.column))
        return sparse.csr_array((np.concatenate(self.entry), where), shape=(self.count, width))


@dataclass
class Programme:
    """A linear program that is built variable by variable; ``total`` is the row that says that all
    weights sum to one."""

    width: int = 0
    equal: Rows = field(default_factory=Rows)
    upper: Rows = field(default_factory=Rows)

    def __post_init__(self) -> None:
        self.total = self.equal.new(1)

    def variables(self, *shape: int) -> Ints:
        block = self.width + np.arange(int(np.prod(shape))).reshape(shape)
        self.width += block.size
        return block

    def at_most(self, small: Ints, large: Ints) -> None:
        self.upper.new(len(small), (small, 1.0), (large, -1.0))

    def solve(self, objective: Floats, signed: int) -> OptimizeResult:
        """Minimise ``objective``; variables before number ``signed`` are not negative."""
        low = np.where(np.arange(self.width) < signed, 0.0, -np.inf)
        result = linprog(
            objective,
            A_ub=self.upper.matrix(self.width),
            b_ub=np.zeros(self.upper.count),
            A_eq=self.equal.matrix(self.width),
            b_eq=(np.arange(self.equal.count) == self.total).astype(np.float64),
            bounds=np.stack([low, np.full(self.width, np.inf)], axis=1),
            method="highs-ipm",
        )
        if result.status != 0:
            remedy = "use solver='smooth' or a larger nu"
            raise InputError(f"the linear program was not solved ({result.message}): {remedy}")
        return result


def solve(cover: Cover, table: Table, nu: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Solve the game.

    Args:
        cover: the cells in reach of each point of the table.
        table: the points.
        nu: as above.

    Returns:
        Votes of cells (cells, K), votes of the constants (K), the adversary's mass on (cell, y, y')
        in each term, and its mass on the points.
    """
    y, pairs = table.y, table.pairs
    lp = Programme()
    votes, constant = lp.variables(cover.count, pairs.classes), lp.variables(pairs.classes)
    lp.equal.add(lp.total, constant, 1.0)
    if isinstance(cover, StumpCover):
        _stump_votes(lp, cover.cells, votes)
    elif isinstance(cover, TreeCover):  # every leaf of a tree votes with the tree's weight
        of_tree = lp.variables(len(cover.leaves))
        lp.equal.add(lp.total, of_tree, 1.0)
        lp.equal.new(cover.count, (votes, 1.0), (np.repeat(of_tree, cover.leaves), -1.0))
    slack = lp.variables(len(y) if nu > 0 else 0)
    rho = lp.variables(1)
    cell_rows, point_rows = [], []
    for k, other in ((a, b) for a in np.unique(y) for b in pairs.others(a)):
        points = np.flatnonzero(y == k)
        bounds, least = _margins(lp, cover, points, votes[:, [k, other]])
        cell_rows.append((bounds, k, other))
        # rho - xi <= sum of least + constants
        terms = [(rho, 1.0), (least, -1.0), (constant[[k]], -1.0), (constant[[other]], 1.0)]
        if nu > 0:
            terms.append((slack[points], -1.0))
        point_rows.append((lp.upper.new(len(points), *terms), points))
    objective = np.zeros(lp.width)
    objective[rho] = -1.0
    if nu > 0:
        objective[slack] = table.weight / nu
    result = lp.solve(objective, signed=int(rho[0]))
    mass = np.maximum(-result.ineqlin.marginals, 0.0)
    played = np.zeros((cover.count, pairs.classes, pairs.classes))
    for bounds, k, other in cell_rows:
        played[:, k, other] = mass[bounds]
    on_points = np.zeros(len(y))
    for rows, points in point_rows:
        on_points[points] += mass[rows]
    return np.maximum(result.x[votes], 0.0), np.maximum(result.x[constant], 0.0), played, on_points


def _margins(lp: Programme, cover: Cover, points: Ints, votes: Ints) -> tuple[Ints, Ints]:
    """Variables (points, terms) for the least of votes_y - votes_y' (the two columns of ``votes``)
    in each term, and the rows that bound the difference in each cell."""
    groups, place = np.unique(cover.group[points], return_inverse=True)
    least, gap = lp.variables(len(groups)), lp.variables(cover.count)
    rows = lp.upper.new(cover.count, (gap, 1.0), (votes[:, 0], -1.0), (votes[:, 1], 1.0))
    if isinstance(cover, StumpCover):
        _range_minima(lp, cover.start[groups], cover.last[groups], gap, least)
    else:
        position, cell = cover.members(groups)
        lp.at_most(least[position], gap[cell])
    return rows, least[place.reshape(len(points), -1)]


def _range_minima(lp: Programme, low: Ints, high: Ints, gap: Ints, least: Ints) -> None:
    """``least`` at most every ``gap`` in its range, by a sparse table of variables: two rows per
    range instead of one per cell."""
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    for k in range(int(level.max()) + 1):
        if k:
            half = 2 ** (k - 1)
            longer = lp.variables(len(gap) - half)
            lp.at_most(longer, gap[:-half])
            lp.at_most(longer, gap[half:])
            gap = longer
        here = np.flatnonzero(level == k)
        lp.at_most(least[here], gap[low[here]])
        if k:
            lp.at_most(least[here], gap[high[here] - 2**k + 1])


def _stump_votes(lp: Programme, cells: Cells, votes: Ints) -> None:
    """Votes of cells from the votes left and right of thresholds, which are equally many."""
    inner = np.flatnonzero(~cells.first)  # the cell right of each threshold
    left, right = lp.variables(len(inner), votes.shape[1]), lp.variables(len(inner), votes.shape[1])
    lp.equal.add(lp.total, left, 1.0)
    lp.equal.new(len(inner), (left, 1.0), (right, -1.0))
    # Votes step by right - left at a threshold
    steps = (votes[inner], 1.0), (votes[inner - 1], -1.0), (right, -1.0), (left, 1.0)
    lp.equal.new(left.size, *((variables.ravel(), entry) for variables, entry in steps))
    leftmost = votes[cells.first]  # where every stump of the column votes left
    rows = lp.equal.new(leftmost.size, (leftmost.ravel(), 1.0)).reshape(leftmost.shape)
    column = np.repeat(np.arange(len(leftmost)), np.diff(cells.offset) - 1)
    lp.equal.add(rows[column], left, -1.0)
