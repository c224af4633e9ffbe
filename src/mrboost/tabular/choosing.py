"""What the user leaves open is chosen on held-out rows: stumps or trees, and the cap nu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sklearn.model_selection import StratifiedKFold

from .cells import Ints
from .certificate import certify, predicted
from .fitting import TREE_ITERATIONS, Fitted, Options, fit_ensemble
from .table import Table

BASES = ("stump", "tree")  # of equally good ones the first is chosen
NUS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
FOLDS = 3
MAX_FOLDED = 3000  # rows up to which stumps and trees are compared on folds; of a larger table
MAX_HELD = 1000  # so many rows are held out, once,
MAX_FITTED = 10_000  # and at most so many are fitted to
SEARCH_LIMIT = 200  # boxes that the search in trees may open in this comparison
NU_THRESHOLDS = 16  # per column, of the LPs that choose nu: their cost grows faster than these

Tick = Callable[[], object]
Split = tuple[Ints, Ints]


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
