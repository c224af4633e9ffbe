"""The solver "smooth": minimises the logistic loss of the worst case:

    mean_i log(1 + Σ_{y'} exp(-m(i, y')))  +  alpha * |parameters|^2,

where m(i, y') is the least score of point i's class against y' over the cells in reach. As a
minimum of linear functions of the ensemble m is concave, so the loss is convex: it needs no attack
and has no local minima. The weights exp(-m) / (1 + Σ exp(-m)) of its gradient are those of
Algorithm 1's adversary, except that no point weighs more than 1, so that overlapping classes do not
decide everything. With more than two classes each pair has scores of its own; the part of them that
is a difference of votes, which the pairs share, is penalised less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.optimize import minimize

from .cells import Floats, Ints
from .cover import Cover, Table
from .models import Pairs

C = TypeVar("C", bound=Cover)
Views = Sequence[tuple[int, Ints, Cover]]
INDEPENDENCE = 3.0  # the larger, the more the pairs' scores are fitted independently of each other


def sharing(pairs: Pairs) -> Floats:
    """The matrix (pairs, pairs) that turns parameters into scores. It enlarges the part that is a
    difference of votes, which the penalty of the parameters therefore favours."""
    first, second = pairs.members
    votes = np.eye(pairs.classes)[first] - np.eye(pairs.classes)[second]
    onto_votes = votes @ votes.T / pairs.classes  # the projection onto differences of votes
    enlarged = np.sqrt(1 + pairs.classes / INDEPENDENCE**2) - 1
    return np.asarray(np.eye(pairs.count) + enlarged * onto_votes)


def class_views(cover: C, y: Ints) -> list[tuple[int, Ints, C]]:
    """(class, its points, their cover) of each class."""
    rows = {int(k): np.flatnonzero(y == k) for k in np.unique(y)}
    return [(k, of_class, cover.part(of_class)) for k, of_class in rows.items()]


def robust_margins(views: Views, pairs: Pairs, values: Floats, bias: Floats) -> Floats:
    """The margin of each point: the least score of its class over the cells in reach."""
    out = np.empty(sum(len(rows) for _, rows, _ in views))
    for k, rows, part in views:
        least, _ = part.minima(pairs.against(values, k))
        out[rows] = (part.incidence @ least + pairs.against(bias, k)).min(axis=1)
    return out


def robust_loss(
    views: Views, weight: Floats, pairs: Pairs, values: Floats, bias: Floats
) -> tuple[float, Floats, Floats]:
    """The loss above without its penalty, and its gradient, which is the adversary's mass on
    (cell, y, y') in each term, and on (y, y')."""
    total = 0.0
    mass = np.zeros((len(values), pairs.classes, pairs.classes))
    labels = np.zeros((pairs.classes, pairs.classes))
    for k, rows, part in views:
        others = pairs.others(k)
        least, cell = part.minima(pairs.against(values, k))
        margins = part.incidence @ least + pairs.against(bias, k)
        top = np.maximum(-margins.min(axis=1, keepdims=True), 0.0)
        terms = np.exp(-margins - top)
        normal = terms.sum(axis=1, keepdims=True) + np.exp(-top)
        total += float(weight[rows] @ (np.log(normal) + top)[:, 0])
        push = terms / normal * weight[rows, None]
        labels[k, others] = push.sum(axis=0)
        push = part.incidence.T @ push
        for column, other in enumerate(others):
            mass[:, k, other] = np.bincount(cell[:, column], push[:, column], len(values))
    return total, mass, labels


def solve(
    cover: Cover, table: Table, alpha: float, iterations: int, tick: Callable[[], object]
) -> tuple[Floats, Floats]:
    """Values of cells and bias that minimise the loss, by L-BFGS.

    Args:
        cover: the cells in reach of each point of the table.
        table: the points.
        alpha: the strength of the penalty.
        iterations: of L-BFGS, at most; ``tick`` is called after each.
    """
    weight, pairs = table.weight, table.pairs
    mix = sharing(pairs)
    alpha *= 2 / pairs.classes  # a pair's share of the points
    shape = (cover.count, pairs.count)
    views = class_views(cover, table.y)
    first, second = pairs.members

    def objective(flat: Floats) -> tuple[float, Floats]:
        parameters, bias = flat[: -pairs.count].reshape(shape), flat[-pairs.count :]
        loss, mass, labels = robust_loss(views, weight, pairs, cover.expand(parameters @ mix), bias)
        by_value = mass[:, second, first] - mass[:, first, second]
        gradient = cover.fold(by_value) @ mix + 2 * alpha * parameters
        by_bias = labels[second, first] - labels[first, second]
        penalty = alpha * float((parameters**2).sum())
        return loss + penalty, np.append(gradient.ravel(), by_bias)

    # At zero every cell ties and one of many subgradients would be taken for the gradient: start a
    # little beside it, where each ball is shared evenly among its cells.
    even = np.zeros((cover.count, pairs.classes))
    for k, rows, part in views:
        even[:, k] = part.share(part.incidence.T @ weight[rows])
    begin = cover.fold(pairs.from_votes(even)) @ mix
    begin = 0.1 * begin / max(np.abs(begin).max(), 1e-12)
    point = np.append(begin.ravel(), np.zeros(pairs.count))
    best = np.inf
    left = iterations
    while left > 0:  # L-BFGS that stops where the loss has a kink often goes on after a restart
        result = minimize(
            objective,
            point,
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: tick(),
            options={"maxiter": left, "maxcor": 20, "maxls": 40, "maxfun": 10 * left},
        )
        if not result.fun < best - 1e-6:
            break
        best, point, left = float(result.fun), result.x, left - max(result.nit, 1)
    parameters, bias = point[: -pairs.count].reshape(shape), point[-pairs.count :]
    return cover.expand(parameters @ mix), bias
