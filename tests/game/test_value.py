"""The value by linear programming, against closed forms, other programmes and
the minimax theorem."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from mrboost import InputError, game
from mrboost.game import value as value_module

matrices = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-8, 8).map(lambda k: k / 8))
)


def test_small_games_have_known_values() -> None:
    assert game.solve([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]).value == pytest.approx(0, abs=1e-12)
    # Q (4/7, 3/7) earns 1/7 at both points, P (3/7, 4/7) pays 1/7 to both
    solution = game.solve([[1, -0.5], [-1, 1]])
    assert solution.value == pytest.approx(1 / 7, abs=1e-12)
    np.testing.assert_allclose(solution.learner, [4 / 7, 3 / 7], atol=1e-12)
    np.testing.assert_allclose(solution.adversary, [3 / 7, 4 / 7], atol=1e-12)
    assert game.solve([[0.0, 0.0]]).value == 0


@settings(deadline=None, max_examples=30)
@given(matrices, st.randoms(use_true_random=False))
def test_strategies_prove_the_value_and_order_does_not_matter(
    matrix: np.ndarray, random: object
) -> None:
    found = game.solve(matrix)
    for strategy in (found.learner, found.adversary):
        assert (strategy >= 0).all()
        assert strategy.sum() == pytest.approx(1)
    assert (found.learner @ matrix).min() == pytest.approx(found.lower, abs=1e-12)
    assert (matrix @ found.adversary).max() == pytest.approx(found.upper, abs=1e-12)
    assert found.upper - found.lower <= 1e-9
    # The players change sides
    assert game.solve(-matrix.T).value == pytest.approx(-found.value, abs=1e-8)
    rows, columns = list(range(matrix.shape[0])), list(range(matrix.shape[1]))
    random.shuffle(rows), random.shuffle(columns)  # type: ignore[attr-defined]
    assert game.solve(matrix[rows][:, columns]).value == pytest.approx(found.value, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_payoffs_of_any_size(scale: float) -> None:
    matrix = np.random.default_rng(2).normal(size=(20, 30))
    assert game.solve(scale * matrix).value == pytest.approx(
        scale * game.solve(matrix).value, rel=1e-6
    )


def soft_margin(matrix: np.ndarray, nu: float) -> float:
    """The learner's side: maximise ρ − Σ ξ_i / (ν N) subject to margin_i >= ρ − ξ_i
    (Demiriz et al. 2002)."""
    classifiers, points = matrix.shape
    result = scipy.optimize.linprog(
        c=np.r_[np.zeros(classifiers), np.full(points, 1 / (nu * points)), -1.0],
        A_ub=np.c_[-matrix.T, -np.eye(points), np.ones(points)],
        b_ub=np.zeros(points),
        A_eq=np.r_[np.ones(classifiers), np.zeros(points + 1)][None],
        b_eq=[1.0],
        bounds=[(0, None)] * (classifiers + points) + [(None, None)],
    )
    return -float(result.fun)


@pytest.mark.parametrize("nu", [0.03, 0.1, 0.37, 1.0])
def test_capped_value_is_the_soft_margin(nu: float) -> None:
    matrix = np.random.default_rng(3).uniform(-1, 1, (15, 40))
    found = game.solve(matrix, nu=nu)
    assert found.value == pytest.approx(soft_margin(matrix, nu), abs=1e-8)
    assert found.upper - found.lower <= 1e-9
    assert found.adversary.max() <= 1 / (nu * 40) + 1e-9
    if nu == 1.0:
        assert found.value == pytest.approx(matrix.mean(axis=1).max())
    if nu == 0.03:  # ν N = 1.2 points: the worst in full and a fifth of the next
        worst = np.sort(found.learner @ matrix)
        assert found.lower == pytest.approx(
            (worst[0] * (1 / 1.2) + worst[1] * (1 - 1 / 1.2)), abs=1e-12
        )
    assert game.solve(matrix, nu=1 / 40).value == pytest.approx(game.solve(matrix).value, abs=1e-9)


@pytest.mark.parametrize("nu", [None, 0.1])
def test_growing_parts_reach_the_value_of_the_whole(
    nu: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On few of many strategies at a time, with payoffs of hard labels, where ties abound."""
    generator = np.random.default_rng(4)
    matrix = np.where(generator.random((300, 200)) < 0.6, 1, -1)
    whole = game.solve(matrix, nu=nu)
    monkeypatch.setattr(value_module, "WHOLE", 0)
    monkeypatch.setattr(value_module, "BATCH", 5)
    parts = game.solve(matrix, nu=nu)
    assert parts.value == pytest.approx(whole.value, abs=1e-8)
    assert parts.upper - parts.lower <= 1e-8


@pytest.mark.parametrize("nu", [0.0, -1.0, 1.5, float("nan")])
def test_nu_outside_its_range(nu: float) -> None:
    with pytest.raises(InputError, match=r"nu must lie in \(0, 1\]"):
        game.solve([[1.0]], nu=nu)
