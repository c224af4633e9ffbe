r"""Square attack: random search that needs no gradients.

A query changes one random square of the image and is kept if the margin falls. The square covers a
share p of the image, p = 0.8 at first and halved after 10, 50, 200, 500, 1000, 2000 and 4000
queries.

*Linf*: the search starts at vertical stripes of ±eps; a square sets its pixels to ±eps,
one sign per channel.
*L2, L1*: it starts at a grid of tiles; a query empties one square and spends its budget in another,
where it adds a bump and its negative. All sizes and places differ from image to image, so squares
are masks, and shapes come from a table.

Andriushchenko et al., "Square attack: a query-efficient black-box adversarial attack via
random search", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mrboost.ensemble import Classifier
from mrboost.errors import InputError
from mrboost.files import State
from mrboost.losses import margin
from mrboost.seeds import hash_keys, uniform_from_keys
from mrboost.threat import wide

from .survivors import Search

_MOST_QUERIES = 8  # of one lane at a time
_MOST_NUMBERS = 2**22  # in the images of all lanes' queries
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass(frozen=True)
class Square(Search):
    """Square attack with the margin as its loss.

    Args:
        eps, norm: the ball, "Linf", "L2" or "L1".
        steps: queries after the first.
        share: the first square's share of the image.
        abreast: as long as there are fewer images, several queries of each are made at a time,
            up to so many in all.
        seed: each image has its own stream.
    """

    steps: int = field(default=5000, kw_only=True)
    share: float = field(default=0.8, kw_only=True)
    abreast: int = field(default=1280, kw_only=True)

    cuda_stride = 25
    uses_gradients = False

    @property
    def name(self) -> str:
        return "square"

    def evaluations(self) -> int:
        return self.steps + 1

    def within(self, lanes: int) -> Square:
        return replace(self, abreast=lanes)

    def check(self, x: Tensor, classes: int) -> None:
        if x.ndim != 4:
            problem = f"square needs images (N, C, H, W), got shape {tuple(x.shape)}"
            raise InputError(f"{problem}: for others use apgd-ce, apgd-t and fab-t")

    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        start = _STARTS[self.norm](self, x, keys)
        return {"keys": keys, "found": start, "margin": x.new_full((len(x),), -torch.inf)}

    def step(self, model: Classifier, state: State) -> State:
        """The next queries of each lane, several at a time: most change nothing, and what follows
        the first that does is forgotten, so that it is as if each had waited for the last."""
        lanes = len(state["t"])
        room = min(self.abreast // lanes, _MOST_NUMBERS // state["x"].numel())
        ahead = max(1, min(_MOST_QUERIES, room))
        t = state["t"][:, None] + torch.arange(ahead, device=state["t"].device)
        trial = _PROPOSALS[self.norm](self, state, t)
        margins = self._margins(model, trial, state, ahead)
        searching = ~state["hit"][:, None] & (t < self.evaluations())
        better = (margins > state["margin"][:, None]) & searching
        some = better.any(dim=1)
        first = better.byte().argmax(dim=1)
        chosen = first + torch.arange(0, lanes * ahead, ahead, device=first.device)
        margins = torch.where(some, margins.flatten()[chosen], state["margin"])
        made = torch.where(some, first + 1, ahead * ~state["hit"])
        return state | {
            "t": (state["t"] + made).clamp(max=self.evaluations()),
            "hit": margins > 0,
            "margin": margins,
            "found": torch.where(wide(some, trial), trial[chosen], state["found"]),
        }

    def _margins(self, model: Classifier, trial: Tensor, state: State, ahead: int) -> Tensor:
        """The margins of the trials, ``(N, ahead)``. On the CPU a trial that equals the image found
        so far is not evaluated again; on a device, to know which do would mean to wait for it."""
        y = state["y"].repeat_interleave(ahead, output_size=len(trial))
        if trial.device.type != "cpu":
            return self._margins_of(model, trial, y).view(-1, ahead)
        known = state["margin"].repeat_interleave(ahead)
        per_lane = trial.view(-1, ahead, *trial.shape[1:])
        changed = (per_lane != state["found"][:, None]).flatten(2).any(dim=2).flatten()
        new = (changed | known.isneginf()).nonzero().squeeze(1)
        if len(new):
            known = known.index_copy(0, new, self._margins_of(model, trial[new], y[new]))
        return known.view(-1, ahead)

    @staticmethod
    def _margins_of(model: Classifier, images: Tensor, y: Tensor) -> Tensor:
        """Margins; infinite where they are NaN, so that the judge sees the image and refuses it."""
        with torch.no_grad():
            margins = margin(model(images.clone()), y, reduction="none").to(images.dtype)
        return margins.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)

    def refute(self, state: State, lanes: Tensor) -> None:
        super().refute(state, lanes)
        # Any next trial is taken, and the search goes on from there
        state["margin"][lanes] = -torch.inf

    def _stripes(self, x: Tensor, keys: Tensor) -> Tensor:
        signs = (uniform_from_keys(keys, (x.shape[1], 1, x.shape[3])) - 0.5).sign()
        return (x + self.eps * signs.to(x.dtype)).clamp(0, 1)

    def _squares(self, state: State, t: Tensor) -> Tensor:
        """The trials of queries ``t``, ``(N, A)``, lane by lane: a square at the top or
        the bottom of the ball."""
        x = state["x"]
        channels, height, width = x.shape[1:]
        sides, _, _ = _schedule(self.steps, self.share, height, width, 1, self.norm, x.device)
        size = sides[self._query(t)].flatten()
        draw = uniform_from_keys(hash_keys(state["keys"][:, None], t).flatten(), (2 + channels,))
        # The first is the start
        inside = _windows(draw[:, :2], size, height, width) & wide(t.flatten() > 0, x)
        bottom = (x - self.eps).clamp_(min=0)[:, None]
        top = (x + self.eps).clamp_(max=1)[:, None]
        inside = inside.view(*t.shape, 1, height, width)
        up = (draw[:, 2:] > 0.5).view(*t.shape, channels, 1, 1)
        square = torch.where(up, top, bottom)
        return torch.where(inside, square, state["found"][:, None]).flatten(0, 1)

    def _tiles(self, x: Tensor, keys: Tensor) -> Tensor:
        """A grid of bumps, lying or upright, each with one sign per channel."""
        channels, height, width = x.shape[1:]
        side = max(min(height // 5, width), 1)
        rows, columns = height // side, width // side
        draw = uniform_from_keys(keys, (channels + 1, rows, columns, 1, 1))
        bump = _bumps([side], self.norm)[0].to(x.device)
        tiles = torch.where(draw[:, channels:] > 0.5, bump, bump.T)
        tiles = tiles * (draw[:, :channels] - 0.5).sign()
        grid = tiles.transpose(3, 4).reshape(len(x), channels, rows * side, columns * side)
        border = max((height - side * 5) // 2, 0)
        placed = F.pad(grid, (border, width, border, height))[..., :height, :width]
        return self._ball(placed.to(x.dtype), x)

    def _moves(self, state: State, t: Tensor) -> Tensor:
        """The same in L2 and L1: one square is emptied, and its budget spent in another."""
        x, found, keys = (
            state[key][:, None].expand(*t.shape, *state[key].shape[1:]).flatten(0, 1)
            for key in ("x", "found", "keys")
        )
        t = t.flatten()
        channels, height, width = x.shape[1:]
        sizes, kinds, table = _schedule(
            self.steps, self.share, height, width, 3, self.norm, x.device
        )
        query = self._query(t)
        draw = uniform_from_keys(hash_keys(keys, t), (5 + channels,)).to(x.dtype)
        size = sizes[query]
        kind = (2 * kinds[query] + (draw[:, 4] > 0.5))[:, None, None]
        fill, empty = _windows(draw[:, :4], size, height, width).to(x.dtype).chunk(2, dim=1)
        row = _offsets(draw[:, :1], size, height).mT.clamp(0, table.shape[1] - 1)
        column = _offsets(draw[:, 1:2], size, width).clamp(0, table.shape[1] - 1)
        signs = (draw[:, 5:] - 0.5).sign()[:, :, None, None]
        delta = found - x
        bump = table[kind, row, column][:, None].to(x.dtype)
        new = bump * fill * signs + delta * fill / (1e-12 + self._length(delta * fill))
        new = new / (1e-12 + self._length(new)) * self._budget(delta, torch.maximum(fill, empty))
        moved = self._ball(torch.where(fill > 0, new, delta * (1 - empty)), x)
        return torch.where(wide(t == 0, x), found, moved)  # the first is the start

    def _query(self, t: Tensor) -> Tensor:
        return (t - 1).clamp(min=0, max=self.steps)

    def _length(self, delta: Tensor) -> Tensor:
        """Of each channel."""
        if self.norm == "L1":
            return delta.abs().sum(dim=(2, 3), keepdim=True)
        return delta.square().sum(dim=(2, 3), keepdim=True).sqrt()

    def _budget(self, delta: Tensor, squares: Tensor) -> Tensor:
        """The length that each channel may have in the squares: what lies there, and a share of
        what is left of the ball."""
        channels = delta.shape[1]
        if self.norm == "L1":
            spare = (self.eps - delta.abs().sum(dim=(1, 2, 3), keepdim=True)).clamp(min=0)
            return spare + channels * (delta * squares).abs().sum(dim=(2, 3), keepdim=True)
        length = delta.square().sum(dim=(1, 2, 3), keepdim=True)
        spare = (self.eps**2 - length).clamp(min=0) / channels
        return (spare + (delta * squares).square().sum(dim=(2, 3), keepdim=True)).sqrt()

    def _ball(self, delta: Tensor, x: Tensor) -> Tensor:
        """A perturbation stretched to length eps, and the box; in L1, projected on both."""
        if self.norm == "L1":
            return self.threat.project(x + delta, x)
        return (x + self.threat.step(delta, self.eps)).clamp(0, 1)


_STARTS = {"Linf": Square._stripes, "L2": Square._tiles, "L1": Square._tiles}
_PROPOSALS = {"Linf": Square._squares, "L2": Square._moves, "L1": Square._moves}


def _windows(places: Tensor, size: Tensor, height: int, width: int) -> Tensor:
    """``(N, P, H, W)``: true in squares of each lane's size at P places, each given by
    two numbers in (0, 1)."""
    row = _offsets(places[:, ::2], size, height)
    column = _offsets(places[:, 1::2], size, width)
    side = size[:, None, None]
    in_row = (row >= 0) & (row < side)
    in_column = (column >= 0) & (column < side)
    return in_row[..., None] & in_column[:, :, None]


def _offsets(places: Tensor, size: Tensor, length: int) -> Tensor:
    """``(N, P, length)``: the distance of each pixel from the first one of the square."""
    first = (places * (length - size)[:, None]).long()
    return torch.arange(length, device=places.device) - first[..., None]


@lru_cache
def _schedule(
    steps: int, share: float, height: int, width: int, least: int, norm: str, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """For each query the side of its square (odd where ``least`` is 3) and the number of
    its bumps in the table."""
    sides = []
    for query in range(steps + 1):
        part = share / 2 ** sum(query > bound for bound in _HALVINGS)
        side = max(round(math.sqrt(part * height * width)), least)
        side += least == 3 and side % 2 == 0
        sides.append(min(side, height, width))
    kinds = sorted(set(sides))
    numbers = [kinds.index(side) for side in sides]
    bumps = _bumps(kinds, norm)
    pairs = torch.stack([bumps.mT, bumps], dim=1).flatten(0, 1)  # lying and upright
    return torch.tensor(sides).to(device), torch.tensor(numbers).to(device), pairs.to(device)


def _bumps(sides: Sequence[int], norm: str) -> Tensor:
    """A bump and below it its negative, of length 1, for each side, in the corner of the
    largest one's square."""
    table = torch.zeros(len(sides), max(sides), max(sides))
    for place, side in zip(table, sides, strict=True):
        half = side // 2
        place[:half, :side] = _bump(half, side, norm)
        place[half:side, :side] = -_bump(side - half, side, norm)
        place /= place.abs().sum() if norm == "L1" else place.norm()
    return table


def _bump(height: int, width: int, norm: str) -> Tensor:
    """Nested squares around the centre, the k-th adding 1/k² (in L1 1/k⁴), scaled to length 1."""
    power = 4 if norm == "L1" else 2
    total = torch.zeros(height, width)
    top, left = height // 2, width // 2
    for k in range(max(height // 2, width // 2) + 1):
        inside = slice(max(top - k, 0), top + k + 1), slice(max(left - k, 0), left + k + 1)
        total[inside] += 1 / (k + 1) ** power
    length = total.sum() if norm == "L1" else total.square().sum().sqrt()
    return total / length.clamp(min=1e-12)
