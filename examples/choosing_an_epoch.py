"""Which epoch's weights to keep? Rules that see the held-out images only, judged on test
images they do not see.

python examples/choosing_an_epoch.py --recipes strong at at-mce --epochs 20
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from tqdm import tqdm

import mrboost
from mrboost import recipes
from mrboost.files import State
from mrboost.recipes.config import resolve
from mrboost.training.state import FitState, copy_state

EPS = 0.15
Rule = Callable[[Sequence[float], float], int]


def latest_within(errors: float) -> Rule:
    """The latest epoch that is at most so many standard errors of an accuracy below the best."""

    def choose(robust: Sequence[float], images: float) -> int:
        top = max(robust)
        least = top - errors * (top * (1 - top) / images) ** 0.5
        return max(epoch for epoch, found in enumerate(robust) if found >= least)

    return choose


RULES: dict[str, Rule] = {
    "earliest of the best": lambda robust, _: max(range(len(robust)), key=robust.__getitem__),
    "latest of the best": latest_within(0),
    "latest within 1/2 error": latest_within(0.5),
    "latest within 1 error": latest_within(1),
    "last": lambda robust, _: len(robust) - 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipes", nargs="+", default=["strong", "at", "at-mce"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    print(
        f"Accuracy on test images, %, worst case over PGD-100 and CW at eps {EPS}; seeds "
        f"{options.seeds}.\n"
    )
    print(
        f"| recipe | {' | '.join(RULES)} | best on the test images |\n{'|---' * (len(RULES) + 2)}|"
    )
    for name in options.recipes:
        rows = [
            row(name, seed, options.epochs) for seed in tqdm(options.seeds, name, unit="training")
        ]
        print(
            f"| `{name}` | {' | '.join(spread(column) for column in zip(*rows, strict=True))} |",
            flush=True,
        )


def row(name: str, seed: int, epochs: int) -> list[float]:
    """What each rule's epoch is worth on the test images, and the best epoch there."""
    dataset = mrboost.data.load("digits")
    kept: list[tuple[float, State]] = []
    score = FitState.score

    def keeping(self: FitState, robust: float, *rest: Any) -> None:
        score(self, robust, *rest)
        kept.append((robust, copy_state(self.kept)))

    with mock.patch.object(FitState, "score", keeping):
        (network,) = mrboost.boost(
            recipes.get(name), dataset, seed=seed, epochs=epochs, eps=EPS, device="cpu"
        )
    worth = []
    for _, weights in kept:
        network.load_state_dict(weights)
        found = mrboost.evaluate(
            network.eval(),
            dataset.test.images(),
            dataset.test.y,
            ("pgd-100", "cw"),
            eps=EPS,
            check=False,
        )
        worth.append(100 * found.worst[0])
    robust = [one for one, _ in kept]
    images = resolve(recipes.get(name), dataset).validation
    return [worth[rule(robust, images)] for rule in RULES.values()] + [max(worth)]


def spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    main()
