"""When to doubt a robustness figure: what an evaluation found against itself.

That an attack fails is no proof of robustness. Each ``Doubt`` says what was seen, why it matters and what to do; an
empty list means that nothing was seen, not that the figure is right. ``mrboost.probing`` looks at the model itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InputError


@dataclass(frozen=True)
class Doubt:
    """A reason not to trust a figure: the name of the check, and what it saw in plain words."""

    check: str
    message: str


def doubts_of(
    correct: Mapping[str, Sequence[float] | Tensor], *, black_box: Collection[str] = (), cumulative: bool = False
) -> list[Doubt]:
    """Points that fall to an attack without the model's gradients and to none with them.

    Args:
        correct: for each attack, whether each point withstood it (or with which probability); for stages of AutoAttack,
            whether it stood after the stage.
        black_box: further attacks that do not use the model's gradients; ``square`` and ``transfer`` are known.
        cumulative: every entry includes the successes of those before it: what comes after a black-box attack says
            nothing about its points, and is left out of the comparison.
    """
    standing = {name: torch.as_tensor(values).cpu().double() for name, values in correct.items()}
    if len({values.shape for values in standing.values()}) > 1:
        raise InputError(f"outcomes must be of the same points, got { ({k: len(v) for k, v in standing.items()}) }")
    names = [name for name in standing if not _several(name)]
    black = [name for name in names if name in black_box or name.startswith("square") or "transfer" in name]
    doubts = []
    for name in black:
        tried = names[: names.index(name)] if cumulative else names
        white = {other: standing[other] for other in tried if other not in black}
        if not white or len(standing[name]) == 0:
            continue
        only = (torch.stack(list(white.values())).amin(dim=0) - standing[name]).clamp(min=0)
        if only.sum() >= 2 and only.mean() > 0.002:
            figures = ", ".join(f"{other} {values.mean():.1%}" for other, values in white.items())
            message = (
                f"{name} breaks {only.sum():g} of {len(only)} points ({only.mean():.1%}) that every attack by gradient "
                f"leaves standing (accuracy: {figures}). It does not use the gradients of the model's answer, so "
                "they are masked or those attacks too weak: give the worst case over all attacks, "
                "and strengthen those by gradient."
            )
            doubts.append(Doubt("black-box", message))
    return doubts


def contradictions(outcomes: Sequence[Mapping[str, Any]]) -> list[Doubt]:
    """What outcomes of the same points, as ``Evaluation.to_dict`` has them, say against each other; stages included."""
    found: list[Doubt] = []
    correct: dict[str, Sequence[float] | Tensor] = {}
    for outcome in outcomes:
        if stages := outcome.get("broken_by"):
            broken_by, names = torch.tensor(stages), [stage["attack"] for stage in outcome["stages"]]
            found += doubts_of({name: left(broken_by, i) for i, name in enumerate(names, start=1)}, cumulative=True)
            blind = torch.tensor([-1, *(i for i, name in enumerate(names, start=1) if name.startswith("square"))])
            correct[f"gradients in {outcome['attack']}"] = torch.isin(broken_by, blind)
        elif "correct" in outcome:
            correct[outcome["attack"]] = outcome["correct"]
    return found + doubts_of(correct, black_box=[o["attack"] for o in outcomes if o.get("black_box")])


def left(broken_by: Tensor, number: int) -> Tensor:
    """Which points stand after stage ``number``."""
    return (broken_by < 0) | (broken_by > number)


def _several(name: str) -> bool:
    """Whether an entry is no attack, or several of both kinds at once."""
    return name.startswith(("clean", "worst")) or (name.startswith("autoattack") and name != "autoattack-rand")
