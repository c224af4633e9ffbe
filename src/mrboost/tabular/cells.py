"""The cells of a column, and minima and sums over the cells that a ball meets.

A stump sends x <= t to its left. So the thresholds t_1 < t_2 < … of a column cut it into cells
(t_{c-1}, t_c] on which every stump is constant, and the closed ball [x - eps, x + eps] (its ends
as float64 rounds them) meets a range of them: minima and sums over the ball are range queries.
Of each gap between the upper end x + eps of a ball and the lower end x' - eps of the next one
threshold is enough: any other one can be moved into such a gap without cutting a ball that it did
not cut before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array

from mrboost.errors import InputError, unknown_name

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def useful_thresholds(column: Floats, eps: float, limit: int | None = None) -> Floats:
    """The middles of the gaps ``[x + eps, x' - eps)`` of one column; at most ``limit`` of them,
    spread evenly."""
    ends = np.unique(column + eps)
    starts = np.unique(column - eps)
    following = np.searchsorted(starts, ends, side="right")  # the first start beyond each end
    last = np.append(following[1:] != following[:-1], True) & (following < len(starts))
    low, high = ends[last], starts[following[last]]
    middles = low + (high - low) / 2
    # In a gap of one unit in the last place the middle is rounded to an end
    middles = np.where((middles >= low) & (middles < high), middles, low)
    if limit is not None and len(middles) > limit:
        middles = middles[np.linspace(0, len(middles) - 1, limit).round().astype(np.intp)]
    return np.asarray(middles)


@dataclass(frozen=True)
class Cells:
    """The cells of every column, numbered through: column j holds ``offset[j]`` to
    ``offset[j + 1] - 1``."""

    thresholds: tuple[Floats, ...]

    @staticmethod
    def of(X: Floats, eps: Floats, limit: int | None = None) -> Cells:
        return Cells(tuple(useful_thresholds(X[:, j], eps[j], limit) for j in range(X.shape[1])))

    @cached_property
    def offset(self) -> Ints:
        return np.cumsum([0, *(len(t) + 1 for t in self.thresholds)])

    @property
    def count(self) -> int:
        return int(self.offset[-1])

    @cached_property
    def first(self) -> npt.NDArray[np.bool_]:
        """The leftmost cell of each column."""
        return np.isin(np.arange(self.count), self.offset[:-1])

    def at(self, X: Floats) -> Ints:
        """The cell of each entry, (n, d)."""
        found = [np.searchsorted(t, X[:, j], side="left") for j, t in enumerate(self.thresholds)]
        return np.stack(found, axis=1) + self.offset[:-1]

    def reach(self, X: Floats, eps: Floats) -> tuple[Ints, Ints]:
        """The first and the last cell that the ball around each entry meets; ``eps`` is given per
        column, or per entry."""
        return self.at(X - eps), self.at(X + eps)

    def nearest(self, X: Floats, cell: Ints) -> Floats:
        """The point of each given cell that is nearest to each entry."""
        out = np.empty_like(X)
        for j, t in enumerate(self.thresholds):
            c = cell[:, j] - self.offset[j]
            lowest = np.r_[-np.inf, np.nextafter(t, np.inf)]  # cells are open on the left
            out[:, j] = np.clip(X[:, j], lowest[c], np.r_[t, np.inf][c])
        return out

    def cumulative(self, jumps: Floats) -> Floats:
        """Values of cells from jumps: row c holds the jump from cell c - 1 to c, or the value of a
        column's first cell."""
        total = np.cumsum(jumps, axis=0)
        before = np.concatenate([np.zeros((1, *jumps.shape[1:])), total[self.offset[1:-1] - 1]])
        return np.asarray(total - np.repeat(before, np.diff(self.offset), axis=0))

    def sums_to_right(self, values: Floats) -> Floats:
        """For each cell the sum over it and those to its right in the column: the transpose of
        ``cumulative``."""
        total = np.cumsum(values[::-1], axis=0)[::-1]
        beyond = np.concatenate([total[self.offset[1:-1]], np.zeros((1, *values.shape[1:]))])
        return np.asarray(total - np.repeat(beyond, np.diff(self.offset), axis=0))


def range_minima(values: Floats, low: Ints, high: Ints) -> tuple[Floats, Ints]:
    """The minimum of each column of ``values`` over rows ``low..high``, and a row that attains it,
    by a sparse table (Bender and Farach-Colton 2000): two blocks of 2^k rows cover each range."""
    length = high - low + 1
    level = np.frexp(length.astype(np.float64))[1] - 1  # floor(log2)
    best = values
    arg = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    out = np.empty((len(low), values.shape[1]))
    where = np.empty(out.shape, dtype=np.intp)
    for k in range(int(level.max(initial=0)) + 1):
        if k:
            half = 2 ** (k - 1)
            smaller = best[half:] < best[:-half]
            best = np.where(smaller, best[half:], best[:-half])
            arg = np.where(smaller, arg[half:], arg[:-half])
        here = np.flatnonzero(level == k)
        left = low[here]
        right = high[here] - 2**k + 1
        smaller = best[right] < best[left]
        out[here] = np.where(smaller, best[right], best[left])
        where[here] = np.where(smaller, arg[right], arg[left])
    return out, where


@dataclass(frozen=True)
class RangeSums:
    """``log sum exp`` over ranges of rows, and its gradient, by sums of positive terms alone.

    Differences of prefix sums would cancel; here a range is put together of blocks of 1, 2, 4, …
    rows, one for each binary digit 1 of its length.
    """

    levels: tuple[Floats, ...]
    low: Ints
    length: Ints
    total: Floats

    @staticmethod
    def of(values: Floats, low: Ints, high: Ints) -> RangeSums:
        length = high - low + 1
        levels = [values]
        while 2 ** len(levels) <= length.max(initial=1):
            half = 2 ** (len(levels) - 1)
            levels.append(np.logaddexp(levels[-1][:-half], levels[-1][half:]))
        total = np.full((len(low), values.shape[1]), -np.inf)
        position = low.copy()
        for k, level in enumerate(levels):
            here = np.flatnonzero(length >> k & 1)
            total[here] = np.logaddexp(total[here], level[position[here]])
            position[here] += 2**k
        return RangeSums(tuple(levels), low, length, total)

    def spread(self, mass: Floats) -> Floats:
        """Share each range's ``mass`` among its rows in proportion to their exponentials."""
        blocks = [np.zeros_like(level) for level in self.levels]
        position = self.low.copy()
        for k, level in enumerate(self.levels):
            here = np.flatnonzero(self.length >> k & 1)
            share = np.exp(level[position[here]] - self.total[here])
            np.add.at(blocks[k], position[here], mass[here] * share)
            position[here] += 2**k
        for k in range(len(blocks) - 1, 0, -1):
            half = 2 ** (k - 1)
            for side in (slice(None, -half), slice(half, None)):
                share = np.exp(self.levels[k - 1][side] - self.levels[k])
                blocks[k - 1][side] += blocks[k] * share
        return blocks[0]


def per_column(name: str, value: npt.ArrayLike, columns: int) -> Floats:
    """One number for each column, from a number or one for each; others are refused."""
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}: use a number, or one per column") from None
    if not (np.isfinite(found) & (found >= 0)).all():
        raise InputError(f"{name} is {value!r}: use finite numbers >= 0")
    if found.shape not in ((), (columns,)):
        width = f"X has {columns} features"
        raise InputError(f"{name} has shape {found.shape}, {width}: use a number, or one for each")
    return np.broadcast_to(found, (columns,)).astype(np.float64)


def in_column_order(eps: Mapping[str, float], columns: Sequence[str]) -> list[float]:
    """Radii given by column name, in the order of the table's columns."""
    if not columns:
        raise InputError(
            "eps is given by column name, but X has no column names: "
            "give a pandas DataFrame, or eps as a list"
        )
    left = [column for column in columns if column not in eps]
    for name in eps.keys():  # noqa: SIM118 (a Series iterates over its values)
        if name not in columns:
            raise unknown_name("column in eps", str(name), left or columns)
    if left:
        several = ", ".join(map(repr, left[:5])) + (", …" if len(left) > 5 else "")
        raise InputError(f"eps leaves out {several}: give every column a number, 0 if it is fixed")
    return [eps[column] for column in columns]


def column_eps(X: npt.ArrayLike, fraction: float | Sequence[float]) -> Floats:
    """Radii that are a fraction of each column's range, maximum - minimum: what a single eps is
    after min-max scaling.

    Args:
        X: the table, unscaled.
        fraction: 0.05 for 5 %; one number, or one per column.

    Returns:
        An array (n_features,) to give as ``eps``.
    """
    span = np.ptp(check_array(X, dtype=np.float64), axis=0)
    return np.asarray(span * per_column("fraction", fraction, len(span)))
