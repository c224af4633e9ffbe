"""A soup: the mean of the weights of a run's networks as one network, for the cost of one.

    θ = Σ_j w_j θ_j,  with BatchNorm statistics gathered anew on attacked training images

It answers well where the networks lie in one basin, as those do that start from each other's
weights (PerInit); the soup of networks that were trained apart is far worse than any of them.
(Wortsman et al., "Model soups", 2022.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.attacks import PGD
from mrboost.data import Split, validation_split
from mrboost.ensemble import Ensemble
from mrboost.errors import InputError
from mrboost.evaluation.batches import accuracies
from mrboost.progress import Meter
from mrboost.runs import Run
from mrboost.runs.evaluate_run import load_data, load_model
from mrboost.runs.join import in_one_step

from .ema import BATCHES, Average
from .fit import VALIDATION_STEPS

ATTACK_STEPS = 10
BATCH_SIZE = 128


@dataclass(frozen=True)
class Soup:
    """A network made of several, in a run folder of its own.

    Attributes:
        run: the folder.
        members: how many networks it was made of.
        accuracies, of_ensemble: its accuracy, clean and under PGD-20, on the images that the
            training held out, and that of the networks as an ensemble; None where there are none.
    """

    run: str
    members: int
    accuracies: tuple[float, float] | None
    of_ensemble: tuple[float, float] | None

    def __str__(self) -> str:
        text = f"one network of the mean weights of {self.members}: {self.run}"
        pairs = (
            ("the soup", self.accuracies),
            (f"their ensemble of {self.members}", self.of_ensemble),
        )
        for name, found in pairs:
            if found is not None:
                clean, robust = found
                text += (
                    f"\n  {name}: held-out clean {clean:.2%}  pgd-{VALIDATION_STEPS} {robust:.2%}"
                )
        return text

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def soup(
    run_dir: str | Path,
    out: str | Path,
    *,
    which: str = "last",
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> Soup:
    """Average the weights of a run's networks into one, in a run folder like any other.

    Networks count as ``mrboost reweight`` learned, alike otherwise.

    Args:
        run_dir: a run of several networks.
        out: a new folder.
        which: their "last" or "best" weights.
        device, data_dir, verify: as on the command line; BatchNorm's statistics are of the run's
            training images.
        progress: shown on standard error.

    Example:
        >>> print(soup("runs/boosted", "runs/soup"))  # doctest: +SKIP
    """
    run = Run.open(run_dir)
    model = load_model(run, which, device)
    if not isinstance(model, Ensemble) or len(model) < 2:
        raise InputError(f"{str(run_dir)!r} is no ensemble of several networks: nothing to average")
    dataset = load_data(run, data_dir, verify=verify)
    train, held_out = validation_split(dataset.train, run.config["validation"])
    with in_one_step(Path(out)) as folder, Meter(progress, "soup", unit=" batches") as meter:
        place = model.weights.device
        network = run.new_model().to(place)
        network.load_state_dict(_mean([one.state_dict() for one in model], model.weights))
        network = _with_statistics(network, run, train, meter)
        made = Run.create(folder, _describe(run, which, len(model)))
        state = network.state_dict()
        made.save_member(1, state, state, {"best": 1, "last": 1})
        if not len(held_out):
            return Soup(str(out), len(model), None, None)
        meter.doing("held-out images")
        judge = _attack(run, VALIDATION_STEPS)
        mine, of_ensemble = (accuracies(one, held_out, judge) for one in (network, model))
    return Soup(str(out), len(model), mine, of_ensemble)


def _mean(states: Sequence[dict[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    """The weighted mean of what is floating point; of the rest, what the last one has."""
    found = dict(states[-1])
    for name, last in found.items():
        if last.is_floating_point():
            stacked = torch.stack([state[name].double() for state in states])
            found[name] = torch.tensordot(weights.double(), stacked, dims=1).to(last.dtype)
    return found


def _with_statistics(network: nn.Module, run: Run, train: Split, meter: Meter) -> nn.Module:
    """The network with the statistics that its own layers have on attacked training images."""
    size = min(run.config.get("batch_size", BATCH_SIZE), len(train))
    count = min(BATCHES, len(train) // size)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    place = next(network.parameters()).device
    attack = _attack(run, ATTACK_STEPS)
    average = Average(network, decay=0.0)
    meter.begin(count)
    meter.doing("statistics of BatchNorm")
    for batch in range(count):
        some = train[order[batch * size : (batch + 1) * size]].to(place)
        images = attack(average.module, some.images(), some.y)

        def see(module: nn.Module, images: Tensor = images) -> object:
            return module(images)

        average.gather(see, batch + 1)
        meter(1)
    return average.module.eval()


def _attack(run: Run, steps: int) -> PGD:
    config = run.config
    return PGD(config["eps"], config["norm"], steps=steps, step_size=config["judge_step"])


def _describe(run: Run, which: str, members: int) -> dict[str, Any]:
    """The configuration of the run, and what became of it."""
    config = {key: value for key, value in run.config.items() if key not in ("format", "first")}
    name = config["recipe"]["name"]
    summary = f"the mean of the weights of {members} networks of {name}, as one network"
    recipe = config["recipe"] | {"name": "soup", "summary": summary, "formula": "θ = Σ_j w_j θ_j"}
    source = {"run": str(run.folder), "recipe": name, "of": run.fingerprint(which)}
    return config | {"recipe": recipe, "rounds": 1, "past": None, "joined": [source]}
