"""scikit-learn's conventions, and what users can get wrong."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mrboost.tabular import MRBoostClassifier, RobustnessWarning, classifier, column_eps

Stumps = partial(MRBoostClassifier, base="stump")
QUICK = [
    MRBoostClassifier(n_rounds=3, max_thresholds=6),
    MRBoostClassifier(solver="hedge", n_rounds=20, nu=0.3, max_thresholds=12),
    MRBoostClassifier(solver="lp", nu=0.3, max_thresholds=6),
    MRBoostClassifier(base="tree", n_rounds=4, max_thresholds=12),
]


# Several checks fit random labels, and there the advice that eps is too large is right.
@pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
@parametrize_with_checks(QUICK)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"base": "stump"}, 4),  # column by column
        ({"base": "tree", "n_rounds": 8}, 8),
        ({"solver": "hedge", "n_rounds": 60, "nu": 0.3}, 60),
    ],
)
def test_fit_predict_certify_and_stages(iris, options, number):
    X, y = iris
    fitted = MRBoostClassifier(0.2, random_state=0, **options).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert 0.75 < fitted.robust_score(X, y) < fitted.score(X, y)
    assert fitted.robust_score(X, y, eps=0.0) <= fitted.score(X, y)
    assert (
        fitted.predict_proba(X).argmax(axis=1).tolist()
        == fitted.decision_function(X).argmax(axis=1).tolist()
    )
    stages = list(fitted.staged_predict(X))
    assert len(stages) == number
    assert (stages[-1] == fitted.predict(X)).all()
    assert list(fitted.staged_predict_proba(X))[-1] == pytest.approx(fitted.predict_proba(X))
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.decision_function(X) == fitted.decision_function(X)).all()
    assert (again.certify(X, y).margin == fitted.certify(X, y).margin).all()
    assert (clone(fitted).fit(X, y).decision_function(X) == fitted.decision_function(X)).all()
    assert "robust accuracy" in str(fitted.certify(X, y))


@pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
def test_search_over_eps_in_a_pipeline(iris):
    X, y = iris
    pipeline = make_pipeline(MinMaxScaler(), MRBoostClassifier(base="stump", n_rounds=50))
    grid = GridSearchCV(pipeline, {"mrboostclassifier__eps": [0.0, 0.05, 0.2]}, cv=3).fit(X, y)
    assert grid.best_params_["mrboostclassifier__eps"] < 0.2
    assert grid.best_score_ > 0.9


def test_eps_in_the_units_of_columns_is_min_max_scaling(iris):
    X, y = iris
    scaled = MinMaxScaler().fit_transform(X)
    own = Stumps(column_eps(X, 0.05)).fit(X, y)
    unit = Stumps(0.05).fit(scaled, y)
    assert own.robust_score(X, y) == pytest.approx(unit.robust_score(scaled, y), abs=0.02)


@pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
def test_robustness_costs_less_where_it_was_trained_for(iris):
    X, y = iris
    plain, robust = Stumps(0.0).fit(X, y), Stumps(0.3).fit(X, y)
    assert plain.certificate_.accuracy >= 0.98
    assert robust.robust_score(X, y, eps=0.3) > plain.robust_score(X, y, eps=0.3) + 0.03


def test_chosen_nu_is_neither_a_tie_nor_a_constant(iris):
    """Classes overlap within 2 eps, so the hard game is worth nothing; and one class is so frequent
    that always naming it looks good."""
    X, y = iris
    rows = np.concatenate([np.arange(50, 100), np.arange(100, 118)])
    fitted = MRBoostClassifier(0.15, solver="lp", max_thresholds=8, random_state=0).fit(
        X[rows], y[rows]
    )
    assert fitted.nu_ > 0
    assert fitted.certificate_.value[0] > 1e-9
    assert len(np.unique(fitted.predict(X[rows]))) == 2
    assert fitted.certificate_.attainable < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -0.1}, "eps is -0.1: use finite numbers >= 0"),
        ({"eps": [0.1, 0.2]}, r"eps has shape \(2,\), X has 4 features"),
        ({"eps": "much"}, "eps is 'much': use a number"),
        ({"base": "stmp"}, "'base' parameter .* must be a str among .*Got 'stmp'"),
        ({"solver": "hedge", "base": "tree"}, "needs base='stump'"),
        ({"nu": 1.5}, r"'nu' parameter .* range \[0.0, 1.0\]"),
        ({"max_depth": 0.5}, "'max_depth' parameter .*Got 0.5"),
    ],
)
def test_bad_parameters_get_one_line(iris, options, message):
    with pytest.raises(ValueError, match=message) as error:
        MRBoostClassifier(**options).fit(*iris)
    assert "\n" not in str(error.value)


def test_bad_tables_are_refused(iris):
    X, y = iris
    for bad in (np.nan, np.inf):
        spoiled = X.copy()
        spoiled[3, 1] = bad
        with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
            MRBoostClassifier().fit(spoiled, y)
    with pytest.raises(ValueError, match="one class"):
        MRBoostClassifier().fit(X[:50], y[:50])
    with pytest.raises(ValueError, match=r"text .*OneHotEncoder"):
        MRBoostClassifier().fit(np.array([["a", "1"], ["b", "2"]], dtype=object), [0, 1])
    with pytest.raises(ValueError, match="labels that fit has not seen"):
        Stumps().fit(X, y).certify(X[:1], ["rosa"])


def test_categorical_columns_are_named(iris):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"petal": iris[0][:, 2], "colour": pandas.Categorical(["red", "blue", "red"] * 50)}
    )
    with pytest.raises(ValueError, match="column 'colour' is categorical: encode"):
        MRBoostClassifier().fit(frame, iris[1])


def test_constant_columns_do_not_matter(iris):
    X, y = iris
    wide = np.column_stack([np.full(len(X), 7.0), X])
    found, expected = Stumps(0.2).fit(wide, y), Stumps(0.2).fit(X, y)
    assert (found.predict(wide) == expected.predict(X)).all()


def test_nothing_but_a_constant_column_names_the_most_frequent_class(iris):
    X, y = np.full((80, 1), 7.0), iris[1][:80]
    with pytest.warns(RobustnessWarning, match="one class everywhere"):
        constant = MRBoostClassifier().fit(X, y)
    assert (constant.predict(X) == "setosa").all()
    assert constant.certify(X, y).radius.tolist() == np.where(y == "setosa", np.inf, 0.0).tolist()


def test_as_many_classes_as_points():
    X = np.arange(5.0)[:, None]
    fitted = MRBoostClassifier(0.1).fit(X, np.arange(5))
    assert fitted.robust_score(X, np.arange(5)) == 1


def test_too_large_an_eps_is_said_plainly(iris):
    X, y = iris
    with pytest.warns(
        RobustnessWarning, match="no classifier can have more than 50.0% of them right"
    ):
        Stumps(50.0).fit(X, y)


def test_progress_is_shown_on_request(iris, monkeypatch):
    seen = []

    class Bar:
        def __init__(self, total, desc, disable):
            seen.append({"total": total, "shown": disable is None, "steps": 0})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self):
            seen[-1]["steps"] += 1

    monkeypatch.setattr(classifier, "tqdm", Bar)
    MRBoostClassifier(0.2, solver="hedge", nu=0.3, n_rounds=20, verbose=1).fit(*iris)
    MRBoostClassifier(0.2, solver="hedge", n_rounds=2).fit(*iris)
    assert seen[0] == {"total": 20, "shown": True, "steps": 20}
    assert not seen[1]["shown"]
    assert 2 < seen[1]["steps"] <= seen[1]["total"]
