"""What every attack shares: the model's state left as found, the checks at the
door, the random stream."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from textwrap import shorten

import torch
from torch import Tensor, nn

from mrboost.devices import dtype_of
from mrboost.errors import InputError, UnfitError
from mrboost.files import State
from mrboost.losses import Loss, kl_divergence, margin_kl_divergence
from mrboost.networks import networks
from mrboost.seeds import keep_random_state
from mrboost.threat import Threat, ball, wide

Classifier = Callable[[Tensor], Tensor]
"""Images ``(N, …)`` in [0, 1] to logits ``(N, K)``: an ``nn.Module`` or any
differentiable function."""
LOW_PRECISION = (torch.float16, torch.bfloat16)
_ON_SHAPES = re.compile(
    r"\b(shapes?|sizes?|dim(ension)?s?|channels?|height|width|[1-5]D)\b", re.IGNORECASE
)
"""Words of an error on images that do not fit a network."""


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


def check_batch(x: Tensor, y: Tensor) -> None:
    """Refuse what is not a batch of images in [0, 1] with integer labels."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(
            f"images and labels must be tensors, got {type(x).__name__} and {type(y).__name__}"
        )
    if not x.is_floating_point():
        raise InputError(
            f"images must be floating point in [0, 1], got {x.dtype}: divide uint8 images by 255"
        )
    if x.ndim < 2 or len(x) == 0:
        raise InputError(
            f"images must be a batch (N, …) of at least one, got shape {tuple(x.shape)}"
        )
    if y.shape != x.shape[:1]:
        raise InputError(
            f"labels must have shape ({len(x)},) to match the images, got {tuple(y.shape)}"
        )
    if y.dtype != torch.int64:
        raise InputError(f"labels must be int64 class indices, got {y.dtype}: convert with .long()")
    low, high = x.aminmax()
    if not (low >= 0 and high <= 1):  # also false for NaN
        beyond = max(-low.item(), high.item() - 1)
        if x.isnan().any():
            problem = "contain NaN: replace them"
        elif beyond < 1e-3:
            problem = f"go beyond it by {beyond:.2g}: clamp them, as x.clamp(0, 1)"
        else:
            problem = (
                f"span [{low.item():.4g}, {high.item():.4g}]: rescale them, normalise inside the "
                "model"
            )
        raise InputError(f"images must lie in [0, 1], these {problem}")


def check_logits(model: Classifier, x: Tensor, y: Tensor) -> int:
    """The number K of classes; refuses an output that is not logits ``(N, K)``,
    and labels beyond K."""
    if not callable(model) or isinstance(model, type):
        raise InputError(
            f"a model is an nn.Module or a function, got {model!r}: mrboost.load(folder) loads "
            "a run's"
        )
    n = 1
    try:
        with torch.no_grad():
            logits = model(x[:1].clone())  # a model may work in place
            # A convolution takes one image without channels for one image without a batch
            if x.ndim == 3:
                n, logits = 2, model(torch.cat([x[:1], x[:1]]))
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError | torch.OutOfMemoryError) or "CUDA" in str(error):
            raise
        if "more than 1 value per channel" in str(error):
            raise InputError(
                "the model takes its statistics from the batch, in eval mode too, and one image "
                "has none: give its BatchNorm running statistics (track_running_stats=True, no "
                "training=True in its forward)"
            ) from error
        if _ON_SHAPES.search(str(error)):
            shape = ", ".join(map(str, ("N", *x.shape[1:])))
            raise UnfitError(
                f"the model does not take images of shape ({shape}): give them as it was "
                "trained on them; it says: " + shorten(str(error), 240),
                error,
            ) from error
        dtype = dtype_of(model, torch.float32)
        if x.dtype == dtype or not isinstance(error, RuntimeError):
            raise
        raise InputError(
            f"the model does not take images of {x.dtype}: convert them to its own type, "
            f"x.to({dtype})"
        ) from error
    if (
        not isinstance(logits, Tensor)
        or logits.ndim != 2
        or len(logits) != n
        or logits.shape[1] < 2
    ):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        remedy = ": wrap it, to return output.logits" if hasattr(logits, "logits") else ""
        raise InputError(
            f"the model must return logits of shape (N, K) with K >= 2, for N = {n} it gave "
            f"{got}{remedy}"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, the model returned {logits.dtype}")
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= logits.shape[1]:
        raise InputError(
            f"labels must lie in 0..{logits.shape[1] - 1} for a model of {logits.shape[1]} "
            f"classes, got {low}..{high}"
        )
    return logits.shape[1]


def are_probabilities(logits: Tensor) -> bool:
    slack = max(1e-3, 8 * torch.finfo(logits.dtype).eps)
    return not (logits < 0).any() and bool(((logits.sum(dim=1) - 1).abs() < slack).all())


def warn_of_probabilities(model: Classifier, x: Tensor) -> None:
    """For attacks that are called without ``evaluate``, which says so among its doubts."""
    with attacked(model), keep_random_state(x.device), torch.no_grad():
        if are_probabilities(model(x[:8].clone())):
            problem = (
                "the model returns probabilities, in which losses of logits are nearly flat: the "
                "attack is weak."
            )
            warnings.warn(f"{problem} Return the logits, or take the logarithm", stacklevel=3)


def check_loss(loss: Loss, *, aimed: bool = False) -> None:
    """Refuse a loss that does not take what an attack gives it."""
    if loss in (kl_divergence, margin_kl_divergence):
        raise InputError(
            f"{loss.__name__} compares two batches of logits, not logits with labels: give "
            "cross_entropy"
        )
    try:
        call: Callable[..., object] = loss
        if (
            isinstance(loss, nn.Module)
            and type(loss).__call__ is nn.Module.__call__
            and not loss._forward_pre_hooks
        ):
            call = loss.forward
        takes = signature(call, follow_wrapped=False)
        takes.bind(None, None, reduction="none", **({"other": None} if aimed else {}))
    except ValueError:  # a scripted or built-in function does not tell
        return
    except TypeError as error:
        how = (
            "with targets it is called as loss(logits, y, other=…"
            if aimed
            else "it is called as loss(logits, y"
        )
        like = f"mrboost.losses.{'targeted_dlr' if aimed else 'cross_entropy'}"
        raise InputError(
            f"{how}, reduction=…), which this loss does not bear: {error}; give one as {like} is"
        ) from None


def gradient_in(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of losses in the images."""
    return there(
        torch.autograd.grad(value, x, allow_unused=True)[0] if value.requires_grad else None
    )


def there(gradient: Tensor | None) -> Tensor:
    """Refuse a model that has no gradients."""
    if gradient is None:
        raise InputError(
            "the model's logits have no gradient in its input: it detaches or rounds on the way. "
            "Use square, which needs none"
        )
    return gradient


def columns(function: Classifier, x: Tensor) -> tuple[Tensor, Iterator[Tensor | None]]:
    """A function of images, ``(N, K)``, and one by one the gradients of its columns; None
    where there is none.

    They share one pass, unless the model is compiled: then its pass can be gone
    back through only once.
    """
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        values = function(x.clone())
        sums = values.sum(dim=0).unbind()

    def gradient(k: int) -> Tensor | None:
        if not sums[k].requires_grad:
            return None
        try:
            return torch.autograd.grad(sums[k], x, retain_graph=True, allow_unused=True)[0]
        except RuntimeError as error:
            if "donated buffers" not in str(error):
                raise
        with torch.enable_grad():
            again = function(x.clone())[:, k].sum()
        return torch.autograd.grad(again, x, allow_unused=True)[0]

    return values.detach(), map(gradient, range(len(sums)))


@dataclass(frozen=True)
class BatchedSearch(Attack):
    """An attack as a machine that moves many points at once."""

    eps: float = 8 / 255
    norm: str = "Linf"
    steps: int = field(default=100, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    patient = False
    """Whether a hit must wait for the job's end (a randomised model may answer
    otherwise the next time)."""
    strides = (5, 10)
    """Steps between two looks at the lanes: on the CPU, and where looking means
    waiting for a device."""

    def __post_init__(self) -> None:
        ball(self.norm, self.eps)
        if self.steps < 1:
            raise InputError(f"{self.name} needs at least 1 step, got {self.steps}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that tables use."""

    @property
    def threat(self) -> Threat:
        return ball(self.norm, self.eps)

    def jobs(self, classes: int) -> int:  # noqa: ARG002 — some have one for each target
        """How many runs a point gets: restarts and targets."""
        return 1

    def check(self, x: Tensor, classes: int) -> None:
        """Refuse images or models that this search cannot work on, before anything is computed."""

    def within(self, lanes: int) -> BatchedSearch:  # noqa: ARG002
        """The same search, that evaluates no more than so many images at a time."""
        return self

    def evaluations(self) -> int:
        """Evaluations of the model in one job."""
        return self.steps

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image that withstands."""
        return self.jobs(classes) * self.evaluations()

    @abstractmethod
    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        """Fresh lanes for points ``x``, each about to run its job number ``job``; ``keys``
        belong to point and job."""

    @abstractmethod
    def step(self, model: Classifier, state: State) -> State:
        """One evaluation of every lane, or several; waits for nothing on the device."""

    def advance(self, model: Classifier, state: State) -> State:
        """A step of the lanes that have evaluations left; the others keep what they found."""
        over, new = state["t"] >= self.evaluations(), self.step(model, state)
        return new | {
            key: torch.where(wide(over, new[key]), state[key], new[key])
            for key in ("t", "hit", "found")
        }

    def refute(self, state: State, lanes: Tensor) -> None:
        """The model itself does not agree that these lanes were hits: go on."""
        state["hit"][lanes] = False
