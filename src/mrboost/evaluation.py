"""How robust is a classifier? Accuracy and margins, clean and under attack, of any model or run.

``evaluate`` gives an ``Evaluation``: one ``Outcome`` for the clean images and one for each attack. It prints as a
table and dumps as JSON. All figures are computed in the model's own precision, image by image, on the images given.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .attacks import Attack, Classifier, attacked, named
from .attacks.base import check_batch, check_logits
from .data import Split
from .devices import device_of, dtype_of
from .ensemble import Mixture
from .errors import InputError
from .losses import margin

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, Attack]
DEFAULT_ATTACKS = ("fgsm", "pgd-20", "pgd-100", "cw")


@dataclass(frozen=True)
class Outcome:
    """What one attack left of the accuracy.

    ``correct`` says of each image whether it withstood (for a randomised classifier: with which probability),
    ``interval`` is the 95 % Wilson interval of the accuracy; ``margin`` the mean of the true logit minus the
    largest other one on the attacked images, ``min_margin`` the least of them.
    """

    attack: str
    accuracy: float
    interval: tuple[float, float]
    margin: float
    min_margin: float
    per_class: tuple[float | None, ...]
    seconds: float
    correct: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Evaluation:
    """Outcomes of several attacks on the same images; ``eps`` and ``norm`` are None where the attacks differ."""

    eps: float | None
    norm: str | None
    n: int
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, attack: str) -> Outcome:
        for outcome in self.outcomes:
            if outcome.attack == attack:
                return outcome
        raise KeyError(f"{attack!r} was not evaluated, only {', '.join(o.attack for o in self.outcomes)}")

    def __str__(self) -> str:
        ball = "several balls" if self.eps is None else f"{self.norm} eps = {format_eps(self.eps)}"
        head = f"{self.n} images, {ball}"
        lines = [
            head,
            f"{'attack':<14}{'accuracy':>9}   {'95 % interval':<16}{'margin':>8}{'least':>8}{'seconds':>9}",
        ]
        for o in self.outcomes:
            low, high = o.interval
            lines.append(
                f"{o.attack:<14}{o.accuracy:>9.2%}   {f'{low:.2%} – {high:.2%}':<16}"
                f"{o.margin:>8.2f}{o.min_margin:>8.2f}{o.seconds:>9.1f}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def evaluate(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    attack: Attacks = DEFAULT_ATTACKS,
    *,
    eps: float = 8 / 255,
    norm: str = "Linf",
    batch_size: int | None = None,
    progress: bool = False,
) -> Evaluation:
    """Accuracy of ``model`` on images ``x`` in [0, 1] with labels ``y``, clean and under each attack.

    Args:
        model: an ``nn.Module`` on any device, or a differentiable function, that returns logits.
        x, y: tensors (or arrays) of images and integer labels; they are moved to the model batch by batch.
        attack: a name (``fgsm``, ``pgd-20``, ``pgd-mce-20``, ``cw``), an attack, several of them, or a
            mapping from labels to attacks. Clean accuracy is always reported.
        eps, norm: the ball of attacks given by name.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        progress: show a progress bar on standard error.

    Example:
        >>> print(evaluate(model, x, y, ["pgd-20", "cw"], eps=0.1))  # doctest: +SKIP
    """
    x, y = _tensors(x, y)
    check_batch(x, y)
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}: leave it out to have it chosen")
    device = device_of(model)
    with attacked(model):
        check_logits(model, x[:1].to(device, dtype_of(model, x.dtype)), y.to(device))
    attacks = resolve_attacks(attack, eps, norm)
    outcomes = []
    with tqdm(total=len(x) * (len(attacks) + 1), unit="image", disable=None if progress else True) as bar:
        for label, one in ({"clean": None} | attacks).items():
            bar.set_description(label)
            outcomes.append(_outcome(label, model, x, y, one, batch_size, bar.update))
    balls = {(getattr(one, "eps", None), getattr(one, "norm", None)) for one in attacks.values()} or {(eps, norm)}
    common = balls.pop() if len(balls) == 1 else (None, None)
    return Evaluation(common[0], common[1], len(x), tuple(outcomes))


def resolve_attacks(attack: Attacks, eps: float, norm: str) -> dict[str, Attack]:
    """Attacks by label, whatever form they were given in; ``clean`` is left out, it is always there."""
    found: dict[str, Attack] = dict(attack) if isinstance(attack, Mapping) else {}
    if not isinstance(attack, Mapping):
        for item in [attack] if isinstance(attack, str) or not isinstance(attack, Sequence) else attack:
            if item == "clean":
                continue
            one = named(item, eps, norm) if isinstance(item, str) else item
            label = item if isinstance(item, str) else str(getattr(one, "name", type(one).__name__))
            if label in found and found[label] != one:
                label = f"{label} ({len(found) + 1})"
            found[label] = one
    for label, one in found.items():
        if not callable(one):
            raise InputError(f"an attack is a name or a callable attack(model, x, y), got {one!r} as {label!r}")
    return found


def _tensors(x: object, y: object) -> tuple[Tensor, Tensor]:
    """Arrays as tensors, integer labels of any width as int64; tensors as they are."""
    images = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    if isinstance(y, Tensor):
        return images, y
    labels = np.array(y)
    return images, torch.from_numpy(labels.astype(np.int64) if labels.dtype.kind in "iu" else labels)


def accuracies(model: Classifier, split: Split, attack: Attack) -> tuple[float, float]:
    """Clean and attacked accuracy on a split that was checked when it was loaded."""
    clean, robust = (_correct(model, split.images(), split.y, one) for one in (None, attack))
    return clean.double().mean().item(), robust.double().mean().item()


def robustness_curve(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    radii: Sequence[float],
    *,
    attack: str = "pgd-20",
    norm: str = "Linf",
    progress: bool = False,
) -> list[tuple[float, float]]:
    """Accuracy against growing radii, ``[(0, clean), (eps, accuracy), …]``.

    The balls are nested, so an image that falls at one radius has fallen at all larger ones: each radius attacks the
    survivors of the last.
    """
    alive = torch.ones(len(x), dtype=torch.float64)  # probabilities, for a randomised classifier
    curve: list[tuple[float, float]] = []
    for eps in tqdm([0.0, *sorted(radii)], desc="radii", disable=None if progress else True):
        one = named(attack, eps, norm) if eps > 0 else None
        survivors = alive.nonzero().squeeze(1)
        if len(survivors):
            alive[survivors] = alive[survivors].minimum(_correct(model, x[survivors], y[survivors], one).double())
        curve.append((eps, alive.mean().item()))
    return curve


def probability_margins(model: Classifier, x: Tensor, y: Tensor, attack: Attack) -> list[float]:
    """``p_y − max_{j≠y} p_j`` of each attacked image, p the softmax: in [−1, 1] whatever the scale of the logits."""
    found: list[float] = []
    for _, logits, labels in _attacked(model, x, y, attack):
        found += (-margin(logits.softmax(dim=1), labels, reduction="none")).tolist()
    return found


def format_eps(eps: float) -> str:
    """``8/255`` where eps is a whole number of grey levels, the number itself elsewhere."""
    levels = eps * 255
    return f"{round(levels)}/255" if math.isclose(levels, round(levels), rel_tol=1e-6) and levels < 255 else f"{eps:g}"


def _outcome(
    label: str,
    model: Classifier,
    x: Tensor,
    y: Tensor,
    attack: Attack | None,
    batch_size: int | None,
    tell: Callable[[int], object],
) -> Outcome:
    began = time.perf_counter()
    correct_parts, margin_parts = [], []
    for images, logits, labels in _attacked(model, x, y, attack, batch_size):
        correct_parts.append(_is_correct(model, images, logits, labels))
        margin_parts.append(-margin(logits, labels, reduction="none").cpu().double())
        tell(len(labels))
    correct, margins, y = torch.cat(correct_parts), torch.cat(margin_parts), y.cpu()
    classes = range(int(y.max()) + 1)
    return Outcome(
        attack=label,
        accuracy=correct.double().mean().item(),
        interval=wilson_interval(correct.double().sum().item(), len(correct)),
        margin=margins.mean().item(),
        min_margin=margins.min().item(),
        per_class=tuple(correct[y == k].double().mean().item() if (y == k).any() else None for k in classes),
        seconds=time.perf_counter() - began,
        correct=tuple(correct.tolist()),
    )


def _correct(model: Classifier, x: Tensor, y: Tensor, attack: Attack | None) -> Tensor:
    return torch.cat([_is_correct(model, *batch) for batch in _attacked(model, x, y, attack)])


def _is_correct(model: Classifier, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each image is classified correctly; for a randomised classifier, with which probability."""
    if isinstance(model, Mixture):
        with attacked(model), torch.no_grad():
            return model.expected_correct(images, labels).cpu().double()
    return (logits.argmax(dim=1) == labels).cpu()


def _attacked(
    model: Classifier, x: Tensor, y: Tensor, attack: Attack | None, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batch by batch on the model's device: the attacked images, the model's logits on them, the labels."""
    device, dtype = device_of(model), dtype_of(model, x.dtype)
    size = min(len(x), batch_size or max(16, min(1024, 2**20 // x[0].numel())))
    position = 0
    while position < len(x):
        part = slice(position, position + size)
        images, labels = x[part].to(device, dtype), y[part].to(device)
        try:
            if attack is not None:
                images = attack(model, images, labels)
            with attacked(model), torch.no_grad():
                logits = model(images)
        except torch.OutOfMemoryError:
            if size == 1 or batch_size is not None:
                raise
            size //= 2
            continue
        if logits.isnan().any():
            index = position + int(logits.isnan().any(dim=1).nonzero()[0])
            raise InputError(f"the model's logits for image {index} are NaN: its weights or the image are not finite")
        yield images, logits, labels
        position += size


def wilson_interval(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion, sound at 0 and 1 too (Wilson 1927)."""
    p = successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n))
