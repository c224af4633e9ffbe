"""AutoAttack against its oracle: the same model and images in one process, seconds
and survivors of both.

    python benchmarks/autoattack.py RUN --n 1000
    python benchmarks/autoattack.py RUN --norm Linf,L2,L1 --eps 8/255,0.5,12 --version standard,plus

``pyautoattack`` (bit-identical to the reference implementation) is the oracle. Printed: the
accuracy after each attack and its seconds, for both; the ratio; the points on which they differ;
and whether each of our successes holds on a fresh forward pass of one image at a time. Set-up is
counted. A second seed of the oracle (--seeds 2) shows how far the oracle differs from itself;
--spread N compares N seeds of both, of apgd-t alone on the points where chance decides. Of several
norms and versions there is a table in the end.
"""

from __future__ import annotations

import argparse
import logging
import time
from itertools import combinations, product

import mrboost  # isort: skip  # noqa: F401 — before torch, as in the command: it says how idle threads wait
import torch
from torch import Tensor, nn
from tqdm import tqdm

from mrboost.attacks import APGD, AutoAttack
from mrboost.attacks.survivors import Hooks, run
from mrboost.devices import exact_float32
from mrboost.options import fraction
from mrboost.runs import Run
from mrboost.runs.evaluate_run import draw, load_data, load_model
from mrboost.threat import ball


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--n", type=int, default=None)
    parser.add_argument("--eps", default=None, help="of each norm (default: the training's)")
    parser.add_argument("--norm", default="Linf", help="one or several, with commas")
    parser.add_argument("--version", default="standard", help="one or several, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="runs of the oracle")
    parser.add_argument(
        "--spread",
        type=int,
        default=0,
        metavar="N",
        help="instead: does apgd-t break as much? N seeds each",
    )
    parser.add_argument("--batch-size", type=int, default=250, help="of the oracle")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    folder = Run.open(options.run)
    test = draw(load_data(folder, options.data_dir).test, options.n)
    model = load_model(folder, "best", options.device)
    x, y = test.images().to(model.weights.device), test.y.to(model.weights.device)
    norms = options.norm.split(",")
    radii = [fraction(eps) for eps in (options.eps or str(folder.config["eps"])).split(",")]
    if len(radii) != len(norms):
        parser.error(f"--norm names {len(norms)} and --eps {len(radii)}: give one eps for each")
    rows = []
    for norm, eps in zip(norms, radii, strict=True):
        if options.spread:
            spread(model, x, y, eps, norm, options.spread)
            continue
        for version in options.version.split(","):
            rows += contest(model, x, y, eps, norm, version, options.seeds, options.batch_size)
    if len(rows) > 1:
        print_table(rows)


def contest(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    norm: str,
    version: str,
    seeds: int,
    batch_size: int,
) -> list[list[str]]:
    """Prints all figures; gives those of the table, a row for each seed of the oracle."""
    print(
        f"{len(x)} images, {norm} eps = {eps:g}, {version}, on {x.device}, "
        f"{torch.get_num_threads()} threads"
    )
    # What a process loads once is neither's time
    model(x[:8].clone().requires_grad_(True)).sum().backward()
    model.zero_grad(set_to_none=True)
    alive, adv, ours = our_run(model, x, y, AutoAttack(eps, norm, version=version))
    bad = invalid(model, x, y, adv, alive, eps, norm)
    others, rows = [], []
    for seed in range(seeds):
        standing, seconds = oracle_run(model, x, y, eps, norm, version, seed, batch_size)
        others.append(standing)
        we, they = int((standing & ~alive).sum()), int((~standing & alive).sum())
        print(
            f"ours {alive.float().mean():.2%}, oracle (seed {seed}) {standing.float().mean():.2%}; "
            f"{seconds / ours:.2f} times as fast; points only we break {we}, only the oracle "
            f"breaks {they} ({(we + they) / len(x):.2%} differ)"
        )
        figures = f"{alive.float().mean():.2%} / {standing.float().mean():.2%}".replace("%", "")
        times = [f"{ours:.1f} / {seconds:.1f}", f"{seconds / ours:.2f}"]
        ball = [f"{norm} {eps:.4g}", version, str(seed)]
        rows.append([*ball, figures, str(we), str(they), str(bad), *times])
    if seeds > 1:
        print(
            "the oracle's first two seeds differ on "
            f"{(others[0] != others[1]).float().mean():.2%} of the points"
        )
    print(f"of our successes {bad} do not hold for one image at a time")
    return rows


def print_table(rows: list[list[str]]) -> None:
    header = "ball|version|seed|accuracy, ours / oracle|only we break|only it breaks|invalid|"
    columns = (header + "seconds|times as fast").split("|")
    for cells in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(cells)} |")


def our_run(
    model: nn.Module, x: Tensor, y: Tensor, attack: AutoAttack
) -> tuple[Tensor, Tensor, float]:
    marks: list[tuple[int, float, float]] = []
    began = time.perf_counter()

    def hear(points: object, stage: int) -> None:
        if not marks or marks[-1][0] != stage:
            marks.append((stage, time.perf_counter() - began, points.alive.double().mean().item()))  # type: ignore[attr-defined]

    points = run(model, x, y, attack.searches, 0, hooks=Hooks(tell=hear))
    seconds = time.perf_counter() - began
    last = 0.0
    for stage, when, accuracy in marks:
        if stage > 0:
            print(
                f"  ours    {attack.searches[stage - 1].name:<9} {accuracy:>7.2%} "
                f"{when - last:>8.1f} s"
            )
            last = when
    print(f"  ours    whole     {points.alive.double().mean():>7.2%} {seconds:>8.1f} s")
    if x.is_cuda:
        print(f"  ours    peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    return points.alive, points.adv, seconds


def oracle_run(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    norm: str,
    version: str,
    seed: int,
    batch_size: int,
) -> tuple[Tensor, float]:
    from pyautoattack import AutoAttack as Oracle

    logger = logging.getLogger("auto-attack")
    logger.setLevel(logging.DEBUG)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.handlers[0].addFilter(lambda record: "robust accuracy after" in record.getMessage())
    oracle = Oracle(model, eps=eps, norm=norm, seed=seed, device=x.device, version=version)
    began = time.perf_counter()
    adv, _ = oracle.run_standard_evaluation(x, y, batch_size=batch_size)
    seconds = time.perf_counter() - began
    print(f"  oracle  whole {seconds:>16.1f} s")
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(1) for part in adv.split(batch_size)])
    return (answers == y).cpu(), seconds


def spread(model: nn.Module, x: Tensor, y: Tensor, eps: float, norm: str, seeds: int) -> None:
    """Whether ours breaks as much as the oracle, on points where three seeds of each show
    that chance decides."""
    left = run(model, x, y, [APGD(eps, norm)], 0).alive.to(x.device)
    x, y = x[left], y[left]
    first = torch.cat(list(standing(model, x, y, eps, norm, range(3)).values()))
    edge = (first.any(dim=0) & ~first.all(dim=0)).to(x.device)
    print(
        f"apgd-t on the {len(x)} points that apgd-ce leaves: {int(first.all(dim=0).sum())} "
        "always stand, of 6 runs;"
    )
    print(f"{int(edge.sum())} stand in some of them, and with {seeds} other seeds each:")
    runs = standing(model, x[edge], y[edge], eps, norm, range(3, 3 + seeds))
    for name, alive in runs.items():
        counts = alive.double().sum(dim=1)
        print(f"  {name}: {counts.mean():.2f} ± {counts.std() / seeds**0.5:.2f} of these stand")
    pairs = {name: list(combinations(alive, 2)) for name, alive in runs.items()}
    pairs["ours and oracle"] = list(product(runs["ours"], runs["oracle"]))
    for name, both in pairs.items():
        print(
            f"  two runs ({name}) differ on "
            f"{sum(int((a != b).sum()) for a, b in both) / len(both):.1f} points"
        )


def standing(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, norm: str, seeds: range
) -> dict[str, Tensor]:
    """Which points stand after apgd-t, ``(seeds, points)``."""
    from pyautoattack.autopgd_base import APGDAttack_targeted

    found: dict[str, list[Tensor]] = {"ours": [], "oracle": []}
    for seed in tqdm(seeds, leave=False):
        found["ours"].append(run(model, x, y, [APGD(eps, norm, targets=9)], seed).alive)
        oracle = APGDAttack_targeted(model, eps=eps, norm=norm, seed=seed, device=x.device)
        with torch.no_grad():
            found["oracle"].append((model(oracle.perturb(x, y)).argmax(1) == y).cpu())
    return {name: torch.stack(runs) for name, runs in found.items()}


def invalid(
    model: nn.Module, x: Tensor, y: Tensor, adv: Tensor, alive: Tensor, eps: float, norm: str
) -> int:
    """Successes that leave ball or box, or that are classified correctly when they come alone."""
    bad = 0
    outside = (ball(norm, eps).distance(adv, x) > eps * (1 + 1e-5) + 1e-6) | (
        adv.flatten(1).amin(1) < 0
    )
    outside |= adv.flatten(1).amax(1) > 1
    with torch.no_grad(), exact_float32():
        for i in (~alive).nonzero().squeeze(1).tolist():
            bad += bool(outside[i]) or int(model(adv[i : i + 1]).argmax()) == int(y[i])
    return bad


if __name__ == "__main__":
    main()
