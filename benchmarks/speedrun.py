"""How soon is a robust network there? Seconds from raw tensors to trained weights, for rungs of
AutoAttack accuracy on CIFAR-10 (Linf 8/255, no other data), and a naive loop beside each.

    python benchmarks/speedrun.py --data cifar10 --rungs 43.1 47.8 --seeds 0 1 2
    python benchmarks/speedrun.py --data digits --device cpu --epochs 1 --n 20     # does it run?

Each training has a process of its own. The clock starts when the images lie in memory as the
dataset's uint8 tensors and stops when the weights are there: set-up, copies and captures count,
validation too. AutoAttack then looks at the test images, once. ``naive`` is what the loop that
papers publish (``training_speed.naive``) would take for as many steps of the same attack: the
median of ``--turns`` of its steps on the same device, times their number.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import mrboost  # isort: skip — before torch, as in the command
import torch
from training_speed import batches, naive

from mrboost import models, recipes
from mrboost.attacks import Uniform
from mrboost.devices import make_fabric
from mrboost.losses import Loss, cross_entropy
from mrboost.recipes.config import resolve
from mrboost.recipes.samplers import Sample, Turn
from mrboost.threat import radius


@dataclass(frozen=True)
class NoisyStep:
    """N-FGSM: one step of length eps from noise in a ball of ``noise`` eps, not projected onto the
    eps-ball (de Jorge et al. 2022)."""

    joint: ClassVar[bool] = False
    loss: Loss = cross_entropy
    noise: float = 2.0

    def __call__(self, turn: Turn) -> Sample:
        eps = turn.attack.eps
        reach = 1 + self.noise  # nothing that one step reaches lies outside this ball
        start = Uniform(self.noise / reach)
        attack = replace(turn.attack, eps=reach * eps, steps=1, step_size=eps, start=start)
        return turn.sample(replace(turn, attack=attack).ascend([turn.learner], self.loss))


@dataclass(frozen=True)
class Rung:
    """A training that aims at an accuracy under AutoAttack, its name, in so many seconds."""

    seconds: float
    recipe: recipes.Recipe
    options: dict[str, Any] = field(default_factory=dict)


N_FGSM = replace(
    recipes.AT, name="n-fgsm", sampler=NoisyStep(), steps=1, schedule=recipes.OneCycle()
)
ONE_CYCLE = replace(recipes.AT_MCE, name="one-cycle", steps=3, schedule=recipes.OneCycle())
_USUAL = {"batch_size": 256, "lr": 0.4, "ema": 0.998}
RUNGS = {
    "43.1": Rung(15, N_FGSM, {**_USUAL, "epochs": 10, "ema": 0.99}),
    "47.8": Rung(60, replace(ONE_CYCLE, steps=2), {**_USUAL, "epochs": 24}),
    "50.5": Rung(180, ONE_CYCLE, {**_USUAL, "epochs": 48, "awp": 0.005}),
    "51.6": Rung(360, ONE_CYCLE, {**_USUAL, "epochs": 96, "awp": 0.005}),
}


def train(rung: Rung, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training in this process, and what AutoAttack leaves of it."""
    dataset = mrboost.data.load(options.data, options.data_dir)
    given = rung.options | {"seed": seed, "model": options.model}
    if options.epochs is not None:
        given["epochs"] = options.epochs
    config = resolve(rung.recipe, dataset, **given)
    began = time.perf_counter()
    model = mrboost.boost(rung.recipe, dataset, device=options.device, **given)
    weights = next(model.parameters())
    weights.sum().item()  # waits for the device
    seconds = time.perf_counter() - began
    test = dataset.test if options.n is None else dataset.test[: options.n]
    eps = radius(config.eps)
    found = mrboost.evaluate(model, test, attack=["pgd-50", "autoattack"], eps=eps, check=False)
    steps = config.epochs * -(-len(dataset.train) // config.batch_size)
    return {
        "seconds": seconds,
        "naive": steps * naive_step(options, config),
        **{outcome.attack: 100 * outcome.accuracy for outcome in found.outcomes},
        "device": torch.cuda.get_device_name() if weights.is_cuda else "CPU",
    }


def naive_step(options: argparse.Namespace, config: Any) -> float:
    """Seconds of a step of the naive loop, their median."""
    dataset = mrboost.data.load(options.data, options.data_dir)
    device = make_fabric(options.device).device
    network = models.build(config.model, dataset.shape, dataset.num_classes).to(device)
    step = naive(config, network)
    stream = batches(dataset, config.batch_size, device)
    seconds = []
    for _ in range(3 + options.turns):
        x, y = next(stream)
        began = time.perf_counter()
        step(x, y)
        next(network.parameters()).sum().item()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", help="default: the data's usual one")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, default=list(RUNGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="instead of each rung's")
    parser.add_argument("--n", type=int, help="test images (default: all)")
    parser.add_argument("--turns", type=int, default=20, help="steps of the naive loop")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(RUNGS[options.rungs[0]], options, options.seeds[0])))
        return
    shared = sys.argv[1:]
    print("rung         seed  seconds   naive  ratio   clean  pgd-50  autoattack")
    for name in options.rungs:
        rows = []
        for seed in options.seeds:
            command = [sys.executable, __file__, *shared, "--one", "--rungs", name]
            command += ["--seeds", str(seed)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            _show(name, str(seed), rows[-1])
        figures = [key for key in rows[0] if key != "device"]
        _show(name, "mean", {key: statistics.mean(row[key] for row in rows) for key in figures})
        print(f"aim: {name} % in {RUNGS[name].seconds:g} s; {rows[0]['device']}", flush=True)


def _show(name: str, seed: str, row: dict[str, Any]) -> None:
    ratio = row["naive"] / row["seconds"]
    times = f"{row['seconds']:8.1f} {row['naive']:7.1f} {ratio:6.1f}"
    figures = "".join(f"{row[key]:8.2f}" for key in ("clean", "pgd-50", "autoattack"))
    print(f"{name:<12} {seed:>4} {times}{figures}", flush=True)


if __name__ == "__main__":
    main()
