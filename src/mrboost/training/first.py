"""Where a first round may come from: the first network of a trained run, which the run adopts, or
weights to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from mrboost.errors import InputError
from mrboost.files import checksum
from mrboost.models.source import fill, read_weights
from mrboost.progress import note
from mrboost.runs import Run
from mrboost.runs.identity import FIRST_ROUND, differences


def describe(
    first: str | Path, description: dict[str, Any], *, rounds: int, out: str | Path | None
) -> dict[str, str]:
    """The configuration's entry: a run or a file of weights, and the checksum of the weights.

    Args:
        first: a run folder or a file of weights. With several rounds, a run's first network is the
            first round; otherwise it gives the weights to start from.
        description: the configuration of the training, which a run has to agree with.
        rounds: those of the training.
        out: its folder.
    """
    path = Path(first)
    if path.is_file() or rounds == 1:
        if not path.is_file():
            (path,) = Run.open(first).member_files(1, "best")
        return {"weights": str(path.absolute()), "of": checksum(read_weights(path))}
    if out is None:
        raise InputError("first is copied into the run folder: give out as well")
    source = Run.open(first)
    name = str(source.folder)
    if source.rounds_done() < 1:
        raise InputError(f"{name!r} has no finished round: go on with mrboost train --resume")
    if changed := differences(source.config, description, only=FIRST_ROUND):
        raise InputError(f"{name!r} cannot be first ({'; '.join(changed)}): give the same")
    return {"run": str(source.folder.absolute()), "of": source.fingerprint("last", 1)}


def adopt(run: Run, first: dict[str, str]) -> None:
    """Another run's first round as the first of this one, which has none yet."""
    if "run" not in first or not run.writes or run.rounds_done() > 0:
        return
    source = Run.open(first["run"])
    if source.fingerprint("last", 1) != first["of"]:
        raise InputError(f"the first round in {first['run']!r} has changed: start a new run")
    run.rewind_metrics(0, 0)
    run.adopt(source, 1, of=1)


def start(learner: nn.Module, model: str, first: dict[str, str], tell: bool) -> None:
    """Give a learner the weights that the first round starts from, if it starts from any. Those of
    a run's network bring their normalisation; a last layer for other classes is left out."""
    if "weights" not in first:
        return
    path = first["weights"]
    state = read_weights(path)
    if checksum(state) != first["of"]:
        raise InputError(f"the weights in {path} have changed: start a new run")
    mine = learner.state_dict()
    bare = "0.mean" in mine and "0.mean" not in state
    network = learner[1] if bare and isinstance(learner, nn.Sequential) else learner
    left = fill(network, state, f"{path} does not fit model {model!r}", new_head=True)
    if left and tell:
        note(f"note: {', '.join(left)} of {path} are for other classes, and start anew")
