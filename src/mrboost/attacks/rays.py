r"""RayS: a search that asks for labels alone.

An image is tried along rays, ``clip(x + r d)`` with a sign for each pixel, ``d`` in {−1, 1}^n. For
each ray there is a least radius r at which the model errs, and the search is for a ray where that
is at most eps. It starts at d = 1 and turns the signs of one block of pixels after the other, of
all of them at first and of half as many in each round:

- a ray on which the model is right at the least radius so far is no better, and costs one query;
- on another the radius is found by bisection, and the search goes on from there.

It needs neither gradients nor scores, so that nothing in the model can mask them.

Chen & Gu, "RayS: a ray searching method for hard-label adversarial attack", KDD 2020. Here the
bisection of a ray begins at eps, below which nothing more is asked, and a round of single pixels
is followed by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.files import State
from mrboost.threat import wide

from .survivors import Search, mistaken


@dataclass(frozen=True)
class RayS(Search):
    """The nearest mistake along rays of ±1, by the model's labels alone.

    Args:
        eps, norm: the ball, "Linf".
        steps: queries of each image.
        tolerance: to which radii are found, as a share of eps.

    Example:
        >>> x_adv = RayS(eps=8 / 255, steps=2000)(model, x, y)  # doctest: +SKIP
    """

    steps: int = field(default=10_000, kw_only=True)
    tolerance: float = field(default=0.02, kw_only=True)

    cpu_stride = 10
    cuda_stride = 25
    uses_gradients = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "Linf":
            problem = f"rays searches Linf balls, got norm {self.norm!r}"
            raise InputError(f"{problem}: use square, or foolbox's HopSkipJumpAttack for labels")

    @property
    def name(self) -> str:
        return "rays"

    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        zero = x.new_zeros(len(x))
        return {
            "found": x,
            "ray": torch.ones_like(x),
            "radius": zero + 1,  # all of the box
            "low": zero,
            "bisects": torch.zeros_like(y, dtype=torch.bool),
            "first": torch.zeros_like(y),
            "size": torch.zeros_like(y),  # of the block that is turned: none at first
        }

    def step(self, model: Classifier, state: State) -> State:
        """One query of each lane: whether a ray with another block is better, or how good it is."""
        s = state
        x, radius, bisects = s["x"], s["radius"], s["bisects"]
        ray = torch.where(wide(bisects, x), s["ray"], self._turned(s))
        middle = (s["low"] + radius) / 2
        at_eps = (s["low"] < self.eps) & (radius > self.eps)
        length = torch.where(bisects, torch.where(at_eps, self.eps, middle), radius)
        trial = (x + ray * wide(length, x)).clamp(0, 1)
        with torch.no_grad():
            wrong = mistaken(model(trial.clone()), s)
        radius = torch.where(wrong, length, radius)
        low = torch.where(bisects & ~wrong, length, torch.where(bisects, s["low"], 0))
        ray = torch.where(wide(wrong, x), ray, s["ray"])
        goes_on = torch.where(bisects, radius - low > self.tolerance * self.eps, wrong)
        first, size = self._next_block(s)
        hit = wrong & (length <= self.eps)
        near = (x + self.eps * ray).clamp(0, 1)
        return s | {
            "t": s["t"] + 1,
            "hit": s["hit"] | hit,
            "found": torch.where(wide(s["hit"] & ~hit, x), s["found"], near),
            "ray": ray,
            "radius": radius,
            "low": low,
            "bisects": goes_on,
            "first": torch.where(goes_on, s["first"], first),
            "size": torch.where(goes_on, s["size"], size),
        }

    def _turned(self, state: State) -> Tensor:
        """The ray with the other sign in the block."""
        ray = state["ray"]
        pixel = torch.arange(ray[0].numel(), device=ray.device)
        first, size = state["first"][:, None], state["size"][:, None]
        inside = (pixel >= first) & (pixel < first + size)
        return torch.where(inside.view_as(ray), -ray, ray)

    def _next_block(self, state: State) -> tuple[Tensor, Tensor]:
        """The first pixel and the size of the block after this one."""
        pixels = state["ray"][0].numel()
        size, after = state["size"], state["first"] + state["size"]
        over = after >= pixels
        half = torch.where(size == 0, pixels, (size + 1) // 2)
        return torch.where(over, 0, after), torch.where(over | (size == 0), half, size)
