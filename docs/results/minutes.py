"""What a minute of GPU buys, from minutes.toml: ``python docs/results/minutes.py`` writes
minutes.svg beside it."""

import tomllib
from pathlib import Path

from matplotlib.figure import Figure

from mrboost.plots.figures import COLORS, as_svg, style

HERE = Path(__file__).parent


def main() -> None:
    lines = tomllib.loads((HERE / "minutes.toml").read_text("utf-8"))["lines"]
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    for axes, key, title in zip(
        figure.subplots(1, 2), ("pgd", "clean"), ("PGD-20", "clean images"), strict=True
    ):
        for color, line in zip(COLORS, lines, strict=False):
            points = line["points"]
            minutes, values = (
                [point["minutes"] for point in points],
                [point[key] for point in points],
            )
            look = (
                {"marker": "o", "lw": 1.4}
                if line["label"].startswith("joined")
                else {"marker": "s", "lw": 0}
            )
            axes.plot(minutes, values, color=color, ms=5, label=line["label"], **look)
            for point in points:
                where = (point["minutes"], point[key])
                axes.annotate(
                    point["name"],
                    where,
                    (4, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=color,
                )
        style(axes, title, "minutes of one H200", "accuracy, %")
        axes.set_xlim(0, 28)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    (HERE / "minutes.svg").write_text(as_svg(figure), "utf-8")


if __name__ == "__main__":
    main()
