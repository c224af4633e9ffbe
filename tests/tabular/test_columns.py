"""What columns contribute: to the scores, and to the worst case of one row."""

from __future__ import annotations

import numpy as np
import pytest

from mrboost.tabular import MRBoostClassifier
from mrboost.tabular.certificate import margins_by_column


@pytest.fixture(scope="module")
def table():
    """Two columns that matter, one more than the other, and one that says nothing."""
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, size=(150, 3))
    X[:, 2] = 7.0
    return X, (3 * X[:, 0] + X[:, 1] > 0).astype(int) + (3 * X[:, 0] + X[:, 1] > 1.5)


@pytest.fixture(scope="module", params=["stump", "tree"])
def fitted(request, table):
    return MRBoostClassifier(0.05, base=request.param, n_rounds=12, random_state=0).fit(*table)


def test_importances_are_shares_of_the_variance(fitted, table):
    shares = fitted.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1] > shares[2] == 0
    X, _ = table
    if fitted.base_ == "stump":  # a sum over columns: let one of them vary at a time
        held = np.repeat(X[:1], len(X), axis=0)
        alone = [np.where(np.arange(3) == j, X, held) for j in range(3)]
        variance = np.array([fitted.model_.scores(Z).var(axis=0).sum() for Z in alone])
        assert shares == pytest.approx(variance / variance.sum())
        return
    explained = fitted.model_.importances(X, np.full(len(X), 1 / len(X)))
    parts = np.diff([stage.scores(X) for stage in fitted.model_.stages()], axis=0, prepend=0)
    assert explained.sum() == pytest.approx(parts.var(axis=1).sum())


def test_margins_by_column_are_those_of_smaller_balls(fitted, table):
    X, y = table
    for i in range(0, 150, 30):
        order, margins = margins_by_column(fitted.model_, X[i], y[i], fitted.eps_)
        assert sorted(order) == [0, 1, 2]
        for k in range(4):
            ball = np.where(np.isin(np.arange(3), order[:k]), fitted.eps_, 0.0)
            assert margins[k] == fitted.certify(X[[i]], y[[i]], eps=ball).margin[0]
        alone = [
            fitted.certify(X[[i]], y[[i]], eps=np.eye(3)[j] * fitted.eps_).margin[0] for j in order
        ]
        assert alone == sorted(alone)


def test_a_row_is_drawn_with_its_columns_and_its_verdict(fitted, table):
    X, y = table
    proof = fitted.certify(X, y)
    for row, verdict in (
        (proof.robust.argmax(), "proved robust"),
        (proof.misled.argmax(), "misled"),
    ):
        figure = fitted.plot_certificate(X, y, row)
        assert f"class {y[row]}: {verdict}" in figure.get_suptitle()
        (axes,) = figure.axes
        _, margins = margins_by_column(fitted.model_, X[row], y[row], fitted.eps_)
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
        assert [ends[0], ends[-1]] == pytest.approx([margins[0], margins[-1]])
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert len(names) == len(ends) == 2 + (np.diff(margins) < 0).sum()
        arrow = "→" if verdict == "misled" else "±"
        assert all(name.startswith("column ") and arrow in name for name in names[1:-1])
    with pytest.raises(ValueError, match="row is 150, but X has 150 rows"):
        fitted.plot_certificate(X, y, row=150)


def test_many_columns_share_a_bar():
    random = np.random.default_rng(0)
    X = random.normal(size=(100, 16))
    y = (X.sum(axis=1) > 0).astype(int)
    fitted = MRBoostClassifier(0.3, base="stump", n_rounds=60).fit(X, y)
    called = [f"sensor {j}" for j in range(16)]
    names = fitted.plot_certificate(X, y, -1, feature_names=called).axes[0].get_yticklabels()
    assert len(names) == 13
    assert names[1].get_text().startswith("sensor")
    assert names[-2].get_text().endswith("more columns")
