"""Runs side by side: which evaluations are compared, and what is said of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import binomtest

from mrboost.runs import compare
from mrboost.runs.compare import SideBySide


def evaluation(members: int = 1, n: int = 10, **attacks: str) -> dict[str, Any]:
    outcomes = [
        {
            "attack": name,
            "accuracy": points.count("1") / n,
            "interval": (0, 1),
            "correct": [float(c) for c in points],
        }
        for name, points in attacks.items()
    ]
    return {
        "members": members,
        "weights": "best",
        "eps": 0.1,
        "norm": "Linf",
        "n": n,
        "outcomes": outcomes,
    }


def run(name: str, *evaluations: dict[str, Any]) -> Any:
    config = {"recipe": {"name": name}}
    results = {"evaluations": list(evaluations)}
    return SimpleNamespace(config=config, results=results, folder=Path(name), is_of=lambda _: True)


AT = run(
    "at",
    evaluation(clean="1111111111", fgsm="1111000000", cw="1110000001"),
    evaluation(n=4, square="1110"),
)
BOOSTED = run(
    "mrboost",
    evaluation(1, clean="1111111111", fgsm="1000000000"),
    evaluation(2, clean="1111111110", fgsm="0111111110"),
)


def test_runs_with_all_their_members_are_compared_on_the_same_images() -> None:
    table = SideBySide.of([AT, BOOSTED])
    assert table.attacks == ["clean", "worst case", "fgsm", "cw", "square"]
    # Under FGSM five images stand with the ensemble alone, one with the single network alone.
    split = binomtest(5, 6).pvalue
    assert split == pytest.approx(14 / 64)
    assert table.differences() == [
        [
            "mrboost − at",
            "best",
            "Linf 0.1",
            "10",
            "-10.00 (1)",
            "–",
            f"+40.00 ({split:.2g})",
            "–",
            "–",
        ]
    ]


def test_the_worst_case_is_compared_too() -> None:
    other = run("at-mce", evaluation(clean="1111111111", fgsm="1111110000", cw="1111100000"))
    (line,) = SideBySide.of([AT, other]).differences()
    # Worst cases: 1110000000 and 1111100000.
    assert line[5] == f"+20.00 ({binomtest(2, 2).pvalue:.2g})"


def test_worst_cases_over_what_fits_each_are_compared() -> None:
    single = run("at-mce", evaluation(clean="1111111111", fgsm="1111111111", cw="1111100000"))
    fitting = {"fgsm": "1111111111", "cw": "1111110000", "member 1": "1110000000"}
    several = run("mrboost", evaluation(clean="1111111111", **fitting))
    (line,) = SideBySide.of([single, several]).differences()
    assert line[5] == f"-20.00 ({binomtest(2, 2).pvalue:.2g})"


def test_worst_cases_over_other_attacks_are_not_compared() -> None:
    weak = run("weak", evaluation(clean="1111111111", fgsm="1111111110", gauss="1111111111"))
    table = SideBySide.of([AT, weak])
    (line,) = table.differences()
    assert line[5] == "–"
    assert [table.is_best(i, "worst case") for i in (0, 2)] == [False, False]
    assert table.is_best(2, "fgsm")


def test_runs_on_other_images_are_not_compared() -> None:
    one, other = (
        evaluation(clean="1111111111", fgsm=points) | {"images": points}
        for points in ("1" * 10, "0" * 10)
    )
    table = SideBySide.of([run("one", one), run("other", other)])
    assert table.differences() == []
    assert not table.is_best(0, "fgsm")
    assert SideBySide.of([run("one", one), run("same", one)]).differences()


def test_one_run_alone_is_a_table_without_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.Run, "open", {"at": AT, "mrboost": BOOSTED}.__getitem__)
    assert "Differences" not in compare.text_table(["at"])
    lines = compare.text_table(["at", "mrboost"]).splitlines()
    assert " ".join(lines[-2].split()) == "mrboost − at -10.00 (1) – +40.00 (0.22) – –"
    assert lines[-1] == "all: weights best, ball Linf 0.1, images 10"


def test_a_run_without_figures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"at": AT, "new run": run("new run")}
    monkeypatch.setattr(compare.Run, "open", runs.__getitem__)
    assert compare.text_table(["new run"]) == "not evaluated yet: mrboost evaluate 'new run'"
    both = compare.text_table(["at", "new run"]).splitlines()
    assert both[0].startswith("run")
    assert "not evaluated yet: mrboost evaluate 'new run'" in both
