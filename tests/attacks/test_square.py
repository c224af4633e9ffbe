"""Square: its squares and bumps, narrow images, and several queries at a time."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from mrboost.attacks import Square
from mrboost.attacks.square import _schedule
from mrboost.attacks.survivors import run
from mrboost.threat import ball


def test_square_sizes_follow_the_schedule() -> None:
    """For 32×32: p = 0.8 gives 29 pixels, then p/2, p/4 … after 10, 50, 200, 500, 1000,
    2000 and 4000 queries."""
    sides, _, _ = _schedule(5000, 0.8, 32, 32, 1, "Linf", torch.device("cpu"))
    changes = [0, *(sides.diff().nonzero().squeeze(1) + 1).tolist()]
    assert changes == [0, 11, 51, 201, 501, 1001, 2001, 4001]
    assert sides[changes].tolist() == [29, 20, 14, 10, 7, 5, 4, 3]
    odd, _, _ = _schedule(5000, 0.8, 32, 32, 3, "L2", torch.device("cpu"))
    assert odd[changes].tolist() == [29, 21, 15, 11, 7, 5, 5, 3]


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("shape", [(1, 40, 7), (3, 7, 40), (2, 1, 30), (1, 30, 1), (1, 11, 2)])
def test_square_on_narrow_images(shape: tuple[int, int, int], norm: str) -> None:
    torch.manual_seed(0)
    x, network = (
        torch.rand(5, *shape),
        nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5)),
    )
    adv = Square(0.1, norm, steps=30)(network, x, network(x).argmax(dim=1))
    assert (ball(norm, 0.1).distance(adv, x) <= 0.1 * (1 + 1e-5) + 1e-6).all()
    assert (adv != x).flatten(1).any(dim=1).all()


def test_square_perturbations_are_extreme(model, batch) -> None:
    """Linf: every pixel at ±eps or at the edge of the box; L2: on the sphere but for the box."""
    x, y = batch
    x_adv = Square(0.1, steps=30)(model, x, y)
    delta = (x_adv - x).abs()
    moved = delta.flatten(1).amax(1) > 0
    inside = torch.minimum((0.1 - delta).abs(), torch.minimum(x_adv, 1 - x_adv))
    assert inside[moved].max() < 1e-6
    far = (Square(0.7, "L2", steps=30)(model, x, y) - x).flatten(1).norm(dim=1)
    assert (far <= 0.7 + 1e-5).all()
    assert far.max() > 0.3


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.7)])
def test_square_is_as_if_each_query_waited_for_the_last(
    norm: str, eps: float, model, batch
) -> None:
    """Queries of an image run side by side, and none asks about the image that it has: the
    same images are found."""
    x, y = batch[0][:12].double(), batch[1][:12]
    twin, sizes = deepcopy(model).double(), []

    def counted(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return twin(images)

    one_by_one = run(counted, x, y, [Square(eps, norm, steps=400, abreast=12)], 0)
    assert max(sizes) <= 12
    asked = len(sizes)
    sizes.clear()
    at_once = run(counted, x, y, [Square(eps, norm, steps=400)], 0)
    assert 12 < max(sizes) <= 8 * 12
    assert len(sizes) < asked
    assert torch.equal(at_once.broken_by, one_by_one.broken_by)
    assert at_once.adv == pytest.approx(one_by_one.adv, abs=1e-12)
    assert 0 < at_once.alive.sum() < 12
