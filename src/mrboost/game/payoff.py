r"""The finite game of the paper's equation (2): classifiers against points of S_aug.

S_aug = {(x, y, y', δ)} holds every perturbed point x + δ once for each false label y'. A
classifier h earns at it

    payoff(h, (x, y, y', δ)) = I(h(x+δ) = y) − I(h(x+δ) = y') = −mg_L(h(x+δ), y, y'),

or, if it has a score for each class, its score of y minus that of y'. The learner mixes classifiers
with weights Q and maximises the least expected payoff at any point, its minimum robust margin
mg_rob(Q, S). The adversary mixes points with weights P and minimises the expected payoff of the
classifier that is best against P. In a payoff matrix rows are classifiers and columns are points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrboost.errors import InputError

Floats = NDArray[np.float64]
Matrix = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Payoff:
    """A game as a matrix, classifiers × points, of any finite payoffs to the learner.

    ``scale`` is the largest absolute payoff, B in the paper's regret bound: at most 1 for hard
    labels.
    """

    matrix: Matrix
    scale: float = field(init=False)

    def __init__(self, matrix: ArrayLike) -> None:
        array = np.asarray(matrix)
        if array.ndim != 2 or array.size == 0:
            given = f"got shape {array.shape} (rows are classifiers)"
            raise InputError(f"a game needs at least one classifier and one point, {given}")
        if array.dtype.kind not in "biuf":
            raise InputError(f"payoffs must be real numbers, got an array of {array.dtype}")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            h, i = np.argwhere(~np.isfinite(array))[0]
            where = f"got {array[h, i]} for classifier {h} at point {i}"
            raise InputError(f"payoffs must be finite, {where}")
        object.__setattr__(self, "matrix", array)
        object.__setattr__(self, "scale", max(float(array.max()), -float(array.min())))

    @property
    def classifiers(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def points(self) -> int:
        """``|S_aug|``."""
        return int(self.matrix.shape[1])

    def row(self, classifier: int) -> Floats:
        """What one classifier earns at each point."""
        return np.asarray(self.matrix[classifier])

    def expected(self, adversary: Floats) -> Floats:
        """What each classifier earns in expectation over P."""
        return np.asarray(self.matrix @ adversary)

    def margins(self, learner: Floats) -> Floats:
        """What the mixture Q earns at each point: [h_Q(x+δ)]_y − [h_Q(x+δ)]_{y'}."""
        used = np.flatnonzero(learner)
        return np.asarray(learner[used] @ self.matrix[used])


@dataclass(frozen=True, eq=False)
class SAug:
    """S_aug for finitely many perturbed points: turns what classifiers say there into payoffs.

    Point z (z = 0 … Z−1) is some x_i + δ; column z (K−1) + k of a payoff matrix is z with
    its k-th false label.

    Args:
        y: the true label of each perturbed point, 0 … K−1.
        classes: K.
        example: the example i that each point is a perturbation of; without it each is an example
            of its own. Only RobBoost's condition needs it.
    """

    y: NDArray[np.int64]
    classes: int
    example: NDArray[np.int64]

    def __init__(self, y: ArrayLike, classes: int, example: ArrayLike | None = None) -> None:
        if classes < 2:
            raise InputError(f"a game needs at least 2 classes, got {classes}")
        object.__setattr__(self, "classes", int(classes))
        object.__setattr__(self, "y", _integers("y", np.asarray(y)))
        if self.y.ndim != 1 or not len(self.y):
            shape = f"got shape {self.y.shape}"
            raise InputError(f"y must hold one label for each perturbed point, {shape}")
        self._check_labels(self.y)
        numbers = np.arange(len(self.y)) if example is None else np.asarray(example)
        object.__setattr__(self, "example", _integers("example", numbers))
        if self.example.shape != self.y.shape:
            shapes = f"{self.y.shape}, got {self.example.shape}"
            raise InputError(f"example must have the shape of y, {shapes}")

    @property
    def points(self) -> int:
        """``|S_aug| = Z (K − 1)``."""
        return len(self.y) * (self.classes - 1)

    @property
    def other(self) -> NDArray[np.int64]:
        """The false labels y' of each perturbed point in ascending order, ``(Z, K − 1)``."""
        ranks = np.arange(self.classes - 1)
        return ranks + (ranks >= self.y[:, None])

    @property
    def pairs(self) -> NDArray[np.int64]:
        """For each column of a payoff matrix, a number for its (x, y, y'): the element
        of the paper's S̃_aug."""
        return np.asarray((self.example[:, None] * self.classes + self.other).ravel())

    def labels(self, labels: ArrayLike) -> NDArray[np.int8]:
        """Payoffs of classifiers that answer with a label at each point, ``(…,
        Z)`` → ``(…, |S_aug|)``."""
        h = _integers("labels", np.asarray(labels))
        self._check_shape(h.shape[-1:])
        self._check_labels(h)
        right = (h == self.y).astype(np.int8)
        payoffs = np.repeat(right, self.classes - 1, axis=-1)
        for k in range(self.classes - 1):
            payoffs[..., k :: self.classes - 1] -= h == self.other[:, k]
        return payoffs

    def scores(self, scores: ArrayLike) -> Floats:
        """Payoffs of classifiers with a real score for each class, ``(…, Z,
        K)`` → ``(…, |S_aug|)``."""
        g = np.asarray(scores, dtype=np.float64)
        self._check_shape(g.shape[-2:-1])
        if g.shape[-1] != self.classes:
            raise InputError(f"each of {self.classes} classes needs a score, got {g.shape[-1]}")
        if not np.isfinite(g).all():
            raise InputError("scores must be finite, got NaN or infinity")
        rows = np.arange(len(self.y))[:, None]
        gaps = g[..., rows, self.y[:, None]] - g[..., rows, self.other]
        return np.reshape(gaps, (*g.shape[:-2], self.points))

    def costs(self, adversary: Floats) -> Floats:
        """P as a reward for each score, ``(Z, K)``: scores g earn Σ_z Σ_k costs_zk
        g_zk in expectation.

        What a learner needs to fit a classifier to P: the total of P at (z, y), minus P(z, y')
        at each false label.
        """
        weights = np.reshape(adversary, (len(self.y), self.classes - 1))
        rewards = np.empty((len(self.y), self.classes))
        np.put_along_axis(rewards, self.other, -weights, axis=1)
        np.put_along_axis(rewards, self.y[:, None], weights.sum(axis=1, keepdims=True), axis=1)
        return rewards

    def _check_shape(self, found: tuple[int, ...]) -> None:
        if found != self.y.shape:
            wanted = f"the {len(self.y)} perturbed points"
            raise InputError(f"outputs must cover {wanted}, got {found}")

    def _check_labels(self, labels: NDArray[np.int64]) -> None:
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if wrong.size:
            raise InputError(f"labels must lie in 0 … {self.classes - 1}, got {wrong[0]}")


def as_payoff(game: Payoff | ArrayLike) -> Payoff:
    return game if isinstance(game, Payoff) else Payoff(game)


def _integers(name: str, array: Matrix) -> NDArray[np.int64]:
    if array.dtype == np.bool_:
        array = array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer) and array.size:
        raise InputError(f"{name} must be integers, not {array.dtype}: scores go to SAug.scores")
    return array.astype(np.int64, copy=False)
