"""Trees: what the ball meets, the treewise bound, and the search, against enumeration
and against veritas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mrboost.tabular import MRBoostClassifier
from mrboost.tabular.cells import Cells
from mrboost.tabular.cover import Table, TreeCover
from mrboost.tabular.fitting import default_rounds
from mrboost.tabular.growing import grow_forest
from mrboost.tabular.search import Leaves, find_nonpositive
from veritas_check import least_score

pytestmark = pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")


def forest(classes, seed=0, rounds=6, **options):
    random = np.random.default_rng(seed)
    y = np.arange(60) % classes
    X = np.round(random.normal(size=(60, 3)) + y[:, None] * [1.5, 0.7, -1.0], 1)
    return (
        MRBoostClassifier(
            0.3, base="tree", n_rounds=rounds, max_depth=3, random_state=0, **options
        ).fit(X, y),
        X,
        y,
    )


def everywhere(model, x, eps):
    """One point in every cell of every tree that meets the ball."""
    axes = []
    for j in range(len(x)):
        cuts = np.concatenate([tree.threshold[tree.feature == j] for tree in model.trees])
        points = np.concatenate([cuts, np.nextafter(cuts, np.inf), [x[j] - eps, x[j] + eps, x[j]]])
        axes.append(np.unique(points[(points >= x[j] - eps) & (points <= x[j] + eps)]))
    return np.array(list(itertools.product(*axes)))


@pytest.mark.parametrize("solver", ["smooth", "lp"])
@pytest.mark.parametrize("classes", [2, 3])
def test_certificate_is_true_and_complete(classes, solver):
    fitted, X, y = forest(classes, solver=solver, nu=0.8)
    model, eps = fitted.model_, 0.3
    found = fitted.certify(X, y)
    assert found.kind == "lower bound"
    assert 0 < found.robust.mean() < 1
    for i in range(0, len(X), 2):
        points = everywhere(model, X[i], eps)
        worst = model.pairs.against(model.scores(points), y[i]).min()
        assert found.margin[i] <= worst + 1e-9
        assert found.robust[i] == (worst > model.tolerance)
        if found.robust[i]:
            assert (fitted.predict(points) == y[i]).all()
        else:
            z = found.witness[i]
            assert (np.abs(z - X[i]) <= eps * (1 + 1e-12)).all()
            assert model.pairs.against(model.scores(z[None]), y[i]).min() <= model.tolerance
            assert found.misled[i] == (fitted.predict(z[None])[0] != y[i])


def test_groups_know_their_least_cells():
    """For all points and for some of them, against a loop over the leaves that each ball meets."""
    fitted, X, _ = forest(3)
    eps = np.full(3, 0.3)
    values = np.random.default_rng(0).normal(size=(int(fitted.model_.offset[-1]), 2))
    cover = TreeCover.of(fitted.model_.trees, X, eps)
    for rows in (np.arange(len(X)), np.arange(0, len(X), 7)):
        part = cover.part(rows)
        least, cell = part.minima(values)
        position, members = part.members(np.arange(len(part.start)))
        for t, tree in enumerate(fitted.model_.trees):
            met, leaves = tree.routes(X[rows], eps)
            for i, group in enumerate(part.group[:, t]):
                cells = fitted.model_.offset[t] + leaves[met == i]
                assert sorted(members[position == group]) == sorted(cells)
                assert (least[group] == values[cells].min(axis=0)).all()
                assert (values[cell[group], [0, 1]] == least[group]).all()
        np.testing.assert_allclose(part.incidence @ least, least[part.group].sum(axis=1))


def test_each_tree_sees_two_classes():
    """Column 0 sets class 2 apart, column 1 the other two: one split for every pair
    of classes finds both."""
    y = np.arange(90) % 3
    X = (
        np.random.default_rng(0).uniform(-0.1, 0.1, size=(90, 2))
        + np.array([[0, 0], [0, 1], [9, 0]])[y]
    )
    eps = np.full(2, 0.1)
    table = Table(X, y, np.full(90, 1 / 90), eps, classes=3, points=90)
    trees = grow_forest(Cells.of(X, eps), table, seed=0, numbers=np.arange(3), depth=1)
    assert sorted(int(tree.feature[0]) for tree in trees) == [0, 0, 1]


@pytest.mark.parametrize(("classes", "trees"), [(2, 100), (4, 240), (10, 1800), (20, 426)])
def test_usual_number_of_trees_grows_with_the_pairs_up_to_a_bound(classes, trees):
    assert default_rounds("tree", "smooth", classes) == trees


def test_double_oracle_raises_the_value():
    """More trees, grown against the adversary of the first: the game on them is
    worth at least as much."""
    values = [
        forest(2, solver="lp", nu=0.8, rounds=rounds)[0].certificate_.value[0]
        for rounds in (1, 5, 25)
    ]
    assert values[0] <= values[1] + 1e-9
    assert values[1] < values[2]


def test_search_says_when_it_does_not_know():
    fitted, X, _ = forest(2)
    leaves, value = Leaves.of(fitted.model_, 3), fitted.model_.values[:, 0]
    eps = np.full(3, 0.3)
    answers = {
        find_nonpositive(leaves, value, float(fitted.model_.bias[0]), x, eps, limit=1)[0] for x in X
    }
    assert None in answers


def test_a_tree_reaches_what_the_stump_cannot():
    """Exclusive or: no sum over columns does it, depth two does, robustly."""
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, size=(400, 2))
    X = X[(np.abs(X) > 0.2).all(axis=1)]
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    tree = MRBoostClassifier(0.1, base="tree", max_depth=3, random_state=0).fit(X, y)
    assert tree.robust_score(X, y) > 0.95
    assert MRBoostClassifier(0.1, base="stump").fit(X, y).robust_score(X, y) < 0.7


def test_search_against_veritas():
    pytest.importorskip(
        "veritas", reason="dtai-veritas is not installed: pip install 'mrboost[trees]'"
    )
    X, y = load_digits(return_X_y=True)
    X, y = X[(y == 2) | (y == 6)] / 16, y[(y == 2) | (y == 6)]
    fitted = MRBoostClassifier(0.15, base="tree", n_rounds=15, random_state=0).fit(X[::2], y[::2])
    found = fitted.certify(X[1::2], y[1::2])
    assert 0 < found.robust.mean() < 1
    codes = np.searchsorted(fitted.classes_, y[1::2])
    for x, label, robust in list(zip(X[1::2], codes, found.robust, strict=True))[:60]:
        least = least_score(fitted.model_, int(label), 1 - int(label), x, fitted.eps_)
        assert (least > 0) == robust
