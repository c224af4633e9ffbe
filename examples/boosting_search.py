"""Forms of margin boosting and what they are compared with, side by side on one
GPU, judged by APGD-T.

    python examples/boosting_search.py --data cifar10 --data-dir DIR --jobs 4 --out runs/search
    python examples/boosting_search.py --data digits --epochs-scale 0.1 --n 100 --device cpu

Each form is one ``mrboost train`` command, which may continue from the first round of another form,
and one ``mrboost evaluate`` command for all test images (clean, PGD-20) and for ``--n`` of them
(APGD-T). What is finished is kept in ``--out``; the same command goes on with it. ``--forms``
chooses; what they start from is trained too.

The cost of a form is counted in epochs of one network: an epoch with t members counts 1, 1.79, 2.6,
3.4 or 4.2 (1.79 is measured alone on a GPU, the others are extrapolated), and AWP adds a half
(measured side by side, docs/results/boosting-search.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSES = (1, 1.79, 2.6, 3.4, 4.2)
SHARED = {"steps": 3, "batch_size": 256, "lr": 0.4, "schedule": "one-cycle", "ema": 0.998}


@dataclass(frozen=True)
class Form:
    """A recipe with its options; the rounds after the first have ``later``
    epochs at ``later_lr``."""

    recipe: str
    epochs: int
    first: str | None = None
    rounds: int = 1
    later: int = 0
    later_lr: float = 0.1
    options: dict[str, Any] = field(default_factory=dict)

    def cost(self, first: Form | None) -> float:
        awp = 0.5 if "awp" in self.options else 0.0
        boosted = self.recipe.startswith("mrboost")
        trunk = self.epochs * (1 + awp) if first is None else first.cost(None)
        return trunk + sum(
            self.later * ((PASSES[t] if boosted else 1) + awp) for t in range(1, self.rounds)
        )


AWP = {"awp": 0.005}
SMOOTH = {"smoothing": 0.3}
FORMS = {
    # Where the others start from: one network each.
    "one-48-awp": Form("at-mce", 48, options=AWP),
    "one-48-awp-smooth": Form("at-mce", 48, options=AWP | SMOOTH),
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
    "snapshots-48-awp-smooth": Form(
        "snapshots", 48, "one-48-awp-smooth", rounds=3, later=12, options=AWP | SMOOTH
    ),
    "boosted-48-awp-smooth": Form(
        "mrboost", 48, "one-48-awp-smooth", rounds=3, later=12, options=AWP | SMOOTH
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=2000, help="test images for APGD-T")
    parser.add_argument(
        "--epochs-scale", type=float, default=1.0, help="train this share of the epochs"
    )
    parser.add_argument("--jobs", type=int, default=1, help="commands at once")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    names = list(options.forms)
    for name in options.forms:
        if (first := FORMS[name].first) is not None and first not in names:
            names.insert(0, first)
    options.out.mkdir(parents=True, exist_ok=True)
    places = threading.Semaphore(options.jobs)
    done: dict[str, Future[dict[str, Any]]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(len(names)) as pool:
        for name in sorted(names, key=list(FORMS).index):
            done[name] = pool.submit(_carry_out, name, done, places, options)
        for name in done:
            done[name].exception()  # wait; a form that failed is left out of the table
    rows = {name: future.result() for name, future in done.items() if future.exception() is None}
    (options.out / f"seed{options.seed}.json").write_text(json.dumps(rows, indent=2))
    print(table(rows))
    print(f"\n{time.monotonic() - began:.0f} seconds, {options.jobs} commands at once")
    for name, future in done.items():
        if (error := future.exception()) is not None:
            print(f"{name} failed: {error}")


def _carry_out(
    name: str,
    done: dict[str, Future[dict[str, Any]]],
    places: threading.Semaphore,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Train and evaluate a form, once what it starts from is there."""
    form, out = FORMS[name], options.out / f"{name}-seed{options.seed}"
    if form.first is not None:
        done[form.first].result()
    with places:
        train = (
            SHARED | form.options | {"epochs": max(1, round(form.epochs * options.epochs_scale))}
        )
        if form.rounds > 1:
            later = {
                "later_epochs": max(1, round(form.later * options.epochs_scale)),
                "later_lr": form.later_lr,
            }
            train |= {"rounds": form.rounds, **later}
        if options.data == "digits":
            train.pop("model", None)
        flags = [
            part
            for key, value in train.items()
            for part in (f"--{key.replace('_', '-')}", str(value))
        ]
        if form.first is not None and not (out / "config.json").exists():
            flags += ["--first", str(options.out / f"{form.first}-seed{options.seed}")]
        began = time.monotonic()
        _mrboost(
            out,
            options,
            "train",
            form.recipe,
            "--data",
            options.data,
            "--seed",
            str(options.seed),
            "--out",
            str(out),
            "--resume",
            *flags,
        )
        seconds = time.monotonic() - began
        whole = _mrboost(
            out,
            options,
            "evaluate",
            str(out),
            "--attack",
            "pgd-20",
            "--weights",
            "last",
            "--no-check",
        )
        some = _mrboost(
            out,
            options,
            "evaluate",
            str(out),
            "--attack",
            "apgd-t",
            "--weights",
            "last",
            "--no-check",
            "--n",
            str(options.n),
        )
    first = None if form.first is None else FORMS[form.first]
    row = {"members": form.rounds, "cost": form.cost(first), "seconds": seconds}
    for document in (some, whole):
        for outcome in document["evaluations"][0]["outcomes"]:
            row[outcome["attack"]] = 100 * outcome["accuracy"]
    print(f"{name}: {row}", flush=True)
    return row


def _mrboost(out: Path, options: argparse.Namespace, *arguments: str) -> dict[str, Any]:
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
        "--json",
    ]
    with out.with_suffix(".log").open("a") as log:
        finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=True)
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| form | members | cost | clean | PGD-20 | APGD-T |", "|---" * 6 + "|"]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['members']} | {row['cost']:.0f} | {row['clean']:.1f} | "
            f"{row['pgd-20']:.1f} | {row['apgd-t']:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
