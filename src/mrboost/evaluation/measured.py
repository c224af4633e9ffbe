"""What was measured of each image, from one process or several, and how it is summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrboost.attacks import APGD, FAB, PGD, Attack, AutoAttack
from mrboost.attacks.autoattack import UP_TO
from mrboost.attacks.base import ball_of
from mrboost.devices import from_all, over_processes
from mrboost.errors import InputError
from mrboost.files import State
from mrboost.losses import dlr, margin

from .chunk import first_stages
from .doubts import Doubt, contradictions, left
from .result import Evaluation, Outcome, Stage, wilson_interval

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Measured:
    """Of each image its label and, for each attack, whether it is ``correct``, its ``margin``, the
    ``stage`` that broke it; and the ``seconds`` of the stages. ``check`` asks for what the outcomes
    say against each other; ``failed`` are attacks that came to nothing or, of several in turn, not
    to their end, and ``problem`` is what is to be said."""

    eps: float | None
    norm: str | None
    attacks: Mapping[str, Attack]
    labels: Tensor
    known: Mapping[str, State]
    doubts: tuple[Doubt, ...]
    check: bool
    failed: tuple[str, ...] = ()
    problem: str = ""

    def name(self, label: str) -> str:
        """What an outcome is called: an attack that ended early is known by
        the last of its parts."""
        attack = self.attacks.get(label)
        if label not in self.failed or not isinstance(attack, AutoAttack):
            return label
        name = f"{label}{UP_TO}{attack.searches[-1].name}"
        while name in self.attacks:  # somebody asked for just that
            name += " again"
        return name

    def of_all(self, fabric: Fabric, count: int) -> Measured:
        """The measures of all ``count`` images, of which this process had those from its rank on,
        in steps of the world size; times are those of the slowest, doubts those of the first. An
        attack counts as far as all have come."""
        if fabric.world_size == 1:
            return self
        stages = {label: self._stages(label) for label in self.known}
        mine = self._as_far_as(from_all(fabric, (stages, self.failed, self.problem)))
        if not mine.known:
            return replace(mine, labels=torch.zeros(count, dtype=torch.int64))

        def gather(mine: Tensor) -> Tensor:
            wide = torch.zeros(count, dtype=torch.float64, device=fabric.device)
            wide[fabric.global_rank :: fabric.world_size] = mine.to(wide)
            return over_processes(fabric, wide, "sum").to("cpu", mine.dtype)

        def slowest(mine: Tensor) -> Tensor:
            return over_processes(
                fabric, mine.sum(dim=0, keepdim=True).to(fabric.device), "max"
            ).cpu()

        known = {
            label: {
                key: slowest(value) if key == "seconds" else gather(value)
                for key, value in sorted(state.items())
            }
            for label, state in mine.known.items()
        }
        return replace(
            mine, labels=gather(self.labels), known=known, doubts=fabric.broadcast(self.doubts)
        )

    def _as_far_as(
        self, everyone: Sequence[tuple[Mapping[str, int], tuple[str, ...], str]]
    ) -> Measured:
        """Without what another process has not measured, and with what any of them says."""
        known, attacks = dict[str, State](), dict[str, Attack]()
        for label, state in self.known.items():
            attack, stages = (
                self.attacks.get(label),
                min(finished.get(label, 0) for finished, _, _ in everyone),
            )
            if stages == 0:
                continue
            if isinstance(attack, AutoAttack) and stages < len(attack.searches):
                attack, state = (
                    replace(attack, stages=stages),
                    first_stages(state, self.known["clean"], stages),
                )
            known[label] = state
            if attack is not None:
                attacks[label] = attack
        failed = tuple(dict.fromkeys(label for _, labels, _ in everyone for label in labels))
        of = f"of {len(everyone)}, which counts its own images, one in {len(everyone)}"
        problems = [
            f"{said} (in process {rank} {of})" for rank, (_, _, said) in enumerate(everyone) if said
        ]
        return replace(
            self, known=known, attacks=attacks, failed=failed, problem="; ".join(problems)
        )

    def _stages(self, label: str) -> int:
        """How many parts the attack is made of."""
        attack = self.attacks.get(label)
        return len(attack.searches) if isinstance(attack, AutoAttack) else 1

    def result(self, keep: Callable[[Evaluation], Evaluation] = lambda found: found) -> Evaluation:
        """The evaluation, once it is kept; if something failed, it comes with the error."""
        found = keep(self.evaluation()) if self.known else self.evaluation()
        if self.problem:
            raise UnfinishedError(self.problem, found)
        return found

    def evaluation(self) -> Evaluation:
        outcomes = tuple(self._outcome(label) for label in self.known)
        strong = any(map(_by_margins, self.attacks.values()))
        doubts = tuple(
            doubt for doubt in self.doubts if not (strong and doubt.check == "weak-loss")
        )
        # Attacks of several balls say nothing against each other
        if self.check and self.eps is not None:
            draws = any(doubt.check == "random" for doubt in doubts)
            doubts += tuple(contradictions([asdict(o) for o in outcomes], draws=draws))
        return Evaluation(self.eps, self.norm, len(self.labels), outcomes, doubts, self.failed)

    def _outcome(self, label: str) -> Outcome:
        known, attack, name = self.known[label], self.attacks.get(label), self.name(label)
        seconds, (eps, norm) = known["seconds"].sum(dim=0), ball_of(attack)
        stages: list[Stage] = []
        if isinstance(attack, AutoAttack):
            for number, search in enumerate(attack.searches, start=1):
                stand = left(known["stage"], number).double()
                interval = wilson_interval(stand.sum().item(), len(stand))
                stages.append(
                    Stage(search.name, stand.mean().item(), interval, seconds[number - 1].item())
                )
        return Outcome.of(
            name,
            known["correct"],
            known["margin"],
            self.labels,
            seconds.sum().item(),
            stages=tuple(stages),
            broken_by=tuple(known["stage"].tolist()) if stages else (),
            black_box=not getattr(attack, "uses_gradients", True),
            eps=eps,
            norm=norm,
        )


def _by_margins(attack: Attack) -> bool:
    """Whether it raises a margin, which is what an attack on the cross-entropy
    may be too weak for."""
    parts = attack.searches if isinstance(attack, AutoAttack) else (attack,)
    return any(
        isinstance(part, FAB)
        or (isinstance(part, APGD) and part.targets > 0)
        or (isinstance(part, APGD | PGD) and any(part.loss is loss for loss in (margin, dlr)))
        for part in parts
    )


class UnfinishedError(InputError):
    """An attack came to nothing; ``evaluation`` is that of the others."""

    def __init__(self, message: str, evaluation: Evaluation) -> None:
        super().__init__(message)
        self.evaluation = evaluation
