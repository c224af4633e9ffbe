"""What the adversary can do on the training set: for each point and each term, the cells within its reach.

Points that reach the same cells of a term form a group, so minima are taken once per group: a column of c cells has at
most 2 c groups, whatever the number of points. Solvers see nothing else of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from .cells import Cells, Floats, Ints, range_minima
from .models import Tree


@dataclass(frozen=True)
class Cover:
    """``group`` (n, terms): the group of each point in each term. Subclasses know the groups' cells."""

    group: Ints
    groups: int
    count: int  # of cells

    def incidence(self, rows: Ints) -> sparse.csr_array:
        """(rows, groups): ones where a point belongs to a group."""
        n, terms = len(rows), self.group.shape[1]
        return sparse.csr_array(
            (np.ones(n * terms), self.group[rows].ravel(), np.arange(0, n * terms + 1, terms)), shape=(n, self.groups)
        )

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        """Least row of ``values`` (cells, …) in each group, and its cell."""
        raise NotImplementedError

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """(position in ``groups``, cell) of every cell of those groups."""
        raise NotImplementedError

    def share(self, mass: Floats) -> Floats:
        """What each cell gets if every group shares its mass evenly among its cells."""
        position, cell = self.members(np.arange(self.groups))
        size = np.bincount(position, minlength=self.groups)
        return np.bincount(cell, (mass / size)[position], self.count).astype(np.float64)

    def expand(self, parameters: Floats) -> Floats:
        """Values of cells from the parameters that the smooth objective shrinks."""
        raise NotImplementedError

    def fold(self, gradient: Floats) -> Floats:
        """The transpose of ``expand``."""
        raise NotImplementedError


@dataclass(frozen=True)
class StumpCover(Cover):
    cells: Cells
    low: Ints
    high: Ints

    @staticmethod
    def of(cells: Cells, X: Floats, eps: Floats) -> StumpCover:
        low, high = cells.reach(X, eps)
        keys, group = np.unique(low * cells.count + high, return_inverse=True)
        return StumpCover(
            group.reshape(low.shape), len(keys), cells.count, cells, keys // cells.count, keys % cells.count
        )

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        return range_minima(values, self.low, self.high)

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        low, size = self.low[groups], self.high[groups] - self.low[groups] + 1
        within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        return np.repeat(np.arange(len(groups)), size), np.repeat(low, size) + within

    def expand(self, parameters: Floats) -> Floats:
        """Parameters are the jumps at thresholds; a column's leftmost cell is 0, the bias does the rest."""
        return self.cells.running(np.where(self.cells.first[:, None], 0.0, parameters))

    def fold(self, gradient: Floats) -> Floats:
        return np.where(self.cells.first[:, None], 0.0, self.cells.tails(gradient))


@dataclass(frozen=True)
class TreeCover(Cover):
    table: Ints  # (groups, most cells), the last cell repeated
    size: Ints

    @staticmethod
    def of(trees: tuple[Tree, ...], X: Floats, eps: Floats) -> TreeCover:
        group: list[Ints] = []
        lists: list[Ints] = []
        start = 0
        for tree in trees:
            rows, leaves = tree.routes(X, eps)
            met = np.zeros((len(X), tree.leaves), dtype=bool)
            met[rows, leaves] = True
            sets, index = np.unique(np.packbits(met, axis=1), axis=0, return_inverse=True)
            group.append(index.ravel() + len(lists))
            lists += [start + np.flatnonzero(row) for row in np.unpackbits(sets, axis=1, count=tree.leaves)]
            start += tree.leaves
        size = np.array([len(cells) for cells in lists])
        table = np.stack([np.pad(cells, (0, size.max() - len(cells)), mode="edge") for cells in lists])
        return TreeCover(np.stack(group, axis=1), len(lists), start, table, size)

    @cached_property
    def order(self) -> Ints:
        return np.arange(self.groups)

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        found = values[self.table]
        which = found.argmin(axis=1)
        return np.take_along_axis(found, which[:, None], axis=1)[:, 0], self.table[self.order[:, None], which]

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        return np.repeat(np.arange(len(groups)), self.size[groups]), np.concatenate(
            [self.table[g, : self.size[g]] for g in groups]
        )

    def expand(self, parameters: Floats) -> Floats:
        return parameters

    def fold(self, gradient: Floats) -> Floats:
        return gradient
