"""A copy of a network that answers as it does, sooner: what attacks and searches run on.

``quick`` traces the network and makes a copy with BatchNorm folded into the layers before it, in
channels-last memory, with less to do around pooling and the images, or on a CUDA device in half
precision with convolutions and what follows them fused. Its weights need no gradient. A copy is
used only where it answers as the network does, gradients included; otherwise the network itself is.
``refresh`` brings a copy up to the present weights of a network that is being trained, in place.
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
from mrboost.ensemble import Ensemble, Mixture
from mrboost.seeds import keep_random_state
from mrboost.threat import wide

from .fusing import (
    fold_batch_norm,
    fuse_norm_relu,
    fuse_relu,
    fuse_sums,
    pool_before_relu,
    thin_inputs,
)

Model = Callable[[Tensor], Tensor]
Pass = Callable[[fx.GraphModule], object]

_SAMPLE = 8
_LARGE = 64.0
"""Gradients enter the half-precision network with this as their largest entry."""


def quick(model: Model, x: Tensor, size: int = _SAMPLE) -> Model:
    """A faster copy that answers as ``model`` (in eval mode) does on images like ``x``,
    or the model itself.

    The copy is tried on ``size`` images at once: a device that is ready for so
    many is so from then on.
    """
    if not isinstance(model, nn.Module) or x.dtype != torch.float32 or x.ndim != 4:
        return model
    sample = x[:: max(1, len(x) // _SAMPLE)][:_SAMPLE]
    rows = torch.arange(max(size, len(sample)), device=x.device) % len(sample)
    with keep_random_state(x.device):
        if _draws(model, sample):
            return model
    wanted = _answer(model, sample)
    for passes in (
        ((fuse_relu, fuse_sums, fuse_norm_relu), (fuse_relu,), ())
        if x.is_cuda
        else ((pool_before_relu, thin_inputs), ())
    ):
        try:
            # Where a traced network fails, torch prints its source
            with redirect_stderr(StringIO()):
                copy = _copy(model, half=x.is_cuda, passes=passes)
                answer = _answer(copy, sample[rows])
            logits, gradient = (
                (mine - theirs[rows]).norm() / theirs[rows].norm().clamp(min=1e-12)
                for mine, theirs in zip(answer, wanted, strict=True)
            )
            # Gradients too: tracing loses a backward pass of the model's own, such as a
            # straight-through estimator.
            close = (
                bool(logits < 2e-2 and gradient < 0.2)
                if x.is_cuda
                else bool(logits < 1e-4 and gradient < 1e-2)
            )
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a stranger's model does that tracing cannot follow
            continue
        if close:
            return copy
    return model


def _draws(model: Model, x: Tensor) -> bool:
    """Whether it draws random numbers: from a global stream, which has moved then, or such
    that its answers differ.

    A traced copy would make one draw for ever.
    """
    before = _streams(x.device)
    with torch.no_grad():
        answers = [model(x.clone()) for _ in range(8)]
    return _streams(x.device) != before or not all(
        torch.equal(answers[0], other) for other in answers[1:]
    )


def _streams(device: torch.device) -> list[object]:
    """Where the global random streams are that a model may draw from."""
    states = [
        torch.get_rng_state(),
        *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else []),
    ]
    return [
        *(state.numpy().tobytes() for state in states),
        random.getstate(),
        str(np.random.get_state(legacy=False)),
    ]


def refresh(copy: Model) -> None:
    """Bring a copy, or all copies in an ensemble, up to the present weights of
    what they are copies of."""
    for part in copy.modules() if isinstance(copy, nn.Module) else ():
        if isinstance(part, Copy):
            part.refresh()


def _answer(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient in the images of a fixed mixture of them; zero
    where there is none."""
    x = x.clone().requires_grad_(True)
    with torch.enable_grad():
        logits = model(x.clone())
        mixture = (logits * torch.arange(1.0, logits.shape[1] + 1, device=x.device).cos()).sum()
    gradient = (
        torch.autograd.grad(mixture, x, allow_unused=True)[0] if mixture.requires_grad else None
    )
    return logits.detach(), torch.zeros_like(x) if gradient is None else gradient


def _copy(model: nn.Module, *, half: bool, passes: Sequence[Pass]) -> nn.Module:
    if not isinstance(model, Ensemble | Mixture):
        return Copy(model, half=half, passes=passes)
    members = [_copy(member, half=half, passes=passes) for member in model]
    # To the members' device: the weights of an ensemble that was put together of
    # them may lie elsewhere.
    return type(model)(members, model.weights.tolist()).to(device_of(model)).eval()


class Copy(nn.Module):
    """A traced network without BatchNorm; in half precision inside, if asked to be,
    and float32 outside."""

    def __init__(
        self, source: nn.Module, *, half: bool = False, passes: Sequence[Pass] = ()
    ) -> None:
        super().__init__()
        network = deepcopy(source).eval()
        for part in network.modules():
            # A hook that looks on would see the tracing; one that matters shows in quick
            part._forward_hooks.clear()
        network = fx.symbolic_trace(network)
        folded = fold_batch_norm(network)
        for one in passes:
            one(network)
        network.recompile()
        network.delete_all_unused_submodules()
        network.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = _halve(network) if half else network
        self.half_precision = half
        self.eval()
        mine, theirs = (
            dict(
                [
                    *m.named_parameters(remove_duplicate=False),
                    *m.named_buffers(remove_duplicate=False),
                ]
            )
            for m in (network, source)
        )
        self._folds = [
            _Fold(
                mine.pop(f"{layer}.weight"),
                mine.pop(f"{layer}.bias"),
                source.get_submodule(layer),
                norm,
            )
            for layer, norm in ((layer, source.get_submodule(norm)) for layer, norm in folded)
        ]
        if lost := [
            name
            for name, value in mine.items()
            if isinstance(value, nn.Parameter) and name not in theirs
        ]:
            raise ValueError(f"a copy cannot follow {lost[0]}")
        same = [name for name in mine if name in theirs]
        self._same = [mine[name] for name in same], [theirs[name] for name in same]

    @torch.no_grad()
    def refresh(self) -> None:
        for fold in self._folds:
            fold()
        torch._foreach_copy_(*self._same)

    def forward(self, x: Tensor) -> Tensor:
        if not self.half_precision:
            return self.network(x.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]
        scales: list[Tensor] = []
        logits = self.network(_Enter.apply(x, scales))  # type: ignore[no-untyped-call]
        return _Leave.apply(logits, scales)  # type: ignore[no-untyped-call, no-any-return]


def _halve(network: nn.Module) -> nn.Module:
    """In half precision, but for what is left of BatchNorm, whose variances half
    precision does not hold."""
    for part in network.modules():
        if "running_var" not in dict(part.named_buffers(recurse=False)):
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                tensor.data = tensor.data.half() if tensor.is_floating_point() else tensor.data
    return network


class _Fold:
    """A layer's weights with those of the BatchNorm after it: w γ/σ and (b − μ) γ/σ + β."""

    def __init__(self, weight: Tensor, bias: Tensor, layer: Any, norm: Any) -> None:
        self.weight, self.bias, self.layer, self.norm = weight, bias, layer, norm

    def __call__(self) -> None:
        layer, norm = self.layer, self.norm
        scale = (norm.running_var + norm.eps).rsqrt_()
        if norm.weight is not None:
            scale *= norm.weight
        mean = norm.running_mean if layer.bias is None else norm.running_mean - layer.bias
        torch.mul(layer.weight, wide(scale, self.weight), out=self.weight)
        self.bias.copy_(
            -mean * scale if norm.bias is None else torch.addcmul(norm.bias, mean, scale, value=-1)
        )


class _Enter(torch.autograd.Function):
    """Into half precision; gradients come back scaled to what they were, and without what
    overflowed on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return x.to(torch.half, memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = wide(ctx.scales[-1], gradient)
        return (gradient * scale).nan_to_num_(0.0, 0.0, 0.0), None  # in float32, as the scale is


class _Leave(torch.autograd.Function):
    """Out of half precision; each example's gradient is scaled to what half precision holds."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return logits.float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = gradient.abs().amax(dim=1).clamp(min=1e-30) / _LARGE
        ctx.scales.append(scale)
        return (gradient / scale[:, None]).half(), None
