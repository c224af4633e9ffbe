"""Steps that are captured once as a CUDA graph, and then replayed.

To launch small kernels one by one costs more than to run them. ``Replay`` captures a step of
training, ``Engine`` the steps of a search, in a graph that has room for its lanes. The engine runs
searches on a fast copy of the model (``mrboost.speed.copies``); what they find is judged by the
model itself, so a copy can miss a success, but never invent one.
"""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mrboost.devices import halved
from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.files import State

from .copies import quick

# To capture a step takes as long as to run it so many times.
_STEPS_PER_CAPTURE = 25
Step = Callable[[Classifier, State], State]


class NotCapturedError(RuntimeError):
    """The function did something that a CUDA graph cannot hold, such as looking at a value."""


class Graph:
    """A call of a function, captured without being run; ``replay`` runs it on what its tensors
    hold by then, and overwrites ``result``.

    Args:
        function: what is captured; it takes nothing.
        generators: random generators that it draws from beside torch's own; each replay draws new
            numbers.
        pool: a graph whose memory this one uses too, so the two must not run at the same time.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        generators: Sequence[torch.Generator] = (),
        pool: Graph | None = None,
    ) -> None:
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        drawn = [*generators, torch.cuda.default_generators[torch.cuda.current_device()]]
        states = [generator.get_state() for generator in drawn]
        try:
            with (
                _no_garbage_collection(),
                torch.cuda.graph(self._graph, pool=None if pool is None else pool._graph.pool()),
            ):
                self.result = function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(stream)
            # The generators still wait for the end of the capture: they get new states.
            for generator, state in zip(drawn, states, strict=True):
                fresh = torch.Generator(generator.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            # The error at the end of the capture hides the one that broke it.
            cause = str(error.__context__ or error) or type(error).__name__
            raise NotCapturedError(cause.splitlines()[0]) from error

    def replay(self) -> None:
        self._graph.replay()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keeps Python's garbage collector from running during a capture.

    It could destroy an earlier graph that is part of a reference cycle (a step and its ``Replay``
    are one), and to destroy a graph is not permitted while another is captured: the capture breaks,
    and the next cuDNN call reports an internal error. From version 2.9 on ``torch.cuda.graph`` does
    not collect such graphs before it begins (github.com/pytorch/pytorch/pull/161037).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Replay:
    """A function of tensors that is captured and replayed from the third call with the same shapes
    on.

    The function may change tensors that outlive it (weights, statistics) in place. Numbers that
    Python draws stay what they were when it was captured, and what it returns is overwritten by the
    next call. If it cannot be captured, for example because it looks at values, it is called as it
    is from then on.

    Args:
        function: of tensors.
        generators: random generators that it draws from beside torch's own.
        say: gets messages for the user.
        strict: refuse a function that cannot be captured.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        generators: Sequence[torch.Generator],
        say: Callable[[str], None] = lambda _: None,
        *,
        strict: bool = False,
    ) -> None:
        self._function = function
        self._generators = generators
        self._say = say
        self._strict = strict
        self._graphs: dict[Hashable, tuple[Graph, tuple[Tensor, ...]]] = {}
        self._calls: Counter[Hashable] = Counter()
        self._captures = True

    def __call__(self, *tensors: Tensor, case: Hashable = None) -> Any:
        """Call the function, or replay it; ``case`` tells apart calls of equal shapes for which it
        does different things."""
        key = (case, *(tensor.shape for tensor in tensors))
        self._calls[key] += 1
        # Caches, autotuning and lazy initialisation happen outside the capture.
        if self._captures and self._calls[key] > 2 and key not in self._graphs:
            self._capture(key, tensors)
        if key not in self._graphs:
            return self._function(*tensors)
        graph, given = self._graphs[key]
        for mine, theirs in zip(given, tensors, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return graph.result

    def _capture(self, key: Hashable, tensors: tuple[Tensor, ...]) -> None:
        began = time.perf_counter()
        given = tuple(tensor.clone() for tensor in tensors)
        pool = next((graph for graph, _ in self._graphs.values()), None)
        try:
            self._graphs[key] = Graph(lambda: self._function(*given), self._generators, pool), given
        except NotCapturedError as error:
            problem = f"this step cannot be captured as a CUDA graph ({error})"
            if self._strict:
                raise InputError(f"{problem}: use --fast auto or off") from None
            self._captures = False
            self._graphs.clear()  # they knew the generators as they were before
            self._say(f"{problem}: it is slower as it is")
        else:
            seconds = time.perf_counter() - began
            self._say(f"captured the step for batches of {len(given[0])} in {seconds:.1f} s")


class Engine:
    """Advances the states of searches on a fast copy of the model.

    Args:
        model: the model under attack.
        x: its images.

    Attributes:
        model: the copy, once it is made.
        lanes: how many lanes are advanced at a time if the user does not say.
    """

    def __init__(self, model: Classifier, x: Tensor) -> None:
        self.model = model
        self.lanes = 1024 if x.is_cuda else max(16, min(1024, 2**20 // x[0].numel()))
        self._images = x
        self._copied = False
        self._captures = False
        self._graph: tuple[int, Graph, State] | None = None

    def advance(self, step: Step, state: State, count: int, search: int, left: int) -> State:
        """Several steps of all lanes.

        Args:
            step: maps a state to the next.
            state: tensors with one row for each lane; ``t`` is one of them.
            count: how many steps.
            search: a number for ``step``; a graph is only replayed for the same one.
            left: the most steps that are to come.

        Returns:
            The new state.
        """
        if not self._copied:
            self._copy(_bucket(len(state["t"])))
        if self._captures:
            try:
                with torch.cuda.device(state["t"].device):
                    return self._replay(step, state, count, search, left)
            except NotCapturedError:  # a loss that looks at values, say
                self._captures = False
                self._graph = None
            except torch.OutOfMemoryError:
                self._graph = None
                raise
        for _ in range(count):
            state = step(self.model, state)
        return state

    def _copy(self, lanes: int) -> None:
        on_cuda = self._images.is_cuda
        size = lanes if on_cuda else 1
        while not self._copied:
            try:
                copy = quick(self.model, self._images, size)
                self._copied = True
            except torch.OutOfMemoryError as error:  # for gradients of so many: few searches need
                size = halved(size, error)
        # A model that could not be copied may not bear to be captured either.
        self._captures = on_cuda and copy is not self.model
        self.model = copy

    def _replay(self, step: Step, state: State, count: int, search: int, left: int) -> State:
        lanes = len(state["t"])
        if self._graph is not None and self._graph[0] != search:
            self._graph = None  # its memory is for the next one
        if self._graph is None or not self._fits(lanes, len(self._graph[2]["t"]), left):
            self._graph = (search, *self._capture(step, _padded(state, _bucket(lanes))))
        _, graph, held = self._graph
        for name, value in state.items():
            held[name][:lanes].copy_(value)
        for _ in range(count):
            graph.replay()
        return {name: value[:lanes].clone() for name, value in held.items()}

    @staticmethod
    def _fits(lanes: int, size: int, left: int) -> bool:
        """Whether a graph is large enough, and what it wastes in the steps to come is less
        than a new one costs."""
        return lanes <= size and left * (size - _bucket(lanes)) <= _STEPS_PER_CAPTURE * size

    def _capture(self, step: Step, held: State) -> tuple[Graph, State]:
        """One step of the lanes in ``held``, in place."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Caches, autotuning and lazy initialisation happen outside the capture.
            step(self.model, held)
        torch.cuda.current_stream().wait_stream(stream)

        def in_place() -> None:
            memory = {value.untyped_storage().data_ptr() for value in held.values()}
            new = step(self.model, held)
            changed = [name for name in new if new[name] is not held[name]]
            # What is read from another entry is read before that is overwritten
            for name in changed:
                if new[name].untyped_storage().data_ptr() in memory:
                    new[name] = new[name].clone()
            for name in changed:
                held[name].copy_(new[name])

        return Graph(in_place, pool=None if self._graph is None else self._graph[1]), held


def _bucket(lanes: int) -> int:
    """The next size for which a graph is captured: few sizes, and little waste."""
    step = max(8, (1 << max(lanes - 1, 1).bit_length()) // 64)
    return math.ceil(lanes / step) * step


def _padded(state: State, size: int) -> State:
    """With copies of the first lane up to ``size``; in memory of their own."""
    return {
        key: torch.cat([value, value[:1].expand(size - len(value), *value.shape[1:])])
        for key, value in state.items()
    }
