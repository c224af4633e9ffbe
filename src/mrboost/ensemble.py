"""Ensembles: several classifiers that answer as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .errors import InputError


class Ensemble(nn.Module):
    """The weighted mean of its members' logits, ``Σ_j w_j g_j(x)`` with weights that sum to one.

    Members may differ in architecture; they need the same classes. Without ``weights`` all count alike, as in
    the paper. Iterating, indexing and ``len`` reach the members; ``staged()`` gives the ensembles of the first
    1, 2, … of them.
    """

    weights: Tensor

    def __init__(self, members: Iterable[nn.Module], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if len(self.members) == 0:
            raise InputError("an ensemble needs at least one member, got none")
        values = torch.ones(len(self.members)) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
        if values.shape != (len(self.members),):
            raise InputError(f"{len(self.members)} members need as many weights, got shape {tuple(values.shape)}")
        if not (values.isfinite().all() and (values >= 0).all() and values.sum() > 0):
            raise InputError(f"weights must be finite, not negative and not all zero, got {values.tolist()}")
        self.register_buffer("weights", values / values.sum())

    def forward(self, x: Tensor) -> Tensor:
        # A running sum: one member's activations need to live at a time when no gradient is asked for.
        logits: Tensor = self.members[0](x) * self.weights[0]
        for member, weight in zip(self.members[1:], self.weights[1:], strict=True):
            logits = logits + member(x) * weight
        return logits

    def staged(self) -> Iterator[Ensemble]:
        """The ensemble after each round: the first member, the first two, and so on."""
        for stage in range(1, len(self) + 1):
            yield Ensemble(self.members[:stage], self.weights[:stage].tolist())

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> nn.Module:
        return self.members[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.members)
