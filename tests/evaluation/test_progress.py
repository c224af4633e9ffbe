"""What is heard of an evaluation while it runs: a bar, or lines in a log, and how long is left."""

from __future__ import annotations

import io

import pytest
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import mrboost
from mrboost import progress as meter
from mrboost.attacks import PGD
from mrboost.data.dataset import count
from mrboost.evaluation import inputs


@pytest.mark.parametrize("told", [True, False], ids=["of known number", "of unknown number"])
def test_a_log_gets_a_line_for_each_stage_and_attack(
    told: bool, model, batch, small_autoattack, capsys, monkeypatch
) -> None:
    """Standard error is no terminal here."""
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)
    pairs = TensorDataset(*batch)
    source = DataLoader(pairs, batch_size=9) if told else iter(DataLoader(pairs, batch_size=9))
    attacks = {"pgd-3": PGD(0.15, steps=3), "aa": small_autoattack}
    result = mrboost.evaluate(model, source, attack=attacks, progress=True, check=False)
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    for outcome in result.outcomes:
        done = f"evaluate: {outcome.attack} is done, {outcome.accuracy:.2%} stand"
        assert lines.count(done) == 1
    assert (
        sum("stage" in line for line in lines) == 2 * 3
    )  # of three chunks; the last stage ends the attack
    mrboost.evaluate(model, *batch, attacks, check=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("make", "n"),
    [
        (lambda pairs: pairs, 64),
        (lambda pairs: pairs.tensors[0], 64),
        (lambda pairs: DataLoader(pairs, sampler=SubsetRandomSampler(range(50))), 50),
        (lambda pairs: DataLoader(pairs, batch_sampler=[[0, 1]]), None),
        (iter, None),
    ],
)
def test_the_number_of_images_is_told_or_unknown(make, n: int | None, batch) -> None:
    assert count(make(TensorDataset(*batch))) == n


def test_a_terminal_gets_a_bar(model, batch, monkeypatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(meter, "EVERY", 0.0)
    mrboost.evaluate(model, *batch, "pgd-3", progress=True, check=False)
    assert "pgd-3: 100%" in terminal.getvalue()
    assert "evaluate:" not in terminal.getvalue()
