"""The best robust accuracy that any classifier can have on a table:

    1 - (size of the largest matching of conflicts) / n.

Two points of different classes whose balls meet are in conflict: no classifier has both right
robustly. So it loses at least one point of each pair of a matching. With two classes the graph of
conflicts is bipartite and the bound is attained (König's theorem); with more, half of the largest
matching of the bipartite double cover is a valid bound.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.spatial import cKDTree
from sklearn.utils.validation import check_X_y

from .cells import Floats, per_column


def conflicts(X: Floats, y: npt.NDArray[np.generic], eps: Floats) -> sparse.csr_array:
    """(n, n), symmetric: which points of different classes have closed balls that meet."""
    fixed = eps == 0
    # In units of eps the balls meet within 2; columns that nobody can move must be equal.
    scaled = X / np.where(fixed, 1.0, eps)
    for j in np.flatnonzero(fixed):
        scaled[:, j] = 4.0 * np.unique(X[:, j], return_inverse=True)[1].ravel()
    near = cKDTree(scaled).query_pairs(2.0 + 1e-9, p=np.inf, output_type="ndarray")
    near = near[y[near[:, 0]] != y[near[:, 1]]]
    for low, high in zip((X - eps).T, (X + eps).T, strict=True):  # by column, to save memory
        one, two = near.T
        near = near[(low[one] <= high[two]) & (low[two] <= high[one])]
    both = np.concatenate([near, near[:, ::-1]])
    return sparse.csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(len(X), len(X)))


def attainable_accuracy(X: npt.ArrayLike, y: npt.ArrayLike, eps: npt.ArrayLike) -> float:
    """The largest share of the points that any classifier can have right in their whole balls:
    exact for two classes, an upper bound for more.

    Args:
        X: points, (n, d).
        y: their labels.
        eps: the radius of the balls; a number, or one per column.
    """
    table, labels = check_X_y(X, y, dtype=np.float64)
    graph = conflicts(table, labels, per_column("eps", eps, table.shape[1]))
    classes = np.unique(labels)
    if len(classes) == 2:
        graph = graph[labels == classes[0]][:, labels == classes[1]]
    matched = (maximum_bipartite_matching(sparse.csr_matrix(graph)) >= 0).sum()
    lost = matched if len(classes) == 2 else math.ceil(matched / 2)
    return float(1 - lost / len(table))
