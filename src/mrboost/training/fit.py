"""Fit one learner: the only training loop.

A batch flows from the loader to the sampler (the adversary's move), to the objective (per-example
losses), to the mean, to a step of SGD. After each epoch the learner is scored on held-out images,
clean and under PGD; the best weights so far and the current ones are both kept, and everything
needed to go on is saved.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mrboost.data import Batches, Split
from mrboost.devices import move_model, over_processes
from mrboost.errors import InputError
from mrboost.evaluation.batches import accuracies
from mrboost.files import State
from mrboost.progress import Meter, note
from mrboost.recipes.config import Config
from mrboost.runs import Run
from mrboost.seeds import derive, global_stream

from .ema import Average
from .state import FitState, copy_state
from .step import Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

VALIDATION_STEPS = 20
_FINITE_EVERY = 50  # steps between looks at the loss: each look waits for the device

# Who watches a training: they get a record of each epoch or round, and never steer it
Record = dict[str, int | float]
Observer = Callable[[Record], object]
Tell = Callable[[Mapping[str, int | float]], None]


def teller(name: str, observer: Observer | None) -> Tell:
    """Hands the observer, if there is one, a copy of each record. What it raises becomes a warning:
    the training of hours does not end with the connection to a logger, and several processes stay
    in step."""

    def tell(record: Mapping[str, int | float]) -> None:
        if observer is None:
            return
        try:
            observer(dict(record))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            problem = f"{name} failed after round {record['round']}, epoch {record['epoch']}"
            warnings.warn(f"{problem} ({said}); the training goes on", RuntimeWarning, stacklevel=2)

    return tell


@dataclass(frozen=True)
class Fitted:
    """What a fit leaves: the weights that did best on the held-out images, with their robust
    accuracy there, and those of the last epoch."""

    best: State
    last: State
    best_epoch: int
    epochs: int
    robust: float


def fit(
    learner: nn.Module,
    past: Sequence[nn.Module],
    train: Split,
    held_out: Split,
    config: Config,
    *,
    fabric: Fabric,
    round_: int = 1,
    run: Run | None = None,
    progress: bool = False,
    tell: Tell = lambda _: None,
) -> Fitted:
    """Train ``learner`` against the recipe's adversary; ``past`` are the frozen
    members of earlier rounds.

    The best epoch (``state.best_epoch``) is chosen, late in the training, by the ensemble of
    ``past`` and learner on ``held_out``; where the sampler ignores the past, the learner alone is
    judged. With a ``run``, every epoch is logged and saved there, and a checkpoint of this round is
    continued. ``tell`` is handed each epoch's figures.
    """
    state = begin(learner, config, fabric)
    if run is not None:
        state.restore(run, round_)
    step = Step(state, past, config, fabric, train[:8].images(), note if progress else None)
    size, least = config.batch_size, 2 * fabric.world_size
    batches = Batches(train, size, device=fabric.device, augment=config.augment, least=least)
    recipe = config.recipe
    with Meter(progress, "train", "step") as meter:
        meter.begin(config.epochs * len(batches), done=state.epoch * len(batches))
        meter.doing(f"round {round_}/{config.rounds}")
        while state.epoch < config.epochs:
            began = time.perf_counter()
            row = _train_epoch(step, batches, state, config, round_, meter)
            _average_buffers(state, fabric)
            judged = recipe.combine([*past, state.kept]) if recipe.sampler.joint else state.kept
            clean, robust = _validate(judged, held_out, config, fabric)
            seconds = round(time.perf_counter() - began, 3)
            row |= {"clean": clean, "robust": robust, "seconds": seconds}
            state.score(robust, config, len(held_out))
            if run is not None:
                run.log(row)
                state.save(run, round_)
            if progress:
                meter.tell(_epoch_line(row, config, state))
            of = {"epochs": config.epochs, "rounds": config.rounds, "best_epoch": state.best_epoch}
            tell(row | of)
    robust = state.scores[state.best_epoch - 1]
    return Fitted(state.best, copy_state(state.kept), state.best_epoch, state.epoch, robust)


def _average_buffers(state: FitState, fabric: Fabric) -> None:
    """Processes see other images: bring the statistics that each has gathered to their mean."""
    if fabric.world_size == 1:
        return
    for network in dict.fromkeys([state.learner, state.kept]):
        for buffer in network.buffers():
            if buffer.is_floating_point():
                buffer.copy_(over_processes(fabric, buffer))


def _validate(
    model: nn.Module, split: Split, config: Config, fabric: Fabric
) -> tuple[float, float]:
    """Clean and robust accuracy; each process looks at its share of the images."""
    mine = split[fabric.global_rank :: fabric.world_size]
    shares = (0.0, 0.0)
    if len(mine):
        with fabric.autocast():
            shares = accuracies(model, mine, config.judge(VALIDATION_STEPS))
    correct = torch.tensor(shares, dtype=torch.float64, device=fabric.device) * len(mine)
    clean, robust = (over_processes(fabric, correct, "sum") / len(split)).tolist()
    return clean, robust


def begin(learner: nn.Module, config: Config, fabric: Fabric) -> FitState:
    """A learner on its device with its optimiser, before the first step."""
    cuda = fabric.device.type == "cuda"
    if fabric.world_size > 1 and cuda:
        learner = nn.SyncBatchNorm.convert_sync_batchnorm(learner)  # type: ignore[no-untyped-call]
    move_model(learner, fabric.device)
    recipe = config.recipe
    optimizer = torch.optim.SGD(
        learner.parameters(),
        # A tensor, where the step is captured: a captured number would stay what it was.
        lr=torch.tensor(config.lr, device=fabric.device) if cuda else config.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=cuda,
    )
    average = None if recipe.ema is None else Average(learner, recipe.ema)
    return FitState(learner, optimizer, average)


def _train_epoch(
    step: Step, batches: Batches, state: FitState, config: Config, round_: int, meter: Meter
) -> dict[str, Any]:
    """One pass over the training images."""
    stream = derive(config.seed, "epoch", round_, state.epoch)
    generator = step.begin(stream, len(batches))
    finite = True
    with global_stream(stream, generator.device):
        for index, (x, y) in enumerate(batches.epoch(generator)):
            step(x, y, (state.epoch + index / len(batches)) / config.epochs)
            last = index == len(batches) - 1
            if index % _FINITE_EVERY == 0 or last:
                finite = step.is_finite()
            if last:
                finite &= all(bool(p.isfinite().all()) for p in state.learner.parameters())
            if not finite:
                where = f"round {round_}, epoch {state.epoch + 1}, by step {index + 1}"
                problem = f"training diverged: the loss or a weight is not finite in {where}"
                raise InputError(f"{problem}: start a new run, in another folder, with a lower lr")
            meter(1)
    return {"round": round_, "epoch": state.epoch + 1} | step.figures()


def _epoch_line(row: dict[str, Any], config: Config, state: FitState) -> str:
    """What an epoch found on the held-out images, and which epoch is kept by now."""
    place = f"round {row['round']}/{config.rounds} " if config.rounds > 1 else ""
    epoch = f"{row['epoch']:>{len(str(config.epochs))}}/{config.epochs}"
    return (
        f"{place}epoch {epoch}  loss {row['loss']:.4g}  clean {row['clean']:.1%}  "
        f"pgd-{VALIDATION_STEPS} {row['robust']:.1%}  kept: {state.best_epoch}  "
        f"{row['seconds']:.1f} s"
    )
