"""Random streams by name: each part of a run draws from its own, derived from the one seed.

Because the stream of an epoch depends on its number alone, a resumed run needs no saved generator state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *path: str | int) -> int:
    """A seed for the stream named by ``path``, for example ``derive(0, "epoch", 1, 17)``."""
    digest = hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def global_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (initialisation, dropout) within, and put them back after."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
