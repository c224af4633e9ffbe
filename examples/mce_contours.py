"""The contours of the margin cross-entropy and of twice the cross-entropy, as in the paper's
figure: three classes, of which the first is true, and the third has logit 0.

python examples/mce_contours.py [--out docs/results/full]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mrboost  # isort: skip  # noqa: F401 — before torch, as in the command
import numpy as np
import torch

from mrboost.losses import cross_entropy, margin_cross_entropy
from mrboost.plots.figures import as_svg, new_figure

POINTS = [(5.0, 5.0), (5.0, 4.0), (5.0, 0.0), (2.0, 2.0), (0.0, 0.0), (-5.0, 5.0)]


def losses(g0: torch.Tensor, g1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """MCE(g, y = 0, y' = 1) and 2 CE(g, y = 0) at logits g = (g0, g1, 0)."""
    logits = torch.stack([g0, g1, torch.zeros_like(g0)], dim=-1).view(-1, 3)
    y = torch.zeros(len(logits), dtype=torch.long)
    mce = margin_cross_entropy(logits, y, torch.ones_like(y), reduction="none")
    ce = cross_entropy(logits, y, reduction="none")
    return mce.view(g0.shape), 2 * ce.view(g0.shape)


def contours(title: str, axis: torch.Tensor, values: torch.Tensor) -> str:
    """Contours of a function of the first two logits, as SVG text."""
    labels = ("g(x)₀, the true label", "g(x)₁, the false label")
    figure, axes = new_figure(title, *labels, height=3.8)
    levels = np.arange(0, 21, 1.0)
    filled = axes.contourf(axis, axis, values, levels=levels, cmap="viridis", extend="max")
    axes.contour(axis, axis, values, levels=levels, colors="white", linewidths=0.4)
    figure.colorbar(filled, ax=axes).ax.tick_params(labelsize=8)
    return as_svg(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/full"))
    parser.add_argument("--points", type=int, default=81, help="on each axis")
    options = parser.parse_args()

    axis = torch.linspace(-5, 5, options.points, dtype=torch.float64)
    mce, ce = losses(*torch.meshgrid(axis, axis, indexing="xy"))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, title, values in (
        ("mce", "MCE(g, y = 0, y' = 1)", mce),
        ("ce", "2 × CE(g, y = 0)", ce),
    ):
        path = options.out / f"mce-contours-{name}.svg"
        path.write_text(contours(title, axis, values))

    print("| logits | MCE | 2 CE | difference |\n| --- | --- | --- | --- |")
    for g0, g1 in POINTS:
        m, c = (value.item() for value in losses(*torch.tensor([g0, g1]).double()))
        print(f"| ({g0:g}, {g1:g}, 0) | {m:.3f} | {c:.3f} | {m - c:+.3f} |")


if __name__ == "__main__":
    main()
