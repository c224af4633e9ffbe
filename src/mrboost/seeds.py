"""Random streams by name: each part of a run draws from its own, derived from the one seed.

Because the stream of an epoch depends on its number alone, a resumed run needs no saved generator
state. Because an attack's stream depends on the image alone, its result depends neither on the
batch that the image comes in nor on the device. Long searches need millions of draws for each
image: there the stream is a hash of key and counter, computed on the device for all images at once
(splitmix64: Steele et al., "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def derive(seed: int, *path: str | int) -> int:
    """A seed for the stream named by ``path``, for example ``derive(0, "epoch", 1, 17)``."""
    return _digest(repr((seed, *path)).encode())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


@contextmanager
def keep_random_state(device: torch.device) -> Iterator[None]:
    """A model that draws random numbers of its own moves the global state within; after
    it, it is as before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def global_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (initialisation, dropout) within, and put them back after."""
    with keep_random_state(device):
        # torch.manual_seed would seed devices that are not put back
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Where torch's global generators are."""
    there = {"random.cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"random.cpu": torch.get_rng_state(), **there}


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """As far as ``state`` is of this kind of device."""
    if "random.cpu" in state:
        torch.set_rng_state(state["random.cpu"])
    if device.type == "cuda" and "random.cuda" in state:
        torch.cuda.set_rng_state(state["random.cuda"], device)


class ImageStreams:
    """A random stream for each image of a batch, named by the seed and the image's own bytes."""

    def __init__(self, seed: int | None, images: Tensor) -> None:
        if seed is None:
            seed = torch.Generator().seed()
        self._generators = [torch.Generator().manual_seed(key) for key in _image_keys(seed, images)]

    def draw(self, kind: Callable[..., Tensor], like: Tensor) -> Tensor:
        """``kind`` (torch.rand or torch.randn) in the shape of ``like``, image by image."""
        assert len(like) == len(self._generators)
        parts = [
            kind(like.shape[1:], generator=generator, dtype=torch.float32)
            for generator in self._generators
        ]
        return torch.stack(parts).to(like.device, like.dtype)


class Share:
    """One process's share of what all processes draw alike, so that their number does not
    change what an image gets."""

    def __init__(self, generator: torch.Generator, rank: int, world: int) -> None:
        self.generator, self.rank, self.world, self.count = generator, rank, world, 0

    def draw(self, kind: Callable[..., Tensor], like: Tensor) -> Tensor:
        """For images ``rank, rank + world, …`` of a batch of ``count``."""
        shape = (self.count, *like.shape[1:])
        return kind(shape, generator=self.generator, device=like.device, dtype=like.dtype)[
            self.rank :: self.world
        ]


def image_keys(seed: int, images: Tensor) -> Tensor:
    """One 63-bit key for each image, from the seed and the image's own bytes."""
    return torch.tensor(_image_keys(seed, images), dtype=torch.int64, device=images.device)


def _image_keys(seed: int, images: Tensor) -> list[int]:
    content = images.detach().to("cpu", torch.float32)
    return [_digest(repr(seed).encode() + image.numpy().tobytes()) for image in content]


def hashed(keys: Tensor, counter: Tensor) -> Tensor:
    """New keys, one for each key and counter."""
    return _mix(keys + counter * _GOLDEN)


def hashed_uniform(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """Numbers in the open interval (0, 1), ``(N, *shape)``, a function of the
    keys ``(N,)`` alone."""
    index = torch.arange(1, math.prod(shape) + 1, device=keys.device)
    # With the half, all that float32 holds below 1
    bits = (_mix(keys[:, None] + index * _GOLDEN) >> 41) & 0x7FFFFF
    return ((bits.float() + 0.5) * 2.0**-23).view(len(keys), *shape)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def _mix(z: Tensor) -> Tensor:
    """The output function of splitmix64, in int64 arithmetic that wraps around."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


Randomness = torch.Generator | ImageStreams | Share | None


def random_like(kind: Callable[..., Tensor], like: Tensor, source: Randomness) -> Tensor:
    """``torch.rand`` or ``torch.randn`` values with the shape, type and device of ``like``."""
    if isinstance(source, ImageStreams | Share):
        return source.draw(kind, like)
    return kind(like.shape, generator=source, device=like.device, dtype=like.dtype)
