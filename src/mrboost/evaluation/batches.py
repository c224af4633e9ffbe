"""A model's answers batch by batch, on clean images or attacked ones: what evaluations, curves
and trainings count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress

import torch
from torch import Tensor

from mrboost.attacks import PGD, Attack, Classifier, attacked
from mrboost.attacks.base import ball_of
from mrboost.data import Split
from mrboost.devices import device_of, exact_float32
from mrboost.ensemble import Mixture
from mrboost.errors import InputError, NanLogitsError
from mrboost.losses import margin
from mrboost.speed.copies import quick
from mrboost.speed.memory import halved
from mrboost.threat import ball

from .inputs import fitted


def accuracies(model: Classifier, split: Split, attack: Attack) -> tuple[float, float]:
    """Clean and attacked accuracy on a split that was checked when it was loaded."""
    clean, robust = (scores(model, split, one)[0].mean().item() for one in (None, attack))
    return clean, robust


def scores(model: Classifier, split: Split, attack: Attack | None) -> tuple[Tensor, Tensor]:
    """Of each image of a split that was checked when it was loaded, after the attack: whether it is
    classified correctly, as ``is_correct`` says, and its margin."""
    correct: list[Tensor] = []
    margins: list[Tensor] = []
    for part in split.parts():
        fits, x = fitted(model, part.images())
        for images, logits, labels in attacked_batches(fits, x, part.y, attack):
            correct.append(is_correct(fits, images, logits, labels))
            margins.append(-margin(logits, labels, reduction="none").cpu().double())
    return torch.cat(correct).double(), torch.cat(margins)


def still_correct(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    attack: Attack | None,
    numbers: Tensor | None = None,
) -> Tensor:
    """Whether each image, fit for the model, is classified correctly after the attack; of a
    ``Mixture``, with which probability."""
    batches = attacked_batches(model, x, y, attack, numbers=numbers)
    return torch.cat([is_correct(model, *batch) for batch in batches])


def is_correct(model: Classifier, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each image is classified correctly; for a randomised classifier,
    with which probability."""
    if isinstance(model, Mixture):
        with attacked(model), torch.no_grad():
            return model.expected_correct(images, labels).cpu().double()
    return (logits.argmax(dim=1) == labels).cpu()


def attacked_batches(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    attack: Attack | None,
    batch_size: int | None = None,
    numbers: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batch by batch on the model's device: the attacked images, the model's logits
    on them, the labels.

    Args:
        model: gives the logits. PGD runs on a quick copy; what it finds is the model's to judge.
        x, y: images that fit the model (``fitted``), and labels.
        attack: what is done to the images; nothing if None.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        numbers: those that messages give to the images; from 0 on if not given.
    """
    device = device_of(model, otherwise=x.device)
    numbers = torch.arange(len(x)) if numbers is None else numbers
    size = min(len(x), batch_size or _usual_batch_size(x, device))
    victim = _victim(model, attack, x, device)
    name = "" if attack is None else attack.name
    position = 0
    while position < len(x):
        rows = slice(position, position + size)
        images, labels = x[rows].to(device), y[rows].to(device)
        number = numbers[rows]
        try:
            if attack is not None:
                with nullcontext() if victim is model else torch.autocast("cuda", enabled=False):
                    found = attack(victim, images, labels)
                _check_found(attack, found, images, number)
                images = found
            with attacked(model), torch.no_grad(), exact_float32():
                logits = model(images.clone())  # a model may work in place
        except torch.OutOfMemoryError as error:
            size = halved(size, error, fixed=batch_size is not None)
            continue
        except NanLogitsError as error:  # of an attack that numbers the images of a batch
            raise NanLogitsError(int(number[error.image]), error.attack or name) from None
        bad = logits.isnan().any(dim=1)
        if bad.any():
            raise NanLogitsError(int(number[bad.cpu()][0]), name)
        yield images, logits, labels
        position += size


def _usual_batch_size(x: Tensor, device: torch.device) -> int:
    numbers = 2**22 if device.type == "cuda" else 2**18
    return max(16, min(1024, numbers // x[0].numel()))


def _victim(
    model: Classifier, attack: Attack | None, x: Tensor, device: torch.device
) -> Classifier:
    """What the attack runs on: a quick copy for PGD, elsewhere the model itself.

    Among restarts only the model itself may choose.
    """
    if type(attack) is not PGD or attack.restarts > 1:
        return model
    few = x[:: max(1, len(x) // 8)].to(device)
    full = torch.autocast("cuda", enabled=False)
    with attacked(model), torch.inference_mode(False), full, suppress(torch.OutOfMemoryError):
        return quick(model, few.clone())
    return model  # there is no room for a copy


def _check_found(attack: Attack, found: object, x: Tensor, numbers: Tensor) -> None:
    """Refuse an attack whose images are of another shape or type, or outside the box or the ball
    that it says it keeps to."""
    if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
        got = type(found).__name__
        if isinstance(found, Tensor):
            got = f"{tuple(found.shape)} of {found.dtype}"
        given = f"images of shape {tuple(x.shape)} of {x.dtype}"
        raise InputError(f"{attack.name} was given {given} and returned {got}")
    rounding = 4 * torch.finfo(x.dtype).eps
    # NaN is outside too
    outside = ~((found >= -rounding) & (found <= 1 + rounding)).flatten(1).all(dim=1)
    did = "made NaN of {}" if found.isnan().any() else "moved {} out of [0, 1]"
    eps, norm = ball_of(attack)
    if not outside.any() and eps is not None and norm is not None:
        outside = ball(norm, eps or 1.0).distance(found, x) > eps * (1 + 1e-5) + rounding
        did = f"moved {{}} out of its {norm} ball of {eps:g}"
    if outside.any():
        image = f"image {int(numbers[outside.cpu()][0])}"
        raise InputError(f"{attack.name} {did.format(image)}: the attack is at fault")
