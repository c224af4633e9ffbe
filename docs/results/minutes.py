"""What a minute of GPU buys, from minutes.toml: ``python docs/results/minutes.py`` writes minutes.svg beside it."""

import tomllib
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from mrboost.plots import COLORS

HERE = Path(__file__).parent


def main() -> None:
    lines = tomllib.loads((HERE / "minutes.toml").read_text("utf-8"))["lines"]
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    for axes, key, title in zip(figure.subplots(1, 2), ("pgd", "clean"), ("PGD-20", "clean images"), strict=True):
        for color, line in zip(COLORS, lines, strict=False):
            points = line["points"]
            minutes, values = [point["minutes"] for point in points], [point[key] for point in points]
            look = {"marker": "o", "lw": 1.4} if line["label"].startswith("joined") else {"marker": "s", "lw": 0}
            axes.plot(minutes, values, color=color, ms=5, label=line["label"], **look)
            for point in points:
                where = (point["minutes"], point[key])
                axes.annotate(point["name"], where, (4, 4), textcoords="offset points", fontsize=7, color=color)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("minutes of one H200", fontsize=9)
        axes.set_ylabel("accuracy, %", fontsize=9)
        axes.set_xlim(0, 28)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "mrboost"}):
        figure.savefig(HERE / "minutes.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
