"""Threat models: every output lies in the ball and in the box, whatever goes in."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from mrboost.errors import InputError
from mrboost.threat import L1, L2, Linf, ball, sparse_step

norms = st.sampled_from([Linf, L2, L1])
steepest = st.sampled_from([Linf, L2])
radii = st.floats(1e-3, 1.0)
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float32, torch.float64])


def images(seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 2, 4, 4, generator=generator, dtype=dtype)
    x[0].round_()  # black and white: the box matters everywhere
    return x


@given(norms, radii, seeds, dtypes, st.floats(0.01, 100))
@settings(max_examples=80, deadline=None)
def test_projection(norm, eps: float, seed: int, dtype: torch.dtype, spread: float) -> None:
    threat, x = norm(eps), images(seed, dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    outside = x + spread * torch.randn(x.shape, generator=generator, dtype=dtype)
    inside = threat.project(outside, x)
    assert inside.dtype == dtype
    assert inside.shape == x.shape
    assert (inside >= 0).all()
    assert (inside <= 1).all()
    assert (threat.distance(inside, x) <= eps * (1 + 1e-5) + 1e-7).all()
    torch.testing.assert_close(threat.project(inside, x), inside, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(threat.project(x, x), x, rtol=0, atol=0)


@given(norms, radii, seeds, dtypes)
@settings(max_examples=40, deadline=None)
def test_uniform_draw_lies_in_the_ball(norm, eps: float, seed: int, dtype: torch.dtype) -> None:
    threat, x = norm(eps), images(seed, dtype)
    draw = threat.uniform(x, torch.Generator().manual_seed(seed))
    again = threat.uniform(x, torch.Generator().manual_seed(seed))
    assert draw.dtype == dtype
    assert (threat.distance(x + draw, x) <= eps * (1 + 1e-5) + 1e-7).all()
    assert torch.equal(draw, again)


@given(steepest, st.floats(1e-3, 1.0), st.floats(1e-35, 1e30), seeds)
@settings(max_examples=60, deadline=None)
def test_step_is_steepest(norm, size: float, scale: float, seed: int) -> None:
    """A step of the right length, and no random step of that length gains
    more along the gradient."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(2, 1, 3, 3, generator=generator)
    threat = norm(1.0)
    step = threat.step(direction * scale, size)
    zero = torch.zeros_like(step)
    torch.testing.assert_close(
        threat.distance(step, zero), torch.full((2,), size), rtol=1e-4, atol=0
    )
    other = threat.step(torch.randn(2, 1, 3, 3, generator=generator), size)
    gain, other_gain = ((direction * s).flatten(1).sum(dim=1) for s in (step, other))
    assert (gain >= other_gain - 1e-5).all()


@given(st.floats(0.01, 5), seeds, st.floats(0.01, 10))
@settings(max_examples=60, deadline=None)
def test_the_l1_projection_is_the_nearest_point(eps: float, seed: int, spread: float) -> None:
    """All pixels that are neither at the edge of the box nor back at the clean image gave up the
    same λ, the others less or more: the conditions of Karush, Kuhn and Tucker."""
    x = images(seed, torch.float64)
    generator = torch.Generator().manual_seed(seed + 1)
    change = spread * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    found = L1(eps).project(x + change, x)
    kept, wanted = (found - x).abs().flatten(1), change.abs().flatten(1)
    room = torch.where(change > 0, 1 - x, x).flatten(1)
    assert (((found - x) * change) >= 0).all()
    given_up = wanted - kept
    free = (kept > 1e-12) & (kept < room - 1e-12)
    for image in range(len(x)):
        spent = given_up[image][free[image]]
        at_zero, at_edge = kept[image] <= 1e-12, kept[image] >= room[image] - 1e-12
        if kept[image].sum() < eps - 1e-9:
            assert given_up[image][kept[image] < room[image] - 1e-12].abs().max() < 1e-9
            continue
        if len(spent):
            assert spent.max() - spent.min() < 1e-9
        most = torch.cat([wanted[image][at_zero & ~at_edge], spent]).max()
        assert (given_up[image][at_edge & ~at_zero] >= most - 1e-9).all()
        assert (spent >= most - 1e-9).all()


def test_an_l1_step_moves_the_steepest_pixels_alike() -> None:
    gradient = torch.tensor([[3.0, -4.0, 1.0, 0.5], [0.0, 0.0, -2.0, 0.0]])
    expected = torch.tensor([[0.5, -0.5, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0]])
    assert torch.equal(sparse_step(gradient, torch.tensor([0.5, 0.25])), expected)
    assert torch.equal(sparse_step(gradient, 0.0)[0], torch.tensor([0.0, -1.0, 0.0, 0.0]))


@pytest.mark.parametrize("norm", [Linf, L2, L1])
def test_a_zero_gradient_gives_no_step(norm) -> None:
    for size in (0.5, 50.0):
        assert torch.equal(norm(0.1).step(torch.zeros(2, 3), size), torch.zeros(2, 3))


@pytest.mark.parametrize("norm", [L2, L1])
def test_a_draw_fills_the_ball_uniformly(norm) -> None:
    """In d dimensions a fraction r^d of the volume lies within radius r."""
    x = torch.full((20000, 1, 1, 2), 0.5)
    lengths = norm(1.0).distance(x + norm(1.0).uniform(x, torch.Generator().manual_seed(0)), x)
    for radius in (0.25, 0.5, 0.75):
        assert (lengths <= radius).double().mean().item() == pytest.approx(radius**2, abs=0.012)


@pytest.mark.parametrize(
    ("norm", "eps", "message"),
    [
        ("Linf", 0.0, "must be positive and finite, got 0.0"),
        ("Linf", -0.1, "must be positive and finite, got -0.1"),
        ("Linf", float("nan"), "must be positive and finite, got nan"),
        ("L2", float("inf"), "positive and finite, got inf"),
        ("L2", 1e300, r"positive and finite, got 1e\+300"),
        ("L1", 10**400, "positive and finite, got 1000"),
        ("Linf", 8.0, r"\(0, 1\].*8.0.*divide grey levels by 255"),
        ("linf", 0.1, "unknown norm 'linf': did you mean Linf"),
    ],
)
def test_refuses_impossible_balls(norm: str, eps: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ball(norm, eps)
