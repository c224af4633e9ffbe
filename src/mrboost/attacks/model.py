"""The model under attack: how it is put into eval mode and left as it was, and its gradients in the
images.

Of a function, the networks that it holds or names are put into eval mode too.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType

import torch
from torch import Tensor, nn

from mrboost.errors import InputError

Classifier = Callable[[Tensor], Tensor]
# Images ``(N, …)`` in [0, 1] to logits ``(N, K)``: an ``nn.Module`` or any differentiable function.
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
        raise InputError(f"{problem} on the way. Use square, which needs none")
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
