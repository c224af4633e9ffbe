"""What was measured of each image, from one process or several, and how it is summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .attacks import APGD, FAB, PGD, Attack, AutoAttack, Square, Transfer
from .devices import over_processes
from .doubts import Doubt, contradictions, left
from .errors import InputError
from .losses import dlr, margin
from .outcomes import Evaluation, Outcome, Stage, wilson_interval
from .storage import State

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Measured:
    """Of each image its label and, for each attack, whether it is ``correct``, its ``margin``, the ``stage`` that broke
    it; and the ``seconds`` of the stages. ``check`` asks for what the outcomes say against each other."""

    eps: float | None
    norm: str | None
    attacks: Mapping[str, Attack]
    labels: Tensor
    known: Mapping[str, State]
    doubts: tuple[Doubt, ...]
    check: bool

    def of_all(self, fabric: Fabric, count: int) -> Measured:
        """The measures of all ``count`` images, of which this process had those from its rank on, in steps of the world
        size; times are those of the slowest, doubts those of the first."""
        if fabric.world_size == 1:
            return self

        def gather(mine: Tensor) -> Tensor:
            wide = torch.zeros(count, dtype=torch.float64, device=fabric.device)
            wide[fabric.global_rank :: fabric.world_size] = mine.to(wide)
            return over_processes(fabric, wide, "sum").to("cpu", mine.dtype)

        def slowest(mine: Tensor) -> Tensor:
            return over_processes(fabric, mine.sum(dim=0, keepdim=True).to(fabric.device), "max").cpu()

        known = {
            label: {key: slowest(value) if key == "seconds" else gather(value) for key, value in sorted(state.items())}
            for label, state in self.known.items()
        }
        return replace(self, labels=gather(self.labels), known=known, doubts=fabric.broadcast(self.doubts))

    def evaluation(self) -> Evaluation:
        outcomes = tuple(self._outcome(label) for label in self.known)
        strong = any(map(_by_margins, self.attacks.values()))
        doubts = tuple(doubt for doubt in self.doubts if not (strong and doubt.check == "weak-loss"))
        if self.check and self.eps is not None:  # attacks of several balls say nothing against each other
            doubts += tuple(contradictions([asdict(o) for o in outcomes]))
        return Evaluation(self.eps, self.norm, len(self.labels), outcomes, doubts)

    def _outcome(self, label: str) -> Outcome:
        known, attack = self.known[label], self.attacks.get(label)
        seconds = known["seconds"].sum(dim=0)
        stages: list[Stage] = []
        if isinstance(attack, AutoAttack):
            for number, search in enumerate(attack.searches, start=1):
                stand = left(known["stage"], number).double()
                interval = wilson_interval(stand.sum().item(), len(stand))
                stages.append(Stage(search.name, stand.mean().item(), interval, seconds[number - 1].item()))
        return Outcome.of(
            label, known["correct"], known["margin"], self.labels, seconds.sum().item(), stages=tuple(stages),
            broken_by=tuple(known["stage"].tolist()) if stages else (), black_box=isinstance(attack, Square | Transfer),
        )  # fmt: skip


def _by_margins(attack: Attack) -> bool:
    """Whether it raises a margin, which is what an attack on the cross-entropy may be too weak for."""
    parts = attack.searches if isinstance(attack, AutoAttack) else (attack,)
    return any(
        isinstance(part, FAB)
        or (isinstance(part, APGD) and part.targets > 0)
        or (isinstance(part, APGD | PGD) and any(part.loss is loss for loss in (margin, dlr)))
        for part in parts
    )


class UnfinishedError(InputError):
    """An attack came to nothing; ``measured`` holds those before it."""

    def __init__(self, message: str, measured: Measured) -> None:
        super().__init__(message)
        self.measured = measured
        self.evaluation: Evaluation | None = None  # of all images that were asked for, once it is kept
