"""Commands in processes of their own, forked from one that has loaded the library: that takes
a tenth of a second, and a new interpreter seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import mrboost
from mrboost import models
from mrboost.cli.main import main
from mrboost.files import write_tensors

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["mrboost.cli.commands", "lightning_fabric"])


def _command(*arguments: str) -> int:
    return main(arguments)


def start(
    log: Path,
    *arguments: str | Path,
    function: Callable[..., int | None] = _command,
    **environment: str,
) -> ForkServerProcess:
    """A command of mrboost, or another function; what it says is in log.out and log.err."""
    given = tuple(map(str, arguments))
    process = _FORKED.Process(target=_run, args=(log, function, given, environment))
    process.start()
    return process


def _run(
    log: Path,
    function: Callable[..., int | None],
    arguments: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    for stream, suffix in ((sys.stdout, ".out"), (sys.stderr, ".err")):
        os.dup2(os.open(f"{log}{suffix}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream.fileno())
    os.environ |= environment
    torch.set_num_threads(1)
    sys.exit(function(*arguments))


def in_two(
    folder: Path, *arguments: str | Path, function: Callable[..., int | None] = _command
) -> tuple[int, str, str]:
    """A command in two processes, as torchrun starts them: they meet at a store of the process
    that started them, and when one fails the other is ended.

    Returns:
        The greater status of the two, and what both wrote on standard output and standard error.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    logs = [folder / f"process-{rank}" for rank in "01"]
    processes = [
        start(log, *arguments, function=function, **shared, RANK=rank, LOCAL_RANK=rank)
        for log, rank in zip(logs, "01", strict=True)
    ]
    while running := [process for process in processes if process.is_alive()]:
        ended = wait([process.sentinel for process in running], timeout=600)
        if not ended or any(process.exitcode for process in processes):
            for process in running:
                process.terminate()
    out, err = ("".join(Path(f"{log}{s}").read_text() for log in logs) for s in (".out", ".err"))
    return max(abs(process.exitcode or 0) for process in processes), out, err


def train(recipe: str, model: str, folder: str) -> None:
    """What a user's script does under torchrun: each process saves the weights it ends with."""
    models.register("plain")(
        lambda shape, classes: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes)
        )
    )
    digits = mrboost.data.load("digits")
    small = replace(digits, name="small", train=digits.train[:140], test=digits.test[:40])
    options: dict = {"epochs": 2, "rounds": 2, "batch_size": 32, "validation": 3, "lr": 0.05}
    out = Path(folder, "run")
    trained = mrboost.boost(recipe, small, model=model, ema=0.9, out=out, device="cpu", **options)
    write_tensors(
        Path(folder, os.environ.get("RANK", "alone")).with_suffix(".safetensors"),
        trained.state_dict(),
        {},
    )
