"""Every single-model defence of the paper with and without MCE, side by side: one row a
recipe, several seeds.

    python examples/defences.py --data digits --eps 0.15 --epochs 20
    python examples/defences.py --data mnist --test 1000 --jobs 4
    python examples/defences.py --data folder:cifar10-jpeg.tar.xz --model resnet18 --epochs 50 \
        --seeds 0 --test 1000

Trains what is not trained yet, attacks what is not attacked yet, and prints the table; started
again, it goes on. Besides the recipes, ``--recipes`` takes the compositions named in ``COMPOSED``.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from dataclasses import replace
from pathlib import Path

import mrboost
from _jobs import side_by_side
from mrboost import recipes
from mrboost.attacks import Gaussian
from mrboost.data import Dataset, hold_out
from mrboost.losses import Smoothed, margin_cross_entropy, margin_kl_divergence
from mrboost.recipes import AWP, Diverge, OnPerturbed, Trades

ROWS = [
    "at",
    "at-mce",
    "trades",
    "trades-mce",
    "mart",
    "mart-mce",
    "mart-mce-perturbed",
    "gair",
    "gair-mce",
    "awp",
    "awp-mce",
    "strong",
]
SMOOTH = OnPerturbed(Smoothed(margin_cross_entropy))
COMPOSED = {
    recipe.name: recipe
    for recipe in (
        replace(recipes.TRADES, name="trades+awp", awp=AWP(0.005)),
        replace(recipes.TRADES_MCE, name="trades-mce+awp", awp=AWP(0.005)),
        replace(recipes.STRONG, name="strong+silu", model="{}-silu"),
        replace(recipes.STRONG, name="strong+smoothing", objective=SMOOTH),
        replace(recipes.STRONG, name="strong+smoothing+silu", objective=SMOOTH, model="{}-silu"),
        replace(
            recipes.STRONG,
            name="strong-trades",
            start=Gaussian(),
            sampler=Diverge(margin_kl_divergence),
            objective=Trades(Smoothed(margin_cross_entropy), margin_kl_divergence),
            model="{}-silu",
        ),
        replace(recipes.MRBOOST, name="mrboost+awp", awp=AWP()),
        replace(recipes.MRBOOST, name="mrboost+trades", objective=Trades()),
    )
}
Scores = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--recipes", nargs="+", default=ROWS, metavar="NAME", help=f"default: {' '.join(ROWS)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--attacks", nargs="+", default=["pgd-100", "autoattack"])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument(
        "--test", type=int, help="test images that are attacked, drawn once; default: all"
    )
    for name, kind in (
        ("model", str),
        ("eps", float),
        ("epochs", int),
        ("rounds", int),
        ("batch-size", int),
        ("lr", float),
        ("schedule", str),
        ("ema", float),
    ):
        parser.add_argument(f"--{name}", type=kind, help="default: the data's or the recipe's")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--out", type=Path, default=Path("runs/defences"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    for name in options.recipes:
        find(name)
    with side_by_side(options.jobs) as pool:
        waiting = {
            (name, seed): pool.submit(run, name, seed, options)
            for seed in options.seeds
            for name in options.recipes
        }
        scores = {
            name: [waiting[name, seed].result() for seed in options.seeds]
            for name in options.recipes
        }
    print(table(scores, ["clean", *options.attacks], options.seeds))


def find(name: str) -> mrboost.Recipe:
    return COMPOSED[name] if name in COMPOSED else recipes.get(name)


def run(name: str, seed: int, options: argparse.Namespace) -> Scores:
    """Accuracy in percent of one recipe and seed, clean and under each attack; what is known
    already is not redone."""
    dataset, folder = load(options.data, options.data_dir), options.out / f"{name}-seed{seed}"
    said = {
        key: getattr(options, key)
        for key in ("model", "eps", "epochs", "batch_size", "lr", "schedule", "ema")
    }
    if options.rounds is not None and find(name).rounds > 1:
        said["rounds"] = options.rounds
    model = mrboost.boost(
        find(name),
        dataset,
        seed=seed,
        out=folder,
        resume=True,
        device=options.device,
        progress=True,
        **said,
    )
    kept = folder / f"scores-{options.test or 'all'}.json"
    scores: Scores = json.loads(kept.read_text()) if kept.exists() else {}
    test = dataset.test if options.test is None else hold_out(dataset.test, options.test, seed=0)[1]
    for attack in options.attacks:
        if attack not in scores:
            result = mrboost.evaluate(
                model,
                test.images(),
                test.y,
                attack,
                eps=options.eps or dataset.defaults.eps,
                progress=True,
                check=False,
            )
            scores |= {outcome.attack: 100 * outcome.accuracy for outcome in result.outcomes}
            kept.write_text(json.dumps(scores))
    return scores


@functools.cache
def load(data: str, data_dir: str | None) -> Dataset:
    return mrboost.data.load(data, data_dir)


def table(scores: dict[str, list[Scores]], columns: list[str], seeds: list[int]) -> str:
    lines = [
        "Accuracy, %, of the weights that were best on held-out images; mean ± standard "
        f"deviation over seeds {seeds}.",
        "",
        f"| recipe | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, runs in scores.items():
        cells = [spread([one[column] for one in runs]) for column in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    main()
