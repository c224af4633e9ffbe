"""What the attacks found of each image, from one process or several, and how it is summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrboost.attacks import APGD, FAB, PGD, Attack, AutoAttack
from mrboost.attacks.base import ball_of
from mrboost.devices import from_all
from mrboost.errors import InputError
from mrboost.files import State
from mrboost.losses import dlr, margin

from .doubts import Doubt, contradictions, left
from .result import Evaluation, Outcome, Stage
from .statistics import wilson_interval

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Collector:
    """Gathers what attacks find, chunk by chunk. An attack that fails is given up, and its earlier
    chunks with it; without the clean images, all are."""

    def __init__(self, attacks: Mapping[str, Attack]) -> None:
        self.attacks: dict[str, Attack | None] = {"clean": None, **attacks}
        self.parts: dict[str, list[State]] = {label: [] for label in self.attacks}
        self.labels: list[Tensor] = []
        self.failed: dict[str, str] = {}

    def going(self) -> Iterator[tuple[int, str, Attack | None]]:
        """Number, label and attack of those that have not failed."""
        for number, (label, attack) in enumerate(self.attacks.items()):
            if label in self.parts:
                yield number, label, attack

    def add(self, label: str, part: State) -> None:
        """Without the images, which are large."""
        self.parts[label].append({key: part[key] for key in part if key != "adv"})

    def fail(self, label: str, error: InputError) -> None:
        self.failed[label] = str(error)
        del self.parts[label]
        if label == "clean":
            self.parts.clear()

    def found(self) -> dict[str, State]:
        """What is known of all images together."""
        return {
            label: {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
            for label, parts in self.parts.items()
        }

    def problem(self) -> str:
        """One message for all that failed."""
        if not self.failed:
            return ""
        first, *others = self.failed
        message = self.failed[first]
        if first != "clean" and first not in message:
            message = f"{first}: {message}"
        return message + (f"; {', '.join(others)} failed too" if others else "")


@dataclass(frozen=True)
class Measurements:
    """What is known of each image after all attacks.

    Attributes:
        eps, norm: the ball that all attacks have in common, or None.
        attacks: by label, those that came to their end.
        labels: the true classes.
        found: for ``clean`` and each of these attacks, what ``Runner.run`` gives.
        doubts: what the model itself gives to doubt.
        check: whether outcomes are asked what they say against each other.
        failed: the labels of attacks that failed.
        problem: the message that they leave, and other trouble.
    """

    eps: float | None
    norm: str | None
    attacks: Mapping[str, Attack]
    labels: Tensor
    found: Mapping[str, State]
    doubts: tuple[Doubt, ...]
    check: bool
    failed: tuple[str, ...]
    problem: str

    def of_all(self, fabric: Fabric, count: int) -> Measurements:
        """The measurements of all ``count`` images, of which this process had those from its rank
        on, in steps of the world size.

        An attack counts if it came to its end in every process. Times are those of the slowest
        process, doubts those of the first.
        """
        world = fabric.world_size
        if world == 1:
            return self
        mine = (self.labels, self.found, self.doubts, self.failed, self.problem)
        labels, found, doubts, failed, problems = zip(*from_all(fabric, mine), strict=True)

        def interleaved(shares: list[Tensor]) -> Tensor:
            whole = torch.zeros(count, dtype=shares[0].dtype)
            for rank, share in enumerate(shares):
                whole[rank::world] = share
            return whole

        merged = dict[str, State]()
        for label in [label for label in found[0] if all(label in each for each in found)]:
            states = [each[label] for each in found]
            merged[label] = {
                key: interleaved([state[key] for state in states])
                for key in states[0]
                if key != "seconds"
            }
            seconds = [state["seconds"].sum(dim=0) for state in states]
            merged[label]["seconds"] = torch.stack(seconds).amax(dim=0, keepdim=True)
        of = f"of {world}, which counts its own images, one in {world}"
        told = [f"{text} (in process {rank} {of})" for rank, text in enumerate(problems) if text]
        return replace(
            self,
            attacks={key: one for key, one in self.attacks.items() if key in merged},
            labels=interleaved(list(labels)) if merged else torch.zeros(count, dtype=torch.int64),
            found=merged,
            doubts=doubts[0],
            failed=tuple(dict.fromkeys(label for each in failed for label in each)),
            problem="; ".join(told),
        )

    def evaluation(self) -> Evaluation:
        """Figures, and what they give to doubt."""
        outcomes = tuple(self._outcome(label) for label in self.found)
        doubts = self.doubts
        if any(map(_raises_a_margin, self.attacks.values())):
            doubts = tuple(doubt for doubt in doubts if doubt.check != "weak-loss")
        # Attacks of several balls say nothing against each other
        if self.check and self.eps is not None:
            draws = any(doubt.check == "random" for doubt in doubts)
            doubts += tuple(contradictions([asdict(o) for o in outcomes], draws=draws))
        return Evaluation(self.eps, self.norm, len(self.labels), outcomes, doubts, self.failed)

    def _outcome(self, label: str) -> Outcome:
        found, attack = self.found[label], self.attacks.get(label)
        seconds = found["seconds"].sum(dim=0)
        eps, norm = ball_of(attack)
        stages: list[Stage] = []
        if isinstance(attack, AutoAttack):
            for number, search in enumerate(attack.searches, start=1):
                stand = left(found["stage"], number).double()
                interval = wilson_interval(stand.sum().item(), len(stand))
                stages.append(
                    Stage(
                        search.name,
                        stand.mean().item(),
                        interval,
                        seconds[number - 1].item(),
                        black_box=not search.uses_gradients,
                    )
                )
        return Outcome.of(
            label,
            found["correct"],
            found["margin"],
            self.labels,
            seconds.sum().item(),
            stages=tuple(stages),
            broken_by=tuple(found["stage"].tolist()) if stages else (),
            black_box=attack is not None and not attack.uses_gradients,
            steps=None if attack is None else attack.steps,
            eps=eps,
            norm=norm,
        )


def _raises_a_margin(attack: Attack) -> bool:
    """Whether it raises a margin, which is what an attack on the cross-entropy
    may be too weak for."""
    parts = attack.searches if isinstance(attack, AutoAttack) else (attack,)
    return any(
        isinstance(part, FAB)
        or (isinstance(part, APGD) and part.targets > 0)
        or (isinstance(part, APGD | PGD) and any(part.loss is loss for loss in (margin, dlr)))
        for part in parts
    )
