"""Networks that were trained apart, perhaps at the same time on several devices, as one ensemble.

    for seed in 0 1 2; do mrboost train at-mce --seed $seed --out runs/seed$seed; done
    python examples/joined.py runs/seed0 runs/seed1 runs/seed2 --attack pgd-20 --all autoattack --n 1000

Printed: the first network, the first two together and so on under ``--attack``; then all of them under ``--all``.
"""

from __future__ import annotations

import argparse

import mrboost
from mrboost.results import draw, load_data, load_model
from mrboost.runs import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--weights", default="best", help="best (default) or last")
    parser.add_argument("--attack", default="pgd-20", help="on all test images")
    parser.add_argument("--all", default="autoattack", help="on at most --n test images, of all networks together")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    folders = [Run.open(run) for run in options.runs]
    first = folders[0].config
    for folder in folders:
        if folder.config["input"] != first["input"]:
            parser.error(f"{str(folder.folder)!r} was trained on other images than {options.runs[0]!r}")
    members = [member for folder in folders for member in load_model(folder, options.weights, options.device)]
    test, ball = load_data(folders[0], options.data_dir).test, {"eps": first["eps"], "norm": first["norm"]}
    for count in range(1, len(members) + 1):
        model = mrboost.Ensemble(members[:count])
        found = mrboost.evaluate(model, test, attack=options.attack, progress=True, check=False, **ball)
        print(f"{count} together, {options.weights} weights: {found}\n", flush=True)
    few = draw(test, min(options.n, len(test)))
    print(f"all, {mrboost.evaluate(model, few, attack=options.all, progress=True, check=False, **ball)}")


if __name__ == "__main__":
    main()
