"""When to doubt a robustness figure: what the outcomes of several attacks say against each other.

That an attack fails is no proof of robustness. Each ``Doubt`` says what was seen, why it matters
and what to do; an empty list means that nothing was seen, not that the figure is right. ``probe``
looks at the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

AMONG_OUTCOMES = ("black-box", "one-step", "sample")
"""The checks of outcomes; all others are of the model itself."""

MANY_STEPS = 10
"""A few steps of a quarter of eps may not reach the edge of the ball, and miss many points."""


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a figure: the name of the check, and what it saw in plain words."""

    check: str
    message: str


@dataclass(frozen=True)
class Tried:
    """An attack, and which points withstood it (or with which probability).

    ``black_box`` attacks do not use the model's gradients; ``steps`` are those of an attack that
    says how many it makes; ``sample`` is the share of the points that it tried, if not all.
    """

    name: str
    correct: Tensor
    black_box: bool = False
    steps: int | None = None
    sample: float | None = None


def contradictions(outcomes: Sequence[Mapping[str, Any]], *, draws: bool = False) -> list[Doubt]:
    """What outcomes of the same points say against each other, stages included.

    Args:
        outcomes: as ``Evaluation.to_dict`` has them.
        draws: the model draws random numbers, so that a single step may break what many steps
            leave by chance.
    """
    doubts: list[Doubt] = []
    tried: list[Tried] = []
    for outcome in outcomes:
        if outcome.get("broken_by") and outcome.get("stages"):
            stages, by_gradients = _stages(outcome)
            for number, stage in enumerate(stages):  # what comes later never tried these points
                if stage.sample is None:
                    doubts += black_box_alone(stage, stages[:number])
            doubts += missed_in_sample(outcome["attack"], stages)
            tried.append(by_gradients)
        elif outcome["attack"] != "clean" and "correct" in outcome:
            correct = torch.tensor(outcome["correct"], dtype=torch.float64)
            blind, steps = outcome.get("black_box", False), outcome.get("steps")
            tried.append(Tried(outcome["attack"], correct, blind, steps))
    for one in tried:
        doubts += black_box_alone(one, tried)
    for one in tried if not draws else ():
        doubts += one_step_alone(one, tried)
    return doubts


def black_box_alone(one: Tried, others: Sequence[Tried]) -> list[Doubt]:
    """A black-box attack breaks points that no attack by gradient breaks."""
    by_gradient = [other for other in others if not other.black_box]
    seen = _alone(one, by_gradient, least=2, share=0.002) if one.black_box else ""
    message = (
        f"{one.name} breaks {seen}. It does not use the gradients of the model's answer, so they "
        "are masked or those attacks too weak: give the worst case over all attacks, and "
        "strengthen those by gradient."
    )
    return [Doubt("black-box", message)] if seen else []


def missed_in_sample(name: str, stages: Sequence[Tried]) -> list[Doubt]:
    """More attacks, on a sample of the points that an attack left standing, break some of it.

    Of sound models they would break one point in five hundred at the most, all of them taken
    together, so that two in the sample are no chance.
    """
    last = [stage for stage in stages if stage.sample]
    before = [stage for stage in stages if not stage.sample]
    if not last or not before:
        return []
    share, stood = last[0].sample or 0.0, before[-1].correct
    broken = int((stood - last[-1].correct).sum())
    if broken < 2 or broken <= 0.005 * share * len(stood):
        return []
    tried = f"a sample of about {share * stood.sum():.0f} of the {int(stood.sum())} points"
    message = (
        f"{tried} that {name} left standing was attacked further, and {broken} of it fell. What "
        "was not in the sample was not tried: the figure is too high. Use autoattack."
    )
    return [Doubt("sample", message[0].upper() + message[1:])]


def one_step_alone(one: Tried, others: Sequence[Tried]) -> list[Doubt]:
    """A single step breaks points that many steps leave. Of sound models the last of many steps
    may miss a point in a hundred that one step breaks."""
    long = [other for other in others if (other.steps or 0) >= MANY_STEPS and not other.black_box]
    single = one.steps == 1 and not one.black_box
    seen = _alone(one, long, least=3, share=0.02) if single else ""
    message = (
        f"{one.name}, a single step, breaks {seen}. Small steps lead astray where a large one does "
        "not: gradients say little of what lies around an image. Trust attacks without them "
        "(square, transfer), and give the worst case over all."
    )
    return [Doubt("one-step", message)] if seen else []


def _alone(one: Tried, others: Sequence[Tried], *, least: int, share: float) -> str:
    """How many points fall to this attack and to none of the others, and the accuracies of these;
    empty if few do."""
    if not others or len(one.correct) == 0:
        return ""
    standing = torch.stack([other.correct for other in others]).amin(dim=0)
    only = (standing - one.correct).clamp(min=0)
    if only.sum() < least or only.mean() <= share:
        return ""
    count = f"{round(only.sum().item(), 1):g} of {len(only)} points ({only.mean():.1%})"
    figures = ", ".join(f"{other.name} {other.correct.mean():.1%}" for other in others)
    return f"{count} that others by gradient leave standing (accuracy: {figures})"


def _stages(outcome: Mapping[str, Any]) -> tuple[list[Tried], Tried]:
    """Each stage of an attack with what stood after it, and those by gradient together."""
    broken_by = torch.tensor(outcome["broken_by"])
    stages, blind = [], [-1]
    for number, stage in enumerate(outcome["stages"], start=1):
        black_box = stage.get("black_box", False)
        stand = left(broken_by, number).double()
        stages.append(Tried(stage["attack"], stand, black_box, sample=stage.get("sample")))
        if black_box:
            blind.append(number)
    stand = torch.isin(broken_by, torch.tensor(blind)).double()
    return stages, Tried(f"gradients in {outcome['attack']}", stand, steps=MANY_STEPS)


def left(broken_by: Tensor, number: int) -> Tensor:
    """Which points stand after stage ``number``."""
    return (broken_by < 0) | (broken_by > number)
