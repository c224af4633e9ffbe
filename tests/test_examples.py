"""The examples that the documentation names: all can be imported, and the quick ones run."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mrboost.attacks import PGD

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_can_be_imported(path: Path) -> None:
    assert callable(load(path).main)


@pytest.mark.parametrize(
    "path", [*EXAMPLES, *(ROOT / "benchmarks").glob("*.py")], ids=lambda path: path.stem
)
def test_it_loads_mrboost_before_torch(path: Path) -> None:
    """As the command does: mrboost says how idle threads wait, and torch reads that once."""
    names = re.findall(r"^(?:import|from) (mrboost|torch)\b", path.read_text(), re.MULTILINE)
    assert names[:1] in (["mrboost"], [])  # one that only starts commands needs neither


def test_averaged_statistics(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a short training a slow average has mostly its first weights, and no statistics
    but its own fit those."""
    example = load(ROOT / "examples" / "averaged_statistics.py")
    # Clean accuracies will do
    monkeypatch.setattr(example, "PGD", lambda eps, steps, **how: PGD(eps, steps=1, **how))
    monkeypatch.setattr(sys, "argv", ["averaged_statistics.py", "--steps", "50"])
    example.main()
    *_, row = capsys.readouterr().out.splitlines()
    clean = [float(cell.split("/")[0]) for cell in row.split("|")[2:-1]]
    assert clean[1] < 30 < 60 < clean[2] < clean[5]


def test_contours_of_mce(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["mce_contours.py", "--points", "11", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", options)
    load(ROOT / "examples" / "mce_contours.py").main()
    mce = (
        -5 + math.log(math.exp(5) + math.exp(4) + 1) + 4 + math.log(math.exp(-5) + math.exp(-4) + 1)
    )
    ce = 2 * (-5 + math.log(math.exp(5) + math.exp(4) + 1))
    assert f"| (5, 4, 0) | {mce:.3f} | {ce:.3f} | {mce - ce:+.3f} |" in capsys.readouterr().out
    names = ["mce-contours-ce.svg", "mce-contours-mce.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_the_gap_of_algorithm_1_is_within_theorem_4s_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--rounds", "200", "--perturbations", "2", "--out", str(tmp_path / "bound.svg")]
    monkeypatch.setattr(sys, "argv", ["convergence.py", *options])
    load(ROOT / "examples" / "convergence.py").main()
    out = capsys.readouterr().out
    assert "within the bound in 200 of 200 rounds" in out
    assert f" {3 * math.log(714) / math.sqrt(100):.4f} |" in out


def test_the_rules_that_choose_an_epoch() -> None:
    rules = load(ROOT / "examples" / "choosing_an_epoch.py").RULES
    curve = [0.3, 0.5, 0.5, 0.48, 0.46, 0.4]  # of 100 images: half an error is 0.025, one is 0.05
    assert [rule(curve, 100) for rule in rules.values()] == [1, 2, 3, 4, 5]


def test_rows_of_equal_cost_have_the_epochs_that_the_measured_seconds_allow() -> None:
    example = load(ROOT / "examples" / "equal_cost.py")
    # Seconds of an epoch: less than t times the first round's
    took = {1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0, 5: 6.0}
    metrics = [
        {"round": t, "seconds": took[t] + 4 * (epoch == 0)} for t in took for epoch in range(8)
    ]
    boosting = example.Boosting.of(8, metrics)
    # 180 seconds
    assert boosting == example.Boosting(8, 8 * sum(took.values()) + 5 * 4, list(took.values()))
    plans = {label: plan(boosting) for label, (_, _, plan) in example.METHODS.items()}
    assert plans["one at, as long"] == example.Plan(90, 90)
    assert plans["five independent at"] == example.Plan(18, 18)
    assert plans["mrboost-drawn"] == example.Plan(13, 13)  # 180 / (2 + 4 × 3)
    # (180 − 4 × (3 + 4 + 5 + 6)) / 2
    assert plans["mrboost, a long first round"] == example.Plan(54, 4)
    # (180 − 4 × 7 × 3) / 2
    assert plans["mrboost-drawn, a long first round"] == example.Plan(48, 7)
