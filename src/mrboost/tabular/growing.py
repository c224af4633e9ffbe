"""Trees that are robust split by split.

A point whose ball holds a threshold goes to both sides, so a split that many points straddle is seen as the bad one it
is. Trees are grown on columns drawn at random and on random weights of the points, as forests are. Of several classes a
tree sees two: scores are of pairs, and what sets one pair apart is lost in a split that shall serve them all. The
leaves' scores are found afterwards, for all trees and pairs together (``smooth.py``, ``lp.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np

from .cells import Cells, Floats, Ints
from .models import Tree

LEAST = 2.0  # points of average weight that must be on each side for certain


def grow(
    cells: Cells,
    reach: tuple[Ints, Ints],
    y: Ints,
    weight: Floats,
    classes: int,
    *,
    depth: int,
    columns: int,
    points: float,
    random: np.random.Generator,
) -> Tree:
    """One tree on the thresholds of ``cells``; ``reach`` holds the cells that each point's ball meets."""
    low, high = reach
    widest = int(np.diff(cells.offset).max())
    nodes: list[tuple[int, float, int, int]] = []
    leaves = 0

    def split(rows: Ints, first: Ints, last: Ints) -> tuple[int, int] | None:
        """The column and cell to cut behind, among cells ``first..last`` of the node's box."""
        drawn = random.permutation(len(first))[:columns]
        labels, w = y[rows], weight[rows]
        mass = np.bincount(labels, w, classes)
        # Cells beyond the box are counted at its edges, so that every cut inside it sees every point.
        a = np.clip(low[rows][:, drawn], first[drawn], last[drawn]) - cells.offset[drawn]
        b = np.clip(high[rows][:, drawn], first[drawn], last[drawn]) - cells.offset[drawn]
        place = np.arange(len(drawn)) * widest
        shape, size = (len(drawn), widest, classes), len(drawn) * widest * classes
        repeated = np.repeat(w, len(drawn))
        starts = np.bincount(((place + a) * classes + labels[:, None]).ravel(), repeated, size).reshape(shape)
        ends = np.bincount(((place + b) * classes + labels[:, None]).ravel(), repeated, size).reshape(shape)
        left = starts.cumsum(axis=1)  # points that can be at or left of each cell
        right = mass - ends.cumsum(axis=1)  # points that can be right of it
        at_left, at_right = left.sum(axis=2), right.sum(axis=2)
        sure_left, sure_right = mass.sum() - at_right, mass.sum() - at_left
        cut = np.arange(widest) + cells.offset[drawn, None]
        allowed = (cut >= first[drawn, None]) & (cut < last[drawn, None])
        allowed &= (sure_left >= LEAST / points) & (sure_right >= LEAST / points)
        with np.errstate(divide="ignore", invalid="ignore"):
            both = at_left + at_right
            impurity = 1 - ((left**2).sum(axis=2) / at_left + (right**2).sum(axis=2) / at_right) / both
        impurity = np.where(allowed, impurity, np.inf)
        best = int(impurity.argmin())
        before = 1 - (mass**2).sum() / mass.sum() ** 2
        if not impurity.flat[best] < before * 0.999:
            return None
        j = int(drawn[best // widest])
        return j, int(cells.offset[j]) + best % widest

    def build(rows: Ints, levels: int, first: Ints, last: Ints) -> int:
        nonlocal leaves
        me = len(nodes)
        nodes.append((-1, 0.0, leaves, -1))
        cut = split(rows, first, last) if levels and len(np.unique(y[rows])) > 1 else None
        if cut is None:
            leaves += 1
            return me
        j, cell = cut
        until, since = last.copy(), first.copy()
        until[j], since[j] = cell, cell + 1
        left = build(rows[low[rows, j] <= cell], levels - 1, first, until)
        right = build(rows[high[rows, j] > cell], levels - 1, since, last)
        nodes[me] = (j, float(cells.thresholds[j][cell - cells.offset[j]]), left, right)
        return me

    build(np.flatnonzero(weight > 0), depth, cells.offset[:-1].copy(), cells.offset[1:] - 1)
    feature, threshold, left, right = zip(*nodes, strict=True)
    return Tree(np.array(feature), np.array(threshold, dtype=np.float64), np.array(left), np.array(right))


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
    """The trees of these numbers: random weights (the smooth bootstrap), the square root of the columns at each split,
    and the pairs of classes by turns."""
    reach, columns, out = cells.reach(X, eps), math.isqrt(X.shape[1]) + 1, []
    pairs = np.array(list(combinations(np.unique(y[weight > 0]), 2)))
    pairs = np.random.default_rng(seed).permutation(pairs)
    for t in numbers:
        random = np.random.default_rng((seed, t))
        seen = np.where(np.isin(y, pairs[t % len(pairs)]), weight, 0.0)
        drawn = seen * random.exponential(size=len(y))
        tree = grow(
            cells, reach, y, drawn / drawn.sum(), classes, depth=depth, columns=columns,
            points=points * float(seen.sum() / weight.sum()), random=random,
        )  # fmt: skip
        out.append(tree)
        tick()
    return tuple(out)
