"""AutoAttack against its oracle, ``pyautoattack``, which is bit-identical to the
reference implementation.

Random starts and squares differ, so two runs can differ on points at the edge: one of them may
here, and none of ours may be invalid. The comparisons are small; ``benchmarks/autoattack.py`` runs
them in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import APGD, FAB, AutoAttack, Search, Square
from mrboost.attacks.survivors import Points, run
from mrboost.losses import cross_entropy, dlr, targeted_dlr
from mrboost.threat import ball

oracle = pytest.importorskip("pyautoattack", reason="needs pyautoattack, the oracle")
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted  # noqa: E402
from pyautoattack.fab_pt import FABAttack_PT  # noqa: E402
from pyautoattack.square import SquareAttack  # noqa: E402


@pytest.fixture(scope="module")
def points(digits) -> tuple[Tensor, Tensor]:
    """All of them, the test images first."""
    parts = (digits.test, digits.train)
    return torch.cat([part.images() for part in parts]), torch.cat([part.y for part in parts])


def agree(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: AutoAttack,
    queries: int,
    steps: int = 100,
    targets: int = 9,
) -> None:
    """Same survivors but for one point; all of ours real."""
    searches: list[Search] = [
        replace(search, steps=steps, targets=min(targets, search.targets))
        if isinstance(search, APGD | FAB)
        else replace(search, steps=queries)
        for search in attack.searches
    ]
    found = run(model, x, y, searches, 0)
    theirs = oracle.AutoAttack(
        model, eps=attack.eps, norm=attack.norm, version=attack.version, seed=0
    )
    theirs.square.n_queries = queries
    theirs.apgd.n_iter = theirs.apgd_targeted.n_iter = theirs.fab.n_iter = steps
    # Its checkpoints are those of the steps that it was made with
    for apgd in (theirs.apgd, theirs.apgd_targeted):
        apgd.n_iter_2, apgd.n_iter_min, apgd.size_decr = (
            max(int(share * steps), 1) for share in (0.22, 0.06, 0.03)
        )
    theirs.apgd_targeted.n_target_classes = theirs.fab.n_target_classes = targets
    adv, _ = theirs.run_standard_evaluation(x, y, batch_size=250)
    with torch.no_grad():
        standing = model(adv).argmax(1) == y
        assert (
            ball(attack.norm, attack.eps).distance(found.adv, x) <= attack.eps * (1 + 1e-5) + 1e-6
        ).all()
        assert (found.adv >= 0).all()
        assert (found.adv <= 1).all()
        for i in (~found.alive).nonzero().squeeze(1):
            assert model(found.adv[i : i + 1]).argmax() != y[i], (
                "a success must hold for one image at a time"
            )
    assert 0.05 < standing.float().mean() < 0.95, "a comparison where something happens"
    differing = int((standing != found.alive).sum())
    assert differing <= 1, f"{differing} of {len(x)} points differ"


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_settings_are_the_oracles(version: str) -> None:
    """The comparisons below take fewer queries, and most of them fewer targets or steps."""
    theirs = oracle.AutoAttack(nn.Identity(), eps=0.1, version=version)
    plain, aimed, fab = theirs.apgd, theirs.apgd_targeted, theirs.fab
    settings = {
        "apgd-ce": APGD(0.1, steps=plain.n_iter, restarts=plain.n_restarts, eot=plain.eot_iter),
        "apgd-dlr": APGD(
            0.1, steps=plain.n_iter, restarts=plain.n_restarts, eot=plain.eot_iter, loss=dlr
        ),
        "apgd-t": APGD(0.1, steps=aimed.n_iter, targets=aimed.n_target_classes, eot=aimed.eot_iter),
        "fab": FAB(0.1, steps=fab.n_iter, restarts=fab.n_restarts),
        "fab-t": FAB(0.1, steps=fab.n_iter, targets=fab.n_target_classes),
        "square": Square(0.1, steps=theirs.square.n_queries),
    }
    assert AutoAttack(0.1, version=version).searches == tuple(
        settings[name] for name in theirs.attacks_to_run
    )


def test_only_the_first_stages() -> None:
    attack = AutoAttack(0.1, stages=2)
    assert [search.name for search in attack.searches] == ["apgd-ce", "apgd-t"]
    assert attack.name == "autoattack up to apgd-t"
    for stages in (0, 5):
        with pytest.raises(mrboost.InputError, match=f"stages must be 1 to 4, .* got {stages}"):
            AutoAttack(0.1, stages=stages)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.4)])
def test_agrees_on_digits(norm: str, eps: float, model, points) -> None:
    """At the radius that the network was made for, where chance decides few points."""
    agree(
        model,
        *(part[:80] for part in points),
        AutoAttack(eps, norm),
        queries=60,
        steps=30,
        targets=3,
    )


def test_plus_agrees(model, points) -> None:
    x, y = points
    agree(
        model,
        x[200:224],
        y[200:224],
        AutoAttack(0.17, version="plus"),
        queries=50,
        steps=20,
        targets=3,
    )


def test_rand_agrees_on_a_noisy_model(model, points) -> None:
    """With noise in the forward pass survivors are a matter of chance: the accuracies are close."""
    x, y = points[0][:30], points[1][:30]

    class Noisy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return model(images + 0.05 * torch.randn_like(images))

    noisy = Noisy()
    torch.manual_seed(0)
    searches = [replace(search, steps=12) for search in AutoAttack(0.17, version="rand").searches]
    ours = run(noisy, x, y, searches, 0).alive.float().mean()
    reference = oracle.AutoAttack(noisy, eps=0.17, version="rand", seed=0)
    reference.apgd.n_iter = 12
    adv, _ = reference.run_standard_evaluation(x, y)
    with torch.no_grad():
        theirs = torch.stack([noisy(adv).argmax(1) == y for _ in range(20)]).float().mean()
    assert ours.item() == pytest.approx(theirs.item(), abs=0.15)


def advance(
    search: Search, model: nn.Module, x: Tensor, y: Tensor, job: int = 0
) -> dict[str, Tensor]:
    """One job of every point to its end, successes or not."""
    known = Points.of(model, x, y, 0)
    state = {"x": x, "y": y, "t": torch.zeros_like(y), "hit": torch.zeros_like(y, dtype=torch.bool)}
    state |= search.begin(x, y, known.ranking, known.keys, torch.full_like(y, job))
    start = state["adv"] if "adv" in state else state["found"]
    for _ in range(search.evaluations()):
        state = search.step(model, state)
    return state | {"start": start, "ranking": known.ranking}


@pytest.fixture
def double() -> Iterator[None]:
    """The oracle keeps its losses and step sizes in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("loss", ["ce", "dlr", "t"])
def test_apgd_walks_the_same_path_from_the_same_start(loss: str, norm: str, model, points) -> None:
    """100 iterations in double precision: the same loss, image and successes, point by point.

    In L2 lengths are rounded otherwise than the oracle's, and once a loss is flat the last
    bits choose the way.
    """
    twin, x, y = deepcopy(model).double(), points[0][:30].double(), points[1][:30]
    right = twin(x).argmax(1) == y
    x, y, eps = x[right], y[right], 0.17 if norm == "Linf" else 0.9
    search = {
        "ce": APGD(eps, norm),
        "dlr": APGD(eps, norm, loss=dlr),
        "t": APGD(eps, norm, targets=9),
    }[loss]
    state = advance(search, twin, x, y, job=2 if loss == "t" else 0)
    kind: Any = APGDAttack_targeted if loss == "t" else APGDAttack
    theirs = kind(twin, eps=eps, norm=norm, device="cpu", **({} if loss == "t" else {"loss": loss}))
    theirs.init_hyperparam(x)
    theirs.y_target = state["target"]
    image, correct, best, broken = theirs.attack_single_run(x, y, x_init=state["start"])
    assert torch.equal(state["hit"], ~correct.bool())
    assert 0.05 < state["hit"].double().mean() < 0.95
    assert ((state["best_loss"] - best).abs() <= 1e-6).double().mean() >= (
        1.0 if norm == "Linf" else 0.8
    )
    if norm == "Linf":
        assert state["best"] == pytest.approx(image, abs=1e-9)
        assert state["found"][state["hit"]] == pytest.approx(
            broken[state["hit"]].detach(), abs=1e-9
        )


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.17), ("L2", 0.9)])
def test_fab_breaks_the_same_points(norm: str, eps: float, model, points) -> None:
    x, y = points[0][:80], points[1][:80]
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    for targeted, ours in (
        (True, FAB(eps, norm, steps=30, targets=1)),
        (False, FAB(eps, norm, steps=10)),
    ):
        theirs = FABAttack_PT(
            model, norm=norm, eps=eps, n_iter=ours.steps, targeted=targeted, device="cpu"
        )
        theirs.n_target_classes = 1
        adv = theirs.perturb(x, y)
        with torch.no_grad():
            broken = (model(adv).argmax(1) != y) & (ball(norm, eps).distance(adv, x) <= eps)
        assert 0.05 < broken.float().mean() < 0.95
        assert ((run(model, x, y, [ours], 0).broken_by == 1) != broken).float().mean() <= 0.02


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.2), ("L2", 1.2)])
def test_square_is_as_strong(norm: str, eps: float, undefended, points) -> None:
    """Squares of our own for each image against one square for the whole batch: the same
    success within the noise."""
    x, y = points[0][:150], points[1][:150]
    theirs = SquareAttack(
        undefended, norm=norm, eps=eps, n_queries=60, resc_schedule=False, seed=0, device="cpu"
    )
    with torch.no_grad():
        expected = (undefended(theirs.perturb(x, y)).argmax(1) == y).float().mean().item()
    found = run(undefended, x, y, [Square(eps, norm, steps=60)], 0).alive.float().mean().item()
    assert 0.1 < expected < 0.9
    assert found == pytest.approx(expected, abs=0.1)


def test_targeted_dlr_is_the_oracles(points) -> None:
    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    y, target = torch.arange(50) % 10, (torch.arange(50) + 3) % 10
    theirs = APGDAttack_targeted(lambda x: x, eps=0.1)
    theirs.y_target = target
    assert targeted_dlr(logits, y, target, reduction="none") == pytest.approx(
        theirs.dlr_loss_targeted(logits, y)
    )
    assert dlr(logits, y, reduction="none") == pytest.approx(theirs.dlr_loss(logits, y))
    assert cross_entropy(logits, y).item() == pytest.approx(
        nn.functional.cross_entropy(logits, y).item()
    )
