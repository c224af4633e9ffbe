"""How fast is MRBoost for which η? Decision stumps on a pair of digits, a few
perturbations of each image.

python examples/game_digits.py [--out docs/images/game_rates.svg]        about a minute
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from convergence import stump_game
from mrboost import game
from mrboost.plots.figures import COLORS

RATES: tuple[float | str, ...] = ("theorem", "anytime", "practical", 0.3, 1.0)
NAMES = {"theorem": "1/(2√T)", "anytime": "1/(2√t)", "practical": "√(log N / T)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pair", type=int, nargs=2, default=(3, 8))
    parser.add_argument("--perturbations", type=int, default=16)
    parser.add_argument("--eps", type=float, default=1 / 16)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="also draw the intervals, as SVG")
    a = parser.parse_args()

    payoff = stump_game(a.pair[0], a.pair[1], a.perturbations, a.eps)
    start = time.perf_counter()
    exact = game.solve(payoff)
    seconds = time.perf_counter() - start
    print(
        f"{payoff.classifiers} stumps, |S_aug| = {payoff.points}: value {exact.value:.4f} "
        f"({seconds:.1f} s)\n"
    )
    print(
        f"| η | its value | margin of Q(T), T = {a.rounds} | certified interval | bound on the "
        "gap |"
    )
    print("|---|---|---|---|---|")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for color, rate in zip(COLORS, RATES, strict=False):
        run = game.mrboost(payoff, a.rounds, eta=rate, progress=True)
        if rate == "anytime":
            bound = game.theorem_bound(payoff.points, a.rounds)
        else:
            bound = game.regret_bound(payoff.points, a.rounds, run.eta[-1])
        name = NAMES.get(str(rate), str(rate))
        print(
            f"| {name} | {run.eta[-1]:.4f} | {run.margin[-1]:.4f} | {run.lower[-1]:.4f} … "
            f"{run.upper[-1]:.4f} | {bound:.3f} |",
            flush=True,
        )
        t = np.arange(1, len(run.lower) + 1)
        axes.plot(t, run.lower, color=color, lw=1.5, label=f"η = {name}")
        axes.plot(t, run.upper, color=color, lw=1.5)
    axes.axhline(exact.value, color="#555", lw=0.8, ls="--", label="value (LP)")
    axes.set(xscale="log", xlim=(10, a.rounds), ylim=(-0.2, 0.7))
    axes.set_title(
        f"Certified interval for the value, digits {a.pair[0]} and {a.pair[1]}",
        loc="left",
        fontsize=10,
    )
    axes.set_xlabel("rounds", fontsize=9)
    axes.set_ylabel("lower and upper bound", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    if a.out:
        with matplotlib.rc_context({"svg.hashsalt": "mrboost"}):
            figure.savefig(
                a.out, metadata={"Date": None, "Creator": None} if a.out.suffix == ".svg" else None
            )
        print(f"\nwrote {a.out}")


if __name__ == "__main__":
    main()
