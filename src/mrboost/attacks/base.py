"""What an attack is: ``Attack``, the base class of all, and ``BatchedSearch``, the base class of
those that run on the survivors of others; and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrboost.errors import InputError
from mrboost.threat import Threat, ball, wide

from .networks import networks

Classifier = Callable[[Tensor], Tensor]
"""Images ``(N, …)`` in [0, 1] to logits ``(N, K)``: an ``nn.Module`` or any
differentiable function."""
State = dict[str, Tensor]
"""The lanes of a ``BatchedSearch``: tensors with one row for each lane."""
LOW_PRECISION = (torch.float16, torch.bfloat16)


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

    def work(self, classes: int) -> int:  # noqa: ARG002 — some depend on it
        """Evaluations of the model for one image, as the progress bar counts them."""
        return 1

    @abstractmethod
    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Adversarial versions of images ``x`` in [0, 1] with labels ``y``."""


@dataclass(frozen=True)
class FunctionAttack(Attack):
    """A plain callable ``attack(model, x, y)`` as an ``Attack``; made by ``as_attack``."""

    function: Callable[[Classifier, Tensor, Tensor], Tensor]
    name: str = "function"
    eps: float | None = None
    norm: str | None = None
    steps: int | None = None
    seed: int | None = None
    uses_gradients: bool = True

    def work(self, classes: int) -> int:
        work = getattr(self.function, "work", None)
        return 1 if work is None else int(work(classes))

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 — it takes none
    ) -> Tensor:
        return self.function(model, x, y)


def as_attack(attack: Attack | Callable[[Classifier, Tensor, Tensor], Tensor]) -> Attack:
    """The attack itself, or a plain callable with the attributes of an attack that it has."""
    if isinstance(attack, Attack):
        return attack
    eps, norm = ball_of(attack)
    return FunctionAttack(
        attack,
        name=str(getattr(attack, "name", type(attack).__name__)),
        eps=eps,
        norm=norm,
        steps=getattr(attack, "steps", None),
        seed=getattr(attack, "seed", None),
        uses_gradients=bool(getattr(attack, "uses_gradients", True)),
    )


@dataclass(frozen=True)
class Untouched(Attack):
    """What any attack does within a ball of radius 0."""

    name: str = "clean"
    norm: str = "Linf"
    eps: float = 0.0

    def __call__(
        self,
        model: Classifier,  # noqa: ARG002 — part of the protocol
        x: Tensor,
        y: Tensor,  # noqa: ARG002
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:
        return x


class Rounded(nn.Module):
    """A model of low precision as one of float32 images, which it rounds itself: so that
    images stay in their ball."""

    def __init__(self, model: Classifier, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype)).float()


def ball_of(attack: object) -> tuple[float | None, str | None]:
    """eps and norm, of an attack that says so."""
    eps, norm = getattr(attack, "eps", None), getattr(attack, "norm", None)
    try:
        radius = None if eps is None else float(eps)
    except (TypeError, ValueError, RuntimeError):  # one for each channel, say
        radius = None
    return radius, None if norm is None else str(norm)


@contextmanager
def attacked(*models: Classifier) -> Iterator[None]:
    """Within it, the models are in eval mode and their weights need no gradient; after
    it, they are as before.

    Of a function the networks that it uses are in eval mode; it may want the
    gradients of their weights.
    """
    with ExitStack() as restore:
        for module in (
            module
            for model in models
            for network in networks(model)
            for module in network.modules()
        ):
            if getattr(module, "training", False):  # a frozen script has no mode
                # The attribute, not .train(): that call would recurse, and users override it.
                restore.callback(setattr, module, "training", True)
                module.training = False
        for model in models:
            for parameter in model.parameters() if isinstance(model, nn.Module) else ():
                if parameter.requires_grad:
                    restore.callback(parameter.requires_grad_, True)
                    parameter.requires_grad_(False)
        yield


@dataclass(frozen=True)
class BatchedSearch(Attack):
    """An attack that can run on many images at once, each at its own iteration.

    It keeps no state of its own: ``begin`` makes a dictionary of tensors, whose rows are lanes, and
    ``step`` maps it to the next. ``survivors.Queue`` decides what runs in the lanes. A state has at
    least these entries:

    ==========  ==========================================================
    ``x, y``    the clean image and its label
    ``t``       evaluations of the model so far
    ``hit``     whether ``found`` is misclassified, as far as the copy of the model says
    ``found``   the image to show to the judge
    ==========  ==========================================================
    """

    eps: float = 8 / 255
    norm: str = "Linf"
    steps: int = field(default=100, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    cpu_stride = 5
    """Steps between two looks at the lanes on the CPU."""
    cuda_stride = 10
    """The same on a CUDA device, where to look means to wait for it."""

    def __post_init__(self) -> None:
        ball(self.norm, self.eps)
        if self.steps < 1:
            raise InputError(f"{self.name} needs at least 1 step, got {self.steps}")

    @property
    def patient(self) -> bool:
        """Whether a hit waits for the end of its job, since a randomised model may answer otherwise
        the next time."""
        return False

    @property
    def threat(self) -> Threat:
        return ball(self.norm, self.eps)

    def jobs(self, classes: int) -> int:  # noqa: ARG002 — some have one for each target
        """How many runs an image gets: restarts and targets."""
        return 1

    def evaluations(self) -> int:
        """Evaluations of the model in one job."""
        return self.steps

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image that withstands."""
        return self.jobs(classes) * self.evaluations()

    def check(self, x: Tensor, classes: int) -> None:
        """Refuse images or models that this search cannot work on, before anything is computed."""

    def within(self, lanes: int) -> BatchedSearch:  # noqa: ARG002
        """The same search, which shows the model no more than so many images at a time."""
        return self

    @abstractmethod
    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        """The state of new lanes.

        Args:
            x, y: image and label of each lane.
            ranking: classes by falling logit of the clean image, ``(N, K)``.
            keys: a number for each lane, from which its random numbers follow.
            job: which of the image's jobs it is to run.
        """

    @abstractmethod
    def step(self, model: Classifier, state: State) -> State:
        """One evaluation of every lane, or several; waits for nothing on the device."""

    def advance(self, model: Classifier, state: State) -> State:
        """A step of the lanes that have evaluations left; the others keep what they found."""
        over = state["t"] >= self.evaluations()
        new = self.step(model, state)
        return new | {
            key: torch.where(wide(over, new[key]), state[key], new[key])
            for key in ("t", "hit", "found")
        }

    def refute(self, state: State, lanes: Tensor) -> None:
        """Go on in these lanes: the model itself did not agree that they were hits."""
        state["hit"][lanes] = False
