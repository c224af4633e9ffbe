"""A smooth stand-in for the game: the logistic loss of the worst case itself.

The least score m(i, y') of a point's class against y' over what the adversary can reach is a
minimum of linear functions of the ensemble, hence concave, so

    mean_i log(1 + sum_{y'} exp(-m(i, y')))  +  alpha * |parameters|^2

is convex: no attack, no local minimum. The weights exp(-m) / (1 + sum exp(-m)) are those of
Algorithm 1's exponential adversary, except that a hopeless point weighs at most 1: overlapping
classes do not take the whole game with them. With more than two classes each pair has scores of its
own, but the part of them that is a difference of votes, which the pairs share, is shrunk less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.optimize import minimize

from .cells import Floats, Ints
from .cover import Cover
from .models import Pairs

C = TypeVar("C", bound=Cover)
Views = Sequence[tuple[int, Ints, Cover]]
OWN = 3.0  # how much freer than votes the scores of single pairs are


def sharing(pairs: Pairs) -> Floats:
    """(pairs, pairs), symmetric: independent parameters to scores. Votes of classes are
    stretched, the rest is not."""
    first, second = pairs.members
    votes = np.eye(pairs.classes)[first] - np.eye(pairs.classes)[second]
    onto_votes = votes @ votes.T / pairs.classes  # the projection onto differences of votes
    return np.asarray(np.eye(pairs.count) + (np.sqrt(1 + pairs.classes / OWN**2) - 1) * onto_votes)


def class_views(cover: C, y: Ints) -> list[tuple[int, Ints, C]]:
    """For each class its points, and what the adversary can do there."""
    return [
        (int(k), rows, cover.part(rows)) for k in np.unique(y) for rows in [np.flatnonzero(y == k)]
    ]


def robust_margins(views: Views, pairs: Pairs, values: Floats, bias: Floats) -> Floats:
    """The least score of each point's class against any other over what the adversary can reach."""
    out = np.empty(sum(len(rows) for _, rows, _ in views))
    for k, rows, part in views:
        least, _ = part.minima(pairs.against(values, k))
        out[rows] = (part.incidence @ least + pairs.against(bias, k)).min(axis=1)
    return out


def robust_loss(
    views: Views, weight: Floats, pairs: Pairs, values: Floats, bias: Floats
) -> tuple[float, Floats, Floats]:
    """The loss above without its penalty; the adversary's mass on (cell, y, y') in each
    term, and on (y, y').

    The gradient is that mass: the loss falls where a score of y against y' rises.
    """
    total, mass = 0.0, np.zeros((len(values), pairs.classes, pairs.classes))
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
        labels[k, others], width = push.sum(axis=0), len(others)
        push = part.incidence.T @ push
        flat = np.bincount(
            (cell * width + np.arange(width)).ravel(), push.ravel(), len(values) * width
        )
        mass[:, k, others] = flat.reshape(-1, width)
    return total, mass, labels


def solve(
    cover: Cover,
    y: Ints,
    weight: Floats,
    pairs: Pairs,
    *,
    alpha: float,
    iterations: int,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Floats, Floats]:
    """Values of cells and bias. ``weight`` sums to one."""
    mix = sharing(pairs)
    alpha *= 2 / pairs.classes  # a pair's share of the points
    shape = (cover.count, pairs.count)
    views = class_views(cover, y)
    first, second = pairs.members

    def objective(flat: Floats) -> tuple[float, Floats]:
        parameters, bias = flat[: -pairs.count].reshape(shape), flat[-pairs.count :]
        loss, mass, labels = robust_loss(views, weight, pairs, cover.expand(parameters @ mix), bias)
        by_value = mass[:, second, first] - mass[:, first, second]
        gradient = cover.fold(by_value) @ mix + 2 * alpha * parameters
        by_bias = labels[second, first] - labels[first, second]
        return loss + alpha * float((parameters**2).sum()), np.concatenate(
            [gradient.ravel(), by_bias]
        )

    # At zero every cell ties and one of many subgradients would be taken for the gradient: start a
    # little beside it, where each ball is shared evenly among its cells.
    even = np.zeros((cover.count, pairs.classes))
    for k, rows, part in views:
        even[:, k] = part.share(part.incidence.T @ weight[rows])
    begin = cover.fold(pairs.from_votes(even)) @ mix
    point = np.concatenate(
        [(0.1 * begin / max(np.abs(begin).max(), 1e-12)).ravel(), np.zeros(pairs.count)]
    )
    best, left = np.inf, iterations
    while left > 0:  # a search that stops at a kink often goes on with a fresh memory
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
