"""Networks that were trained apart, perhaps at the same time on several devices, as the
members of one ensemble."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.files import locked
from mrboost.progress import note

from .folder import Run, load
from .identity import MEMBERS, differences


def join(
    runs: Sequence[str | Path], out: str | Path, *, newest: bool = False
) -> Ensemble | Mixture:
    """The finished networks of several runs, in this order, in a run folder of their
    own; each counts alike.

    They must be of one model, trained on the same images for the same ball. What their
    configurations share is that of the new run, and ``joined`` in it says where its networks come
    from.

    Args:
        runs: their folders.
        out: the new run's.
        newest: take the network of each run's last round alone.
    """
    sources = [Run.open(run) for run in runs]
    out = Path(out)
    _check(sources)
    taken = [(source, _taken(source, newest)) for source in sources]
    with in_one_step(out) as folder:
        run = Run.create(folder, _describe(sources, sum(len(rounds) for _, rounds in taken)))
        for source, rounds in taken:
            for round_ in rounds:
                run.adopt(source, round_, of=rounds[-1])
    return load(out)


@contextmanager
def in_one_step(out: Path) -> Iterator[Path]:
    """A folder to fill, which then becomes ``out``: that is there whole or not at all."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{str(out)!r} exists already: choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    made = out.with_name(f".{out.name}.joining")
    lock = out.with_name(f"{made.name}.lock")
    busy = f"another process is joining networks in {str(out)!r}: wait for it or end it"
    with locked(lock, busy):
        try:
            shutil.rmtree(made, ignore_errors=True)  # of one that was killed
            yield made
            made.rename(out)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            with suppress(OSError):  # Windows keeps a file that is open
                lock.unlink()


def _taken(source: Run, newest: bool) -> range:
    """The rounds whose networks are joined."""
    last = source.rounds_done()
    return range(last if newest else 1, last + 1)


def trainings(run: Run) -> list[int]:
    """How many members came of each training: of one, but for a run that joins several."""
    joined = run.config.get("joined")
    if joined is None:
        return [run.rounds_done()]
    found = [count for part in joined for count in part.get("rounds", ())]
    return found if sum(found) == run.rounds_done() else [1] * run.rounds_done()


def _check(sources: Sequence[Run]) -> None:
    """Refuse runs whose networks do not belong together."""
    if len(sources) < 2:
        raise InputError("there is nothing to join: give two runs or more")
    first = sources[0]
    seen = dict[str, str]()
    for source in sources:
        name = repr(str(source.folder))
        if source.rounds_done() < 1:
            raise InputError(f"{name} has no finished round: go on with mrboost train --resume")
        if source.config["recipe"].get("combine") == "Mixture":
            raise InputError(f"{name} is a randomised classifier: leave it out")
        if changed := differences(first.config, source.config, only=MEMBERS):
            raise InputError(
                f"{name} does not go with {str(first.folder)!r} ({'; '.join(changed)}): join runs "
                "that have the same"
            )
        if (networks := source.fingerprint()) in seen:
            raise InputError(f"{name} holds the same networks as {seen[networks]}: name them once")
        seen[networks] = name
        if (done := source.rounds_done()) < (rounds := source.config["rounds"]):
            remedy = "mrboost train --resume goes on with it"
            note(f"note: {name} has finished {done} of its {rounds} rounds: {remedy}")


def _describe(sources: Sequence[Run], rounds: int) -> dict[str, Any]:
    """What all their configurations say, and where the networks, so many, come from."""
    configs = [source.config for source in sources]
    first = configs[0]
    shared = {key: first[key] for key in first if all(c.get(key) == first[key] for c in configs)}
    if not {"validation", "select_on"} <= shared.keys():  # no images that all of them held out
        shared |= {"validation": 0, "select_on": shared.get("select_on", "validation")}
    names = dict.fromkeys(config["recipe"]["name"] for config in configs)
    summary = f"{rounds} networks that were trained apart ({', '.join(names)}), each counting alike"
    of_first = ("data", "data_dir", "versions", "judge_step")
    joined = [
        {
            "run": str(source.folder),
            "recipe": config["recipe"]["name"],
            "of": source.fingerprint(),
            "rounds": trainings(source),
        }
        for source, config in zip(sources, configs, strict=True)
    ]
    return {
        **{key: value for key, value in shared.items() if key not in ("format", "first")},
        **{key: first[key] for key in of_first if key in first},
        "recipe": shared.get("recipe", {}) | {"name": "joined", "summary": summary},
        "rounds": rounds,
        "past": None,
        "joined": joined,
    }
