"""Hostile command lines, run folders and files of weights, through the commands that read them."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from commands import write_pictures
from data.test_fuzz import damaged
from hostile import command, refuted
from mrboost.cli.arguments import _build
from mrboost.files import read_tensors, write_tensors

HOME = Path("shared").absolute()
"""What all cases of this process read, in the folder where they run."""
PICTURES = HOME / "pictures"
RUN = HOME / "run"
CANARY = "years of work"
QUICK = ["--device", "cpu", "--quiet"]
FEW = ["--attack", "fgsm", "--n", "4", *QUICK]

NUMBERS = ["0", "-1", "1", "2", "0.5", "nan", "inf", "1e308", "1e-320", "1/0", "9" * 5000, "½", "٣"]
TEXTS = [
    *("", " ", "--", "-", "x\x1b[2J\x07", "a\nb", "\udcff\udc80", "~nosuchuser/x", "..", "missing"),
    *("x" * 300, "x" * 100_000, "{}", "%s%n", "folder:", "folder:?size=x", "f.py:f", "timm:x/y/z"),
    *("best,last", "1,2", "0.1,abc", "fgsm,,", "pgd-0", "pgd-99999999999999999999", "Linf", "L7"),
]


def _prepare() -> None:
    """Pictures, and a run on them with an evaluation and learned weights."""
    write_pictures(PICTURES, "abc")
    data = ["--data", f"folder:{PICTURES}", "--model", "cnn-digits"]
    rounds = ["--rounds", "2", "--epochs", "1", "--steps", "1"]
    command(["train", "mrboost", *data, *rounds, "--out", RUN, *QUICK])
    command(["evaluate", RUN, "--no-check", *FEW])
    command(["reweight", RUN, *QUICK])
    (HOME / "canary").write_text(CANARY)


@cache
def _prepared() -> None:
    """Once in each process."""
    _prepare()


def _commands(run: Path, folder: Path) -> dict[str, list[object]]:
    """A quick command of each kind about a run."""
    small = ["--epochs", "1", "--rounds", "1", "--steps", "1", *QUICK]
    pictures = ["--data", f"folder:{PICTURES}", "--model", "cnn-digits"]
    return {
        "train": ["train", "at", *pictures, *small, "--out", folder / "trained"],
        "resume": ["train", "--resume", "--out", run, *QUICK],
        "evaluate": ["evaluate", run, "--no-check", *FEW],
        "join": ["join", run, RUN, "--out", folder / "joined"],
        "reweight": ["reweight", run, *QUICK],
        "report": ["report", run, *FEW, "--out", folder / "page.html"],
        "study": ["study", "boosting", "--plan", "--scale", "smoke", "--out", folder / "study"],
        "recipes": ["recipes"],
        "data": ["data", "digits"],
    }


def _read(run: Path, folder: Path, rng: random.Random) -> None:
    """A command that reads the run."""
    reading = ("resume", "evaluate", "join", "reweight", "report")
    command(_commands(run, folder)[rng.choice(reading)])
    assert (HOME / "canary").read_text() == CANARY


def _run(folder: Path) -> Path:
    _prepared()
    return Path(shutil.copytree(RUN, folder / "run"))


def arguments(rng: random.Random, folder: Path) -> None:
    """Options of odd values, unknown ones, and odd names in the place of a run or a recipe."""
    run = _run(folder)
    os.chdir(folder)
    given = rng.choice(list(_commands(run, folder).values()))
    parsers: Any = _build()[1]
    known = [name for name in parsers[given[0]]._option_string_actions if name != "--plan"]
    for _ in range(rng.randrange(4)):
        # Data that would be fetched, and lasting work, are what a user may ask for
        option = rng.choice([*known, "--nonsense", "-x", "--" + "y" * 200, "\x1b"])
        value = rng.choice(NUMBERS + TEXTS + [str(run), f"folder:{PICTURES}"])
        given = given + rng.choice([[option, value], [option], [f"{option}={value}"]])
    if rng.random() < 0.3:
        given[rng.randrange(min(2, len(given)))] = rng.choice(TEXTS + NUMBERS)
    try:
        command(given)
    finally:
        os.chdir(HOME.parent)


VALUES: list[Any] = [
    *(None, -1, 0, 1, 1e308, 10**30, math.nan, -math.inf, True, "", "x\x1b[2J", "\ud800"),
    *("x" * 10_000_000, [], [1], [[]] * 3, {}, {"a": 1}, "folder:/", "99xwrn-34-10", "mnist"),
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key in it."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    yield from ((value, key) for key, _ in pairs)
    for _, item in pairs:
        if isinstance(item, dict | list):
            yield from _places(item)


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part gone, exchanged or of another kind."""
    value = copy.deepcopy(value)
    container, key = rng.choice(list(_places(value)))
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(VALUES)
    return value


def _odd_text(text: str, rng: random.Random) -> bytes:
    """What may stand in the place of a JSON text."""
    deep = "[" * 100_000 + "]" * 100_000
    long = '{"format": ' + "9" * 5000 + "}"
    odd = [deep, long, "", "null", "\x00", text * 2, text[: len(text) // 2]]
    return rng.choice([rng.choice(odd).encode(), damaged(text.encode(), rng)])


def json_of_a_run(rng: random.Random, folder: Path) -> None:
    run = _run(folder)
    name = rng.choice(["config.json", "config.json", "results.json", "metrics.jsonl", "weights"])
    path = run / ("members/weights.json" if name == "weights" else name)
    text = path.read_text()
    if rng.random() < 0.3:
        path.write_bytes(_odd_text(text, rng))
    elif name == "metrics.jsonl":
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(_changed(json.loads(lines[at]), rng))
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(json.dumps(_changed(json.loads(text), rng)))
    _read(run, folder, rng)


def tensors_of_a_run(rng: random.Random, folder: Path) -> None:
    """Weights whose bytes, facts, shapes or types are others."""
    run = _run(folder)
    path = rng.choice(sorted((run / "members").glob("*.safetensors")))
    if rng.random() < 0.3:
        path = run / "checkpoint" / "state.safetensors"
        shutil.copy(run / "members" / "01.safetensors", path)
    kind = rng.randrange(3)
    if kind == 0:
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif kind == 1:
        tensors, facts = read_tensors(path)
        facts |= {"round": 2, "epoch": 1, "best_epoch": 1}
        write_tensors(path, tensors, _changed(facts, rng))
    else:
        tensors, facts = read_tensors(path)
        name = rng.choice(list(tensors))
        old = tensors[name]
        odd = [torch.zeros(0), torch.full((3, 1), math.nan), old.half(), old + 1]
        write_tensors(path, tensors | {name: rng.choice(odd)}, facts)
    _read(run, folder, rng)


def kinds_of_files(rng: random.Random, folder: Path) -> None:
    """Links, pipes, folders, sparse and empty files in the place of a run's own."""
    run = _run(folder)
    names = ["config.json", "results.json", "metrics.jsonl", ".results.lock", "checkpoint/lock"]
    names += ["members/01.safetensors", "members/02.safetensors", "members/weights.json"]
    names += ["checkpoint/state.safetensors", "members", "checkpoint"]
    path = run / rng.choice(names)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    whole = RUN / path.relative_to(run)
    targets = [HOME / "canary", HOME, folder / "missing", path, whole]
    kinds: list[Callable[[], object]] = [
        lambda: path.symlink_to(rng.choice(targets)),
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
        lambda: path.touch(),
        lambda: (path.touch(), os.truncate(path, 2**32)),
        lambda: None,
    ]
    rng.choice(kinds)()
    before = sorted(HOME.rglob("*"))
    _read(run, folder, rng)
    assert sorted(HOME.rglob("*")) == before, "a link was followed"


class _Opens:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def weights_from_elsewhere(rng: random.Random, folder: Path) -> None:
    """``evaluate MODEL --weights FILE`` with what is no file of weights, or not of this model."""
    _prepared()
    path = folder / rng.choice(["w.pt", "w.safetensors"])
    state = read_tensors(RUN / "members" / "01.safetensors")[0]
    made = folder / "made"
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        odd: list[Any] = [
            {},
            [],
            None,
            "x",
            {1: torch.zeros(1)},
            {"a": torch.zeros(1).to_sparse()},
            {"model": {"a": 1}},
            _Opens(made),
        ]
        torch.save(rng.choice([state, {"state_dict": state}, *odd]), path)
    if rng.random() < 0.6:
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif rng.random() < 0.2:
        path.write_bytes(pickle.dumps(_Opens(made), rng.randrange(5)))
    elif rng.random() < 0.2:
        with zipfile.ZipFile(path, "w") as bundle:
            bundle.writestr("w/data.pkl", damaged(pickle.dumps(_Opens(made), 2), rng))
    model = rng.choice(["cnn-digits", "resnet18", "99xwrn-34-10"])
    data = ["--data", f"folder:{PICTURES}", "--weights", path, "--out", folder / "found"]
    command(["evaluate", model, *data, "--no-check", *FEW])
    assert not made.exists(), "a pickle ran its code"


DOORS = {
    "arguments": arguments,
    "json": json_of_a_run,
    "tensors": tensors_of_a_run,
    "kinds": kinds_of_files,
    "weights": weights_from_elsewhere,
}


def test_whatever_a_command_is_given_it_ends_in_one_line(tmp_path: Path) -> None:
    assert refuted(__file__, tmp_path) == []
