"""A randomised defence, attacked three ways: the paper's appendix on Pinot et al. 2020, on digits.

    python examples/pinot_digits.py

The first network is adversarially trained; the second trains on the first one's adversarial examples only; a coin
decides which of them answers. Attacks that ignore the coin make the pair look robust; the one on the expected
probabilities, which is the honest one, does not.
"""

from __future__ import annotations

import statistics

import mrboost
from mrboost.attacks import PGD
from mrboost.mixtures import attacks_on

EPS, SEEDS = 0.15, (0, 1, 2)


def main() -> None:
    data = mrboost.data.load("digits")
    x, y = data.test.images(), data.test.y
    rows: dict[str, list[float]] = {}
    for seed in SEEDS:
        mixture = mrboost.boost("pinot", data, eps=EPS, epochs=20, seed=seed, device="cpu")
        assert isinstance(mixture, mrboost.Mixture)
        attack = PGD(EPS, steps=20)
        result = mrboost.evaluate(mixture, x, y, attacks_on(mixture, attack))
        for outcome in result.outcomes:
            rows.setdefault(f"the mixture, {outcome.attack}", []).append(100 * outcome.accuracy)
        alone = mrboost.evaluate(mixture[0], x, y, {"pgd-20": attack})
        rows.setdefault("its first network alone, pgd-20", []).append(100 * alone["pgd-20"].accuracy)
    print(f"Expected accuracy, %, mean ± standard deviation over {len(SEEDS)} seeds, Linf eps = {EPS}\n")
    print("| tested | accuracy |\n|---|---|")
    for label, values in rows.items():
        print(f"| {label} | {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} |")


if __name__ == "__main__":
    main()
