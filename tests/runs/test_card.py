"""Cards: what they say, which are refused, and what measuring them again finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mrboost.runs.verify
from commands import results_of, snapshot
from mrboost import InputError
from mrboost.attacks import APGD, FAB, Square, autoattack
from mrboost.data import Dataset
from mrboost.evaluation import EvaluationOptions
from mrboost.evaluation.inputs import TimeBudget
from mrboost.evaluation.statistics import worst_case
from mrboost.runs import Run
from mrboost.runs.card import Card, make_card, pack, unpack, write_card
from mrboost.runs.compare import SideBySide
from mrboost.runs.evaluate_run import Evaluated, Request, evaluate_radii
from mrboost.runs.verify import verify

ATTACKS = ["pgd-3", "fgsm"]
QUICK = EvaluationOptions(check=False)
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def evaluated(trained: Path, digits: Dataset, tmp_path_factory) -> Evaluated:
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("card") / "run")
    request = Request(n=120)
    (found,) = evaluate_radii(folder, ATTACKS, [0.15], request, QUICK, dataset=digits)
    return found


@pytest.fixture
def card(evaluated: Evaluated, tmp_path: Path) -> Path:
    return write_card(make_card(evaluated, "mrboost evaluate …"), tmp_path / "card")[0]


def edited(path: Path, edit: Edit) -> Path:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


def claim(content: dict[str, Any], attack: int, correct: list[bool]) -> None:
    """Other outcomes of single images, and all figures as they follow from them."""
    found = content["evaluation"]
    bits = [unpack(one["correct"], found["n"]).tolist() for one in found["outcomes"]]
    bits[attack] = correct
    figures = [worst_case([one]) for one in bits]
    for one, values, (accuracy, interval) in zip(found["outcomes"], bits, figures, strict=True):
        one |= {"correct": pack(values), "accuracy": accuracy, "interval": interval}
    accuracy, interval = worst_case(bits)
    found["worst"] = {"accuracy": accuracy, "interval": interval}


def test_bits_are_kept() -> None:
    for count in (1, 8, 13):
        values = torch.arange(count) % 3 == 0
        assert torch.equal(unpack(pack(values.tolist()), count), values)


def test_a_card_says_what_was_measured(evaluated: Evaluated, card: Path) -> None:
    run, found = evaluated.subject.run, evaluated.evaluation
    read = Card.read(card)
    kept = results_of(run.folder)["evaluations"][-1]
    assert read.points.tolist() == kept["points"]
    (shown,) = read.evaluations()
    for one, outcome in zip(shown["outcomes"], found.outcomes, strict=True):
        assert one["correct"] == list(outcome.correct)
        assert (one["attack"], one["accuracy"]) == (outcome.attack, outcome.accuracy)
    pgd = shown["outcomes"][1]
    assert pgd["settings"] | {"steps": 3, "eps": 0.15, "loss": "cross_entropy"} == pgd["settings"]
    assert pgd["seed"] == 0
    assert (shown["checked"], shown["n"], shown["left_out"]) == (False, 120, 0)
    form = read.config["submission"]
    assert {form[key] for key in ("name", "link", "authors", "venue", "reported")} == {""}
    assert (form["architecture"], form["dataset"], form["eps"]) == ("cnn-digits", "digits", "0.15")
    assert (form["additional_data"], form["autoattack_acc"]) == (False, None)
    assert form["clean_acc"] == f"{100 * found['clean'].accuracy:.2f}"
    parameters = sum(one.numel() for one in evaluated.subject.model.parameters())
    assert read.config["model"]["parameters"] == parameters
    page = card.with_suffix(".md").read_text()
    for words in (
        "- **Paper Title**: (to be filled in)",
        "- **Threat Model**: Linf",
        "- **eps**: 0.15",
        f"- **Robust accuracy**: {100 * found.worst[0]:.2f} %",
        "- **Images**: 120: some of the 355 test images",
        "- **Gradients**: the model's own",
        "- **Doubts**: not looked for",
        "- **Command**: `mrboost evaluate …`",
        "PGD(steps=3, ",
    ):
        assert words in page


def test_a_card_is_named_by_its_values(card: Path, tmp_path: Path) -> None:
    page = card.with_suffix(".md")
    with pytest.raises(InputError, match=f"give {card}, which is beside it"):
        Card.read(page)
    page = page.rename(tmp_path / "alone.md")
    with pytest.raises(InputError, match=f"give {tmp_path}/alone.json, which is not there"):
        Card.read(page)


def test_a_card_without_the_word_of_a_surrogate_is_read(card: Path) -> None:
    """Those that were written before."""
    old = edited(card, lambda content: content["model"].pop("surrogate"))
    assert Card.read(old).points.numel() == 120


def test_a_card_stands_beside_its_run(evaluated: Evaluated, card: Path) -> None:
    """The same images: they are compared one by one."""
    run, read = Run.open(evaluated.subject.run.folder), Card.read(card)
    pairs = list(SideBySide.of([run, read]).pairs())
    assert [one.attack for one in pairs] == ["clean", "worst case", "pgd-3", "fgsm"]
    assert {(one.gain, one.p_value, one.interval) for one in pairs} == {(0, 1, None)}


def test_what_autoattack_left_is_the_submission(trained, digits, tmp_path, monkeypatch) -> None:
    def stages(eps: float, norm: str) -> tuple:
        apgd, fab = (kind(eps, norm, targets=2, steps=3) for kind in (APGD, FAB))
        return APGD(eps, norm, steps=3), apgd, fab, Square(eps, norm, steps=10)

    monkeypatch.setitem(autoattack.VERSIONS, "standard", stages)
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    found, *_ = evaluate_radii(run, ["autoattack"], [None], Request(n=20), QUICK, dataset=digits)
    content = make_card(found)
    accuracy = f"{100 * found.evaluation['autoattack'].accuracy:.2f}"
    assert content["submission"]["autoattack_acc"] == accuracy
    outcome = content["evaluation"]["outcomes"][1]
    assert [part["part"] for part in outcome["stage_settings"]] == ["APGD", "APGD", "FAB", "Square"]
    (path, page) = write_card(content, tmp_path / "card.md")
    assert (path.name, page.name) == ("card.json", "card.md")
    edited(path, lambda content: content["submission"].update(autoattack_acc="99.00"))
    with pytest.raises(InputError, match="autoattack_acc of the submission is not that of"):
        Card.read(path)


def test_a_card_of_limited_time_names_its_images(trained, digits, tmp_path) -> None:
    now = iter([0.0, 5.0])
    budget = EvaluationOptions(check=False, time_budget=TimeBudget(5.0, lambda: next(now)))
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))
    (found,) = evaluate_radii(run, ["fgsm"], [None], Request(n=120), budget, dataset=digits)
    card = Card.read(write_card(make_card(found), tmp_path / "card")[0])
    assert (found.evaluation.n, found.evaluation.left_out) == (64, 56)
    assert card.points.tolist() == results_of(run.folder)["evaluations"][-1]["points"]
    assert not verify(card, run, 30, 0, QUICK, dataset=digits).problems


def test_a_true_card_holds(evaluated: Evaluated, card: Path, digits: Dataset) -> None:
    run = evaluated.subject.run
    before = snapshot(run.folder)
    found = verify(Card.read(card), run, 40, options=QUICK, dataset=digits)
    assert found.problems == []
    assert (found.n, found.to_dict()["holds"]) == (40, True)
    checked = [one.what for one in found.checks]
    assert checked == ["weights", "test images", "clean", "pgd-3", "fgsm"]
    assert all(one.detail == "0 of 40 images differ" for one in found.checks[2:])
    assert snapshot(run.folder) == before, "nothing is written"
    again = verify(Card.read(card), run, seed=3, options=QUICK, dataset=digits)
    assert (again.seed, again.n) == (3, 100)
    assert verify(Card.read(card), run, 999, 3, QUICK, dataset=digits).n == 120


def test_a_card_that_claims_more_than_holds(evaluated, card: Path, digits) -> None:
    """All images are said to withstand PGD, and every figure fits that."""
    edited(card, lambda content: claim(content, 1, [True] * 120))
    (problem,) = verify(
        Card.read(card), evaluated.subject.run, 120, 0, QUICK, dataset=digits
    ).problems
    fallen = 120 - sum(evaluated.evaluation["pgd-3"].correct)
    assert fallen > 6
    assert problem.startswith(f"pgd-3: {fallen} of 120 images differ ({fallen} fall here alone")


def test_a_difference_of_one_image_may_be_chance(evaluated, card: Path, digits) -> None:
    def one_less(content: dict[str, Any]) -> None:
        correct = list(evaluated.evaluation["fgsm"].correct)
        correct[correct.index(True)] = False
        claim(content, 2, correct)

    edited(card, one_less)
    found = verify(Card.read(card), evaluated.subject.run, 120, 0, QUICK, dataset=digits)
    assert not found.problems
    assert found.checks[-1].detail.startswith("1 of 120 images differ (0 fall here alone, 1 on the")


@pytest.mark.parametrize("claimed", [None, 0.999])
def test_without_single_images_intervals_are_compared(evaluated, card, digits, claimed) -> None:
    def only_figures(content: dict[str, Any]) -> None:
        content["evaluation"]["worst"] = None
        for one in content["evaluation"]["outcomes"]:
            one["correct"] = None
        if claimed:
            one |= {"accuracy": claimed, "interval": [0.99, 1.0]}

    edited(card, only_figures)
    found = verify(Card.read(card), evaluated.subject.run, 120, 0, QUICK, dataset=digits)
    assert [one.agrees for one in found.checks] == [True, True, True, True, claimed is None]


def test_other_weights_images_and_settings(evaluated, card, digits, monkeypatch) -> None:
    def other(content: dict[str, Any]) -> None:
        content["evaluation"]["outcomes"][1]["settings"]["steps"] = 50
        content["made"]["versions"]["torch"] = "1.0"

    run = evaluated.subject.run
    found = verify(Card.read(edited(card, other)), run, 20, 0, QUICK, dataset=digits)
    differing = [one.what for one in found.checks if not one.agrees]
    assert (differing, found.problems) == (["torch", "pgd-3 settings"], [])
    with monkeypatch.context() as patched:
        patched.setattr(mrboost.runs.verify, "measure", lambda *_, **__: pytest.fail("it began"))
        for room, key in (("model", "weights"), ("data", "fingerprint")):
            wrong = edited(card, lambda c, part=room, key=key: c[part].update({key: "x"}))
            found = verify(Card.read(wrong), run, 20, 0, QUICK, dataset=digits)
            assert "the card has x" in found.problems[-1]
            assert "nothing is measured again" in str(found)


def outcomes(content: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content["evaluation"]["outcomes"]
    return found


def deep(content: dict[str, Any]) -> None:
    for _ in range(100):
        outcomes(content)[0]["settings"] = {"a": outcomes(content)[0]["settings"]}


BROKEN: dict[str, tuple[Edit, str]] = {
    "no model": (lambda c: c.pop("model"), "it lacks model.recipe"),
    "format": (lambda c: c.update(format=7), "format is '7'"),
    "accuracy": (lambda c: outcomes(c)[1].update(accuracy=0.9), "the figures of pgd-3 are not"),
    "interval": (lambda c: outcomes(c)[2].update(interval=[0, 1]), "the figures of fgsm are not"),
    "worst": (lambda c: c["evaluation"]["worst"].update(accuracy=1.0), "of the worst case are not"),
    "clean_acc": (lambda c: c["submission"].update(clean_acc="99.99"), "clean_acc of the submiss"),
    "share": (lambda c: outcomes(c)[1].update(accuracy=2), "accuracy is '2'"),
    "bits": (lambda c: outcomes(c)[1].update(correct="ff"), "has no bit for each of 120 images"),
    "no hex": (lambda c: outcomes(c)[1].update(correct="x" * 30), "has no bit for each of 120"),
    "points": (lambda c: c["data"].update(points="00" * 45), "0 images are marked, and n is 120"),
    "all": (lambda c: c["data"].update(points=None), "355 images are marked, and n is 120"),
    "many": (lambda c: c["data"].update(test_images=10**12), "data.test_images is"),
    "eps": (lambda c: c["evaluation"].update(eps=1e308), "evaluation.eps is"),
    "twice": (lambda c: outcomes(c).append(outcomes(c)[0]), "or two of one attack"),
    "no clean": (lambda c: outcomes(c).pop(0), "no clean accuracy"),
    "a terminal's": (lambda c: outcomes(c)[1].update(attack="\x1b[2J"), "attack is"),
    "deep": (deep, "nested too deep"),
}


@pytest.mark.parametrize(("edit", "problem"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_card_is_refused_in_one_line(card: Path, edit: Edit, problem: str) -> None:
    with pytest.raises(InputError) as error:
        Card.read(edited(card, edit))
    assert problem in str(error.value)
    assert str(error.value).isprintable()


def test_a_card_is_a_file_of_bounded_size(card: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a regular file"):
        Card.read(tmp_path)
    with card.open("ab") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        Card.read(card)


def test_attacks_that_failed_have_no_card(evaluated: Evaluated) -> None:
    failed = replace(evaluated.evaluation, failed=("pgd-3",))
    with pytest.raises(InputError, match=r"attacks failed \(pgd-3\)"):
        make_card(replace(evaluated, evaluation=failed))
