"""Proposition 3 as a picture: no classifier is robust by itself, yet a mixture of them has
a margin everywhere.

python examples/weak_learning.py [--out docs/images/weak_learning.svg]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from mrboost import game
from mrboost.plots.figures import COLORS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images/weak_learning.svg"))
    out = parser.parse_args().out

    example = game.proposition_example()
    ours = game.weak_learning(example.payoff)
    theirs = game.robboost_weak_learning(example.payoff, example.s_aug.pairs)
    run = game.mrboost(example.payoff, rounds=1000)
    every = game.weak_learning(game.proposition_example(refine=18).payoff)
    print(
        f"20 intervals: margin boosting's condition holds with tau = {ours.tau:.4f} (the paper "
        "states 0.2)"
    )
    print(
        f"              RobBoost's {'holds' if theirs.holds else 'fails'}: its tau is "
        f"{theirs.tau:.4f}"
    )
    print(
        f"              MRBoost, 1000 rounds: {run.lower[-1]:.4f} <= value <= {run.upper[-1]:.4f}"
    )
    print(f"theta in steps of 0.1/18: tau = {every.tau:.6f} (17/19 = {17 / 19:.6f})")

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    classifiers, margins = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.1))
    classifiers.barh(range(1, 21), 2, left=-1, height=0.8, color="#e5e7eb")
    classifiers.barh(range(1, 21), 0.1, left=example.theta, height=0.8, color=COLORS[4])
    classifiers.set_title(
        "Each classifier is wrong somewhere in the ball", loc="left", fontsize=10, fontweight="bold"
    )
    classifiers.set_ylabel("classifier (red: wrong)", fontsize=9)
    classifiers.set_yticks([1, 5, 10, 15, 20])

    # Margins are constant between the intervals' ends
    ends, middles = example.delta[::2], example.delta[1::2]
    for row, color, label in (
        (example.payoff.row(9), COLORS[4], "classifier 10 alone"),
        (run.margins, COLORS[0], "MRBoost's mixture (dots: at the intervals' ends)"),
    ):
        margins.hlines(row[1::2], middles - 0.05, middles + 0.05, color=color, lw=1.8, label=label)
        margins.plot(ends, row[::2], color=color, ls="none", marker="o", ms=2.5)
    margins.axhline(
        ours.tau,
        color=COLORS[2],
        lw=1,
        ls="--",
        label=f"ours: τ = {ours.tau:.2g} (the game's value)",
    )
    margins.axhline(0.2, color="#777", lw=1, ls=":", label="τ = 0.2, as the paper states")
    margins.axhline(
        theirs.tau,
        color=COLORS[1],
        lw=1,
        ls="--",
        label=f"RobBoost's: {theirs.tau:.2g}, so it fails",
    )
    margins.set_title(
        "A mixture of them is right everywhere", loc="left", fontsize=10, fontweight="bold"
    )
    margins.set_ylabel("margin at δ", fontsize=9)
    margins.set_xlabel("perturbation δ", fontsize=9)
    margins.set_ylim(-1.1, 1.1)
    margins.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.34))
    for axes in (classifiers, margins):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(-1, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "mrboost"}):
        figure.savefig(
            out, metadata={"Date": None, "Creator": None} if out.suffix == ".svg" else None
        )
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
