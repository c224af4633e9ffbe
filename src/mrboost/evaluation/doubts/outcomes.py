"""When to doubt a robustness figure: what an evaluation found against itself.

That an attack fails is no proof of robustness. Each ``Doubt`` says what was seen, why it matters
and what to do; an empty list means that nothing was seen, not that the figure is right. ``probing``
looks at the model itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrboost.errors import InputError

AMONG_OUTCOMES = ("black-box", "one-step")
"""The checks of outcomes; all others are of the model itself."""

_LONG = ("pgd", "cw", "apgd", "fab", "gradients in ")
"""How the names of attacks by gradient with many steps begin."""


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a figure: the name of the check, and what it saw in plain words."""

    check: str
    message: str


def doubts_of(
    correct: Mapping[str, Sequence[float] | Tensor],
    *,
    black_box: Collection[str] = (),
    cumulative: bool = False,
) -> list[Doubt]:
    """Points that fall to an attack without the model's gradients and to none with them, or to
    a single step alone.

    Args:
        correct: for each attack, whether each point withstood it (or with which probability); for
            stages of AutoAttack, whether it stood after the stage.
        black_box: further attacks that do not use the model's gradients; ``square`` and
            ``transfer`` are known.
        cumulative: every entry includes the successes of those before it: what comes after a
            black-box attack says nothing about its points, and is left out of the comparison.
    """
    standing = {name: torch.as_tensor(values).cpu().double() for name, values in correct.items()}
    if len({values.shape for values in standing.values()}) > 1:
        raise InputError(
            "outcomes must be of the same points, got "
            f"{ ({k: len(v) for k, v in standing.items()}) }"
        )
    names = [name for name in standing if not _several(name)]
    black = [
        name
        for name in names
        if name in black_box or name.startswith("square") or "transfer" in name
    ]
    doubts = []
    for name in black:
        tried = names[: names.index(name)] if cumulative else names
        white = {other: standing[other] for other in tried if other not in black}
        if seen := _alone(standing[name], white, least=2, share=0.002):
            message = (
                f"{name} breaks {seen[0]} that every attack by gradient leaves standing (accuracy: "
                f"{seen[1]}). It does not use the gradients of the model's answer, so they are "
                "masked or those attacks too weak: give the worst case over all attacks, and "
                "strengthen those by gradient."
            )
            doubts.append(Doubt("black-box", message))
    # Of sound models the last of many steps may miss a point in a hundred that one step breaks; a
    # few steps of a quarter of eps may not reach the edge of the ball, and miss many.
    long = {
        other: standing[other]
        for other in names
        if other.startswith(_LONG)
        and other not in black
        and not re.fullmatch(r"pgd(-.*)?-\d", other)
    }
    for name in names:
        if name.startswith("fgsm") and (seen := _alone(standing[name], long, least=3, share=0.02)):
            message = (
                f"{name}, a single step, breaks {seen[0]} that attacks of many steps leave "
                f"standing (accuracy: {seen[1]}). Small steps lead astray where a large one does "
                "not: gradients say little of what lies around an image. Trust attacks without "
                "them (square, transfer), and give the worst case over all."
            )
            doubts.append(Doubt("one-step", message))
    return doubts


def _alone(
    mine: Tensor, others: Mapping[str, Tensor], *, least: int, share: float
) -> tuple[str, str] | None:
    """How many points fall to this attack and to none of the others, which have these
    accuracies; None if few do."""
    if not others or len(mine) == 0:
        return None
    only = (torch.stack(list(others.values())).amin(dim=0) - mine).clamp(min=0)
    if only.sum() < least or only.mean() <= share:
        return None
    figures = ", ".join(f"{name} {values.mean():.1%}" for name, values in others.items())
    return f"{round(only.sum().item(), 1):g} of {len(only)} points ({only.mean():.1%})", figures


def contradictions(outcomes: Sequence[Mapping[str, Any]], *, draws: bool = False) -> list[Doubt]:
    """What outcomes of the same points, as ``Evaluation.to_dict`` has them, say against each
    other; stages included.

    Of a model that ``draws`` random numbers, that a single step breaks what many
    leave may be chance.
    """
    found: list[Doubt] = []
    correct: dict[str, Sequence[float] | Tensor] = {}
    for outcome in outcomes:
        if stages := outcome.get("broken_by"):
            broken_by, names = (
                torch.tensor(stages),
                [stage["attack"] for stage in outcome["stages"]],
            )
            found += doubts_of(
                {name: left(broken_by, i) for i, name in enumerate(names, start=1)}, cumulative=True
            )
            blind = torch.tensor(
                [-1, *(i for i, name in enumerate(names, start=1) if name.startswith("square"))]
            )
            correct[f"gradients in {outcome['attack']}"] = torch.isin(broken_by, blind)
        elif "correct" in outcome:
            correct[outcome["attack"]] = outcome["correct"]
    found += doubts_of(correct, black_box=[o["attack"] for o in outcomes if o.get("black_box")])
    return [doubt for doubt in found if not (draws and doubt.check == "one-step")]


def left(broken_by: Tensor, number: int) -> Tensor:
    """Which points stand after stage ``number``."""
    return (broken_by < 0) | (broken_by > number)


def _several(name: str) -> bool:
    """Whether an entry is no attack, or several of both kinds at once."""
    return name.startswith(("clean", "worst")) or (
        name.startswith("autoattack") and name != "autoattack-rand"
    )
