"""The game and the certificates against enumeration: every stump, every cell, every
false label, written out."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import logsumexp

from mrboost.tabular import MRBoostClassifier, RobustnessWarning, attainable_accuracy
from mrboost.tabular.cells import Cells, RangeSums, range_minima, useful_thresholds
from mrboost.tabular.certificate import certify
from mrboost.tabular.cover import StumpCover, Table
from mrboost.tabular.hedge import Game, best_response, capped, play, soft_minimum

# Tiny tables are hard ones
pytestmark = pytest.mark.filterwarnings("ignore::mrboost.tabular.RobustnessWarning")
Stumps = partial(MRBoostClassifier, base="stump")


def small_table(seed, n=7, d=2, classes=2, levels=9):
    """Whole numbers, so that ends of balls meet values and thresholds exactly."""
    random = np.random.default_rng(seed)
    X = random.integers(0, levels, size=(n, d)).astype(float)
    y = np.concatenate([np.arange(classes), random.integers(0, classes, n - classes)])
    return X, y


def moves(x, eps, X, radius):
    """Representatives of everything the ball around x can look like to any
    threshold on a fine grid."""
    axes = []
    for j in range(len(x)):
        low, high = x[j] - eps[j], x[j] + eps[j]
        critical = np.unique(np.concatenate([X[:, j] + radius[j], X[:, j] - radius[j]]))
        middles = (critical[1:] + critical[:-1]) / 2
        points = np.concatenate([critical, middles, [low, high, x[j]]])
        axes.append(np.unique(points[(points >= low) & (points <= high)]))
    return np.array(list(itertools.product(*axes)))


def all_stumps(X, eps, classes):
    """(column, threshold, left, right): thresholds at and between all ends of
    balls, pruned in no way."""
    found = [(0, np.inf, a, a) for a in range(classes)]
    for j in range(X.shape[1]):
        ends = np.unique(np.concatenate([X[:, j] + eps[j], X[:, j] - eps[j]]))
        for t in np.concatenate([ends, (ends[1:] + ends[:-1]) / 2]):
            found += [(j, t, a, b) for a in range(classes) for b in range(classes) if a != b]
    return found


def payoff(X, y, eps, classes):
    """One row per (i, y', delta), one column per stump: [h = y] - [h = y']; and
    the point of each row."""
    stumps = all_stumps(X, eps, classes)
    rows, owner = [], []
    for i in range(len(X)):
        for z in moves(X[i], eps, X, eps):
            vote = np.array([a if z[j] <= t else b for j, t, a, b in stumps])
            for other in set(range(classes)) - {y[i]}:
                rows.append((vote == y[i]).astype(float) - (vote == other))
                owner.append(i)
    return np.array(rows), np.array(owner)


def brute_value(matrix, owner, n, nu):
    """max over mixtures of the mean margin of the worst nu n points: the primal over
    all stumps, row by row."""
    rows, columns = matrix.shape
    slack = np.zeros((rows, n))
    slack[np.arange(rows), owner] = 1
    cost = np.concatenate([np.zeros(columns), [-1.0], np.full(n, 1 / (nu * n) if nu else 0.0)])
    left = np.hstack([-matrix, np.ones((rows, 1)), -slack if nu else 0 * slack])
    equal = np.concatenate([np.ones(columns), np.zeros(n + 1)])[None]
    bounds = [(0, None)] * columns + [(None, None)] + [(0, None)] * n
    return -linprog(cost, left, np.zeros(rows), equal, [1.0], bounds).fun


@pytest.mark.parametrize("nu", [0.0, 0.4])
@pytest.mark.parametrize(
    ("seed", "classes", "eps"),
    [(0, 2, 0.0), (1, 2, 1.0), (2, 2, 0.75), (3, 3, 1.0), (4, 3, 0.6), (5, 3, 0.0)],
)
def test_lp_has_the_value_of_the_whole_game(seed, classes, eps, nu):
    X, y = small_table(seed, n=6, classes=classes)
    radius = np.full(2, eps)
    matrix, owner = payoff(X, y, radius, classes)
    expected = brute_value(matrix, owner, len(X), nu)
    fitted = Stumps(eps, solver="lp", nu=nu).fit(X, y)
    low, high = fitted.certificate_.value
    assert low == pytest.approx(expected, abs=1e-9)
    assert high == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_pruned_thresholds_lose_nothing(seed):
    """Useful thresholds lie in gaps [x + eps, x' - eps), one per gap, and separate all that any
    threshold separates."""
    random = np.random.default_rng(seed)
    x, eps = random.integers(0, 30, 12) / 2.0, random.choice([0.0, 0.5, 1.0, 2.2])
    useful = useful_thresholds(x, eps)
    fine = np.unique(np.concatenate([x - eps, x + eps]))
    fine = np.concatenate([fine, (fine[1:] + fine[:-1]) / 2])

    def sure(t):
        return frozenset(np.flatnonzero(x + eps <= t)), frozenset(np.flatnonzero(x - eps > t))

    kept = [sure(t) for t in useful]
    assert len(set(kept)) == len(kept)
    for t in fine:
        left, right = sure(t)
        if left and right:
            assert any(left <= a and right <= b for a, b in kept)


@pytest.mark.parametrize(
    ("classes", "solver"), [(2, "lp"), (2, "hedge"), (3, "smooth"), (3, "lp"), (3, "hedge")]
)
def test_stump_certificate_equals_enumeration(classes, solver):
    """Least scores over all cells; a tie is an error; witnesses lie in the ball and are
    where the vote is lost."""
    for seed in range(4):
        X, y = small_table(seed, n=12, d=2, classes=classes)
        test, labels = small_table(100 + seed, n=12, d=2, classes=classes)
        eps = np.array([1.0, 0.5])
        fitted = Stumps(eps, solver=solver, nu=0.5, n_rounds=40).fit(X, y)
        model, cells = fitted.model_, fitted.model_.cells
        found = fitted.certify(test, labels)
        for i in range(len(test)):
            grid = [
                np.unique(
                    np.concatenate(
                        [
                            t[(t >= x - e) & (t <= x + e)],
                            np.nextafter(t, 99)[(t >= x - e) & (t < x + e)],
                            [x - e, x + e],
                        ]
                    )
                )
                for t, x, e in zip(cells.thresholds, test[i], eps, strict=True)
            ]
            points = np.array(list(itertools.product(*grid)))
            scores = model.scores(points)
            worst = model.pairs.against(scores, labels[i]).min()
            assert found.margin[i] == pytest.approx(worst, abs=1e-9)
            assert found.robust[i] == (worst > model.tolerance)
            if found.robust[i]:
                assert (fitted.predict(points) == labels[i]).all()
                assert np.isnan(found.witness[i]).all()
            else:
                z = found.witness[i]
                assert (z >= test[i] - eps).all()
                assert (z <= test[i] + eps).all()
                assert (
                    model.pairs.against(model.scores(z[None]), labels[i]).min() <= model.tolerance
                )
                assert found.misled[i] == (fitted.predict(z[None])[0] != labels[i])
                assert (
                    found.misled[i] or classes > 2 or abs(worst) <= model.tolerance
                )  # two classes: only a tie can fail


def test_a_radius_is_withstood_and_a_little_more_is_not():
    X, y = small_table(0, n=30, d=3, classes=3, levels=40)
    fitted = Stumps(2.0).fit(X, y)
    radius = fitted.certify(X, y).radius
    finite = np.isfinite(radius) & (radius > 0)
    assert finite.sum() > 5
    for i in np.flatnonzero(finite):
        assert fitted.certify(X[[i]], y[[i]], eps=radius[i]).robust[0]
        assert not fitted.certify(X[[i]], y[[i]], eps=radius[i] + 1e-6).robust[0]
    wrong = fitted.certify(X, y, eps=0.0).margin <= 0
    assert (radius[wrong] == 0).all()


def test_radius_scales_columns_in_proportion():
    X, y = small_table(1, n=30, d=2, classes=2, levels=40)
    fitted = Stumps([2.0, 1.0]).fit(X, y)
    found = fitted.certify(X, y)
    for i in np.flatnonzero(np.isfinite(found.radius) & (found.radius > 0)):
        at = np.array([1.0, 0.5]) * found.radius[i]
        assert fitted.certify(X[[i]], y[[i]], eps=at).robust[0]
        assert not fitted.certify(X[[i]], y[[i]], eps=at * (1 + 1e-6) + 1e-9).robust[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_adversary_of_algorithm_one_is_the_enumerated_one(classes):
    """P_t by factors equals exp(eta * summed losses) over all (i, y', combination
    of cells), normalised."""
    X, y = small_table(3, n=6, d=2, classes=classes)
    eps = np.array([1.0, 1.5])
    cells = Cells.of(X, eps)
    table = Table(X, y, np.full(len(y), 1 / len(y)), eps, classes, len(y))
    game = Game(StumpCover.of(cells, X, eps), table, 0.0)
    play(game, 7)
    eta = 0.4
    low, high = cells.reach(X, eps)
    entries, weights = [], []
    for i in range(len(X)):
        for combination in itertools.product(
            *(range(a, b + 1) for a, b in zip(low[i], high[i], strict=True))
        ):
            votes = game.votes[list(combination)].sum(axis=0) + game.constant
            for other in set(range(classes)) - {y[i]}:
                entries.append((i, y[i], other, combination))
                weights.append(eta * (votes[other] - votes[y[i]]))
    share = np.exp(np.array(weights) - logsumexp(weights))
    mass, by_point = np.zeros((cells.count, classes, classes)), np.zeros(len(X))
    for (i, label, other, combination), p in zip(entries, share, strict=True):
        by_point[i] += p
        for cell in combination:
            mass[cell, label, other] += p
    found, found_points = game.adversary(eta)
    assert found == pytest.approx(mass, abs=1e-12)
    assert found_points == pytest.approx(by_point, abs=1e-12)
    assert game.log_size() == pytest.approx(math.log(len(entries)))
    # Its best response, stump by stump; behind the last cell of a column a stump is a constant.
    best = -1.0
    for j, a, b in itertools.product(range(2), range(classes), range(classes)):
        for last in range(cells.offset[j], cells.offset[j + 1]):
            gain = 0.0
            for (_, label, other, z), p in zip(entries, share, strict=True):
                vote = a if z[j] <= last else b
                gain += p * ((vote == label) - float(vote == other))
            best = max(best, gain)
    assert best_response(game.cover, found)[0] == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("nu", [0.0, 0.4])
@pytest.mark.parametrize("classes", [2, 3])
def test_hedge_encloses_the_value_and_closes_in(classes, nu):
    X, y = small_table(6, n=8, d=2, classes=classes, levels=20)
    exact = Stumps(1.0, solver="lp", nu=nu).fit(X, y).certificate_.value[0]
    widths = []
    for rounds in (30, 800):
        low, high = Stumps(1.0, solver="hedge", nu=nu, n_rounds=rounds).fit(X, y).certificate_.value
        assert low <= exact + 1e-9
        assert high >= exact - 1e-9
        widths.append(high - low)
    assert widths[1] < 0.2
    assert widths[1] < widths[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_smooth_fit_encloses_the_value_of_the_hard_game(classes):
    X, y = small_table(6, n=8, d=2, classes=classes, levels=20)
    exact = Stumps(1.0, solver="lp", nu=0).fit(X, y).certificate_.value[0]
    low, high = Stumps(1.0).fit(X, y).certificate_.value
    assert low <= exact + 1e-9
    assert high >= exact - 1e-9
    assert high < 1


def test_range_queries_do_not_cancel():
    random = np.random.default_rng(0)
    values = random.normal(size=(40, 3)) * 300
    low = random.integers(0, 40, 60)
    high = np.minimum(low + random.integers(0, 40, 60), 39)
    least, where = range_minima(values, low, high)
    sums = RangeSums.of(values, low, high)
    mass = random.random((60, 3))
    spread = np.zeros_like(values)
    for g, (a, b) in enumerate(zip(low, high, strict=True)):
        assert (least[g] == values[a : b + 1].min(axis=0)).all()
        assert (values[where[g], range(3)] == least[g]).all()
        assert sums.total[g] == pytest.approx(logsumexp(values[a : b + 1], axis=0), rel=1e-13)
        spread[a : b + 1] += mass[g] * np.exp(
            values[a : b + 1] - logsumexp(values[a : b + 1], axis=0)
        )
    assert sums.spread(mass) == pytest.approx(spread, rel=1e-10)


def test_capped_weights_and_the_mean_of_the_worst():
    share = capped(np.log([0.7, 0.1, 0.1, 0.1]), np.full(4, 0.4))
    assert share == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert capped(np.log([0.5, 0.3, 0.2]), np.full(3, 1 / 3)) == pytest.approx([1 / 3] * 3)
    margins, weight = np.array([0.3, -1.0, 0.5, 0.1]), np.full(4, 0.25)
    assert soft_minimum(margins, weight, 0.0) == -1.0
    assert soft_minimum(margins, weight, 0.5) == pytest.approx((-1.0 + 0.1) / 2)
    assert soft_minimum(margins, weight, 0.3) == pytest.approx((0.25 * -1.0 + 0.05 * 0.1) / 0.3)


@pytest.mark.parametrize("classes", [2, 3])
def test_attainable_accuracy_against_all_subsets(classes):
    for seed in range(6):
        X, y = small_table(seed, n=9, d=2, classes=classes, levels=6)
        eps = np.array([1.0, 0.5])
        clash = [
            (i, j)
            for i, j in itertools.combinations(range(9), 2)
            if y[i] != y[j] and (np.abs(X[i] - X[j]) <= 2 * eps).all()
        ]
        best = max(
            len(s)
            for r in range(10)
            for s in itertools.combinations(range(9), r)
            if not any(i in s and j in s for i, j in clash)
        )
        found = attainable_accuracy(X, y, eps) * 9
        assert found == pytest.approx(best) if classes == 2 else found >= best - 1e-9


def test_a_column_that_cannot_move_separates_twins():
    X, y = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]]), np.array([0, 1, 1])
    assert attainable_accuracy(X, y, [1.0, 5.0]) == pytest.approx(2 / 3)
    assert attainable_accuracy(X, y, [1.0, 0.0]) == pytest.approx(2 / 3)
    assert attainable_accuracy(X[:2], y[:2], [1.0, 0.0]) == 1
    fitted = Stumps([1.0, 0.0]).fit(X[:2], y[:2])
    assert fitted.robust_score(X[:2], y[:2]) == 1


def test_overlapping_classes_make_the_hard_game_worthless():
    X, y = np.array([[0.0], [1.0], [5.0], [6.0]]), np.array([0, 1, 0, 1])
    with pytest.warns(
        RobustnessWarning, match="worth nothing.*use nu=.*no classifier can have more than 50.0%"
    ):
        fitted = Stumps(0.5, solver="lp", nu=0.0).fit(X, y)
    assert fitted.certificate_.value == pytest.approx((0, 0), abs=1e-9)


def test_certificate_of_training_points_matches_certify():
    X, y = small_table(2, n=20, d=3, classes=3)
    fitted = Stumps(1.0).fit(X, y)
    assert (fitted.certificate_.margin == fitted.certify(X, y).margin).all()
    assert (certify(fitted.model_, X, y, np.zeros(3)).robust <= (fitted.predict(X) == y)).all()


@pytest.mark.parametrize("offset", [0.0, 1e7, 3e7, 1.6e9, 1e12])
@pytest.mark.parametrize("base", ["stump", "tree"])
def test_radius_far_from_zero(base, offset):
    """Where x + radius rounds, the threshold must still be passed: no row here
    withstands more than half."""
    X, y = offset + np.repeat([0.0, 1.0], 8)[:, None], np.repeat([0, 1], 8)
    fitted = MRBoostClassifier(0.1, base=base, random_state=0).fit(X, y)
    found = fitted.certify(X, y)
    assert found.robust.all()
    assert found.radius == pytest.approx(np.full(16, 0.5), rel=1e-2)
    assert fitted.robust_score(X, y, eps=0.6) == 0


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12])
def test_radius_of_small_and_large_units(scale):
    X, y = scale * np.repeat([0.0, 1.0], 8)[:, None], np.repeat([0, 1], 8)
    found = Stumps(0.1 * scale).fit(X, y).certify(X, y)
    assert found.robust.all()
    assert found.radius == pytest.approx(np.full(16, 0.5 * scale), rel=1e-2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chosen_nu_does_not_end_in_a_tie_where_a_larger_one_would_not(seed):
    random = np.random.default_rng(seed)
    y = np.repeat([0, 1], 60)
    X = random.normal(size=(120, 2)) + y[:, None]
    with pytest.warns(RobustnessWarning, match="no classifier can have more than"):
        fitted = Stumps(0.5, solver="lp", random_state=0).fit(X, y)
    assert fitted.certificate_.value[0] > 1e-6
    assert fitted.certificate_.robust_accuracy > 0.4


def test_trees_count_rows_not_distinct_rows():
    """Exclusive-or of two binary columns: four distinct rows, many of each."""
    X = np.tile([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], (50, 1))
    y = (X[:, 0] != X[:, 1]).astype(int)
    assert MRBoostClassifier(0.1, base="tree", random_state=0).fit(X, y).robust_score(X, y) == 1
