"""Our search in trees against dtai-veritas, an independent verifier of tree ensembles
(``pip install 'mrboost[trees]'``; wheels for Python 3.11 on Linux).

python examples/veritas_check.py        half a minute
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from mrboost.tabular import MRBoostClassifier
from mrboost.tabular.models import TreeModel


def to_veritas(model: TreeModel, k: int, other: int) -> Any:
    """The score of class ``k`` against ``other`` as an ensemble of veritas."""
    import veritas

    ensemble = veritas.AddTree(1, veritas.AddTreeType.REGR)
    column = int(np.flatnonzero(model.pairs.others(k) == other)[0])
    values = model.pairs.against(model.values, k)[:, column]
    bias = model.pairs.against(model.bias, k)[column]
    ensemble.set_base_score(0, float(bias))
    for tree, start in zip(model.trees, model.offset, strict=False):
        copy = ensemble.add_tree()
        todo = [(0, copy.root())]
        while todo:
            node, place = todo.pop()
            if tree.feature[node] < 0:
                copy.set_leaf_value(place, 0, float(values[start + tree.left[node]]))
                continue
            # veritas splits by <, we by <=
            threshold = float(np.nextafter(tree.threshold[node], np.inf))
            copy.split(place, int(tree.feature[node]), threshold)
            todo += [
                (int(tree.left[node]), copy.left(place)),
                (int(tree.right[node]), copy.right(place)),
            ]
    return ensemble


def least_score(
    model: TreeModel, k: int, other: int, x: np.ndarray, eps: np.ndarray, seconds: float = 10.0
) -> float:
    """The least score of class ``k`` against ``other`` in the closed ball around ``x``. veritas has
    thresholds of float32: ties may differ."""
    import veritas

    settings = veritas.Config(veritas.HeuristicType.MIN_OUTPUT)
    ball = [
        veritas.Interval(low, high)
        for low, high in zip(x - eps, np.nextafter(x + eps, np.inf), strict=True)
    ]
    search = settings.get_search(to_veritas(model, k, other), ball)
    finished = search.step_for(seconds, 1000) == veritas.StopReason.NO_MORE_OPEN
    if not finished and not search.is_optimal():
        raise TimeoutError(f"veritas found no optimum in {seconds} s: give it more")
    return float(search.get_solution(0).output)


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[(y == 2) | (y == 6)] / 16, y[(y == 2) | (y == 6)]
    fitted = MRBoostClassifier(0.15, base="tree", n_rounds=15, random_state=0).fit(X[::2], y[::2])
    found = fitted.certify(X[1::2], y[1::2])
    codes = np.searchsorted(fitted.classes_, y[1::2])
    agree = [
        (least_score(fitted.model_, int(k), 1 - int(k), x, fitted.eps_) > 0) == robust
        for x, k, robust in zip(X[1::2], codes, found.robust, strict=True)
    ]
    print(f"the two verifiers agree on {sum(agree)} of {len(agree)} points")


if __name__ == "__main__":
    main()
