"""Fitted ensembles: a score for each pair of classes, and its least value over a ball.

    score_{k,l}(x) = bias_{k,l} + Σ_terms value_{k,l}(the term's cell of x) = -score_{l,k}(x)

A term is a tree, or all stumps of one column; its cells are the tree's leaves, or the intervals
between the stumps' thresholds. Class y wins at a point if its scores against all other classes are
positive; its margin is the least of them, and a tie, 0, counts as lost. Votes are the special case
in which the score of (k, l) is the difference of two classes' votes.

    min_{x in ball} score(x) >= bias + Σ_terms min_{cells in reach} value(cell)

For stumps this is an equality, since each term depends on a column of its own; for trees it is a
lower bound (Chen et al., Robustness verification of tree-based models, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .cells import Cells, Floats, Ints, range_minima


@dataclass(frozen=True)
class Pairs:
    """The pairs k < l of K classes, numbered: which column of an array holds the score of class k
    against l, and with which sign."""

    classes: int

    @property
    def count(self) -> int:
        return self.classes * (self.classes - 1) // 2

    @cached_property
    def members(self) -> tuple[Ints, Ints]:
        return np.triu_indices(self.classes, 1)

    @cached_property
    def column(self) -> Ints:
        found = np.zeros((self.classes, self.classes), dtype=np.intp)
        found[self.members] = found.T[self.members] = np.arange(self.count)
        return found

    def others(self, k: int) -> Ints:
        return np.delete(np.arange(self.classes), k)

    def against(self, scores: Floats, k: int) -> Floats:
        """The scores of class k against each other class, positive where k wins."""
        others = self.others(k)
        return np.asarray(scores[..., self.column[k, others]] * np.where(others > k, 1.0, -1.0))

    def from_votes(self, votes: Floats) -> Floats:
        first, second = self.members
        return np.asarray(votes[..., first] - votes[..., second])

    def of_each_class(self, scores: Floats) -> Floats:
        """(…, K, K - 1): the scores of every class against each other class."""
        return np.stack([self.against(scores, k) for k in range(self.classes)], axis=-2)

    def wins(self, scores: Floats) -> Floats:
        """(…, K): each class's least score against the others; at most one is positive."""
        return np.asarray(self.of_each_class(scores).min(axis=-1))


@dataclass(frozen=True)
class Stump:
    """Votes for class ``left`` up to cell ``cell`` of a column, and for ``right`` beyond it; a
    constant has ``column`` -1."""

    column: int
    cell: int
    left: int
    right: int

    def vote(self, cells: Cells, votes: Floats, constant: Floats) -> None:
        """Add one vote to every cell of its column."""
        if self.column < 0:
            constant[self.left] += 1
            return
        start, stop = cells.offset[self.column : self.column + 2]
        votes[start : self.cell + 1, self.left] += 1
        votes[self.cell + 1 : stop, self.right] += 1


def _tolerance(values: Floats, offset: Ints, bias: Floats) -> float:
    largest = np.maximum.reduceat(np.abs(values).max(axis=1), offset[:-1])
    return float(1e-12 * (largest.sum() + np.abs(bias).max()))


@dataclass(frozen=True)
class StumpModel:
    """Stumps: ``values`` (cells, pairs) summed over columns, plus ``bias`` (pairs). Where these are
    votes of stumps ("hedge"), ``stumps`` are those, one for each round."""

    cells: Cells
    values: Floats
    bias: Floats
    pairs: Pairs
    stumps: tuple[Stump, ...] = ()
    kind = "exact"

    @staticmethod
    def voting(
        cells: Cells, votes: Floats, constant: Floats, stumps: Sequence[Stump]
    ) -> StumpModel:
        """A model of votes. They are whole numbers, so sums are exact and ties are found."""
        pairs = Pairs(len(constant))
        values, bias = pairs.from_votes(votes), pairs.from_votes(constant)
        return StumpModel(cells, values, bias, pairs, tuple(stumps))

    def scores(self, X: Floats) -> Floats:
        return np.asarray(self.values[self.cells.at(X)].sum(axis=1) + self.bias)

    def worst(self, X: Floats, y: Ints, eps: Floats) -> tuple[Floats, Ints]:
        """Least scores of y against each other class over the ball, (n, K - 1), and the
        cells that attain them."""
        low, high = self.cells.reach(X, eps)
        n, d = X.shape
        least = np.zeros((n, self.pairs.classes - 1))
        cell = np.zeros((n, d, self.pairs.classes - 1), dtype=np.intp)
        for k in np.unique(y):
            rows = np.flatnonzero(y == k)
            values, bias = self.pairs.against(self.values, k), self.pairs.against(self.bias, k)
            found, arg = range_minima(values, low[rows].ravel(), high[rows].ravel())
            least[rows] = found.reshape(len(rows), d, -1).sum(axis=1) + bias
            cell[rows] = arg.reshape(len(rows), d, -1)
        return least, cell

    def margins(self, X: Floats, y: Ints, eps: Floats) -> Floats:
        """The scores of ``worst``, a few rows at a time: memory stays linear in the table."""
        parts = -(-X.size * self.pairs.classes // 2**22)
        balls = np.broadcast_to(eps, X.shape)
        split = [np.array_split(a, max(parts, 1)) for a in (X, y, balls)]
        return np.concatenate([self.worst(*part)[0] for part in zip(*split, strict=True)])

    @property
    def tolerance(self) -> float:
        """Margins up to this count as ties: what the rounding of sums can make of a true zero."""
        return _tolerance(self.values, self.cells.offset, self.bias)

    def reach(self, _: int) -> Floats:
        """Per column the outermost thresholds, (2, d): a ball that holds both meets every cell."""
        empty = (np.inf, -np.inf)
        return np.array([(t[0], t[-1]) if len(t) else empty for t in self.cells.thresholds]).T

    def stages(self) -> Iterator[StumpModel]:
        """Round after round of "hedge"; else column after column, those that can move a score the
        most first."""
        if not self.stumps:
            yield from self._columns()
        votes = np.zeros((self.cells.count, self.pairs.classes))
        constant = np.zeros(self.pairs.classes)
        for t, stump in enumerate(self.stumps, 1):
            stump.vote(self.cells, votes, constant)
            yield StumpModel.voting(self.cells, votes, constant, self.stumps[:t])

    def importances(self, X: Floats, weight: Floats) -> Floats:
        """The variance that each column gives to the scores, over points of this weight."""
        parts = (self.values[cell] for cell in self.cells.at(X).T)
        return np.array([(weight @ (part - weight @ part) ** 2).sum() for part in parts])

    def _columns(self) -> list[StumpModel]:
        parts = np.split(np.arange(self.cells.count), self.cells.offset[1:-1])
        swing = [np.ptp(self.values[part], axis=0).max() for part in parts]
        kept = np.zeros_like(self.values)
        models: list[StumpModel] = []
        for j in np.argsort(swing, kind="stable")[::-1]:
            if swing[j] > 0 or not models:
                kept = kept.copy()
                kept[parts[j]] = self.values[parts[j]]
                models.append(replace(self, values=kept))
        models[-1] = self
        return models


@dataclass(frozen=True)
class Tree:
    """A binary tree as arrays; ``feature`` is -1 at leaves, whose ``left`` is the leaf's number."""

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints

    @property
    def leaves(self) -> int:
        return int((self.feature < 0).sum())

    def routes(self, X: Floats, eps: Floats) -> tuple[Ints, Ints]:
        """(row, leaf) of every leaf that the ball around a row meets: of all whose path's splits
        let some point of the ball pass, since each split cuts the box along a column."""
        rows, leaves = [np.arange(0)], [np.arange(0)]
        todo = [(0, np.arange(len(X)))]
        low, high = X - eps, X + eps
        while todo:  # a node, and the rows whose balls meet its box
            node, here = todo.pop()
            j, t = self.feature[node], self.threshold[node]
            if j < 0:
                rows.append(here)
                leaves.append(np.full(len(here), self.left[node]))
            elif len(here):
                todo.append((int(self.right[node]), here[high[here, j] > t]))
                todo.append((int(self.left[node]), here[low[here, j] <= t]))
        return np.concatenate(rows), np.concatenate(leaves)

    def importances(self, d: int, mass: Floats, values: Floats) -> Floats:
        """For each of ``d`` columns the variance of the leaves' values, (leaves, …), that its
        splits explain: of each split the one between its two sides. ``mass`` is the leaves'."""
        out = np.zeros(d)
        leaf = self.feature < 0
        weight, mean = np.zeros(len(leaf)), np.zeros((len(leaf), values.shape[1]))
        weight[leaf], mean[leaf] = mass[self.left[leaf]], values[self.left[leaf]]
        for node in np.flatnonzero(~leaf)[::-1]:  # children before parents
            sides = [self.left[node], self.right[node]]
            weight[node] = weight[sides].sum()
            share = weight[sides] / max(weight[node], np.finfo(float).tiny)
            mean[node] = share @ mean[sides]
            apart = ((mean[sides[0]] - mean[sides[1]]) ** 2).sum()
            out[self.feature[node]] += weight[node] * share.prod() * apart
        return out

    def boxes(self, d: int) -> Floats:
        """Of each leaf the box ``(low, high]``, (2, leaves, d)."""
        out = np.empty((2, self.leaves, d))
        todo = [(0, np.full(d, -np.inf), np.full(d, np.inf))]
        while todo:
            node, a, b = todo.pop()
            j, t = self.feature[node], self.threshold[node]
            if j < 0:
                out[:, self.left[node]] = a, b
            else:
                below, above = b.copy(), a.copy()
                below[j], above[j] = min(b[j], t), max(a[j], t)
                todo += [(int(self.left[node]), a, below), (int(self.right[node]), above, b)]
        return out


@dataclass(frozen=True)
class TreeModel:
    """Trees: ``values`` (leaves of all trees, pairs), plus ``bias`` (pairs)."""

    trees: tuple[Tree, ...]
    values: Floats
    bias: Floats
    pairs: Pairs
    kind = "lower bound"

    @cached_property
    def offset(self) -> Ints:
        return np.cumsum([0, *(tree.leaves for tree in self.trees)])

    def scores(self, X: Floats) -> Floats:
        out = np.broadcast_to(self.bias, (len(X), self.pairs.count)).copy()
        for tree, start in zip(self.trees, self.offset, strict=False):
            rows, leaves = tree.routes(X, np.zeros(X.shape[1]))
            out[rows] += self.values[start + leaves]
        return out

    def margins(self, X: Floats, y: Ints, eps: Floats) -> Floats:
        out = np.zeros((len(X), self.pairs.classes - 1))
        scores = self.pairs.of_each_class(self.values)
        for tree, start in zip(self.trees, self.offset, strict=False):
            rows, leaves = tree.routes(X, eps)
            least = np.full_like(out, np.inf)
            np.minimum.at(least, rows, scores[start + leaves, y[rows]])
            out += least
        return np.asarray(out + self.pairs.of_each_class(self.bias)[y])

    @property
    def tolerance(self) -> float:
        return _tolerance(self.values, self.offset, self.bias)

    def reach(self, d: int) -> Floats:
        out = np.stack([np.full(d, np.inf), np.full(d, -np.inf)])
        for tree in self.trees:
            inner = tree.feature >= 0
            np.minimum.at(out[0], tree.feature[inner], tree.threshold[inner])
            np.maximum.at(out[1], tree.feature[inner], tree.threshold[inner])
        return out

    def importances(self, X: Floats, weight: Floats) -> Floats:
        """The variance that each column gives to the scores of the trees, one by one."""
        d = X.shape[1]
        out = np.zeros(d)
        for tree, start in zip(self.trees, self.offset, strict=False):
            rows, leaves = tree.routes(X, np.zeros(d))
            mass = np.bincount(leaves, weight[rows], tree.leaves).astype(np.float64)
            out += tree.importances(d, mass, self.values[start : start + tree.leaves])
        return out

    def stages(self) -> Iterator[TreeModel]:
        for t, stop in enumerate(self.offset[1:], 1):
            yield replace(self, trees=self.trees[:t], values=self.values[:stop])


Model = StumpModel | TreeModel
