"""``quick`` against AutoAttack standard: the same model and images in one process, point by point.

    python benchmarks/quick.py RUN… --n 1000

A run may be followed by a ball, RUN@L2:0.8; without one it is that of its training. Printed: the
accuracy of both, the points that only one of them breaks, the share on which they agree, the
seconds of both (of the processor, where the model runs on one, so that other work on the machine
does not count) and their ratio, and whether quick's own sample raised a doubt. Each point that
quick breaks is shown to the model once more, alone and in float32, and must lie in ball and box.
With --seeds 2 AutoAttack runs once more, for the points on which that other seed differs from
AutoAttack of the first, whose random numbers quick shares near a boundary, and from quick.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import mrboost  # isort: skip  # before torch, as in the command: it says how idle threads wait
import torch
from autoattack import invalid
from safetensors.torch import load_file
from torch import Tensor

from mrboost.attacks import AutoAttack, Quick
from mrboost.evaluation.doubts import contradictions
from mrboost.options import fraction
from mrboost.runs import Run
from mrboost.runs.evaluate_run import draw, load_data, load_model

COLUMNS = (
    "model, ball, images",
    "quick / AutoAttack, %",
    "only quick breaks",
    "only AutoAttack breaks",
    "agree, %",
    "invalid",
    "seconds",
    "share of the time, %",
    "doubt",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", metavar="RUN[@NORM:EPS]", nargs="+")
    parser.add_argument("--n", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=1, choices=(1, 2), help="of AutoAttack")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    another = ["seed 1 differs from AutoAttack / quick on"][: options.seeds - 1]
    columns = [*COLUMNS, *another]
    rows = []
    for given in options.runs:
        path, _, ball = given.partition("@")
        rows.append(row(Path(path), ball, options))
        print(" ".join(rows[-1]), flush=True)
    for cells in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(cells)} |")


def row(path: Path, ball: str, options: argparse.Namespace) -> list[str]:
    """One model in one ball."""
    run = Run.open(path)
    norm, _, eps = ball.partition(":") if ball else (run.config["norm"], "", run.config["eps"])
    radius = fraction(str(eps))
    test = draw(load_data(run, options.data_dir).test, options.n)
    model = load_model(run, "best", options.device)
    x, y = test.images().to(model.weights.device), test.y.to(model.weights.device)
    model(x[:8].clone().requires_grad_(True)).sum().backward()  # what a process loads once
    model.zero_grad(set_to_none=True)
    clock = time.perf_counter if x.is_cuda else time.process_time
    attacks = {f"seed {seed}": AutoAttack(radius, norm, seed=seed) for seed in range(options.seeds)}
    stands: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, attack in {"quick": Quick(radius, norm), **attacks}.items():
            file = Path(folder) / f"{label}.safetensors"
            how = {"check": False, "progress": True, "examples": file}
            began = clock()
            found = mrboost.evaluate(model, x, y, {label: attack}, **how)
            seconds[label] = clock() - began
            stands[label] = torch.tensor(found[label].correct)
            if label == "quick":
                doubts = contradictions(found.to_dict()["outcomes"])
        adv = load_file(Path(folder) / "quick.safetensors")["quick"].to(x.device)
    quick, standard = stands["quick"], stands["seed 0"]
    only, missed = int((~quick & standard).sum()), int((quick & ~standard).sum())
    other = [
        " / ".join(str(int((stands[label] != one).sum())) for one in (standard, quick))
        for label in list(attacks)[1:]
    ]
    return [
        f"{path.name} {norm} {radius:.3g}, {len(y)}",
        f"{100 * quick.float().mean():.2f} / {100 * standard.float().mean():.2f}",
        str(only),
        str(missed),
        f"{100 * (quick == standard).float().mean():.2f}",
        str(invalid(model, x, y, adv, quick, radius, norm)),
        f"{seconds['quick']:.1f} / {seconds['seed 0']:.1f}",
        f"{100 * seconds['quick'] / seconds['seed 0']:.1f}",
        "yes" if doubts else "no",
        *other,
    ]


if __name__ == "__main__":
    main()
