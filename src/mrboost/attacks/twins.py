"""The parts of a model that vote, and a twin of the model in which their answers are averaged.

What a model makes of its members' answers may leave no gradient to follow though the members have
one: a median, a vote, a normalisation by the largest logits (CrossMax). What fools the mean of the
members mostly fools the model too, and the mean has a gradient.

Reference: Zhang et al., "Evaluating the robustness of the 'Ensemble everything everywhere'
defense", 2024, which breaks CrossMax so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from .model import Classifier, checked


@dataclass
class _Call:
    """A call of a module, its answer if that may be logits, and the calls inside it."""

    module: nn.Module
    answer: Tensor | None = None
    inside: list[_Call] = field(default_factory=list)


@contextmanager
def _watched() -> Iterator[list[_Call]]:
    """The calls of all modules within a block. A module's answer goes on as a copy, so that nobody
    changes it in place."""
    top = _Call(nn.Identity())
    under_way = [top]

    def begin(module: nn.Module, _: Any) -> None:
        under_way.append(_Call(module))

    def end(_: nn.Module, __: Any, answer: Any) -> Any:
        call = under_way.pop()
        under_way[-1].inside.append(call)
        if not isinstance(answer, Tensor) or answer.ndim != 2:
            return None
        call.answer = answer
        return answer.clone()

    handles = [
        hooks.register_module_forward_pre_hook(begin),
        hooks.register_module_forward_hook(end),
    ]
    try:
        yield top.inside
    finally:
        for handle in handles:
            handle.remove()


def voters(model: Classifier, x: Tensor) -> list[nn.Module]:
    """The parts of a model that answer with as many logits as it does, none of them from another's
    answer; empty where there are not several such answers, or where they have no gradient.

    Args:
        model: a module, or a function that uses modules, wherever it keeps them.
        x: a few images.
    """
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    with checked(model, x, labels) as (images, _, classes), torch.enable_grad():
        images.requires_grad_(True)
        with _watched() as calls:
            model(images.clone())  # it may work in place
        found = _apart(calls, (len(x), classes))
        while len(found) == 1:
            found = _apart(found[0].inside, (len(x), classes))
        if not all(_comes_from(_answer(call), images) for call in found):
            return []
    return list(dict.fromkeys(call.module for call in found))


def _apart(calls: Sequence[_Call], shape: tuple[int, int]) -> list[_Call]:
    """The outermost calls whose answers have this shape and come from no other one's."""
    found = _outermost(calls, shape)
    return [
        one
        for number, one in enumerate(found)
        if not any(_comes_from(_answer(one), _answer(other)) for other in found[:number])
    ]


def _outermost(calls: Sequence[_Call], shape: tuple[int, int]) -> list[_Call]:
    found: list[_Call] = []
    for call in calls:
        is_answer = call.answer is not None and call.answer.shape == shape
        found += [call] if is_answer else _outermost(call.inside, shape)
    return found


def _answer(call: _Call) -> Tensor:
    assert call.answer is not None
    return call.answer


def _comes_from(answer: Tensor, other: Tensor) -> bool:
    """Whether there is a gradient of one in the other."""
    if not answer.requires_grad or not other.requires_grad:
        return False
    (slope,) = torch.autograd.grad(answer.sum(), other, retain_graph=True, allow_unused=True)
    return slope is not None


@dataclass(frozen=True)
class Twin:
    """The mean of what some parts of a model answer, in the place of what the model makes of it.

    Args:
        model: is run, so that the parts see what they see in it.
        parts: its ``voters``.
        probabilities: whether their probabilities are averaged, and not their logits.

    Example:
        >>> x_adv = PGD(0.1)(Twin(model, tuple(voters(model, x))), x, y)  # doctest: +SKIP
    """

    model: Classifier
    parts: tuple[nn.Module, ...]
    probabilities: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        with _watched() as calls:
            self.model(x)
        answers = torch.stack([_answer(call) for call in _of_parts(calls, self.parts)])
        if self.probabilities:
            return answers.log_softmax(dim=2).logsumexp(dim=0)
        return answers.mean(dim=0)


def _of_parts(calls: Sequence[_Call], parts: Sequence[nn.Module]) -> Iterator[_Call]:
    for call in calls:
        if call.module in parts:
            yield call
        else:
            yield from _of_parts(call.inside, parts)
