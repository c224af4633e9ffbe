"""Publishing a figure, as a user types it: evaluate --card, --verify and --time-budget, compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import done, error_of, json_of, results_of, snapshot
from mrboost.cli.main import main

QUICK = ["--device", "cpu", "--quiet"]


@pytest.fixture
def card(run: Path, tmp_path: Path, capsys) -> Path:
    asked = ["--attack", "fgsm,pgd-3", "--n", "60", "--no-check", "--eps", "0.15", *QUICK]
    done("evaluate", run, *asked, "--card", tmp_path / "card")
    out = capsys.readouterr().out
    assert f"card: {tmp_path}/card.json and {tmp_path}/card.md" in out
    return tmp_path / "card.json"


def test_a_card_is_written_and_verified(run: Path, card: Path, capsys) -> None:
    content = json.loads(card.read_text())
    made = content["made"]["command"]
    assert made.startswith(f"mrboost evaluate {run} --attack fgsm,pgd-3 --n 60")
    before = snapshot(run)
    done("evaluate", run, "--verify", card, "--n", "20", *QUICK)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("20 images measured again (--seed ")
    assert [line.split()[:2] for line in shown[3:]] == [
        [name, "agrees"] for name in ("clean", "fgsm", "pgd-3")
    ]
    found = json_of(capsys, "evaluate", run, "--verify", card, "--seed", "5", *QUICK)
    assert (found["holds"], found["n"], found["seed"]) == (True, 60, 5)
    assert snapshot(run) == before


def test_a_card_of_another_network_does_not_hold(run: Path, card: Path, capsys) -> None:
    content = json.loads(card.read_text())
    content["model"]["weights"] = "0" * 32
    card.write_text(json.dumps(content))
    assert main(["evaluate", str(run), "--verify", str(card), "--json", *QUICK]) == 2
    out, error = capsys.readouterr()
    assert json.loads(out)["holds"] is False
    start = f"mrboost: error: {card} does not hold: weights: the card has {'0' * 32}, here it is "
    assert error.startswith(start)
    assert error.count("\n") == 1


def test_a_model_of_ones_own_has_a_card(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("mine", 0), ("other", 1)):
        Path(f"{name}.py").write_text(
            "import torch\n"
            "def net():\n"
            f"    torch.manual_seed({seed})\n"
            "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        )
    model, other = (
        ["evaluate", f"{name}.py:net", "--data", "digits", *QUICK] for name in ("mine", "other")
    )
    done(*model, "--attack", "fgsm", "--eps", "0.1", "--norm", "Linf", "--card", "card.json")
    content = json.loads(Path("card.json").read_text())
    assert content["submission"]["additional_data"] is None
    assert content["data"]["points"] is None
    assert json_of(capsys, *model, "--verify", "card.json")["holds"] is True
    assert main([*other, "--verify", "card.json"]) == 2
    assert "does not hold: weights" in capsys.readouterr().err


def test_compare_takes_runs_and_cards(run: Path, card: Path, capsys) -> None:
    done("evaluate", run, "--attack", "fgsm", "--no-check", "--eps", "0.15", *QUICK)
    found = json_of(capsys, "compare", run, card)
    figures = {one["n"]: one["attacks"]["fgsm"]["accuracy"] for one in found["evaluations"]}
    assert set(figures) == {60, 355}
    assert {(one["gain"], one["p_value"]) for one in found["differences"]} == {(0.0, 1.0)}
    done("compare", run, card)
    assert f"{card} − {run}" in capsys.readouterr().out
    assert "it has no config.json" in error_of(capsys, "compare", run, card.parent / "none")
    card.write_text("[]")
    assert "must hold a JSON object" in error_of(capsys, "compare", run, card)


def test_a_time_budget(run: Path, capsys) -> None:
    command = ["evaluate", run, "--attack", "fgsm", "--n", "100", "--no-check", *QUICK]
    (whole,) = json_of(capsys, *command)["evaluations"]
    (ample,) = json_of(capsys, *command, "--time-budget", "1h")["evaluations"]
    assert ample["left_out"] == 0
    assert ample["outcomes"][1]["correct"] == whole["outcomes"][1]["correct"]
    (short,) = json_of(capsys, *command, "--time-budget", "0.0001s")["evaluations"]
    assert (short["n"], short["left_out"]) == (64, 36)
    kept = results_of(run)["evaluations"][-1]
    assert kept["points"] == [ample_points(run)[number] for number in short["chosen"]]
    assert not (run / "checkpoint" / "evaluation").exists()


def ample_points(run: Path) -> list[int]:
    (found,) = (e["points"] for e in results_of(run)["evaluations"] if e["n"] == 100)
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--card x --eps 0.1,0.2", "--card is for one classifier in one ball"),
        ("--card x --weights best,last", "give one of --weights and --eps"),
        ("--card RUN/config.json/x", "cannot write a card to"),
        ("--time-budget 2m --eps 0.1,0.2", "--time-budget is for one classifier in one ball"),
        ("--time-budget 2", "'2' is not a time such as 90s, 2m or 1h"),
        ("--time-budget 0s", "'0s' is not a time"),
        ("--time-budget 2m --resume", "a time budget starts anew"),
        ("--verify x --attack fgsm", "--attack comes from the card"),
        ("--verify x --eps 0.1", "--eps comes from the card"),
        ("--seed 1", "--seed draws the images of --verify CARD"),
        ("--verify none.json", "there is no card 'none.json': give the .json"),
    ],
)
def test_mistakes(arguments: str, message: str, run: Path, capsys) -> None:
    before = snapshot(run)
    assert message in error_of(capsys, "evaluate", run, *arguments.replace("RUN", str(run)).split())
    assert snapshot(run) == before
