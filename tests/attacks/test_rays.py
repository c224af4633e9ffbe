"""RayS: what it finds by labels alone, beside searches that see scores and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mrboost.attacks import AutoAttack, RayS, Square
from mrboost.attacks.survivors import run
from mrboost.errors import InputError


@pytest.mark.parametrize(("share", "stands"), [(0.95, False), (1.05, True)])
def test_the_ray_of_a_linear_model_is_found(share: float, stands: bool) -> None:
    """Its nearest mistake lies along the signs of the weights; an image falls that is right by a
    little less than what eps changes there, and one stands that is right by a little more."""
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    lead = share * 0.1 * weight.abs().sum()

    def linear(images: Tensor) -> Tensor:
        score = lead + ((images - 0.5) * weight).flatten(1).sum(dim=1)
        return torch.stack([score, torch.zeros_like(score)], dim=1)

    x, y = torch.full((1, 1, 6, 6), 0.5), torch.zeros(1, dtype=torch.int64)
    found = run(linear, x, y, [RayS(0.1, steps=2000)], 0)
    assert bool(found.alive[0]) is stands
    move = found.adv[0, 0] - 0.5
    assert move.abs().max() == pytest.approx(0.1)
    assert ((move.sign() == -weight.sign()) | (weight.abs() < 0.2)).float().mean() > 0.9


def test_asks_for_labels_alone(model, batch) -> None:
    """One-hot answers give the same images as scores do, which square makes little of."""
    x, y = batch[0][:24], batch[1][:24]

    def labels(images: Tensor) -> Tensor:
        return torch.eye(10)[model(images).argmax(dim=1)]

    rays, square = RayS(0.2, steps=300), Square(0.2, steps=300)
    scores, alone = (run(net, x, y, [rays], 0) for net in (lambda z: model(z), labels))
    assert torch.equal(scores.broken_by, alone.broken_by)
    assert torch.equal(scores.adv[~scores.alive], alone.adv[~alone.alive])
    assert alone.alive.sum() < run(labels, x, y, [square], 0).alive.sum() - 4


def test_breaks_as_many_points_as_square_with_as_many_queries(model, batch) -> None:
    """Beyond the radius of the training, where both break some and leave some."""
    x, y = batch[0][:40], batch[1][:40]
    left = [
        run(model, x, y, [search], 0).alive.float().mean().item()
        for search in (
            RayS(0.15, steps=1000),
            Square(0.15, steps=1000),
            AutoAttack(0.15).searches[1],
        )
    ]
    assert 0.2 < left[0] <= left[1] + 0.05 < 1
    assert left[0] >= left[2] - 0.05, "it sees less than the gradient"


def test_finds_nothing_nearer_than_foolbox_leaves_far(model, batch) -> None:
    """HopSkipJump, with ten times the queries, is no stronger."""
    foolbox = pytest.importorskip("foolbox")
    x, y = batch[0][:8], batch[1][:8]
    theirs = foolbox.attacks.HopSkipJumpAttack(
        steps=12, max_gradient_eval_steps=200, constraint="linf"
    )
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    torch.manual_seed(0)
    found = theirs(wrapped, x, y, epsilons=0.2)[2]
    ours = ~run(model, x, y, [RayS(0.2, steps=500)], 0).alive
    assert ours.sum() >= found.sum()


def test_only_in_linf() -> None:
    with pytest.raises(InputError, match="rays searches Linf balls, got norm 'L2': use square"):
        RayS(0.5, "L2")
