"""Algorithm 3 with draws from P_t beside the attack of MRBoost.NN, on digits, round by round.

    python examples/exponential_rounds.py

In the paper's Algorithm 3 the adversary sees the past members alone ("aggressive" adds the
learner), so the first learner trains on random draws from the ball. Every row has the same rounds
and epochs.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import mrboost
from mrboost.recipes import All, Exp, OnPairs, Sampler, get

ROUNDS = 4
EPOCHS = 8
SEEDS = (0, 1, 2)
EPS = 0.1
SAMPLERS: dict[str, Sampler] = {
    "Exp, past members, η = 0.5": Exp(eta=0.5, aggressive=False),
    "Exp, past members, η = 2": Exp(eta=2.0, aggressive=False),
    "Exp, past members, η = 16, no weights": Exp(eta=16.0, aggressive=False, reweight=False),
    "Exp, aggressive, η = 0.5": Exp(eta=0.5),
    "Exp, aggressive, η = 16, no weights": Exp(eta=16.0, reweight=False),
    "All, past members": All(aggressive=False),
    "All, aggressive": All(),
}


def main() -> None:
    data = mrboost.data.load("digits")
    images = data.test.images()
    rounds = ", ".join(map(str, range(1, ROUNDS + 1)))
    print(
        f"| sampler | clean | PGD-20 | APGD-T | APGD-T after rounds {rounds} |\n"
        "|---|---|---|---|---|"
    )
    for label, sampler in SAMPLERS.items():
        recipe = replace(get("mrboost"), sampler=sampler)
        if isinstance(sampler, Exp):
            recipe = replace(recipe, objective=OnPairs())
        found: dict[str, list[list[float]]] = {"clean": [], "pgd-20": [], "apgd-t": []}
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                mrboost.boost(
                    recipe, data, rounds=ROUNDS, epochs=EPOCHS, seed=seed, out=run, device="cpu"
                )
                models = [mrboost.load(run, "last", rounds=t) for t in range(1, ROUNDS + 1)]
            results = [
                mrboost.evaluate(
                    model, images, data.test.y, ["pgd-20", "apgd-t"], eps=EPS, check=False
                )
                for model in models
            ]
            for attack, by_seed in found.items():
                by_seed.append([100 * result[attack].accuracy for result in results])
        cells = [spread([by_round[-1] for by_round in by_seed]) for by_seed in found.values()]
        means = [
            f"{statistics.mean(of_round):.1f}" for of_round in zip(*found["apgd-t"], strict=True)
        ]
        print(f"| {label} | {' | '.join(cells)} | {', '.join(means)} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
