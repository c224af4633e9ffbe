"""Does margin boosting pay at equal cost? Five rounds against the alternatives, on real scans of digits.

    python examples/boosting_digits.py --out runs/boosting-digits

Attacking an ensemble of t members costs t passes a step, so five rounds of E epochs cost as much as 15 E epochs of one
network. Every row below spends that: margin boosting, RobBoost, one network trained 15 E epochs, and five independent
networks of 3 E epochs each. Finished runs are kept; starting the script again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

import mrboost

ROUNDS = 5
METHODS = {  # label: recipe, rounds, epochs of each round in units of E
    "mrboost (All, Ind, PerInit)": ("mrboost", ROUNDS, 1),
    "mrboost-rndinit": ("mrboost-rndinit", ROUNDS, 1),
    "robboost-perinit (Whole)": ("robboost-perinit", ROUNDS, 1),
    "five independent at-mce": ("at-mce", ROUNDS, 3),
    "five independent at": ("at", ROUNDS, 3),
    "one at-mce, as long": ("at-mce", 1, 15),
    "one at, as long": ("at", 1, 15),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--eps", type=float, default=0.15)
    parser.add_argument("--epochs", type=int, default=10, help="E")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/boosting-digits"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    dataset = mrboost.data.load(options.data)
    stages: dict[str, list[list[dict[str, float]]]] = {label: [] for label in METHODS}
    for seed in options.seeds:
        for label, (recipe, rounds, factor) in METHODS.items():
            folder = options.out / f"{recipe}-x{rounds}-seed{seed}"
            kept = folder / "staged.json"
            if not kept.exists():
                model = mrboost.boost(
                    recipe, dataset, rounds=rounds, epochs=factor * options.epochs, eps=options.eps, seed=seed,
                    out=folder, resume=True, device=options.device, progress=True,
                )  # fmt: skip
                kept.write_text(json.dumps([scores(stage, dataset, options.eps) for stage in model.staged()]))
            stages[label].append(json.loads(kept.read_text()))
    print(table(stages, len(options.seeds)))


def scores(model: torch.nn.Module, dataset: mrboost.data.Dataset, eps: float) -> dict[str, float]:
    result = mrboost.evaluate(model, dataset.test.images(), dataset.test.y, ["pgd-100", "cw"], eps=eps)
    attacked = result["pgd-100"]
    return {
        "clean": 100 * result["clean"].accuracy,
        "pgd-100": 100 * attacked.accuracy,
        "cw": 100 * result["cw"].accuracy,
        "least margin": attacked.min_margin,
    }


def table(stages: dict[str, list[list[dict[str, float]]]], seeds: int) -> str:
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
