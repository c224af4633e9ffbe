"""APGD, FAB and Square: the contract of every attack, and their parts against closed forms."""

from __future__ import annotations

import functools
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import mrboost
from mrboost.attacks import APGD, FAB, FGSM, PGD, AutoAttack, Search, Square
from mrboost.attacks.survivors import run
from mrboost.errors import InputError
from mrboost.losses import dlr
from mrboost.seeds import hash_keys, image_keys, uniform_from_keys
from mrboost.speed.copies import quick
from mrboost.threat import ball


def test_what_happens_to_an_image_does_not_depend_on_the_others(
    search: Search, model, batch
) -> None:
    x, y = batch[0][:12], batch[1][:12]
    if search.name == "apgd-ce" and search.eot > 1:  # type: ignore[attr-defined]
        x, y = x[:6], y[:6]
    all_at_once = run(model, x, y, [search], 0)
    three_lanes = run(model, x, y, [search], 0, lanes=3)
    assert torch.equal(all_at_once.broken_by, three_lanes.broken_by)
    assert (all_at_once.adv - three_lanes.adv).abs().flatten(1).amax(1).le(
        1e-4
    ).float().mean() > 0.9
    backwards = run(model, x.flip(0), y.flip(0), [search], 0)
    assert torch.equal(all_at_once.broken_by, backwards.broken_by.flip(0))
    other = run(model, x, y, [search], 1)
    if search.name not in ("fab", "fab-t", "rays"):  # which draw nothing
        assert not torch.equal(all_at_once.adv, other.adv)


def test_misclassified_images_leave_first(model, batch) -> None:
    x, y = batch
    wrong = (y + 1) % 10
    points = run(model, x, wrong, [APGD(0.1, steps=2)], 0)
    clean = model(x).argmax(1) == wrong
    assert (points.broken_by[~clean] == 0).all()
    assert torch.equal(points.adv[~clean], x[~clean])


def test_the_corner_of_a_linear_model_is_reached(batch) -> None:
    """Two classes: the worst point in the Linf ball is x − eps sign(w_y −
    w_other), cut to the box."""
    weight = torch.randn(64, 2, generator=torch.Generator().manual_seed(1))
    x, y = batch[0][:8], torch.zeros(8, dtype=torch.int64)
    bias = torch.tensor([1000.0, 0.0])  # right whatever the attack does, so it runs to the end

    def linear(images: Tensor) -> Tensor:
        return images.flatten(1) @ weight + bias

    direction = (weight[:, 1] - weight[:, 0]).sign().view(1, 1, 8, 8)
    expected = (x + 0.1 * direction).clamp(0, 1)
    margin = mrboost.losses.margin
    for attack in (PGD(0.1, loss=margin), APGD(0.1, loss=margin), APGD(0.1, targets=9)):
        assert attack(linear, x, y) == pytest.approx(expected, abs=1e-5)


def test_a_targeted_run_counts_any_mistake(batch) -> None:
    """Three classes, and the step towards the third crosses into the second."""

    def three(images: Tensor) -> Tensor:
        s = images.flatten(1).sum(1)
        return torch.stack([torch.full_like(s, 10.0), s, 0.5 * s], dim=1)

    x, y = torch.full((4, 1, 4, 4), 0.6), torch.zeros(4, dtype=torch.int64)
    points = run(three, x, y, [APGD(0.1, steps=20, targets=2)], 0)
    assert (points.broken_by == 1).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes(classes: int, batch) -> None:
    """The targeted DLR needs four logits: with fewer it falls back, and there are fewer targets."""
    weight = torch.randn(64, classes, generator=torch.Generator().manual_seed(0))

    def linear(images: Tensor) -> Tensor:
        return images.flatten(1) @ weight

    x = batch[0][:8]
    y = linear(x).argmax(1)
    assert APGD(targets=9).jobs(classes) == FAB(targets=9).jobs(classes) == classes - 1
    x_adv = AutoAttack(0.3)(linear, x, y)
    assert (linear(x_adv).argmax(1) != y).all()


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_nearest_point_on_a_hyperplane_inside_the_box(norm: str) -> None:
    """Against a linear program (Linf) and the optimality conditions (L2), where the box cuts
    and where it does not."""
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(60, 12, generator=generator, dtype=torch.float64).round(decimals=1)
    slope = torch.randn(60, 12, generator=generator, dtype=torch.float64)
    slope[:, 0] = 0
    # How far the box lets the function fall
    reach = torch.where(slope > 0, start, 1 - start).mul(slope.abs()).sum(1)
    gap = reach * torch.linspace(0.01, 1.2, 60, dtype=torch.float64)
    move = ball(norm, 1.0).shortest(start, slope, -gap)
    assert ((start + move >= -1e-12) & (start + move <= 1 + 1e-12)).all()
    fallen = -(slope * move).sum(1)
    assert fallen == pytest.approx(torch.minimum(gap, reach), rel=1e-9)
    for x, w, g, d in zip(start.numpy(), slope.numpy(), gap.numpy(), move.numpy(), strict=True):
        if -(w * d).sum() < g - 1e-9:
            continue  # out of reach: all the way
        if norm == "Linf":
            free = linprog(
                np.eye(13)[12],
                A_eq=[[*w, 0]],
                b_eq=[-g],
                A_ub=np.block([[np.eye(12), -np.ones((12, 1))], [-np.eye(12), -np.ones((12, 1))]]),
                b_ub=np.zeros(24),
                bounds=[*((-v, 1 - v) for v in x), (0, None)],
            )
            assert np.abs(d).max() == pytest.approx(free.fun, rel=1e-7)
        else:
            inside = (x + d > 1e-9) & (x + d < 1 - 1e-9) & (w != 0)
            assert np.ptp(d[inside] / w[inside]) < 1e-9 if inside.any() else True
            rate = np.abs(d[inside] / w[inside]).max() if inside.any() else 0
            cut = ~inside & (w != 0)
            assert (np.abs(d[cut]) <= rate * np.abs(w[cut]) + 1e-9).all() if inside.any() else True
    uphill = ball(norm, 1.0).shortest(start, slope, gap)
    assert ((slope * uphill).sum(1) >= -1e-9).all()


def test_losses_that_are_called_otherwise_than_they_look() -> None:
    base = mrboost.losses.cross_entropy

    @functools.wraps(nn.functional.mse_loss)
    def wrapped(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return base(logits, target, reduction)

    class Own(nn.Module):
        def __call__(self, logits: Tensor, target: Tensor, *, reduction: str) -> Tensor:
            return base(logits, target, reduction)

    for loss in (
        wrapped,
        Own(),
        functools.partial(base),
        lambda logits, y, **how: base(logits, y, **how),
        lambda logits, y, **how: base(logits + torch.zeros(7), y, **how),  # of seven classes
    ):
        assert PGD(0.1, loss=loss).loss is loss
        assert APGD(0.1, loss=loss).loss is loss


def test_hashed_streams() -> None:
    keys = image_keys(0, torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert len(keys.unique()) == 200
    draws = uniform_from_keys(keys, (500,))
    assert draws.min() > 0
    assert draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.005)
    assert draws.var().item() == pytest.approx(1 / 12, rel=0.02)
    assert torch.equal(uniform_from_keys(keys[7:8], (500,)), draws[7:8])
    correlation = torch.corrcoef(torch.stack([draws[:-1].flatten(), draws[1:].flatten()]))[
        0, 1
    ].abs()
    assert correlation < 0.02
    one, two = (torch.tensor(i) for i in (1, 2))
    assert not (hash_keys(keys, one) == hash_keys(keys, two)).any()
    # splitmix64 with seed 0 begins with these outputs (the published test vector).
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    zero = torch.zeros(1, dtype=torch.int64)
    assert [int(hash_keys(zero, i)) % 2**64 for i in (one, two)] == first


def test_what_is_not_a_number_is_named(batch) -> None:
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def breaks(images: Tensor) -> Tensor:
        logits = images.flatten(1) @ weight
        off_grid = (images * 16 - (images * 16).round()).abs().flatten(1).amax(
            1, keepdim=True
        ) > 1e-3
        return torch.where(off_grid, logits * torch.nan, logits)

    x = batch[0][:4]
    with pytest.raises(InputError, match="image 0 under apgd-ce are NaN"):
        run(breaks, x, (x.flatten(1) @ weight).argmax(1), [APGD(0.1, steps=3)], 0)


@pytest.mark.parametrize("attack", [FGSM(0.1), PGD(0.1, steps=2), APGD(0.1, steps=2)])
def test_no_attack_takes_logits_that_are_nan(attack, model, batch) -> None:
    with pytest.raises(InputError, match="logits for image 0 are NaN"):
        attack(lambda x: model(x) * torch.nan, *batch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APGD(0.1, steps=0), "steps must be at least 1, got 0"),
        (lambda: APGD(0.1, eot=0), "eot must be at least 1, got 0"),
        (lambda: APGD(0.1, steps="3"), "steps must be a whole number, got '3'"),
        (lambda: PGD(0.1, seed="a"), "seed must be a whole number, got 'a'"),
        (lambda: PGD(0.1, step_size=[0.1]), r"step_size must be positive, got \[0\.1\]"),
        (lambda: PGD(0.1, restarts=0), "restarts must be at least 1, got 0"),
        (lambda: PGD(0.1, step_size=-1.0), "step_size must be positive, got -1.0"),
        (
            lambda: APGD(0.1, targets=3, loss=mrboost.losses.margin),
            "with this one: .* unexpected keyword argument .other.",
        ),
        (
            lambda: APGD(0.1, loss=mrboost.losses.targeted_dlr),
            "with this one: .* missing 1 required .* .other.",
        ),
        (
            lambda: APGD(0.1, loss=nn.CrossEntropyLoss()),  # type: ignore[arg-type]
            r"called as loss\(logits, y, reduction=…\), as .*cross_entropy is; .*'reduction'",
        ),
        (lambda: APGD(0.1, loss="ce"), "'str' object is not callable"),  # type: ignore[arg-type]
        (lambda: FAB(0.1, targets=-1), "targets must be at least 0, got -1"),
        (lambda: Square(-1), "eps must be positive"),
        (lambda: APGD(0.1, "L3"), "unknown norm 'L3'"),
        (lambda: AutoAttack(0.1, version="standart"), "did you mean standard"),
        (
            lambda: APGD(0.1)(lambda x: x.detach() * 1, torch.eye(3), torch.arange(3)),
            "no gradient in its input",
        ),
        (
            lambda: AutoAttack(0.1)(lambda x: x * 1, torch.eye(3), torch.arange(3)),
            r"images .N, C, H, W., got shape \(3, 3\): for others use apgd-ce, apgd-t and fab-t",
        ),
        (
            lambda: APGD(0.1, loss=dlr)(lambda x: x * 1, torch.eye(2), torch.arange(2)),
            "at least 3 classes, the model has 2",
        ),
    ],
)
def test_refuses(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_what_refusals_advise_works(undefended, batch) -> None:
    """On flat features, and on a model that has no gradients."""
    x, y = batch[0][:12].flatten(1), batch[1][:12]
    for norm, eps in (("Linf", 0.2), ("L2", 2.0)):
        result = mrboost.evaluate(
            lambda flat: undefended(flat.view(-1, 1, 8, 8)),
            x,
            y,
            ["apgd-ce", "apgd-t", "fab-t"],
            eps=eps,
            norm=norm,
        )
        assert all(outcome.accuracy < 0.5 for outcome in result.outcomes[1:])
    found = mrboost.evaluate(
        lambda images: undefended(images.detach()), batch[0][:12], y, "square", eps=0.2
    )
    assert found["square"].accuracy < 0.5


def test_refuses_a_randomised_classifier(model, batch) -> None:
    mixture = mrboost.Mixture([model, model], [0.5, 0.5])
    with pytest.raises(InputError, match=r"apgd-ce stops at the first mistake.*--adaptive"):
        AutoAttack(0.1)(mixture, *batch)


@pytest.mark.parametrize("extra", [-torch.inf, torch.inf, torch.nan])
def test_infinite_logits(extra: float, model, batch) -> None:
    """A class that is switched off changes nothing; one that always wins is
    a mistake everywhere."""
    x, y = batch

    def padded(images: Tensor) -> Tensor:
        return torch.cat([model(images), torch.full((len(images), 1), extra)], dim=1)

    if extra == -torch.inf:
        expected = run(model, x, y, [Square(0.2, steps=60)], 0)
        assert torch.equal(
            run(padded, x, y, [Square(0.2, steps=60)], 0).broken_by, expected.broken_by
        )
        assert not run(
            padded, x, y, [APGD(0.2, steps=10, loss=mrboost.losses.margin)], 0
        ).alive.all()
    elif extra == torch.inf:
        assert (run(padded, x, y, [Square(0.2, steps=5)], 0).broken_by == 0).all()
    else:
        with pytest.raises(InputError, match="image 0 are NaN"):
            run(padded, x, y, [Square(0.2, steps=5)], 0)


def test_draws_are_never_one() -> None:
    """The largest of all numbers that the hash can give is still below 1, in
    float32 and through erfinv."""
    keys = torch.arange(45_621_350, 45_621_370)
    draws = uniform_from_keys(keys, (3, 32, 32))
    assert draws.max() < 1
    assert torch.erfinv(2 * draws - 1).isfinite().all()
    top = torch.tensor(0x7FFFFF)
    assert ((top.float() + 0.5) * 2.0**-23).item() < 1


def test_low_precision_models_are_searched_in_float32(model, batch) -> None:
    dtype = torch.bfloat16
    low = deepcopy(model).to(dtype)
    x, y = batch[0][:16].to(dtype), batch[1][:16]
    for search in (
        APGD(0.2, steps=20),
        APGD(1.0, "L2", steps=10),
        FAB(0.2, steps=10, targets=2),
        Square(0.2, steps=50),
    ):
        x_adv = search(low, x, y)
        assert x_adv.dtype == dtype
        assert x_adv.isfinite().all()
    strong = (model(APGD(0.2, steps=20)(model, x.float(), y)).argmax(1) == y).float().mean()
    found = (low(APGD(0.2, steps=20)(low, x, y)).argmax(1) == y).float().mean()
    assert found.item() == pytest.approx(strong.item(), abs=0.13)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda(search: Search, model, digits) -> None:
    """Half precision and captured graphs: every success is real, and as many as on the
    CPU but for the edge."""
    x, y = digits.test.images()[:100], digits.test.y[:100]
    expected = run(model, x, y, [search], 0)
    there = deepcopy(model).cuda()
    found = run(there, x.cuda(), y.cuda(), [search], 0)
    assert quick(there.eval().requires_grad_(False), x.cuda()) is not there
    assert (found.alive != expected.alive).sum() <= 3
    with torch.no_grad():
        for i in (~found.alive).nonzero().squeeze(1):
            assert there(found.adv[i : i + 1]).argmax().item() != y[i]
    assert (
        ball(search.norm, search.eps).distance(found.adv.cpu(), x) <= search.eps * (1 + 1e-5) + 1e-6
    ).all()
