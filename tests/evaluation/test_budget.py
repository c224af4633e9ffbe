"""Evaluations of limited time: which images they take, by a clock that the test turns."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import mrboost
from mrboost import InputError
from mrboost.evaluation import EvaluationOptions, measure
from mrboost.evaluation.inputs import TimeBudget


class Clock:
    """Stands still but where it is turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(seconds: float, fixed: float, each: float, count: int = 1000, most: int = 10**6):
    """The chunks of a computation that takes so long for a chunk and for each image in it."""
    clock, chunks = Clock(), []
    for rows in TimeBudget(seconds, clock).rows(count, most):
        chunks.append(rows)
        clock.now += fixed + each * len(rows)
    return chunks, clock.now - 100


@pytest.mark.parametrize(("fixed", "each"), [(0, 1), (2, 0.1), (5, 0)])
def test_the_time_is_used_up_and_little_more(fixed: float, each: float) -> None:
    for seconds in range(70, 900, 20):
        chunks, took = taken(seconds, fixed, each)
        last = fixed + each * len(chunks[-1])
        whole = sum(map(len, chunks)) == 1000
        assert took > seconds - last / 4 or whole
        assert took <= seconds + 3 / 4 * last
        assert all(len(later) <= 2 * len(earlier) for earlier, later in pairwise(chunks))


def test_images_come_in_one_order_whatever_the_time() -> None:
    short, long = (torch.cat(taken(seconds, 1, 0.5)[0]) for seconds in (60, 400))
    assert torch.equal(long[: len(short)], short)
    assert 64 <= len(short) < len(long) < 1000
    assert not torch.equal(short.sort().values, torch.arange(len(short))), "they are drawn"
    assert len(long.unique()) == len(long)


def test_what_was_begun_is_finished_and_there_is_always_something() -> None:
    (only,), _ = taken(0.001, 10, 1)
    assert len(only) == 64
    chunks, _ = taken(1e9, 1, 1, count=70, most=30)
    assert torch.equal(torch.cat(chunks).sort().values, torch.arange(70))
    assert max(map(len, chunks)) == 30


def darkened(clock: Clock):
    """An attack that takes a second for each image, and breaks all but the first classes."""

    def attack(_: object, x: Tensor, y: Tensor) -> Tensor:
        clock.now += len(x)
        return torch.where((y > 3)[:, None, None, None], 0.0, x)

    attack.name = "darkened"
    return attack


@pytest.mark.parametrize("as_array", [False, True])
def test_the_figures_are_those_of_the_images_taken(model, images, as_array: bool) -> None:
    x, y = (part[:300] for part in images)
    clock = Clock()
    given = (x.numpy(), y.numpy()) if as_array else (x, y)
    options = EvaluationOptions(check=False, time_budget=TimeBudget(150, clock))
    attacks = {"darkened": mrboost.attacks.as_attack(darkened(clock))}
    found = measure(model, *given, attacks, options, ball=(0.1, "Linf")).evaluation()
    chosen = torch.tensor(found.chosen)
    assert (found.n, found.left_out) == (len(chosen), 300 - len(chosen))
    assert 64 < found.n < 300
    assert torch.equal(chosen, chosen.sort().values)
    again = mrboost.evaluate(model, x[chosen], y[chosen], attacks, check=False)
    for name in ("clean", "darkened"):
        assert found[name].correct == again[name].correct
        assert found[name].interval == again[name].interval
    first = str(found).splitlines()[0]
    assert first.startswith(f"{found.n} images drawn at random (no time for the other ")
    assert json.loads(found.to_json())["left_out"] == found.left_out


def test_a_budget_that_suffices_leaves_nothing_out(model, batch) -> None:
    found = mrboost.evaluate(model, *batch, "fgsm", eps=0.1, check=False, time_budget=3600)
    whole = mrboost.evaluate(model, *batch, "fgsm", eps=0.1, check=False)
    assert found["fgsm"].correct == whole["fgsm"].correct
    assert (found.n, found.left_out, found.chosen) == (64, 0, tuple(range(64)))


def test_mistakes_with_a_budget(model, batch, tmp_path) -> None:
    for seconds in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="time_budget is in seconds"):
            mrboost.evaluate(model, *batch, "fgsm", time_budget=seconds)
    with pytest.raises(InputError, match="give tensors x and y"):
        mrboost.evaluate(model, iter([batch]), attack="fgsm", time_budget=1)
    with pytest.raises(InputError, match="starts anew"):
        mrboost.evaluate(model, *batch, "fgsm", time_budget=1, keep=tmp_path, resume=True)
