"""Exact verification of trees: is  bias + Σ_trees value(leaf of z)  <= 0 for any z in the ball?

Branch and bound over boxes. In a box some trees are fixed to one leaf; the least leaves of the
others that still meet the box bound their sum from below (Chen et al., Robustness verification of
tree-based models, 2019, bound groups of trees in this way). The tree whose leaves in the box differ
most is branched on next, its least leaf first. A ball meets few leaves of robust trees, so the
search is short; beyond its limit the answer is "not known".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cells import Floats, Ints
from .models import TreeModel


@dataclass(frozen=True)
class Leaves:
    """The boxes ``(low, high]`` of all leaves of a model, and the tree of each."""

    low: Floats
    high: Floats
    tree: Ints

    @staticmethod
    def of(model: TreeModel, d: int) -> Leaves:
        low, high = np.concatenate([tree.boxes(d) for tree in model.trees], axis=1)
        return Leaves(low, high, np.repeat(np.arange(len(model.trees)), np.diff(model.offset)))


def find_nonpositive(
    leaves: Leaves, value: Floats, bias: float, x: Floats, eps: Floats, limit: int = 2000
) -> tuple[bool | None, Floats | None]:
    """Whether ``bias`` plus the values of the trees' leaves is at most 0 anywhere in the closed
    ball around ``x``, and where; None if that is not known after ``limit`` boxes."""
    a = x - eps
    b = x + eps
    met = np.flatnonzero(((leaves.low < b) & (leaves.high >= a)).all(axis=1))
    _, tree = np.unique(leaves.tree[met], return_inverse=True)
    trees = int(tree.max()) + 1
    value, low, high = value[met], leaves.low[met], leaves.high[met]
    # Boxes are half-open, the ball is closed: the least point of a box is the ball's end or
    # just above the box's.
    low = np.maximum(np.nextafter(low, np.inf), a)
    high = np.minimum(high, b)
    relevant = np.flatnonzero(((low > a) | (high < b)).any(axis=0))
    low, high = low[:, relevant], high[:, relevant]
    todo = [(bias, a[relevant], b[relevant], np.arange(len(met)))]
    for _ in range(limit):
        if not todo:
            return False, None
        score, near, far, left = todo.pop()
        left = left[(np.maximum(low[left], near) <= np.minimum(high[left], far)).all(axis=1)]
        choices = np.bincount(tree[left], minlength=trees)
        least = np.full(trees, np.inf)
        np.minimum.at(least, tree[left], value[left])
        if score + least[choices > 0].sum() > 0:
            continue
        # The only leaf of a tree that meets the box holds all of it
        alone = choices[tree[left]] == 1
        score, left = score + value[left[alone]].sum(), left[~alone]
        if not len(left):
            point = x.copy()
            point[relevant] = np.clip(x[relevant], near, far)
            return True, point
        most = np.full(trees, -np.inf)
        np.maximum.at(most, tree[left], value[left])
        with np.errstate(invalid="ignore"):
            widest = np.where(choices > 1, most - least, -np.inf).argmax()
        opened = left[tree[left] == widest]
        rest = left[tree[left] != widest]
        for leaf in opened[np.argsort(-value[opened])]:
            start, stop = np.maximum(near, low[leaf]), np.minimum(far, high[leaf])
            todo.append((score + value[leaf], start, stop, rest))
    return None, None
