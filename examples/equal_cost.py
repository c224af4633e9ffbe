"""Does margin boosting pay at equal cost? Five rounds against the alternatives.

    python examples/equal_cost.py --data digits --eps 0.15 --epochs 6
    python examples/equal_cost.py --data mnist --epochs 1 --batch-size 256 --jobs 7

Attacking an ensemble of t members costs t passes a step, so five rounds of E epochs cost as much as 15 E epochs of one
network. Every row spends that, as near as whole epochs allow: margin boosting with equal rounds, or with one of 8 E
epochs and four of E / 2; the same where each image meets one past member (``mrboost-drawn``), so that no round costs
more than two passes and rounds are longer; RobBoost, one network trained 15 E epochs, and five independent networks of
3 E epochs each. Each round is scored as soon as it is trained, and kept; starting the script again goes on where it
stopped. ``--jobs`` trains several of the rows at once: small networks leave a GPU mostly idle.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from dataclasses import replace
from pathlib import Path

import mrboost  # isort: skip — before torch, as in the command: it says how idle threads wait
import torch

from _jobs import side_by_side
from mrboost.data import Dataset, Split, hold_out

ROUNDS = 5
METHODS: dict[str, tuple[str, int, float | None, float]] = {
    # recipe, rounds, epochs of the first and of a later one in units of E; None: what the later ones leave
    "mrboost (All, Ind, PerInit)": ("mrboost", ROUNDS, 1, 1),
    "mrboost-rndinit": ("mrboost-rndinit", ROUNDS, 1, 1),
    "robboost-perinit (Whole)": ("robboost-perinit", ROUNDS, 1, 1),
    "five independent at-mce": ("at-mce", ROUNDS, 3, 3),
    "five independent at": ("at", ROUNDS, 3, 3),
    "one at-mce, as long": ("at-mce", 1, 15, 15),
    "one at, as long": ("at", 1, 15, 15),
    "mrboost, a long first round": ("mrboost", ROUNDS, None, 1 / 2),
    "mrboost, three times the cost": ("mrboost", ROUNDS, 3, 3),
    "mrboost-drawn": ("mrboost-drawn", ROUNDS, 5 / 3, 5 / 3),
    "mrboost-drawn, a long first round": ("mrboost-drawn", ROUNDS, None, 7 / 8),
}
LATER = {"mrboost": 2 + 3 + 4 + 5, "mrboost-drawn": 2 + 2 + 2 + 2}  # passes a step of the later rounds together
Scores = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", help="default: the data's usual one")
    parser.add_argument("--eps", type=float, help="default: the data's usual one")
    parser.add_argument("--epochs", type=int, default=10, help="E")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, nargs="+", help="which methods, 0 to 10; default: 0 to 7")
    parser.add_argument("--train", type=int, help="training images, drawn once; default: all")
    parser.add_argument("--test", type=int, help="test images that are attacked, drawn once; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--out", type=Path, default=Path("runs/equal-cost"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    rows = options.rows or [*range(8 if options.epochs > 1 else 7)]
    if options.epochs < 2 and {7, 10} & {*rows}:
        parser.error("a long first round with later ones half as long needs --epochs 2 or more")
    labels = [list(METHODS)[row] for row in rows]
    with side_by_side(options.jobs) as pool:
        waiting = {
            (label, seed): pool.submit(run, label, seed, options) for seed in options.seeds for label in labels
        }  # fmt: skip
        stages = {label: [waiting[label, seed].result() for seed in options.seeds] for label in labels}
    print(table(stages, len(options.seeds)))


def run(label: str, seed: int, options: argparse.Namespace) -> list[Scores]:
    """Train a method round by round; the scores of the ensemble after each."""
    recipe, rounds, of_first, of_later = METHODS[label]
    later = int(of_later * options.epochs)
    first = 15 * options.epochs - LATER[recipe] * later if of_first is None else int(of_first * options.epochs)
    dataset = load(options.data, options.data_dir, options.train, options.test)
    folder = options.out / f"{recipe}-{rounds}x{first}{f'-{later}' if later != first else ''}-seed{seed}"
    kept = folder / "staged.json"
    scored = json.loads(kept.read_text()) if kept.exists() else []
    for count in range(len(scored) + 1, rounds + 1):
        model = mrboost.boost(
            recipe, dataset, model=options.model, rounds=count, epochs=first,
            later_epochs=later if later != first else None, eps=options.eps, batch_size=options.batch_size,
            seed=seed, out=folder, resume=True, device=options.device, progress=True,
        )  # fmt: skip
        scored.append(scores(model, dataset.test, options.eps or dataset.defaults.eps))
        kept.write_text(json.dumps(scored))
    return scored


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


def table(stages: dict[str, list[list[Scores]]], seeds: int) -> str:
    lines = [
        f"Mean ± standard deviation over {seeds} seeds, after the last round; then PGD-100 after each round.",
        "",
        "| method | clean | PGD-100 | CW | least margin | PGD-100 by round |",
        "|---|---|---|---|---|---|",
    ]
    for label, runs in stages.items():
        cells = [spread([run[-1][key] for run in runs]) for key in ("clean", "pgd-100", "cw", "least margin")]
        rounds = [f"{statistics.mean(run[i]['pgd-100'] for run in runs):.1f}" for i in range(len(runs[0]))]
        lines.append(f"| {label} | {' | '.join(cells)} | {', '.join(rounds)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {deviation:.2f}"


if __name__ == "__main__":
    main()
