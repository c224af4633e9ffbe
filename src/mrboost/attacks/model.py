"""The model under attack: what is refused before anything is computed, how it is put into eval mode
and left as it was, and its gradients in the images.

Of a function, the networks that it holds or names are put into eval mode too. ``checked`` is the
block in which every attack of ours runs.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from textwrap import shorten
from types import CellType, CodeType, FunctionType, MethodType

import numpy as np
import torch
from torch import Tensor, nn

from mrboost.ensemble import Classifier, refuse_grey_levels
from mrboost.errors import InputError, NanLogitsError, UnfitError
from mrboost.losses import Loss
from mrboost.seeds import keep_random_state

LOW_PRECISION = (torch.float16, torch.bfloat16)
_MOST_ITEMS = 32  # containers of more items are taken for data, and not searched for networks


class Rounded(nn.Module):
    """A model of low precision as one of float32 images, which it rounds itself: so that
    images stay in their ball."""

    def __init__(self, model: Classifier, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype)).float()


@contextmanager
def attacked(*models: Classifier) -> Iterator[None]:
    """Within it, the models are in eval mode and their weights need no gradient; after
    it, they are as before.

    Of a function the networks that it uses are in eval mode; it may want the
    gradients of their weights.
    """
    used = [network for model in models for network in networks(model)]
    with ExitStack() as restore:
        for module in (module for network in used for module in network.modules()):
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


def networks(model: object, depth: int = 4) -> list[nn.Module]:
    """The model itself, or the networks that a function uses: those bound to it, in its closure
    or defaults, or named as globals.

    Args:
        model: a module, or any callable.
        depth: how many functions and containers deep to look.
    """
    if isinstance(model, nn.Module):
        return [model]
    found: dict[int, nn.Module] = {}
    with suppress(Exception):  # a user's object may refuse to be looked at
        for part in _parts(model) if depth else ():
            found |= {id(network): network for network in networks(part, depth - 1)}
    return list(found.values())


def _parts(value: object) -> Iterable[object]:
    """What a function, a callable object or a small container holds."""
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        owner = value.__self__
        held = [owner] if isinstance(owner, nn.Module) else vars(owner).values()
        return (value.__func__, *held)
    if isinstance(value, FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        named = [value.__globals__.get(name) for name in sorted(_global_names(value.__code__))]
        return (*captured, *named, *(value.__defaults__ or ()))
    if isinstance(value, list | tuple | dict) and len(value) <= _MOST_ITEMS:
        return value.values() if isinstance(value, dict) else value
    if callable(value) and not isinstance(value, type):
        return vars(value).values()
    return ()


def _global_names(code: CodeType) -> set[str]:
    """The globals that code and the functions inside it read.

    ``inspect.getclosurevars`` takes attributes for globals too, and leaves out inner functions.
    """
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (_global_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return names.union(*inner)


@contextmanager
def checked(model: Classifier, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """A block in which a model is attacked, and which leaves it and the random state as they were.

    Gives copies of the images and labels, and the number of classes; refuses what cannot be
    attacked.
    """
    check_batch(x, y)
    with attacked(model), keep_random_state(x.device), torch.inference_mode(False):
        x, y = x.detach().clone(), y.clone()  # tensors of inference mode cannot enter autograd
        yield x, y, check_logits(model, x, y, nan=False)


def check_batch(x: Tensor, y: Tensor) -> None:
    """Refuse what is not a batch of images in [0, 1] with integer labels."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"images and labels must be tensors, got {type(x)} and {type(y)}")
    check_dense(x, y)
    refuse_grey_levels(x)
    if x.ndim < 2 or x.numel() == 0:
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


def check_dense(*tensors: Tensor) -> None:
    """Refuse tensors that are no plain rows of values."""
    for tensor in tensors:
        if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
            raise InputError("images and labels must be dense: no nested, sparse or meta tensors")


def check_targets(targets: Tensor, y: Tensor, classes: int) -> Tensor:
    """A copy of the labels that an attack is to reach; refuses what are not labels of the model."""
    shape, dtype = tuple(targets.shape), targets.dtype
    if targets.shape != y.shape or dtype != torch.int64:
        raise InputError(f"targets must be int64 labels ({len(y)},), got {shape} of {dtype}")
    low, high = targets.min().item(), targets.max().item()
    if low < 0 or high >= classes:
        raise InputError(f"targets must lie in 0..{classes - 1}, got {low}..{high}")
    return targets.clone()


def check_logits(model: Classifier, x: Tensor, y: Tensor, *, nan: bool = True) -> int:
    """The number K of classes; refuses a model that does not answer the first image with logits
    ``(1, K)``, which may be ``nan`` or not, and labels beyond K."""
    if not callable(model) or isinstance(model, type):
        problem = f"a model is an nn.Module or a function, got {model!r}"
        raise InputError(f"{problem}: mrboost.load(folder) loads a run's")
    # Of images without channels two: a convolution would take one for an image without a batch.
    n = 2 if x.ndim == 3 else 1
    try:
        with torch.no_grad():
            logits: object = model(torch.cat([x[:1]] * n))  # copies: a model may work in place
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        says = shorten(str(error), 240)
        if isinstance(error, InputError | torch.OutOfMemoryError) or "CUDA" in says:
            raise
        given = f"shape (N, {', '.join(map(str, x.shape[1:]))}) and type {x.dtype}"
        raise UnfitError(f"the model does not take images of {given}: {says}", error) from error
    wanted = f"the model must return logits of shape (N, K) with K >= 2, for N = {n} it gave"
    if not isinstance(logits, Tensor):
        is_array = isinstance(logits, np.ndarray)
        wrapper = "BlackBox(model, tensors=True)" if is_array else "Logits(model)"
        raise InputError(f"{wanted} {type(logits).__name__}: give mrboost.models.{wrapper}")
    if logits.layout != torch.strided:
        raise InputError(f"{wanted} a tensor of layout {logits.layout}: return a dense one")
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        remedy = ""
        if logits.ndim == 1 and not logits.is_floating_point():
            remedy = " labels: give mrboost.models.BlackBox(model, classes=10, tensors=True)"
        raise InputError(f"{wanted} {tuple(logits.shape)}{remedy}")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, the model returned {logits.dtype}")
    if not nan and logits.isnan().any():
        raise NanLogitsError(0)
    classes = logits.shape[1]
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= classes:
        known = f"0..{classes - 1} for a model of {classes} classes"
        raise InputError(f"labels must lie in {known}, got {low}..{high}")
    return classes


def are_probabilities(logits: Tensor) -> bool:
    """Whether all rows look like probabilities: none negative, and a sum of one."""
    slack = max(1e-3, 8 * torch.finfo(logits.dtype).eps)
    return not (logits < 0).any() and bool(((logits.sum(dim=1) - 1).abs() < slack).all())


def drawn(model: Classifier, x: Tensor) -> str:
    """By how much the logits of the same images differ from one time to the next, as of a model
    that draws random numbers; empty if they do not."""
    with torch.no_grad():
        # A draw may be the same a few times
        first, *others = [model(x.clone()) for _ in range(10)]
    return next((text for other in others if (text := difference(first, other, 1e-4))), "")


def difference(logits: Tensor, others: Tensor, tolerance: float) -> str:
    """By how much the logits differ, if by more than this share of the logits that decide: those
    of classes ruled out are huge."""
    change = (logits - others).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).abs().max()
    size = logits.topk(min(2, logits.shape[1]), dim=1).values.abs().max()
    if not change > max(tolerance, 10 * torch.finfo(logits.dtype).eps) * size:  # nor for NaN
        return ""
    return f"by up to {change:.2g} (of {size:.2g})"


def slopes(model: Classifier, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor | None]:
    """Logits, and the largest slope of a loss in any pixel of each image; None where the logits
    have no gradient. A pass for each loss: one of a compiled model can be gone back through once.
    """
    leaf, gradient = x.clone().requires_grad_(True), None
    with torch.enable_grad():
        logits = model(leaf.clone())  # a model may work in place
        values = loss(logits, y, reduction="none")
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
    slope = None if gradient is None else gradient.flatten(1).abs().amax(dim=1)
    return logits.detach(), slope


def input_gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of losses in the images; refuses a model that has none."""
    gradient = None
    if value.requires_grad:
        gradient = torch.autograd.grad(value, x, allow_unused=True)[0]
    return check_gradient(gradient)


def check_gradient(gradient: Tensor | None) -> Tensor:
    """Refuse a model that has no gradient."""
    if gradient is None:
        problem = "the model's logits have no gradient in its input: it detaches or rounds"
        remedy = "Use square or rays, which need none, or name a differentiable surrogate"
        raise InputError(f"{problem} on the way. {remedy}")
    return gradient


def finite(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient with zeros for NaN and infinity, so that a search can go on.

    Laid out in memory as the images are, whatever the network does inside: what
    follows is faster for it.
    """
    return torch.nan_to_num(gradient, 0.0, 0.0, 0.0, out=torch.empty_like(x))


def column_gradients(function: Classifier, x: Tensor) -> tuple[Tensor, Iterator[Tensor | None]]:
    """The values ``(N, K)`` of a function of images, and the gradient of each column in turn.

    A gradient is None where the column does not depend on the images. All share one forward pass,
    unless the model is compiled: the graph of a compiled one can be used only once.
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
            # torch.compile's error has no type of its own
            if "donated buffers" not in str(error):
                raise
        with torch.enable_grad():
            again = function(x.clone())[:, k].sum()
        return torch.autograd.grad(again, x, allow_unused=True)[0]

    return values.detach(), map(gradient, range(len(sums)))
