"""One ball after the other: what fell in a smaller one has fallen, and is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import APGD, Attack
from mrboost.errors import NanLogitsError
from mrboost.evaluation import EvaluationOptions, measure
from mrboost.evaluation.batches import Runner
from mrboost.runs.evaluate_run import Request, evaluate_radii

QUICK = EvaluationOptions(check=False)


class Brightness(nn.Module):
    """Class 1 where the mean is above a threshold."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        lead = 10 * (x.flatten(1).mean(dim=1) - self.threshold)
        return torch.stack([-lead, lead], dim=1)


@dataclass(frozen=True)
class Darker(Attack):
    """Makes images darker, all by ``eps``, or by nothing where ``works`` is false."""

    eps: float
    norm: str = "Linf"
    works: bool = True
    seen: list[int] = field(default_factory=list, compare=False, repr=False)

    def __call__(self, model, x: Tensor, y: Tensor, *, generator=None) -> Tensor:
        self.seen.append(len(x))
        return (x - self.eps * self.works).clamp(min=0)


def plain(*values: float) -> tuple[Tensor, Tensor]:
    """Images of one brightness each, all of class 1."""
    x = torch.tensor(values)[:, None, None, None].expand(-1, 1, 4, 4).clone()
    return x, torch.ones(len(values), dtype=torch.int64)


def test_what_fell_stays_fallen_and_is_not_attacked_again() -> None:
    x, y = plain(0.4, 0.55, 0.65, 0.9)
    small, large = Darker(0.1), Darker(0.2, works=False)
    first = measure(Brightness(), x, y, {"a": small}, QUICK, ball=(0.1, "Linf"))
    both = measure(Brightness(), x, y, {"a": large}, QUICK, ball=(0.2, "Linf"), smaller=first)
    alone = measure(Brightness(), x, y, {"a": large}, QUICK, ball=(0.2, "Linf"))
    assert first.evaluation()["a"].correct == (False, False, True, True)
    assert both.evaluation()["a"].correct == (False, False, True, True)
    assert alone.evaluation()["a"].correct == (False, True, True, True)
    assert (small.seen, large.seen) == ([4], [2, 4])
    margins = [-2.0 - 2, 1.0 - 2, 3.0, 8.0]  # of the image that counts: the smaller ball's
    assert both.evaluation()["a"].margin == pytest.approx(sum(margins) / 4)
    strong = Darker(0.3)
    rest = measure(Brightness(), x, y, {"a": strong}, QUICK, ball=(0.3, "Linf"), smaller=both)
    assert rest.evaluation()["a"].correct == (False, False, False, True)
    assert strong.seen == [2]


def test_what_is_saved_is_of_what_stood(tmp_path) -> None:
    x, y = plain(0.4, 0.55, 0.65, 0.9)
    first = measure(Brightness(), x, y, {"a": Darker(0.1)}, QUICK, ball=(0.1, "Linf"))
    last = {"a": Darker(0.2, works=False)}
    for smaller, expected in ((first, (False, False, True, True)), (None, (False, *[True] * 3))):
        options = EvaluationOptions(check=False, keep=tmp_path, resume=True)
        found = measure(Brightness(), x, y, last, options, ball=(0.2, "Linf"), smaller=smaller)
        assert found.evaluation()["a"].correct == expected
    assert last["a"].seen == [2, 4]
    measure(Brightness(), x, y, last, options, ball=(0.2, "Linf"))
    assert last["a"].seen == [2, 4], "it is saved"


def test_where_nothing_stands_nothing_is_attacked() -> None:
    x, y = plain(0.4, 0.55)
    first = measure(Brightness(), x, y, {"a": Darker(0.1)}, QUICK, ball=(0.1, "Linf"))
    last = Darker(0.2)
    found = measure(Brightness(), x, y, {"a": last}, QUICK, ball=(0.2, "Linf"), smaller=first)
    assert found.evaluation()["a"].accuracy == 0
    assert last.seen == []


def test_searches_go_on_with_what_stands(model, images) -> None:
    """Stages too; the result of an image is that of the image alone."""
    x, y = (part[:48] for part in images)
    one, other = ({"apgd": APGD(eps, steps=8)} for eps in (0.1, 0.2))
    first = measure(model, x, y, one, QUICK, ball=(0.1, "Linf"))
    both = measure(model, x, y, other, QUICK, ball=(0.2, "Linf"), smaller=first).evaluation()
    fallen = torch.tensor(first.evaluation()["apgd"].correct) == 0
    alone = mrboost.evaluate(model, x, y, other, check=False)
    expected = torch.tensor(alone["apgd"].correct) & ~fallen
    assert both["apgd"].correct == tuple(expected.tolist())
    assert 0 < fallen.sum() < 48 - expected.sum()
    assert both["clean"].correct == alone["clean"].correct


def test_a_randomised_classifier_is_right_with_the_least_probability() -> None:
    mixture = mrboost.Mixture([Brightness(0.5), Brightness(0.3)], [0.5, 0.5])
    x, y = plain(0.55, 0.9)
    first = measure(mixture, x, y, {"a": Darker(0.1)}, QUICK, ball=(0.1, "Linf"))
    idle = Darker(0.2, works=False)
    both = measure(mixture, x, y, {"a": idle}, QUICK, ball=(0.2, "Linf"), smaller=first)
    assert both.evaluation()["a"].correct == (0.5, 1.0)
    assert idle.seen == [2]


class NanBelow(Brightness):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return torch.where(x.flatten(1).amin(dim=1, keepdim=True) < 0.55, torch.nan, logits)


@pytest.mark.parametrize("attack", [Darker(0.2), APGD(0.2, steps=4)])
def test_messages_number_the_images_as_they_were_given(attack: Attack) -> None:
    x, y = plain(0.6, 0.6, 0.6, 0.74)
    first = measure(Brightness(), x, y, {"a": Darker(0.12)}, QUICK, ball=(0.1, "Linf"))
    found = measure(NanBelow(), x, y, {"a": attack}, QUICK, ball=(0.2, "Linf"), smaller=first)
    assert found.failed["a"] == str(NanLogitsError(3, attack.name))


def test_a_curve_of_a_run_is_the_same_after_an_interruption(run, tmp_path, monkeypatch) -> None:
    def curve(keep, *, resume: bool = False) -> list[dict]:
        options = EvaluationOptions(check=False, keep=keep, resume=resume)
        radii = [0.2, 0.1, 0.15]
        found = evaluate_radii(run, ["pgd-3", "apgd-ce"], radii, Request(n=24), options)
        return [without_times(one.evaluation.to_dict()) for one in found]

    whole = curve(tmp_path / "one")
    assert [one["eps"] for one in whole] == [0.1, 0.15, 0.2]
    begin, begun = Runner._run, []

    def stop(self, attack, *more):
        begun.append(attack)
        if len(begun) == 5:
            raise KeyboardInterrupt
        return begin(self, attack, *more)

    monkeypatch.setattr(Runner, "_run", stop)
    with pytest.raises(KeyboardInterrupt):
        curve(tmp_path / "two")
    assert curve(tmp_path / "two", resume=True) == whole
    assert len(begun) == 8, "clean images once, two attacks in three balls, one of them twice"


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key != "seconds"}
    return [without_times(item) for item in value] if isinstance(value, list | tuple) else value
