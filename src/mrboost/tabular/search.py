"""Exact answers for trees: can any point of the ball make the score of a pair nonpositive?

Branch and bound over boxes. A box fixes some trees to one leaf; the others' least leaves that still
meet it bound the rest (Chen et al. 2019 bound trees in the same way, in groups). The tree with the
widest choice is opened next, its least leaf first. Robust trees are met in few leaves by design, so
the search is short; it has a limit and then says that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .cells import Floats, Ints
from .models import TreeModel


@dataclass(frozen=True)
class Leaves:
    """All leaves of a model as boxes ``(low, high]``."""

    low: Floats
    high: Floats
    tree: Ints

    @staticmethod
    def of(model: TreeModel, d: int) -> Leaves:
        boxes = [tree.boxes(d) for tree in model.trees]
        low, high = np.concatenate([a for a, _ in boxes]), np.concatenate([b for _, b in boxes])
        return Leaves(low, high, np.repeat(np.arange(len(boxes)), np.diff(model.offset)))


def find_nonpositive(
    leaves: Leaves, value: Floats, bias: float, x: Floats, eps: Floats, limit: int = 2000
) -> tuple[bool | None, Floats | None]:
    """Whether ``bias + sum of value`` is at most 0 somewhere in the closed ball, and
    where; None: not known."""
    a, b = x - eps, x + eps
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
        # The box lies wholly in that leaf: leaves of a tree cut up the space
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
            todo.append(
                (
                    score + value[leaf],
                    np.maximum(near, low[leaf]),
                    np.minimum(far, high[leaf]),
                    rest,
                )
            )
    return None, None


@dataclass(frozen=True)
class VeritasCheck:
    """One pair's score as an ensemble of dtai-veritas, an independent verifier."""

    ensemble: Any

    def least(self, x: Floats, eps: Floats, seconds: float = 10.0) -> float:
        """Its least value in the closed ball. veritas computes in float32
        boundaries: ties may differ."""
        import veritas

        settings = veritas.Config(veritas.HeuristicType.MIN_OUTPUT)
        ball = [
            veritas.Interval(a, b)
            for a, b in zip(x - eps, np.nextafter(x + eps, np.inf), strict=True)
        ]
        search = settings.get_search(self.ensemble, ball)
        if (
            search.step_for(seconds, 1000) != veritas.StopReason.NO_MORE_OPEN
            and not search.is_optimal()
        ):
            raise TimeoutError(f"veritas found no optimum in {seconds} s: give it more")
        return float(search.get_solution(0).output)


def to_veritas(model: TreeModel, k: int, other: int) -> VeritasCheck:
    """The score of class ``k`` against ``other`` for veritas (``pip install 'mrboost[trees]'``)."""
    import veritas

    ensemble = veritas.AddTree(1, veritas.AddTreeType.REGR)
    column = int(np.flatnonzero(model.pairs.others(k) == other)[0])
    values, bias = (
        model.pairs.against(model.values, k)[:, column],
        model.pairs.against(model.bias, k)[column],
    )
    ensemble.set_base_score(0, float(bias))
    for tree, start in zip(model.trees, model.offset, strict=False):
        copy = ensemble.add_tree()
        todo = [(0, copy.root())]
        while todo:
            node, place = todo.pop()
            if tree.feature[node] < 0:
                copy.set_leaf_value(place, 0, float(values[start + tree.left[node]]))
                continue
            # veritas splits by <, we by <=
            copy.split(
                place, int(tree.feature[node]), float(np.nextafter(tree.threshold[node], np.inf))
            )
            todo += [
                (int(tree.left[node]), copy.left(place)),
                (int(tree.right[node]), copy.right(place)),
            ]
    return VeritasCheck(ensemble)
