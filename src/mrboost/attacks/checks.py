"""What attacks refuse before they compute anything: images, labels, models and losses.

``checked`` is the block in which every attack of ours runs.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from textwrap import shorten

import torch
from torch import Tensor, nn

from mrboost.devices import dtype_of
from mrboost.ensemble import refuse_grey_levels
from mrboost.errors import InputError, UnfitError
from mrboost.losses import Loss, kl_divergence, margin_kl_divergence
from mrboost.seeds import keep_random_state

from .model import Classifier, attacked


@contextmanager
def checked(model: Classifier, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """A block in which a model is attacked, and which leaves it and the random state as they were.

    Gives copies of the images and labels, and the number of classes; refuses what cannot be
    attacked.
    """
    check_batch(x, y)
    with attacked(model), keep_random_state(x.device), torch.inference_mode(False):
        x, y = x.detach().clone(), y.clone()  # tensors of inference mode cannot enter autograd
        yield x, y, check_logits(model, x, y)


def check_batch(x: Tensor, y: Tensor) -> None:
    """Refuse what is not a batch of images in [0, 1] with integer labels."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"images and labels must be tensors, got {type(x)} and {type(y)}")
    refuse_grey_levels(x)
    if x.ndim < 2 or len(x) == 0:
        shape = tuple(x.shape)
        raise InputError(f"images must be a batch (N, …) of at least one, got shape {shape}")
    if y.shape != x.shape[:1]:
        raise InputError(f"labels must have shape ({len(x)},), one each, got {tuple(y.shape)}")
    if y.dtype != torch.int64:
        raise InputError(f"labels must be int64 class indices, got {y.dtype}: convert with .long()")
    low, high = (bound.item() for bound in x.aminmax())
    if not (low >= 0 and high <= 1):  # also false for NaN
        problem = f"span [{low:.4g}, {high:.4g}]: rescale them, normalise inside the model"
        if math.isnan(low):
            problem = "contain NaN: replace them"
        elif max(-low, high - 1) < 1e-3:
            problem = f"go beyond it by {max(-low, high - 1):.2g}: clamp them, as x.clamp(0, 1)"
        raise InputError(f"images must lie in [0, 1], these {problem}")


def check_logits(model: Classifier, x: Tensor, y: Tensor) -> int:
    """The number K of classes; refuses a model that does not answer the first image with logits
    ``(1, K)``, and labels beyond K."""
    if not callable(model) or isinstance(model, type):
        problem = f"a model is an nn.Module or a function, got {model!r}"
        raise InputError(f"{problem}: mrboost.load(folder) loads a run's")
    # Of images without channels two: a convolution would take one for an image without a batch.
    n = 2 if x.ndim == 3 else 1
    try:
        with torch.no_grad():
            logits: object = model(torch.cat([x[:1]] * n))  # copies: a model may work in place
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        if (refusal := _refusal(error, model, x)) is None:
            raise
        raise refusal from error
    wanted = f"the model must return logits of shape (N, K) with K >= 2, for N = {n} it gave"
    if not isinstance(logits, Tensor):
        raise InputError(f"{wanted} {type(logits).__name__}: give mrboost.models.Logits(model)")
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        raise InputError(f"{wanted} {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, the model returned {logits.dtype}")
    classes = logits.shape[1]
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= classes:
        known = f"0..{classes - 1} for a model of {classes} classes"
        raise InputError(f"labels must lie in {known}, got {low}..{high}")
    return classes


# Words of an error on images that do not fit a network. For an operation on wrong shapes torch
# raises a RuntimeError as for any other fault: only its message tells them apart.
_ON_SHAPES = re.compile(r"\b(shapes?|sizes?|dim(ension)?s?|channels?|height|width|[1-5]D)\b", re.I)


def _refusal(error: Exception, model: Classifier, x: Tensor) -> InputError | None:
    """What to tell the user about an error of the model on the first image; None for an error
    that is none of his images'."""
    message = str(error)
    if isinstance(error, InputError | torch.OutOfMemoryError) or "CUDA" in message:
        return None
    if "more than 1 value per channel" in message:
        return InputError(
            "the model takes its statistics from the batch, also in eval mode, and one image has "
            "none: give its BatchNorm running statistics"
        )
    if _ON_SHAPES.search(message):
        shape = f"(N, {', '.join(map(str, x.shape[1:]))})"
        says = shorten(message, 240)
        return UnfitError(f"the model does not take images of shape {shape}: {says}", error)
    dtype = dtype_of(model, torch.float32)
    if isinstance(error, RuntimeError) and x.dtype != dtype:
        remedy = f"convert them to its own type, x.to({dtype})"
        return InputError(f"the model does not take images of {x.dtype}: {remedy}")
    return None


def are_probabilities(logits: Tensor) -> bool:
    """Whether all rows look like probabilities: none negative, and a sum of one."""
    slack = max(1e-3, 8 * torch.finfo(logits.dtype).eps)
    return not (logits < 0).any() and bool(((logits.sum(dim=1) - 1).abs() < slack).all())


def warn_of_probabilities(model: Classifier, x: Tensor) -> None:
    """Warn who calls an attack directly; ``evaluate`` has this among its doubts."""
    with attacked(model), keep_random_state(x.device), torch.no_grad():
        if are_probabilities(model(x[:8].clone())):
            problem = "the model returns probabilities, in which losses of logits are nearly flat"
            warnings.warn(f"{problem}: return logits, or take the logarithm", stacklevel=3)


def check_step_size(step_size: float | None) -> None:
    """Refuse a step that does not go forward."""
    if step_size is not None and not step_size > 0:
        raise InputError(f"step_size must be positive, got {step_size!r}: leave it out for eps/4")


def check_loss(loss: Loss, *, aimed: bool = False) -> None:
    """Refuse a loss that does not take what an attack gives it."""
    if loss in (kl_divergence, margin_kl_divergence):
        raise InputError(f"{loss.__name__} compares two batches of logits: give cross_entropy")
    call: Callable[..., object] = loss
    if isinstance(loss, nn.Module) and type(loss).__call__ is nn.Module.__call__:
        call = loss.forward
    arguments = {"reduction": "none"} | ({"other": None} if aimed else {})
    try:
        signature(call, follow_wrapped=False).bind(None, None, **arguments)
    except ValueError:  # a scripted or built-in function does not tell
        return
    except TypeError as error:
        how = "logits, y, other=…, reduction=…" if aimed else "logits, y, reduction=…"
        like = "mrboost.losses." + ("targeted_dlr" if aimed else "cross_entropy")
        problem = f"it is called as loss({how}), which this loss does not bear: {error}"
        raise InputError(f"{problem}; give one as {like} is") from None


def loss_suffix(loss: Callable[..., Tensor], plain: str = "") -> str:
    """What a loss adds to an attack's name: ``-mce``, say; nothing for the ``plain`` one."""
    name = getattr(loss, "__name__", "loss")
    if name == plain:
        return ""
    short = {"cross_entropy": "ce", "margin_cross_entropy": "mce"}
    return f"-{short.get(name, name)}"
