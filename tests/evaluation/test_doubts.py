"""What outcomes give to doubt: an attack that beats others which should be stronger."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from commands import checks, quantised
from mrboost import InputError, evaluate
from mrboost.attacks import FGSM, PGD, Square, Transfer
from mrboost.evaluation.doubts import contradictions, doubts_of


def test_a_weak_loss_is_no_doubt_of_attacks_on_margins(undefended, images) -> None:
    def small(x: Tensor) -> Tensor:
        return undefended(x) / 1e3

    for attacks, doubted in (
        ("pgd-20", True),
        (["pgd-20", "cw"], False),
        ("apgd-t", False),
        ("fgsm", True),
    ):
        assert ("weak-loss" in checks(evaluate(small, *images, attacks, eps=0.1).doubts)) is doubted


def standing(n: int, *broken: int) -> list[bool]:
    return [i not in broken for i in range(n)]


def test_black_box_beats_white_box() -> None:
    found = {"clean": standing(500), "pgd-20": standing(500, 0, 1), "cw": standing(500, 0, 2)}
    (doubt,) = doubts_of(found | {"square": standing(500, 0, 2, 7, 8)})
    assert doubt.check == "black-box"
    assert "square breaks 2 of 500 points (0.4%)" in doubt.message
    assert "pgd-20 99.6%, cw 99.6%" in doubt.message
    # One point may be bad luck
    assert doubts_of(found | {"square": standing(500, 0, 1, 2, 9)}) == []
    assert doubts_of(found | {"square": standing(500, 0, 1, 2)}) == []
    assert len(doubts_of(found | {"pgd-20 transferred": standing(500, 7, 8)})) == 1
    assert (
        len(doubts_of(found | {"first member": standing(500, 7, 8)}, black_box=["first member"]))
        == 1
    )
    two = {"square": torch.tensor(standing(500, 3, 4, 5)), "transfer": standing(500, 3, 6)}
    assert ["square" in doubt.message.split()[0] for doubt in doubts_of(found | two)] == [
        True,
        False,
    ]


def test_one_step_beats_many() -> None:
    """Sound models lose a point in a hundred to one step alone, not more."""
    many = {"pgd-20": standing(100, 0), "cw": standing(100, 1)}
    (doubt,) = doubts_of(many | {"fgsm": standing(100, 0, 1, 2, 3, 4)})
    assert doubt.check == "one-step"
    assert "fgsm, a single step, breaks 3 of 100 points (3.0%)" in doubt.message
    assert doubts_of(many | {"fgsm": standing(100, 0, 1, 2, 3)}) == []
    assert doubts_of({"fgsm": standing(100, 0, 1, 2, 3, 4)}) == []
    for other in ("pgd-1", "pgd-mce-1", "pgd-3", "pgd transfer"):
        assert doubts_of({other: standing(100), "fgsm": standing(100, 0, 1, 2, 3, 4)}) == []
    assert checks(doubts_of({"pgd-10": standing(100), "fgsm": standing(100, 0, 1, 2, 3, 4)})) == [
        "one-step"
    ]
    stages = [{"attack": name} for name in ("apgd-ce", "square")]
    whole = as_kept(
        "autoattack", standing(9, 0, 1, 2, 3), broken_by=[1, 2, 2, 2] + [-1] * 5, stages=stages
    )
    assert checks(contradictions([whole, as_kept("fgsm", standing(9, 0, 1, 2, 3))])) == [
        "black-box",
        "one-step",
    ]


def test_a_wavy_input_is_found_out_by_the_usual_attacks(undefended, model, images) -> None:
    """Gradients point anywhere, so that many small steps lead nowhere."""

    def wavy(x: Tensor) -> Tensor:
        return undefended((x + 0.03 * (200 * x).sin()).clamp(0, 1))

    assert "one-step" in checks(evaluate(wavy, *images, eps=0.1).doubts)
    for sound in (undefended, model):
        assert evaluate(sound, *images, eps=0.1).doubts == ()
    assert evaluate(model, *images, [FGSM(0.3), PGD(0.01)]).doubts == (), "of two balls"
    several = {"fgsm": FGSM(0.1), "pgd transfer": Transfer(PGD(0.1), undefended)}
    assert "one-step" not in checks(evaluate(model, *images, several).doubts)


def test_two_points_of_very_many_are_no_doubt() -> None:
    assert doubts_of({"pgd-20": standing(1000), "square": standing(1000, 1, 2)}) == []
    assert len(doubts_of({"pgd-20": standing(1000), "square": standing(1000, 1, 2, 3)})) == 1


def test_probabilities_count_as_parts_of_points() -> None:
    """A randomised classifier withstands with a probability."""
    (doubt,) = doubts_of({"pgd-20": [1.0] * 10, "square": [0.5] * 6 + [1.0] * 4})
    assert "square breaks 3 of 10 points" in doubt.message
    assert doubts_of({"pgd-20": [1.0] * 10, "square": [0.5] * 3 + [1.0] * 7}) == []


def test_stages_of_autoattack() -> None:
    stages = {
        "apgd-ce": standing(100, 0),
        "apgd-t": standing(100, 0, 1),
        "fab-t": standing(100, 0, 1),
    }
    assert doubts_of(stages | {"square": standing(100, 0, 1)}) == []
    for cumulative in (False, True):
        (doubt,) = doubts_of(
            stages | {"square": standing(100, 0, 1, 2, 3, 4)}, cumulative=cumulative
        )
        assert "square breaks 3 of 100 points" in doubt.message
    plus = {
        "apgd-ce": standing(100, 0),
        "square": standing(100, 0, 1, 2),
        "apgd-t": standing(100, 0, 1, 2, 3),
    }
    assert len(doubts_of(plus, cumulative=True)) == 1, "apgd-t never tried what square had broken"
    assert (
        doubts_of(
            {"square": standing(100, 1, 2), "apgd-ce": standing(100, 1, 2, 3)}, cumulative=True
        )
        == []
    )


def test_entries_that_are_no_single_attack_are_not_compared() -> None:
    found = {
        "clean": standing(100),
        "square": standing(100, 1, 2),
        "autoattack": standing(100, 1, 2),
    }
    assert doubts_of(found) == []
    assert len(doubts_of(found | {"pgd-20": standing(100), "worst case": standing(100, 1, 2)})) == 1
    assert doubts_of(found | {"autoattack-rand": standing(100, 1, 2)}) == []


def test_nothing_to_compare() -> None:
    for found in (
        {},
        {"clean": standing(9)},
        {"clean": standing(9), "square": standing(9, 1, 2, 3)},
    ):
        assert doubts_of(found) == []
    assert doubts_of({"pgd-20": [], "square": []}) == []
    with pytest.raises(InputError, match="same points"):
        doubts_of({"pgd-20": standing(9), "square": standing(8)})


@pytest.mark.parametrize("masked", [False, True])
def test_square_finds_masked_gradients_out(masked: bool, undefended, batch) -> None:
    network, (x, y) = quantised(undefended) if masked else undefended, batch
    attacks = {"pgd-20": PGD(0.15), "square": Square(0.15, steps=150)}
    found = {
        name: network(attack(network, x, y)).argmax(dim=1) == y for name, attack in attacks.items()
    }
    assert checks(doubts_of(found)) == (["black-box"] if masked else [])


def as_kept(name: str, correct: list[bool], **more: object) -> dict[str, object]:
    return {"attack": name, "correct": correct, **more}


def test_contradictions_of_outcomes_that_were_kept() -> None:
    """AutoAttack's gradients are what its stages but square broke; one attack's label does not
    say that it is blind."""
    stages = [{"attack": name} for name in ("apgd-ce", "square")]
    autoattack = as_kept(
        "mine", standing(100, 0, 1, 2, 3), broken_by=[0, 1, 1, 2] + [-1] * 96, stages=stages
    )
    assert contradictions([as_kept("clean", standing(100, 0)), autoattack]) == []
    (doubt,) = contradictions([autoattack, as_kept("square", standing(100, 0, 1, 2, 3, 4))])
    assert "square breaks 2 of 100 points" in doubt.message
    assert "gradients in mine 97.0%" in doubt.message
    assert (
        contradictions(
            [autoattack, as_kept("pgd-20", standing(100)), as_kept("square", standing(100, 0, 1))]
        )
        == []
    )
    more = {
        **autoattack,
        "broken_by": [0, 1, 2, 2, 2] + [-1] * 95,
        "correct": standing(100, 0, 1, 2, 3, 4),
    }
    assert checks(contradictions([more])) == ["black-box"]
    blind = as_kept("other", standing(100, 5, 6), black_box=True)
    assert checks(contradictions([as_kept("pgd-20", standing(100)), blind])) == ["black-box"]
    assert contradictions([as_kept("pgd-20", standing(100)), {**blind, "black_box": False}]) == []
