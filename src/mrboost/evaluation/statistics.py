"""Intervals of accuracies, worst cases over several attacks, and tests of differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import scipy
import torch

from mrboost.errors import InputError

Interval = tuple[float, float]


def wilson_interval(successes: float, n: int) -> Interval:
    """The 95 % confidence interval of a proportion, sound at 0 and 1 too (Wilson 1927)."""
    p, z = successes / n, 1.959964
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def worst_case(correct: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """Accuracy and interval where each point counts as its worst outcome."""
    least = torch.tensor(correct, dtype=torch.float64).amin(dim=0)
    return least.mean().item(), wilson_interval(least.sum().item(), len(least))


def mean_interval(values: Sequence[float]) -> Interval:
    """The 95 % confidence interval of the mean of two or more normal draws (Student 1908)."""
    n, mean = len(values), statistics.mean(values)
    spread = statistics.stdev(values) / math.sqrt(n) * float(scipy.stats.t.ppf(0.975, n - 1))
    return mean - spread, mean + spread


@dataclass(frozen=True)
class Comparison:
    """Two classifiers on the same points under the same attack.

    ``p_value`` is the sign test's, for two plain classifiers McNemar's exact one: how likely so
    uneven a split of the points on which they differ would be if neither were better.
    """

    only_first: int
    only_second: int
    p_value: float


def compare_points(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Count the points that only one of two classifiers withstands."""
    if len(first) != len(second):
        raise InputError(
            f"two evaluations can be compared on the same points only, these have {len(first)} "
            f"and {len(second)}"
        )
    pairs = list(zip(first, second, strict=True))
    only_first = sum(a > b for a, b in pairs)
    only_second = sum(b > a for a, b in pairs)
    differing = only_first + only_second
    p_value = float(scipy.stats.binomtest(only_first, differing).pvalue) if differing else 1.0
    return Comparison(only_first, only_second, p_value)


def unpaired_interval(
    first: tuple[float, Interval], second: tuple[float, Interval]
) -> tuple[float, Interval]:
    """The first proportion minus the second, of other images, and its 95 % interval.

    Each comes with its Wilson interval (Newcombe 1998, method 10). Of images that both share it is
    wider than it need be.
    """
    (one, (low, high)), (other, (least, most)) = first, second
    gain = one - other
    below, above = math.hypot(one - low, most - other), math.hypot(high - one, other - least)
    return gain, (gain - below, gain + above)


def signed_difference(first: Sequence[float], second: Sequence[float]) -> str:
    """The first's accuracy minus the second's on the same points, in points, and in
    brackets the sign test's p."""
    gain = (sum(first) - sum(second)) / len(first)
    return signed(gain, compare_points(first, second).p_value)


def signed(gain: float, p_value: float) -> str:
    """A difference in points, and in brackets its p."""
    return f"{100 * gain:+.2f} ({f'{p_value:.2g}' if p_value > 0 else '< 1e-300'})"
