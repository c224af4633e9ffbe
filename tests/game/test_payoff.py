"""S_aug and its payoffs against the paper's definitions, written out."""

from __future__ import annotations

import numpy as np
import pytest

from mrboost import InputError, game

RNG = np.random.default_rng(0)
Y = RNG.integers(4, size=6)
S_AUG = game.SAug(Y, 4, example=[0, 0, 0, 1, 1, 2])
H = RNG.integers(4, size=(5, 6))


def pairwise_loss(h: int, y: int, other: int) -> int:
    """mg_L(h(x), y, y') = I(h(x) ≠ y) − I(h(x) ≠ y')."""
    return int(h != y) - int(h != other)


def tuples() -> list[tuple[int, int, int]]:
    """The points z, y and y' of S_aug in the order of its columns."""
    return [(z, int(y), other) for z, y in enumerate(Y) for other in range(4) if other != y]


def test_hard_labels_earn_minus_the_pairwise_margin_loss() -> None:
    expected = [[-pairwise_loss(h[z], y, other) for z, y, other in tuples()] for h in H]
    found = S_AUG.labels(H)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(S_AUG.labels(H[2]), expected[2])
    assert S_AUG.points == len(tuples()) == 18


def test_scores_earn_the_difference_and_one_hot_scores_what_labels_earn() -> None:
    scores = RNG.normal(size=(5, 6, 4))
    expected = [[g[z, y] - g[z, other] for z, y, other in tuples()] for g in scores]
    np.testing.assert_array_equal(S_AUG.scores(scores), expected)
    np.testing.assert_array_equal(S_AUG.scores(np.eye(4)[H]), S_AUG.labels(H))


def test_costs_are_the_expected_payoff_as_a_linear_function_of_the_scores() -> None:
    weights, scores = RNG.dirichlet(np.ones(18)), RNG.normal(size=(6, 4))
    assert np.sum(S_AUG.costs(weights) * scores) == pytest.approx(
        weights @ S_AUG.scores(scores), abs=1e-12
    )


def test_pairs_tell_apart_example_and_false_label_but_not_the_perturbation() -> None:
    pairs = S_AUG.pairs
    names = [(S_AUG.example[z], other) for z, _, other in tuples()]
    for i, name in enumerate(names):
        assert [name == n for n in names] == list(pairs[i] == pairs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: game.Payoff(np.zeros((0, 3))), "at least one classifier and one point"),
        (lambda: game.Payoff([1.0, 2.0]), "rows are classifiers"),
        (lambda: game.Payoff([[0.0, 1.0], [np.nan, 0.0]]), "got nan for classifier 1 at point 0"),
        (lambda: game.Payoff([["a"]]), "must be real numbers"),
        (lambda: game.SAug([0, 0], 1), "at least 2 classes, got 1"),
        (lambda: game.SAug([], 2), "one label for each perturbed point"),
        (lambda: game.SAug([0, 2], 2), "must lie in 0 … 1, got 2"),
        (lambda: game.SAug([0.5], 2), "y must be integers"),
        (lambda: game.SAug([0, 1], 2, example=[0]), "example must have the shape of y"),
        (lambda: S_AUG.labels([0, 1]), "must cover the 6 perturbed points"),
        (lambda: S_AUG.labels(H + 1), "must lie in 0 … 3, got 4"),
        (lambda: S_AUG.labels(np.zeros(6)), "scores go to SAug.scores"),
        (lambda: S_AUG.scores(np.zeros((6, 3))), "each of 4 classes"),
        (lambda: S_AUG.scores(np.full((6, 4), np.nan)), "scores must be finite"),
    ],
)
def test_mistakes_get_one_line(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        wrong()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
