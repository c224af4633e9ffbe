"""CUDA graphs: what may happen while one is captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from mrboost.speed.graphs import Graph


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """The garbage collector runs as often as it can."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("eager_collector")
def test_an_old_graph_in_a_cycle_is_not_destroyed_while_another_is_captured() -> None:
    x = torch.ones(3, device="cuda")
    gc.disable()
    old: list[object] = [Graph(lambda: x + 1)]
    old.append(old)
    del old
    gc.enable()

    def garbage() -> torch.Tensor:
        for _ in range(1000):
            cycle: list[object] = []
            cycle.append(cycle)
        return x + 2

    graph = Graph(garbage)
    graph.replay()
    assert graph.result.tolist() == [3, 3, 3]
