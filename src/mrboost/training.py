"""Fit one learner: the only training loop.

A batch flows from the loader to the sampler (the adversary's move), to the objective (per-example losses),
to the mean, to a step of SGD. After each epoch the learner is scored on held-out images, clean and under PGD;
the best weights so far and the current ones are both kept, and everything needed to go on is saved.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from .attacks import Classifier
from .checkpoint import Progress, copy_state
from .config import Config
from .data import Augment, Batches, Split
from .devices import place
from .errors import InputError
from .evaluation import accuracies
from .runs import Run
from .samplers import Sample, Turn
from .seeds import derive, global_stream
from .storage import State

VALIDATION_STEPS = 20
_FINITE_EVERY = 50  # steps between looks at the loss: each look waits for the device


@dataclass(frozen=True)
class Fitted:
    """What a fit leaves: the weights that did best on the held-out images, and those of the last epoch."""

    best: State
    last: State


def fit(
    learner: nn.Module,
    past: Sequence[nn.Module],
    train: Split,
    held_out: Split,
    config: Config,
    *,
    fabric: Fabric,
    augment: Augment | None = None,
    round_: int = 1,
    run: Run | None = None,
    progress: bool = False,
) -> Fitted:
    """Train ``learner`` against the recipe's adversary; ``past`` are the frozen members of earlier rounds.

    The best epoch is the one after which the ensemble of ``past`` and learner is most robust on ``held_out``; where the
    sampler ignores the past, the learner alone is judged.
    With a ``run``, every epoch is logged and saved there, and a checkpoint of this round is continued.
    """
    state = _begin(learner, config, fabric)
    if run is not None:
        state.restore(run, round_)
    model, optimizer = fabric.setup(learner, state.optimizer)
    batches = Batches(train, config.batch_size, device=fabric.device, augment=augment, shuffle=True)
    bar = tqdm(
        total=config.epochs * len(batches),
        initial=state.epoch * len(batches),
        desc=f"round {round_}/{config.rounds}",
        unit="step",
        disable=None if progress else True,
        dynamic_ncols=True,
    )
    with bar:
        while state.epoch < config.epochs:
            began = time.perf_counter()
            try:
                row = _train_epoch(model, optimizer, state, past, batches, config, fabric, round_, bar)
            except FloatingPointError as error:
                raise InputError(_diverged(error, run, round_, state.epoch)) from None
            with fabric.autocast():
                judged = config.recipe.combine([*past, state.kept]) if config.recipe.sampler.joint else state.kept
                clean, robust = accuracies(judged, held_out, config.attack(VALIDATION_STEPS))
            state.score(robust)
            row |= {"clean": clean, "robust": robust, "seconds": round(time.perf_counter() - began, 3)}
            if run is not None:
                run.log(row)
                state.save(run, round_)
            if progress:
                _print_epoch(row, config, state)
    return Fitted(state.best, copy_state(state.kept))


def _begin(learner: nn.Module, config: Config, fabric: Fabric) -> Progress:
    place(learner, fabric.device)
    recipe = config.recipe
    optimizer = torch.optim.SGD(
        learner.parameters(), lr=config.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    average = None
    if recipe.ema is not None:
        # BatchNorm's statistics are averaged with the weights: at a high learning rate those of the latest weights
        # do not fit the averaged ones (docs/design.md has the figures).
        rule = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
        average = AveragedModel(learner, multi_avg_fn=rule, use_buffers=True)
    return Progress(learner, optimizer, average)


def _train_epoch(
    model: nn.Module,
    optimizer: Any,
    state: Progress,
    past: Sequence[nn.Module],
    batches: Batches,
    config: Config,
    fabric: Fabric,
    round_: int,
    bar: Any,
) -> dict[str, Any]:
    """One pass over the training images; ``model`` and ``optimizer`` are Fabric's wrappers of the state's."""
    recipe, attack = config.recipe, config.attack()
    stream = derive(config.seed, "epoch", round_, state.epoch)
    generator = torch.Generator(device=fabric.device).manual_seed(stream)

    def losses_of(classifier: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        with fabric.autocast():
            return recipe.objective(recipe.scope(classifier, past), sample)

    def loss_of(sample: Sample, classifier: Classifier) -> Tensor:
        return sample.mean(losses_of(classifier, sample)[0])

    totals, images = torch.zeros(2, device=fabric.device), 0  # summed losses, correct; kept on the device
    facts: dict[str, Tensor] = {}
    model.train()
    with global_stream(stream, fabric.device):
        for step, (x, y) in enumerate(batches.epoch(generator)):
            done = (state.epoch + step / len(batches)) / config.epochs
            _set_rate(optimizer, config, done)
            progress = torch.full((), done, device=x.device)
            x, mixed = (x, None) if recipe.cutmix is None else recipe.cutmix(x, y, generator)
            with fabric.autocast():
                sample = recipe.sampler(Turn(attack, state.learner, past, x, y, generator, progress, mixed))
            optimizer.zero_grad()
            awp = recipe.awp
            with awp.shifted(state.learner, partial(loss_of, sample), progress) if awp else nullcontext():
                losses, logits = losses_of(model, sample)
                fabric.backward(sample.mean(losses))
            if recipe.clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=recipe.clip)
            optimizer.step()
            if state.average is not None:
                state.average.update_parameters(state.learner)
            with torch.no_grad():
                totals += torch.stack([losses.float().sum(), (logits.argmax(dim=1) == y).sum()])
                for name, value in sample.facts.items():
                    facts[name] = facts.get(name, 0) + value / len(batches)
            images += len(y)
            if step % _FINITE_EVERY == 0:
                _check_finite(totals, step)
            bar.update()
    _check_finite(totals, len(batches) - 1)
    _check_finite(torch.stack([p.detach().sum() for p in state.learner.parameters()]), len(batches) - 1)
    loss, correct = (totals / images).tolist()
    rate = optimizer.param_groups[0]["lr"]
    row = {"round": round_, "epoch": state.epoch + 1, "lr": rate, "loss": loss, "train_robust": correct}
    return row | {name: value.item() for name, value in facts.items()}


def _set_rate(optimizer: Any, config: Config, progress: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = config.lr * config.recipe.schedule(progress)


def _check_finite(values: Tensor, step: int) -> None:
    if not values.isfinite().all():
        raise FloatingPointError(f"by step {step + 1}")


def _diverged(error: FloatingPointError, run: Run | None, round_: int, epoch: int) -> str:
    kept = "nothing was saved yet"
    if run is not None and epoch > 0:
        kept = f"the state after epoch {epoch} is kept in {str(run.folder)!r}"
    return (
        f"training diverged: the loss or a weight became NaN or infinite in round {round_}, epoch {epoch + 1}, "
        f"{error}; {kept}: start a new run with a lower lr"
    )


def _print_epoch(row: dict[str, Any], config: Config, state: Progress) -> None:
    tqdm.write(
        f"round {row['round']}/{config.rounds}  epoch {row['epoch']:>3}/{config.epochs}  loss {row['loss']:.4f}  "
        f"{config.select_on}: clean {row['clean']:6.2%}  pgd-{VALIDATION_STEPS} {row['robust']:6.2%}  "
        f"best {state.best_robust:6.2%} (epoch {state.best_epoch})  {row['seconds']:.1f} s",
        file=sys.stderr,
    )
