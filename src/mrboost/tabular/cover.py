"""The cells that each training point's ball meets in each term (a column's stumps, or a tree).

Points whose balls meet the same cells of a term form a group, so that minima are taken once per
group: a column of c cells has at most 2 c groups, whatever the number of points. This is all that
the solvers know of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from .cells import Cells, Floats, Ints, range_minima
from .models import Tree


@dataclass(frozen=True)
class Cover:
    """``group`` (n, terms) is the group of each point in each term; subclasses know the groups'
    cells."""

    group: Ints
    groups: int
    count: int  # of cells

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """(points, groups): ones where a point belongs to a group."""
        n, terms = self.group.shape
        return sparse.csr_array(
            (np.ones(n * terms), self.group.ravel(), np.arange(0, n * terms + 1, terms)),
            shape=(n, self.groups),
        )

    def part(self, rows: Ints) -> Self:
        """The cover of some of the points, with only their groups."""
        used, group = np.unique(self.group[rows], return_inverse=True)
        return replace(
            self, group=group.reshape(len(rows), -1), groups=len(used), **self._of_groups(used)
        )

    def _of_groups(self, groups: Ints) -> dict[str, Any]:
        raise NotImplementedError

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        """The least of ``values`` (cells, …) in each group, and its cell."""
        raise NotImplementedError

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """(position in ``groups``, cell) of every cell of those groups."""
        raise NotImplementedError

    def share(self, mass: Floats) -> Floats:
        """For each cell its part of the groups' mass, which each shares evenly among its cells."""
        position, cell = self.members(np.arange(self.groups))
        size = np.bincount(position, minlength=self.groups)
        return np.bincount(cell, (mass / size)[position], self.count).astype(np.float64)

    def expand(self, parameters: Floats) -> Floats:
        """Values of cells from the parameters that the smooth objective penalises; for trees they
        are the same."""
        return parameters

    def fold(self, gradient: Floats) -> Floats:
        """The transpose of ``expand``."""
        return gradient


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
            group.reshape(low.shape),
            len(keys),
            cells.count,
            cells,
            keys // cells.count,
            keys % cells.count,
        )

    def _of_groups(self, groups: Ints) -> dict[str, Any]:
        return {"low": self.low[groups], "high": self.high[groups]}

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        return range_minima(values, self.low, self.high)

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        return _ranges(self.low[groups], self.high[groups] - self.low[groups] + 1)

    def expand(self, parameters: Floats) -> Floats:
        """Parameters are the jumps at thresholds; the leftmost cell of each column has value 0."""
        return self.cells.cumulative(np.where(self.cells.first[:, None], 0.0, parameters))

    def fold(self, gradient: Floats) -> Floats:
        return np.where(self.cells.first[:, None], 0.0, self.cells.sums_to_right(gradient))


@dataclass(frozen=True)
class TreeCover(Cover):
    flat: Ints  # the cells of all groups
    start: Ints
    size: Ints

    @staticmethod
    def of(trees: tuple[Tree, ...], X: Floats, eps: Floats) -> TreeCover:
        group, flat, sizes = [], [], [np.arange(0)]
        groups = cells = 0
        for tree in trees:
            rows, leaves = tree.routes(X, eps)
            met = np.zeros((len(X), tree.leaves), dtype=bool)
            met[rows, leaves] = True
            packed, index = np.unique(np.packbits(met, axis=1), axis=0, return_inverse=True)
            sets = np.unpackbits(packed, axis=1, count=tree.leaves)
            group.append(index.ravel() + groups)
            flat.append(np.nonzero(sets)[1] + cells)
            sizes.append(sets.sum(axis=1, dtype=np.intp))
            groups, cells = groups + len(sets), cells + tree.leaves
        size = np.concatenate(sizes)
        return TreeCover(
            np.stack(group, axis=1),
            groups,
            cells,
            np.concatenate(flat),
            np.cumsum(size) - size,
            size,
        )

    def _of_groups(self, groups: Ints) -> dict[str, Any]:
        return {"start": self.start[groups], "size": self.size[groups]}

    @cached_property
    def rounds(self) -> list[tuple[Ints, Ints]]:
        """For c = 1, 2, …: the groups of more than c cells, and the next cell of each."""
        longer = [np.flatnonzero(self.size > c) for c in range(1, int(self.size.max()))]
        return [(groups, self.flat[self.start[groups] + c]) for c, groups in enumerate(longer, 1)]

    def minima(self, values: Floats) -> tuple[Floats, Ints]:
        where = np.repeat(self.flat[self.start, None], values.shape[1], axis=1)
        least = values[where[:, 0]]
        for groups, cells in self.rounds:
            found, best = values[cells], least[groups]
            smaller = found < best
            least[groups] = np.where(smaller, found, best)
            where[groups] = np.where(smaller, cells[:, None], where[groups])
        return least, where

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        position, place = _ranges(self.start[groups], self.size[groups])
        return position, self.flat[place]


def _ranges(start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """(range, number) of every number of the ranges that begin at ``start``."""
    which = np.repeat(np.arange(len(start)), size)
    return which, np.arange(size.sum()) + np.repeat(start - np.cumsum(size) + size, size)
