"""Faster copies of networks, on which attacks and searches run.

``quick`` traces a network and makes a copy of it. BatchNorm is folded into the layers before it,
memory is channels-last, and the weights need no gradient. On the CPU there is less to compute
around pooling and the images; on a CUDA device the copy is in half precision, and convolutions are
fused with what follows them (``fusing.py``). A copy is used only if it answers as the network does,
gradients included; otherwise the network itself is.

``refresh`` gives a copy the present weights of a network that is being trained, in place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from mrboost.devices import device_of
from mrboost.ensemble import Classifier, Ensemble, Mixture
from mrboost.seeds import keep_random_state, random_state
from mrboost.threat import wide

from . import fusing

Answer = tuple[Tensor, Tensor]  # logits, and a gradient in the images
Pass = Callable[[fx.GraphModule], object]

# Images on which a copy is compared with the network.
_SAMPLE = 8
# Gradients enter the half-precision network with this as their largest entry.
_LARGEST_GRADIENT = 64.0
# Passes over the traced network, the fastest first; the others are for networks that these do not
# suit.
_CPU_PASSES: Sequence[Sequence[Pass]] = ((fusing.pool_before_relu, fusing.thin_inputs), ())
_CUDA_PASSES: Sequence[Sequence[Pass]] = (
    (fusing.fuse_relu, fusing.fuse_sums, fusing.fuse_norm_relu),
    (fusing.fuse_relu,),
    (),
)


def quick(model: Classifier, x: Tensor, size: int = _SAMPLE) -> Classifier:
    """A faster copy that answers as the model does.

    Args:
        model: a network in eval mode.
        x: images like those that it will see.
        size: on how many images at once the copy is tried; the device is prepared for so many then.

    Returns:
        The copy; the model itself where none answers alike, or where it draws random numbers.
    """
    if not isinstance(model, nn.Module) or x.dtype != torch.float32 or x.ndim != 4:
        return model
    sample = x[:: max(1, len(x) // _SAMPLE)][:_SAMPLE]
    rows = torch.arange(max(size, len(sample)), device=x.device) % len(sample)
    with keep_random_state(x.device):
        if _draws(model, sample):
            return model
    wanted = _answer(model, sample)
    for passes in _CUDA_PASSES if x.is_cuda else _CPU_PASSES:
        try:
            # Where a traced network fails, torch prints its source.
            with redirect_stderr(StringIO()):
                copy = _copy(model, half=x.is_cuda, passes=passes)
                answer = _answer(copy, sample[rows])
            if _is_close(answer, wanted, rows):
                return copy
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a user's model does that tracing cannot follow
            continue
    return model


def _is_close(answer: Answer, wanted: Answer, rows: Tensor) -> bool:
    """Whether a copy answers as the model: logits, and gradients, since tracing loses a backward
    pass of the model's own, such as a straight-through estimator."""
    logits, gradient = (
        (mine - theirs[rows]).norm() / theirs[rows].norm().clamp(min=1e-12)
        for mine, theirs in zip(answer, wanted, strict=True)
    )
    if rows.is_cuda:
        return bool(logits < 2e-2 and gradient < 0.2)
    return bool(logits < 1e-4 and gradient < 1e-2)


def _draws(model: Classifier, x: Tensor) -> bool:
    """Whether the model draws random numbers: its answers differ, or a global generator has moved.

    A traced copy would repeat one draw for ever.
    """
    before = _generator_states(x.device)
    with torch.no_grad():
        first, *others = [model(x.clone()) for _ in range(8)]
    moved = _generator_states(x.device) != before
    return moved or not all(torch.equal(first, other) for other in others)


def _generator_states(device: torch.device) -> list[object]:
    """Of the global random generators that a model may draw from."""
    states = [state.numpy().tobytes() for state in random_state(device).values()]
    return [*states, random.getstate(), str(np.random.get_state(legacy=False))]


def refresh(copy: Classifier) -> None:
    """Give a copy, or all copies in an ensemble, the present weights of their networks."""
    for part in copy.modules() if isinstance(copy, nn.Module) else ():
        if isinstance(part, Copy):
            part.refresh()


def _answer(model: Classifier, x: Tensor) -> Answer:
    """Logits, and the gradient in the images of a fixed combination of them; zero
    where there is none."""
    x = x.clone().requires_grad_(True)
    with torch.enable_grad():
        logits = model(x.clone())
        total = (logits * torch.arange(1.0, logits.shape[1] + 1, device=x.device).cos()).sum()
    if not total.requires_grad:
        return logits, torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(total, x, allow_unused=True, materialize_grads=True)
    return logits.detach(), gradient


def _copy(model: nn.Module, *, half: bool, passes: Sequence[Pass]) -> nn.Module:
    if not isinstance(model, Ensemble | Mixture):
        return Copy(model, half=half, passes=passes)
    members = [_copy(member, half=half, passes=passes) for member in model]
    # On the members' device: the weights of an ensemble may lie elsewhere.
    return type(model)(members, model.weights.tolist()).to(device_of(model)).eval()


class Copy(nn.Module):
    """A traced network without BatchNorm; in half precision inside, if asked to be,
    and float32 outside.

    Args:
        source: the network.
        half: whether it computes in half precision.
        passes: what is done to the traced network.
    """

    def __init__(
        self, source: nn.Module, *, half: bool = False, passes: Sequence[Pass] = ()
    ) -> None:
        super().__init__()
        network = deepcopy(source).eval()
        for part in network.modules():
            # A hook that watches would see the tracing; ``quick`` sees one that changes answers.
            part._forward_hooks.clear()
        network = fx.symbolic_trace(network)
        folded = fusing.fold_batch_norm(network)
        for one in passes:
            one(network)
        network.recompile()
        network.delete_all_unused_submodules()
        network.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = _halve(network) if half else network
        self.half_precision = half
        self.eval()
        mine, theirs = _tensors(network), _tensors(source)
        self._folds: list[tuple[Tensor, Tensor, Any, Any]] = []
        for layer, norm in folded:
            weight, bias = mine.pop(f"{layer}.weight"), mine.pop(f"{layer}.bias")
            networks = source.get_submodule(layer), source.get_submodule(norm)
            self._folds.append((weight, bias, *networks))
        for name, value in mine.items():
            if isinstance(value, nn.Parameter) and name not in theirs:
                raise ValueError(f"a copy cannot follow {name}")
        same = mine.keys() & theirs.keys()
        self._same = [mine[name] for name in same], [theirs[name] for name in same]

    @torch.no_grad()
    def refresh(self) -> None:
        for fold in self._folds:
            _fold(*fold)
        torch._foreach_copy_(*self._same)

    def forward(self, x: Tensor) -> Tensor:
        if not self.half_precision:
            return self.network(x.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]
        scales: list[Tensor] = []
        logits = self.network(_ToHalf.apply(x, scales))  # type: ignore[no-untyped-call]
        return _ToFloat.apply(logits, scales)  # type: ignore[no-untyped-call, no-any-return]


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all their names."""
    parameters = network.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(network.named_buffers(remove_duplicate=False))}


def _halve(network: nn.Module) -> nn.Module:
    """Convert to half precision, but for what is left of BatchNorm, whose variances it does not
    hold."""
    for part in network.modules():
        if "running_var" not in dict(part.named_buffers(recurse=False)):
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.half()
    return network


def _fold(weight: Tensor, bias: Tensor, layer: Any, norm: Any) -> None:
    """Put a layer's weights with those of the BatchNorm after it, w γ/σ and (b − μ) γ/σ + β, into
    ``weight`` and ``bias``."""
    scale = (norm.running_var + norm.eps).rsqrt_()
    if norm.weight is not None:
        scale *= norm.weight
    mean = norm.running_mean if layer.bias is None else norm.running_mean - layer.bias
    torch.mul(layer.weight, wide(scale, weight), out=weight)
    shift = torch.zeros_like(mean) if norm.bias is None else norm.bias
    bias.copy_(torch.addcmul(shift, mean, scale, value=-1))


class _ToHalf(torch.autograd.Function):
    """To half precision; in the backward pass gradients get their scale back, and zeros for what
    overflowed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return x.to(torch.half, memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = wide(ctx.scales[-1], gradient)
        return (gradient * scale).nan_to_num_(0.0, 0.0, 0.0), None  # in float32, as the scale is


class _ToFloat(torch.autograd.Function):
    """To float32; in the backward pass each example's gradient is scaled to what half precision
    holds."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return logits.float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = gradient.abs().amax(dim=1).clamp(min=1e-30) / _LARGEST_GRADIENT
        ctx.scales.append(scale)
        return (gradient / scale[:, None]).half(), None
