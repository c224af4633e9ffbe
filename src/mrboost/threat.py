r"""Threat models: what the adversary may do to an image.

A threat is a norm ball around the clean image intersected with the box [0, 1] of valid images. All
that attacks need of a norm is here, as pure functions of tensors ``(N, …)``: a uniform draw from
the ball, the step of a given length that raises a linear function most (steepest ascent), the
projection back into ball and box, and what ``FAB`` and the searches ask for. ``Linf`` says what
each method gives. Another norm is another class, and its name in ``Threat`` and ``_NORMS``.

=======  ======================  ==========================================
norm     steepest ascent step    ball
=======  ======================  ==========================================
Linf     size · sign(gradient)   ``max |x' − x| <= eps``
L2       size · gradient / ‖·‖   ``‖x' − x‖₂ <= eps``
L1       size · signs of its     ``‖x' − x‖₁ <= eps``
         largest entries / ‖·‖
=======  ======================  ==========================================

In L1 the steepest step changes one pixel alone, which soon meets the box; as in SLIDE (Tramèr &
Boneh, "Adversarial training and robustness for multiple perturbations", 2019) the pixels of the
largest gradients share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .errors import InputError, look_up
from .seeds import Randomness, random_like


@dataclass(frozen=True)
class Linf:
    """The largest change of any pixel is at most ``eps``: ``max |x' − x| <= eps``.

    Attributes:
        largest: the largest radius that makes sense for images in [0, 1].
    """

    eps: float
    largest: ClassVar[float] = 1.0

    def uniform(self, x: Tensor, source: Randomness = None) -> Tensor:
        """A perturbation (not an image) drawn uniformly from the ball, which may leave the box.

        Args:
            x: images, for the shape.
            source: of the random numbers.
        """
        return random_like(torch.rand, x, source).mul_(2).sub_(1).mul_(self.eps)

    def step(self, gradient: Tensor, size: float) -> Tensor:
        """The perturbation of length ``size`` in this norm along which a function with this
        gradient rises most; zero where the gradient is."""
        return gradient.sign() * size

    def slope(self, gradient: Tensor) -> Tensor:
        """How much such a function rises along the steepest step of length 1, ``(N,)``: the dual
        norm."""
        return gradient.flatten(1).abs().sum(dim=1)

    def direction(self, draw: Tensor) -> Tensor:
        """A random direction, of any length, from numbers drawn uniformly from (−1, 1)."""
        return draw

    def shortest(self, start: Tensor, gradient: Tensor, change: Tensor) -> Tensor:
        """The move of least length in this norm that changes a linear function by ``change``.

        Args:
            start: where the move starts, images in [0, 1], which it does not leave.
            gradient: of the linear function.
            change: one number for each image.

        Returns:
            The move; where the box does not allow the whole change, one that changes most.
        """
        return _spread_evenly(start, gradient, change, gradient.new_ones(1, 1))

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """An image in the ball around ``x`` and in the box: ``x_adv`` itself, if it is one."""
        return torch.clamp(x_adv, (x - self.eps).clamp_(min=0), (x + self.eps).clamp_(max=1))

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The length of ``x_adv − x`` in this norm, ``(N,)``."""
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


@dataclass(frozen=True)
class L1:
    """The sum of all changes is at most ``eps``: ``Σ |x' − x| <= eps``.

    A step changes ``SHARE`` of the pixels.
    """

    eps: float
    largest: ClassVar[float] = math.inf
    SHARE: ClassVar[float] = 0.05

    def uniform(self, x: Tensor, source: Randomness = None) -> Tensor:
        # Exponential variables with signs, divided by their sum and one more of them
        tiny = torch.finfo(x.dtype).tiny
        draw = 2 * random_like(torch.rand, x, source) - 1
        sizes = -draw.abs().clamp_(min=tiny).log()
        one_pixel = x[(slice(None),) + (slice(1),) * (x.ndim - 1)]
        another = -random_like(torch.rand, one_pixel, source).clamp_(min=tiny).log()
        total = wide(sizes.flatten(1).sum(dim=1), x) + another
        return draw.sign() * sizes / total * self.eps

    def step(self, gradient: Tensor, size: float) -> Tensor:
        return sparse_step(gradient, self.SHARE) * size

    def slope(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(1).abs().amax(dim=1)

    def direction(self, draw: Tensor) -> Tensor:
        return torch.erfinv(draw)  # normal, up to a factor

    def shortest(self, start: Tensor, gradient: Tensor, change: Tensor) -> Tensor:
        # The pixels move to the end of the box one after the other, steepest first
        pixels, slopes = start.flatten(1), gradient.flatten(1)
        way = slopes.sign() * change.sign()[:, None]
        room = torch.where(way > 0, 1 - pixels, pixels)
        steepness, order = slopes.abs().sort(dim=1, descending=True)
        room_by_rank = room.gather(1, order)
        most = steepness * room_by_rank
        missing = change.abs()[:, None] - (most.cumsum(dim=1) - most)
        moves = (missing.clamp(min=0) / steepness).nan_to_num(nan=0.0)
        moves = torch.minimum(moves, room_by_rank)
        return (way * torch.empty_like(moves).scatter_(1, order, moves)).view_as(start)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return project_l1(x_adv, x, x.new_full((len(x),), self.eps))

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).abs().flatten(1).sum(dim=1)


def sparse_step(gradient: Tensor, share: Tensor | float) -> Tensor:
    """The signs of the largest entries of each gradient, as a perturbation of length 1 in L1.

    Args:
        gradient: ``(N, …)``.
        share: how many of the entries count, at least one: a number, or one for each image.
    """
    sizes = gradient.flatten(1).abs()
    count = sizes.shape[1]
    shares = torch.as_tensor(share, device=sizes.device).expand(len(sizes))
    first = ((1 - shares) * count).long().clamp(0, count - 1)
    least = sizes.sort(dim=1).values.gather(1, first[:, None])
    signs = torch.where(sizes >= least, gradient.flatten(1).sign(), 0)
    return (signs / signs.abs().sum(dim=1, keepdim=True).clamp(min=1)).view_as(gradient)


def project_l1(x_adv: Tensor, x: Tensor, radius: Tensor) -> Tensor:
    """The nearest images, in the Euclidean sense, within the box and L1 balls around ``x``.

    Each pixel gives up the same λ of its change, as long as it has some, and keeps no more than the
    box has room for. The length that is left falls with λ in linear pieces, whose ends are sorted.

    Args:
        x_adv: any images, ``(N, …)``.
        x: centres of the balls, in the box.
        radius: one for each image, ``(N,)``.
    """
    delta, eps = (x_adv - x).flatten(1), radius[:, None]
    size = delta.abs()
    room = torch.where(delta > 0, 1 - x.flatten(1), x.flatten(1))
    # A pixel leaves the edge of the box at the first of two λ, and has nothing left at the second
    leaves = (size - room).clamp_(min=0)
    ends, order = torch.cat([leaves, size], dim=1).sort(dim=1)
    slope = torch.where(order < size.shape[1], -1.0, 1.0).cumsum(dim=1, dtype=torch.float64)
    lost = (slope[:, :-1] * ends.diff(dim=1)).cumsum(dim=1)
    whole = torch.minimum(size, room).sum(dim=1, keepdim=True)
    piece = (whole + lost >= eps).sum(dim=1, keepdim=True)
    begin = ends.gather(1, piece)
    moving = (leaves <= begin) & (begin < size)
    kept = torch.where(moving, size, torch.where(leaves > begin, room, 0)).sum(dim=1, keepdim=True)
    spent = (kept - eps) / moving.sum(dim=1, keepdim=True).clamp(min=1)
    left = torch.minimum((size - torch.where(whole > eps, spent, 0)).clamp_(min=0), room)
    left = left * (eps / left.sum(dim=1, keepdim=True).clamp(min=eps))
    return (x + (delta.sign() * left).view_as(x)).clamp(0, 1)


# A ball of radius ``eps`` around an image, intersected with the box [0, 1]; ``ball`` makes one
Threat = Linf | L2 | L1
_NORMS: dict[str, Callable[[float], Threat]] = {"Linf": Linf, "L2": L2, "L1": L1}


def ball(norm: str, eps: float) -> Threat:
    """The threat model of a norm and a radius.

    Args:
        norm: "Linf", "L2" or "L1".
        eps: the radius, in units of images in [0, 1].

    Example:
        >>> ball("Linf", 0.5).project(torch.tensor([[2.0, 0.3]]), torch.tensor([[0.2, 0.2]]))
        tensor([[0.7000, 0.3000]])
    """
    kind = look_up("norm", str(norm), _NORMS)
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise InputError(f"eps must be a plain number, got {eps!r}: write 8 / 255 or float(eps)")
    if not 0 < eps <= _LARGEST:
        raise InputError(f"eps must be positive and finite, got {eps!r:.80}: 8/255 is usual")
    found = kind(eps)
    if eps > found.largest:
        raise InputError(f"eps must be in (0, 1], got {eps!r}: divide grey levels by 255")
    return found


def radius(eps: object) -> float:
    """A plain number for what may be a fraction, or a number of numpy's or torch's."""
    try:
        if not isinstance(eps, str | bool):
            return float(eps)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError, RuntimeError):  # torch's, of several numbers
        pass
    raise InputError(f"eps must be a number, got {eps!r:.80}: write 8 / 255, say")


def no_radius(attack: str) -> InputError:
    """The error where nothing says the radius of an attack."""
    usual = "8 / 255 is usual for CIFAR, 0.3 for MNIST"
    return InputError(f"give eps, the radius of {attack}: {usual}; models of mrboost.load have one")


_LARGEST = 1e15  # its square is finite in float32
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
