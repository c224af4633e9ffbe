"""examples/double_oracle.py against the programme that sees the whole game."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from double_oracle import column_generation, double_oracle
from mrboost import game

RNG = np.random.default_rng(0)
MATRIX = np.where(RNG.random((200, 60)) < 0.6, 1.0, -1.0)


def best_row(p: np.ndarray) -> np.ndarray:
    return MATRIX[(MATRIX @ p).argmax()]


@pytest.mark.parametrize("nu", [None, 0.2])
def test_column_generation_reaches_the_value_of_the_whole_class(nu: float | None) -> None:
    calls = []
    learner = game.Learner(lambda p: (calls.append(best_row(p)), calls[-1])[1], 60)
    found, whole = column_generation(learner, nu=nu), game.solve(MATRIX, nu=nu)
    assert found.value == pytest.approx(whole.value, abs=1e-6)
    assert found.lower - 1e-9 <= whole.value <= found.upper + 1e-9
    assert found.upper - found.lower <= 1e-6
    assert (found.interval[:, 0] <= whole.value + 1e-9).all()
    assert (found.interval[:, 1] >= whole.value - 1e-9).all()
    assert len(found.learner) == len(calls) == len(found.classifiers) < 200
    margins = np.sort(found.learner @ np.array(calls))
    # 12 = ν |S_aug|
    assert margins[: 1 if nu is None else 12].mean() == pytest.approx(found.lower, abs=1e-9)
    assert (MATRIX @ found.adversary).max() == pytest.approx(found.upper, abs=1e-9)


def test_column_generation_cut_short_or_with_a_rough_learner_stays_honest() -> None:
    value = game.solve(MATRIX).value
    short = column_generation(game.Learner(best_row, 60), rounds=10)
    assert short.lower < value < short.upper
    assert short.upper - short.lower > 0.01
    rough = column_generation(
        game.Learner(lambda p: MATRIX[:20][(MATRIX[:20] @ p).argmax()], 60, exact=False)
    )
    assert rough.value == pytest.approx(game.solve(MATRIX[:20]).value, abs=1e-6)
    assert rough.upper == math.inf


def test_stumps_on_a_pair_of_digits() -> None:
    """A learner that sorts every pixel, against the programme over all the stumps there are."""
    x, digits = load_digits(return_X_y=True)
    chosen = np.isin(digits, (3, 8))
    x, y = x[chosen][:120], (digits[chosen][:120] == 3).astype(int)
    s_aug = game.SAug(y, 2)
    signs = 2 * y - 1

    def stump(p: np.ndarray) -> np.ndarray:
        best, answer = -1.0, np.ones(len(y), dtype=int)
        for pixel in x.T:
            order = np.argsort(pixel, kind="stable")
            ends = np.flatnonzero(np.r_[np.diff(pixel[order]) > 0, True])
            below = np.cumsum((p * signs)[order])[ends]  # Σ p s at or below each threshold
            edges = below[-1] - 2 * below  # of the stump that says 1 above it
            k = int(np.abs(edges).argmax())
            if abs(edges[k]) > best:
                best, above = abs(edges[k]), pixel > pixel[order[ends[k]]]
                answer = above.astype(int) if edges[k] > 0 else (~above).astype(int)
        return s_aug.labels(answer)

    every = [pixel > t for pixel in x.T for t in np.unique(pixel)]
    labels = np.unique(np.array([*every, *(~np.array(every))], dtype=int), axis=0)
    found = column_generation(game.Learner(stump, s_aug.points))
    assert found.value == pytest.approx(game.solve(s_aug.labels(labels)).value, abs=1e-6)
    assert found.value > 0.2


def test_double_oracle_solves_a_matrix_through_its_best_responses() -> None:
    matrix = RNG.normal(size=(70, 90))
    whole = game.solve(matrix)
    # Cut short at any round, the strategies prove what it claims
    for rounds in (1, 2, 5, 20, 1000):
        found = double_oracle(
            lambda points, p: int((matrix[:, points] @ p).argmax()),
            lambda rows, q: int((q @ matrix[rows]).argmin()),
            lambda row, point: float(matrix[row, point]),
            start=0,
            rounds=rounds,
        )
        assert found.lower - 1e-9 <= whole.value <= found.upper + 1e-9
        assert (found.learner @ matrix[found.classifiers]).min() == pytest.approx(
            found.lower, abs=1e-9
        )
        assert (matrix[:, found.points] @ found.adversary).max() == pytest.approx(
            found.upper, abs=1e-9
        )
    assert found.upper - found.lower <= 2e-6
    assert (np.diff(found.interval[:, 0]) >= 0).all()
    assert (np.diff(found.interval[:, 1]) <= 0).all()


def test_double_oracle_on_infinitely_many_strategies() -> None:
    """(a − b)² on the unit square: the learner mixes the ends, the adversary stays in the
    middle, the value is 1/4."""
    found = double_oracle(
        lambda points, p: float(max((0.0, 1.0), key=lambda a: p @ (a - np.array(points)) ** 2)),
        lambda chosen, q: float(q @ np.array(chosen)),
        lambda a, b: (a - b) ** 2,
        start=0.9,
    )
    assert found.value == pytest.approx(1 / 4, abs=1e-6)
    assert found.lower <= 1 / 4 + 1e-12
    assert found.upper >= 1 / 4 - 1e-12
