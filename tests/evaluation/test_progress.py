"""What is heard of an evaluation while it runs: a bar, or lines in a log, and how long is left."""

from __future__ import annotations

import contextlib
import io
import os
import pty
from types import SimpleNamespace

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


def test_a_log_says_how_long_the_rest_may_take(capsys, monkeypatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def line(now: float, count: int) -> str:
        clock.now = now
        shown(count)
        return capsys.readouterr().err.strip()

    with meter.Meter(True) as shown:
        shown.doing("pgd")
        assert line(70, 1) == "evaluate: pgd (70 s)"  # of how many is not known
        shown.begin(1000)
        assert line(130, 750) == "evaluate: pgd (75% of all, 130 s, about 20 s left)"
        # At the pace of late
        assert line(190, 10) == "evaluate: pgd (76% of all, 190 s, about 24 min left)"
        shown.say("pgd is done")
        assert "about 38 s left" in capsys.readouterr().err  # too soon after the last
        assert line(7390, 20) == "evaluate: pgd (78% of all, 7390 s, about 22 h left)"
        assert line(7450, 220) == "evaluate: pgd (100% of all, 7450 s)"


def test_a_moment_says_nothing_of_hours(capsys, monkeypatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: clock.now))
    shown = meter.Meter(True)
    shown.begin(1000)
    for now, count in ((1.0, 1), (2.0, 49), (6.0, 1)):
        clock.now = now
        shown(count)
        shown.say("fgsm")
    assert capsys.readouterr().err.splitlines() == [
        "evaluate: fgsm (0% of all, 1 s)",
        "evaluate: fgsm (5% of all, 2 s, about 38 s left)",
        "evaluate: fgsm (5% of all, 6 s, about 2 min left)",
    ]


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


def test_what_was_kept_says_nothing_of_the_time_left(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    progress = meter.Meter(True)
    progress.begin(100)
    progress.skip(50)
    progress.say("kept")
    now[0] = 20.0
    progress(10)
    progress.say("more")
    assert capsys.readouterr().err.splitlines() == [
        "evaluate: kept (50% of all, 0 s)",
        "evaluate: more (60% of all, 20 s, about 80 s left)",
    ]
