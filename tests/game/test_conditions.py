"""The two weak-learning conditions against their definitions, and Proposition 3's example."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from mrboost import InputError, game


@st.composite
def games(draw: st.DrawFn) -> tuple[game.SAug, np.ndarray]:
    """A few classifiers' labels on a few perturbations of each of a few examples,
    two to four classes."""
    classes = draw(st.integers(2, 4))
    examples, perturbations, classifiers = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 6)),
    )
    seed = draw(st.integers(0, 10_000))
    generator = np.random.default_rng(seed)
    y = np.repeat(generator.integers(classes, size=examples), perturbations)
    right = generator.random((classifiers, len(y))) < draw(st.sampled_from([0.3, 0.6, 0.9]))
    labels = np.where(right, y, generator.integers(classes, size=(classifiers, len(y))))
    return game.SAug(y, classes, np.repeat(np.arange(examples), perturbations)), labels


@settings(deadline=None, max_examples=30)
@given(games())
def test_worst_perturbation_is_robboosts_pair_of_indicators(
    case: tuple[game.SAug, np.ndarray],
) -> None:
    """I(∀δ: h(x+δ) = y) − I(∃δ: h(x+δ) = y'), for each (x, y, y')."""
    s_aug, labels = case
    expected = []
    for i in np.unique(s_aug.example):
        of_i = s_aug.example == i
        (y,) = np.unique(s_aug.y[of_i])
        for other in range(s_aug.classes):
            if other != y:
                expected.append(
                    [int((h[of_i] == y).all()) - int((h[of_i] == other).any()) for h in labels]
                )
    found = game.worst_perturbation(s_aug.labels(labels), s_aug.pairs)
    np.testing.assert_array_equal(found.matrix, np.transpose(expected))


@settings(deadline=None, max_examples=30)
@given(games())
def test_theirs_implies_ours_and_ours_decides_adversarial_accuracy(
    case: tuple[game.SAug, np.ndarray],
) -> None:
    s_aug, labels = case
    payoff = game.Payoff(s_aug.labels(labels))
    ours, theirs = game.weak_learning(payoff), game.robboost_weak_learning(payoff, s_aug.pairs)
    assert theirs.tau <= ours.tau + 1e-9
    assert ours.holds or not theirs.holds

    def votes(weights: np.ndarray) -> np.ndarray:
        """[h_Q(x+δ)]_j, (Z, K)."""
        return np.array(
            [
                [weights[labels[:, z] == j].sum() for j in range(s_aug.classes)]
                for z in range(len(s_aug.y))
            ]
        )

    def all_right(weights: np.ndarray) -> bool:
        share = votes(weights)
        true = share[np.arange(len(s_aug.y)), s_aug.y]
        share[np.arange(len(s_aug.y)), s_aug.y] = -1
        return bool((true > share.max(axis=1) + 1e-9).all())

    # Theorem 1: the maximiser is 100 % accurate exactly then
    assert all_right(ours.proof.learner) == ours.holds
    if not ours.holds:
        generator = np.random.default_rng(0)
        assert not any(
            all_right(w) for w in generator.dirichlet(np.full(len(labels), 0.5), size=100)
        )
        p = ours.proof.adversary  # and here is a P' on which no classifier is better than chance
        advantage = [
            p
            @ [
                int(h[z] == s_aug.y[z]) - int(h[z] == o)
                for z, os in enumerate(s_aug.other)
                for o in os
            ]
            for h in labels
        ]
        assert max(advantage) <= 1e-9


def test_proposition_three_ours_holds_and_theirs_fails() -> None:
    example = game.proposition_example()
    ours = game.weak_learning(example.payoff)
    theirs = game.robboost_weak_learning(example.payoff, example.s_aug.pairs)
    assert len(example.theta) == 20
    assert ours.holds
    assert ours.tau >= 0.2  # the paper's constant
    # What its argument gives: mass 1/10, accuracy 9/10 = (1 + τ)/2
    assert ours.tau == pytest.approx(0.8, abs=1e-9)
    assert not theirs.holds
    assert theirs.tau == -1
    generator = np.random.default_rng(0)
    for p in generator.dirichlet(
        np.full(len(example.delta), 0.2), size=50
    ):  # for any P' some interval has mass <= 1/10
        accuracy = (example.labels == 1) @ p
        assert accuracy.max() >= (1 + 0.8) / 2 - 1e-12


def test_proposition_three_is_on_the_grid_it_names() -> None:
    """The labels from exact rational arithmetic: 0 on the closed interval [θ, θ + 1/10]."""
    for refine in (1, 3):
        example = game.proposition_example(refine)
        theta = [Fraction(-1) + Fraction(k, 10 * refine) for k in range(19 * refine + 1)]
        delta = [Fraction(-1) + Fraction(k, 20 * refine) for k in range(40 * refine + 1)]
        expected = [[0 if t <= d <= t + Fraction(1, 10) else 1 for d in delta] for t in theta]
        np.testing.assert_array_equal(example.labels, expected)
        np.testing.assert_allclose(example.theta, [float(t) for t in theta], atol=1e-15)
        np.testing.assert_allclose(example.delta, [float(d) for d in delta], atol=1e-15)


def test_proposition_three_with_all_intervals() -> None:
    """With θ anywhere in [−1, 0.9], 19 disjoint intervals fit and 19 points meet
    them all: τ = 1 − 2/19."""
    assert game.weak_learning(game.proposition_example(18).payoff).tau == pytest.approx(
        17 / 19, abs=1e-9
    )
    assert game.weak_learning(game.proposition_example(17).payoff).tau < 17 / 19 - 1e-3


def test_mistakes_get_one_line() -> None:
    with pytest.raises(InputError, match="number each of the 3 points"):
        game.robboost_weak_learning(np.ones((2, 3)), [0, 1])
    with pytest.raises(InputError, match="refine must be at least 1"):
        game.proposition_example(0)
