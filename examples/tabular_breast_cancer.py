"""A robust classifier for a real table, its certificate, and the picture of docs/tabular.md.

    python examples/tabular_breast_cancer.py [--plot docs/images/tabular.svg]

scikit-learn's breast cancer table: 569 tumours, 30 measurements in their own units. Each entry may
be off by 5 % of its column's range.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from mrboost.tabular import MRBoostClassifier, column_eps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--plot", help="where to put the picture (svg, png, pdf)")
    options = parser.parse_args()
    data = load_breast_cancer()
    X, X_test, y, y_test = train_test_split(
        data.data, data.target, test_size=0.3, stratify=data.target, random_state=0
    )
    eps = column_eps(X, 0.05)

    models = {"plain boosting (eps = 0)": 0.0, "robust stumps (eps = 5 %)": eps}
    radii = {}
    for name, trained in models.items():
        model = MRBoostClassifier(trained).fit(X, y)
        certificate = model.certify(X_test, y_test, eps=eps)
        # The radius is of the column with the widest eps; as a share of the columns' ranges:
        radii[name] = certificate.radius / eps.max() * 0.05
        print(f"{name}\n{certificate}\n")

    weakest = int(np.argmin(np.where(certificate.robust, np.inf, certificate.margin)))
    change = np.abs(certificate.witness[weakest] - X_test[weakest]) / np.ptp(X, axis=0)
    print(f"test row {weakest} ({data.target_names[y_test[weakest]]}) is misled by changing")
    for j in np.argsort(-change)[:3]:
        before, after = X_test[weakest, j], certificate.witness[weakest, j]
        print(
            f"  {data.feature_names[j]}: {before:.4g} to {after:.4g} ({change[j]:.1%} of its range)"
        )
    if options.plot:
        plot(options.plot, radii, models, X, y, data.feature_names)


def plot(
    path: str, radii: dict, models: dict, X: np.ndarray, y: np.ndarray, names: np.ndarray
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (curve, shape) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    grid = np.linspace(0, 0.12, 200)
    column = int(np.flatnonzero(names == "worst area")[0])
    values = np.linspace(X[:, column].min(), X[:, column].max(), 800)
    for (name, trained), color in zip(models.items(), ("#b5651d", "#1f5fa8"), strict=True):
        curve.plot(
            100 * grid, [100 * (radii[name] > g).mean() for g in grid], label=name, color=color
        )
        model = MRBoostClassifier(trained).fit(X, y)
        rows = np.repeat(np.median(X, axis=0)[None], len(values), axis=0)
        rows[:, column] = values
        score = model.decision_function(rows)
        shape.step(values, (score - score.min()) / np.ptp(score), color=color)
    curve.axvline(5, color="grey", lw=0.8, ls=":")
    curve.set(
        xlabel="eps, % of each column's range",
        ylabel="robust test accuracy, % (exact)",
        ylim=(0, 101),
        xlim=(0, 12),
    )
    curve.legend(frameon=False, fontsize=8)
    shape.set(xlabel="worst area", ylabel="its part of the score (scaled)")
    for axis in (curve, shape):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)


if __name__ == "__main__":
    main()
