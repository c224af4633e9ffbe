"""Ensembles: the weighted mean of logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mrboost import Ensemble, InputError, models


@pytest.fixture
def members() -> list[nn.Module]:
    return [models.build("cnn-digits", (1, 8, 8), 10).eval() for _ in range(3)]


def test_mean_and_weights(members) -> None:
    x = torch.rand(4, 1, 8, 8)
    logits = torch.stack([member(x) for member in members])
    torch.testing.assert_close(Ensemble(members)(x), logits.mean(dim=0))
    weights = torch.tensor([1.0, 3.0, 4.0])
    expected = (logits * (weights / 8).view(3, 1, 1)).sum(dim=0)
    torch.testing.assert_close(Ensemble(members, weights.tolist())(x), expected)


def test_copies_behave_as_one(members) -> None:
    x = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(Ensemble([members[0]] * 5)(x), members[0](x))
    assert torch.equal(Ensemble([members[0]])(x), members[0](x))


def test_members_are_reached_like_those_of_a_list(members) -> None:
    ensemble = Ensemble(members)
    assert ensemble[2] is members[2]
    assert list(ensemble) == members


def test_members_may_differ(members) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert Ensemble([members[0], linear])(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    "weights", [[1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0]]
)
def test_refuses_bad_weights_and_no_members(members, weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        Ensemble(members, weights)
    with pytest.raises(InputError, match="at least one member"):
        Ensemble([], weights)
