"""Members of trained runs in other compositions, without any training: the average
of a run's weights as one network, and the newest members of several runs as one ensemble.

    python examples/recombined_members.py RUN RUN… --data cifar10 --data-dir DIR --n 2000

Rounds that start from the last member's weights (PerInit) may end in one basin; then the average of
their weights is a network of its own, for the cost of one at prediction. Prints clean accuracy and
PGD-20 on all test images, APGD-T on ``--n`` of them.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import mrboost  # isort: skip — before torch, as in the command: it says how idle threads wait
import torch
from torch import nn

from mrboost.runs import Run
from mrboost.runs.evaluate_run import draw, load_data


def averaged(members: list[nn.Module], like: nn.Module) -> nn.Module:
    """One network with the mean of the members' weights and statistics."""
    states = [member.state_dict() for member in members]
    mean = {
        name: torch.stack([state[name] for state in states]).float().mean(0).to(value.dtype)
        for name, value in states[0].items()
    }
    like.load_state_dict(mean)
    return like.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-dir")
    parser.add_argument("--n", type=int, default=2000, help="test images for APGD-T")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    runs = [Run.open(folder) for folder in options.runs]
    data = load_data(runs[0], options.data_dir)
    some = draw(data.test, options.n)
    members = {run: run.members(run.rounds_done(), "last") for run in runs}
    compositions: dict[str, nn.Module] = {}
    for run in runs:
        if len(members[run]) > 1:
            name = f"average of the members of {run.folder.name}"
            compositions[name] = averaged(members[run], run.new_model())
    for one, other in combinations(runs, 2):
        name = f"newest members of {one.folder.name} and {other.folder.name}"
        newest = members[one][-1:] + members[other][-1:]
        compositions[name] = mrboost.Ensemble(newest).eval()
    for name, model in compositions.items():
        model.to(options.device)
        row: dict[str, float] = {}
        for split, attack in ((some, "apgd-t"), (data.test, "pgd-20")):
            found = mrboost.evaluate(
                model,
                split.images().to(options.device),
                split.y.to(options.device),
                [attack],
                eps=runs[0].config["eps"],
                check=False,
            )
            row |= {outcome.attack: round(100 * outcome.accuracy, 2) for outcome in found.outcomes}
        print(f"{name}: {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
