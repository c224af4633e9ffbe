"""The run folder: written so that a crash at any moment loses at most the epoch under way.

::

    config.json            what was asked for, with every default filled in
    metrics.jsonl          one line per epoch
    checkpoint/            state.safetensors: the last whole epoch, everything needed to go on
    members/               01.safetensors (the chosen epoch), 01.last.safetensors (the last
                           one), 02… per boosting
                           round; weights.json, if weights were learned for them
    results.json           evaluations
    report.html

Every file but metrics.jsonl is replaced in one step, results.json by one process at a time
(.results.lock). A metrics line is written before its epoch's checkpoint, and lines beyond the
checkpoint are dropped on resume.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from mrboost import models
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.files import (
    State,
    read_facts,
    read_json,
    read_tensors,
    replace_file,
    write_json,
    write_tensors,
)
from mrboost.seeds import global_stream

from .identity import CIRCUMSTANCES, differences
from .schema import FORMAT, check_config, check_results

_METRICS = {"round", "epoch", "loss", "train_robust", "clean", "robust", "seconds"}
_KINDS = {"best": "{:02d}.safetensors", "last": "{:02d}.last.safetensors"}


class Run:
    """A run folder that exists. ``create`` or ``resume`` one for training, ``open`` one to read."""

    leads = True
    """Whether this process is the one that writes."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read a run; refuse a folder that is not one."""
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(
                f"there is no run folder {str(folder)!r}: give the --out of a training"
            )
        path = folder / "config.json"
        if not path.is_file():
            raise InputError(f"{str(folder)!r} is not a run folder: it has no config.json")
        config = read_json(path)
        check_config(config, path)
        return cls(folder, config)

    @classmethod
    def create(cls, folder: str | Path, description: Mapping[str, Any]) -> Run:
        """Start a run in a new or empty folder."""
        folder = Path(folder)
        if (folder / "config.json").exists():
            raise InputError(
                f"{str(folder)!r} holds a run already: go on with it (--resume, resume=True), "
                "or choose another folder"
            )
        if folder.exists() and not (folder.is_dir() and _is_new(folder)):
            raise InputError(
                f"{str(folder)!r} exists and is not a run folder: choose another --out"
            )
        try:
            for part in ("members", "checkpoint"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            write_json(folder / "config.json", {"format": FORMAT, **description})
        except OSError as error:
            raise InputError(
                f"cannot write the run folder {str(folder)!r}: {error.strerror}: choose "
                "another --out"
            ) from None
        return cls(folder, {"format": FORMAT, **description})

    @classmethod
    def resume(cls, folder: str | Path, description: Mapping[str, Any]) -> Run:
        """Go on with a run of the same configuration, or with more rounds; a folder
        without a run is started."""
        if not (Path(folder) / "config.json").exists():
            return cls.create(folder, description)
        run = cls.open(folder)
        more_rounds = description["rounds"] > run.config["rounds"]
        ignore = {*CIRCUMSTANCES, *(["rounds"] if more_rounds else [])}
        if "first" not in description:  # it is copied already, or found where the run says
            ignore.add("first")
        changed = differences(run.config, description, ignore=ignore)
        if changed:
            raise InputError(
                f"the run in {str(folder)!r} has another configuration ({'; '.join(changed)}): "
                "resume it with the same options, or choose another --out"
            )
        if not os.access(run.folder, os.W_OK):
            raise InputError(
                f"cannot write the run folder {str(folder)!r}: choose a copy that you may write"
            )
        for part in ("members", "checkpoint"):  # a copy need not have brought what is empty
            (run.folder / part).mkdir(exist_ok=True)
        if more_rounds:
            run.config["rounds"] = description["rounds"]
            write_json(run.folder / "config.json", run.config)
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second training out. The system drops the lock when the process
        ends, however it ends."""
        import fcntl

        with (self.folder / "checkpoint" / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another process is training in {str(self.folder)!r}: wait for it or end it"
                ) from None
            # By a training that was killed
            for left in (self.folder / "checkpoint").glob(".state.*.tmp"):
                left.unlink()
            yield

    # Training state

    def save_checkpoint(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        write_tensors(self.folder / "checkpoint" / "state.safetensors", tensors, facts)

    def load_checkpoint(self) -> tuple[State, dict[str, Any]] | None:
        path = self.folder / "checkpoint" / "state.safetensors"
        return read_tensors(path) if path.exists() else None

    def clear_checkpoint(self) -> None:
        (self.folder / "checkpoint" / "state.safetensors").unlink(missing_ok=True)

    # Metrics

    def log(self, row: Mapping[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break  # the line that a crash cut short is the last one
            if not isinstance(row, dict) or not row.keys() >= _METRICS:
                raise InputError(
                    f"{path} holds a line that is no epoch's metrics ({str(row)[:60]}): "
                    "restore it from a copy"
                )
            rows.append(row)
        return rows

    def rewind_metrics(self, round_: int, epoch: int) -> None:
        """Drop the lines after this epoch: the checkpoint does not know of them."""
        rows = [row for row in self.metrics() if (row["round"], row["epoch"]) <= (round_, epoch)]
        replace_file(
            self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()
        )

    # Members

    def save_member(self, round_: int, best: State, last: State, epochs: Mapping[str, int]) -> None:
        """Keep both ends of a round; the member counts as there once "best" is,
        which is written second.

        ``epochs`` says after which epoch the weights were "best" and "last".
        """
        write_tensors(self._member(round_, "last"), last, {"epoch": epochs["last"]})
        write_tensors(self._member(round_, "best"), best, {"epoch": epochs["best"]})

    def adopt(self, source: Run, round_: int, of: int) -> None:
        """A member of another run, as it is in that run's classifier of ``of`` rounds, as the
        next one of this run."""
        mine = self.rounds_done() + 1
        for row in source.metrics():
            if row["round"] == round_:
                self.log(row | {"round": mine})
        states, epochs = {}, {}
        for which in _KINDS:
            path = source.member_files(of, which)[round_ - 1]
            states[which], epochs[which] = source._load(path).state_dict(), _epoch(path)
        self.save_member(mine, states["best"], states["last"], epochs)

    def member_files(self, rounds: int, which: str) -> list[Path]:
        """The weights of the classifier "best" or "last" after so many rounds.

        Its newest member has the weights that are asked for. The members before it have those that
        later rounds were trained against: ``past`` of the configuration, or without one, where
        rounds do not depend on each other, the same as the newest.
        """
        check_kind(which)
        past = self.config["past"] or which
        return [
            *(self._member(round_, past) for round_ in range(1, rounds)),
            self._member(rounds, which),
        ]

    def members(self, rounds: int, which: str) -> list[nn.Module]:
        """The members of the classifier "best" or "last" after so many rounds, frozen."""
        return [self._load(path) for path in self.member_files(rounds, which)]

    def classifier(self, which: str = "best", rounds: int | None = None) -> Ensemble | Mixture:
        """The classifier after so many rounds, or all of them, with the weights that were
        learned for its members."""
        done = max(self.rounds_done(), 1)  # of none, the first is said to be missing
        if rounds is not None and not 1 <= rounds <= done:
            raise InputError(f"rounds must be 1 to {done}, the members of this run, got {rounds}")
        members = self.members(done if rounds is None else rounds, which)
        weights = (self.load_weights(which, done) or [])[: len(members)]
        combine = Mixture if self.config["recipe"].get("combine") == "Mixture" else Ensemble
        return combine(members, weights if any(weights) else None).requires_grad_(False).eval()

    def epochs(self, round_: int) -> dict[str, int]:
        """After which epoch of a round its weights are "best" and "last"."""
        return {which: _epoch(self._member(round_, which)) for which in _KINDS}

    def rounds_done(self) -> int:
        done = 0
        while self._member(done + 1, "best").exists():
            done += 1
        return done

    def fingerprint(self, which: str = "best", members: int | None = None) -> str:
        """A short name for a classifier of the run: the files of its first ``members`` and
        their learned weights."""
        done = self.rounds_done()
        files = self.member_files(done if members is None else members, which)
        stamps = tuple(path.stat().st_mtime_ns for path in files)
        return _digest(repr(self.load_weights(which, done)), tuple(files), stamps)

    def is_of(self, evaluation: Mapping[str, Any]) -> bool:
        """Whether an evaluation is of the classifier as it is now; of a run without
        its weights, each is."""
        members, which = evaluation["members"], evaluation["weights"]
        if not all(path.exists() for path in self.member_files(members, which)):
            return True
        return evaluation.get("of") == self.fingerprint(which, members)

    def new_model(self) -> nn.Module:
        """A fresh model of the run's architecture."""
        shape, classes = self.config["input"]["shape"], self.config["input"]["classes"]
        with global_stream(0, torch.device("cpu")):  # its random weights are about to be replaced
            return models.build(self.config["model"], tuple(shape), classes)

    def _load(self, path: Path) -> nn.Module:
        if not path.exists():
            raise InputError(
                f"{str(self.folder)!r} has no finished round {int(path.name[:2])} "
                f"(members/{path.name} is missing): train it to its end with mrboost train "
                f"--resume --out {self.folder}"
            )
        model = self.new_model()
        try:
            model.load_state_dict(read_tensors(path)[0])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(
                f"{path} does not fit model {self.config['model']!r}: {reason}"
            ) from None
        return model.requires_grad_(False).eval()

    def _member(self, round_: int, which: str) -> Path:
        return self.folder / "members" / _KINDS[which].format(round_)

    def save_weights(self, which: str, weights: Sequence[float], how: str) -> None:
        """Keep learned weights of all members that are there now."""
        write_json(
            self.folder / "members" / "weights.json",
            {"of": which, "weights": list(weights), "how": how},
        )

    def load_weights(self, which: str, members: int) -> list[float] | None:
        """The learned weights of so many members, if there are any; equal ones otherwise."""
        path = self.folder / "members" / "weights.json"
        kept = read_json(path) if path.exists() else {}
        if (
            kept.get("of") != which
            or not isinstance(weights := kept.get("weights"), list)
            or len(weights) != members
        ):
            return None
        if not all(isinstance(weight, int | float) for weight in weights):
            raise InputError(
                f"{path} does not hold numbers: learn the weights again with mrboost reweight"
            )
        return weights

    # Results

    @property
    def results(self) -> dict[str, Any]:
        path = self.folder / "results.json"
        results = read_json(path) if path.exists() else {}
        check_results(results, path)
        return results

    def save_results(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Replace the results by what ``change`` makes of them; where several processes do so,
        one after the other."""
        import fcntl

        with (self.folder / ".results.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            write_json(self.folder / "results.json", change(self.results))


class Follower(Run):
    """The run as processes other than the first have it: they read, and leave the
    writing to the first."""

    leads = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def save_checkpoint(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...

    def clear_checkpoint(self) -> None: ...

    def log(self, row: Mapping[str, Any]) -> None: ...

    def rewind_metrics(self, round_: int, epoch: int) -> None: ...

    def save_member(
        self, round_: int, best: State, last: State, epochs: Mapping[str, int]
    ) -> None: ...

    def save_results(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None: ...


def load(run_dir: str | Path, which: str = "best", rounds: int | None = None) -> Ensemble | Mixture:
    """The trained classifier of a run: eval mode, float32, images in [0, 1] in, logits out.

    ``which`` is "best" (the newest member's epoch is chosen on validation images) or "last";
    ``rounds`` takes the ensemble as it was after so many of them. Members count alike unless
    ``mrboost reweight`` learned weights for them. Parameters need no gradient, so it plugs into any
    attack library as it is. A model of your own must be registered before, as it was for training.
    """
    return Run.open(run_dir).classifier(which, rounds)


@cache
def _digest(weights: str, files: tuple[Path, ...], stamps: tuple[int, ...]) -> str:  # noqa: ARG001 — files may change
    digest = hashlib.blake2b(weights.encode(), digest_size=8)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _epoch(path: Path) -> int:
    epoch = read_facts(path).get("epoch")
    if not isinstance(epoch, int) or epoch < 1:
        raise InputError(
            f"{path} does not say after which epoch its weights were kept: restore it from a copy"
        )
    return epoch


def _is_new(folder: Path) -> bool:
    """Whether a folder is empty but for what a crash before its config.json leaves."""
    parts = ("members", "checkpoint")
    return all(
        path.name in parts or path.match(".config.json.*.tmp") for path in folder.iterdir()
    ) and not any(path.is_file() for part in parts for path in (folder / part).glob("*"))


def check_kind(which: str) -> None:
    if which not in _KINDS:
        raise InputError(f"weights must be 'best' or 'last', got {which!r}")


def slug(data: str) -> str:
    """A name of data as a part of a folder's name."""
    return "".join(
        c if c.isalnum() or c in "-_." else "-" for c in Path(data.removeprefix("folder:")).name
    )
