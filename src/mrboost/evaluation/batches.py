"""A model's answers batch by batch, on clean images or attacked ones: what evaluations, curves
and trainings count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn

from mrboost.attacks import PGD, Attack, Classifier, attacked
from mrboost.attacks.base import LOW_PRECISION, Rounded, ball_of
from mrboost.attacks.checks import check_logits
from mrboost.data import Split
from mrboost.devices import device_of, dtype_of, exact_float32
from mrboost.ensemble import Mixture
from mrboost.errors import InputError, NanLogitsError
from mrboost.speed.copies import quick
from mrboost.speed.memory import halved
from mrboost.threat import ball


def fitted(model: Classifier, x: Tensor) -> tuple[Classifier, Tensor]:
    """Model and images in one precision: that of its weights; float32, where it is a lower one."""
    dtype = dtype_of(model, x.dtype)
    if dtype in LOW_PRECISION and isinstance(model, nn.Module) and not isinstance(model, Mixture):
        return Rounded(model, dtype), x.float()
    return model, x.to(dtype)


def admitted(model: Classifier, x: Tensor, y: Tensor) -> tuple[Classifier, Tensor, int]:
    """``fitted``, and the number of classes; refuses a model that gives no logits for
    such images and labels."""
    fits, images = fitted(model, x)
    one = images[:1].to(device_of(model, otherwise=x.device))
    with attacked(model):
        classes = check_logits(fits, one, y)
        Mixture.check_outermost(model)
    return fits, images, classes


def accuracies(model: Classifier, split: Split, attack: Attack) -> tuple[float, float]:
    """Clean and attacked accuracy on a split that was checked when it was loaded."""
    clean, robust = (still_correct(model, split.images(), split.y, one) for one in (None, attack))
    return clean.double().mean().item(), robust.double().mean().item()


def still_correct(model: Classifier, x: Tensor, y: Tensor, attack: Attack | None) -> Tensor:
    """Whether each image is classified correctly after the attack; of a ``Mixture``,
    with which probability."""
    model, x = fitted(model, x)
    return torch.cat([is_correct(model, *batch) for batch in attacked_batches(model, x, y, attack)])


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
    first: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batch by batch on the model's device: the attacked images, the model's logits
    on them, the labels.

    PGD runs on a quick copy; what it finds is the model's to judge.
    """
    device = device_of(model, otherwise=x.device)
    cuda, name = (
        device.type == "cuda",
        "" if attack is None else str(getattr(attack, "name", type(attack).__name__)),
    )
    size = min(len(x), batch_size or max(16, min(1024, 2 ** (22 if cuda else 18) // x[0].numel())))
    victim = model
    # Among restarts only the model itself may choose
    if type(attack) is PGD and attack.restarts == 1:
        few = x[:: max(1, len(x) // 8)].to(device)
        full = torch.autocast("cuda", enabled=False)
        with attacked(model), torch.inference_mode(False), full, suppress(torch.OutOfMemoryError):
            # Where there is no room for it, the model itself is attacked
            victim = quick(model, few.clone())
    position = 0
    while position < len(x):
        part = slice(position, position + size)
        images, labels = x[part].to(device), y[part].to(device)
        try:
            if attack is not None:
                with nullcontext() if victim is model else torch.autocast("cuda", enabled=False):
                    found = attack(victim, images, labels)
                _check_found(attack, name, found, images, first + position)
                images = found
            with attacked(model), torch.no_grad(), exact_float32():
                logits = model(images.clone())  # a model may work in place
        except torch.OutOfMemoryError as error:
            size = halved(size, error, fixed=batch_size is not None)
            continue
        except NanLogitsError as error:  # of an attack that numbers the images of a batch
            raise NanLogitsError(first + position + error.image, error.attack or name) from None
        if logits.isnan().any():
            raise NanLogitsError(
                first + position + int(logits.isnan().any(dim=1).nonzero()[0]), name
            )
        yield images, logits, labels
        position += size


def _check_found(attack: Attack, name: str, found: Tensor, x: Tensor, first: int) -> None:
    """Believe no attack: images of the same shape, in the box, and in the ball that
    it says it keeps to."""
    if not isinstance(found, Tensor) or found.shape != x.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name} was given images of shape {tuple(x.shape)} and returned {got}")
    if found.dtype != x.dtype:
        raise InputError(
            f"{name} was given images of {x.dtype} and returned {found.dtype}: the attack is "
            "at fault"
        )
    rounding = 4 * torch.finfo(x.dtype).eps
    # NaN is outside too
    outside = ~((found >= -rounding) & (found <= 1 + rounding)).flatten(1).all(dim=1)
    where, (eps, norm) = "[0, 1]", ball_of(attack)
    if not outside.any() and eps is not None and norm is not None:
        outside = ball(norm, eps or 1.0).distance(found, x) > eps * (1 + 1e-5) + rounding
        where = f"its {norm} ball of {eps:g}"
    if outside.any():
        number = int(outside.nonzero()[0])
        image = f"image {first + number}"
        did = (
            f"made NaN of {image}"
            if found[number].isnan().any()
            else f"moved {image} out of {where}"
        )
        raise InputError(f"{name} {did}: the attack is at fault")
