"""Forms of margin boosting and what they are compared with, side by side on one
GPU, judged by APGD-T.

    python examples/boosting_search.py --data cifar10 --data-dir DIR --jobs 4 --out runs/search
    python examples/boosting_search.py --data cifar10 --data-dir DIR --jobs 4 --out runs/search \
        --forms two-chains independent-4
    python examples/boosting_search.py --data digits --epochs-scale 0.1 --n 100 --device cpu

Each form is one ``mrboost train`` command, which may continue from the first round of another form,
and one ``mrboost evaluate`` command for all test images (clean, PGD-20) and for ``--n`` of them
(APGD-T). What is finished is kept in ``--out``; the same command goes on with it. ``--forms``
chooses; what they start from is trained too. Networks of several seeds are joined as well: those
trained independently, which boosting has to be ahead of, and the ends of several chains of rounds.

The cost of a form is counted in epochs of one network: an epoch with t members counts 1, 1.79, 2.6,
3.4 or 4.2 (1.79 is measured alone on a GPU, the others are extrapolated), and AWP adds a half
(measured side by side, docs/results/boosting-search.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSES = (1, 1.79, 2.6, 3.4, 4.2)
SHARED = {"steps": 3, "batch_size": 256, "lr": 0.4, "schedule": "one-cycle", "ema": 0.998}


@dataclass(frozen=True)
class Form:
    """A recipe with its options; the rounds after the first have ``later`` epochs at ``later_lr``.

    With ``taught``, the one round starts from the weights of ``first``, whose answers are its
    labels (examples/_soft_labels.py).
    """

    recipe: str
    epochs: int
    first: str | None = None
    rounds: int = 1
    later: int = 0
    later_lr: float = 0.1
    taught: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def cost(self, first: Form | None) -> float:
        awp = 0.5 if "awp" in self.options else 0.0
        if self.taught and first is not None:
            return first.cost(None) + self.epochs * (1 + awp)
        boosted = self.recipe.startswith("mrboost")
        trunk = self.epochs * (1 + awp) if first is None else first.cost(None)
        return trunk + sum(
            self.later * ((PASSES[t] if boosted else 1) + awp) for t in range(1, self.rounds)
        )


AWP = {"awp": 0.005}
SMOOTH = {"smoothing": 0.3}
LATER = {"lr": 0.1}
FORMS = {
    # Where the others start from: one network each.
    "one-48-awp": Form("at-mce", 48, options=AWP),
    "one-48-awp-smooth": Form("at-mce", 48, options=AWP | SMOOTH),
    "one-72-awp": Form("at-mce", 72, options=AWP),
    "one-30": Form("at-mce", 30),
    "one-30-silu": Form("at-mce", 30, options={"model": "resnet18-silu"}),
    # Boosting and its control: the same rounds with each network attacked alone, at equal
    # rounds and at equal cost.
    "boosted": Form("mrboost", 30, "one-30", rounds=3, later=12),
    "snapshots": Form("snapshots", 30, "one-30", rounds=3, later=12),
    "snapshots-long": Form("snapshots", 30, "one-30", rounds=3, later=26),
    "boosted-awp": Form("mrboost", 30, "one-30", rounds=3, later=12, options=AWP),
    "snapshots-awp": Form("snapshots", 30, "one-30", rounds=3, later=12, options=AWP),
    # A strong first round.
    "boosted-48-awp": Form("mrboost", 48, "one-48-awp", rounds=3, later=12, options=AWP),
    "snapshots-48-awp": Form("snapshots", 48, "one-48-awp", rounds=3, later=12, options=AWP),
    "snapshots-48-awp-long": Form("snapshots", 48, "one-48-awp", rounds=2, later=26, options=AWP),
    "snapshots-48-awp-smooth": Form(
        "snapshots", 48, "one-48-awp-smooth", rounds=3, later=12, options=AWP | SMOOTH
    ),
    "boosted-48-awp-smooth": Form(
        "mrboost", 48, "one-48-awp-smooth", rounds=3, later=12, options=AWP | SMOOTH
    ),
    # One more round of equal cost: alone, boosted, with the first network's answers as labels.
    "alone-24": Form("snapshots", 48, "one-48-awp", rounds=2, later=24, options=AWP),
    "boosted-16": Form("mrboost", 48, "one-48-awp", rounds=2, later=16, options=AWP),
    "alone-48": Form("snapshots", 48, "one-48-awp", rounds=3, later=24, options=AWP),
    "self-taught-24": Form("taught", 24, "one-48-awp", taught=True, options=AWP | LATER),
}


@dataclass(frozen=True)
class Joined:
    """Networks of one form, trained with so many seeds, as one ensemble: all of them, or the newest
    member of each."""

    of: str
    seeds: int
    newest: bool = False

    def cost(self) -> float:
        form = FORMS[self.of]
        return self.seeds * form.cost(None if form.first is None else FORMS[form.first])


JOINED = {
    # Networks that know nothing of each other: what boosting has to be ahead of.
    "independent-2": Joined("one-48-awp", 2),
    "independent-3": Joined("one-48-awp", 3),
    "independent-4": Joined("one-48-awp", 4),
    "independent-2-72": Joined("one-72-awp", 2),
    # Chains from different first networks, the end of each, as costly as these.
    "two-chains": Joined("snapshots-48-awp-long", 2, newest=True),
    "two-chains-boosted": Joined("boosted-48-awp", 2, newest=True),
    "two-chains-all": Joined("snapshots-48-awp", 2),
    "two-alone-24": Joined("alone-24", 2, newest=True),
    "two-boosted-16": Joined("boosted-16", 2, newest=True),
    "two-self-taught-24": Joined("self-taught-24", 2),
    "two-alone-24-all": Joined("alone-24", 2),
    "two-alone-48": Joined("alone-48", 2, newest=True),
}
Task = tuple[str, int]
"""The name of a form and a seed."""


def needs(name: str, seed: int) -> list[Task]:
    """What a form starts from, or consists of."""
    if name in JOINED:
        return [(JOINED[name].of, seed + number) for number in range(JOINED[name].seeds)]
    first = FORMS[name].first
    return [] if first is None else [(first, seed)]


def in_order(names: Sequence[str], seed: int) -> list[Task]:
    """These forms, each after what it needs."""
    found: dict[Task, None] = {}

    def add(task: Task) -> None:
        for before in needs(*task):
            add(before)
        found[task] = None

    for name in names:
        add((name, seed))
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=[*FORMS, *JOINED])
    parser.add_argument("--seed", type=int, default=0, help="the first of a form's seeds")
    parser.add_argument("--n", type=int, default=2000, help="test images for the last attack")
    parser.add_argument("--attack", default="apgd-t", help="the last attack: or autoattack")
    parser.add_argument(
        "--epochs-scale", type=float, default=1.0, help="train this share of the epochs"
    )
    parser.add_argument("--jobs", type=int, default=1, help="commands at once")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    tasks = in_order(options.forms, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    places = threading.Semaphore(options.jobs)
    done: dict[Task, Future[dict[str, Any]]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(len(tasks)) as pool:
        for task in tasks:  # each finds the futures of what it needs
            done[task] = pool.submit(_carry_out, task, done, places, options)
        for future in done.values():
            future.exception()  # wait; a form that failed is left out of the table
    finished = [task for task in tasks if done[task].exception() is None]
    rows = {f"{name}, seed {seed}": done[name, seed].result() for name, seed in finished}
    (options.out / f"seed{options.seed}.json").write_text(json.dumps(rows, indent=2))
    print(table(rows))
    print(f"\n{time.monotonic() - began:.0f} seconds, {options.jobs} commands at once")
    for task, future in done.items():
        if (error := future.exception()) is not None:
            print(f"{task} failed: {error}")


def _carry_out(
    task: Task,
    done: dict[Task, Future[dict[str, Any]]],
    places: threading.Semaphore,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Train, or join, and evaluate a form, once what it needs is there."""
    name, seed = task
    out = _folder(task, options)
    for before in needs(*task):
        done[before].result()
    with places:
        began = time.monotonic()
        if name in JOINED:
            _join(task, options)
        else:
            _train(task, options)
        seconds = time.monotonic() - began
        evaluate = ["evaluate", str(out), "--weights=last", "--no-check"]
        whole = _mrboost(out, options, *evaluate, "--attack=pgd-20")
        last = [f"--attack={options.attack}", f"--n={options.n}"]
        some = _mrboost(out, options, *evaluate, *last)
    if name in JOINED:
        cost = JOINED[name].cost()
    else:
        first = FORMS[name].first
        cost = FORMS[name].cost(None if first is None else FORMS[first])
    row = {"members": some["evaluations"][0]["members"], "cost": cost, "seconds": seconds}
    for document in (some, whole):
        for outcome in document["evaluations"][0]["outcomes"]:
            row[outcome["attack"]] = 100 * outcome["accuracy"]
    print(f"{name}, seed {seed}: {row}", flush=True)
    return row


def _folder(task: Task, options: argparse.Namespace) -> Path:
    name, seed = task
    folder: Path = options.out / f"{name}-seed{seed}"
    return folder


def _train(task: Task, options: argparse.Namespace) -> None:
    name, seed = task
    form, out = FORMS[name], _folder(task, options)

    def scaled(epochs: int) -> int:
        return max(1, round(epochs * options.epochs_scale))

    train = SHARED | form.options | {"epochs": scaled(form.epochs), "seed": seed}
    if form.rounds > 1:
        later = {"later_epochs": scaled(form.later), "later_lr": form.later_lr}
        train |= {"rounds": form.rounds, **later}
    if options.data == "digits":
        train.pop("model", None)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in train.items()]
    if form.first is not None and not (out / "config.json").exists():
        flags += ["--first", str(_folder((form.first, seed), options))]
    where = ["--data", options.data, "--out", str(out), "--resume"]
    teacher = str(_folder((form.first, seed), options)) if form.taught and form.first else ""
    _mrboost(out, options, "train", form.recipe, *where, *flags, teacher=teacher)


def _join(task: Task, options: argparse.Namespace) -> None:
    out = _folder(task, options)
    if not (out / "config.json").exists():
        flags = ["--newest"] if JOINED[task[0]].newest else []
        folders = [str(_folder(one, options)) for one in needs(*task)]
        command = [sys.executable, "-m", "mrboost", "join", *folders, "--out", str(out), *flags]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _mrboost(
    out: Path, options: argparse.Namespace, *arguments: str, teacher: str = ""
) -> dict[str, Any]:
    """What a command prints as JSON; its progress goes to a file beside the run folder."""
    where = ["--data-dir", options.data_dir] if options.data_dir else []
    command = [
        sys.executable,
        "-m",
        "mrboost",
        *arguments,
        "--device",
        options.device,
        *where,
        "--import",
        str(Path(__file__).with_name("_soft_labels.py")),
        "--json",
    ]
    environment = os.environ | {"MRBOOST_TEACHER": teacher}
    with out.with_suffix(".log").open("a") as log:
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, check=True, env=environment
        )
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


def table(rows: dict[str, dict[str, Any]]) -> str:
    head = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = [f"| form | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for name, row in rows.items():
        cells = [f"{row[key]:.4g}" if key in row else "" for key in head]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
