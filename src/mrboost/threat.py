r"""Threat models: what the adversary may do to an image.

A threat is a norm ball around the clean image intersected with the box [0, 1] of valid images. All
that attacks need of a norm is here, as pure functions of tensors ``(N, …)``: a uniform draw from
the ball, the step of a given length that raises a linear function most (steepest ascent), the
projection back into ball and box, and what ``FAB`` and the searches ask for. Another norm is
another class, and its line in ``_NORMS``.

=======  ======================  ==========================================
norm     steepest ascent step    ball
=======  ======================  ==========================================
Linf     size · sign(gradient)   max |x' − x| <= eps
L2       size · gradient / ‖·‖   ‖x' − x‖₂ <= eps
=======  ======================  ==========================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from .errors import InputError, look_up
from .seeds import Randomness, random_like


class Threat(Protocol):
    """A norm ball of radius ``eps`` around an image, intersected with the box [0, 1].

    Images ``x`` are ``(N, …)``. Implemented by ``Linf`` and ``L2``; ``ball`` makes one by name.
    """

    @property
    def eps(self) -> float: ...

    @property
    def largest(self) -> float:
        """The largest radius that makes sense for images in [0, 1]."""

    def uniform(self, x: Tensor, source: Randomness = None) -> Tensor:
        """A perturbation (not an image) drawn uniformly from the ball, which may leave the box.

        Args:
            x: images, for the shape.
            source: of the random numbers.
        """

    def step(self, gradient: Tensor, size: float) -> Tensor:
        """The perturbation of length ``size`` in this norm along which a function with this
        gradient rises most; zero where the gradient is."""

    def slope(self, gradient: Tensor) -> Tensor:
        """How much such a function rises along ``step(gradient, 1)``, ``(N,)``: the dual norm."""

    def direction(self, draw: Tensor) -> Tensor:
        """A random direction, of any length, from numbers drawn uniformly from (−1, 1)."""

    def shortest(self, start: Tensor, gradient: Tensor, change: Tensor) -> Tensor:
        """The move of least length in this norm that changes a linear function by ``change``.

        Args:
            start: where the move starts, images in [0, 1], which it does not leave.
            gradient: of the linear function.
            change: one number for each image.

        Returns:
            The move; where the box does not allow the whole change, one that changes most.
        """

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """An image in the ball around ``x`` and in the box: ``x_adv`` itself, if it is one."""

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The length of ``x_adv − x`` in this norm, ``(N,)``."""


@dataclass(frozen=True)
class Linf:
    """The largest change of any pixel is at most ``eps``: ``max |x' − x| <= eps``."""

    eps: float
    largest: ClassVar[float] = 1.0

    def uniform(self, x: Tensor, source: Randomness = None) -> Tensor:
        return random_like(torch.rand, x, source).mul_(2).sub_(1).mul_(self.eps)

    def step(self, gradient: Tensor, size: float) -> Tensor:
        return gradient.sign() * size

    def slope(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).abs().sum(dim=1)

    def direction(self, draw: Tensor) -> Tensor:
        return draw

    def shortest(self, start: Tensor, gradient: Tensor, change: Tensor) -> Tensor:
        return _spread_evenly(start, gradient, change, gradient.new_ones(1, 1))

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return torch.clamp(x_adv, (x - self.eps).clamp_(min=0), (x + self.eps).clamp_(max=1))

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).abs().flatten(1).amax(dim=1)


@dataclass(frozen=True)
class L2:
    """The Euclidean length of the perturbation is at most ``eps``: ``‖x' − x‖₂ <= eps``."""

    eps: float
    largest: ClassVar[float] = math.inf

    def uniform(self, x: Tensor, source: Randomness = None) -> Tensor:
        direction = random_like(torch.randn, x, source)
        # The volume within radius r grows as r^d, so r = u^(1/d) is uniform over the ball.
        one_pixel = x[(slice(None),) + (slice(1),) * (x.ndim - 1)]
        radius = random_like(torch.rand, one_pixel, source)
        return self.step(direction, self.eps) * radius ** (1 / x[0].numel())

    def step(self, gradient: Tensor, size: float) -> Tensor:
        # The largest entry is brought to 1 first: squares of the gradients of a
        # saturated model underflow.
        tiny = torch.finfo(gradient.dtype).tiny
        largest = wide(gradient.flatten(1).abs().amax(dim=1), gradient)
        scaled = gradient / largest.clamp_(min=tiny)
        return scaled / _norms(scaled).clamp_(min=tiny) * size

    def slope(self, gradient: Tensor) -> Tensor:
        return _norms(gradient).flatten()

    def direction(self, draw: Tensor) -> Tensor:
        return torch.erfinv(draw)  # normal, up to a factor

    def shortest(self, start: Tensor, gradient: Tensor, change: Tensor) -> Tensor:
        return _spread_evenly(start, gradient, change, gradient.abs())

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        delta = x_adv - x
        # Clipping to the box moves every pixel towards x, which lies in it: the
        # ball is not left again.
        return (x + delta * (self.eps / _norms(delta).clamp_(min=self.eps))).clamp_(0, 1)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return _norms(x_adv - x).flatten()


_NORMS: dict[str, Callable[[float], Threat]] = {"Linf": Linf, "L2": L2}


def ball(norm: str, eps: float) -> Threat:
    """The threat model of a norm and a radius.

    Args:
        norm: "Linf" or "L2".
        eps: the radius, in units of images in [0, 1].

    Example:
        >>> ball("Linf", 0.5).project(torch.tensor([[2.0, 0.3]]), torch.tensor([[0.2, 0.2]]))
        tensor([[0.7000, 0.3000]])
    """
    kind = look_up("norm", str(norm), _NORMS)
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise InputError(f"eps must be a plain number, got {eps!r}: write 8 / 255 or float(eps)")
    if not 0 < eps < float("inf"):
        raise InputError(f"eps must be positive and finite, got {eps!r}: 8/255 is usual")
    found = kind(eps)
    if eps > found.largest:
        raise InputError(f"eps must be in (0, 1], got {eps!r}: divide grey levels by 255")
    return found


def radius(eps: object) -> float:
    """A plain number for what may be a fraction, or a number of numpy's or torch's."""
    try:
        if not isinstance(eps, str | bool):
            return float(eps)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # torch's, of several numbers
        pass
    raise InputError(f"eps must be a number, got {eps!r}: write 8 / 255, say")


_NEWTON_STEPS = 7
_FAR = 1e30  # λ where no pixel has room left: further than any


def _spread_evenly(start: Tensor, gradient: Tensor, change: Tensor, pace: Tensor) -> Tensor:
    """``shortest`` in a norm in which each pixel moves λ times its ``pace``, up to the box.

    How far that changes the linear function is concave and piecewise linear in λ, so Newton's
    method from λ = 0 climbs to the solution without overshooting and without sorting the pixels.
    """
    pixels, slopes, pace = start.flatten(1), gradient.flatten(1), pace.flatten(1)
    way = slopes.sign() * change.sign()[:, None]
    room = torch.where(way > 0, 1 - pixels, pixels)
    steepness = slopes.abs()
    rate = steepness * pace  # how much a pixel changes the function for each unit of λ
    full = room / pace  # the λ at which it meets the box
    most = steepness * room  # how much it has changed the function by then
    wanted = change.abs()[:, None]
    spent = torch.zeros_like(wanted)  # λ
    for _ in range(_NEWTON_STEPS):
        free = full > spent
        total_rate = (rate * free).sum(dim=1, keepdim=True)
        reached = spent * total_rate + (most * ~free).sum(dim=1, keepdim=True)
        missing = (wanted - reached).clamp(min=0)
        spent = torch.where(total_rate > 0, spent + missing / total_rate, _FAR)
    return (way * torch.minimum(spent * pace, room)).view_as(start)


def _norms(delta: Tensor) -> Tensor:
    """Euclidean norm of each example, shaped to broadcast against the batch."""
    return wide(delta.flatten(1).square().sum(dim=1).sqrt(), delta)


def wide(values: Tensor, like: Tensor) -> Tensor:
    """One value per example, ``(N,)``, shaped to broadcast against a batch ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))
