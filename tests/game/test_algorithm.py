"""MRBoost against Algorithm 1 written out, Theorem 4, AdaBoost and AdaBoost.MR."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from mrboost import InputError, game

RNG = np.random.default_rng(0)
# Value 1/7; the first classifier alone has margin −1/2
SWITCH = np.array([[1.0, -0.5], [-1.0, 1.0]])

matrices = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-8, 8).map(lambda k: k / 8))
)


def algorithm_one(
    matrix: np.ndarray, rounds: int, eta: float
) -> tuple[list[int], list[list[float]]]:
    """Algorithm 1, line by line, on lists: mg_L is minus the payoff."""
    loss = (-matrix).tolist()
    points = range(matrix.shape[1])
    played: list[int] = []
    distributions = []
    for _ in range(rounds):
        p = [math.exp(eta * sum(loss[h][i] for h in played)) for i in points]
        p = [w / sum(p) for w in p]
        distributions.append(p)
        played.append(min(range(len(loss)), key=lambda h: sum(p[i] * loss[h][i] for i in points)))
    return played, distributions


@pytest.mark.parametrize("eta", [0.01, 0.2, 1.0])
def test_it_is_algorithm_one(eta: float) -> None:
    matrix = RNG.normal(size=(7, 9))
    played, distributions = algorithm_one(matrix, 60, eta)
    run = game.mrboost(matrix, 60, eta=eta)
    assert run.choices.tolist() == played
    np.testing.assert_allclose(run.adversary, np.mean(distributions, axis=0), atol=1e-12)
    np.testing.assert_allclose(run.learner, np.bincount(played, minlength=7) / 60, atol=1e-15)
    margins = np.cumsum(matrix[played], axis=0) / np.arange(1, 61)[:, None]
    np.testing.assert_allclose(run.margin, margins.min(axis=1), atol=1e-12)
    np.testing.assert_allclose(run.margins, margins[-1], atol=1e-12)
    np.testing.assert_allclose(
        run.response, np.sum(distributions * matrix[played], axis=1), atol=1e-12
    )


@settings(deadline=None, max_examples=30)
@given(matrices, st.sampled_from(["practical", "theorem", "anytime", 0.7]))
def test_the_interval_contains_the_value_at_every_round(
    matrix: np.ndarray, eta: float | str
) -> None:
    run, value = game.mrboost(matrix, 40, eta=eta), game.solve(matrix).value
    assert (run.lower <= value + 1e-9).all()
    assert (value <= run.upper + 1e-9).all()
    assert (np.diff(run.lower) >= 0).all()
    assert (np.diff(run.upper) <= 0).all()
    best = run.mixture(1 + int(run.margin.argmax()))
    # The lower bound's witness
    assert (best @ matrix).min() == pytest.approx(run.lower[-1], abs=1e-12)
    for strategy in (run.learner, run.adversary, best):
        assert (strategy >= 0).all()
        assert strategy.sum() == pytest.approx(1)


def test_the_average_adversary_can_prove_more_than_any_single_one() -> None:
    """P_t swings about the equilibrium; the averages of the first t come nearer."""
    matrix = np.where(np.random.default_rng(1).random((40, 30)) < 0.6, 1.0, -1.0)
    run = game.mrboost(matrix, 2000, eta=0.2)
    assert game.solve(matrix).value - 1e-9 <= run.upper[-1] < run.response.min() - 0.01
    assert run.upper[-1] <= (matrix @ run.adversary).max() + 1e-12


# Games whose first best response is far from optimal, so that a run that stays
# there breaks the bounds.
HARD = {
    "switch": SWITCH,
    "shifted identity": 2 * np.eye(6) - 1 + 0.01 * np.arange(6)[:, None],
    "hard labels": np.where(np.random.default_rng(1).random((40, 30)) < 0.6, 1.0, -1.0),
    "scores of another scale": 5 * np.random.default_rng(2).normal(size=(12, 15)),
}


@pytest.mark.parametrize("matrix", HARD.values(), ids=HARD)
def test_theorem_four_for_every_horizon_and_along_the_run(matrix: np.ndarray) -> None:
    payoff = game.Payoff(matrix)
    value, n = game.solve(payoff).value, payoff.points
    for horizon in (*range(1, 30), 100, 1000, 3000):
        run = game.mrboost(payoff, horizon, eta="theorem")
        xi = game.theorem_bound(n, horizon, payoff.scale)
        assert run.eta[0] == pytest.approx(1 / (2 * payoff.scale * math.sqrt(horizon)))
        assert value <= run.margin[-1] + xi  # the first part
        assert run.concentration <= xi  # the second
        bounds = [game.regret_bound(n, t, run.eta[0], payoff.scale) for t in range(1, horizon + 1)]
        assert (value <= run.margin + bounds).all()
        assert bounds[-1] <= xi  # so the theorem follows
    xis = [game.theorem_bound(n, t, payoff.scale) for t in range(1, 3001)]
    anytime = game.mrboost(payoff, 3000, eta="anytime")
    assert (value <= anytime.margin + xis).all()
    assert matrix[run.choices[0]].min() + xis[-1] < value  # what one classifier for ever would do


def test_the_regret_bound_for_steps_that_are_too_large() -> None:
    """With a large η the first term vanishes, the run stalls, and the second
    term is what is left."""
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    stalled = 0
    for eta in (0.5, 2.0, 8.0):
        for game_matrix in (matrix, *HARD.values()):
            payoff = game.Payoff(game_matrix / np.abs(game_matrix).max())
            run, value = game.mrboost(payoff, 999, eta=eta), game.solve(payoff).value
            assert value <= run.margin[-1] + game.regret_bound(payoff.points, 999, eta)
            stalled += value > run.margin[-1] + math.log(payoff.points) / (eta * 999)
    assert stalled > 0


def test_theorem_four_needs_its_eta_to_be_equal_not_less() -> None:
    """The theorem says η <= 1/(2√T). For much smaller η, or early in a longer
    run, the bound is false."""
    slow = game.mrboost(SWITCH, 3000, eta=1e-6)  # less than 1/(2√3000) = 0.009
    assert slow.margin[-1] + game.theorem_bound(2, 3000) < 1 / 7 - 0.4
    eta = 1 / (2 * math.sqrt(1_000_000))  # of a run of a million rounds, looked at after 300
    early = game.mrboost(SWITCH, 300, eta=eta)
    assert eta < 1 / (2 * math.sqrt(300))
    assert early.margin[-1] + game.theorem_bound(2, 300) < 1 / 7 - 0.4
    assert early.margin[-1] + game.regret_bound(2, 300, eta) >= 1 / 7


# S = {(0, 1)}, B(ε) = [−1, 1]. Columns are the regions {0}, [0.2, 0.3] and the rest, of mass 0,
# 0.05 and 0.95 under the uniform P_1; the first classifier is wrong at 0 only, the second on [0.2,
# 0.3].
REGIONS = np.array([[-1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])


@pytest.mark.parametrize("eta", ["theorem", "practical", "anytime", 1.0])
def test_theorem_four_fails_for_an_infinite_ball(eta: float | str) -> None:
    """No P_t with a density sees {0}, so the first classifier, right almost
    everywhere, is played for ever."""
    assert game.solve(REGIONS).value == pytest.approx(0)
    cells = np.repeat(REGIONS, [0, 1, 19], axis=1)  # [−1, 1] in twenty of equal mass; {0} has none
    run = game.mrboost(cells, 18, eta=eta)
    assert (run.choices == 0).all()
    np.testing.assert_allclose(run.adversary, 1 / 20)  # every P_t is P_1
    margins = run.learner @ REGIONS
    assert margins.tolist() == [-1, 1, 1]
    xi = game.theorem_bound(1 * 2 * 2, 18)  # n K Vol(B(ε))
    assert xi < 1 < game.theorem_bound(1 * 2 * 2, 17)
    assert margins.min() + xi < 0  # the first part says >= the value
    # The second says <= ξ(T)
    assert run.adversary @ (run.learner @ cells) - margins.min() == pytest.approx(2)


def test_theorem_four_holds_for_the_same_regions_as_points() -> None:
    for horizon in (1, 18, 100, 1000):
        run, xi = game.mrboost(REGIONS, horizon, eta="theorem"), game.theorem_bound(3, horizon)
        assert run.margin[-1] + xi >= 0
        assert run.concentration <= xi
    assert set(run.choices) == {0, 1}


def test_the_averages_concentrate_on_the_worst_points_and_approach_the_equilibrium() -> None:
    run = game.mrboost(SWITCH, 20_000)
    np.testing.assert_allclose(run.learner, [4 / 7, 3 / 7], atol=0.01)
    np.testing.assert_allclose(run.adversary, [3 / 7, 4 / 7], atol=0.01)
    matrix = np.c_[SWITCH, [0.9, 0.9], [0.5, 0.6]]  # two points that are always easy
    run = game.mrboost(matrix, 20_000)
    assert run.adversary[2:].sum() < 0.01
    expected = run.adversary @ (run.learner @ matrix) - (run.learner @ matrix).min()
    assert run.concentration == pytest.approx(expected, abs=1e-12)


def test_weights_maximise_loss_minus_kl() -> None:
    """P_t maximises E_P[Σ_j mg_L(h_j)] − KL(P ‖ uniform) / η."""
    losses, eta = RNG.normal(size=8), 0.6

    def objective(p: np.ndarray) -> float:
        return float(p @ losses - (p * np.log(p * 8)).sum() / eta)

    seen: list[np.ndarray] = []
    rows = iter([-losses, np.zeros(8)])
    game.mrboost(game.Learner(lambda p: (seen.append(p), next(rows))[1], 8, scale=5), 2, eta=eta)
    best = objective(seen[1])
    # The maximum in closed form
    assert best == pytest.approx(math.log(np.exp(eta * losses).mean()) / eta)
    assert all(objective(p) <= best for p in RNG.dirichlet(np.ones(8), size=200))


def captured(payoffs: np.ndarray, rounds: int, eta: float) -> tuple[list[int], list[np.ndarray]]:
    """The classifiers and distributions of a run on a learner that searches ``payoffs``."""
    seen, chosen = [], []

    def respond(p: np.ndarray) -> np.ndarray:
        seen.append(p)
        chosen.append(int(np.round(payoffs @ p, 10).argmax()))  # rounded: ties go to the first
        return payoffs[chosen[-1]]

    game.mrboost(game.Learner(respond, payoffs.shape[1]), rounds, eta=eta)
    return chosen, seen


def test_two_classes_without_perturbations_is_adaboost_with_a_fixed_step() -> None:
    """Freund and Schapire: D_{t+1}(i) = D_t(i) exp(−α y_i h_t(x_i)) / Z_t with y and h in
    ±1, h_t of least error."""
    alpha, y, outputs = 0.15, RNG.integers(2, size=25), RNG.integers(2, size=(30, 25))
    signs, answers = 2 * y - 1, 2 * outputs - 1
    weights, chosen, distributions = np.full(25, 1 / 25), [], []
    for _ in range(40):
        distributions.append(weights)
        errors = [(weights[answer != signs]).sum() for answer in answers]
        chosen.append(int(np.argmin(np.round(errors, 10))))
        weights = weights * np.exp(-alpha * signs * answers[chosen[-1]])
        weights = weights / weights.sum()
    found, seen = captured(game.SAug(y, 2).labels(outputs).astype(float), 40, eta=alpha)
    assert found == chosen
    np.testing.assert_allclose(seen, distributions, atol=1e-12)
    assert len(set(chosen)) > 5


def test_more_classes_without_perturbations_is_adaboost_mr_with_a_fixed_step() -> None:
    """Schapire and Singer: D_{t+1}(i, l0, l1) ∝ D_t exp(½ α (h_t(x_i, l0) − h_t(x_i, l1))) over
    false l0 and true l1, h_t(x, l) = ±1, of largest r = ½ Σ D (h(x, l1) − h(x, l0))."""
    alpha, y, outputs = 0.2, RNG.integers(3, size=15), RNG.integers(3, size=(30, 15))
    triples = [(i, l0, int(y[i])) for i in range(15) for l0 in range(3) if l0 != y[i]]
    weights, chosen, distributions = np.full(30, 1 / 30), [], []

    def h(t: int, i: int, label: int) -> int:
        return 1 if outputs[t, i] == label else -1

    gaps = np.array([[h(t, i, l1) - h(t, i, l0) for i, l0, l1 in triples] for t in range(30)])
    for _ in range(40):
        distributions.append(weights)
        chosen.append(int(np.argmax(np.round(0.5 * gaps @ weights, 10))))
        weights = weights * np.exp(-0.5 * alpha * gaps[chosen[-1]])
        weights = weights / weights.sum()
    found, seen = captured(game.SAug(y, 3).labels(outputs).astype(float), 40, eta=alpha)
    assert found == chosen
    np.testing.assert_allclose(seen, distributions, atol=1e-12)
    assert len(set(chosen)) > 5


def test_rates_and_sharp_weights() -> None:
    payoff = game.Payoff(3 * np.eye(7))
    assert game.mrboost(payoff, 50).eta == pytest.approx(
        np.full(50, math.sqrt(math.log(7) / 50) / 3)
    )
    np.testing.assert_allclose(
        game.mrboost(payoff, 3, eta="anytime").eta, [1 / 6, 1 / 6 / 2**0.5, 1 / 6 / 3**0.5]
    )
    # Exponents of 1e7: only their differences may matter
    sharp = game.mrboost(payoff, 2000, eta=1e4)
    assert np.isfinite(sharp.adversary).all()
    assert sharp.lower[-1] == pytest.approx(3 / 7, abs=1e-3)


def test_it_stops_when_the_interval_is_narrow_enough() -> None:
    run = game.mrboost(SWITCH, 100_000, eta=0.05, tolerance=0.05)
    assert run.upper[-1] - run.lower[-1] <= 0.05 < run.upper[-2] - run.lower[-2]
    assert run.learner.sum() == pytest.approx(1)
    assert len(run.margin) == len(run.eta) == len(run.choices) < 5000


def test_a_learner_gives_the_run_of_its_matrix_and_an_inexact_one_no_upper_bound() -> None:
    matrix = RNG.uniform(-1, 1, (20, 12))
    run = game.mrboost(matrix, 80)
    learned = game.mrboost(
        game.Learner(lambda p: matrix[(matrix @ p).argmax()], 12, scale=np.abs(matrix).max()), 80
    )
    np.testing.assert_allclose(learned.margin, run.margin, atol=1e-12)
    np.testing.assert_allclose(learned.upper, np.minimum.accumulate(run.response), atol=1e-12)
    assert learned.learner.tolist() == [1 / 80] * 80
    rough = game.mrboost(game.Learner(lambda p: matrix[0], 12, exact=False), 10)
    assert rough.upper[-1] == math.inf
    assert rough.lower[-1] == pytest.approx(matrix[0].min())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: game.mrboost(SWITCH, 0), "rounds must be a whole number of at least 1, got 0"),
        (lambda: game.mrboost(SWITCH, 5, eta=0.0), "eta must be positive and finite, got 0.0"),
        (lambda: game.mrboost(SWITCH, 5, eta=math.nan), "eta must be positive"),
        (lambda: game.mrboost(SWITCH, 5, eta="practicle"), "did you mean practical"),
        (lambda: game.mrboost(SWITCH, 5).mixture(6), "1 … 5 rounds, got 6"),
        (lambda: game.Learner(lambda p: p, 0), "points >= 1"),
        (lambda: game.mrboost(game.Learner(lambda p: p[:1], 2), 5), "each of 2 points"),
        (lambda: game.mrboost(game.Learner(lambda p: np.nan * p, 2), 5), "within ±1, got nan"),
    ],
)
def test_mistakes_get_one_line(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        wrong()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
