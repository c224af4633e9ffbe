"""Adversarial weight perturbation against the published procedure: a proxy model, a step of SGD
on it, a difference."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrboost import models, recipes
from mrboost.data import Dataset
from mrboost.devices import make_fabric
from mrboost.errors import InputError
from mrboost.recipes import AWP, Learner
from mrboost.recipes.config import resolve
from mrboost.training.fit import fit


@pytest.fixture
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.build("cnn-digits", (1, 8, 8), 5).double().train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(7, 1, 8, 8, generator=generator, dtype=torch.float64), torch.arange(7) % 5


def literal(network: nn.Module, x: Tensor, y: Tensor, gamma: float) -> nn.Module:
    """A copy of the network with the perturbed weights."""
    proxy, moved = deepcopy(network).train(), deepcopy(network)
    optimizer = torch.optim.SGD(proxy.parameters(), lr=0.01)
    optimizer.zero_grad()
    (-F.cross_entropy(proxy(x), y)).backward()
    optimizer.step()
    new = proxy.state_dict()
    difference = {}
    for name, old in network.state_dict().items():
        if len(old.size()) > 1 and "weight" in name:
            step = new[name] - old
            difference[name] = old.norm() / (step.norm() + 1e-20) * step
    with torch.no_grad():
        for name, p in moved.named_parameters():
            if name in difference:
                p.add_(gamma * difference[name])
    return moved


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("gamma", [0.01, 0.3])
def test_weights_gradient_restoration_and_statistics(
    gamma: float, network: nn.Module, batch
) -> None:
    x, y = batch
    moved, before = literal(network, x, y, gamma), state(network)
    addresses = [p.data_ptr() for p in network.parameters()]
    with AWP(gamma).shifted(network, lambda model: F.cross_entropy(model(x), y)):
        changed = set()
        for (name, p), q in zip(network.named_parameters(), moved.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            if not torch.equal(p, before[name]):
                changed.add(name)
                size = (p - before[name]).norm() / before[name].norm()
                assert size.item() == pytest.approx(gamma)
        assert changed == {name for name, p in network.named_parameters() if p.ndim > 1}
        assert all(torch.equal(b, before[name]) for name, b in network.named_buffers()), (
            "the extra pass left no trace"
        )
        assert all(p.grad is None for p in network.parameters())
        twin = deepcopy(network)  # what a step at these weights leaves, without AWP's extra pass
        F.cross_entropy(network(x), y).backward()
    F.cross_entropy(twin(x), y).backward()
    F.cross_entropy(moved(x), y).backward()
    for p, q, r in zip(network.parameters(), moved.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
        assert torch.equal(p.grad, r.grad)
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters()), (
        "restored to the bit"
    )
    assert all(torch.equal(a, b) for a, b in zip(network.buffers(), twin.buffers(), strict=True))
    assert [p.data_ptr() for p in network.parameters()] == addresses
    assert all(p.requires_grad for p in network.parameters())
    assert network.training


def test_restores_when_the_step_fails(network: nn.Module, batch) -> None:
    x, y = batch
    before = state(network)
    with (
        pytest.raises(KeyboardInterrupt),
        AWP(0.5).shifted(network, lambda model: F.cross_entropy(model(x), y)),
    ):
        raise KeyboardInterrupt
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_begins_late_and_leaves_unused_weights_alone(network: nn.Module, batch) -> None:
    x, y = batch
    network[0].register_module("unused", nn.Linear(3, 3).double())
    before = state(network)
    for progress, moves in ((0.29, False), (0.3, True)):
        with AWP(0.1, begin=0.3).shifted(
            network, lambda model: F.cross_entropy(model(x), y), torch.tensor(progress)
        ):
            assert (
                all(
                    torch.equal(network.state_dict()[name], value) for name, value in before.items()
                )
                != moves
            )
            assert torch.equal(network[0].unused.weight, before["0.unused.weight"])


def test_moves_along_the_agreed_gradient_and_leaves_frozen_weights_alone(
    network: nn.Module, batch
) -> None:
    """Several processes agree on one gradient; here it is one that the batch
    alone would never give."""
    x, y = batch
    first, *others = [p for p in network.parameters() if p.ndim > 1]
    first.requires_grad_(False)
    before = [p.detach().clone() for p in (first, *others)]
    with AWP(0.1).shifted(
        network, lambda model: F.cross_entropy(model(x), y), agreed=torch.ones_like
    ):
        assert torch.equal(first, before[0])
        for p, old in zip(others, before[1:], strict=True):
            torch.testing.assert_close(
                p - old, torch.full_like(p, 0.1 * old.norm().item() / p.numel() ** 0.5)
            )
    assert all(torch.equal(p, old) for p, old in zip((first, *others), before, strict=True))


def test_low_precision_copies_are_those_of_the_moved_weights(batch) -> None:
    """Autocast keeps the copies it made; the ascent's must not serve the step, nor the
    step's what follows."""
    x, y = batch[0].float(), batch[1]
    learner = models.build("cnn-digits", (1, 8, 8), 5).eval()

    def logits() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return learner(x).detach()

    plain = logits()
    with torch.autocast("cpu", torch.bfloat16):
        with AWP(0.5).shifted(learner, lambda model: F.cross_entropy(model(x), y)):
            inside = learner(x).detach()
            learned = deepcopy(learner)
        after = learner(x).detach()
    assert torch.equal(after, plain)
    learner.load_state_dict(learned.state_dict())
    assert torch.equal(inside, logits())
    assert not torch.equal(inside, plain)


def test_one_step_of_training_is_sgd_with_the_gradient_at_the_moved_weights(tiny: Dataset) -> None:
    @dataclass(frozen=True)
    class Untouched(Learner):
        def __call__(self, turn):
            return turn.sample(turn.x)

    recipe = replace(
        recipes.AT_AWP, sampler=Untouched(), awp=AWP(0.2), momentum=0.0, weight_decay=0.0, lr=0.5
    )
    plain = {"batch_size": 36, "validation": 3, "padding": 0, "flip": False}
    config = resolve(recipe, tiny, epochs=1, **plain)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = models.build("cnn-digits-silu", tiny.shape, 3)
    x, y = tiny.train.images(), tiny.train.y
    before, moved = deepcopy(learner), literal(learner, x, y, 0.2)
    for one in (before, moved):
        F.cross_entropy(one(x), y).backward()
    fit(learner, [], tiny.train, tiny.test, config, fabric=make_fabric("cpu"))
    # The loop shuffles the images, so sums round differently; the gradient where nothing
    # was moved is far off.
    step, there, here = (
        torch.cat([t.flatten() for t in tensors])
        for tensors in (
            [
                (q - p.detach()) / 0.5
                for p, q in zip(learner.parameters(), before.parameters(), strict=True)
            ],
            [p.grad for p in moved.parameters()],
            [p.grad for p in before.parameters()],
        )
    )
    assert (step - there).norm() < 1e-3 * there.norm()
    assert (here - there).norm() > 0.1 * there.norm()
    for a, b in zip(learner.buffers(), moved.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_refuses_a_gamma_that_is_no_share() -> None:
    with pytest.raises(InputError, match=r"between 0 and 1, got -0\.1: 0\.01 is usual"):
        AWP(-0.1)
