"""Robust trees, grown greedily: each split minimises the Gini impurity

    1 - (sum_k left_k^2 / left + sum_k right_k^2 / right) / (left + right),

where a point whose ball holds the threshold is counted on both sides, so that a split that many
points straddle scores badly. Trees are grown on columns drawn at random and on random weights of
the points, as in random forests (Breiman 2001). With several classes each tree is grown on two of
them, because scores are those of pairs. The scores of the leaves are found afterwards, for all
trees and pairs together (``smooth.py``, ``lp.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from .cells import Cells, Floats, Ints
from .cover import Table
from .models import Tree

MIN_SIDE = 2.0  # points of average weight that are certainly on each side of a split


@dataclass
class _Grower:
    """Grows one tree; ``low`` and ``high`` are the first and last cells that each point's ball
    meets, ``columns`` is how many are drawn for a split."""

    cells: Cells
    low: Ints
    high: Ints
    table: Table
    columns: int
    random: np.random.Generator
    nodes: list[tuple[int, float, int, int]] = field(default_factory=list)
    leaves: int = 0

    def grow(self, depth: int) -> Tree:
        offset = self.cells.offset
        self.build(np.flatnonzero(self.table.weight > 0), depth, offset[:-1], offset[1:] - 1)
        feature, threshold, left, right = map(np.array, zip(*self.nodes, strict=True))
        return Tree(feature, threshold, left, right)

    def build(self, rows: Ints, levels: int, first: Ints, last: Ints) -> int:
        """Add a node, and those below it, for these points in the box of cells ``first..last``.
        Returns its number."""
        number = len(self.nodes)
        self.nodes.append((-1, 0.0, self.leaves, -1))
        mixed = len(np.unique(self.table.y[rows])) > 1
        cut = self.split(rows, first, last) if levels and mixed else None
        if cut is None:
            self.leaves += 1
            return number
        j, cell = cut
        left_last = last.copy()
        left_last[j] = cell
        right_first = first.copy()
        right_first[j] = cell + 1
        left = self.build(rows[self.low[rows, j] <= cell], levels - 1, first, left_last)
        right = self.build(rows[self.high[rows, j] > cell], levels - 1, right_first, last)
        threshold = self.cells.thresholds[j][cell - self.cells.offset[j]]
        self.nodes[number] = (j, float(threshold), left, right)
        return number

    def split(self, rows: Ints, first: Ints, last: Ints) -> tuple[int, int] | None:
        """The column and the cell behind which to split, if that makes the node purer."""
        drawn = self.random.permutation(len(first))[: self.columns]
        table = self.table
        mass = np.bincount(table.y[rows], table.weight[rows], table.classes)
        # Points that can be at or left of each cell, and those that can be right of it
        left = self._counted(self.low, rows, drawn, first, last)
        right = mass - self._counted(self.high, rows, drawn, first, last)
        at_left = left.sum(axis=2)
        at_right = right.sum(axis=2)
        certain = mass.sum() - np.maximum(at_left, at_right)  # on the side that has less of it
        cut = np.arange(left.shape[1]) + self.cells.offset[drawn, None]
        allowed = (cut >= first[drawn, None]) & (cut < last[drawn, None])
        allowed &= certain >= MIN_SIDE / table.points
        with np.errstate(divide="ignore", invalid="ignore"):
            pure = (left**2).sum(axis=2) / at_left + (right**2).sum(axis=2) / at_right
            impurity = 1 - pure / (at_left + at_right)
        impurity = np.where(allowed, impurity, np.inf)
        best = int(impurity.argmin())
        before = 1 - (mass**2).sum() / mass.sum() ** 2
        if not impurity.flat[best] < before * 0.999:
            return None
        return int(drawn[best // left.shape[1]]), int(cut.flat[best])

    def _counted(self, ends: Ints, rows: Ints, drawn: Ints, first: Ints, last: Ints) -> Floats:
        """(columns, cells, classes): the weight of the points whose end (``low`` or ``high``) lies
        in this cell of the column or left of it."""
        # Ends beyond the box are counted at its edges, so that each split inside counts all points.
        cell = np.clip(ends[rows][:, drawn], first[drawn], last[drawn]) - self.cells.offset[drawn]
        table = self.table
        shape = (len(drawn), int(np.diff(self.cells.offset).max()), table.classes)
        place = (np.arange(len(drawn)) * shape[1] + cell) * table.classes + table.y[rows, None]
        weights = np.repeat(table.weight[rows], len(drawn))
        counts = np.bincount(place.ravel(), weights, math.prod(shape)).reshape(shape)
        return np.asarray(counts.cumsum(axis=1))


def grow_forest(
    cells: Cells,
    table: Table,
    *,
    seed: int,
    numbers: Ints,
    depth: int,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Tree, ...]:
    """Grow trees on random weights of the points (the smooth bootstrap), with the square root of
    the columns at each split, and the pairs of classes by turns.

    Args:
        cells: where trees may split.
        seed: of the random draws.
        numbers: which trees to grow; tree t is the same whatever the others are.
        depth: splits on a path, at most.
        tick: called after each tree.
    """
    y = table.y
    low, high = cells.reach(table.X, table.eps)
    pairs = np.array(list(combinations(np.unique(y[table.weight > 0]), 2)))
    pairs = np.random.default_rng(seed).permutation(pairs)
    columns = math.isqrt(table.X.shape[1]) + 1
    trees = []
    for t in numbers:
        random = np.random.default_rng((seed, t))
        seen = np.where(np.isin(y, pairs[t % len(pairs)]), table.weight, 0.0)
        drawn = seen * random.exponential(size=len(y))
        points = table.points * float(seen.sum() / table.weight.sum())
        of_pair = replace(table, weight=drawn / drawn.sum(), points=points)
        trees.append(_Grower(cells, low, high, of_pair, columns, random).grow(depth))
        tick()
    return tuple(trees)
