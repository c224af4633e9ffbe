"""Ensembles: several classifiers that answer as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import reduce
from operator import add

import torch
from torch import Tensor, fx, nn

from .errors import InputError

Classifier = Callable[[Tensor], Tensor]
"""Images ``(N, …)`` in [0, 1] to logits ``(N, K)``: a module, or any differentiable function."""

_LARGEST = 16.0  # beyond it are grey levels: methods that explain answers go a little beyond 1


def mean_logits(members: Sequence[Classifier], x: Tensor) -> Tensor:
    """The mean of the members' logits: one forward pass each, and a running sum."""
    total = reduce(add, (member(x) for member in members))
    return total if len(members) == 1 else total / len(members)


def refuse_grey_levels(x: Tensor | fx.Proxy) -> None:
    """Refuse images of 0 to 255, of which networks for [0, 1] would make something without a word.

    Floats are looked at where they have values: not while a graph is captured, traced or exported.
    """
    if isinstance(x, fx.Proxy):
        return
    if not x.is_floating_point():
        raise InputError(f"images must be floating point, got {x.dtype}: divide uint8 by 255")
    tracing = torch.compiler.is_compiling() or torch._C._get_tracing_state()
    if tracing or x.numel() == 0 or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    largest = 0.0
    with suppress(RuntimeError):  # a tensor without values
        largest = x.detach().amax().item()
    if largest > _LARGEST:
        raise InputError(f"images must lie in [0, 1], these reach {largest:.4g}: divide by 255")


def _positive(values: Tensor) -> bool:
    """Whether they can be weights: finite, not negative and not all 0."""
    return bool(values.isfinite().all() and (values >= 0).all() and values.sum() > 0)


class _Members(nn.Module):
    """Several classifiers with weights that sum to one; iterating, indexing and
    ``len`` reach the members.

    ``eps`` and ``norm`` are the ball that they were trained for, if it is known: ``evaluate`` takes
    it where none is given.
    """

    weights: Tensor

    def __init__(
        self,
        members: Iterable[nn.Module],
        weights: Sequence[float] | None = None,
        *,
        eps: float | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.norm = norm
        self.members = nn.ModuleList(members)
        count = len(self.members)
        if count == 0:
            raise InputError("an ensemble needs at least one member, got none")
        values = torch.ones(count) if weights is None else torch.as_tensor(weights).float()
        if weights is not None and not (values.shape == (count,) and _positive(values)):
            needed = f"{count} members need as many weights, finite, >= 0 and not all 0"
            raise InputError(f"{needed}, got {values.tolist()}")
        self.register_buffer("weights", values / values.sum())

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> nn.Module:
        return self.members[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.members)

    def _answers(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each member's logits, on images of its own, as it may work in place, and its weight."""
        refuse_grey_levels(x)
        for member, weight in zip(self.members, self.weights, strict=True):
            yield member(x.clone()), weight


class Ensemble(_Members):
    """The weighted mean of its members' logits, ``Σ_j w_j g_j(x)``.

    Members may differ in architecture; they need the same classes. Without ``weights`` all count
    alike, as in the paper.
    """

    def forward(self, x: Tensor) -> Tensor:
        # A running sum: one member's activations need to live at a time when no
        # gradient is asked for.
        return reduce(add, (logits * weight for logits, weight in self._answers(x)))


class Mixture(_Members):
    """A randomised classifier: for each input one member is drawn, with probability its weight
    (Pinot et al. 2020).

    ``forward`` gives ``log Σ_j w_j softmax(g_j(x))``: the cross-entropy of these "logits" is the
    expected loss at the level of probabilities, which is what the honest attack raises. The
    accuracy is an expectation too, and exact: ``expected_correct``. (The largest probability is
    *not* how this classifier answers.)
    """

    def forward(self, x: Tensor) -> Tensor:
        logs = (logits.log_softmax(dim=1) + weight.log() for logits, weight in self._answers(x))
        return torch.stack(list(logs)).logsumexp(dim=0)

    @classmethod
    def check_outermost(cls, model: Classifier) -> None:
        """Refuse a Mixture inside another module: nobody would see that its answers are drawn."""
        inner = model.modules() if isinstance(model, nn.Module) else ()
        if any(isinstance(part, cls) for part in inner if part is not model):
            inside = f"a Mixture inside {type(model).__name__} would answer by mean probabilities"
            raise InputError(f"{inside}: give members, with what is around them, to one Mixture")

    def expected_correct(self, x: Tensor, y: Tensor) -> Tensor:
        """The probability that the drawn member is right, for each example."""
        answers = self._answers(x)
        return reduce(add, ((logits.argmax(dim=1) == y) * weight for logits, weight in answers))


def members_of(model: object) -> list[tuple[nn.Module, float]]:
    """The members of an ensemble and their weights; what is around the ensemble is
    around each of them.

    Members of an ``Ensemble`` that are ensembles themselves are taken apart. All layers are
    shared with the model.
    """
    if not isinstance(model, nn.Module):
        return []
    if isinstance(model, _Members):
        return list(_taken_apart(model))
    if type(model) is nn.Sequential:
        layers = list(model)
        for i, part in enumerate(layers):
            if found := members_of(part):
                before, after = layers[:i], layers[i + 1 :]
                return [(nn.Sequential(*before, one, *after), weight) for one, weight in found]
    outer = next((part for part in model.modules() if isinstance(part, _Members)), None)
    if outer is None:
        return []
    found = []
    for member, weight in _taken_apart(outer):
        # As many of one as there were of all: what is around them may count them.
        alone = type(outer)([member] * len(outer), outer.weights.tolist()).to(outer.weights.device)
        found.append((_with(model, outer, alone), weight))
    return found


def _taken_apart(ensemble: _Members) -> Iterator[tuple[nn.Module, float]]:
    for member, weight in zip(ensemble, ensemble.weights.tolist(), strict=True):
        if isinstance(ensemble, Ensemble) and isinstance(member, Ensemble):
            yield from ((part, weight * share) for part, share in _taken_apart(member))
        else:
            yield member, weight


def _with(module: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """A module with another part in the place of one; what is not on the way to that is shared."""
    if module is old:
        return new
    if not any(part is old for part in module.modules()):
        return module
    twin = copy(module)
    twin.__dict__["_modules"] = {
        name: child if child is None else _with(child, old, new)
        for name, child in module._modules.items()
    }
    return twin
