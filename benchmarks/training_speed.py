"""How fast adversarial training is, as ratios to the loop that papers publish, in one process.

    python benchmarks/training_speed.py --data digits --device cpu
    python benchmarks/training_speed.py --data cifar10 --model resnet18
    python benchmarks/training_speed.py --data cifar10 --model wrn-34-10 --steps 20
    python benchmarks/training_speed.py --data cifar10 --model resnet18 --profile

The naive loop keeps everything in float32 (TF32 convolutions where the device has them), runs PGD
on the network itself with ``loss.backward()``, which fills the gradients of the weights on each
attack step, and launches everything eagerly. Indented rows are steps from there to ``at``: no
gradients of the weights in the attack (and channels-last memory on a CUDA device); ``--fast off``
(mixed bf16 there); quick copies; then ``at``, captured there too. All rows see the same batches and
take turns; each figure is the median of the turns. On a CUDA device the most memory that a row held
is printed too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any

import mrboost  # isort: skip — before torch, as in the command: it says how idle threads wait
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrboost import models, recipes
from mrboost.attacks import attacked
from mrboost.data import Dataset
from mrboost.devices import exact_float32, make_fabric, move_model
from mrboost.recipes.config import Config, resolve
from mrboost.speed.copies import quick
from mrboost.training.fit import begin
from mrboost.training.step import Step

Train = Callable[[Tensor, Tensor], None]


def naive(config: Config, network: nn.Module, *, frozen: bool = False) -> Train:
    """Adversarial training by the book; ``frozen`` spares the attack the
    gradients of the weights."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    eps, step = config.eps, config.step_size

    def train(x: Tensor, y: Tensor) -> None:
        network.eval()
        x_adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(config.recipe.steps):
            x_adv = x_adv.detach().requires_grad_(True)
            network.zero_grad()
            with attacked(network) if frozen else nullcontext():
                F.cross_entropy(network(x_adv), y).backward()  # type: ignore[no-untyped-call]
            assert x_adv.grad is not None
            x_adv = torch.min(torch.max(x_adv + step * x_adv.grad.sign(), x - eps), x + eps).clamp(
                0, 1
            )
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(x_adv.detach()), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def ours(
    config: Config,
    network: nn.Module,
    past: list[nn.Module],
    options: argparse.Namespace,
    x: Tensor,
    *,
    capture: bool = True,
) -> Train:
    fabric = make_fabric(options.device, config.precision)
    step = Step(begin(network, config, fabric), past, config, fabric, x[:8], capture=capture)
    step.begin(0, options.steps)
    return lambda x, y: step(x, y, 0.1)


def batches(dataset: Dataset, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = dataset.train.images().to(device).split(size), dataset.train.y.to(device).split(size)
    return cycle([batch for batch in zip(x, y, strict=True) if len(batch[1]) == size][:50])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", help="default: the data's usual one")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--rounds", type=int, default=1, help="also time mrboost's rounds up to this one"
    )
    parser.add_argument("--steps", type=int, default=40, help="steps of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--profile", action="store_true", help="only tell which kernels the time of a step goes to"
    )
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    dataset = mrboost.data.load(options.data, options.data_dir)
    device = make_fabric(options.device).device
    stream = batches(dataset, options.batch_size, device)
    sample = next(stream)[0]

    def config(recipe: str, **options_: Any) -> Config:
        return resolve(
            recipes.get(recipe),
            dataset,
            model=options.model,
            batch_size=options.batch_size,
            epochs=1,
            **options_,
        )

    def network() -> nn.Module:
        return move_model(
            models.build(config("at").model, dataset.shape, dataset.num_classes), device
        )

    def members(count: int) -> list[nn.Module]:
        return [network().eval().requires_grad_(False) for _ in range(count)]

    learner = network()
    if options.profile:
        profile(ours(config("at", fast="on"), learner, [], options, sample), stream, options.steps)
        return
    rows: dict[str, Callable[[], Train]] = {
        "naive": lambda: naive(
            config("at"),
            models.build(config("at").model, dataset.shape, dataset.num_classes).to(device),
        ),
        "  no weight gradients": lambda: naive(config("at"), network(), frozen=True),
        "  --fast off": lambda: ours(config("at", fast="off"), network(), [], options, sample),
        "  copies, not captured": lambda: ours(
            config("at", fast="on"), network(), [], options, sample, capture=False
        ),
        "at": lambda: ours(config("at", fast="on"), learner, [], options, sample),
        "at-mce": lambda: ours(config("at-mce", fast="on"), network(), [], options, sample),
    }
    for round_ in range(2, options.rounds + 1):
        rows[f"mrboost, round {round_}"] = lambda past=round_ - 1: ours(
            config("mrboost", fast="on"), network(), members(past), options, sample
        )

    trains: dict[str, Train] = {}
    setups: dict[str, float] = {}
    peaks: dict[str, float] = {}
    for name, build in rows.items():
        held = reset_memory(device)
        began = time.perf_counter()
        trains[name] = build()
        for x, y in islice(stream, 4):  # the third step of ours is captured
            trains[name](x, y)
        synchronize(device)
        setups[name] = time.perf_counter() - began
        peaks[name] = (
            (torch.cuda.max_memory_allocated() - held) / 2**20 if device.type == "cuda" else 0.0
        )
    turns = [
        {name: turn(train, stream, options.steps, device) for name, train in trains.items()}
        for _ in range(options.turns)
    ]
    seconds = {name: [one[name] for one in turns] for name in trains}
    base = statistics.median(seconds["naive"])
    per_epoch = -(-len(dataset.train) // options.batch_size)
    print(
        f"{'':24}  naive over it  over at   set-up s  peak MiB  ({config('at').model}, batch "
        f"{options.batch_size})"
    )
    for name, times in seconds.items():
        median = statistics.median(times)
        relative = median / statistics.median(seconds["at"])
        print(
            f"{name:24}  {base / median:>13.2f}  {relative:>7.2f}  {setups[name]:>9.1f}  "
            f"{peaks[name]:>8.0f}"
        )
    print(
        f"an epoch of {len(dataset.train)} images: naive {base * per_epoch:.1f} s, at "
        f"{statistics.median(seconds['at']) * per_epoch:.1f} s here; after "
        f"{options.steps * options.turns + 4} steps the attack on a copy reaches "
        f"{fidelity(learner, config('at'), stream):.2%} of the float32 attack's loss"
    )


def fidelity(network: nn.Module, config: Config, stream: Iterator[tuple[Tensor, Tensor]]) -> float:
    """The loss that the attack on a copy reaches over that of the attack on the network in
    float32, on ten batches."""
    reached = [0.0, 0.0]
    with attacked(network), exact_float32():
        for x, y in islice(stream, 10):
            for i, victim in enumerate((quick(network, x), network)):
                generator = torch.Generator(x.device).manual_seed(0)
                x_adv = config.attack().ascend(
                    lambda images, victim=victim, y=y: F.cross_entropy(
                        victim(images), y, reduction="none"
                    ),
                    x,
                    generator,
                )
                with torch.no_grad():
                    reached[i] += F.cross_entropy(network(x_adv), y).item()
    return reached[0] / reached[1]


def turn(
    train: Train, stream: Iterator[tuple[Tensor, Tensor]], steps: int, device: torch.device
) -> float:
    """Seconds of a step."""
    synchronize(device)
    began = time.perf_counter()
    for x, y in islice(stream, steps):
        train(x, y)
    synchronize(device)
    return (time.perf_counter() - began) / steps


KINDS = {
    "convolution, forward": ("fprop", "conv"),
    "convolution, gradient in the images": ("dgrad",),
    "convolution, gradient in the weights": ("wgrad",),
    "BatchNorm": ("batch_norm", "bn_"),
    "element-wise and copies": (
        "elementwise",
        "copy",
        "foreach",
        "multi_tensor",
        "memcpy",
        "triton",
    ),
}
"""Kernels by what their names contain; the first kind that fits counts, from the bottom up."""


def profile(train: Train, stream: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
    """The share of the device's time that each kind of kernel takes in steps of ``at``."""
    for x, y in islice(stream, 4):
        train(x, y)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for x, y in islice(stream, steps):
            train(x, y)
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    kernels = 0
    for event in recorded.key_averages():
        name = event.key.lower()
        fits = [kind for kind, parts in KINDS.items() if any(part in name for part in parts)]
        kind = fits[-1] if fits else "other"
        times[kind] = times.get(kind, 0.0) + event.self_device_time_total / steps / 1e3
        kernels += event.count
    total = sum(times.values())
    print(f"{total:.2f} ms of kernels, {kernels / steps:.0f} of them, in a step")
    for kind, milliseconds in sorted(times.items(), key=lambda item: -item[1]):
        print(f"{kind:40} {milliseconds / total:>6.1%}")


def reset_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
