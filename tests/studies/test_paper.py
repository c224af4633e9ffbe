"""The paper's numbers as data: sizes, sums and relations that were taken from its
LaTeX by another way."""

from __future__ import annotations

import math

import pytest

from mrboost import studies
from mrboost.studies import paper_results

TABLES = {  # rows, columns, and the sum of each row's numbers, computed from the LaTeX tables
    "mce-resnet18": (12, {"AT": 700.06, "AT + MCE": 711.00}),
    "mce-wrn": (
        6,
        dict(
            zip(
                (
                    "AT",
                    "AT + MCE",
                    "TRADES",
                    "TRADES + MCE",
                    "MART",
                    "MART + MCE",
                    "GAIR",
                    "GAIR + MCE",
                    "AWP",
                    "AWP + MCE",
                ),
                (361.60, 365.83, 356.93, 363.50, 361.46, 367.46, 361.14, 370.39, 374.73, 378.94),
                strict=True,
            )
        ),
    ),
    "boosting": (
        10,
        dict(
            zip(
                [row.label for row in studies.get("boosting").rows],
                (134.34, 134.99, 672.75, 683.48, 678.30, 687.20, 681.48, 687.04, 684.28, 690.93),
                strict=True,
            )
        ),
    ),
    "samplers": (
        2,
        {
            "Sampler.All": 133.01,
            "Sampler.Rnd": 133.01,
            "Sampler.Max": 113.40,
            "AT(2)": 132.49,
            "AT": 133.01,
        },
    ),
    "overhead": (3, {"AT": 240, "AT + MCE": 245}),
    "pinot": (6, {"Pinot": 231.77, "AT": 125.37}),
    "adaptive": (2, {"AT + MCE": 102.14}),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_there(name: str) -> None:
    columns, sums = TABLES[name]
    paper = paper_results(name)
    assert len(paper.columns) == len(set(paper.columns)) == columns
    assert {
        row: round(math.fsum(values.values()), 2) for row, values in paper.figures.items()
    } == sums
    short = {"boosting": ("Wider model", "Deeper model"), "pinot": ("Pinot", "AT")}.get(name, ())
    assert [row for row, values in paper.figures.items() if len(values) < columns] == list(short)


@pytest.mark.parametrize("name", studies.STUDIES)
def test_rows_and_columns_are_the_studys(name: str) -> None:
    study, paper = studies.get(name), paper_results(name)
    assert list(paper.figures) == [row.label for row in study.rows]
    measures = {a for row in study.rows for a in ("clean", *(row.attacks or study.attacks))} | {
        "seconds"
    }
    for column in paper.columns:
        data, weights, members, measure = column.split("/")
        assert data in study.data
        assert weights in study.weights
        assert int(members) in range(1, 6)
        assert measure in measures


@pytest.mark.parametrize("name", studies.STUDIES)
def test_what_the_text_says_holds_on_its_numbers(name: str) -> None:
    paper = paper_results(name)
    for claim in paper.claims:
        found = list(claim.differences(paper.figures))
        assert len(found) == len(claim.more) * len(claim.columns), claim.says
        assert all(difference > 0 for *_, difference in found), claim.says


def test_bold_means_a_gap_above_a_fifth_of_a_point() -> None:
    """Except where the notes say otherwise. What is bold in the LaTeX, of each pair: the
    first, the second or none."""
    bold = {
        "mce-resnet18": {"AT": "222212020202"},
        "mce-wrn": {
            "AT": "100222",
            "TRADES": "020220",
            "MART": "222222",
            "GAIR": "222220",
            "AWP": "122222",
        },
    }
    exceptions = []
    for name, pairs in bold.items():
        paper = paper_results(name)
        for row, marks in pairs.items():
            for column, mark in zip(paper.columns, marks, strict=True):
                gap = round(paper.figures[f"{row} + MCE"][column] - paper.figures[row][column], 2)
                if mark != ("2" if gap > 0.20 else "1" if gap < -0.20 else "0"):
                    exceptions.append((row, column, gap))
    assert exceptions == [
        ("AT", "cifar100/last/1/clean", -0.21),
        ("TRADES", "cifar10/best/1/clean", 1.51),
        ("TRADES", "cifar10/best/1/autoattack", 0.48),
    ]
    assert "57.22 against 57.01" in paper_results("mce-resnet18").notes[0]
    assert "84.76 against 83.25" in paper_results("mce-wrn").notes[0]


def test_inconsistencies_are_what_the_notes_say() -> None:
    at, mce = (paper_results("mce-resnet18").figures[row] for row in ("AT", "AT + MCE"))
    clean, adv = "cifar10/best/1/clean", "cifar10/best/1/pgd-20"
    samplers = paper_results("samplers").figures
    assert samplers["Sampler.All"] == samplers["AT"] == {clean: at[clean], adv: at[adv]}
    assert (
        {clean: mce[clean], adv: mce[adv]} == {clean: 81.13, adv: 51.86} != samplers["Sampler.All"]
    )
    assert paper_results("adaptive").figures["AT + MCE"][adv] == at[adv]
    assert round(mce[adv] - 51.19, 2) == 0.67
    for row in ("AT", "AT + MCE"):
        assert (
            paper_results("curves").figures[row].items()
            <= paper_results("mce-resnet18").figures[row].items()
        )
    seconds = paper_results("overhead").figures
    more = [
        100 * (seconds["AT + MCE"][c] / seconds["AT"][c] - 1)
        for c in paper_results("overhead").columns
    ]
    assert (round(min(more), 1), round(max(more), 1)) == (1.4, 2.9)
    gair = paper_results("mce-wrn").figures["GAIR + MCE"]
    assert gair["cifar10/best/1/pgd-100"] > gair["cifar10/best/1/pgd-20"]
    first = [v for row, v in paper_results("boosting").figures.items() if row.startswith("MRBoost")]
    spread = [max(v[c] for v in first) - min(v[c] for v in first) for c in (clean, adv)]
    assert [round(value, 2) for value in spread] == [0.30, 0.24]


def test_notes_say_where_the_release_differs_from_the_text() -> None:
    """The pages show a study's notes (test_studies.py); those of Table 1 have all that
    bears on its figures."""
    for study in ("mce-resnet18", "mce-wrn", "boosting", "samplers", "curves", "adaptive"):
        release = " ".join(
            note for note in paper_results(study).notes if "authors' release" in note
        )
        assert "±eps/2" in release
        assert "not normalise" in release
        for of_other_data in ("SVHN with a learning rate of 0.01", "rotates CIFAR-100's"):
            assert (of_other_data in release) == (study == "mce-resnet18")
    assert "release" not in studies.STUDIES
