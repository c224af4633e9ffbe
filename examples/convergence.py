"""Theorem 4: how fast Algorithm 1 approaches the best margin, beside the theorem's bound ξ(t).

The game: decision stumps on two digits, each image with random corners of its ball.

python examples/convergence.py [--rounds 10000] [--out docs/results/full/theory-bound.svg]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from mrboost import game
from mrboost.plots.figures import COLORS, as_svg, new_figure


def stump_game(
    first: int = 3, second: int = 8, perturbations: int = 16, eps: float = 1 / 16
) -> game.Payoff:
    """Stumps at every second grey level of every pixel, against each image of two digits and
    ``perturbations - 1`` random corners of its ball."""
    x, digits = load_digits(return_X_y=True)
    chosen = np.isin(digits, (first, second))
    x, y = x[chosen] / 16, (digits[chosen] == first).astype(int)
    corners = np.random.default_rng(0).choice([-eps, eps], (perturbations - 1, 64))
    points = (x[:, None] + np.vstack([np.zeros(64), corners])).reshape(-1, 64)
    above = np.array(
        [points[:, pixel] > level / 16 + 1 / 32 for pixel in range(64) for level in range(1, 16, 2)]
    )
    labels = np.unique(np.vstack([above, ~above]), axis=0)
    return game.Payoff(game.SAug(y.repeat(perturbations), 2).labels(labels))


def plot(gap: np.ndarray, bound: np.ndarray) -> str:
    """The gap and the bound over the rounds, as SVG text."""
    figure, axes = new_figure("Theorem 4: the gap to the best margin", "round", "gap")
    rounds = range(1, len(gap) + 1)
    for color, label, values in zip(COLORS, ("gap of Q(t)", "ξ(t)"), (gap, bound), strict=False):
        axes.plot(rounds, values, color=color, lw=1.6, label=label)
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=8, frameon=False)
    return as_svg(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--perturbations", type=int, default=16, help="of each image")
    parser.add_argument("--out", type=Path, default=Path("docs/results/full/theory-bound.svg"))
    options = parser.parse_args()

    payoff = stump_game(perturbations=options.perturbations)
    value = game.solve(payoff).value
    run = game.mrboost(payoff, options.rounds, eta="anytime")
    gap = value - run.margin
    bound = np.array([game.theorem_bound(payoff.points, t + 1) for t in range(options.rounds)])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(plot(gap, bound))

    print(
        f"{payoff.classifiers} stumps on the digits 3 and 8, |S_aug| = {payoff.points}, value "
        f"{value:.4f}; the gap is within the bound in {int((gap <= bound).sum())} of "
        f"{options.rounds} rounds\n"
    )
    print("| t | margin of Q(t) | gap to the value | ξ(t) |\n| --- | --- | --- | --- |")
    for t in (1, 10, 100, 1000, 10_000):
        if t <= options.rounds:
            print(f"| {t} | {run.margin[t - 1]:.4f} | {gap[t - 1]:.4f} | {bound[t - 1]:.4f} |")


if __name__ == "__main__":
    main()
