"""Stumps or trees: what ``base="auto"`` takes, and on which rows it compares them."""

from __future__ import annotations

import numpy as np
import pytest

from mrboost.tabular import MRBoostClassifier, fitting

QUICK = {"n_rounds": 8, "max_thresholds": 12, "random_state": 0}


def exclusive_or(n=240, seed=0):
    """What no sum over columns tells apart, and a tree of depth two does."""
    X = np.random.default_rng(seed).uniform(-1, 1, size=(n, 2))
    X += 0.2 * np.sign(X)
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def test_trees_where_they_hold_out_better_and_stumps_else():
    X, y = exclusive_or()
    chosen = MRBoostClassifier(0.1, **QUICK).fit(X, y)
    assert chosen.base_ == "tree"
    assert chosen.base_scores_["tree"] > 0.8 > 0.7 > chosen.base_scores_["stump"]
    trees = MRBoostClassifier(0.1, base="tree", **QUICK).fit(X, y)
    assert (chosen.decision_function(X) == trees.decision_function(X)).all()
    assert MRBoostClassifier(0.1, **QUICK).fit(X, y).base_scores_ == chosen.base_scores_


def test_of_equally_good_ones_stumps():
    X = np.append(np.linspace(0, 1, 20), np.linspace(2, 3, 20))[:, None]
    fitted = MRBoostClassifier(0.1, n_rounds=8, random_state=0).fit(X, np.repeat([0, 1], 20))
    assert fitted.base_scores_ == {"stump": 1.0, "tree": 1.0}
    assert fitted.base_ == "stump"


@pytest.mark.parametrize("most_folded", [3000, 100])
def test_scores_are_of_rows_held_out(most_folded, monkeypatch):
    """Random labels can be learned by heart, and told on no other row; of a large table, too."""
    monkeypatch.setattr(fitting, "MAX_FOLDED", most_folded)
    monkeypatch.setattr(fitting, "MAX_HELD", 60)
    random = np.random.default_rng(0)
    X, y = random.normal(size=(180, 3)), random.integers(0, 2, 180)
    fitted = MRBoostClassifier(0.0, alpha=1e-4, random_state=0, n_rounds=40).fit(X, y)
    assert fitted.certificate_.robust_accuracy > 0.7
    assert all(0.3 < score < 0.65 for score in fitted.base_scores_.values())


def test_held_out_rows_count_by_their_weight():
    """A third of the labels is random, on rows that weigh next to nothing."""
    X = np.random.default_rng(0).permutation(np.append(np.arange(30), np.arange(60, 90.0)))[:, None]
    y = (X[:, 0] > 45).astype(int)
    noise = np.arange(60) % 3 == 0
    y[noise] = np.arange(20) % 2
    weight = np.where(noise, 1e-6, 1.0)
    options = {"n_rounds": 8, "random_state": 0}
    weighted = MRBoostClassifier(0.1, **options).fit(X, y, sample_weight=weight)
    assert min(weighted.base_scores_.values()) > 0.95
    assert max(MRBoostClassifier(0.1, **options).fit(X, y).base_scores_.values()) < 0.9


def test_nothing_to_hold_out_leaves_stumps():
    X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0, 0, 1])
    fitted = MRBoostClassifier(0.1).fit(X, y)
    assert (fitted.base_, fitted.base_scores_) == ("stump", {})


@pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
@pytest.mark.parametrize("solver", ["lp", "hedge"])
def test_games_are_played_on_stumps(solver):
    X, y = exclusive_or(40)
    fitted = MRBoostClassifier(0.1, solver=solver, nu=0.5, **QUICK).fit(X, y)
    assert (fitted.base_, fitted.base_scores_) == ("stump", None)
