"""From a table to an ensemble: thresholds, then trees if asked for, then scores by one of the
solvers; and the choice of nu by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

import numpy as np
from sklearn.model_selection import StratifiedKFold

from . import hedge, lp, smooth
from .cells import Cells, Floats, Ints
from .certificate import predicted
from .cover import Cover, StumpCover, TreeCover
from .growing import grow_forest
from .hedge import Stump
from .models import Model, Pairs, StumpModel, Tree, TreeModel
from .table import Table

NUS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
FOLDS = 3
TREE_ITERATIONS = 100  # of "smooth" on trees
MAX_SCORES = 81_000  # trees times pairs of classes by default: ten classes, 40 trees a pair


@dataclass(frozen=True)
class Options:
    """The estimator's parameters, with those that were left open decided."""

    base: str
    solver: str
    depth: int
    rounds: int
    nu: float | None
    """None: to be chosen by cross-validation; "smooth" needs none."""
    alpha: float
    max_thresholds: int
    seed: int

    @property
    def chooses_nu(self) -> bool:
        return self.solver != "smooth" and self.nu is None

    @property
    def steps(self) -> int:
        """How often a fit calls ``tick``, at most."""
        steps = self.rounds
        if self.chooses_nu:
            steps += FOLDS * (1 + len(NUS))
        if self.solver == "smooth" and self.base == "tree":
            steps += TREE_ITERATIONS
        return steps


def default_rounds(base: str, solver: str, classes: int) -> int:
    """Trees to grow, or on stumps rounds of "hedge" or iterations of "smooth"."""
    if base == "stump":
        return {"smooth": 300, "hedge": 1000, "lp": 1}[solver]
    pairs = Pairs(classes).count
    return max(100, min(40 * pairs, MAX_SCORES // pairs)) if solver == "smooth" else 100


@dataclass(frozen=True)
class Fitted:
    model: Model
    value: tuple[float, float] | None
    nu: float | None
    history: Callable[[Model], Iterable[Model]]
    """The ensembles after each round."""

    @property
    def is_tie(self) -> bool:
        """Whether a game was solved, and is worth nothing."""
        return self.nu is not None and self.value is not None and self.value[0] <= 1e-9


def fit_table(table: Table, options: Options, tick: Callable[[], object] = lambda: None) -> Fitted:
    """Fit an ensemble to a table; ``tick`` is called after each step, for a progress bar."""
    if options.chooses_nu:
        chosen = choose_nu(table, options, tick)
        for nu in (chosen, *(larger for larger in NUS if larger > chosen)):
            fitted = fit_table(table, replace(options, nu=nu), tick)
            if not fitted.is_tie:  # on all rows it can be one though it was none on parts of them
                break
        return fitted
    cells = Cells.of(table.X, table.eps, options.max_thresholds)
    if options.base == "stump":
        return _fit_stumps(table, options, StumpCover.of(cells, table.X, table.eps), tick)
    return _fit_trees(table, options, cells, tick)


def _fit_trees(table: Table, options: Options, cells: Cells, tick: Callable[[], object]) -> Fitted:
    """All trees at once for "smooth". For "lp" a double oracle (McMahan, Gordon and Blum 2003):
    each batch is grown against the adversary of the game of the trees so far. It has half of the
    points' weight; the other half stays as the table has it, so that trees see all points."""
    batches = np.array_split(np.arange(options.rounds), 5 if options.solver == "lp" else 1)
    trees: tuple[Tree, ...] = ()
    pairs = table.pairs
    weight = table.weight
    for batch in batches:
        if not len(batch):
            continue
        trees += grow_forest(
            cells,
            replace(table, weight=weight),
            seed=options.seed,
            numbers=batch,
            depth=options.depth,
            tick=tick,
        )
        cover = TreeCover.of(trees, table.X, table.eps)
        model = TreeModel(trees, np.zeros((cover.count, pairs.count)), np.zeros(pairs.count), pairs)
        values, bias, value, played = _solve(table, options, cover, model.offset, tick)
        if played is not None:
            weight = (table.weight + played / played.sum()) / 2
    return Fitted(
        replace(model, values=values, bias=bias), value, options.nu, methodcaller("stages")
    )


def _solve(
    table: Table, options: Options, cover: Cover, offset: Ints, tick: Callable[[], object]
) -> tuple[Floats, Floats, tuple[float, float] | None, Floats | None]:
    """Values of cells and bias by "smooth" or "lp", an interval for the game's value, and the
    adversary's weights of the points ("lp")."""
    pairs = table.pairs
    if options.solver == "smooth":
        iterations = options.rounds if options.base == "stump" else TREE_ITERATIONS
        values, bias = smooth.solve(
            cover,
            table.y,
            table.weight,
            pairs,
            alpha=options.alpha,
            iterations=iterations,
            tick=tick,
        )
        return values, bias, _smooth_value(table, cover, values, bias), None
    assert options.nu is not None
    votes, constant, mass, played = lp.solve(
        cover, offset, table.y, table.weight, pairs, options.nu
    )
    values, bias = pairs.from_votes(votes), pairs.from_votes(constant)
    margins = smooth.robust_margins(smooth.class_views(cover, table.y), pairs, values, bias)
    lower = hedge.soft_minimum(margins, table.weight, options.nu)
    upper = hedge.best_response(cover, mass)[0] if isinstance(cover, StumpCover) else lower
    return values, bias, (lower, max(upper, lower)), played


def _fit_stumps(
    table: Table, options: Options, cover: StumpCover, tick: Callable[[], object]
) -> Fitted:
    if options.solver != "hedge":
        values, bias, value, _ = _solve(table, options, cover, cover.cells.offset, tick)
        model = StumpModel(cover.cells, values, bias, table.pairs)
        return Fitted(model, value, options.nu, methodcaller("stages"))
    assert options.nu is not None
    game = hedge.Game(cover, table.y, table.weight, table.pairs, options.nu)
    stumps, value = hedge.play(game, options.rounds, tick=tick)
    model = _voting(cover.cells, table.pairs, game.votes, game.constant)
    return Fitted(model, value, options.nu, partial(_replay, stumps=tuple(stumps)))


def _voting(cells: Cells, pairs: Pairs, votes: Floats, constant: Floats) -> StumpModel:
    """A model of votes that are whole numbers, so that sums are exact and ties are ties."""
    return StumpModel(cells, pairs.from_votes(votes), pairs.from_votes(constant), pairs)


def _replay(model: Model, *, stumps: tuple[Stump, ...]) -> Iterable[Model]:
    assert isinstance(model, StumpModel)
    classes = model.pairs.classes
    votes, constant = np.zeros((model.cells.count, classes)), np.zeros(classes)
    for stump in stumps:
        hedge.add_vote(stump, model.cells, votes, constant)
        yield _voting(model.cells, model.pairs, votes, constant)


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
        jumps = np.where(cover.cells.first, 0.0, np.diff(values[:, 0], prepend=0.0))
        rest = bias[0] + values[cover.cells.first, 0].sum() + jumps.sum() / 2
        # A jump is two stumps' worth of votes, the rest is a constant's
        votes = np.abs(jumps).sum() / 2 + abs(rest)
        margins = smooth.robust_margins(views, table.pairs, values, bias)
        lower = max(float(margins.min() / votes), 0.0) if votes > 0 else 0.0
    return lower, max(upper, lower)


def choose_nu(table: Table, options: Options, tick: Callable[[], object] = lambda: None) -> float:
    """Choose nu by exact robust accuracy in cross-validation. Fits that predict one class, or whose
    game is a tie, are left out: their accuracy can look good and they have learned nothing."""
    smallest = int(np.unique(table.y, return_counts=True)[1].min())
    if smallest < 2:
        return NUS[1]
    folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=options.seed)
    splits = list(folds.split(table.X, table.y))
    best = -1.0
    chosen = NUS[-1]
    for nu in (0.0, *NUS):
        score = 0.0
        for inner, held in splits:
            part = table.part(inner)
            fitted = fit_table(part, replace(options, nu=nu))
            tick()
            if fitted.is_tie or len(np.unique(predicted(fitted.model, part.X))) == 1:
                score = -1.0
                break
            out = table.part(held)
            robust = (
                fitted.model.margins(out.X, out.y, table.eps).min(axis=1) > fitted.model.tolerance
            )
            score += float(out.weight @ robust) / len(splits)
        if score >= best and score >= 0:
            best = score
            chosen = nu
    return chosen
