"""The training set as the solvers see it: distinct rows with weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .cells import Floats, Ints
from .models import Pairs


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
