"""Attacks that fit a model, and what outcomes of several attacks say against each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import APGD, FGSM, PGD, FromClean, Square, Transfer
from mrboost.attacks.adaptive import adaptive
from mrboost.ensemble import members_of
from mrboost.evaluation import UnfinishedError
from mrboost.losses import margin


def test_adaptive_sets_fit_the_model(model, undefended, batch) -> None:
    x, y = batch[0][:12], batch[1][:12]
    assert list(adaptive(undefended, 0.1)) == ["autoattack", "apgd-mce"]
    pair = mrboost.Ensemble([model, undefended])
    assert list(adaptive(pair, 0.1)) == ["autoattack", "apgd-mce", "member 1", "member 2"]
    transferred, stopped = adaptive(pair, 0.3)["member 1"](pair, x, y), APGD(0.3)(model, x, y)
    # Beyond the member's first mistake
    assert margin(model(transferred), y) > 1.2 * margin(model(stopped), y) > 0
    mixture = mrboost.Mixture([model, undefended], [0.5, 0.5])
    attacks = adaptive(mixture, 0.1)
    assert {"first member", "mean logits", "mean probabilities", "mce", "arc", "member 2"} <= set(
        attacks
    )
    assert {f"{search} on member {k}" for search in ("apgd-t", "square") for k in (1, 2)} <= set(
        attacks
    )
    assert adaptive(mixture, 0.0) == {}
    behind = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), pair))
    wanted = adaptive(pair, 0.1)["member 2"](pair, x, y)
    for wrapped in (behind, Vote(pair)):
        members = adaptive(wrapped, 0.1)
        assert list(members) == ["autoattack", "apgd-mce", "member 1", "member 2"]
        assert torch.equal(members["member 2"](wrapped, x, y), wanted)


class Wrapper(nn.Module):
    """Inverts images, and inverts them back, around a classifier."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(1 - (1 - x))


class Vote(Wrapper):
    """Asks the members itself, and knows how many there are."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.classifier[0](x) + self.classifier[1](x)) / len(self.classifier)


def test_a_mixture_of_ensembles_is_attacked_through_what_it_draws(model, undefended) -> None:
    drawn = [mrboost.Ensemble([model[0], undefended]), mrboost.Ensemble([undefended])]
    attacks = adaptive(mrboost.Mixture(drawn), 0.1)
    for k in (0, 1):
        assert attacks[f"apgd-t on member {k + 1}"].source is drawn[k]
    assert attacks["member 2"].source is drawn[1]


def test_members_of_members_count_with_the_products_of_their_weights(
    model, undefended, batch
) -> None:
    inner = mrboost.Ensemble([model[0], undefended], [0.25, 0.75])
    found = members_of(Wrapper(mrboost.Ensemble([inner, model[0]], [0.4, 0.6])))
    assert [weight for _, weight in found] == pytest.approx([0.1, 0.3, 0.6])
    x = batch[0][:4]
    for (member, _), network in zip(found, (model[0], undefended, model[0]), strict=True):
        assert torch.allclose(member(x), network(1 - (1 - x)), atol=1e-5)
    assert members_of(undefended) == members_of(lambda x: x) == []


@pytest.mark.parametrize("own", [False, True])
def test_gradients_of_a_mixtures_own_members_are_its_own(
    own: bool, model, undefended, batch
) -> None:
    """That one of them breaks what a weak attack leaves is no sign of masked gradients; of
    another model it is."""
    mixture = mrboost.Mixture([model[0], undefended])
    attacks = {
        "weak": PGD(0.15, steps=1, step_size=1e-6),
        "member": Transfer(PGD(0.15), undefended, own=own),
    }
    doubts = mrboost.evaluate(mixture, *batch, attacks).doubts
    assert ("black-box" in [doubt.check for doubt in doubts]) == (not own)


def test_a_member_without_gradients_leaves_a_mixture_its_other_attacks(
    model, undefended, batch
) -> None:
    """Square breaks it, ARC goes past it, and the figure is doubted."""

    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return undefended(x.detach())

    x, y = batch[0][:8], batch[1][:8]
    mixture = mrboost.Mixture([Detached(), model[0]])
    attacks = adaptive(mixture, 0.15)
    names = ("first member", "mean probabilities", "arc", "member 2", "square on member 1")
    with pytest.raises(
        UnfinishedError, match=r"the examples are made on: .* have no gradient"
    ) as caught:
        mrboost.evaluate(mixture, x, y, {name: attacks[name] for name in names})
    found = caught.value.evaluation
    assert [outcome.attack for outcome in found.outcomes] == ["clean", *names[1:]]
    assert {doubt.check for doubt in found.doubts} >= {"zero-gradient", "black-box"}


@pytest.mark.parametrize(("noise", "expected"), [(0.0, True), (1e-2, False)])
def test_one_step_is_held_against_many_unless_the_model_draws(
    noise: float, expected: bool, undefended, batch
) -> None:
    attacks = {"fgsm": FGSM(0.3), "pgd-10": PGD(0.3, steps=10, step_size=1e-6, start=FromClean())}
    result = mrboost.evaluate(
        lambda x: undefended(x + noise * torch.randn_like(x)), *batch, attacks
    )
    assert ("one-step" in [doubt.check for doubt in result.doubts]) == expected


def test_square_is_held_against_the_gradients_inside_autoattack(
    model, digits, small_autoattack
) -> None:
    """AutoAttack's own gradient attacks break what square breaks, so there is nothing to doubt."""
    x, y = digits.test.images()[:60], digits.test.y[:60]
    attacks = {
        "autoattack": small_autoattack,
        "fgsm": FGSM(0.01),
        "square": Square(0.15, steps=400),
    }
    result = mrboost.evaluate(model, x, y, attacks, check=False)
    assert sum(result["fgsm"].correct) - sum(result["square"].correct) >= 2
    assert "black-box" not in [
        doubt.check for doubt in mrboost.evaluate(model, x, y, attacks).doubts
    ]
