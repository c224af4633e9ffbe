"""From a table to an ensemble: thresholds, then trees if asked for, then scores by one of the
solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mrboost.game.value import soft_minimum

from . import hedge, lp, smooth
from .cells import Cells, Floats
from .cover import Cover, StumpCover, TreeCover
from .growing import grow_forest
from .models import Model, Pairs, StumpModel, Tree, TreeModel
from .table import Table

TREE_ITERATIONS = 100  # of "smooth" on trees
MAX_SCORES = 81_000  # trees times pairs of classes by default: ten classes, 40 trees a pair


@dataclass(frozen=True)
class Options:
    """The estimator's parameters. ``base`` and ``nu`` are None where they are to be chosen
    (``choosing.py``; "smooth" needs no nu), ``rounds`` where it is the usual number."""

    base: str | None
    solver: str
    depth: int
    rounds: int | None
    nu: float | None
    alpha: float
    max_thresholds: int
    seed: int

    @property
    def chooses_nu(self) -> bool:
        return self.solver != "smooth" and self.nu is None

    def rounds_for(self, classes: int) -> int:
        """Trees to grow, or on stumps rounds of "hedge" or iterations of "smooth"."""
        assert self.base is not None
        return self.rounds or default_rounds(self.base, self.solver, classes)


def default_rounds(base: str, solver: str, classes: int) -> int:
    if base == "stump":
        return {"smooth": 300, "hedge": 1000, "lp": 1}[solver]
    pairs = Pairs(classes).count
    return max(100, min(40 * pairs, MAX_SCORES // pairs)) if solver == "smooth" else 100


@dataclass(frozen=True)
class Fitted:
    """An ensemble, an interval for the value of its game, the nu of that, and the robust accuracy
    of each base where one was chosen."""

    model: Model
    value: tuple[float, float] | None
    nu: float | None
    base_scores: dict[str, float] | None = None

    @property
    def is_tie(self) -> bool:
        """Whether a game was solved, and is worth nothing."""
        return self.nu is not None and self.value is not None and self.value[0] <= 1e-9


def fit_ensemble(table: Table, options: Options, tick: Callable[[], object]) -> Fitted:
    """Fit an ensemble to a table, with nothing left to choose."""
    cells = Cells.of(table.X, table.eps, options.max_thresholds)
    if options.base == "tree":
        return _fit_trees(table, options, cells, tick)
    cover = StumpCover.of(cells, table.X, table.eps)
    rounds = options.rounds_for(table.classes)
    if options.solver == "hedge":
        assert options.nu is not None
        game = hedge.Game(cover, table, options.nu)
        return Fitted(*hedge.play(game, rounds, tick), options.nu)
    values, bias, value, _ = _solve(table, options, cover, rounds, tick)
    return Fitted(StumpModel(cells, values, bias, table.pairs), value, options.nu)


def _fit_trees(table: Table, options: Options, cells: Cells, tick: Callable[[], object]) -> Fitted:
    """All trees at once for "smooth". For "lp" a double oracle (McMahan, Gordon and Blum 2003):
    each batch of trees is grown on new weights of the points, half of them those of the adversary
    in the game of the trees so far, half the table's own, so that trees see all points."""
    rounds = options.rounds_for(table.classes)
    batches = np.array_split(np.arange(rounds), 5 if options.solver == "lp" else 1)
    trees: tuple[Tree, ...] = ()
    grown_on = table
    for numbers in batches[:rounds]:
        trees += grow_forest(
            cells, grown_on, seed=options.seed, numbers=numbers, depth=options.depth, tick=tick
        )
        cover = TreeCover.of(trees, table.X, table.eps)
        values, bias, value, played = _solve(table, options, cover, TREE_ITERATIONS, tick)
        if played is not None:
            grown_on = replace(table, weight=(table.weight + played / played.sum()) / 2)
    return Fitted(TreeModel(trees, values, bias, table.pairs), value, options.nu)


def _solve(
    table: Table, options: Options, cover: Cover, iterations: int, tick: Callable[[], object]
) -> tuple[Floats, Floats, tuple[float, float] | None, Floats | None]:
    """Values of cells and bias by "smooth" or "lp", an interval for the game's value, and for "lp"
    the adversary's weights of the points."""
    if options.solver == "smooth":
        values, bias = smooth.solve(cover, table, options.alpha, iterations, tick)
        return values, bias, _smooth_value(table, cover, values, bias), None
    assert options.nu is not None
    votes, constant, mass, played = lp.solve(cover, table, options.nu)
    pairs = table.pairs
    values, bias = pairs.from_votes(votes), pairs.from_votes(constant)
    margins = smooth.robust_margins(smooth.class_views(cover, table.y), pairs, values, bias)
    lower = soft_minimum(margins, table.weight, options.nu)
    upper = hedge.best_response(cover, mass)[0] if isinstance(cover, StumpCover) else lower
    return values, bias, (lower, max(upper, lower)), played


def _smooth_value(
    table: Table, cover: Cover, values: Floats, bias: Floats
) -> tuple[float, float] | None:
    """An interval for the hard game's value. Lower bound: the normalised margin (two classes), or
    the 0 of a constant; upper bound: the best response to the adversary of the loss."""
    if not isinstance(cover, StumpCover):
        return None
    views = smooth.class_views(cover, table.y)
    _, mass, labels = smooth.robust_loss(views, table.weight, table.pairs, values, bias)
    upper = hedge.best_response(cover, mass)[0] / labels.sum()
    lower = 0.0
    if table.classes == 2:
        first = cover.cells.first
        jumps = np.where(first, 0.0, np.diff(values[:, 0], prepend=0.0))
        rest = bias[0] + values[first, 0].sum() + jumps.sum() / 2
        # As votes of stumps, which are ±1: half a jump each, and a constant for the rest
        votes = np.abs(jumps).sum() / 2 + abs(rest)
        margins = smooth.robust_margins(views, table.pairs, values, bias)
        lower = max(float(margins.min() / votes), 0.0) if votes > 0 else 0.0
    return lower, max(upper, lower)
