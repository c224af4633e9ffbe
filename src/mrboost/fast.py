"""Steps as fast as the device gives them: captured once as a CUDA graph, and replayed.

Launching small kernels one by one costs more than running them. ``Replay`` does that for a step of training, and
``Engine`` for the steps of a search between two looks at its lanes, one graph for each batch size. What a search finds
on a copy (``mrboost.copies``) is judged by the model: a copy can cost successes, never invent one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from .copies import Model, quick
from .errors import InputError

State = dict[str, Tensor]
Step = Callable[[Model, State], State]


class Replay:
    """A function of tensors that, from the third call with the same shapes on, is captured and replayed.

    The function may change tensors that outlive it (weights, statistics) in place, and draw from ``generators`` or from
    torch's own; it may not look at values, and numbers that Python draws stay what they were when it was captured. What
    it returns is overwritten by the next call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        generators: Sequence[torch.Generator],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._function, self._generators, self._say = function, generators, say
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any]] = {}
        self._calls: Counter[Hashable] = Counter()

    def __call__(self, *tensors: Tensor, case: Hashable = None) -> Any:
        """``case`` tells apart calls of equal shapes for which the function does different things."""
        key = (case, *(tensor.shape for tensor in tensors))
        self._calls[key] += 1
        if self._calls[key] <= 2:  # caches, autotuning and lazy initialisation happen outside the capture
            return self._function(*tensors)
        if key not in self._graphs:
            self._graphs[key] = self._capture(tensors)
        graph, given, result = self._graphs[key]
        for mine, theirs in zip(given, tensors, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return result

    def _capture(self, tensors: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any]:
        given = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        began = time.perf_counter()
        # One pool for all: graphs of other shapes never run at the same time.
        pool = next((other.pool() for other, _, _ in self._graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool=pool):
                result = self._function(*given)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"this step cannot be captured as a CUDA graph ({reason}): use --fast off") from None
        self._say(f"captured the step for batches of {len(given[0])} in {time.perf_counter() - began:.1f} s")
        return graph, given, result


class Engine:
    """Advances the states of searches on a quick copy of the model."""

    def __init__(self, model: Model, x: Tensor) -> None:
        self.model = quick(model, x)
        self.lanes, self.abreast = (1024, True) if x.is_cuda else (256, False)
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
