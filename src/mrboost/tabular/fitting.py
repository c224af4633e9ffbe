"""From a table to an ensemble: thresholds, then trees if asked for, then scores by one of the
solvers. What the user leaves open, stumps or trees and the cap nu, is chosen on held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from sklearn.model_selection import StratifiedKFold

from mrboost.game.value import soft_minimum

from . import hedge, lp, smooth
from .cells import Cells, Floats, Ints
from .certificate import certify, predicted
from .cover import Cover, StumpCover, Table, TreeCover
from .growing import grow_forest
from .models import Model, Pairs, StumpModel, Tree, TreeModel

TREE_ITERATIONS = 100  # of "smooth" on trees
MAX_SCORES = 81_000  # trees times pairs of classes by default: ten classes, 40 trees a pair
BASES = ("stump", "tree")  # of equally good ones the first is chosen
NUS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
FOLDS = 3
MAX_FOLDED = 3000  # rows up to which stumps and trees are compared on folds; of a larger table
MAX_HELD = 1000  # so many rows are held out, once,
MAX_FITTED = 10_000  # and at most so many are fitted to
SEARCH_LIMIT = 200  # boxes that the search in trees may open in this comparison
NU_THRESHOLDS = 16  # per column, of the LPs that choose nu: their cost grows faster than these

Tick = Callable[[], object]
"""Called after each step, for a progress bar."""
Split = tuple[Ints, Ints]


@dataclass(frozen=True)
class Options:
    """The estimator's parameters. ``base`` and ``nu`` are None where they are to be chosen
    ("smooth" needs no nu), ``rounds`` where it is the usual number."""

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


def fit_table(table: Table, options: Options, tick: Tick = lambda: None) -> Fitted:
    """Choose what the options leave open, then fit an ensemble to the whole table.

    Args:
        table: the training set.
        options: with None where ``base`` or ``nu`` is to be chosen.
        tick: called after each step, for a progress bar.
    """
    if options.base is None:
        scores = robust_scores(table, options, tick)
        best = max(scores, key=scores.__getitem__, default=BASES[0])
        fitted = fit_ensemble(table, replace(options, base=best), tick)
        return replace(fitted, base_scores=scores)
    if not options.chooses_nu:
        return fit_ensemble(table, options, tick)
    chosen = choose_nu(table, options, tick)
    for nu in (chosen, *(larger for larger in NUS if larger > chosen)):
        fitted = fit_ensemble(table, replace(options, nu=nu), tick)
        if not fitted.is_tie:  # on all rows it can be one though it was none on parts of them
            break
    return fitted


def most_steps(options: Options, classes: int) -> int:
    """How often ``fit_table`` calls ``tick``, at most."""
    if options.base is None:
        steps = [most_steps(replace(options, base=base), classes) for base in BASES]
        return FOLDS * sum(steps) + max(steps)
    choice = FOLDS * (1 + len(NUS)) if options.chooses_nu else 0
    last = TREE_ITERATIONS if options.solver == "smooth" and options.base == "tree" else 0
    return choice + options.rounds_for(classes) + last


def fit_ensemble(table: Table, options: Options, tick: Tick) -> Fitted:
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


def _fit_trees(table: Table, options: Options, cells: Cells, tick: Tick) -> Fitted:
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
    table: Table, options: Options, cover: Cover, iterations: int, tick: Tick
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


def robust_scores(table: Table, options: Options, tick: Tick) -> dict[str, float]:
    """The exact robust accuracy of stumps and of trees on rows held out from them; none where no
    rows can be."""
    robust: dict[str, float] = {}
    total = 0.0
    for fitted_to, held in _splits(table, options.seed):
        weight = table.weight[held]
        total += float(weight.sum())
        for base in BASES:
            option = replace(options, base=base)
            model = fit_ensemble(table.part(fitted_to), option, tick).model
            X, y = table.X[held], table.y[held]
            proof = certify(model, X, y, table.eps, radius=False, limit=SEARCH_LIMIT)
            robust[base] = robust.get(base, 0.0) + float(weight @ proof.robust)
    # Rounded, so that what is equal but for the order of a sum is equal
    return {base: round(share / total, 9) for base, share in robust.items()}


def choose_nu(table: Table, options: Options, tick: Tick) -> float:
    """The nu of the greatest exact robust accuracy in cross-validation. Fits that predict one
    class, or whose game is a tie, are left out: their accuracy can look good and they have learned
    nothing."""
    splits = [(table.part(a), table.part(b)) for a, b in _folds(table, options.seed)]
    if not splits:
        return NUS[1]
    if options.solver == "lp":
        limit = min(options.max_thresholds, NU_THRESHOLDS)
        options = replace(options, max_thresholds=limit)
    best, chosen = -1.0, NUS[-1]
    for nu in (0.0, *NUS):
        score = 0.0
        for part, held in splits:
            fitted = fit_ensemble(part, replace(options, nu=nu), lambda: None)
            tick()
            model = fitted.model
            if fitted.is_tie or len(np.unique(predicted(model, part.X))) == 1:
                break
            robust = model.margins(held.X, held.y, table.eps).min(axis=1) > model.tolerance
            score += float(held.weight @ robust) / len(splits)
        else:
            if score >= best:
                best, chosen = score, nu
    return chosen


def _folds(table: Table, seed: int) -> list[Split]:
    """Rows to fit to and rows held out, both with all classes; none where a class has one row."""
    folds = min(FOLDS, int(np.unique(table.y, return_counts=True)[1].min()))
    if folds < 2:
        return []
    return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(table.X, table.y))


def _splits(table: Table, seed: int) -> list[Split]:
    """``_folds``, or of a large table one split, which bounds the costs."""
    if len(table.y) <= MAX_FOLDED:
        return _folds(table, seed)
    rows = np.random.default_rng(seed).permutation(len(table.y))
    held, fitted_to = rows[:MAX_HELD], rows[MAX_HELD : MAX_HELD + MAX_FITTED]
    return [(fitted_to, held)] if len(np.unique(table.y[fitted_to])) > 1 else []
