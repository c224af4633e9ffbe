"""The model as a search needs it: logits and gradients in the images, as fast as the device gives them.

``quick`` makes a copy with BatchNorm folded into the convolutions, in channels-last memory and, on a CUDA device, in
half precision. A copy is used only where it answers as the model does; otherwise the model itself is. What a search
finds on a copy is judged by the model (see ``mrboost.attacks.search``): a copy can cost successes, never invent one.

``Engine`` advances the state of a search. On a CUDA device it captures the steps between two looks at the lanes as one
graph for each batch size and replays that, because launching small kernels one by one costs more than running them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn

from .ensemble import Ensemble, Mixture
from .fusing import fold_batch_norm, fuse_relu

Model = Callable[[Tensor], Tensor]
State = dict[str, Tensor]
Step = Callable[[Model, State], State]

_SAMPLE = 8
_LARGE = 64.0
"""Gradients enter the half-precision network with this as their largest entry."""


def quick(model: Model, x: Tensor) -> Model:
    """A faster copy that answers as ``model`` does on images like ``x``, or the model itself."""
    if not isinstance(model, nn.Module) or x.dtype != torch.float32 or x.ndim != 4:
        return model
    sample = x[:: max(1, len(x) // _SAMPLE)][:_SAMPLE]
    wanted = _answer(model, sample)
    if not torch.equal(wanted[0], _answer(model, sample)[0]):  # randomised: a traced copy could freeze its noise
        return model
    for build in (_half_and_fused, _half) if x.is_cuda else (_folded,):
        try:
            copy = build(model)
            logits, gradient = (
                (mine - theirs).norm() / theirs.norm().clamp(min=1e-12)
                for mine, theirs in zip(_answer(copy, sample), wanted, strict=True)
            )
            # Gradients too: tracing loses a backward pass of the model's own, such as a straight-through estimator.
            close = bool(logits < 2e-2 and gradient < 0.2) if x.is_cuda else bool(logits < 1e-4 and gradient < 1e-2)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a stranger's model does that tracing cannot follow
            continue
        if close:
            return copy
    return model


def _answer(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient in the images of a fixed mixture of them; zero where there is none."""
    x = x.clone().requires_grad_(True)
    with torch.enable_grad():
        logits = model(x)
        mixture = (logits * torch.arange(1.0, logits.shape[1] + 1, device=x.device).cos()).sum()
    gradient = torch.autograd.grad(mixture, x, allow_unused=True)[0] if mixture.requires_grad else None
    return logits.detach(), torch.zeros_like(x) if gradient is None else gradient


def _folded(model: nn.Module, passes: Sequence[Callable[[fx.GraphModule], None]] = ()) -> nn.Module:
    if isinstance(model, Ensemble | Mixture):
        copy: nn.Module = type(model)([_folded(member, passes) for member in model], model.weights.tolist())
        copy.to(model.weights.device)
    else:
        traced = fx.symbolic_trace(deepcopy(model))
        for one in (fold_batch_norm, *passes):
            one(traced)
        traced.recompile()
        traced.delete_all_unused_submodules()
        copy = traced
    copy = copy.eval().requires_grad_(False)
    return copy.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _half_and_fused(model: nn.Module) -> Model:
    return _half(model, (fuse_relu,))


def _half(model: nn.Module, passes: Sequence[Callable[[fx.GraphModule], None]] = ()) -> Model:
    """In half precision inside, float32 outside, each example's gradient scaled to what half precision holds."""
    copy = _folded(model, passes).half()

    def call(x: Tensor) -> Tensor:
        scales: list[Tensor] = []
        inside = _Enter.apply(x.contiguous(memory_format=torch.channels_last), scales)  # type: ignore[no-untyped-call]
        return _Leave.apply(copy(inside), scales)  # type: ignore[no-untyped-call, no-any-return]

    return call


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return x.half()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = ctx.scales[-1]
        return gradient.float() * scale.view(-1, *[1] * (gradient.ndim - 1)), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return logits.float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = gradient.abs().amax(dim=1).clamp(min=1e-30) / _LARGE
        ctx.scales.append(scale)
        return (gradient / scale[:, None]).half(), None


class Engine:
    """Advances the states of searches on a quick copy of the model."""

    def __init__(self, model: Model, x: Tensor) -> None:
        self.model = quick(model, x)
        self.lanes = 1024 if x.is_cuda else 256
        self._graphs: dict[tuple[int, int, int], _Graph] = {}
        self._capture = x.is_cuda and self.model is not model  # a stranger's model may not bear being captured

    def advance(self, step: Step, state: State, count: int, search: int) -> State:
        """``count`` steps; ``search`` is the number of the search that they belong to."""
        if not self._capture:
            return self._run(step, state, count)
        size = _bucket(len(state["t"]))
        key = (search, size, count)
        if key not in self._graphs:
            self._graphs = {old: graph for old, graph in self._graphs.items() if old[0] == search}  # free the others
            self._graphs[key] = _Graph(lambda given: self._run(step, given, count), _padded(state, size))
        return self._graphs[key](state)

    def _run(self, step: Step, state: State, count: int) -> State:
        for _ in range(count):
            state = step(self.model, state)
        return state


class _Graph:
    """A captured function of a state of fixed size."""

    def __init__(self, function: Callable[[State], State], example: State) -> None:
        self._given = {key: value.clone() for key, value in example.items()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(self._given)  # caches, autotuning and lazy initialisation happen outside the capture
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = function(self._given)

    def __call__(self, state: State) -> State:
        lanes = len(state["t"])
        for key, value in state.items():
            self._given[key][:lanes].copy_(value)
        self._graph.replay()
        return {key: value[:lanes].clone() for key, value in self._result.items()}


def _bucket(lanes: int) -> int:
    """The next size for which a graph is captured: steps of an eighth, so little is wasted and few graphs are made."""
    step = max(16, (1 << max(lanes - 1, 1).bit_length()) // 8)
    return -(-lanes // step) * step


def _padded(state: State, size: int) -> State:
    return {
        key: torch.cat([value, value[:1].expand(size - len(value), *value.shape[1:])]) for key, value in state.items()
    }
