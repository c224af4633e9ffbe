"""What a round costs: seconds of an epoch of round t over those of round 1, in one process.

    python benchmarks/boosting_cost.py --data digits --rounds 4

Attacking t members takes t passes a step, so t is the best ratio there can be for the attack alone; anything beyond
t + 10 % is waste. Also printed: the memory that the process holds, on a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import mrboost
from mrboost import models, recipes
from mrboost.config import resolve
from mrboost.devices import make_fabric
from mrboost.training import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--recipe", default="mrboost")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    dataset, fabric = mrboost.data.load(options.data), make_fabric(options.device)
    config = resolve(recipes.get(options.recipe), dataset, epochs=1)
    networks = [
        models.build(config.model, dataset.shape, dataset.num_classes).to(fabric.device).eval().requires_grad_(False)
        for _ in range(options.rounds)
    ]

    def epoch(past: int) -> float:
        learner = models.build(config.model, dataset.shape, dataset.num_classes)
        began = time.perf_counter()
        fit(learner, networks[:past], dataset.train, dataset.test[:1], config, fabric=fabric)
        if fabric.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    epoch(0)  # warm up
    # Rounds take turns, so that a slow moment of the machine does not fall on one of them alone.
    seconds = [[epoch(past) for past in range(options.rounds)] for _ in range(options.repeats)]
    print("round  epoch over round 1  over t")
    for t in range(1, options.rounds + 1):
        ratio = statistics.median(row[t - 1] / row[0] for row in seconds)
        print(f"{t:>5}  {ratio:>18.2f}  {ratio / t:>6.2f}")
    if fabric.device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
