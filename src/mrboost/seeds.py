"""Random numbers that can be made again: each part of a run draws from a stream of its own.

=====================================  =========================================================
``derive``                             the seed of a stream, from a run's seed and a name
``keep_random_state``                  torch's global generators as they were, after a block
``global_stream``                      the same, and seeded for the block
``random_state, set_random_state``     torch's global generators, to save and to restore
``ImageStreams``                       a generator for each image, for the starts of attacks
``image_keys``, ``hash_keys``,         numbers as hashes of key and counter, computed on the
``uniform_from_keys``                  device for all images at once, for searches
=====================================  =========================================================

The stream of an epoch depends on its number alone, so a resumed run needs no saved generator state.
The stream of an attack depends on the seed and the image alone, so its result depends neither on
the batch that the image comes in nor on the device.

The hash is splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def derive(seed: int, *path: str | int) -> int:
    """The seed of a stream.

    Args:
        seed: of the run.
        path: what the stream is called, in as many parts as it takes.

    Returns:
        A whole number below 2**63.

    Example:
        >>> derive(0, "epoch", 1, 17)
        8670247656185416199
    """
    return _digest(repr((seed, *path)).encode())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


@contextmanager
def keep_random_state(device: torch.device) -> Iterator[None]:
    """Puts torch's global generators back at the end of a block, in which a model may draw."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def global_stream(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generators (initialisation, dropout) for a block, and puts them back."""
    with keep_random_state(device):
        # Not torch.manual_seed: it would seed devices that are not put back too.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's global generators, for ``set_random_state``."""
    state = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random.cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore what ``random_state`` returned; of another kind of device only the CPU's."""
    if "random.cpu" in state:
        torch.set_rng_state(state["random.cpu"])
    if device.type == "cuda" and "random.cuda" in state:
        torch.cuda.set_rng_state(state["random.cuda"], device)


class ImageStreams:
    """A random generator for each image of a batch, seeded by ``seed`` and the image's own bytes.

    Without a seed a new one is drawn.
    """

    def __init__(self, seed: int | None, images: Tensor) -> None:
        if seed is None:
            seed = torch.Generator().seed()
        keys = image_keys(seed, images).tolist()
        self._generators = [torch.Generator().manual_seed(key) for key in keys]

    def draw(self, kind: Callable[..., Tensor], like: Tensor) -> Tensor:
        """``kind`` (torch.rand or torch.randn) in the shape of ``like``, image by image."""
        assert len(like) == len(self._generators)
        shape = like.shape[1:]
        parts = [kind(shape, generator=each, dtype=torch.float32) for each in self._generators]
        return torch.stack(parts).to(like.device, like.dtype)


class Share:
    """Random numbers for one process's images of a batch: all processes draw for the whole batch,
    so that their number does not change what an image gets.

    Args:
        generator: in the same state in all processes.
        rank: of this process.
        world: how many processes there are.

    Attributes:
        count: how many images the batch of all processes has; to be set before a draw.
    """

    def __init__(self, generator: torch.Generator, rank: int, world: int) -> None:
        self.generator = generator
        self.rank = rank
        self.world = world
        self.count = 0

    def draw(self, kind: Callable[..., Tensor], like: Tensor) -> Tensor:
        """For images ``rank, rank + world, …`` of the batch."""
        shape = (self.count, *like.shape[1:])
        drawn = kind(shape, generator=self.generator, device=like.device, dtype=like.dtype)
        return drawn[self.rank :: self.world]


def image_keys(seed: int, images: Tensor) -> Tensor:
    """One 63-bit key for each image, from the seed and the image's own bytes."""
    content = images.detach().to("cpu", torch.float32)
    keys = [_digest(repr(seed).encode() + image.numpy().tobytes()) for image in content]
    return torch.tensor(keys, dtype=torch.int64, device=images.device)


def hash_keys(keys: Tensor, counter: Tensor) -> Tensor:
    """New keys: a hash of each key and counter."""
    return _mix(keys + counter * _GOLDEN)


def uniform_from_keys(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform random numbers in the open interval (0, 1), ``(N, *shape)``, that depend on the keys
    ``(N,)`` alone."""
    index = torch.arange(1, math.prod(shape) + 1, device=keys.device)
    # 23 bits and a half: float32 holds every such number exactly, and none is 0 or 1.
    bits = (_mix(keys[:, None] + index * _GOLDEN) >> 41) & 0x7FFFFF
    return ((bits.float() + 0.5) * 2.0**-23).view(len(keys), *shape)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def _mix(z: Tensor) -> Tensor:
    """The output function of splitmix64, in int64 arithmetic that wraps around."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


# Where random numbers come from; None is torch's global generator.
Randomness = torch.Generator | ImageStreams | Share | None


def random_like(kind: Callable[..., Tensor], like: Tensor, source: Randomness) -> Tensor:
    """Random numbers with the shape, type and device of ``like``; ``kind`` is torch.rand or
    torch.randn."""
    if isinstance(source, ImageStreams | Share):
        return source.draw(kind, like)
    return kind(like.shape, generator=source, device=like.device, dtype=like.dtype)
