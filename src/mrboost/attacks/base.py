"""What an attack is: ``Attack``, the base class of all, ``InBall``, that of those with a norm and a
radius, and what is called as one: plain functions, and attacks on numpy arrays."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from mrboost.data import as_tensors
from mrboost.devices import device_of, dtype_of
from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.losses import LOSSES, Loss
from mrboost.threat import Threat, ball

from .model import check_dense

F = TypeVar("F", bound=Callable[..., Any])


class Attack(ABC):
    """An attack: ``attack(model, x, y)`` gives adversarial images of the shape and dtype of ``x``.

    Subclass it, declare what differs from the defaults below, and write ``__call__``. A plain
    function ``attack(model, x, y)`` is an attack too, wherever the library takes one: ``as_attack``
    wraps it.

    Attributes:
        eps, norm: the ball that the images stay in, as ``ball`` takes it; None if it has none.
        steps: gradient steps or iterations of one run; None if it has no such number.
        seed: of its random numbers; None for an attack that draws none, or draws a new seed.
        uses_gradients: whether it looks at the gradients of the model that it is called with.
    """

    eps: float | None = None
    norm: str | None = None
    steps: int | None = None
    seed: int | None = None
    uses_gradients: bool = True

    @property
    def name(self) -> str:
        """The name that tables use."""
        return type(self).__name__

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image, as the progress bar counts them."""
        return 1

    @abstractmethod
    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Adversarial versions of images ``x`` in [0, 1] with labels ``y``."""


def _whole(name: str, value: Any) -> int:
    """A number of an attack, also of numpy or torch; refuses what is none, or not whole."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {value!r:.80}") from None


@dataclass(frozen=True)
class InBall(Attack):
    """An attack that stays in the ball of radius ``eps``, in the norm "Linf", "L2" or "L1"."""

    eps: float = 8 / 255
    norm: str = "Linf"

    def __post_init__(self) -> None:
        ball(self.norm, self.eps)
        if self.seed is not None:
            _whole("seed", self.seed)

    @property
    def threat(self) -> Threat:
        return ball(self.norm, self.eps)

    def check_at_least_one(self, *names: str) -> None:
        """Refuse an attack for which one of these numbers is below 1."""
        for name in names:
            value = getattr(self, name)
            if _whole(name, value) < 1:
                raise InputError(f"{name} must be at least 1, got {value!r:.80}")


@dataclass(frozen=True)
class FunctionAttack(Attack):
    """A plain callable ``attack(model, x, y)`` as an ``Attack``; made by ``as_attack``."""

    function: Callable[[Classifier, Tensor, Tensor], Tensor]
    eps: float | None = None
    norm: str | None = None
    name: str = "function"
    steps: int | None = None
    seed: int | None = None
    uses_gradients: bool = True

    def work(self, classes: int) -> int:
        return int(getattr(self.function, "work", super().work)(classes))

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.function(model, x, y)


def as_attack(attack: Attack | Callable[[Classifier, Tensor, Tensor], Tensor]) -> Attack:
    """The attack itself, or a plain callable with the attributes of an attack that it has."""
    if isinstance(attack, Attack):
        return attack
    declared = ("name", "steps", "seed", "uses_gradients")
    known: dict[str, Any] = {key: getattr(attack, key) for key in declared if hasattr(attack, key)}
    known = {"name": type(attack).__name__} | known
    return FunctionAttack(attack, *ball_of(attack), **known)


@dataclass(frozen=True)
class Untouched(Attack):
    """What any attack does within a ball of radius 0."""

    name: str = "clean"
    norm: str = "Linf"
    eps: float = 0.0

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return x


def takes_arrays(call: F) -> F:
    """The ``__call__`` of an attack for arrays (or lists, or one-hot labels) too.

    Of an array the attack sees a tensor on the model's device and in its precision, and what it
    finds is given back as an array of the same type.
    """

    @wraps(call)
    def with_arrays(self: object, model: Classifier, x: Any, y: Any, **options: Any) -> Any:
        labels = {"y": y}
        if options.get("targets") is not None:
            labels["targets"] = options.pop("targets")
        if not all(isinstance(value, Tensor) for value in (x, *labels.values())):
            for name, value in labels.items():
                images, labels[name] = as_tensors(x, value)
        if isinstance(x, Tensor):
            check_dense(x, *labels.values())
            on = {name: value.to(x.device) for name, value in labels.items()}
            return call(self, model, x, **on, **options)
        device = device_of(model)
        if images.is_floating_point():
            images = images.to(dtype_of(model, images.dtype))
        on = {name: value.to(device) for name, value in labels.items()}
        found = call(self, model, images.to(device), **on, **options)
        return found.cpu().numpy().astype(np.asarray(x).dtype)

    return cast(F, with_arrays)


def ball_of(attack: object) -> tuple[float | None, str | None]:
    """eps and norm, of an attack that says so."""
    eps, norm = getattr(attack, "eps", None), getattr(attack, "norm", None)
    try:
        eps = None if eps is None else float(eps)
    except (TypeError, ValueError, RuntimeError):  # one for each channel, say
        eps = None
    return eps, None if norm is None else str(norm)


def check_step_size(step_size: float | None) -> None:
    """Refuse a step that does not go forward."""
    if step_size is not None and not (isinstance(step_size, int | float) and step_size > 0):
        remedy = "leave it out for eps/4"
        raise InputError(f"step_size must be positive, got {step_size!r:.80}: {remedy}")


def check_loss(loss: Loss, *, aimed: bool = False) -> None:
    """Refuse a loss that cannot be called as an attack calls it."""
    call: Callable[..., object] = loss
    logits, y = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    try:
        call(logits, y, reduction="none", **({"other": y} if aimed else {}))
    except (TypeError, ValueError) as error:
        how = "logits, y, other=…, reduction=…" if aimed else "logits, y, reduction=…"
        like = "mrboost.losses." + ("targeted_dlr" if aimed else "cross_entropy")
        problem = f"a loss is called as loss({how}), as {like} is; with this one: {error}"
        raise InputError(problem) from None
    except RuntimeError:  # of one that is for other classes or another device
        return


def loss_suffix(loss: Callable[..., Tensor], plain: str = "") -> str:
    """What a loss adds to an attack's name: ``-mce``, say; nothing for the ``plain`` one."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if name == plain:
        return ""
    return "-" + next((known for known, one in LOSSES.items() if one == loss), name)
