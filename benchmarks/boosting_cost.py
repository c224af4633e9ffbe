"""What a round costs: time and memory of an epoch of round t, in one process.

    python benchmarks/boosting_cost.py --data digits --rounds 4
    python benchmarks/boosting_cost.py --data cifar10 --model resnet18 --train 3200 --rounds 5

Attacking t members takes t passes a step, so t is the best ratio there can be for the attack alone; anything beyond
t + 10 % is waste. On a CUDA device the most memory that torch held during each round is printed too.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import mrboost
from mrboost import models, recipes
from mrboost.config import resolve
from mrboost.devices import make_fabric, place
from mrboost.training import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", help="default: the data's usual one")
    parser.add_argument("--train", type=int, help="training images of an epoch; default: all")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--recipe", default="mrboost")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    dataset, fabric = mrboost.data.load(options.data, options.data_dir), make_fabric(options.device)
    config = resolve(recipes.get(options.recipe), dataset, model=options.model, batch_size=options.batch_size, epochs=1)
    train, cuda = dataset.train[: options.train], fabric.device.type == "cuda"

    def network() -> nn.Module:
        return models.build(config.model, dataset.shape, dataset.num_classes)

    def epoch(round_: int) -> tuple[float, float]:
        """Seconds, and MiB at the peak, of an epoch beside the members of the rounds before."""
        past = [place(network(), fabric.device).eval().requires_grad_(False) for _ in range(round_ - 1)]
        learner = network()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        fit(learner, past, train, dataset.test[:1], config, fabric=fabric)
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        return seconds, torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0

    epoch(1)  # warm up
    # Rounds take turns, so that a slow moment of the machine does not fall on one of them alone.
    costs = [[epoch(t) for t in range(1, options.rounds + 1)] for _ in range(options.repeats)]
    print("round  epoch over round 1  over t" + "  peak MiB" * cuda)
    for t, row in enumerate(zip(*costs, strict=True), start=1):
        ratio = statistics.median(cost[0] / first[0][0] for cost, first in zip(row, costs, strict=True))
        print(f"{t:>5}  {ratio:>18.2f}  {ratio / t:>6.2f}" + f"  {row[0][1]:>8.0f}" * cuda)
    print(f"an epoch of round 1 took {min(first[0][0] for first in costs):.2f} s")


if __name__ == "__main__":
    main()
