"""A step of training: on quick copies it does what it does on the networks
themselves, captured or not."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import ONE_OF_EACH
from mrboost import models, recipes
from mrboost.attacks import PGD, Gaussian, attacked
from mrboost.data import Batches, Dataset
from mrboost.devices import make_fabric
from mrboost.errors import InputError
from mrboost.losses import cross_entropy, kl_divergence, margin_cross_entropy
from mrboost.recipes.config import resolve
from mrboost.recipes.samplers import All, Diverge, Learner, Sample, Turn
from mrboost.speed.copies import Copy, quick
from mrboost.speed.graphs import Engine, Replay
from mrboost.training.fit import begin
from mrboost.training.state import FitState
from mrboost.training.step import Step, resolvable

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", [cross_entropy, margin_cross_entropy])
def test_the_attack_on_copies_raises_the_loss_as_far(
    loss, device: str, model, undefended, batch
) -> None:
    """At least 99 % of the loss that the attack on the networks themselves reaches."""
    x, y = (tensor.to(device) for tensor in batch)
    networks = [
        deepcopy(network).to(device).eval().requires_grad_(False) for network in (model, undefended)
    ]
    copies = [quick(network, x) for network in networks]

    def reached(sampler, past, learner) -> float:
        turn = Turn(PGD(0.1, steps=10), learner, past, x, y, torch.Generator(device).manual_seed(0))
        who = [*networks[: len(past)], networks[-1]]
        with torch.no_grad():
            x_adv = sampler(turn).x
            return loss(mrboost.Ensemble(who).to(device)(x_adv), y).item()

    assert reached(Learner(loss), [], copies[1]) > 0.99 * reached(Learner(loss), [], networks[1])
    assert reached(All(loss), copies[:1], copies[1]) > 0.99 * reached(
        All(loss), networks[:1], networks[1]
    )


@pytest.mark.parametrize(("norm", "eps", "std"), [("Linf", 0.1, 0.1 / 8), ("L2", 0.8, 0.8 / 64)])
def test_a_start_that_half_precision_resolves(
    norm: str, eps: float, std: float, model, batch
) -> None:
    """TRADES starts so close to the image that its first gradient would be noise: farther
    out it reaches as far."""
    network, (x, y) = deepcopy(model).eval().requires_grad_(False), batch
    copy = Copy(network, half=True)
    attack = PGD(eps, norm, steps=10, start=Gaussian())

    def reached(attack: PGD, victim: nn.Module) -> float:
        total = 0.0
        for seed in range(4):
            x_adv = Diverge()(Turn(attack, victim, [], x, y, torch.Generator().manual_seed(seed))).x
            total += kl_divergence(network(x), network(x_adv)).item()
        return total

    assert resolvable(attack, 64).start == Gaussian(std)
    assert reached(resolvable(attack, 64), copy) > 0.99 * reached(attack, network)
    assert resolvable(PGD(0.1), 64) == PGD(0.1)


@pytest.mark.parametrize(("precision", "std"), [("32-true", 0.001), ("bf16-mixed", 0.1 / 8)])
def test_mixed_precision_without_copies_needs_that_start_too(
    precision: str, std: float, tiny: Dataset
) -> None:
    """Where no quick copy is made, the attack meets the network under autocast."""
    seen = []

    @dataclass(frozen=True)
    class Looking(Diverge):
        def __call__(self, turn: Turn) -> Sample:
            seen.append(turn.attack.start)
            return super().__call__(turn)

    mrboost.boost(
        replace(recipes.TRADES, sampler=Looking()),
        tiny,
        epochs=1,
        eps=0.1,
        fast="off",
        precision=precision,
        device="cpu",
    )
    assert set(seen[1:]) == {Gaussian(std)}  # the first is a trial, before training


def train(
    recipe: str, dataset: Dataset, device: str, steps: int = 6, past: int = 0, **options
) -> FitState:
    torch.manual_seed(0)
    config = resolve(recipes.get(recipe), dataset, epochs=1, batch_size=12, **options)
    networks = [
        models.build(config.model, dataset.shape, dataset.num_classes) for _ in range(past + 1)
    ]
    fabric = make_fabric(device, "32-true")
    members = [network.to(device).eval().requires_grad_(False) for network in networks[:past]]
    state = begin(networks[-1], config, fabric)
    step = Step(state, members, config, fabric, dataset.train[:8].images())
    generator = step.begin(0, steps)
    done = 0
    while done < steps:
        for x, y in Batches(dataset.train, 12, device=fabric.device).epoch(generator):
            step(x, y, done / steps)
            done += 1
    assert step.is_finite()
    assert (step.figures()["loss"] > 0) == (steps > 0)
    return state


@pytest.mark.parametrize(
    ("recipe", "device"),
    [(name, "cpu") for name in ONE_OF_EACH.values()]
    + [pytest.param(name, "cuda", marks=on_cuda) for name in recipes.RECIPES if name != "deeper"],
)
def test_copies_and_capture_change_little(recipe: str, device: str, tiny: Dataset) -> None:
    """After six steps the weights are where the plain loop leaves them, up to what low
    precision does to the attack."""
    options = {
        "past": 1 if recipes.get(recipe).rounds > 1 else 0,
        "lr": 0.01,
        "ema": 0.5,
        "clip": 1.0,
    }
    plain, fast = (train(recipe, tiny, device, fast=fast, **options) for fast in ("off", "on"))
    initial = train(recipe, tiny, device, steps=0, fast="off", **options).learner
    for mine, theirs in ((fast.learner, plain.learner), (fast.kept, plain.kept)):
        moved = far = 0.0
        for a, b, c in zip(
            mine.parameters(), theirs.parameters(), initial.parameters(), strict=True
        ):
            far += (a - b).square().sum().item()
            moved += (b - c).square().sum().item()
        assert moved > 0
        assert far < (0.25 if device == "cuda" else 0.05) * moved


def test_a_network_that_cannot_be_copied(tiny: Dataset) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1) if x.sum() > 0 else -x.flatten(1))

    fabric = make_fabric("cpu")
    for fast, heard in (("auto", ["attacks run on the network itself"]), ("off", [])):
        said: list[str] = []
        config = resolve(recipes.AT, tiny, fast=fast)
        learner = Branching()
        step = Step(
            begin(learner, config, fabric), [], config, fabric, tiny.train[:8].images(), said.append
        )
        before = learner.layer.weight.detach().clone()
        step.begin(0, 3)
        step(tiny.train.images(), tiny.train.y, 0.0)
        assert not torch.equal(before, learner.layer.weight)
        assert [any(part in message for message in said) for part in heard] == [True] * len(heard)
        assert len(said) == len(heard)
    config = replace(config, fast="on")
    with pytest.raises(InputError, match="use --fast auto or off"):
        Step(begin(Branching(), config, fabric), [], config, fabric, tiny.train[:8].images())


@on_cuda
def test_a_replay_does_what_its_function_does() -> None:
    """Values, effects on tensors that outlive it, and random numbers, for two shapes in turn."""

    def run(wrap) -> tuple[list[Tensor], Tensor]:
        total = torch.zeros(3, device="cuda")
        generator = torch.Generator("cuda").manual_seed(1)

        def function(x: Tensor) -> Tensor:
            total.add_(x.sum(dim=0))
            return x * torch.rand(x.shape, generator=generator, device="cuda") + torch.rand(
                3, device="cuda"
            )

        torch.manual_seed(2)
        call = wrap(function, [generator])
        results = [
            call(torch.full((size, 3), float(i), device="cuda")).clone()
            for i, size in enumerate([4, 4, 2] * 6)
        ]
        generator.manual_seed(5)
        return [*results, call(torch.ones(4, 3, device="cuda")).clone()], total

    plain, replayed = run(lambda function, _: function), run(Replay)
    torch.testing.assert_close(plain, replayed)


@on_cuda
def test_a_function_that_looks_at_values_is_called_as_it_is() -> None:
    """The capture fails, and nothing is lost by that: neither random numbers nor later captures."""

    def run(wrap) -> list[Tensor]:
        generator = torch.Generator("cuda").manual_seed(1)
        torch.manual_seed(2)

        def function(x: Tensor) -> Tensor:
            x = x + torch.rand(x.shape, generator=generator, device="cuda")
            return x * torch.rand(3, device="cuda") if len(x) == 2 or x.sum().item() > 0 else -x

        call = wrap(function, [generator])
        results = [
            call(torch.full((size, 3), float(i), device="cuda")).clone()
            for i, size in enumerate([2, 4] * 6)
        ]
        generator.manual_seed(5)
        return [*results, call(torch.ones(2, 3, device="cuda")).clone()]

    said: list[str] = []
    torch.testing.assert_close(
        run(lambda function, _: function), run(lambda *given: Replay(*given, say=said.append))
    )
    assert [("cannot be captured" in message, "slower" in message) for message in said] == [
        (False, False),
        (True, True),
    ]
    with pytest.raises(InputError, match="use --fast auto or off"):
        run(lambda *given: Replay(*given, strict=True))
    test_a_replay_does_what_its_function_does()


def test_searches_run_on_a_copy() -> None:
    network = models.build("cnn-digits", (1, 8, 8), 10).eval().requires_grad_(False)
    for count in (1, 8, 20):
        engine = Engine(network, torch.rand(count, 1, 8, 8))
        engine.advance(lambda _, state: state, {"t": torch.zeros(count)}, 1, 1, left=5)
        assert isinstance(engine.model, Copy)


@on_cuda
def test_steps_of_a_search_are_taken_in_place() -> None:
    """Entries may be read from each other, some may stay what they are, and lanes may leave."""
    network = models.build("cnn-digits", (1, 8, 8), 10).cuda().eval().requires_grad_(False)
    engine = Engine(network, torch.rand(8, 1, 8, 8, device="cuda"))

    def step(model, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state | {"t": state["t"] + 1, "a": state["b"], "b": state["a"] + state["c"]}

    for lanes, left in ((40, 5), (33, 5), (7, 1000), (40, 5)):
        state = {name: torch.rand(lanes, 5, device="cuda") for name in "abc"} | {
            "t": torch.zeros(lanes, device="cuda")
        }
        wanted = state
        for _ in range(5):
            wanted = step(network, wanted)
        torch.testing.assert_close(engine.advance(step, state, 5, 1, left), wanted)


@on_cuda
def test_copies_of_networks_in_training_are_in_half_precision(tiny: Dataset) -> None:
    network = models.build("resnet18", (3, 32, 32), 10).cuda()
    x = torch.rand(8, 3, 32, 32, device="cuda")
    with attacked(network):
        copy = quick(network, x)
    assert copy is not network
    assert {parameter.dtype for parameter in copy.parameters()} == {torch.float16}
    assert any(getattr(part, "twice", False) for part in copy.modules())
