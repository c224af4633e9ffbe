"""A robust classifier for a real table, its certificate, and the pictures of docs/tabular.md.

    python examples/tabular_breast_cancer.py [--out docs/images]

scikit-learn's breast cancer table: 569 tumours, 30 measurements in their own units. Each entry may
be off by 5 % of its column's range.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from mrboost.plots.figures import as_svg
from mrboost.tabular import MRBoostClassifier, column_eps

COLORS = ("#b5651d", "#1f5fa8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the pictures")
    options = parser.parse_args()
    data = load_breast_cancer()
    X, X_test, *targets = train_test_split(
        data.data, data.target, test_size=0.3, stratify=data.target, random_state=0
    )
    y, y_test = (data.target_names[target] for target in targets)
    eps = column_eps(X, 0.05)

    models, radii = {}, {}
    for name, trained in {"plain boosting (eps = 0)": 0.0, "robust (eps = 5 %)": eps}.items():
        model = MRBoostClassifier(trained, random_state=0).fit(X, y)
        certificate = model.certify(X_test, y_test, eps=eps)
        models[name] = model
        # The radius is of the column with the widest eps; as a share of the columns' ranges:
        radii[name] = certificate.radius / eps.max() * 0.05
        print(f"{name}: {model.base_}s, held-out robust accuracy {model.base_scores_}")
        print(f"{certificate}\n")

    print("the columns that matter most, and their share of the variance of the scores")
    for j in np.argsort(-model.feature_importances_)[:3]:
        print(f"  {data.feature_names[j]}: {model.feature_importances_[j]:.1%}")
    nearly = certificate.misled & certificate.correct
    weakest = int(np.argmax(np.where(nearly, certificate.margin, -np.inf)))
    change = np.abs(certificate.witness[weakest] - X_test[weakest]) / np.ptp(X, axis=0)
    print(f"test row {weakest} ({y_test[weakest]}) is misled by changing")
    for j in np.argsort(-change)[:3]:
        before, after = X_test[weakest, j], certificate.witness[weakest, j]
        print(
            f"  {data.feature_names[j]}: {before:.4g} to {after:.4g} ({change[j]:.1%} of its range)"
        )
    if options.out:
        names = list(data.feature_names)
        figure = curves(models, radii, X, names.index("worst area"))
        row = model.plot_certificate(X_test, y_test, weakest, eps, feature_names=names)
        (options.out / "tabular.svg").write_text(as_svg(figure))
        (options.out / "tabular_row.svg").write_text(as_svg(row))


def curves(models: dict, radii: dict, X: np.ndarray, column: int) -> Figure:
    """Robust accuracy against eps, and the scores as one column varies and the others stay at
    their medians."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    curve, shape = figure.subplots(1, 2)
    grid = np.linspace(0, 0.12, 200)
    rows = np.repeat(np.median(X, axis=0)[None], 800, axis=0)
    rows[:, column] = np.linspace(X[:, column].min(), X[:, column].max(), 800)
    for (name, model), color in zip(models.items(), COLORS, strict=True):
        share = [100 * (radii[name] > g).mean() for g in grid]
        curve.plot(100 * grid, share, label=name, color=color)
        score = model.decision_function(rows)
        shape.step(rows[:, column], (score - score.min()) / np.ptp(score), color=color)
    curve.axvline(5, color="grey", lw=0.8, ls=":")
    curve.set(xlabel="eps, % of each column's range", xlim=(0, 12), ylim=(0, 101))
    curve.set_ylabel("robust test accuracy, %, proved")
    curve.legend(frameon=False, fontsize=8)
    shape.set(xlabel="worst area", ylabel="score (scaled)")
    for axes in (curve, shape):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
