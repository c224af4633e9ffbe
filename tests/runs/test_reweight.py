"""Learned weights against closed forms and exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mrboost import Ensemble, InputError, models
from mrboost.attacks import PGD
from mrboost.losses import cross_entropy, margin
from mrboost.runs.reweight import learn_weights, least_cross_entropy, maximum_margin


def test_two_members_that_need_each_other() -> None:
    """Margins (3, −1) and (−1, 1): the least margin is largest where the two cross, at w = 1/3."""
    logits = np.array([[[3.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]])
    weights = maximum_margin(logits, np.array([0, 0]))
    np.testing.assert_allclose(weights, [1 / 3, 2 / 3], atol=1e-9)


def test_both_solvers_against_a_grid() -> None:
    generator = np.random.default_rng(0)
    logits, y = generator.normal(size=(3, 20, 4)), generator.integers(4, size=20)
    logits[:, np.arange(20), y] += 1.0

    def least_margin(w: np.ndarray) -> float:
        mixed = np.tensordot(w, logits, axes=1)
        true = mixed[np.arange(20), y].copy()
        mixed[np.arange(20), y] = -np.inf
        return float((true - mixed.max(axis=1)).min())

    def loss(w: np.ndarray) -> float:
        return F.cross_entropy(
            torch.tensor(np.tensordot(w, logits, axes=1)), torch.tensor(y)
        ).item()

    grid = [np.array([a, b, 100 - a - b]) / 100 for a in range(101) for b in range(101 - a)]
    best = max(map(least_margin, grid))
    assert best - 1e-9 <= least_margin(maximum_margin(logits, y)) <= best + 0.05
    lowest = min(map(loss, grid))
    assert lowest - 1e-3 <= loss(least_cross_entropy(logits, y)) <= lowest + 1e-6


@pytest.mark.parametrize("objective", ["minimum", "average"])
def test_a_bad_member_loses_its_weight(objective, model, digits) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = models.build("cnn-digits", digits.shape, 10).eval()
    attack = PGD(0.05, steps=5)
    x, y = digits.train.images()[:100], digits.train.y[:100]
    with torch.no_grad():
        # No image is lost by all members
        stands = margin(model(attack(model, x, y)), y, reduction="none") < -1
    x, y = x[stands], y[stands]
    ensemble = Ensemble([noise, model[0]]).eval()
    learned = learn_weights(ensemble, x, y, attack, objective=objective)
    assert learned.weights[1] > 0.8
    with torch.no_grad():
        before, after = (cross_entropy(e(attack(e, x, y)), y) for e in (ensemble, learned))
    assert after < before


def test_refuses_unknown_objectives(model, batch) -> None:
    with pytest.raises(InputError, match="unknown objective 'mean'"):
        learn_weights(model, *batch, PGD(0.1), objective="mean")
