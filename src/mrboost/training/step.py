"""One step of training: the adversary's move, the loss, the update. Nothing in it waits for the
device.

With ``fast``, the adversary moves against quick copies of the networks (``mrboost.speed.copies``),
that of the learner brought up to date at the start of each step, and on a CUDA device the whole
step is captured once and replayed. With several processes, only the gradients' average waits for
the others.

``check_parts`` tries a step's parts on two images, before an epoch is spent on what does not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mrboost.attacks import PGD, Classifier, Gaussian, attacked
from mrboost.data import Dataset, Mixed
from mrboost.devices import over_processes
from mrboost.errors import InputError
from mrboost.recipes.config import Config
from mrboost.recipes.samplers import Sample, Turn
from mrboost.seeds import Share, derive, global_stream
from mrboost.speed.copies import quick, refresh
from mrboost.speed.graphs import Replay

from . import ema
from .state import FitState

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def resolvable(attack: PGD, numbers: int) -> PGD:
    """The attack with a start that half precision tells from the image: those of TRADES and MART
    are too close to it.

    ``numbers`` is how many an image has.
    """
    if not isinstance(attack.start, Gaussian):
        return attack
    ones = torch.ones(1, numbers)
    each = attack.eps / attack.threat.distance(ones, torch.zeros_like(ones)).item()
    return replace(attack, start=Gaussian(max(attack.start.std, each / 8)))


class Step:
    """Called with a batch, trains the learner on it; ``figures`` tells what an
    epoch's steps came to."""

    def __init__(
        self,
        state: FitState,
        past: Sequence[nn.Module],
        config: Config,
        fabric: Fabric,
        sample: Tensor,
        say: Callable[[str], None] | None = None,
        *,
        capture: bool = True,
    ) -> None:
        """``sample`` is a few images of the data; ``say`` gets messages for the user."""
        self._state = state
        self._past = past
        self._config = config
        self._fabric = fabric
        self._say = say or (lambda _: None)
        self._model, self._optimizer = fabric.setup(state.learner, state.optimizer)
        self._rank = fabric.global_rank
        self._world = fabric.world_size
        # The first draws alike in all processes, the second in each its own
        self._generator = torch.Generator(device=fabric.device)
        self._own = torch.Generator(device=fabric.device)
        self._starts = Share(self._generator, self._rank, self._world)
        self._progress = torch.zeros((), device=fabric.device)
        # Of the losses, of the images classified correctly
        self._sums = torch.zeros(2, device=fabric.device)
        self._facts: dict[str, Tensor] = {}
        self._steps = self._images = self._length = 0
        self._copies = self._make_copies(sample.to(fabric.device)) if config.fast != "off" else None
        self._attack = config.attack()
        if self._attacks_in_half_precision():
            self._attack = resolvable(self._attack, sample[0].numel())
        self._move: Callable[..., Sample] = self._sample
        self._train: Callable[..., Sample] = self._step
        if self._copies is not None and fabric.device.type == "cuda" and capture:
            from lightning_fabric.strategies.ddp import DDPStrategy

            generators = [self._generator, self._own]
            strict = config.fast == "on"
            if isinstance(fabric.strategy, DDPStrategy):  # the update waits for the other processes
                self._move = Replay(self._sample, generators, self._say, strict=strict)
            else:
                self._train = Replay(self._step, generators, self._say, strict=strict)

    def begin(self, stream: int, steps: int) -> torch.Generator:
        """Start an epoch of so many steps, whose random numbers are those of ``stream``.

        Gives the generator that all processes share.
        """
        self._steps = 0
        self._images = 0
        self._length = steps
        for total in (self._sums, *self._facts.values()):
            total.zero_()
        self._model.train()
        self._own.manual_seed(derive(stream, "process", self._rank))
        return self._generator.manual_seed(stream)

    def __call__(self, x: Tensor, y: Tensor, progress: float) -> None:
        """Train on a batch, of which each process takes its share.

        ``progress`` is the share of the training that lies behind, in [0, 1).
        """
        rate = self._config.lr * self._config.recipe.schedule(progress)
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        self._progress.fill_(progress)
        self._starts.count = len(y)
        self._steps += 1
        self._images += len(y)
        batch: tuple[Tensor, ...] = (x, y)
        if (cutmix := self._config.recipe.cutmix) is not None:
            x, mixed = cutmix(x, y, self._generator)
            batch = (x, y, *mixed)
        if self._world > 1:
            batch = tuple(part[self._rank :: self._world] for part in batch)
        sample = self._train(*batch)
        gathered = self._steps - max(0, self._length - ema.BATCHES)
        if self._state.average is not None and gathered > 0:
            self._state.average.gather(lambda module: self._losses(module, sample), gathered)

    def figures(self) -> dict[str, float]:
        """The mean loss, the share of images classified correctly and the sampler's facts,
        over the epoch so far."""
        sums = over_processes(self._fabric, self._sums, "sum") / max(1, self._images)
        rate = float(self._optimizer.param_groups[0]["lr"])
        figures = {"lr": rate, "loss": sums[0].item(), "train_robust": sums[1].item()}
        for name, total in self._facts.items():
            figures[name] = over_processes(self._fabric, total).item() / self._steps
        return figures

    def is_finite(self) -> bool:
        return bool(over_processes(self._fabric, self._sums, "sum").isfinite().all())

    def _losses(self, classifier: Classifier, sample: Sample) -> tuple[Tensor, Tensor]:
        recipe = self._config.recipe
        with self._fabric.autocast():
            return recipe.objective(recipe.scope(classifier, self._past), sample)

    def _step(self, x: Tensor, y: Tensor, *mixed: Tensor) -> Sample:
        recipe = self._config.recipe
        sample = self._move(x, y, *mixed, case=self._starts.count)
        # Processes average their gradients: with this factor that is the gradient of the mean
        # over the whole batch.
        share = len(y) * self._world / self._starts.count

        def loss_of(classifier: Classifier) -> Tensor:
            return sample.mean(self._losses(classifier, sample)[0]) * share

        def agreed(gradient: Tensor) -> Tensor:
            return gradient if self._world == 1 else over_processes(self._fabric, gradient)

        shifted: AbstractContextManager[None] = nullcontext()
        if recipe.awp:
            shifted = recipe.awp.shifted(self._state.learner, loss_of, self._progress, agreed)
        self._optimizer.zero_grad()
        with shifted:
            losses, logits = self._losses(self._model, sample)
            self._fabric.backward(sample.mean(losses) * share)
        if recipe.clip is not None:
            self._fabric.clip_gradients(
                self._model, self._optimizer, max_norm=recipe.clip, error_if_nonfinite=False
            )
        self._optimizer.step()
        if self._state.average is not None:
            self._state.average.follow(self._state.learner)
        with torch.no_grad():
            self._sums += torch.stack([losses.float().sum(), (logits.argmax(dim=1) == y).sum()])
            for name, value in sample.facts.items():
                if name not in self._facts:
                    self._facts[name] = torch.zeros_like(value)
                self._facts[name] += value
        return sample

    def _attacks_in_half_precision(self) -> bool:
        """Copies are in half precision on CUDA; networks themselves where autocast makes it so."""
        if self._copies is not None:
            return self._fabric.device.type == "cuda"
        with self._fabric.autocast():
            return torch.is_autocast_enabled(self._fabric.device.type)

    def _sample(self, x: Tensor, y: Tensor, *mixed: Tensor, case: int | None = None) -> Sample:  # noqa: ARG002
        *past, learner = self._copies or (*self._past, self._state.learner)
        if self._copies is not None:
            refresh(learner)
        generator = self._generator if self._world == 1 else self._own
        starts = None if self._world == 1 else self._starts
        two = Mixed(*mixed) if mixed else None
        turn = Turn(self._attack, learner, past, x, y, generator, self._progress, two, starts)
        with self._fabric.autocast() if self._copies is None else nullcontext():
            return self._config.recipe.sampler(turn)

    def _make_copies(self, sample: Tensor) -> list[nn.Module] | None:
        """Quick copies of the past members and the learner; all of them or none."""
        copies: list[nn.Module] = []
        began = time.perf_counter()
        for network in (*self._past, self._state.learner):
            with attacked(network):
                copy = quick(network, sample)
            if copy is network or not isinstance(copy, nn.Module):
                problem = f"no quick copy of {self._config.model!r} answers as it does"
                if self._config.fast == "on":
                    raise InputError(f"{problem}: use --fast auto or off")
                self._say(f"{problem}: attacks run on the network itself")
                return None
            copies.append(copy)
        if (seconds := time.perf_counter() - began) > 1:
            self._say(f"made quick copies for the attack in {seconds:.1f} s")
        return copies


def check_parts(config: Config, learner: nn.Module, dataset: Dataset, processes: int = 1) -> None:
    """Refuse a model, a sampler, an objective or a batch size that does not fit.

    ``learner`` is a network that nothing else needs: its statistics change.
    """
    if config.batch_size < 2 * processes:
        raise InputError(f"batch_size {config.batch_size} is less than 2 images for each process")
    _, height, width = dataset.shape
    if not 0 <= config.augment.padding <= max(height, width):
        most = f"0 to {max(height, width)}, the images' size"
        raise InputError(f"padding must be {most}, got {config.augment.padding}")
    few = dataset.train[:2]
    x, y = few.images().cpu(), few.y.cpu()
    with global_stream(0, torch.device("cpu")):
        _check_model(learner, config.model, x, dataset)
        for past in [[], [learner]][: config.rounds]:
            _check_step(config, learner, past, x, y)


def _check_model(learner: nn.Module, name: str, x: Tensor, dataset: Dataset) -> None:
    """One logit for each class, and the images as they were."""
    given = x.clone()
    with attacked(learner), torch.no_grad():
        logits = learner(given)
    if _shape(logits) != (2, dataset.num_classes):
        remedy = "check the function that was registered"
        if not isinstance(logits, Tensor):
            remedy = "let it return mrboost.models.Logits(network)"
        raise InputError(
            f"model {name!r} must return logits of shape (2, {dataset.num_classes}) for 2 images "
            f"of {dataset.name}, it gave {_shape(logits)}: {remedy}"
        )
    if not torch.equal(given, x):
        raise InputError(f"model {name!r} changes its images: compute x - mean, not x.sub_(mean)")


def _check_step(
    config: Config, learner: nn.Module, past: list[nn.Module], x: Tensor, y: Tensor
) -> None:
    """A batch as ``Step`` makes and judges it, with one step of the attack."""
    recipe, attack = config.recipe, replace(config.attack(), steps=1)
    turn = Turn(attack, learner, past, x, y, torch.Generator().manual_seed(0))
    sample: object = recipe.sampler(turn)
    called = f"sampler {type(recipe.sampler).__name__} of recipe {recipe.name!r}"
    if not isinstance(sample, Sample):
        remedy = "return turn.sample(x_adv)"
        raise InputError(f"{called} gave {type(sample).__name__} and no Sample: {remedy}")
    if _shape(sample.x) != x.shape:
        remedy = "keep the shape of turn.x"
        raise InputError(f"{called} gave {_shape(sample.x)} for {tuple(x.shape)}: {remedy}")
    found: Any = recipe.objective(recipe.scope(learner, past), sample)
    called = f"objective {type(recipe.objective).__name__} of recipe {recipe.name!r}"
    if not isinstance(found, tuple) or len(found) != 2:
        remedy = "return (losses, logits)"
        raise InputError(f"{called} gave {type(found).__name__} and no pair: {remedy}")
    shapes = tuple(map(_shape, found))
    if shapes[0] != (2,) or len(shapes[1]) != 2:
        remedy = 'it must give one loss for each image: call its loss with reduction="none"'
        raise InputError(f"{called} gave losses of shape {shapes[0]} for 2 images: {remedy}")


def _shape(value: object) -> Any:
    """The shape of a tensor, or what a value is instead of one."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
