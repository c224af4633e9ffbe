"""The training set as the solvers see it: distinct rows with weights, and the cells that each
row's ball meets in each term (a column's stumps, or a tree).

Points whose balls meet the same cells of a term form a group, so that minima are taken once per
group and not once per point. This is all that the solvers know of the table's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy import sparse

from .cells import Cells, Floats, Ints, range_minima
from .models import Pairs, Tree


@dataclass(frozen=True)
class Table:
    """Distinct rows with weights that sum to one: a row that is there twice is the same as a row of
    weight 2.

    Attributes:
        eps: the radius of the ball, per column.
        points: how many rows of the given table these stand for.
    """

    X: Floats
    y: Ints
    weight: Floats
    eps: Floats
    classes: int
    points: float

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs(self.classes)

    @staticmethod
    def merged(X: Floats, y: Ints, weight: Floats, eps: Floats, classes: int) -> Table:
        """Equal rows of equal class put together, and rows of weight 0 left out."""
        kept = weight > 0
        rows, index = np.unique(np.column_stack([y, X])[kept], axis=0, return_inverse=True)
        total = np.bincount(index.ravel(), weight[kept])
        points = max(float(len(rows)), float(total.sum()))
        X, y = np.ascontiguousarray(rows[:, 1:]), rows[:, 0].astype(np.intp)
        return Table(X, y, total / total.sum(), eps, classes, points)

    def part(self, rows: Ints) -> Table:
        """Some of the rows, as a table of its own."""
        share = self.weight[rows]
        points = max(float(len(rows)), self.points * float(share.sum()))
        weight = share / share.sum()
        return replace(self, X=self.X[rows], y=self.y[rows], weight=weight, points=points)


@dataclass(frozen=True)
class Cover:
    """Which points belong to which groups, and the cells of each group.

    Attributes:
        group: the group of each point in each term, (n, terms).
        start: where the cells of each group begin in ``cells_of``.
        size: how many cells each group has.
        cells_of: the cells of the groups.
        count: how many cells there are.
    """

    group: Ints
    start: Ints
    size: Ints
    cells_of: Ints
    count: int

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """(points, groups): ones where a point belongs to a group."""
        n, terms = self.group.shape
        rows = np.arange(0, n * terms + 1, terms)
        entries = (np.ones(n * terms), self.group.ravel(), rows)
        return sparse.csr_array(entries, shape=(n, len(self.start)))

    def part(self, rows: Ints) -> Self:
        """The cover of some of the points, with only their groups."""
        used, group = np.unique(self.group[rows], return_inverse=True)
        group = group.reshape(len(rows), -1)
        return replace(self, group=group, start=self.start[used], size=self.size[used])

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """(position in ``groups``, cell) of every cell of those groups."""
        start, size = self.start[groups], self.size[groups]
        position = np.repeat(np.arange(len(groups)), size)
        place = np.arange(size.sum()) + np.repeat(start - np.cumsum(size) + size, size)
        return position, self.cells_of[place]

    def share(self, mass: Floats) -> Floats:
        """The mass on each cell if every group's is spread evenly over its cells."""
        position, cell = self.members(np.arange(len(self.start)))
        return np.bincount(cell, (mass / self.size)[position], self.count).astype(np.float64)

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        """The least of ``values`` (cells, …) in each group, and its cell."""
        raise NotImplementedError

    def expand(self, parameters: Floats) -> Floats:
        """Values of cells from the parameters that "smooth" penalises: the same, but for stumps."""
        return parameters

    def fold(self, gradient: Floats) -> Floats:
        """The transpose of ``expand``."""
        return gradient


@dataclass(frozen=True)
class StumpCover(Cover):
    """A group's cells are a range of a column."""

    cells: Cells

    @staticmethod
    def of(cells: Cells, X: Floats, eps: Floats) -> StumpCover:
        low, high = cells.reach(X, eps)
        keys, group = np.unique(low * cells.count + high, return_inverse=True)
        start, last = keys // cells.count, keys % cells.count
        everything = np.arange(cells.count)
        return StumpCover(
            group.reshape(X.shape), start, last - start + 1, everything, cells.count, cells
        )

    @property
    def last(self) -> Ints:
        return self.start + self.size - 1

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        return range_minima(values, self.start, self.last)

    def expand(self, parameters: Floats) -> Floats:
        """Parameters are the jumps at thresholds; the leftmost cell of each column has value 0."""
        return self.cells.cumulative(np.where(self.cells.first[:, None], 0.0, parameters))

    def fold(self, gradient: Floats) -> Floats:
        return np.where(self.cells.first[:, None], 0.0, self.cells.sums_to_right(gradient))


@dataclass(frozen=True)
class TreeCover(Cover):
    leaves: Ints  # of each tree

    @staticmethod
    def of(trees: tuple[Tree, ...], X: Floats, eps: Floats) -> TreeCover:
        group, members, sizes = [], [], [np.arange(0)]
        groups = cells = 0
        for tree in trees:
            rows, leaves = tree.routes(X, eps)
            met = np.zeros((len(X), tree.leaves), dtype=bool)
            met[rows, leaves] = True
            packed, index = np.unique(np.packbits(met, axis=1), axis=0, return_inverse=True)
            sets = np.unpackbits(packed, axis=1, count=tree.leaves)
            group.append(index.ravel() + groups)
            members.append(np.nonzero(sets)[1] + cells)
            sizes.append(sets.sum(axis=1, dtype=np.intp))
            groups, cells = groups + len(sets), cells + tree.leaves
        size = np.concatenate(sizes)
        start = np.cumsum(size) - size
        leaves = np.array([tree.leaves for tree in trees])
        return TreeCover(
            np.stack(group, axis=1), start, size, np.concatenate(members), cells, leaves
        )

    @cached_property
    def rounds(self) -> list[tuple[Ints, Ints]]:
        """For c = 1, 2, …: the groups of more than c cells, and cell number c of each."""
        longer = [np.flatnonzero(self.size > c) for c in range(1, int(self.size.max()))]
        cells = [self.cells_of[self.start[groups] + c] for c, groups in enumerate(longer, 1)]
        return list(zip(longer, cells, strict=True))

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        where = np.repeat(self.cells_of[self.start, None], values.shape[1], axis=1)
        least = values[where[:, 0]]
        for groups, cells in self.rounds:
            found, best = values[cells], least[groups]
            smaller = found < best
            least[groups] = np.where(smaller, found, best)
            where[groups] = np.where(smaller, cells[:, None], where[groups])
        return least, where
