"""Evaluation: figures that a direct computation gives too, intervals, JSON, bad input."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost import InputError
from mrboost.attacks import CW, FGSM, PGD
from mrboost.evaluation import format_eps, robustness_curve, wilson_interval


def test_figures_equal_a_direct_computation(model, digits) -> None:
    x, y = digits.test.images()[:100], digits.test.y[:100]
    result = mrboost.evaluate(model, x, y, ["fgsm"], eps=0.1)
    logits = model(FGSM(0.1)(model, x, y))
    correct = logits.argmax(1) == y
    gap = logits.gather(1, y[:, None]).squeeze(1) - logits.scatter(1, y[:, None], -torch.inf).amax(1)
    outcome = result["fgsm"]
    assert outcome.accuracy == pytest.approx(correct.float().mean().item())
    assert outcome.margin == pytest.approx(gap.mean().item(), rel=1e-4)
    assert outcome.min_margin == pytest.approx(gap.min().item(), rel=1e-4)
    assert list(outcome.correct) == correct.tolist()
    for k in range(10):
        assert outcome.per_class[k] == pytest.approx(correct[y == k].float().mean().item())
    assert [o.attack for o in result.outcomes] == ["clean", "fgsm"]


def test_several_attack_objects_are_told_apart(model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    result = mrboost.evaluate(model, x, y, [FGSM(0.1), CW(0.2), PGD(0.1, steps=3), PGD(0.3, steps=3)])
    assert [o.attack for o in result.outcomes] == ["clean", "fgsm", "cw", "pgd-3", "pgd-3 (4)"]
    assert result.eps is None
    assert "several balls" in str(result)


def test_the_batch_size_changes_nothing(model, digits) -> None:
    """Random starts belong to the image, not to its place in a batch."""
    x, y = digits.test.images()[:60], digits.test.y[:60]
    attacks = {"pgd": PGD(0.15, steps=3), "l2": PGD(1.0, "L2", steps=3), "restarts": PGD(0.15, steps=2, restarts=3)}
    results = [mrboost.evaluate(model, x, y, attacks, batch_size=size) for size in (1, 7, 60)]
    for name in attacks:
        margins = [result[name].margin for result in results]
        assert margins == pytest.approx([margins[0]] * 3, abs=1e-4)
        assert len({result[name].correct for result in results}) == 1
    with pytest.raises(InputError, match="at least 1, got -1"):
        mrboost.evaluate(model, x, y, attacks, batch_size=-1)


def test_takes_names_objects_mappings_and_arrays(model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    one = mrboost.evaluate(model, x, y, "pgd-3", eps=0.1)
    two = mrboost.evaluate(model, x.numpy(), y.numpy(), PGD(0.1, steps=3))
    three = mrboost.evaluate(model, x, y, {"mine": PGD(0.1, steps=3)})
    assert one["pgd-3"].correct == two["pgd-3"].correct == three["mine"].correct
    assert two.eps == 0.1
    wide = mrboost.evaluate(model, x.double().numpy(), y.numpy().astype("uint8"), "pgd-3", eps=0.1)
    assert wide["pgd-3"].correct == one["pgd-3"].correct
    plain = mrboost.evaluate(model, x, y, lambda model, x, y: x)
    assert plain.outcomes[1].correct == plain["clean"].correct
    with pytest.raises(KeyError, match="only clean, mine"):
        three["theirs"]


def test_takes_a_function_and_leaves_a_module_as_found(batch) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).train()
    first = mrboost.evaluate(linear, *batch, "fgsm", eps=0.1)
    assert linear.training
    assert linear[2].weight.requires_grad
    with torch.no_grad():
        linear.eval()
    assert mrboost.evaluate(lambda x: linear(x), *batch, "fgsm", eps=0.1)["fgsm"].correct == first["fgsm"].correct


def test_prints_a_table_and_dumps_json(model, batch) -> None:
    result = mrboost.evaluate(model, *batch, ["fgsm", "cw"], eps=8 / 255)
    lines = str(result).splitlines()
    assert lines[0] == "64 images, Linf eps = 8/255"
    assert [line.split()[0] for line in lines[2:]] == ["clean", "fgsm", "cw"]
    document = json.loads(result.to_json())
    assert document["n"] == 64
    assert document["outcomes"][1]["accuracy"] == result["fgsm"].accuracy
    assert len(document["outcomes"][1]["correct"]) == 64


def test_wilson_interval_of_textbook_cases() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for successes, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_curve_falls_from_the_clean_accuracy(model, digits) -> None:
    x, y = digits.test.images()[:100], digits.test.y[:100]
    curve = robustness_curve(model, x, y, [0.2, 0.1], attack="pgd-10")
    assert [eps for eps, _ in curve] == [0, 0.1, 0.2]
    assert curve[0][1] == pytest.approx((model(x).argmax(1) == y).float().mean().item())
    assert curve[0][1] > curve[1][1] > curve[2][1]


def test_memory_running_out_halves_the_batch(batch) -> None:
    sizes: list[int] = []

    def small_memory(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 20:
            raise torch.OutOfMemoryError("no room")
        return x.flatten(1)[:, :10]

    result = mrboost.evaluate(small_memory, *batch, [], eps=0.1)
    assert result.n == 64
    assert sizes == [1, 64, 32, 16, 16, 16, 16]  # the first is the look at the logits' shape
    with pytest.raises(torch.OutOfMemoryError):
        mrboost.evaluate(small_memory, *batch, [], eps=0.1, batch_size=64)


def test_nan_logits_are_named(batch) -> None:
    def broken(x: Tensor) -> Tensor:
        logits = x.flatten(1)[:, :10].clone()
        if len(x) > 3:
            logits[3] = torch.nan
        return logits

    with pytest.raises(InputError, match="image 3 are NaN"):
        mrboost.evaluate(broken, *batch, [], eps=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * 255, y), r"must lie in \[0, 1\]"),
        (lambda x, y: (x, y + 3), "labels must lie in 0..9"),
        (lambda x, y: (x, y.int()), "got torch.int32: convert"),
        (lambda x, y: (x[:0], y[:0]), "at least one"),
    ],
)
def test_refuses_bad_data(change, message: str, model, batch) -> None:
    with pytest.raises(InputError, match=message):
        mrboost.evaluate(model, *change(*batch))


def test_refuses_what_is_not_an_attack(model, batch) -> None:
    for bad in ([3], 3, None, {"mine": 3}):
        with pytest.raises(InputError, match=r"callable attack\(model, x, y\), got"):
            mrboost.evaluate(model, *batch, bad)
    with pytest.raises(InputError, match="unknown attack 'pdg-20': did you mean pgd-20"):
        mrboost.evaluate(model, *batch, "pdg-20")


def test_radii_are_named_in_grey_levels_where_they_are() -> None:
    assert [format_eps(eps) for eps in (8 / 255, 0.1, 0.3, 1 / 255, 1.0)] == ["8/255", "0.1", "0.3", "1/255", "1"]
