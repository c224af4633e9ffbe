"""Trees that are robust split by split.

A point whose ball holds a threshold goes to both sides, so a split that many points straddle is
seen as the bad one it is. Trees are grown on columns drawn at random and on random weights of the
points, as forests are. Of several classes a tree sees two: scores are of pairs, and what sets one
pair apart is lost in a split that shall serve them all. The leaves' scores are found afterwards,
for all trees and pairs together (``smooth.py``, ``lp.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from .cells import Cells, Floats, Ints
from .models import Tree

LEAST = 2.0  # points of average weight that must be on each side for certain


@dataclass
class _Grower:
    """One tree on the thresholds of ``cells``; ``low`` and ``high`` are the cells that
    each point's ball meets."""

    cells: Cells
    low: Ints
    high: Ints
    y: Ints
    weight: Floats
    classes: int
    columns: int
    points: float
    random: np.random.Generator
    nodes: list[tuple[int, float, int, int]] = field(default_factory=list)
    leaves: int = 0

    def grow(self, depth: int) -> Tree:
        offset = self.cells.offset
        self.build(np.flatnonzero(self.weight > 0), depth, offset[:-1].copy(), offset[1:] - 1)
        feature, threshold, left, right = zip(*self.nodes, strict=True)
        return Tree(
            np.array(feature),
            np.array(threshold, dtype=np.float64),
            np.array(left),
            np.array(right),
        )

    def build(self, rows: Ints, levels: int, first: Ints, last: Ints) -> int:
        """The number of a new node for these points, in the box of cells ``first..last``."""
        me = len(self.nodes)
        self.nodes.append((-1, 0.0, self.leaves, -1))
        cut = self.split(rows, first, last) if levels and len(np.unique(self.y[rows])) > 1 else None
        if cut is None:
            self.leaves += 1
            return me
        j, cell = cut
        until, since = last.copy(), first.copy()
        until[j], since[j] = cell, cell + 1
        left = self.build(rows[self.low[rows, j] <= cell], levels - 1, first, until)
        right = self.build(rows[self.high[rows, j] > cell], levels - 1, since, last)
        threshold = self.cells.thresholds[j][cell - self.cells.offset[j]]
        self.nodes[me] = (j, float(threshold), left, right)
        return me

    def split(self, rows: Ints, first: Ints, last: Ints) -> tuple[int, int] | None:
        """The column and cell to cut behind, if that makes the node purer."""
        drawn = self.random.permutation(len(first))[: self.columns]
        mass = np.bincount(self.y[rows], self.weight[rows], self.classes)
        # Points that can be at or left of each cell
        left = self._counted(self.low, rows, drawn, first, last)
        # Points that can be right of it
        right = mass - self._counted(self.high, rows, drawn, first, last)
        at_left, at_right = left.sum(axis=2), right.sum(axis=2)
        sure_left, sure_right = mass.sum() - at_right, mass.sum() - at_left
        cut = np.arange(left.shape[1]) + self.cells.offset[drawn, None]
        allowed = (cut >= first[drawn, None]) & (cut < last[drawn, None])
        allowed &= (sure_left >= LEAST / self.points) & (sure_right >= LEAST / self.points)
        with np.errstate(divide="ignore", invalid="ignore"):
            both = at_left + at_right
            impurity = (
                1 - ((left**2).sum(axis=2) / at_left + (right**2).sum(axis=2) / at_right) / both
            )
        impurity = np.where(allowed, impurity, np.inf)
        best = int(impurity.argmin())
        before = 1 - (mass**2).sum() / mass.sum() ** 2
        if not impurity.flat[best] < before * 0.999:
            return None
        return int(drawn[best // left.shape[1]]), int(cut.flat[best])

    def _counted(self, ends: Ints, rows: Ints, drawn: Ints, first: Ints, last: Ints) -> Floats:
        """(columns, cells, classes): the weight of the points whose end lies in a
        column's first cells."""
        # Ends beyond the box are counted at its edges, so that every cut inside
        # it sees every point.
        cell = np.clip(ends[rows][:, drawn], first[drawn], last[drawn]) - self.cells.offset[drawn]
        shape = (len(drawn), int(np.diff(self.cells.offset).max()), self.classes)
        place = (np.arange(len(drawn)) * shape[1] + cell) * self.classes + self.y[rows, None]
        weights = np.repeat(self.weight[rows], len(drawn))
        counts = np.bincount(place.ravel(), weights, math.prod(shape)).reshape(shape)
        return np.asarray(counts.cumsum(axis=1))


def grow_forest(
    cells: Cells,
    X: Floats,
    y: Ints,
    weight: Floats,
    eps: Floats,
    classes: int,
    *,
    seed: int,
    numbers: Ints,
    depth: int,
    points: float,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Tree, ...]:
    """The trees of these numbers: random weights (the smooth bootstrap), the square root of the
    columns at each split, and the pairs of classes by turns."""
    reach, columns, out = cells.reach(X, eps), math.isqrt(X.shape[1]) + 1, []
    pairs = np.array(list(combinations(np.unique(y[weight > 0]), 2)))
    pairs = np.random.default_rng(seed).permutation(pairs)
    for t in numbers:
        random = np.random.default_rng((seed, t))
        seen = np.where(np.isin(y, pairs[t % len(pairs)]), weight, 0.0)
        drawn = seen * random.exponential(size=len(y))
        share = points * float(seen.sum() / weight.sum())
        out.append(
            _Grower(cells, *reach, y, drawn / drawn.sum(), classes, columns, share, random).grow(
                depth
            )
        )
        tick()
    return tuple(out)
