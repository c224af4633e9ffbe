"""What was measured of each image, from one process or several, and how it is summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor

from .attacks import Attack, AutoAttack, Square, Transfer
from .devices import over_processes
from .doubts import Doubt, doubts_of
from .outcomes import Evaluation, Outcome, Stage, wilson_interval
from .storage import State


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
        doubts = self.doubts + (tuple(self._contradictions()) if self.check else ())
        return Evaluation(self.eps, self.norm, len(self.labels), outcomes, doubts)

    def _outcome(self, label: str) -> Outcome:
        known, attack = self.known[label], self.attacks.get(label)
        seconds = known["seconds"].sum(dim=0)
        stages: list[Stage] = []
        if isinstance(attack, AutoAttack):
            for number, search in enumerate(attack.searches, start=1):
                left = _left(known["stage"], number).double()
                interval = wilson_interval(left.sum().item(), len(left))
                stages.append(Stage(search.name, left.mean().item(), interval, seconds[number - 1].item()))
        return Outcome.of(label, known["correct"], known["margin"], self.labels, seconds.sum().item(), stages)

    def _contradictions(self) -> list[Doubt]:
        """What the outcomes say against each other, and the stages of AutoAttack."""
        transfers = [label for label, one in self.attacks.items() if isinstance(one, Transfer)]
        correct = {label: state["correct"] for label, state in self.known.items()}
        found: list[Doubt] = []
        for label, one in self.attacks.items():
            if isinstance(one, AutoAttack):
                stage, numbered = self.known[label]["stage"], list(enumerate(one.searches, start=1))
                found += doubts_of({search.name: _left(stage, number) for number, search in numbered}, cumulative=True)
                blind = torch.tensor([-1, *(number for number, search in numbered if isinstance(search, Square))])
                correct[f"gradients in {label}"] = torch.isin(stage, blind)
        return found + doubts_of(correct, black_box=transfers)


def _left(stage: Tensor, number: int) -> Tensor:
    """Which points stand after stage ``number``."""
    return (stage < 0) | (stage > number)
