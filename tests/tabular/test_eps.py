"""eps by column: by name, in which units, and how a certificate prints it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mrboost.tabular import MRBoostClassifier, RobustnessWarning, column_eps
from mrboost.tabular.cells import in_column_order

COLUMNS = ["age", "income", "years at school"]


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        ({"age": 1, "incme": 2, "years at school": 0}, "'incme': did you mean income?"),
        ({"age": 1, "wage": 2, "years at school": 0}, "'wage': known: income$"),
        ({"age": 1, "income": 2, "years at school": 0, "size": 1}, "'size': known: age, income"),
        ({"age": 1}, "leaves out 'income', 'years at school': give every column a number"),
    ],
)
def test_a_wrong_name_is_named_with_what_was_meant(eps, message):
    with pytest.raises(ValueError, match=message):
        in_column_order(eps, COLUMNS)


def test_names_give_the_order_of_the_columns():
    assert in_column_order({"income": 2, "years at school": 3, "age": 1}, COLUMNS) == [1, 2, 3]
    X, y = np.arange(6.0).reshape(2, 3), [0, 1]
    with pytest.raises(ValueError, match="by column name, but X has no column names"):
        MRBoostClassifier({"age": 1}).fit(X, y)


def test_data_frames_and_series():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.arange(12.0).reshape(4, 3), columns=COLUMNS)
    eps = pandas.Series({"income": 0.2, "age": 0.1, "years at school": 0.0})
    fitted = MRBoostClassifier(eps).fit(X, [0, 0, 1, 1])
    assert fitted.eps_.tolist() == [0.1, 0.2, 0.0]
    with pytest.raises(ValueError, match="did you mean income"):
        MRBoostClassifier(eps.rename({"income": "incme"})).fit(X, [0, 0, 1, 1])


def test_one_eps_for_columns_of_other_scales_is_doubted():
    random = np.random.default_rng(0)
    X = random.uniform(size=(40, 4)) * [1.0, 2000.0, 100.0, 0.0]
    y = (X[:, 1] > 1000).astype(int)
    doubt = "eps=0.01 holds for every column, but column 1 ranges over 1.* and column 0 over 0"
    with pytest.warns(RobustnessWarning, match=doubt):
        fitted = MRBoostClassifier(0.01, base="stump").fit(X, y)
    with pytest.warns(RobustnessWarning, match=doubt):
        fitted.robust_score(X, y, eps=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MRBoostClassifier(column_eps(X, 0.01), base="stump").fit(X, y)
        MRBoostClassifier(np.full(4, 0.01), base="stump").fit(X, y)  # said of each column
        MRBoostClassifier(0, base="stump").fit(X, y)
        MRBoostClassifier(0.01, base="stump").fit(X[:, [1, 2]] / 50, y)  # 20 times as wide only


def test_a_certificate_prints_its_eps():
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 0, 1, 1])
    fitted = MRBoostClassifier([0.25, 0.0]).fit(X, y)
    assert "4 points, eps 0 to 0.25, by column, margins: exact" in str(fitted.certify(X, y))
    assert "4 points, eps 0.5 in every column" in str(fitted.certify(X, y, eps=0.5))
