"""Random streams by name: each part of a run draws from its own, derived from the one seed.

Because the stream of an epoch depends on its number alone, a resumed run needs no saved generator state. Because an
attack's stream depends on the image alone, its result depends neither on the batch that the image comes in nor on the
device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def derive(seed: int, *path: str | int) -> int:
    """A seed for the stream named by ``path``, for example ``derive(0, "epoch", 1, 17)``."""
    return _digest(repr((seed, *path)).encode())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


@contextmanager
def global_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (initialisation, dropout) within, and put them back after."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class ImageStreams:
    """A random stream for each image of a batch, named by the seed and the image's own bytes."""

    def __init__(self, seed: int | None, images: Tensor) -> None:
        if seed is None:
            seed = torch.Generator().seed()
        self._generators = [
            torch.Generator().manual_seed(_digest(repr(seed).encode() + image.numpy().tobytes()))
            for image in images.detach().to("cpu", torch.float32)
        ]

    def draw(self, kind: Callable[..., Tensor], like: Tensor) -> Tensor:
        """``kind`` (torch.rand or torch.randn) in the shape of ``like``, image by image."""
        assert len(like) == len(self._generators)
        parts = [kind(like.shape[1:], generator=generator, dtype=torch.float32) for generator in self._generators]
        return torch.stack(parts).to(like.device, like.dtype)


Randomness = torch.Generator | ImageStreams | None


def random_like(kind: Callable[..., Tensor], like: Tensor, source: Randomness) -> Tensor:
    """``torch.rand`` or ``torch.randn`` values with the shape, type and device of ``like``."""
    if isinstance(source, ImageStreams):
        return source.draw(kind, like)
    return kind(like.shape, generator=source, device=like.device, dtype=like.dtype)
