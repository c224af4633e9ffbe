"""Certificates: what is proved about each point x of class y within the ball of radius eps:

    margin(x, y) = min over y' != y and |δ_j| <= eps_j of  score_y(x + δ) - score_y'(x + δ).

It is exact for stumps. For trees it is a lower bound, and a search decides the points where that is
not positive (``search.py``). A witness, a point of the ball that is misclassified, disproves the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .cells import Floats, Ints
from .models import Model, StumpModel, TreeModel
from .search import Leaves, find_nonpositive

Bools = npt.NDArray[np.bool_]
BISECTIONS = 40


@dataclass(frozen=True)
class Certificate:
    """What is proved about points and the closed balls of radius ``eps`` (per column) around
    them.

    Attributes:
        margin: the least score of the true class against any other over the ball; a tie, 0, is an
            error.
        kind: what ``margin`` and ``radius`` are: "exact" (stumps) or "lower bound" (trees).
        correct: whether the prediction at the point itself is right.
        robust: proved: the true class wins in the whole ball. With trees a point can be robust
            though its margin, a lower bound, is negative: the search decides.
        misled: proved: ``predict(witness)`` is wrong.
        witness: a point of the ball where the true class loses or ties, nan where none was found.
        radius: the largest eps that the point withstands: that of the column with the widest eps,
            the others in proportion.
        value: of the training set: an interval that holds the value of the game (for trees, of the
            game on the trees grown in which the adversary answers each tree separately).
        attainable: of the training set: the best robust accuracy that any classifier can have.
        searched: whether witnesses were looked for; they are not in the training set's certificate
            of trees.
    """

    eps: Floats
    margin: Floats = field(repr=False)
    kind: str
    correct: Bools = field(repr=False)
    robust: Bools = field(repr=False)
    misled: Bools = field(repr=False)
    witness: Floats | None = field(repr=False)
    radius: Floats | None = field(repr=False)
    value: tuple[float, float] | None = None
    attainable: float | None = None
    searched: bool = True

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def robust_accuracy(self) -> float:
        return float(self.robust.mean())

    @property
    def undecided(self) -> Bools:
        """Neither proved robust nor shown to be misled: ties, cyclic preferences among classes,
        searches that reached their limit."""
        return ~(self.robust | self.misled)

    def __str__(self) -> str:
        misled = "the others were not searched"
        if self.searched:
            misled = f"misled by a witness: {self.misled.mean():.2%}"
        lines = [
            f"{len(self.margin)} points, {described(self.eps)}, margins: {self.kind}",
            f"accuracy         {self.accuracy:7.2%}",
            f"robust accuracy  {self.robust_accuracy:7.2%}  (proved; {misled})",
        ]
        if self.attainable is not None:
            words = "by any classifier, on these points"
            lines.append(f"attainable       {self.attainable:7.2%}  ({words})")
        if self.value is not None:
            lines.append(f"value of the game between {self.value[0]:.4f} and {self.value[1]:.4f}")
        return "\n".join(lines)


def described(eps: Floats) -> str:
    """Radii in a few words."""
    if eps.min() == eps.max():
        return f"eps {eps[0]:.4g} in every column"
    return f"eps {eps.min():.4g} to {eps.max():.4g}, by column"


def predicted(model: Model, X: Floats) -> Ints:
    """The class with the greatest least score."""
    return np.asarray(model.pairs.wins(model.scores(X)).argmax(axis=1))


def certify(
    model: Model,
    X: Floats,
    y: Ints,
    eps: Floats,
    *,
    radius: bool = True,
    witness: bool = True,
    limit: int = 2000,
    progress: bool = False,
) -> Certificate:
    """The certificate of a fitted ensemble.

    Args:
        model: the ensemble.
        X: points, (n, d).
        y: their classes, counted from 0.
        eps: the radius of the ball, per column.
        radius: find the largest radius of each point too.
        witness: keep the witnesses.
        limit: boxes that the search in trees may open for one pair of classes; 0: no search.
        progress: show progress bars.
    """
    correct = predicted(model, X) == y
    found = np.full(X.shape, np.nan)
    least = model.margins(X, y, eps)
    robust = least.min(axis=1) > model.tolerance
    if isinstance(model, StumpModel):
        for rows in np.array_split(np.flatnonzero(~robust), len(X) // 1000 + 1):
            _attack_stumps(model, X, y, rows, eps, found)
    elif limit:
        leaves = Leaves.of(model, X.shape[1])
        for i in tqdm(np.flatnonzero(~robust), desc="search", disable=None if progress else True):
            robust[i], found[i] = _search_trees(model, leaves, X[i], y[i], eps, least[i], limit)
    misled = np.asarray(np.isfinite(found).all(axis=1))
    # A witness counts only if the model itself predicts another class there
    misled[misled] = predicted(model, found[misled]) != y[misled]
    return Certificate(
        eps=eps,
        margin=least.min(axis=1),
        kind=model.kind,
        correct=correct,
        robust=robust,
        misled=misled,
        witness=found if witness else None,
        radius=largest_radius(model, X, y, eps, progress=progress) if radius else None,
        searched=bool(limit) or isinstance(model, StumpModel),
    )


def _attack_stumps(
    model: StumpModel, X: Floats, y: Ints, rows: Ints, eps: Floats, found: Floats
) -> None:
    """Write a witness for each of ``rows`` into ``found``: the nearest point of the worst cells. If
    several false labels win somewhere, one whose point changes the prediction is preferred."""
    least, cell = model.worst(X[rows], y[rows], eps)
    order = np.argsort(least, axis=1)
    here = np.arange(len(rows))
    for rank in range(least.shape[1]):
        here = here[least[here, order[here, rank]] <= model.tolerance]
        other = order[here, rank]
        points = model.cells.nearest(X[rows[here]], cell[here, :, other])
        misled = predicted(model, points) != y[rows[here]]
        new = misled | np.isnan(found[rows[here], 0])
        found[rows[here[new]]] = points[new]
        here = here[~misled]


def _search_trees(
    model: TreeModel, leaves: Leaves, x: Floats, y: int, eps: Floats, least: Floats, limit: int
) -> tuple[bool, Floats]:
    """Whether a point is proved robust though the bound ``least`` does not prove it, and a witness
    if one was found, else nan."""
    scores = model.pairs.against(model.values, y)
    bias = model.pairs.against(model.bias, y) - model.tolerance
    proved, found = True, np.full(len(x), np.nan)
    for other in np.argsort(least):
        if least[other] > model.tolerance:
            break
        lost, point = find_nonpositive(leaves, scores[:, other], bias[other], x, eps, limit)
        proved &= lost is False
        if point is not None:
            found = point
            if predicted(model, point[None])[0] != y:
                break
    return proved, found


def largest_radius(
    model: Model, X: Floats, y: Ints, eps: Floats, *, progress: bool = False
) -> Floats:
    """The largest radius of each point by bisection. The point withstands the returned one; it is 0
    where the prediction is wrong already."""
    shape = eps / eps.max() if eps.max() > 0 else np.ones_like(eps)
    outermost = model.reach(X.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.maximum(X - outermost[0], outermost[1] - X) / shape
        # Far enough that x ± far lies beyond the outermost thresholds after rounding, too.
        rounding = 4 * np.spacing(np.maximum(np.abs(X), np.abs(outermost).max(axis=0))) / shape
    far = np.where((shape > 0) & np.isfinite(far), 2 * far + rounding, 0.0).max(axis=1, initial=0.0)

    def holds(radius: Floats, rows: Ints) -> Bools:
        balls = radius[:, None] * shape
        return np.asarray(model.margins(X[rows], y[rows], balls).min(axis=1) > model.tolerance)

    high = far
    low = np.where(holds(far, np.arange(len(X))), np.inf, 0.0)
    rows = np.flatnonzero(low == 0)
    rows = rows[holds(np.zeros(len(rows)), rows)]
    for _ in tqdm(range(BISECTIONS), desc="radius", disable=None if progress else True):
        middle = (low[rows] + high[rows]) / 2
        stands = holds(middle, rows)
        low[rows[stands]] = middle[stands]
        high[rows[~stands]] = middle[~stands]
    return low


def margins_by_column(model: Model, x: Floats, y: int, eps: Floats) -> tuple[Ints, Floats]:
    """What each column of a row adds to the adversary's power.

    Returns:
        The columns, those first that lower the margin most if they alone are off; and the margins
        if the first 0, 1, …, d of them are, as exact as ``Certificate.margin``.
    """
    d = len(x)
    rows, labels = np.repeat(x[None], d + 1, axis=0), np.full(d + 1, y)
    alone = model.margins(rows[:d], labels[:d], np.diag(eps)).min(axis=1)
    order = np.argsort(alone, kind="stable")
    balls = np.zeros((d + 1, d))
    balls[:, order] = np.tri(d + 1, d, -1) * eps[order]
    return order, model.margins(rows, labels, balls).min(axis=1)
