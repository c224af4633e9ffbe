"""ARC, the attack on randomised classifiers: its contract, and what it finds that
the gradient does not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from mrboost import Ensemble, InputError, Mixture, evaluate, robustness_curve
from mrboost.attacks import PGD
from mrboost.attacks.arc import ARC
from mrboost.threat import ball


class Halfspace(nn.Module):
    """Two classes: 0 where ``w · x > b``, with logits of the given steepness."""

    def __init__(self, w: list[float], b: float, steepness: float = 10.0) -> None:
        super().__init__()
        self.w, self.b, self.steepness = nn.Parameter(torch.tensor(w)), b, steepness

    def forward(self, x: Tensor) -> Tensor:
        margin = self.steepness * (x @ self.w - self.b)
        return torch.stack([margin / 2, -margin / 2], dim=1)


def accuracy(mixture: Mixture, x: Tensor, y: Tensor) -> float:
    return mixture.expected_correct(x, y).mean().item()


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.8)])
def test_stays_within_and_leaves_no_image_better_off(norm, eps, model, undefended, batch) -> None:
    x, y = batch
    mixture = Mixture(copy.deepcopy([model, undefended]), [0.3, 0.7]).train().requires_grad_(True)
    mixture.zero_grad()
    x_adv = ARC(eps, norm, steps=5)(mixture, x, y)
    assert all(module.training for module in mixture.modules())
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in mixture.parameters()
    )
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    assert not x_adv.requires_grad
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert (ball(norm, eps).distance(x_adv, x) <= eps * (1 + 1e-5)).all()
    mixture.eval()
    before, after = mixture.expected_correct(x, y), mixture.expected_correct(x_adv, y)
    assert (after <= before).all()
    assert after.mean() < before.mean() - 0.1
    assert torch.equal(x_adv, ARC(eps, norm, steps=5)(mixture, x, y))


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_crosses_both_boundaries_where_one_point_does(norm) -> None:
    """Members that are right for x_0 > 0.42 and for x_1 < 0.58: a corner of the ball fools both."""
    mixture = Mixture([Halfspace([1.0, 0.0], 0.42), Halfspace([0.0, -1.0], -0.58)])
    x, y = torch.full((1, 2), 0.5), torch.zeros(1, dtype=torch.int64)
    assert accuracy(mixture, x, y) == 1
    eps = 0.12
    assert accuracy(mixture, ARC(eps, norm)(mixture, x, y), y) == 0
    assert accuracy(mixture, ARC(0.05, norm)(mixture, x, y), y) == 1


def test_finds_the_member_that_the_gradient_passes_by() -> None:
    """One member's boundary is out of reach but rules the gradient; the other's is near, on the
    far side, and steep."""
    far, near = (
        Halfspace([1.0, 0.0], 0.2, steepness=5),
        Halfspace([-1.0, 0.0], -0.55, steepness=200),
    )
    mixture = Mixture([far, near])
    x, y = torch.full((1, 2), 0.5), torch.zeros(1, dtype=torch.int64)
    by_gradient = PGD(0.1, steps=100)(mixture, x, y)
    assert accuracy(mixture, by_gradient, y) == 1
    assert accuracy(mixture, ARC(0.1, step_size=0.1)(mixture, x, y), y) == 0.5


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_is_no_weaker_than_the_gradient_on_linear_members(norm) -> None:
    """Three random half-planes and many points: the faces are exact here, so a walk may be
    as long as the radius."""
    generator = torch.Generator().manual_seed(0)
    normals = torch.randn(3, 2, generator=generator).tolist()
    members = [Halfspace(w, sum(w) / 2 - 0.2, steepness=20) for w in normals]
    mixture = Mixture(members, [0.5, 0.3, 0.2])
    x, y = torch.rand(200, 2, generator=generator), torch.zeros(200, dtype=torch.int64)
    by_gradient = accuracy(mixture, PGD(0.2, norm, steps=100)(mixture, x, y), y)
    assert (
        accuracy(mixture, ARC(0.2, norm, step_size=0.2)(mixture, x, y), y)
        <= by_gradient
        < accuracy(mixture, x, y)
    )


def test_a_member_that_is_never_drawn_changes_nothing(model, undefended, batch) -> None:
    x, y = batch
    alone = ARC(0.1, steps=3)(Mixture([undefended]), x, y)
    assert torch.equal(alone, ARC(0.1, steps=3)(Mixture([undefended, model], [1.0, 0.0]), x, y))


@pytest.mark.parametrize(
    "inside", [lambda m: nn.Sequential(nn.Identity(), m), lambda m: Ensemble([m])]
)
@pytest.mark.parametrize("attack", ["pgd-20", "apgd-ce"])
def test_a_mixture_inside_a_module_is_refused(
    inside, attack: str, model, undefended, batch
) -> None:
    """It would be judged by its mean probabilities, which is not how it answers."""
    with pytest.raises(InputError, match=r"a Mixture inside Mixture .* to one Mixture"):
        evaluate(Mixture([model, Mixture([model, undefended])]), *batch, "pgd-20", eps=0.1)
    with pytest.raises(InputError, match=r"a Mixture inside .* to one Mixture"):
        evaluate(inside(Mixture([model, undefended])), *batch, attack, eps=0.1)
    with pytest.raises(InputError, match="a Mixture inside"):
        robustness_curve(inside(Mixture([model, undefended])), *batch, [0.1])


def test_refuses_what_it_cannot_attack(model, batch) -> None:
    with pytest.raises(InputError, match="Mixture"):
        ARC(0.1)(Ensemble([model]), *batch)
    with pytest.raises(InputError, match="steps"):
        ARC(0.1, steps=0)
    with pytest.raises(InputError, match="step_size"):
        ARC(0.1, step_size=0.0)
    with pytest.raises(InputError, match="eps"):
        ARC(-1.0)
