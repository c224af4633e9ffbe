"""What outcomes give to doubt: an attack that beats others which should be stronger."""

from __future__ import annotations

import pytest
from torch import Tensor

from commands import checks, quantised
from mrboost import evaluate
from mrboost.attacks import APGD, CW, FGSM, PGD, Square, Transfer
from mrboost.evaluation.doubts import contradictions


def test_a_weak_loss_is_no_doubt_of_attacks_on_margins(undefended, batch) -> None:
    def small(x: Tensor) -> Tensor:
        return undefended(x) / 1e3

    pgd, cw, apgd_t = PGD(0.1), CW(0.1, steps=5), APGD(0.1, steps=5, targets=1)
    for attacks, doubted in (([pgd], True), ([pgd, cw], False), ([apgd_t], False)):
        assert ("weak-loss" in checks(evaluate(small, *batch, attacks).doubts)) is doubted


def standing(n: int, *broken: int) -> list[bool]:
    return [i not in broken for i in range(n)]


def found(**attacks: object) -> list[dict[str, object]]:
    """Outcomes as they are kept, of attacks by name: square is blind, fgsm has one step."""
    return [
        {
            "attack": name,
            "correct": correct,
            "black_box": name.startswith("square"),
            "steps": {"fgsm": 1, "pgd_3": 3, "own": None}.get(name, 20),
        }
        for name, correct in attacks.items()
    ]


def staged(name: str, broken_by: list[int], *stages: str) -> dict[str, object]:
    """An attack that is several in turn."""
    return {
        "attack": name,
        "correct": [number == -1 for number in broken_by],
        "broken_by": broken_by,
        "stages": [{"attack": stage, "black_box": stage == "square"} for stage in stages],
    }


def test_black_box_beats_white_box() -> None:
    white = found(clean=standing(500), pgd=standing(500, 0, 1), cw=standing(500, 0, 2))
    (doubt,) = contradictions([*white, *found(square=standing(500, 0, 2, 7, 8))])
    assert doubt.check == "black-box"
    assert "square breaks 2 of 500 points (0.4%)" in doubt.message
    assert "pgd 99.6%, cw 99.6%" in doubt.message
    # One point may be bad luck
    assert contradictions([*white, *found(square=standing(500, 0, 1, 2, 9))]) == []
    assert contradictions([*white, *found(square=standing(500, 0, 1, 2))]) == []
    two = found(square=standing(500, 3, 4, 5), square_2=standing(500, 3, 6))
    doubts = contradictions([*white, *two])
    assert [doubt.message.split()[0] for doubt in doubts] == ["square", "square_2"]


def test_one_step_beats_many() -> None:
    """Sound models lose a point in a hundred to one step alone, not more."""
    many = found(pgd=standing(100, 0), cw=standing(100, 1))
    (doubt,) = contradictions([*many, *found(fgsm=standing(100, 0, 1, 2, 3, 4))])
    assert doubt.check == "one-step"
    assert "fgsm, a single step, breaks 3 of 100 points (3.0%)" in doubt.message
    assert contradictions([*many, *found(fgsm=standing(100, 0, 1, 2, 3))]) == []
    one = found(fgsm=standing(100, 0, 1, 2, 3, 4))
    assert contradictions(one) == []
    for other in ("pgd_3", "own", "square"):
        assert contradictions([*one, *found(**{other: standing(100)})]) == []
    whole = staged("autoattack", [1, 2, 2, 2] + [-1] * 5, "apgd-ce", "square")
    doubts = contradictions([whole, *found(fgsm=standing(9, 0, 1, 2, 3))])
    assert checks(doubts) == ["black-box", "one-step"]


def test_a_wavy_input_is_found_out_by_the_usual_attacks(undefended, model, images) -> None:
    """Gradients point anywhere, so that many small steps lead nowhere."""

    def wavy(x: Tensor) -> Tensor:
        return undefended((x + 0.03 * (200 * x).sin()).clamp(0, 1))

    images = images[0][:120], images[1][:120]
    assert "one-step" in checks(evaluate(wavy, *images, eps=0.1).doubts)
    for sound in (undefended, model):
        assert evaluate(sound, *images, eps=0.1).doubts == ()
    assert evaluate(model, *images, [FGSM(0.3), PGD(0.01)]).doubts == (), "of two balls"
    several = {"fgsm": FGSM(0.1), "pgd transfer": Transfer(PGD(0.1), undefended)}
    assert "one-step" not in checks(evaluate(model, *images, several).doubts)


def test_probabilities_count_as_parts_of_points() -> None:
    """A randomised classifier withstands with a probability."""
    many = found(pgd=[1.0] * 10)
    (doubt,) = contradictions([*many, *found(square=[0.5] * 6 + [1.0] * 4)])
    assert "square breaks 3 of 10 points" in doubt.message
    assert contradictions([*many, *found(square=[0.5] * 3 + [1.0] * 7)]) == []


def test_stages_of_autoattack() -> None:
    names = ("apgd-ce", "apgd-t", "fab-t", "square")
    assert contradictions([staged("autoattack", [1, 2] + [-1] * 98, *names)]) == []
    (doubt,) = contradictions([staged("autoattack", [1, 2, 4, 4, 4] + [-1] * 95, *names)])
    assert "square breaks 3 of 100 points" in doubt.message
    # apgd-t never tried what square had broken
    plus = staged("plus", [1, 2, 2, 3] + [-1] * 96, "apgd-ce", "square", "apgd-t")
    assert len(contradictions([plus])) == 1
    assert contradictions([staged("own", [1, 1, 2] + [-1] * 97, "square", "apgd-ce")]) == []


def sampled(broken_by: list[int]) -> dict[str, object]:
    """Two stages, then two on a tenth of what stands."""
    found = staged("quick", broken_by, "apgd-t", "apgd-ce near", "fab-t sample", "square sample")
    stages = [
        stage | {"black_box": stage["attack"].startswith("square"), "sample": share}
        for stage, share in zip(found["stages"], (None, None, 0.1, 0.1), strict=True)
    ]
    return found | {"stages": stages}


def test_what_falls_on_a_sample_says_that_more_would() -> None:
    doubts = contradictions([sampled([0, 1, 2, 3, 4] + [-1] * 195)])
    assert checks(doubts) == ["sample"]
    assert "about 20 of the 197 points that quick left standing" in doubts[0].message
    assert "2 of it fell" in doubts[0].message
    # One may be bad luck; and of many points a few
    assert contradictions([sampled([0, 1, 2, 4] + [-1] * 196)]) == []
    assert contradictions([sampled([3, 4] + [-1] * 3998)]) == []
    assert checks(contradictions([sampled([3, 4, 4] + [-1] * 3997)])) == ["sample"]
    # Square beside it has tried all points
    square = found(square=standing(200, 0, 1, 2, 7, 8))
    both = contradictions([sampled([0, 1, 2] + [-1] * 197), *square])
    assert checks(both) == ["black-box"]


def test_nothing_to_compare() -> None:
    for outcomes in (
        [],
        found(clean=standing(9)),
        found(clean=standing(9), square=standing(9, 1, 2, 3)),
        found(pgd=[], square=[]),
    ):
        assert contradictions(outcomes) == []


@pytest.mark.parametrize("masked", [False, True])
def test_square_finds_masked_gradients_out(masked: bool, undefended, batch) -> None:
    network = quantised(undefended) if masked else undefended
    attacks = {"pgd-20": PGD(0.15), "mine": Square(0.15, steps=150)}
    doubts = evaluate(network, *batch, attacks, eps=0.15).doubts
    assert ("black-box" in checks(doubts)) is masked


def test_contradictions_of_several_commands() -> None:
    """AutoAttack's gradients are what its stages but square broke."""
    autoattack = staged("mine", [0, 1, 1, 2] + [-1] * 96, "apgd-ce", "square")
    assert contradictions([*found(clean=standing(100, 0)), autoattack]) == []
    (doubt,) = contradictions([autoattack, *found(square=standing(100, 0, 1, 2, 3, 4))])
    assert "square breaks 2 of 100 points" in doubt.message
    assert "gradients in mine 97.0%" in doubt.message
    several = found(pgd=standing(100), square=standing(100, 0, 1))
    assert contradictions([autoattack, *several]) == []
    more = staged("mine", [0, 1, 2, 2, 2] + [-1] * 95, "apgd-ce", "square")
    assert checks(contradictions([more])) == ["black-box"]
