"""Attacks in the L1 ball against the oracle, ``pyautoattack``, which
``benchmarks/autoattack.py --norm L1`` runs in full."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import APGD, FAB, PGD, AutoAttack, Search, Square
from mrboost.attacks.survivors import Points, run
from mrboost.threat import ball

oracle = pytest.importorskip("pyautoattack", reason="needs pyautoattack, the oracle")
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted  # noqa: E402
from pyautoattack.fab_pt import FABAttack_PT  # noqa: E402
from pyautoattack.square import SquareAttack  # noqa: E402

EPS = 1.5


@pytest.fixture
def points(model: nn.Module, digits) -> tuple[Tensor, Tensor]:
    """Images that the model has right."""
    x, y = digits.test.images()[:100], digits.test.y[:100]
    right = model(x).argmax(1) == y
    return x[right], y[right]


def survivors(model: nn.Module, x: Tensor, y: Tensor, adv: Tensor) -> Tensor:
    """Which points still stand; images outside the ball or the box break nothing."""
    inside = ball("L1", EPS).distance(adv, x) <= EPS * (1 + 1e-5)
    assert ((adv >= 0) & (adv <= 1)).all()
    with torch.no_grad():
        return (model(adv).argmax(1) == y) | ~inside


@pytest.mark.parametrize("targeted", [False, True])
def test_apgd_walks_the_same_path_from_the_same_start(
    targeted: bool, model: nn.Module, points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three radii of 30, 30 and 40 iterations in double precision: the same successes, and nearly
    everywhere the same image. The oracle's projection rounds otherwise, and pixels of equal
    gradients may go either way."""
    twin, x, y = deepcopy(model).double(), points[0][:40].double(), points[1][:40]
    search = APGD(EPS, "L1", targets=5 if targeted else 0)
    known = Points.of(twin, x, y, 0)
    state = {"x": x, "y": y, "t": torch.zeros_like(y), "hit": torch.zeros_like(y, dtype=torch.bool)}
    state |= search.begin(x, y, known.ranking, known.keys, torch.full_like(y, int(targeted)))
    start = state["adv"]
    for _ in range(search.evaluations()):
        state = search.step(twin, state)
    kind = APGDAttack_targeted if targeted else APGDAttack
    theirs = kind(twin, eps=EPS, norm="L1", device="cpu", use_largereps=True)
    theirs.init_hyperparam(x)
    theirs.y_target = state["target"]
    monkeypatch.setattr(torch, "randn_like", lambda images: start - images)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    radii, iterations = [3 * EPS, 2 * EPS, EPS], [30, 30, 40]
    image, correct, _, _ = theirs.decr_eps_pgd(x, y, radii, iterations)
    assert torch.equal(state["hit"], ~correct.bool())
    assert 0.05 < state["hit"].double().mean() < 0.95
    same = (state["best"] - image).abs().flatten(1).amax(dim=1) < 1e-6
    assert same.double().mean() >= 0.7


@pytest.mark.parametrize("targeted", [False, True])
def test_fab_breaks_the_same_points(targeted: bool, model: nn.Module, points) -> None:
    x, y = points
    ours = FAB(EPS, "L1", steps=20, targets=int(targeted))
    theirs = FABAttack_PT(
        model, norm="L1", eps=EPS, n_iter=20, targeted=targeted, device="cpu", seed=0
    )
    theirs.n_target_classes = 1
    expected = survivors(model, x, y, theirs.perturb(x, y))
    assert 0.05 < expected.float().mean() < 0.95
    found = run(model, x, y, [ours], 0)
    assert torch.equal(survivors(model, x, y, found.adv), found.alive)
    assert (found.alive != expected).float().mean() <= 0.02


def test_square_is_as_strong(model: nn.Module, points) -> None:
    x, y = points
    eps = 2.5
    theirs = SquareAttack(
        model, norm="L1", eps=eps, n_queries=100, resc_schedule=False, seed=0, device="cpu"
    )
    with torch.no_grad():
        expected = (model(theirs.perturb(x, y)).argmax(1) == y).float().mean().item()
    found = run(model, x, y, [Square(eps, "L1", steps=100)], 0)
    assert (ball("L1", eps).distance(found.adv, x) <= eps * (1 + 1e-5)).all()
    assert 0.1 < expected < 0.9
    assert found.alive.float().mean().item() == pytest.approx(expected, abs=0.1)


def test_settings_are_the_oracles() -> None:
    theirs = oracle.AutoAttack(nn.Identity(), eps=1.0, norm="L1")
    apgd, aimed, fab, square = AutoAttack(1.0, "L1").searches
    assert theirs.apgd.use_largereps
    assert theirs.apgd_targeted.use_largereps
    assert apgd == APGD(1.0, "L1", steps=theirs.apgd.n_iter, restarts=theirs.apgd.n_restarts)
    assert aimed == APGD(1.0, "L1", targets=theirs.apgd_targeted.n_target_classes)
    assert fab == FAB(1.0, "L1", steps=theirs.fab.n_iter, targets=theirs.fab.n_target_classes)
    assert square == Square(1.0, "L1", steps=theirs.square.n_queries)


def test_autoattack_is_as_strong(model: nn.Module, points) -> None:
    x, y = (part[:40] for part in points)
    searches: list[Search] = [
        replace(search, steps=30) for search in AutoAttack(EPS, "L1").searches
    ]
    found = run(model, x, y, searches, 0)
    assert torch.equal(survivors(model, x, y, found.adv), found.alive)
    theirs = oracle.AutoAttack(model, eps=EPS, norm="L1", seed=0)
    for attack in (theirs.apgd, theirs.apgd_targeted, theirs.fab):
        attack.n_iter = 30
        attack.n_iter_orig = 30
    theirs.square.n_queries = 30
    expected = survivors(model, x, y, theirs.run_standard_evaluation(x, y)[0])
    assert 0.05 < expected.float().mean() < 0.95
    assert (found.alive != expected).sum() <= 2


def test_networks_are_trained_and_evaluated_in_l1(digits, undefended: nn.Module) -> None:
    robust = mrboost.boost("at", digits, norm="L1", eps=2.0, epochs=2, device="cpu", seed=0)
    x, y = digits.test.images()[:200], digits.test.y[:200]
    attack = PGD(2.0, "L1", steps=20)
    less, more = (
        mrboost.evaluate(one, x, y, [attack], check=False)["pgd-20"].accuracy
        for one in (undefended, robust)
    )
    assert more > less + 0.1
