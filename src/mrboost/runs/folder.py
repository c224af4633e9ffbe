"""The run folder: written so that a crash at any moment loses at most the epoch under way.

::

    config.json            what was asked for, with every default filled in
    metrics.jsonl          one line per epoch
    checkpoint/            state.safetensors: the last whole epoch, everything needed to go on;
                           lock: held by the process that trains
    members/               01.safetensors (the chosen epoch), 01.last.safetensors (the last
                           one), 02… per boosting round; weights.json, if weights were learned
                           for them
    results.json           evaluations; .results.lock: held by the process that adds to them
    report.html

Every file but metrics.jsonl is replaced in one step. A metrics line is written before its epoch's
checkpoint, and lines beyond the checkpoint are dropped on resume. Weights and checkpoint carry the
configuration that they were trained with, and weights a checksum: a file of weights can be loaded
by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrboost import files, models
from mrboost.attacks import BPDA
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation.resume import model_key
from mrboost.files import State
from mrboost.models.registry import check_size
from mrboost.models.source import Shape
from mrboost.progress import note
from mrboost.seeds import global_stream

from . import schema
from .identity import CIRCUMSTANCES, differences

_KINDS = {"best": "{:02d}.safetensors", "last": "{:02d}.last.safetensors"}


@dataclass(eq=False)
class Run:
    """A run folder that exists.

    ``Run.open`` one to read, ``Run.training`` to train in it. Where several processes train
    together, the one with ``writes`` writes, and the methods that write do nothing in the others.
    """

    folder: Path
    config: dict[str, Any] = field(repr=False)
    writes: bool = True

    @classmethod
    def open(cls, folder: str | Path, *, writes: bool = True) -> Run:
        """Read a run, or the evaluations of a model; refuse a folder that is neither."""
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise InputError(
                f"there is no run folder {str(folder)!r}: it has no config.json: give the --out of "
                "a training"
            )
        config = files.read_json(path)
        schema.check_config(config, path)
        kind = GivenModel if "given" in config else cls
        return kind(Path(folder), config, writes)

    @classmethod
    def create(cls, folder: str | Path, description: Mapping[str, Any]) -> Run:
        """Start a run in a new or empty folder."""
        folder = Path(folder)
        _check_free(folder, resume=False)
        _make_folders(folder)
        files.write_json(folder / "config.json", {"format": schema.FORMAT, **description})
        return cls.open(folder)

    @classmethod
    @contextmanager
    def training(
        cls, folder: str | Path, description: Mapping[str, Any], *, resume: bool = False
    ) -> Iterator[Run]:
        """The run of a configuration, while no other process trains in its folder.

        Args:
            folder: a new or empty folder, or, with ``resume``, one of a run with this
                configuration or with fewer rounds.
            description: the configuration (``mrboost.recipes.config.describe``).
            resume: go on with the run in the folder, if there is one.
        """
        folder = Path(folder)
        _check_free(folder, resume=resume)
        _make_folders(folder)
        busy = f"another process is training in {str(folder)!r}: wait for it or end it"
        with files.locked(folder / "checkpoint" / "lock", busy):
            if resume and (folder / "config.json").exists():
                run = cls.open(folder)
                run._grow(description)
            else:
                run = cls.create(folder, description)
            run._tidy()
            yield run

    def _grow(self, description: Mapping[str, Any]) -> None:
        """Take the number of rounds of a configuration that is this run's in all else."""
        more_rounds = description["rounds"] > self.config["rounds"]
        ignore = {*CIRCUMSTANCES, *(["rounds"] if more_rounds else [])}
        if "first" not in description:  # it is copied already, or found where the run says
            ignore.add("first")
        if changed := differences(self.config, description, ignore=ignore):
            raise InputError(
                f"the run in {str(self.folder)!r} has another configuration "
                f"({'; '.join(changed)}): resume it with the same options, or choose another --out"
            )
        self._check_unedited()
        self.chosen()  # refuses rounds of which nothing is known before more are trained
        if more_rounds:
            self.config["rounds"] = description["rounds"]
            files.write_json(self.folder / "config.json", self.config)

    def _check_unedited(self) -> None:
        """Refuse a configuration other than that of the weights and the checkpoint."""
        done = self.rounds_done()
        ignore = CIRCUMSTANCES | {"rounds", "first"}
        for path in [self._checkpoint] + ([self._member(done, "best")] if done else []):
            made_with = files.read_facts(path).get("config") if path.exists() else None
            if not isinstance(made_with, dict):
                continue
            if changed := differences(made_with, self.config, ignore=ignore):
                raise InputError(
                    f"{self.folder / 'config.json'} has changed since {path.name} was written "
                    f"({'; '.join(changed)}): put it back, or start a new run"
                )

    def _tidy(self) -> None:
        """Remove what killed processes left; the caller holds the lock of the training."""
        with self._changing():
            for folder in (self.folder, self.folder / "members", self.folder / "checkpoint"):
                files.remove_temporary(folder)
        if self.rounds_done() >= self.config["rounds"]:
            self.clear_checkpoint()

    # Training state

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.safetensors"

    def save_checkpoint(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self.writes:
            files.write_tensors(self._checkpoint, tensors, {**facts, "config": self.config})

    def load_checkpoint(self) -> tuple[State, dict[str, Any]] | None:
        """The tensors and the facts that were saved last, if any were."""
        if not self._checkpoint.exists():
            return None
        tensors, facts = files.read_tensors(self._checkpoint)
        schema.check(facts, schema.CHECKPOINT, self._checkpoint)
        return tensors, facts

    def clear_checkpoint(self) -> None:
        if self.writes:
            self._checkpoint.unlink(missing_ok=True)

    # Metrics

    def log(self, row: Mapping[str, Any]) -> None:
        if self.writes:
            path = self.folder / "metrics.jsonl"
            with files.naming(path), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """One row for each epoch."""
        path = self.folder / "metrics.jsonl"
        rows: list[dict[str, Any]] = []
        lines = files.read_bytes(path).splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = files.parse_json(line, path)
            except InputError:
                if number < len(lines):
                    raise
                break  # the line that a crash cut short is the last one
            schema.check(row, schema.METRICS, path)
            rows.append(row)
        return rows

    def rewind_metrics(self, round_: int, epoch: int) -> None:
        """Drop the lines after this epoch: the checkpoint does not know of them."""
        if self.writes:
            rows = [r for r in self.metrics() if (r["round"], r["epoch"]) <= (round_, epoch)]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            files.replace_file(self.folder / "metrics.jsonl", text.encode())

    def chosen(self) -> list[dict[str, Any]]:
        """The number and the rows of the best and the last epoch of each finished round."""
        rows = {(row["round"], row["epoch"]): row for row in self.metrics()}
        found = []
        for round_ in range(1, self.rounds_done() + 1):
            epochs = self.epochs(round_)
            if missing := [epoch for epoch in epochs.values() if (round_, epoch) not in rows]:
                problem = f"metrics.jsonl has no line of round {round_}, epoch {min(missing)}"
                raise InputError(f"{self.folder}: {problem}: restore it from a copy")
            of_round = {which: rows[round_, epoch] for which, epoch in epochs.items()}
            found.append({"round": round_, **of_round})
        return found

    # Members

    def save_member(self, round_: int, best: State, last: State, epochs: Mapping[str, int]) -> None:
        """Keep both ends of a round; the member counts as there once "best" is,
        which is written second.

        ``epochs`` says after which epoch the weights were "best" and "last".
        """
        if not self.writes:
            return
        for which, state in (("last", last), ("best", best)):
            facts = {"epoch": epochs[which], "checksum": files.checksum(state)}
            files.write_tensors(self._member(round_, which), state, facts | {"config": self.config})

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
        kinds = [self.config["past"] or which] * (rounds - 1) + [which]
        return [self._member(round_, kind) for round_, kind in enumerate(kinds, start=1)]

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
        ball = {"eps": self.config["eps"], "norm": self.config["norm"]}
        found = combine(members, weights if any(weights) else None, **ball)
        return found.requires_grad_(False).eval()

    def epochs(self, round_: int) -> dict[str, int]:
        """After which epoch of a round its weights are "best" and "last"."""
        return {which: _epoch(self._member(round_, which)) for which in _KINDS}

    def rounds_done(self) -> int:
        """How many members there are."""
        return next(n for n in itertools.count() if not self._member(n + 1, "best").exists())

    def fingerprint(self, which: str = "best", members: int | None = None) -> str:
        """A short name for a classifier of the run: the weights of its first ``members`` and
        what was learned for them."""
        done = self.rounds_done()
        parts = [repr(self.load_weights(which, done))]
        for path in self.member_files(done if members is None else members, which):
            kept = files.read_facts(path).get("checksum")
            if not isinstance(kept, str):
                kept = files.checksum(files.read_tensors(path)[0])
            parts.append(kept)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def _is_of(self, evaluation: Mapping[str, Any]) -> bool:
        """Whether an evaluation is of the classifier as it is now; of a run without
        its weights, each is."""
        members, which = evaluation["members"], evaluation["weights"]
        if not all(path.exists() for path in self.member_files(members, which)):
            return True
        return evaluation.get("of") == self.fingerprint(which, members)

    @property
    def _outline(self) -> tuple[Shape, int]:
        """The shape of the images and the number of classes."""
        return tuple(self.config["input"]["shape"]), self.config["input"]["classes"]

    def new_model(self) -> nn.Module:
        """A fresh model of the run's architecture."""
        with global_stream(0, torch.device("cpu")):  # its random weights are about to be replaced
            return models.build(self.config["model"], *self._outline)

    def _load(self, path: Path) -> nn.Module:
        if not path.exists():
            raise InputError(
                f"{str(self.folder)!r} has no finished round {int(path.name.partition('.')[0])} "
                f"(members/{path.name} is missing): mrboost train --resume --out {self.folder}"
            )
        tensors, facts = files.read_tensors(path)
        check_size(self.config["model"], *self._outline, tensors, path)
        model = self.new_model()
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(
                f"{path} does not fit model {self.config['model']!r}: {reason}"
            ) from None
        mine = model.state_dict()
        same_types = all(mine[key].dtype == value.dtype for key, value in tensors.items())
        if "checksum" not in facts or not same_types:
            _note_once(f"note: {path} was converted after its training: its checksum is unknown")
        elif facts["checksum"] != files.checksum(tensors):
            raise InputError(f"{path} has changed since it was written: restore it from a copy")
        return model.requires_grad_(False).eval()

    def _member(self, round_: int, which: str) -> Path:
        return self.folder / "members" / _KINDS[which].format(round_)

    def save_weights(self, which: str, weights: Sequence[float], how: str) -> None:
        """Keep learned weights of all members that are there now."""
        content = {"of": which, "weights": list(weights), "how": how}
        with self._changing():
            files.write_json(self.folder / "members" / "weights.json", content)

    def load_weights(self, which: str, members: int) -> list[float] | None:
        """The learned weights of so many members, if there are any; equal ones otherwise."""
        path = self.folder / "members" / "weights.json"
        if not path.exists():
            return None
        kept = files.read_json(path)
        schema.check(kept, schema.WEIGHTS, path)
        is_of_these = kept["of"] == which and len(kept["weights"]) == members
        return kept["weights"] if is_of_these else None

    # Results

    @property
    def results(self) -> dict[str, Any]:
        """What evaluations have found by now."""
        path = self.folder / "results.json"
        results = files.read_json(path) if path.exists() else {}
        schema.check_results(results, path)
        return results

    def evaluations(self) -> list[dict[str, Any]]:
        """Those among the results that are of its classifiers as they are now."""
        return [one for one in self.results.get("evaluations", []) if self._is_of(one)]

    @contextmanager
    def changing_results(self) -> Iterator[dict[str, Any]]:
        """The results, of which what the caller makes is kept; where several processes change
        them, one after the other."""
        with self._changing():
            files.remove_temporary(self.folder, "results.json")
            results = self.results
            yield results
            files.write_json(self.folder / "results.json", results)

    def _changing(self) -> AbstractContextManager[None]:
        """Wait for other processes that change the results."""
        return files.locked(self.folder / ".results.lock")


@dataclass(eq=False)
class GivenModel(Run):
    """The evaluations of a model that was not trained here; ``config["given"]`` says where its
    weights lie, how its images are normalised and what gives its gradients."""

    @cached_property
    def _model(self) -> Any:
        given = dict(self.config["given"])
        surrogate = given.pop("surrogate", None)
        model = models.given(self.config["model"], *self._outline, **given)
        if surrogate is None:
            return model
        return BPDA(model, models.given(surrogate, *self._outline)).eval()

    def classifier(self, which: str = "given", rounds: int | None = None) -> Any:  # noqa: ARG002
        return self._model

    def rounds_done(self) -> int:
        return 1

    def fingerprint(self, which: str = "given", members: int | None = None) -> str:  # noqa: ARG002
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(8, *self.config["input"]["shape"], generator=generator)
        return model_key(self._model, images)

    def _is_of(self, evaluation: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return True  # those of other weights are dropped when these are evaluated


@dataclass(eq=False)
class OneNetwork(Run):
    """One network of a run by the file of its weights, ``members/01.safetensors``, wherever that
    lies now: the configuration in it says what the network is."""

    def classifier(self, which: str = "best", rounds: int | None = None) -> Ensemble:  # noqa: ARG002
        return Ensemble([self._load(self.folder)]).requires_grad_(False).eval()

    def rounds_done(self) -> int:
        return 1

    @property
    def results(self) -> dict[str, Any]:
        return {}  # a run's are of its classifiers


def open_classifier(target: str | Path) -> Run:
    """A run, the evaluations of a model, or one network of a run by its file: something with a
    ``config`` and a ``classifier``."""
    path = Path(target)
    if not path.is_file():
        return Run.open(target)
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path} is neither a run folder nor the .safetensors of one's network: a model is "
            "named as file.py:function, its weights by --weights"
        )
    config = files.read_facts(path).get("config")
    if not isinstance(config, dict):
        raise InputError(
            f"{path} does not say which network its weights are of: give the folder of its run, or "
            f"evaluate MODEL --weights {path}"
        )
    schema.check_config(config, path)
    return OneNetwork(path, config, writes=False)


def load(
    run_dir: str | Path,
    which: str = "best",
    rounds: int | None = None,
    *,
    trainable: bool = False,
) -> Ensemble | Mixture:
    """The trained classifier of a run: eval mode, float32, images in [0, 1] in, logits out.

    Members count alike unless ``mrboost reweight`` learned weights for them. Parameters need no
    gradient, so it plugs into any attack library as it is. Its ``eps`` and ``norm`` are those of
    the training. A model of your own must be registered before, as it was for training.

    Args:
        run_dir: its folder, or the file of one of its networks, ``members/01.safetensors``.
        which: "best" (the newest member's epoch is chosen on validation images) or "last".
        rounds: the ensemble as it was after so many of them; all if not given.
        trainable: in training mode, with parameters that need gradients, to go on with.
    """
    model = open_classifier(run_dir).classifier(which, rounds)
    return model.requires_grad_(True).train() if trainable else model


def _epoch(path: Path) -> int:
    epoch = files.read_facts(path).get("epoch")
    if not isinstance(epoch, int) or epoch < 1:
        raise InputError(f"{path} does not say of which epoch it is: restore it from a copy")
    return epoch


def _check_free(folder: Path, *, resume: bool) -> None:
    """Refuse a folder in which a run may not be started, or gone on with."""
    try:
        str(folder).encode()  # files of weights have names in UTF-8
    except UnicodeEncodeError:
        raise InputError(f"{str(folder)!r} is no UTF-8: choose another --out") from None
    if (folder / "config.json").exists():
        if not resume:
            raise InputError(
                f"{str(folder)!r} holds a run already: go on with it (--resume, resume=True), "
                "or choose another folder"
            )
    elif folder.exists() and not (folder.is_dir() and _is_new(folder)):
        raise InputError(f"{str(folder)!r} exists and is not a run folder: choose another --out")


def _is_new(folder: Path) -> bool:
    """Whether a folder is empty but for what a crash before its config.json leaves."""
    own = [folder / "members", folder / "checkpoint", folder / "checkpoint" / "lock"]
    found = folder.rglob("*")
    return all(path in own or path.match(".config.json.*.tmp") for path in found)


def _make_folders(folder: Path) -> None:
    """Make what is missing of a run's folders; a copy need not have brought what is empty."""
    for part in ("members", "checkpoint"):
        files.require_inside(folder / part, folder)
        (folder / part).mkdir(parents=True, exist_ok=True)


@cache
def _note_once(line: str) -> None:
    note(line)


def check_kind(which: str) -> None:
    if which not in _KINDS:
        raise InputError(f"weights must be 'best' or 'last', got {which!r}")


def slug(data: str) -> str:
    """A name of data as a part of a folder's name."""
    name = Path(data.removeprefix("folder:")).name
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
