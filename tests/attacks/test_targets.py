"""Attacks towards a label, and attacks on numpy arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from mrboost.attacks import APGD, CW, FAB, FGSM, PGD, Attack, AutoAttack, Square
from mrboost.attacks.adaptive import Transfer
from mrboost.errors import InputError

AIMED = {
    "pgd": PGD(steps=200, step_size=0.003),
    "cw": CW(steps=200, step_size=0.003),
    "pgd-restarts": PGD(steps=100, step_size=0.005, restarts=3),
    "apgd": APGD(steps=100),
    "apgd-t": APGD(steps=100, targets=3),
    "fab": FAB(steps=60),
    "fab-t": FAB(steps=60, targets=3),
}


@pytest.fixture(scope="module")
def linear() -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(4, 16, generator=generator, dtype=torch.float64))
        model[1].bias.zero_()
    return model


def radius(model: nn.Module, x: Tensor, target: int) -> float:
    """The smallest eps at which some image of the Linf ball and the box gets the label: a linear
    program in (x', eps)."""
    weight = model[1].weight.detach().numpy()
    rivals = [weight[j] - weight[target] for j in range(len(weight)) if j != target]
    image = x.flatten().numpy()
    eye, one = np.eye(len(image)), np.ones((len(image), 1))
    behind = np.column_stack([rivals, np.zeros(len(rivals))])
    rows = np.vstack([behind, np.hstack([eye, -one]), np.hstack([-eye, -one])])
    most = np.concatenate([np.zeros(len(rivals)), image, -image])
    cost = np.append(np.zeros(len(image)), 1.0)
    found = linprog(cost, rows, most, bounds=[(0, 1)] * len(image) + [(0, None)])
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("attack", AIMED.values(), ids=AIMED)
def test_a_label_is_reached_just_beyond_its_distance(attack: Attack, linear: nn.Module) -> None:
    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = linear(x).argmax(dim=1)
    for image, label, shift in zip(x, y, (1, 2, 3, 1), strict=True):
        target = (int(label) + shift) % 4
        least = radius(linear, image, target)
        for eps, reached in ((1.1 * least, True), (0.95 * least, False)):
            step = {"step_size": eps / 20} if isinstance(attack, PGD) else {}
            within = replace(attack, eps=eps, **step)
            found = within(linear, image[None], label[None], targets=torch.tensor([target]))
            assert (linear(found).argmax().item() == target) is reached
            assert (found - image).abs().max() <= eps * (1 + 1e-9)
            assert 0 <= found.min() <= found.max() <= 1


def test_targets_are_of_each_image_whatever_the_batch(undefended: nn.Module, batch) -> None:
    x, y = batch
    targets = (y + 1 + torch.arange(len(y)) % 9) % 10
    for attack in (PGD(0.3), APGD(0.3, steps=30), FAB(0.3, steps=30)):
        found = attack(undefended, x, y, targets=targets)
        assert (undefended(found).argmax(dim=1) == targets).float().mean() > 0.8
        part = attack(undefended, x[7:12], y[7:12], targets=targets[7:12])
        torch.testing.assert_close(part, found[7:12], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"int64 labels \(64,\), got \(3,\)"),
        (torch.zeros(64), r"int64 labels \(64,\), got \(64,\) of torch.float32"),
        (torch.full((64,), 10), r"targets must lie in 0..9, got 10..10"),
    ],
)
def test_what_is_no_target(targets: Tensor, message: str, undefended: nn.Module, batch) -> None:
    for attack in (FGSM(), FAB()):
        with pytest.raises(InputError, match=message):
            attack(undefended, *batch, targets=targets)


@pytest.mark.parametrize(
    "attack",
    [PGD(0.1, steps=3), APGD(0.1, steps=5), Square(0.1, steps=5), AutoAttack(0.1, stages=1)],
    ids=lambda attack: attack.name,
)
def test_arrays_give_the_array_of_what_tensors_give(
    attack: Attack, undefended: nn.Module, batch
) -> None:
    x, y = (part[:8] for part in batch)
    expected = attack(undefended, x, y).numpy()
    found = attack(undefended, x.numpy(), y.numpy())
    assert type(found) is np.ndarray
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    one_hot = np.eye(10)[y.numpy()]
    wide = attack(undefended, x.numpy().astype("float64"), one_hot)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide.astype("float32"), expected)
    mixed = attack(undefended, x, y.numpy())
    assert torch.equal(mixed, torch.from_numpy(expected))


def test_transferred_examples_of_arrays(undefended: nn.Module, batch) -> None:
    x, y = (part[:8] for part in batch)
    attack = Transfer(PGD(0.1, steps=3), undefended)
    found = attack(nn.Flatten(), x.numpy(), y.numpy())
    np.testing.assert_array_equal(found, attack(nn.Flatten(), x, y).numpy())


def test_targets_may_be_an_array(undefended: nn.Module, batch) -> None:
    x, y = (part[:8] for part in batch)
    targets = (y + 1) % 10
    expected = PGD(0.1)(undefended, x, y, targets=targets).numpy()
    found = PGD(0.1)(undefended, x.numpy(), y.numpy(), targets=targets.numpy())
    np.testing.assert_array_equal(found, expected)
