"""Observers of a training: what they are told, and that they change nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import mrboost
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.training.boost import boost


def test_they_are_told_every_epoch_and_round_once_it_is_saved(tiny: Dataset, tmp_path) -> None:
    out = tmp_path / "run"
    epochs, rounds = list[dict](), list[dict]()

    def on_epoch(record: dict) -> None:
        assert len((out / "metrics.jsonl").read_text().splitlines()) == len(epochs) + 1
        epochs.append(record)

    def on_round(record: dict) -> None:
        assert mrboost.runs.Run.open(out).rounds_done() == record["round"]
        rounds.append(record)

    options: dict = {"rounds": 2, "epochs": 2, "device": "cpu", "out": out}
    boost("mrboost", tiny, on_epoch=on_epoch, on_round=on_round, **options)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row.items() <= record.items() for row, record in zip(metrics, epochs, strict=True)]
    assert [(r["round"], r["epoch"]) for r in epochs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all((r["rounds"], r["epochs"]) == (2, 2) for r in (*epochs, *rounds))
    for record in rounds:
        last = [r for r in epochs if r["round"] == record["round"]][-1]
        assert record["epoch"] == last["best_epoch"]
        chosen = [r for r in epochs if r["round"] == record["round"]][record["epoch"] - 1]
        assert record["robust"] == chosen["robust"]

    grown = options | {"rounds": 3, "resume": True}
    boost("mrboost", tiny, on_epoch=epochs.append, on_round=rounds.append, **grown)
    assert [r["round"] for r in rounds] == [1, 2, 3]  # what is done already is not told again
    assert [r["round"] for r in epochs] == [1, 1, 2, 2, 3, 3]


def test_they_cannot_steer(tiny: Dataset) -> None:
    def hostile(record: dict) -> None:
        torch.manual_seed(record["epoch"])
        torch.rand(7)
        record.clear()
        raise ConnectionError("the logger is away")

    alone = boost("mrboost", tiny, rounds=2, epochs=2, device="cpu")
    problem = (
        r"on_epoch failed after round \d, epoch \d \(ConnectionError: the logger is away\); the "
    )
    with pytest.warns(RuntimeWarning, match=problem):
        watched = boost("mrboost", tiny, rounds=2, epochs=2, device="cpu", on_epoch=hostile)
    for one, other in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)

    def interrupt(record: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        boost("at", tiny, epochs=2, device="cpu", on_round=interrupt)


def test_tensorboard(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, flushed = dict[tuple[str, int], float](), list[int]()

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "logs")

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written[tag, step] = value

        def flush(self) -> None:
            flushed.append(len(written))

    module = ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", SummaryWriter, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    records = list[dict]()
    logger = mrboost.loggers.TensorBoard(tmp_path / "logs")

    def both(record: dict) -> None:
        logger(record)
        records.append(record)

    boost("mrboost", tiny, rounds=2, epochs=2, device="cpu", on_epoch=both)
    assert len(flushed) == 4
    assert written["round 2/loss", 1] == records[2]["loss"]
    assert written["round 1/robust", 2] == records[1]["robust"]
    assert {tag for tag, _ in written} >= {"round 1/lr", "round 2/train_robust", "round 2/seconds"}
    assert not any("epoch" in tag.replace("best_epoch", "") for tag, _ in written)


def test_weights_and_biases(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, logged = list[dict](), list[dict]()
    wandb = ModuleType("wandb")
    monkeypatch.setattr(
        wandb,
        "init",
        lambda **given: begun.append(given) or SimpleNamespace(log=logged.append),
        raising=False,
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    records = list[dict]()
    boost(
        "at", tiny, epochs=2, device="cpu", on_epoch=mrboost.loggers.WandB("mine", mode="offline")
    )
    boost("at", tiny, epochs=2, device="cpu", on_epoch=records.append)
    assert begun == [{"project": "mine", "mode": "offline"}]
    without_time = [{k: v for k, v in row.items() if k != "seconds"} for row in logged]
    assert without_time == [{k: v for k, v in r.items() if k != "seconds"} for r in records]


def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"tensorboard cannot .*: pip install 'mrboost\[tens"):
        mrboost.loggers.TensorBoard(tmp_path)
    with pytest.raises(InputError, match=r"wandb cannot .*: pip install 'mrboost\[wandb\]'"):
        mrboost.loggers.WandB("mine")
