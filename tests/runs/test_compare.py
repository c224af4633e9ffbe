"""Runs side by side: which evaluations are compared, and what is said of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import binomtest

from mrboost.evaluation.statistics import unpaired_interval, wilson_interval
from mrboost.runs import compare
from mrboost.runs.compare import SideBySide, in_common


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
    found = list(evaluations)
    return SimpleNamespace(config=config, evaluations=lambda: found, folder=Path(name))


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
    assert [table.is_best(table.rows[i], "worst case") for i in (0, 2)] == [False, False]
    assert table.is_best(table.rows[2], "fgsm")


def test_runs_on_other_images_are_not_compared() -> None:
    one, other = (
        evaluation(clean="1111111111", fgsm=points) | {"images": points}
        for points in ("1" * 10, "0" * 10)
    )
    table = SideBySide.of([run("one", one), run("other", other)])
    assert table.differences() == []
    assert not table.is_best(table.rows[0], "fgsm")
    assert SideBySide.of([run("one", one), run("same", one)]).differences()


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    def trained(name: str, seed: int, right: int) -> Any:
        found = run(name, evaluation(clean="1111111111", fgsm=f"{'1' * right:0<10}"))
        found.config["seed"] = seed
        found.folder = Path(f"{name}-{seed}")
        return found

    runs = [trained("at", seed, right) for seed, right in enumerate((4, 5, 6))]
    runs += [trained("mce", seed, right) for seed, right in ((1, 7), (2, 6), (9, 1))]
    (line,) = SideBySide.of(runs).over_seeds()
    # Seeds 1 and 2: 20 and 0 points; t(0.975, 1) = 12.7062, and the mean's deviation is 10.
    assert line[:4] == ["mce − at", "best", "Linf 0.1", "10"]
    assert line[4] == "+0.00 (+0.00 to +0.00; 2 seeds)"
    assert line[5] == "+10.00 (-117.06 to +137.06; 2 seeds)"


def test_one_seed_has_no_interval_and_other_options_are_another_method() -> None:
    one, other = (run("at", evaluation(clean="1111111111", fgsm="1111111111")) for _ in range(2))
    for number, each in enumerate((one, other)):
        each.config |= {"seed": number, "lr": 0.1 * number}
        each.folder = Path(f"at-{number}")
    assert SideBySide.of([one, other]).over_seeds() == []


def test_the_interval_of_a_difference_on_other_images() -> None:
    """The examples (a) and (c) of Newcombe 1998, table II, method 10."""
    for (one, n), (other, m), wanted in (
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
    ):
        first, second = ((k / of, wilson_interval(k, of)) for k, of in ((one, n), (other, m)))
        gain, interval = unpaired_interval(first, second)
        assert gain == pytest.approx(one / n - other / m)
        assert interval == pytest.approx(wanted, abs=1e-4)


def test_other_images_are_compared_by_intervals() -> None:
    many = evaluation(n=20, fgsm="1" * 18 + "00") | {"images": "many"}
    few = evaluation(fgsm="1111100000") | {"images": "few"}
    other = evaluation(n=20, fgsm="1" * 20) | {"images": "others", "norm": "L2"}
    for runs in ([run("one", few), run("two", many)], [run("one", few), run("two", many, other)]):
        (difference,) = SideBySide.of(runs).pairs()
        assert (difference.first, difference.second, difference.p_value) == ("one", "two", None)
        figures = [(o["accuracy"], o["interval"]) for e in (many, few) for o in e["outcomes"]]
        assert (difference.gain, difference.interval) == unpaired_interval(*figures)
        assert difference.facts == ("best", "Linf 0.1", "10, 20")
    (line,) = SideBySide.of(runs).unpaired()
    assert line[:4] == ["two − one", "best", "Linf 0.1", "10, 20"]
    assert SideBySide.of(runs).differences() == []


def test_where_the_same_images_are_there_others_say_nothing() -> None:
    same, more = evaluation(fgsm="1111100000"), evaluation(n=20, fgsm="1" * 20)
    (difference,) = SideBySide.of([run("one", same), run("two", more, same)]).pairs()
    assert (difference.p_value, difference.interval) == (1, None)


def test_a_model_from_elsewhere_is_compared_with_any_weights() -> None:
    given = evaluation(fgsm="1111100000") | {"weights": "given"}
    last = evaluation(fgsm="1111100000") | {"weights": "last"}
    best = evaluation(fgsm="1111111100")
    (difference,) = SideBySide.of([run("one", best), run("two", given)]).pairs()
    assert difference.facts == ("best, given", "Linf 0.1", "10")
    assert not list(SideBySide.of([run("one", best), run("two", last)]).pairs())


def test_one_run_alone_is_a_table_without_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.Run, "open", {"at": AT, "mrboost": BOOSTED}.__getitem__)
    assert "Differences" not in compare.text_table(["at"])
    lines = compare.text_table(["at", "mrboost"]).splitlines()
    assert " ".join(lines[-2].split()) == "mrboost − at -10.00 (1) +40.00 (0.22)"
    assert lines[-1] == "all: weights best, ball Linf 0.1, images 10"


def test_a_run_without_figures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"at": AT, "new run": run("new run")}
    monkeypatch.setattr(compare.Run, "open", runs.__getitem__)
    assert compare.text_table(["new run"]) == "not evaluated yet: mrboost evaluate 'new run'"
    both = compare.text_table(["at", "new run"]).splitlines()
    assert both[0].startswith("run")
    assert "not evaluated yet: mrboost evaluate 'new run'" in both


def test_attacks_without_a_difference_have_no_column() -> None:
    table = [["b − a", "best", "Linf 0.1", "50", "+1.00 (1)", "–"]]
    words, shown = in_common(["", "weights", "ball", "images", "clean", "cw"], table)
    assert words == "all: weights best, ball Linf 0.1, images 50"
    assert shown == [["", "clean"], ["b − a", "+1.00 (1)"]]
