"""The paper's numbers as data: sizes, sums and relations that were taken from its LaTeX by another
way."""

from __future__ import annotations

import math

import pytest

from mrboost import studies

TABLES = {  # columns, and the sum of each row's numbers, computed from the LaTeX tables
    "mce-resnet18": (12, [700.06, 711.00]),
    "mce-wrn": (
        6,
        [361.60, 365.83, 356.93, 363.50, 361.46, 367.46, 361.14, 370.39, 374.73, 378.94],
    ),
    "boosting": (
        10,
        [134.34, 134.99, 672.75, 683.48, 678.30, 687.20, 681.48, 687.04, 684.28, 690.93],
    ),
    "samplers": (2, [133.01, 133.01, 113.40, 132.49, 133.01]),
    "overhead": (3, [240, 245]),
    "pinot": (6, [231.77, 125.37]),
    "adaptive": (2, [102.14]),
}
SHORT = {"Wider model", "Deeper model", "Pinot"}
CLEAN, PGD = "cifar10/best/1/clean", "cifar10/best/1/pgd-20"


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_there(name: str) -> None:
    study, (columns, sums) = studies.get(name), TABLES[name]
    assert len(study.columns) == len(set(study.columns)) == columns
    assert [round(math.fsum(row.figures.values()), 2) for row in study.rows] == sums
    short = {row.label for row in study.rows if len(row.figures) < columns}
    assert short <= SHORT | {"AT"}


@pytest.mark.parametrize("name", studies.STUDIES)
def test_what_the_text_says_holds_on_its_numbers(name: str) -> None:
    study = studies.get(name)
    for claim in study.claims:
        found = list(claim.differences(study.figures))
        assert len(found) == len(claim.more) * len(claim.columns), claim.says
        assert min(found) > 0, claim.says


def test_bold_means_a_gap_above_a_fifth_of_a_point() -> None:
    """Except where the notes say otherwise. What is bold in the LaTeX, of each pair: the first,
    the second or none."""
    bold = {
        ("mce-resnet18", "AT"): "222212020202",
        ("mce-wrn", "AT"): "100222",
        ("mce-wrn", "TRADES"): "020220",
        ("mce-wrn", "MART"): "222222",
        ("mce-wrn", "GAIR"): "222220",
        ("mce-wrn", "AWP"): "122222",
    }
    exceptions = []
    for (name, row), marks in bold.items():
        study = studies.get(name)
        for column, mark in zip(study.columns, marks, strict=True):
            gap = round(study.figures[f"{row} + MCE"][column] - study.figures[row][column], 2)
            if mark != ("2" if gap > 0.20 else "1" if gap < -0.20 else "0"):
                exceptions.append((row, column, gap))
    assert exceptions == [
        ("AT", "cifar100/last/1/clean", -0.21),
        ("TRADES", CLEAN, 1.51),
        ("TRADES", "cifar10/best/1/autoattack", 0.48),
    ]
    assert "57.22 against 57.01" in studies.get("mce-resnet18").notes[0]
    assert "84.76 against 83.25" in studies.get("mce-wrn").notes[0]


def test_inconsistencies_are_what_the_notes_say() -> None:
    figures = {name: study.figures for name, study in studies.STUDIES.items()}
    at, mce = (figures["mce-resnet18"][row] for row in ("AT", "AT + MCE"))
    samplers = figures["samplers"]
    assert samplers["Sampler.All"] == samplers["AT"] == {CLEAN: at[CLEAN], PGD: at[PGD]}
    assert (mce[CLEAN], mce[PGD]) == (81.13, 51.86)
    assert figures["adaptive"]["AT + MCE"][PGD] == at[PGD]
    assert round(mce[PGD] - figures["adaptive"]["AT + MCE"][f"{PGD[:-2]}mce-20"], 2) == 0.67
    for row in ("AT", "AT + MCE"):
        assert figures["curves"][row].items() <= figures["mce-resnet18"][row].items()
    seconds = figures["overhead"]
    more = [100 * (seconds["AT + MCE"][c] / value - 1) for c, value in seconds["AT"].items()]
    assert (round(min(more), 1), round(max(more), 1)) == (1.4, 2.9)
    gair = figures["mce-wrn"]["GAIR + MCE"]
    assert gair["cifar10/best/1/pgd-100"] > gair["cifar10/best/1/pgd-20"]
    first = [v for row, v in figures["boosting"].items() if row.startswith("MRBoost")]
    spread = [max(v[c] for v in first) - min(v[c] for v in first) for c in (CLEAN, PGD)]
    assert [round(value, 2) for value in spread] == [0.30, 0.24]


def test_notes_say_where_the_release_differs_from_the_text() -> None:
    for name in ("mce-resnet18", "mce-wrn", "boosting", "samplers", "curves", "adaptive"):
        release = " ".join(n for n in studies.get(name).notes if "authors' release" in n)
        assert "±eps/2" in release
        assert "not normalise" in release
        for of_other_data in ("SVHN with a learning rate of 0.01", "rotates CIFAR-100's"):
            assert (of_other_data in release) == (name == "mce-resnet18")
