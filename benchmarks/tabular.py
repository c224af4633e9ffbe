"""Exact robust accuracy on tables, ours beside forests and boosting, five stratified folds.

    python benchmarks/tabular.py                     # scikit-learn's own tables
    python benchmarks/tabular.py --data-dir DIR      # and breast-cancer-wisconsin.data,
                                                     diabetes.csv from DIR
    python benchmarks/tabular.py --tables digits --rows stumps,groot --seeds 0 1 2

The two files are UCI's Wisconsin breast cancer table (rows with "?" are dropped) and the Pima
diabetes table with a header line; both are scaled to [0, 1] as a whole. Folds are stratified and
shuffled with ``--seeds``; 1, the default, gives those of GROOT's authors (their
train_kfold_models.py). Trees of any origin are put through the same search. Where it ends without
an answer the figure is a range: from what is proved to what no witness refutes. A peer's row
appears where the peer imports: groot-trees 0.0.17 does with numba and pandas beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import StratifiedKFold
from tqdm import tqdm

from mrboost.tabular import MRBoostClassifier
from mrboost.tabular.certificate import Certificate, certify
from mrboost.tabular.models import Pairs, Tree, TreeModel

Array = np.ndarray
TABLES = {
    "breast-cancer": 0.3,
    "diabetes": 0.05,
    "breast-30": 0.05,
    "digits-2-6": 0.1,
    "digits": 0.1,
}


def load(name: str, folder: Path | None) -> tuple[Array, Array] | None:
    if name == "breast-30":
        return load_breast_cancer(return_X_y=True)
    if name.startswith("digits"):
        X, y = load_digits(return_X_y=True)
        kept = (y == 2) | (y == 6) if name == "digits-2-6" else y >= 0
        return X[kept] / 16, y[kept]
    path = (
        folder / {"breast-cancer": "breast-cancer-wisconsin.data", "diabetes": "diabetes.csv"}[name]
        if folder
        else None
    )
    if path is None or not path.is_file():
        return None
    if name == "diabetes":
        table = np.loadtxt(path, delimiter=",", skiprows=1)
    else:
        table = np.array(
            [line.split(",") for line in path.read_text().split() if "?" not in line], dtype=float
        )[:, 1:]
    X = table[:, :-1]
    return (X - X.min(axis=0)) / np.ptp(X, axis=0), table[:, -1].astype(int)


def folds(name: str, X: Array, y: Array, seed: int) -> Iterator[tuple[Array, Array, Array, Array]]:
    for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
        low, span = (
            (X[train].min(axis=0), np.ptp(X[train], axis=0)) if name == "breast-30" else (0.0, 1.0)
        )
        yield (X[train] - low) / span, y[train], (X[test] - low) / span, y[test]


# Trees of others as ours: votes of leaves, then differences of votes.


def model_of(trees: list[Tree], votes: list[Array], base: Array) -> TreeModel:
    pairs = Pairs(votes[0].shape[1])
    return TreeModel(
        tuple(trees), pairs.from_votes(np.concatenate(votes)), pairs.from_votes(base), pairs
    )


def tree_of(feature: Array, threshold: Array, left: Array, right: Array) -> tuple[Tree, Array]:
    """The tree with its leaves numbered, and their nodes."""
    leaves = np.flatnonzero(np.asarray(feature) < 0)
    left = np.array(left, dtype=np.intp)
    left[leaves] = np.arange(len(leaves))
    return Tree(
        np.asarray(feature), np.asarray(threshold, float), left, np.asarray(right, dtype=np.intp)
    ), leaves


def from_forest(forest: RandomForestClassifier) -> TreeModel:
    trees, votes = [], []
    for member in forest.estimators_:
        t = member.tree_
        tree, leaves = tree_of(
            np.where(t.children_left < 0, -1, t.feature),
            t.threshold,
            t.children_left,
            t.children_right,
        )
        trees.append(tree)
        votes.append(
            t.value[leaves, 0]
            / t.value[leaves, 0].sum(axis=1, keepdims=True)
            / len(forest.estimators_)
        )
    return model_of(trees, votes, np.zeros(len(forest.classes_)))


def from_boosting(model: HistGradientBoostingClassifier) -> TreeModel:
    classes, trees, votes = len(model.classes_), [], []
    for stage in model._predictors:
        for k, predictor in enumerate(stage):
            n = predictor.nodes
            tree, leaves = tree_of(
                np.where(n["is_leaf"], -1, n["feature_idx"]),
                n["num_threshold"],
                n["left"],
                n["right"],
            )
            vote = np.zeros((len(leaves), classes))
            vote[:, 1 if classes == 2 else k] = n["value"][leaves]
            trees.append(tree)
            votes.append(vote)
    base = np.zeros(classes)
    base[1 if classes == 2 else 0 :] = np.ravel(model._baseline_prediction)
    return model_of(trees, votes, base)


def from_groot(forests: list, classes: int) -> TreeModel:
    """One forest (two classes), or one per class against the rest."""
    trees, votes = [], []
    for k, forest in enumerate(forests):
        for member in forest.estimators_:
            nodes, order = [member.root_], []
            while nodes:
                node = nodes.pop()
                order.append(node)
                if not node.is_leaf():
                    nodes += [node.right_child, node.left_child]
            place = {id(node): i for i, node in enumerate(order)}
            rows = [
                (-1, 0.0, 0, 0)
                if node.is_leaf()
                else (
                    node.feature,
                    node.threshold,
                    place[id(node.left_child)],
                    place[id(node.right_child)],
                )
                for node in order
            ]
            tree, leaves = tree_of(*map(np.array, zip(*rows, strict=True)))
            vote = np.zeros((len(leaves), classes))
            vote[:, 1 if classes == 2 else k] = [
                order[leaf].value[1] / len(forest.estimators_) for leaf in leaves
            ]
            trees.append(tree)
            votes.append(vote)
    return model_of(trees, votes, np.array([0.5, 0.0]) if classes == 2 else np.zeros(classes))


def groot(X: Array, y: Array, eps: float, leaf: int = 5) -> TreeModel:
    """Leaves of at least 5 points do better on every table but the last;
    ``groot-1`` has the default, 1."""
    # NumPy 2 has it no more, and groot asks for one name in it
    gone = types.ModuleType("numpy.lib.function_base")
    gone.iterable = np.iterable
    sys.modules.setdefault(gone.__name__, gone)
    from groot.model import GrootRandomForestClassifier

    labels = np.unique(y)
    forests = []
    for label in labels[1:] if len(labels) == 2 else labels:
        forest = GrootRandomForestClassifier(
            n_estimators=100,
            min_samples_split=2 * leaf,
            min_samples_leaf=leaf,
            attack_model=[eps] * X.shape[1],
            random_state=0,
        )
        forests.append(forest.fit(X, (y == label).astype(int)))
    return from_groot(forests, len(labels))


def ours(X: Array, y: Array, eps: float, **options: object) -> object:
    return MRBoostClassifier(eps, random_state=0, **options).fit(X, y).model_


ROWS: dict[str, Callable[[Array, Array, float], object]] = {
    "default": ours,
    "stumps": lambda X, y, eps: ours(X, y, eps, base="stump"),
    "trees": lambda X, y, eps: ours(X, y, eps, base="tree"),
    "stumps-lp": lambda X, y, eps: ours(X, y, eps, solver="lp"),
    "stumps-hedge": lambda X, y, eps: ours(X, y, eps, solver="hedge", nu=0.3),
    "groot": groot,
    "groot-1": lambda X, y, eps: groot(X, y, eps, leaf=1),
    "forest": lambda X, y, _: from_forest(RandomForestClassifier(random_state=0).fit(X, y)),
    "boosting": lambda X, y, _: from_boosting(
        HistGradientBoostingClassifier(random_state=0).fit(X, y)
    ),
}


def spread(values: list[float]) -> str:
    return f"{100 * np.mean(values):5.1f} ± {100 * np.std(values):3.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", default="default,stumps,trees,groot,forest,boosting")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="of the shuffling, five folds each"
    )
    parser.add_argument(
        "--limit", type=int, default=500, help="boxes that a search in others' trees may open"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| table | row | clean % | exact robust % | fit s | certify s |\n|---|---|---|---|---|---|"
    )
    for name in options.tables.split(","):
        data, eps = load(name, options.data_dir), TABLES[name]
        if data is None:
            print(f"| {name} | its file is not there: --data-dir | | | | |")
            continue
        for row in options.rows.split(","):
            results: list[Certificate] = []
            trees = 0
            seconds = np.zeros(2)
            for seed in options.seeds:
                for X, y, test, labels in tqdm(
                    folds(name, *data, seed), total=5, leave=False, desc=f"{name} {row}"
                ):
                    began = time.process_time()
                    try:
                        model = ROWS[row](X, y, eps)
                    except ImportError:
                        break
                    fitted = time.process_time()
                    codes = np.searchsorted(np.unique(y), labels)
                    limit = 2000 if row in ("default", "stumps", "trees") else options.limit
                    radius = np.full(X.shape[1], eps)
                    trees += isinstance(model, TreeModel)
                    results.append(certify(model, test, codes, radius, radius=False, limit=limit))
                    seconds += fitted - began, time.process_time() - fitted
            if not results:
                print(f"| {name} | {row} | not installed | | | |")
                continue
            proved, top = (
                [c.robust_accuracy for c in results],
                [1 - c.misled.mean() for c in results],
            )
            robust = spread(proved) + (
                f" (to {100 * np.mean(top):.1f})" if np.mean(top) - np.mean(proved) > 5e-4 else ""
            )
            fit, check = seconds / len(results)
            clean = spread([c.accuracy for c in results])
            chosen = f" (trees in {trees} of {len(results)})" if row == "default" else ""
            print(
                f"| {name} {eps} | {row}{chosen} | {clean} | {robust} | {fit:.2f} | {check:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
