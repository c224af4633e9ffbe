"""Held-out rows of real tables: robust training must pay there, not only on its own rows."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from commands import development_data
from mrboost.tabular import MRBoostClassifier, column_eps


def test_robust_training_pays_on_tumours():
    X, y = load_breast_cancer(return_X_y=True)
    X, held, y, truth = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)
    eps = column_eps(X, 0.05)
    plain = MRBoostClassifier(0.0, base="stump").fit(X, y)
    robust = MRBoostClassifier(eps, random_state=0).fit(X, y)
    assert robust.robust_score(held, truth) > 0.8
    assert plain.robust_score(held, truth, eps=eps) < 0.6


def test_four_digits_beat_votes_and_are_really_robust():
    """Nobody finds a wrong prediction among random corners of the balls of certified rows."""
    X, y = load_digits(n_class=4, return_X_y=True)
    X, held, y, truth = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)
    fitted = MRBoostClassifier(0.1, base="stump", n_rounds=100).fit(X, y)
    found = fitted.certify(held, truth)
    assert found.robust_accuracy > 0.95
    random = np.random.default_rng(0)
    for _ in range(20):
        corner = held + 0.1 * random.choice([-1.0, 1.0], size=held.shape)
        assert (fitted.predict(corner) == truth)[found.robust].all()
    assert (fitted.predict(found.witness[found.misled]) != truth[found.misled]).all()


def test_diabetes_beats_the_most_frequent_class():
    table = np.loadtxt(development_data("tabular/diabetes.csv"), delimiter=",", skiprows=1)
    X, y = table[:, :-1] / np.ptp(table[:, :-1], axis=0), table[:, -1].astype(int)
    X, held, y, truth = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)
    fitted = MRBoostClassifier(0.05, base="stump").fit(X, y)
    assert fitted.robust_score(held, truth) > (truth == 0).mean()
    assert fitted.certificate_.attainable < 1
