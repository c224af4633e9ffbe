"""What is heard of an evaluation while it runs: a bar, or lines in a log, and how long is left."""

from __future__ import annotations

import contextlib
import io
import os
import pty

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import mrboost
from mrboost import progress as meter
from mrboost.attacks import PGD
from mrboost.evaluation import inputs, robustness_curve


def test_a_log_gets_lines(model, batch, small_autoattack, capsys, monkeypatch) -> None:
    """Standard error is no terminal here: a line for what is finished, and some in between."""
    attacks = {"pgd-3": PGD(0.15, steps=3), "aa": small_autoattack}
    result = mrboost.evaluate(model, *batch, attacks, progress=True, check=False)
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    stages = [
        f"stage {stage.attack} is done, {round(64 * stage.accuracy)} of 64 stand"
        for stage in result["aa"].stages
    ]
    done = [
        f"{outcome.attack} is done, {outcome.accuracy:.2%} stand" for outcome in result.outcomes
    ]
    assert lines == [f"evaluate: {line}" for line in (*done[:2], *stages[:2], done[2])]
    monkeypatch.setattr(meter, "EVERY", 0.0)
    mrboost.evaluate(model, *batch, attacks, progress=True, check=False)
    assert "evaluate: aa (" in capsys.readouterr().err
    mrboost.evaluate(model, *batch, attacks, check=False)
    assert capsys.readouterr().err == ""
    curve = robustness_curve(model, *batch, [0.1], attack="pgd-3", progress=True)
    lines = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert [
        f"curve: eps {eps:g} is done, {accuracy:.2%} of 64 images stand"
        for eps, accuracy, _ in curve
    ] == lines[1::2]


def test_a_log_says_what_is_done_however_the_images_come(model, batch, capsys, monkeypatch) -> None:
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)
    x, y = batch
    pairs = TensorDataset(x, y)
    for source, n in {
        DataLoader(pairs, sampler=SubsetRandomSampler(range(50))): 50,
        DataLoader(pairs, batch_size=10, drop_last=True): 60,
        DataLoader(pairs, batch_sampler=BatchSampler(range(30), 7, drop_last=False)): 30,
        DataLoader(pairs, batch_sampler=[[0, 1], [2]]): 3,
        Subset(pairs, range(50)): 50,
        ((x[i : i + 9], y[i : i + 9]) for i in range(0, 45, 9)): 45,
    }.items():
        result = mrboost.evaluate(model, source, attack="fgsm", eps=0.1, progress=True, check=False)
        lines = capsys.readouterr().err.splitlines()
        assert result.n == n
        assert [line.partition(" (")[0] for line in lines] == [
            f"evaluate: {outcome.attack} is done, {outcome.accuracy:.2%} stand"
            for outcome in result.outcomes
        ]
        assert lines[-1].partition(" (")[2].startswith("100% of all, ") == (
            inputs.count(source) is not None
        )


def test_the_number_of_images_is_told_or_unknown(batch) -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(pairs)

    class Told(Stream):
        def __len__(self) -> int:
            return 64

    pairs = TensorDataset(*batch)
    for source, n in {
        batch[0]: 64,
        pairs: 64,
        Told(): None,  # gives batches, and this is their number
        DataLoader(pairs, sampler=BatchSampler(range(9), 4, drop_last=True), batch_size=None): 8,
        DataLoader(Told(), batch_size=10, drop_last=True): 60,
        DataLoader(Stream(), batch_size=10): None,
        DataLoader(pairs, batch_size=None): None,
        DataLoader(pairs, batch_sampler=[[0, 1]]): None,
        DataLoader(pairs, sampler=iter(range(5))): None,
    }.items():
        assert inputs.count(source) == n


def test_a_terminal_gets_a_bar(model, batch, monkeypatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(meter, "EVERY", 0.0)
    mrboost.evaluate(model, *batch, "pgd-3", progress=True, check=False)
    assert "pgd-3: 100%" in terminal.getvalue()
    assert "evaluate:" not in terminal.getvalue()


def test_a_terminal_without_columns_gets_lines(model, batch, monkeypatch) -> None:
    ours, theirs = pty.openpty()  # as it is made it has none
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        mrboost.evaluate(model, *batch, "fgsm", progress=True, check=False)
    shown = b""
    # Which says that all was read
    with os.fdopen(ours, "rb", buffering=0) as reads, contextlib.suppress(OSError):
        while part := reads.read(4096):  # a terminal gives its lines one by one
            shown += part
    assert b"evaluate: fgsm is done" in shown


def test_clean_images_say_nothing_of_the_time_that_attacks_take(model, batch, capsys) -> None:
    mrboost.evaluate(model, *batch, ["pgd-3", "fgsm"], progress=True, check=False)
    clean, pgd, _ = capsys.readouterr().err.splitlines()
    assert "left" not in clean
    assert "left" in pgd
