"""What commands print has room in a terminal of 80 columns, and says what is next."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done, error_of, write_pictures
from mrboost.cli.main import main

QUICK = ["--n", "12", "--device", "cpu"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, since whatever is named by its whole path is long."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, on standard output and standard error; each line fits."""
    lines = [line for text in capsys.readouterr() for line in text.splitlines()]
    assert lines
    assert [line for line in lines if len(line) > 80] == []
    return lines


def test_a_training_its_figures_and_its_report(here: Path, capsys) -> None:
    write_pictures(here / "pictures", "abc")
    train = ["train", "mrboost", "--data", "folder:pictures", "--model", "cnn-digits"]
    train += ["--epochs", "2", "--device", "cpu"]
    done(*train, "--rounds", "2", "--out", "boosted")
    lines = lines_of(capsys)
    assert sum("  kept: " in line for line in lines) == 4 + 2, "each epoch, and each round"
    assert not any("best" in line for line in lines)
    assert lines.index("next: mrboost evaluate boosted") < lines.index(
        "next: mrboost report boosted"
    )
    done(*train, "--rounds", "1", "--seed", "1", "--out", "alone")
    done("join", "alone", "boosted", "--out", "joined")
    for run in ("boosted", "alone", "joined"):
        done("evaluate", run, *QUICK, "--attack", "fgsm,pgd-2,pgd-3", "--staged")
    lines = lines_of(capsys)
    worst = [line for line in lines if line.startswith("worst case ")]
    assert len(worst) == 2 + 1 + 3
    assert all(line.endswith("  over fgsm, pgd-2, pgd-3") for line in worst)
    assert "next: mrboost evaluate alone --attack autoattack" in lines
    done("evaluate", "alone", *QUICK, "--eps", "0.05,0.1", "--attack", "fgsm,pgd-2,pgd-3,pgd-4")
    done("report", "boosted", "alone", "joined", *QUICK)
    lines_of(capsys)


def test_quiet_is_what_was_found_alone(here: Path, pictures: list[str], capsys) -> None:
    once = ["--rounds", "2", "--epochs", "1", "--steps", "1", "--device", "cpu"]
    for more in ([], ["--quiet"]):
        folder = "quiet" if more else "loud"
        run = f"{folder}/run"
        for command in (
            ["train", "mrboost", *pictures, *once, "--out", run],
            ["evaluate", run, "--attack", "fgsm", "--n", "2", "--no-check", "--device", "cpu"],
            ["soup", run, "--out", f"{folder}/soup", "--device", "cpu"],
            ["join", run, f"{folder}/soup", "--out", f"{folder}/joined"],
        ):
            done(*command, *more)
            found, progress = capsys.readouterr()
            assert ("next: mrboost" in found) != bool(more), command
            assert folder in found
            assert not (more and progress), command


def test_lists(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRBOOST_DATA", "data")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    for command in (["recipes"], ["recipes", "--show", "mrboost"], ["data"], ["data", "cifar100"]):
        done(*command)
        lines_of(capsys)
    done("study", "--list")
    lines_of(capsys)


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "join", "reweight", "report", "study", "recipes", "data"]
)
def test_help(command: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines_of(capsys)


def test_a_download_needs_a_name(capsys) -> None:
    assert "give the NAME of the dataset" in error_of(capsys, "data", "--download")
