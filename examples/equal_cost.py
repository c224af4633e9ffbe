"""Does margin boosting pay at equal cost? Five rounds against the alternatives.

    python examples/equal_cost.py --data digits --eps 0.15 --epochs 6
    python examples/equal_cost.py --data mnist --epochs 2 --batch-size 256

Margin boosting with five rounds of E epochs is trained first, and its seconds are the budget. Its
first round says what an epoch of one network takes, its later rounds what an epoch beside past
members takes; from these follow the epochs of the rows that are to be as dear, as near as whole
epochs allow: one network, five independent ones, boosting with a long first round and later ones of
E / 2, and boosting in which each image meets one past member (``mrboost-drawn``), whose later
rounds all cost what the second one does. RobBoost and the other inits have five rounds of E epochs,
too.

Seconds are those of the run folders' ``metrics.jsonl``: training, with the validation after each
epoch. The table has them, so that one sees how equal the costs are. With ``--jobs`` the rows share
the device, which small networks leave mostly idle, and their seconds say less; the budget is always
measured alone.

Each round is scored as soon as it is trained, and kept; starting the script again goes
on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import mrboost  # isort: skip — before torch, as in the command: it says how idle threads wait
import torch

from _jobs import side_by_side
from mrboost.data import Dataset, Split, hold_out
from mrboost.runs import Run

ROUNDS = 5
Scores = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """The epochs of the first round and of each later one."""

    first: int
    later: int


@dataclass(frozen=True)
class Boosting:
    """What margin boosting with rounds of ``epochs`` took."""

    epochs: int
    seconds: float
    epoch: list[float]
    """Seconds of one epoch, by round."""

    @classmethod
    def of(cls, epochs: int, metrics: list[dict[str, float]]) -> Boosting:
        of_round = [
            [row["seconds"] for row in metrics if row["round"] == t] for t in range(1, ROUNDS + 1)
        ]
        # The median, since the first epoch of a round also prepares it.
        return cls(
            epochs, sum(map(sum, of_round)), [statistics.median(seconds) for seconds in of_round]
        )


def equal_rounds(boosting: Boosting) -> Plan:
    return Plan(boosting.epochs, boosting.epochs)


def three_times(boosting: Boosting) -> Plan:
    return Plan(3 * boosting.epochs, 3 * boosting.epochs)


def one_network(boosting: Boosting) -> Plan:
    epochs = whole(boosting.seconds / boosting.epoch[0])
    return Plan(epochs, epochs)


def independent(boosting: Boosting) -> Plan:
    epochs = whole(boosting.seconds / (ROUNDS * boosting.epoch[0]))
    return Plan(epochs, epochs)


def long_first(boosting: Boosting) -> Plan:
    later = boosting.epochs // 2
    return Plan(
        whole((boosting.seconds - later * sum(boosting.epoch[1:])) / boosting.epoch[0]), later
    )


def drawn(boosting: Boosting) -> Plan:
    epochs = whole(boosting.seconds / (boosting.epoch[0] + (ROUNDS - 1) * boosting.epoch[1]))
    return Plan(epochs, epochs)


def drawn_long_first(boosting: Boosting) -> Plan:
    later = 7 * boosting.epochs // 8
    return Plan(
        whole((boosting.seconds - (ROUNDS - 1) * later * boosting.epoch[1]) / boosting.epoch[0]),
        later,
    )


def whole(epochs: float) -> int:
    return max(1, round(epochs))


METHODS: dict[str, tuple[str, int, Callable[[Boosting], Plan]]] = {
    "mrboost (All, Ind, PerInit)": ("mrboost", ROUNDS, equal_rounds),
    "mrboost-rndinit": ("mrboost-rndinit", ROUNDS, equal_rounds),
    "robboost-perinit (Whole)": ("robboost-perinit", ROUNDS, equal_rounds),
    "five independent at-mce": ("at-mce", ROUNDS, independent),
    "five independent at": ("at", ROUNDS, independent),
    "one at-mce, as long": ("at-mce", 1, one_network),
    "one at, as long": ("at", 1, one_network),
    "mrboost, a long first round": ("mrboost", ROUNDS, long_first),
    "mrboost, three times the cost": ("mrboost", ROUNDS, three_times),
    "mrboost-drawn": ("mrboost-drawn", ROUNDS, drawn),
    "mrboost-drawn, a long first round": ("mrboost-drawn", ROUNDS, drawn_long_first),
}
BUDGET = "mrboost (All, Ind, PerInit)"


@dataclass(frozen=True)
class Trained:
    """A finished training: the scores of the ensemble after each round, and its
    epochs with their seconds."""

    scores: list[Scores]
    metrics: list[dict[str, float]]

    @property
    def seconds(self) -> float:
        return sum(row["seconds"] for row in self.metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", help="default: the data's usual one")
    parser.add_argument("--eps", type=float, help="default: the data's usual one")
    parser.add_argument("--epochs", type=int, default=10, help="E")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--rows", type=int, nargs="+", help="which methods, 0 to 10; default: 0 to 7"
    )
    parser.add_argument("--train", type=int, help="training images, drawn once; default: all")
    parser.add_argument(
        "--test", type=int, help="test images that are attacked, drawn once; default: all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--out", type=Path, default=Path("runs/equal-cost"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    rows = options.rows or [*range(8 if options.epochs > 1 else 7)]
    if options.epochs < 2 and {7, 10} & {*rows}:
        parser.error("a long first round with later ones half as long needs --epochs 2 or more")
    labels = [list(METHODS)[row] for row in rows]
    with side_by_side(options.jobs) as pool:
        plan = Plan(options.epochs, options.epochs)
        budget = pool.submit(run, BUDGET, plan, options.seeds[0], options).result()
        boosting = Boosting.of(options.epochs, budget.metrics)
        plans = {label: METHODS[label][2](boosting) for label in labels}
        waiting = {
            (label, seed): pool.submit(run, label, plans[label], seed, options)
            for seed in options.seeds
            for label in labels
        }
        trained = {
            label: [waiting[label, seed].result() for seed in options.seeds] for label in labels
        }
    print(table(trained, plans, len(options.seeds)))


def run(label: str, plan: Plan, seed: int, options: argparse.Namespace) -> Trained:
    """Train a method round by round."""
    recipe, rounds, _ = METHODS[label]
    dataset = load(options.data, options.data_dir, options.train, options.test)
    later = plan.later if plan.later != plan.first else None
    folder = (
        options.out / f"{recipe}-{rounds}x{plan.first}{f'-{later}' if later else ''}-seed{seed}"
    )
    kept = folder / "staged.json"
    scored = json.loads(kept.read_text()) if kept.exists() else []
    for count in range(len(scored) + 1, rounds + 1):
        model = mrboost.boost(
            recipe,
            dataset,
            model=options.model,
            rounds=count,
            epochs=plan.first,
            later_epochs=later,
            eps=options.eps,
            batch_size=options.batch_size,
            seed=seed,
            out=folder,
            resume=True,
            device=options.device,
            progress=True,
        )
        scored.append(scores(model, dataset.test, options.eps or dataset.defaults.eps))
        kept.write_text(json.dumps(scored))
    return Trained(scored, Run.open(folder).metrics())


@functools.cache
def load(data: str, data_dir: str | None, train: int | None, test: int | None) -> Dataset:
    def draw(split: Split, count: int | None) -> Split:
        return split if count is None else hold_out(split, count, seed=0)[1]

    dataset = mrboost.data.load(data, data_dir)
    return replace(dataset, train=draw(dataset.train, train), test=draw(dataset.test, test))


def scores(model: torch.nn.Module, test: Split, eps: float) -> Scores:
    result = mrboost.evaluate(model, test.images(), test.y, ["pgd-100", "cw"], eps=eps)
    attacked = result["pgd-100"]
    return {
        "clean": 100 * result["clean"].accuracy,
        "pgd-100": 100 * attacked.accuracy,
        "cw": 100 * result["cw"].accuracy,
        "least margin": attacked.min_margin,
    }


def table(trained: dict[str, list[Trained]], plans: dict[str, Plan], seeds: int) -> str:
    lines = [
        f"Mean ± standard deviation over {seeds} seeds, after the last round; then PGD-100 "
        "after each round.",
        "",
        "| method | epochs by round | seconds | clean | PGD-100 | CW | least margin | PGD-100 "
        "by round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, runs in trained.items():
        rounds = len(runs[0].scores)
        plan = plans[label]
        epochs = ", ".join(map(str, [plan.first, *[plan.later] * (rounds - 1)]))
        seconds = f"{statistics.mean(one.seconds for one in runs):.0f}"
        cells = [
            spread([one.scores[-1][key] for one in runs])
            for key in ("clean", "pgd-100", "cw", "least margin")
        ]
        staged = [
            f"{statistics.mean(one.scores[i]['pgd-100'] for one in runs):.1f}"
            for i in range(rounds)
        ]
        lines.append(
            f"| {label} | {epochs} | {seconds} | {' | '.join(cells)} | {', '.join(staged)} |"
        )
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


if __name__ == "__main__":
    main()
