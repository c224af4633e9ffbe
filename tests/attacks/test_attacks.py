"""Every attack keeps the contract; PGD agrees with an independent library."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import SEARCHES
from mrboost.attacks import (
    APGD,
    CW,
    FGSM,
    PGD,
    Attack,
    AutoAttack,
    FromClean,
    Gaussian,
    Search,
    Square,
    Transfer,
    Uniform,
    as_attack,
    named,
)
from mrboost.errors import InputError
from mrboost.losses import cross_entropy, margin_cross_entropy
from mrboost.models import build
from mrboost.threat import ball

ATTACKS = {
    "fgsm": FGSM(0.1),
    "fgsm-l2": FGSM(0.5, "L2"),
    "pgd": PGD(0.1, steps=5),
    "pgd-l2": PGD(0.5, "L2", steps=5),
    "pgd-mce": PGD(0.1, steps=5, loss=margin_cross_entropy),
    "pgd-restarts": PGD(0.1, steps=3, restarts=3),
    "pgd-clean-start": PGD(0.1, steps=5, start=FromClean()),
    "pgd-half-start": PGD(0.1, steps=5, start=Uniform(0.5)),
    "pgd-gaussian-start": PGD(0.1, steps=5, start=Gaussian(0.001)),
    "cw": CW(0.1, steps=5),
    "cw-l2": CW(0.5, "L2", steps=5),
}
every_attack = pytest.mark.parametrize(
    "attack", (ATTACKS | SEARCHES).values(), ids=ATTACKS | SEARCHES
)


@every_attack
def test_stays_in_ball_and_box_and_raises_the_loss(attack: PGD | Search, model, batch) -> None:
    x, y = batch
    x_adv = attack(model, x, y)
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    assert not x_adv.requires_grad
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert (attack.threat.distance(x_adv, x) <= attack.eps * (1 + 1e-5) + 1e-6).all()
    assert cross_entropy(model(x_adv), y) > cross_entropy(model(x), y)
    clean, attacked = (model(images).argmax(1) == y for images in (x, x_adv))
    assert attacked.sum() < clean.sum()
    if isinstance(attack, Search):
        assert not (attacked & ~clean).any(), "it mends nothing"
    assert attack(model, x[:1], y[:1]).shape == x[:1].shape


@every_attack
def test_works_in_double_precision_without_gradients_and_on_a_function(
    attack: PGD | Search, batch
) -> None:
    weight = torch.randn(64, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def linear(images: Tensor) -> Tensor:
        return images.flatten(1) @ weight

    x = batch[0][:6].double()
    y = linear(x).argmax(1)
    with torch.no_grad():
        x_adv = attack(linear, x, y)
    assert x_adv.dtype == torch.float64
    assert (linear(x_adv).argmax(1) == y).float().mean() < 1
    with torch.inference_mode():
        alone = attack(linear, x[:1].clone(), y[:1].clone())
    assert alone == pytest.approx(x_adv[:1], abs=1e-9)


@every_attack
def test_leaves_everything_as_found(attack: PGD | Search, batch) -> None:
    """Mode of each module, requires_grad of each weight, gradients, BatchNorm statistics,
    inputs, random state."""
    torch.manual_seed(3)
    model = build("cnn-digits", (1, 8, 8), 10).train()
    network = model[1]
    network[1].eval()  # one frozen BatchNorm, one frozen weight, one gradient in place
    network[0].weight.requires_grad_(False)
    network[0].bias.grad = torch.ones_like(network[0].bias)
    x = batch[0][:4].clone()
    y = deepcopy(model).eval()(x).argmax(1)  # a search leaves out what is misclassified
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state, labels = torch.get_rng_state(), y.clone()
    attack(model, x, y)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert torch.equal(network[0].bias.grad, torch.ones_like(network[0].bias))
    assert [p.grad is None for p in model.parameters()].count(False) == 1
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(x, batch[0][:4])
    assert torch.equal(y, labels)


def test_restores_the_model_after_an_error(batch) -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 1:
                raise RuntimeError("out of order")
            return super().forward(x.flatten(1))

    model = Fails(64, 10).train()
    with pytest.raises(RuntimeError, match="out of order"):
        PGD(0.1)(model, *batch)
    assert model.training
    assert model.weight.requires_grad


def test_seeds(model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    first = PGD(0.1, steps=1, seed=1)(model, x, y)
    assert torch.equal(first, PGD(0.1, steps=1, seed=1)(model, x, y))
    assert not torch.equal(first, PGD(0.1, steps=1, seed=2)(model, x, y))
    assert not torch.equal(*(PGD(0.1, steps=1, seed=None)(model, x, y) for _ in range(2)))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(*(PGD(0.1, steps=1)(model, x, y, generator=g) for g in generators))


def test_fgsm_is_the_sign_of_the_gradient(model, batch) -> None:
    x, y = batch[0][:8].clone().requires_grad_(True), batch[1][:8]
    (gradient,) = torch.autograd.grad(cross_entropy(model(x), y, reduction="sum"), x)
    expected = (x + 0.05 * gradient.sign()).clamp(0, 1).detach()
    torch.testing.assert_close(FGSM(0.05)(model, x.detach(), y), expected)


def test_restarts_keep_the_best(model, batch) -> None:
    x, y = batch
    one, many = (PGD(0.12, steps=4, restarts=r)(model, x, y) for r in (1, 6))
    fooled_by_one = model(one).argmax(1) != y
    fooled_by_many = model(many).argmax(1) != y
    assert (fooled_by_many | ~fooled_by_one).all(), "a restart lost a success"
    standing = ~fooled_by_many
    loss_one, loss_many = (
        cross_entropy(model(images), y, reduction="none") for images in (one, many)
    )
    assert (loss_many[standing] >= loss_one[standing] - 1e-5).all()
    assert (loss_many > loss_one + 1e-4).any()


def test_agrees_with_foolbox(model, digits) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed (extra: peers)")
        x, y = digits.test.images()[:200], digits.test.y[:200]
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        for eps, norm, peer in (
            (0.1, "Linf", foolbox.attacks.LinfPGD(abs_stepsize=0.025, steps=20)),
            (0.8, "L2", foolbox.attacks.L2PGD(abs_stepsize=0.2, steps=20)),
        ):
            torch.manual_seed(0)
            _, _, fooled = peer(wrapped, x, y, epsilons=eps)
            ours = model(PGD(eps, norm, steps=20)(model, x, y)).argmax(1) != y
            difference = ours.float().mean() - fooled.float().mean()
            assert abs(difference) <= 0.04, (norm, eps)  # starts are drawn otherwise


def test_names() -> None:
    for name in ("fgsm", "cw", "pgd-20", "pgd-mce-7", "pgd-margin-5", "apgd-ce", "apgd-dlr"):
        assert named(name, 0.1).name == name
    for name in ("apgd-mce", "apgd-t", "fab", "fab-t", "square", "autoattack", "autoattack-plus"):
        assert named(name, 0.1).name == name
    assert APGD(targets=9, loss=margin_cross_entropy).name == "apgd-mce-t"
    assert named("pgd-20", 0.1) == PGD(0.1, steps=20)
    assert named("pgd-mce-7", 0.1, "L2") == PGD(0.1, "L2", steps=7, loss=margin_cross_entropy)
    assert named("fgsm", 0.1) == FGSM(0.1)
    assert named("cw", 0.1) == CW(0.1)
    for name, message in (
        ("fsgm", "did you mean fgsm"),
        ("pgd", "unknown attack 'pgd'"),
        ("pgd-0", "no steps"),
        ("pgd-mcee-20", "did you mean mce"),
    ):
        with pytest.raises(InputError, match=message):
            named(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * 2, y), r"must lie in \[0, 1\], these span \[0, 2\]"),
        (lambda x, y: (x - 0.5, y), r"span \[-0.5"),
        (lambda x, y: (torch.where(x > 0.5, torch.nan, x), y), "contain NaN"),
        (lambda x, y: ((x * 255).byte(), y), "uint8: divide"),
        (lambda x, y: (x, y.float()), "int64 class indices, got torch.float32"),
        (lambda x, y: (x, y[:-1]), r"shape \(8,\)"),
        (lambda x, y: (x, y - 10), "labels must lie in 0..9 for a model of 10 classes, got -10"),
        (lambda x, y: (x, y + 5), "labels must lie in 0..9"),
        (lambda x, y: (x[:0], y[:0]), "at least one"),
    ],
)
def test_refuses_bad_batches(change, message: str, model, batch) -> None:
    with pytest.raises(InputError, match=message):
        PGD(0.1)(model, *change(batch[0][:8], batch[1][:8]))


@pytest.mark.parametrize(
    "bad",
    [lambda x: x.flatten(1).sum(1), lambda x: x.flatten(1)[:, :1], lambda x: x, lambda x: (x, x)],
)
def test_refuses_models_without_logits(bad, batch) -> None:
    with pytest.raises(InputError, match="must return logits of shape"):
        PGD(0.1)(bad, *batch)


def test_a_model_with_noise_of_its_own_leaves_the_random_state(batch) -> None:
    state = torch.get_rng_state()
    PGD(0.1, steps=2)(lambda x: x.flatten(1)[:, :10] + torch.randn(10), *batch)
    assert torch.equal(torch.get_rng_state(), state)


def test_attacks_declare_what_they_are(model) -> None:
    pgd, square = PGD(0.1, steps=7, seed=3), Square(0.2, "L2")
    assert (pgd.eps, pgd.norm, pgd.steps, pgd.seed, pgd.uses_gradients) == (0.1, "Linf", 7, 3, True)
    assert (square.eps, square.norm, square.steps) == (0.2, "L2", 5000)
    assert not square.uses_gradients
    assert AutoAttack(0.1).uses_gradients
    for own, attack, uses in ((True, pgd, True), (True, square, False), (False, pgd, False)):
        transfer = Transfer(attack, model, own)
        assert (transfer.eps, transfer.norm) == (attack.eps, attack.norm)
        assert transfer.uses_gradients == uses


@dataclass(frozen=True)
class Noise(Attack):
    """The example of the room's tutorial, ``mrboost.attacks``."""

    eps: float = 8 / 255
    norm: str = "Linf"
    uses_gradients = False

    def __call__(self, model, x, y, *, generator=None):
        threat = ball(self.norm, self.eps)
        return threat.project(x + threat.uniform(x, generator), x)


def test_an_attack_of_ones_own(model, batch) -> None:
    x, y = batch
    result = mrboost.evaluate(model, x, y, Noise(0.3), check=False)
    assert result["Noise"].margin < result["clean"].margin
    assert result["Noise"].black_box
    assert (result.eps, result.norm) == (0.3, "Linf")
    with pytest.raises(InputError, match="moved image 0 out of its Linf ball"):
        mrboost.evaluate(model, x, y, _Beyond(0.1), check=False)


class _Beyond(Noise):
    def __call__(self, model, x, y, *, generator=None):
        return (x + 0.2).clamp(max=1)


def test_a_plain_function_is_an_attack(model, batch) -> None:
    def nothing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x

    attack = as_attack(nothing)
    assert isinstance(attack, Attack)
    assert (attack.eps, attack.norm, attack.steps, attack.seed) == (None, None, None, None)
    assert (attack.uses_gradients, attack.work(10)) == (True, 1)
    assert attack(model, *batch) is batch[0]
    nothing.eps, nothing.norm, nothing.name = 8 / 255, "Linf", "mine"  # type: ignore[attr-defined]
    attack = as_attack(nothing)
    assert (attack.eps, attack.norm, attack.name) == (8 / 255, "Linf", "mine")
    assert as_attack(attack) is attack


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda(model, batch) -> None:
    on_device = build("cnn-digits", (1, 8, 8), 10).cuda()
    x, y = (tensor.cuda() for tensor in batch)
    first = PGD(0.1, steps=5)(on_device, x, y)
    assert first.is_cuda
    assert torch.equal(first, PGD(0.1, steps=5)(on_device, x, y))
