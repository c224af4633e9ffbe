"""Evaluation: figures that a direct computation gives too, intervals, JSON, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mrboost
from mrboost import InputError
from mrboost.attacks import CW, FGSM, PGD, Square
from mrboost.evaluation import UnfinishedError, inputs, robustness_curve
from mrboost.evaluation.result import Evaluation, Outcome, format_eps, robustbench_summary
from mrboost.evaluation.statistics import Comparison, wilson_interval
from mrboost.runs.compare import curve, curve_table


def test_figures_equal_a_direct_computation(model, digits) -> None:
    x, y = digits.test.images()[:100], digits.test.y[:100]
    result = mrboost.evaluate(model, x, y, ["fgsm"], eps=0.1, check=False)
    logits = model(FGSM(0.1)(model, x, y))
    correct = logits.argmax(1) == y
    gap = logits.gather(1, y[:, None]).squeeze(1) - logits.scatter(1, y[:, None], -torch.inf).amax(
        1
    )
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
    result = mrboost.evaluate(
        model, x, y, [FGSM(0.1), CW(0.2), PGD(0.1, steps=3), PGD(0.3, steps=3)], check=False
    )
    assert [o.attack for o in result.outcomes] == ["clean", "fgsm", "cw", "pgd-3", "pgd-3 (4)"]
    assert result.eps is None
    assert "several balls" in str(result)


def test_the_batch_size_changes_nothing(model, digits) -> None:
    """Random starts belong to the image, not to its place in a batch."""
    x, y = digits.test.images()[:60], digits.test.y[:60]
    attacks = {
        "pgd": PGD(0.15, steps=3),
        "l2": PGD(1.0, "L2", steps=3),
        "restarts": PGD(0.15, steps=2, restarts=3),
    }
    results = [
        mrboost.evaluate(model, x, y, attacks, batch_size=size, check=False)
        for size in (1, 7, np.int64(60))
    ]  # type: ignore[arg-type]
    for name in attacks:
        margins = [result[name].margin for result in results]
        assert margins == pytest.approx([margins[0]] * 3, abs=1e-4)
        assert len({result[name].correct for result in results}) == 1
    with pytest.raises(InputError, match="at least 1, and whole, got -1"):
        mrboost.evaluate(model, x, y, attacks, batch_size=-1)


def test_takes_names_objects_mappings_and_arrays(model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    one = mrboost.evaluate(model, x, y, "pgd-3", eps=0.1, check=False)
    two = mrboost.evaluate(model, x.numpy(), y.numpy(), PGD(0.1, steps=3), check=False)
    three = mrboost.evaluate(model, x, y, {"mine": PGD(0.1, steps=3)}, check=False)
    assert one["pgd-3"].correct == two["pgd-3"].correct == three["mine"].correct
    assert two.eps == 0.1
    bytes_ = y.numpy().astype("uint8")
    wide = mrboost.evaluate(model, x.double().numpy(), bytes_, "pgd-3", eps=0.1, check=False)
    assert wide["pgd-3"].correct == one["pgd-3"].correct
    plain = mrboost.evaluate(model, x, y, lambda model, x, y: x, check=False)
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
    assert (
        mrboost.evaluate(lambda x: linear(x), *batch, "fgsm", eps=0.1)["fgsm"].correct
        == first["fgsm"].correct
    )


def test_prints_a_table_and_dumps_json(model, batch) -> None:
    result = mrboost.evaluate(model, *batch, ["fgsm", "cw"], eps=8 / 255, check=False)
    lines = str(result).splitlines()
    assert lines[0] == "64 images, Linf eps = 8/255"
    assert [line.split()[0] for line in lines[2:]] == ["clean", "fgsm", "cw", "worst"]
    assert result.worst[0] <= min(result["fgsm"].accuracy, result["cw"].accuracy)
    document = json.loads(result.to_json())
    assert document["n"] == 64
    assert document["outcomes"][1]["accuracy"] == result["fgsm"].accuracy
    assert len(document["outcomes"][1]["correct"]) == 64


@pytest.mark.parametrize(
    "size", [0.0, 3.14159, -999.99, 53149.59, -13380.62, 1e9, -1e9, -1e100, torch.inf, -torch.inf]
)
def test_columns_stay_apart_whatever_the_size(size: float) -> None:
    one, margins = torch.ones(2).long(), torch.tensor([size, size], dtype=torch.float64)
    found = {"correct": one, "margin": margins, "seconds": torch.zeros(1, 1)}
    outcome = Outcome.of("clean", found, one)
    row = str(Evaluation(0.1, "Linf", 2, (outcome,))).splitlines()[-1]
    margin_shown, least, seconds = row.split()[-3:]
    assert margin_shown == least
    assert float(least) == pytest.approx(size, rel=0.1)
    assert seconds == "0.0"
    assert len(row) == 67
    if abs(size) < 1000:
        assert least == f"{size:.2f}"


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
    assert [point.eps for point in curve] == [0, 0.1, 0.2]
    assert curve[0].accuracy == pytest.approx((model(x).argmax(1) == y).float().mean().item())
    assert curve[0].accuracy > curve[1].accuracy > curve[2].accuracy
    for point in curve:
        assert point.interval == wilson_interval(round(100 * point.accuracy), 100)


def test_curve_of_many_chunks(model, digits, monkeypatch) -> None:
    x, y = digits.test.images()[:100], digits.test.y[:100]
    whole = robustness_curve(model, x, y, [0.1, 0.2], attack="fgsm")
    monkeypatch.setattr(inputs, "CHUNK", 30 * 64)
    sizes: list[int] = []

    def watched(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return model(images)

    assert (
        robustness_curve(
            watched,
            ((x[i : i + 10], y[i : i + 10]) for i in range(0, 100, 10)),
            None,
            [0.1, 0.2],
            attack="fgsm",
        )
        == whole
    )
    assert max(sizes) == 30

    def breaks(images: Tensor) -> Tensor:
        near = (images - x[77]).abs().flatten(1).amax(dim=1) < 0.15
        return torch.where(
            (near & ~(images == x[77]).flatten(1).all(dim=1))[:, None], torch.nan, model(images)
        )

    with pytest.raises(InputError, match="image 77 under fgsm are NaN"):
        robustness_curve(breaks, x, y, [0.1], attack="fgsm")


def test_a_curve_has_the_figures_of_its_evaluations() -> None:
    def at(eps: float, *correct: float, attacks: tuple[str, ...] = ("fgsm", "cw")) -> dict:
        every = {"clean": [1, 1, 1, 1], **dict.fromkeys(attacks, correct)}
        outcomes = [
            {"attack": name, "accuracy": sum(c) / 4, "interval": [0, 1], "correct": list(c)}
            for name, c in every.items()
        ]
        return {"eps": eps, "norm": "Linf", "outcomes": outcomes}

    evaluations = [at(0.1, 1, 1, 0, 1), at(0.2, 0, 1, 0, 1)]
    evaluations[0]["outcomes"][2] |= {"accuracy": 0.75, "correct": [0, 1, 1, 1]}
    rows = curve(evaluations)
    assert [row["attacks"]["fgsm"]["accuracy"] for row in rows] == [0.75, 0.5]
    assert [row["attacks"]["worst case"]["accuracy"] for row in rows] == [0.5, 0.5]
    assert rows[1]["attacks"]["cw"] == {"accuracy": 0.5, "interval": [0, 1]}
    unfinished = at(0.4, 0, 0, 0, 0, attacks=("fgsm",)) | {"failed": ["cw"]}
    assert curve_table(curve([*evaluations, unfinished])).splitlines()[-1].split() == ["0.4", "–"]


def test_memory_running_out_halves_the_batch(batch) -> None:
    sizes: list[int] = []

    def small_memory(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 20:
            raise torch.OutOfMemoryError("no room")
        return x.flatten(1)[:, :10]

    result = mrboost.evaluate(small_memory, *batch, [], eps=0.1, check=False)
    assert result.n == 64
    # The first two are looks at what it takes, and at the logits' shape
    assert sizes == [1, 1, 64, 32, 16, 16, 16, 16]
    with pytest.raises(torch.OutOfMemoryError):
        mrboost.evaluate(small_memory, *batch, [], eps=0.1, batch_size=64)


def test_nan_logits_are_named(batch) -> None:
    def broken(x: Tensor) -> Tensor:
        logits = x.flatten(1)[:, :10].clone()
        if len(x) > 3:
            logits[3] = torch.nan
        return logits

    with pytest.raises(UnfinishedError, match="image 3 are NaN") as error:
        mrboost.evaluate(broken, *batch, [], eps=0.1, check=False)
    assert str(error.value.evaluation).splitlines()[0] == "64 images, Linf eps = 0.1"
    assert error.value.evaluation.failed == ("clean",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * 255, y), r"must lie in \[0, 1\], these reach 255: divide by 255"),
        (
            lambda x, y: (x * (1 + 1e-6), y),
            r"must lie in \[0, 1\], these go beyond it by 9\.5e-07: clamp them",
        ),
        (
            lambda x, y: (x.double() - 1e-12, y),
            r"must lie in \[0, 1\], these go beyond it by 1e-12: clamp them",
        ),
        (lambda x, y: (x.where(x < 0.5, torch.nan), y), "these contain NaN: replace them"),
        (lambda x, y: (x, y + 3), "labels must lie in 0..9"),
        (lambda x, y: (x, y.float()), "got torch.float32: convert"),
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
    assert [format_eps(eps) for eps in (8 / 255, 0.1, 0.2, 0.3, 1 / 255, 1.0)] == [
        "8/255",
        "0.1",
        "0.2",
        "0.3",
        "1/255",
        "1",
    ]


def test_autoattack_reports_its_stages_and_the_worst_case(model, digits, small_autoattack) -> None:
    x, y = digits.test.images()[:80], digits.test.y[:80]
    attacks = [small_autoattack, PGD(0.15, steps=20)]
    result = mrboost.evaluate(model, x, y, attacks, check=False)
    outcome = result["autoattack-small"]
    assert [stage.attack for stage in outcome.stages] == ["apgd-ce", "fab-t", "square"]
    falling = [result["clean"].accuracy, *(stage.accuracy for stage in outcome.stages)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == outcome.accuracy
    assert outcome.seconds == pytest.approx(sum(stage.seconds for stage in outcome.stages))
    both = [a and b for a, b in zip(outcome.correct, result["pgd-20"].correct, strict=True)]
    assert result.worst[0] == sum(both) / 80
    assert result.worst[1] == wilson_interval(sum(both), 80)
    lines = str(result).splitlines()
    assert [line.split()[0] for line in lines[2:8]] == [
        "clean",
        "apgd-ce",
        "fab-t",
        "square",
        "autoattack-small",
        "pgd-20",
    ]
    assert "worst case" in lines[8]
    assert json.loads(result.to_json())["outcomes"][1]["stages"][0]["attack"] == "apgd-ce"


def test_a_trained_model_knows_its_ball_and_of_others_it_is_asked_for(
    model, undefended, batch
) -> None:
    found = mrboost.evaluate(model, *batch, "pgd-2", check=False)
    assert (found.eps, found.norm) == (0.1, "Linf")
    asked = mrboost.evaluate(undefended, *batch, "pgd-2", eps=0.1, check=False)
    known = mrboost.Ensemble([undefended], eps=0.1, norm="Linf")
    assert mrboost.evaluate(known, *batch, "pgd-2", check=False)["pgd-2"].correct == (
        asked["pgd-2"].correct
    )
    assert mrboost.evaluate(known, *batch, "pgd-2", eps=0.3, norm="L2", check=False).eps == 0.3
    with pytest.raises(InputError, match="the model's eps is for Linf: give eps for norm 'L2'"):
        mrboost.evaluate(model, *batch, "fgsm", norm="L2")
    with pytest.raises(InputError, match="give eps, the radius of fgsm"):
        mrboost.evaluate(undefended, *batch)
    assert mrboost.evaluate(undefended, *batch, PGD(0.2, steps=1), check=False).eps == 0.2


def test_takes_loaders_splits_and_one_hot_labels(model, digits, monkeypatch) -> None:
    split = digits.test[:50]
    x, y = split.images(), split.y
    asked = {"attack": [Square(0.15, steps=30), "pgd-3"], "eps": 0.15, "check": False}
    expected = mrboost.evaluate(model, x, y, **asked)
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)  # three chunks
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    one_hot = torch.nn.functional.one_hot(y, 10)
    for given in (
        (x, y),
        (split, None),
        (loader, None),
        (x, one_hot),
        (x.numpy(), one_hot.float().numpy()),
    ):
        result = mrboost.evaluate(model, *given, **asked)
        assert result.n == 50
        for name in ("clean", "square", "pgd-3"):
            assert result[name].correct == expected[name].correct
    assert max(len(chunk.x) for chunk in inputs.chunks(model, split, None)) == 20
    for bad, message in (
        ((x, one_hot * 2), "labels must have shape"),
        ((iter([]), None), "data are empty"),
    ):
        with pytest.raises(InputError, match=message):
            mrboost.evaluate(model, *bad, "fgsm")
    with pytest.raises(InputError, match=r"pairs \(images, labels\), got Tensor"):
        mrboost.evaluate(model, iter([x]), None, "fgsm")


def test_eps_of_zero_is_clean_accuracy(model, batch) -> None:
    result = mrboost.evaluate(model, *batch, ["autoattack", "pgd-20"], eps=0)
    assert result["autoattack"].correct == result["pgd-20"].correct == result["clean"].correct
    assert result.eps == 0
    with pytest.raises(InputError, match=r"eps must be positive and finite, got -0\.1"):
        mrboost.evaluate(model, *batch, "pgd-20", eps=-0.1)


def test_comparing_two_models_on_the_same_points(model, undefended, digits) -> None:
    x, y = digits.test.images()[:100], digits.test.y[:100]
    first, second = (
        mrboost.evaluate(m, x, y, "pgd-10", eps=0.15, check=False)["pgd-10"]
        for m in (model, undefended)
    )
    found = mrboost.compare(first, second)
    assert found.only_first - found.only_second == round(100 * (first.accuracy - second.accuracy))
    assert found.p_value < 1e-6
    assert mrboost.compare(first, first) == Comparison(0, 0, 1.0)

    def fgsm(x: Tensor, y: Tensor) -> None:
        mrboost.compare(
            first, mrboost.evaluate(model, x, y, "fgsm", eps=8 / 255, check=False)["fgsm"]
        )

    with pytest.raises(InputError, match="same points only, these have 100 and 64"):
        fgsm(x[:64], y[:64])
    with pytest.raises(InputError, match="labels differ"):
        fgsm(x.flip(0), y.flip(0))
    with pytest.raises(InputError, match=r"same ball only, not Linf 0\.15 and Linf 8/255"):
        fgsm(x, y)


def test_robustbench_style_summary(model, batch, small_autoattack) -> None:
    result = mrboost.evaluate(model, *batch, {"autoattack": small_autoattack}, check=False)
    card = robustbench_summary(
        result, name="mine", dataset="digits", architecture="cnn-digits", link="here"
    )
    assert card["clean_acc"] == f"{100 * result['clean'].accuracy:.2f}"
    assert card["autoattack_acc"] == f"{100 * result['autoattack'].accuracy:.2f}"
    assert card["autoattack_interval"] == [
        f"{100 * end:.2f}" for end in result["autoattack"].interval
    ]
    assert (card["threat_model"], card["eps"], card["link"]) == ("Linf", "0.15", "here")
    json.dumps(card)
    with pytest.raises(InputError, match="that of AutoAttack: 'clean' is not"):
        robustbench_summary(
            result, name="mine", dataset="digits", architecture="cnn-digits", attack="clean"
        )
    one = {"autoattack": replace(small_autoattack, stages=1)}
    some = mrboost.evaluate(model, *batch, one, check=False)
    with pytest.raises(InputError, match="that of AutoAttack"):
        robustbench_summary(some, name="mine", dataset="digits", architecture="cnn-digits")


@pytest.mark.parametrize(
    "eps", [torch.full((1, 8, 8), 0.1), np.full(3, 0.1), (0.1, 0.2), "0.1 or so", None]
)
def test_attacks_that_do_not_say_one_radius(eps: object, model, batch) -> None:
    def attack(_: object, x: Tensor, y: Tensor) -> Tensor:
        return x / 2

    attack.eps, attack.norm = eps, "Linf"
    result = mrboost.evaluate(model, *batch, {"mine": attack}, check=False)
    assert result["mine"].eps is result.eps is None
    attack.eps = 0
    with pytest.raises(
        InputError, match=r"mine: function moved image 0 out of its Linf ball of 0: the attack"
    ):
        mrboost.evaluate(model, *batch, {"mine": attack}, check=False)
    with pytest.raises(InputError, match=r"label is a text .*, got 1"):
        mrboost.evaluate(model, *batch, {1: attack})


def test_a_mapped_file_is_read_chunk_by_chunk(model, batch, tmp_path, monkeypatch) -> None:
    x, y = batch
    np.save(tmp_path / "x.npy", x.numpy())
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)
    read, whole = [], inputs.as_tensors
    monkeypatch.setattr(inputs, "as_tensors", lambda x, y: read.append(len(x)) or whole(x, y))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for labels in (y, y.numpy(), y.tolist(), torch.eye(10)[y]):
        read.clear()
        result = mrboost.evaluate(model, mapped, labels, "fgsm", eps=0.1, check=False)
        assert read == [1, 20, 20, 20, 4]
        assert (
            result["fgsm"].correct
            == mrboost.evaluate(model, x, y, "fgsm", eps=0.1, check=False)["fgsm"].correct
        )


def test_doubts_are_part_of_the_result(undefended, digits) -> None:
    """A defence that rounds its input has no gradients; the square attack still breaks it,
    and the table says so."""

    def masked(images: Tensor) -> Tensor:
        return undefended((images * 15).round() / 15 + 0 * images)

    x, y = digits.test.images()[:40], digits.test.y[:40]
    result = mrboost.evaluate(
        masked, x, y, {"pgd-5": PGD(0.2, steps=5), "square": Square(0.2, steps=200)}
    )
    assert {doubt.check for doubt in result.doubts} >= {"zero-gradient", "black-box"}
    assert "doubt (black-box): square breaks" in str(result)
    assert mrboost.evaluate(masked, x, y, "pgd-5", eps=0.2, check=False).doubts == ()


def test_names_and_places_are_checked_first(model, batch, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    for arguments, message in (
        ({"attack": "nonsense", "eps": 0}, "unknown attack 'nonsense'"),
        ({"attack": {"clean": FGSM(0.1)}}, "other than 'clean' and 'y', got 'clean'"),
        ({"attack": "fgsm", "examples": tmp_path / "no" / "x.npz"}, "none that can be written to"),
        ({"attack": "fgsm", "examples": tmp_path / "x.npz"}, "none that can be written to"),
        ({"attack": "fgsm", "keep": __file__}, r"test_evaluation.py' is a file"),
    ):
        with pytest.raises(InputError, match=message):
            mrboost.evaluate(model, *batch, **arguments)


def test_infinite_margins_are_null_in_json(batch) -> None:
    def sure(images: Tensor) -> Tensor:
        return torch.where(torch.arange(10) == 0, torch.inf, images.flatten(1)[:, :10])

    result = mrboost.evaluate(sure, *batch, [], check=False)
    assert (
        json.loads(result.to_json(), parse_constant=pytest.fail)["outcomes"][0]["min_margin"]
        is None
    )


@pytest.mark.parametrize("targets", [None, [1, 2], "all"])
def test_an_attack_of_ones_own_may_have_any_attribute(targets: object, model, batch) -> None:
    class Own:
        eps, norm, loss = 0.1, "Linf", np.ones(2)

        def __init__(self) -> None:
            self.targets = targets

        def __call__(
            self, model: nn.Module, x: Tensor, y: Tensor, *, generator: object = None
        ) -> Tensor:
            return x

    assert mrboost.evaluate(model, *batch, {"own": Own()})["own"].accuracy > 0.9


def test_an_attack_that_looks_into_the_model_gets_the_model(model, batch) -> None:
    class Inside(PGD):
        def __call__(self, model: mrboost.Ensemble, *rest: Any, **how: Any) -> Tensor:  # type: ignore[override]
            assert len(model.members) == 1
            return super().__call__(model, *rest, **how)

    assert mrboost.evaluate(model, *batch, {"inside": Inside(0.1, steps=2)}, check=False).n == len(
        batch[0]
    )
