"""Attacks of foolbox and torchattacks in ``evaluate``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import PGD
from mrboost.errors import InputError
from mrboost.losses import cross_entropy


def test_an_attack_of_foolbox(undefended: nn.Module, batch) -> None:
    foolbox = pytest.importorskip("foolbox")
    theirs = foolbox.attacks.LinfPGD(steps=20, abs_stepsize=0.025)
    name = f"foolbox {type(theirs).__name__}"
    found = mrboost.evaluate(undefended, *batch, [theirs, PGD(0.1)], eps=0.1, check=False)
    mine, other = found["pgd-20"], found[name]
    assert (other.eps, other.norm) == (0.1, "Linf")
    assert abs(mine.accuracy - other.accuracy) < 0.05
    assert found["clean"].accuracy - other.accuracy > 0.2

    of_function = mrboost.evaluate(lambda x: undefended(x), *batch, theirs, eps=0.1, check=False)
    assert of_function[name].accuracy == other.accuracy
    boundary = foolbox.attacks.L2DeepFoolAttack(steps=5)
    far = mrboost.evaluate(undefended, *batch, {"df": boundary}, eps=1.0, norm="L2", check=False)
    assert far["df"].norm == "L2"
    assert far["df"].accuracy < 0.5
    with pytest.raises(InputError, match="L2DeepFoolAttack keeps to L2 balls, the norm is Linf"):
        mrboost.evaluate(undefended, *batch, boundary)


class Base:
    """As torchattacks' base class: it owns a model, and turns it to eval mode and back."""

    def __init__(self, model: nn.Module, eps: float = 8 / 255) -> None:
        self.model, self.eps, self.modes = model, eps, list[bool]()

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        self.modes.append(self.model.training)
        return self.forward(images, labels).detach()


Base.__module__ = "torchattacks.attack"


class FGSM(Base):
    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        images = images.clone().requires_grad_(True)
        loss = cross_entropy(self.model(images), labels, "sum")
        (gradient,) = torch.autograd.grad(loss, images)
        return (images + self.eps * gradient.sign()).clamp(0, 1)


def test_an_attack_of_torchattacks(undefended: nn.Module, batch) -> None:
    theirs = FGSM(undefended, eps=0.1)
    found = mrboost.evaluate(undefended, *batch, [theirs, mrboost.attacks.FGSM(0.1)], check=False)
    outcome = found["torchattacks FGSM"]
    assert (outcome.eps, outcome.norm) == (0.1, "Linf")
    assert outcome.accuracy == found["fgsm"].accuracy < found["clean"].accuracy
    assert not any(theirs.modes)
    other = FGSM(nn.Sequential(undefended))
    with pytest.raises(InputError, match="a model of its own, and another one is evaluated: make"):
        mrboost.evaluate(undefended, *batch, other)
