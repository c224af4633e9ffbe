"""A randomised defence, attacked from the weakest way to the honest ones: the paper's appendix
on Pinot et al. 2020.

    python examples/pinot_digits.py

The first network is adversarially trained; the second trains on the first one's adversarial
examples only; a coin decides which of them answers. Attacks that ignore the coin make the pair look
robust; the one on the expected probabilities, which is the honest one, does not. ARC, made for such
classifiers, is tried on this pair and on a pair of independent adversarially trained networks.
"""

from __future__ import annotations

import statistics

import mrboost
from mrboost.attacks import PGD, Attack
from mrboost.attacks.adaptive import attacks_on
from mrboost.attacks.arc import ARC

EPS, SEEDS = 0.15, (0, 1, 2)


def main() -> None:
    data = mrboost.data.load("digits")
    x, y = data.test.images(), data.test.y
    rows: dict[str, list[float]] = {}

    def test(
        name: str, model: mrboost.Ensemble | mrboost.Mixture, attacks: dict[str, Attack]
    ) -> None:
        for outcome in mrboost.evaluate(model, x, y, attacks).outcomes:
            rows.setdefault(f"{name}, {outcome.attack}", []).append(100 * outcome.accuracy)

    for seed in SEEDS:
        pinot = mrboost.boost("pinot", data, eps=EPS, epochs=20, seed=seed, device="cpu")
        assert isinstance(pinot, mrboost.Mixture)
        longer = {"mean probabilities, pgd-100": PGD(EPS, steps=100), "ARC": ARC(EPS)}
        test("the mixture", pinot, attacks_on(pinot, PGD(EPS, steps=20)) | longer)
        test(
            "its first network alone", mrboost.Ensemble([pinot[0]]), {"pgd-20": PGD(EPS, steps=20)}
        )
        networks = mrboost.boost("at", data, rounds=2, eps=EPS, epochs=20, seed=seed, device="cpu")
        pair = mrboost.Mixture(networks.members).eval()
        for norm, eps in (("Linf", EPS), ("L2", 0.8)):
            probabilities: dict[str, Attack] = {
                f"pgd-{steps}": PGD(eps, norm, steps=steps) for steps in (20, 100)
            }
            test(f"two `at` networks, {norm} {eps}", pair, {**probabilities, "ARC": ARC(eps, norm)})
    print(
        f"Expected accuracy, %, mean ± standard deviation over {len(SEEDS)} seeds, trained at "
        f"Linf eps = {EPS}\n"
    )
    print("| tested | accuracy |\n|---|---|")
    for label, values in rows.items():
        print(f"| {label} | {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} |")


if __name__ == "__main__":
    main()
