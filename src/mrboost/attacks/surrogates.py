"""Surrogates: models that are attacked, or whose gradients are followed, in place of one that has
no useful gradient, or a misleading one.

``Transfer`` makes images on one model to show them to another. ``BPDA`` has the answers of a model
and the gradients of a surrogate that the user names, where the model rounds, sorts, encodes or is
no network. ``Twin`` finds a surrogate in the model itself: the mean of what its parts answer. What
a model makes of its members' answers may leave no gradient to follow though the members have
one: a median, a vote, a normalisation by the largest logits (CrossMax). What fools the mean of the
members mostly fools the model too, and the mean has a gradient.

References: Athalye, Carlini & Wagner, "Obfuscated gradients give a false sense of security", ICML
2018 (BPDA); Zhang et al., "Evaluating the robustness of the 'Ensemble everything everywhere'
defense", 2024, which breaks CrossMax by the mean of its members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from mrboost.ensemble import Classifier
from mrboost.errors import InputError, NanLogitsError
from mrboost.models.black_box import as_model

from .base import Attack, as_attack
from .model import attacked, checked, networks
from .pgd import PGD


@dataclass(frozen=True)
class Transfer(Attack):
    """Adversarial examples made on ``source``, whichever model they are then shown to.

    Args:
        attack: what makes them.
        source: the model that it runs on.
        own: the source is a part of the model that they are shown to, so that gradients of the
            source are gradients of that model.
    """

    attack: Attack
    source: Classifier
    own: bool = False

    def __post_init__(self) -> None:
        made_by = as_attack(self.attack)
        object.__setattr__(self, "eps", made_by.eps)
        object.__setattr__(self, "norm", made_by.norm)
        object.__setattr__(self, "uses_gradients", self.own and made_by.uses_gradients)

    def work(self, classes: int) -> int:
        return as_attack(self.attack).work(classes)

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        try:
            return self.attack(self.source, x, y, generator=generator)
        except NanLogitsError:
            raise
        except InputError as error:
            raise InputError(f"of the model that the examples are made on: {error}") from error


class BPDA(nn.Module):
    """The answers of ``model``, and the gradients of ``surrogate``.

    Args:
        model: what is attacked.
        surrogate: a differentiable stand-in for the whole of it, images to logits. For a step
            before a network, that is the network on images that keep their gradient:
            ``lambda x: network(x + (step(x) - x).detach())``, or simply ``network``.

    Example:
        >>> evaluate(BPDA(model, network), x, y, "autoattack")  # doctest: +SKIP
    """

    def __init__(self, model: Classifier, surrogate: Classifier) -> None:
        super().__init__()
        self.model = model
        self.surrogate = surrogate
        self.used = nn.ModuleList(networks(model) + networks(surrogate))  # of functions too

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.model(x)
        stand_in = self.surrogate(x.clone())  # either may work in place
        with torch.no_grad():
            logits = self.model(x.detach().clone())
        return _Through.apply(stand_in, logits)  # type: ignore[no-untyped-call, no-any-return]


class _Through(torch.autograd.Function):
    """The second argument, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, logits: Tensor) -> Tensor:  # noqa: ARG004
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None


def of_tensors(model: Classifier, x: Tensor, classes: int) -> Classifier:
    """``as_model``, also of the model inside a ``BPDA``."""
    inner = model.model if isinstance(model, BPDA) else model
    if isinstance(inner, nn.Module):
        return model
    with attacked(inner):
        found: Classifier = as_model(inner, x, classes)
    return BPDA(found, model.surrogate) if isinstance(model, BPDA) else found


def on_surrogate(
    model: Classifier, eps: float | None, norm: str | None = "Linf"
) -> dict[str, Attack]:
    """What fools the surrogate of a ``BPDA``, shown to the model, as ``surrogate``; nothing for
    another model, or without a ball."""
    if not eps or norm is None or not isinstance(model, BPDA):
        return {}
    return {"surrogate": Transfer(PGD(eps, norm, steps=100), model.surrogate)}


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
