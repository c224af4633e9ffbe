"""A look at a model for what makes attacks fail without making it robust: ``probe``.

An attack may have had no gradient to follow, or too few steps. Each check of the table ``CHECKS``
looks at a ``Sample``, some clean images with the model's logits on them and their slopes, and gives
a message about what it saw, or None.

References: Athalye et al. 2018 and Carlini et al. 2019 (signs of masked
gradients); Croce & Hein 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mrboost.attacks import PGD, Classifier, Square, attacked
from mrboost.attacks.model import (
    LOW_PRECISION,
    are_probabilities,
    check_logits,
    difference,
    drawn,
    networks,
    slopes,
)
from mrboost.attacks.survivors import run
from mrboost.devices import device_of, dtype_of, halved
from mrboost.ensemble import Mixture, members_of
from mrboost.errors import NanLogitsError
from mrboost.losses import Loss, cross_entropy, margin
from mrboost.seeds import keep_random_state
from mrboost.threat import ball

from .doubts import Doubt

_QUERIES = 300

# Mean and standard deviation of each channel, with which models of these data are usually fed
_STATISTICS = {
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
}


def probe(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = 8 / 255,
    norm: str = "Linf",
    n: int = 64,
    seed: int = 0,
) -> list[Doubt]:
    """Reasons to doubt what attacks within ``eps`` say of ``model``, seen on ``n`` of the
    images, evenly spaced; on fewer where there is no memory for so many.

    The model is left as found. It takes about 130 forward and backward passes, at most 230, and up
    to 300 forward ones for images that stand.
    """
    device = device_of(model, otherwise=x.device)
    picked = torch.linspace(0, len(x) - 1, min(n, len(x)), dtype=torch.float64).round().long()
    try:
        with keep_random_state(device), torch.inference_mode(False):
            images = x[picked.to(x.device)].detach().to(device, dtype_of(model, x.dtype), copy=True)
            labels = y[picked.to(y.device)].to(device, copy=True)
            as_given = _in_train_mode(model, images)
            with attacked(model):
                check_logits(model, images, labels)
                return _doubts(Sample(model, images, labels, eps, norm, seed, as_given))
    except torch.OutOfMemoryError as error:
        fewer = halved(n, error)
    return probe(model, x, y, eps=eps, norm=norm, n=fewer, seed=seed)


def _doubts(sample: Sample) -> list[Doubt]:
    """What the checks say of a model, and, if it draws no random numbers, of its members that
    count: one without gradients leaves those of the others, which an attack on all of them then
    follows alone."""
    seen = _seen(sample, CHECKS)
    doubts = [Doubt(check, message) for check, message in seen.items()]
    members = members_of(sample.model)
    if "random" in seen or len(members) == 1:
        return doubts
    for number, (member, weight) in enumerate(members, start=1):
        if weight > 0.01:
            alone = replace(sample, model=member, as_given=None)
            for check, message in _seen(alone, OF_MEMBERS).items():
                if check not in seen:
                    of = f"Of member {number} of {len(members)}, on its own: "
                    doubts.append(Doubt(check, of + message))
    return doubts


def _seen(sample: Sample, checks: Iterable[str]) -> dict[str, str]:
    """What these checks say, by name."""
    seen: dict[str, str] = {}
    for name in checks:
        check, pointless_after = CHECKS[name]
        if seen.keys().isdisjoint(pointless_after) and (message := check(sample)):
            seen[name] = message
    return seen


def _in_train_mode(model: Classifier, x: Tensor) -> Tensor | None:
    """The logits in train mode, if the model is in it and gives any; its buffers stay."""
    modules = [module for network in networks(model) for module in network.modules()]
    if not any(getattr(module, "training", False) for module in modules):
        return None  # a frozen script has no mode
    kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(False)]
    try:
        with torch.no_grad():
            logits = model(x.clone())
    except Exception:  # in eval mode, which counts, it may work
        return None
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)
    return logits if isinstance(logits, Tensor) else None


@dataclass
class Sample:
    """A model on clean images, and the ball in which attacks are tried on it.

    ``as_given`` are the logits in train mode, if the model is in it; ``slope`` and ``ce_slope`` the
    largest slopes of the margin and of the cross-entropy in any pixel of an image, zero if the
    model ``answers_only``, without gradients; ``right`` says which images are classified correctly.
    """

    model: Classifier
    x: Tensor
    y: Tensor
    eps: float
    norm: str
    seed: int
    as_given: Tensor | None = None

    def __post_init__(self) -> None:
        self.logits, slope = slopes(self.model, self.x, self.y, margin)
        _, ce_slope = slopes(self.model, self.x, self.y, cross_entropy)
        zero = self.x.new_zeros(len(self.x))
        self.answers_only = slope is None
        self.slope = zero if slope is None else slope
        self.ce_slope = zero if ce_slope is None else ce_slope
        self.right = self.logits.argmax(dim=1) == self.y

    def withstands(self, eps: float, loss: Loss = margin) -> Tensor:
        """Which of the correctly classified images withstand a short PGD."""
        x, y = self.x[self.right], self.y[self.right]
        attack = PGD(eps, self.norm, steps=20, loss=loss, seed=self.seed)
        return is_right(self.model, attack(self.model, x, y), y) if len(x) else self.right[:0]

    @cached_property
    def stands(self) -> Tensor:
        return self.withstands(self.eps)

    @cached_property
    def left(self) -> tuple[Tensor, Tensor]:
        """The images that withstand longer PGD with restarts too, and their labels."""
        x, y = self.x[self.right][self.stands], self.y[self.right][self.stands]
        for restart in range(1, 4):
            if len(x) == 0:
                break
            attack = PGD(self.eps, self.norm, steps=50, loss=margin, seed=self.seed + restart)
            stand = is_right(self.model, attack(self.model, x, y), y)
            x, y = x[stand], y[stand]
            if stand.all():
                break
        return x, y


def is_right(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.clone()).argmax(dim=1) == y


def train_mode(sample: Sample) -> str | None:
    given = sample.as_given
    shape = sample.logits.shape
    if given is None or given.shape != shape or not difference(sample.logits, given, 1e-4):
        return None
    return (
        "This model is in train mode, and its logits are others there, but is evaluated in eval "
        "mode: these are not the figures of the model as given. Call model.eval() if you use it so."
    )


def probabilities(sample: Sample) -> str | None:
    if sample.answers_only or not are_probabilities(sample.logits):
        return None
    return (
        "The model returns probabilities: the outputs are not negative and sum to 1. Losses of "
        "logits are nearly flat in them: return the logits, or take the logarithm."
    )


def scaling(sample: Sample) -> str | None:
    """Images scaled in a usual way are classified far better than as given, and than by
    always giving one label."""
    n, given = len(sample.y), int(sample.right.sum())
    enough = max(given, int(sample.y.bincount().max())) + max(5, math.ceil(0.2 * n))
    found: dict[str, int] = {}
    for name, images in _scaled(sample.x) if enough <= n else ():
        try:
            found[name] = int(is_right(sample.model, images, sample.y).sum())
        except Exception:  # a model that refuses such images does not expect them
            continue
    if max(found.values(), default=0) < enough:
        return None
    figures = ", ".join(f"{count / n:.0%} as {name}" for name, count in found.items())
    return (
        f"Of {n} images x in [0, 1] {given / n:.0%} are classified correctly, but scaled otherwise "
        f"{figures}: the model expects such a scaling, or has unsettled BatchNorm statistics. Put "
        "the scaling inside the model, or train on."
    )


def _scaled(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "255 x", 255 * x
    yield "2 x - 1", 2 * x - 1
    axes = [0, 2, 3] if x.ndim == 4 else list(range(x.ndim))
    std, mean = torch.std_mean(x, axes, correction=0, keepdim=True)
    yield "(x - mean) / std of these images", (x - mean) / std.clamp(min=1e-3)
    for name, statistics in _STATISTICS.items():
        if x.ndim == 4 and x.shape[1] == len(statistics[0]):
            mean, std = (x.new_tensor(values).view(1, -1, 1, 1) for values in statistics)
            yield f"(x - mean) / std of {name}", (x - mean) / std


def draws(sample: Sample) -> str | None:
    found = drawn(sample.model, sample.x[:8])
    if not found:
        return None
    return (
        f"The same images ten times gave logits that differ {found}: an attack follows the "
        "gradient of one draw. Use autoattack-rand, which averages, or --adaptive, which takes it."
    )


def batch(sample: Sample) -> str | None:
    with torch.no_grad():
        alone = torch.cat([sample.model(image[None].clone()) for image in sample.x[:4]])
    found = difference(sample.logits[:4], alone, 1e-2)
    if not found:
        return None
    return (
        f"An image alone and the same image in a batch got logits that differ {found}: no accuracy "
        "is the model's own. Fix the statistics that it takes from the batch (BatchNorm's, say)."
    )


def saturated(sample: Sample) -> str | None:
    lead = -margin(sample.logits, sample.y, reduction="none")
    right = int(sample.right.sum())
    flat = (lead > 16) & (sample.ce_slope == 0) & (sample.slope != 0)
    if flat.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(flat.sum())} of {right} correctly classified images the cross-entropy is flat: "
        f"the true logit leads by {lead[flat].median():.3g} (median). Attacks on it (fgsm, pgd, "
        "apgd-ce) fail: trust those on margins (cw, apgd-t), or divide the logits by a constant."
    )


def rounded(sample: Sample) -> str | None:
    """The last bits, about 16 of a logit's, change with the batch: no attack says
    much of such images."""
    logits = sample.logits.float() if sample.logits.dtype in LOW_PRECISION else sample.logits
    lead = -margin(logits, sample.y, reduction="none")
    true = logits.gather(1, sample.y[:, None]).squeeze(1)
    size = true.abs().maximum((true - lead).abs())
    right = int(sample.right.sum())
    lost = sample.right & (lead < 32 * torch.finfo(logits.dtype).eps * size)
    if lost.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(lost.sum())} of {right} correctly classified images the true logit leads by "
        f"{lead[lost].median():.2g} (median) beside logits of {size[lost].median():.2g}, hardly "
        "more than rounding. Subtract what the logits have in common, or compute in float64."
    )


def non_finite(sample: Sample) -> str | None:
    margins = margin(sample.logits, sample.y, reduction="none")
    values = torch.stack([margins, sample.slope, sample.ce_slope])
    count = int((~values.isfinite()).any(dim=0).sum())
    if count == 0:
        return None
    return (
        f"For {count} of {len(sample.y)} images the logits or the loss's gradient are not finite: "
        "attacks stand still there. Look for overflow, and roots, logarithms or division of zero."
    )


def no_gradient(sample: Sample) -> str | None:
    if not sample.answers_only:
        return None
    gives = "labels alone, of which square makes little: use rays"
    if not _are_labels(sample.logits):
        gives = "scores alone"
    return (
        f"The model has no gradients and gives {gives}. What withstands square and rays withstands "
        "an attacker who asks it so many times and knows no more. One who knows how it is built "
        "may do better: for that, name a differentiable stand-in as surrogate."
    )


def _are_labels(logits: Tensor) -> bool:
    """Whether each row is one-hot, so that an answer says nothing but the label."""
    return bool((((logits == 0) | (logits == 1)).all(dim=1) & (logits.sum(dim=1) == 1)).all())


def zero_gradient(sample: Sample) -> str | None:
    zero = sample.slope == 0
    if zero.sum() <= 0.05 * len(zero):
        return None
    return (
        f"For {int(zero.sum())} of {len(zero)} images ({int((zero & sample.right).sum())} of them "
        "classified correctly) the gradient of the margin is exactly zero: what attacks by "
        "gradient leave standing is not robust: what square and rays leave decides. Name a "
        "differentiable stand-in for the model as surrogate."
    )


def large_eps(sample: Sample) -> str | None:
    """Within a radius that reaches the grey image from anywhere, an attack has to break
    what that image breaks."""
    grey = torch.full_like(sample.x, 0.5)
    reach = ball(sample.norm, 0.5).distance(grey, torch.zeros_like(grey)).amax().item()
    radius = max(sample.eps, reach)
    stands = sample.withstands(radius)
    grey = grey[sample.right]
    if len(grey) == 0:
        return None
    missed = stands & ~is_right(sample.model, grey, sample.y[sample.right])
    if missed.sum() < max(2, 0.05 * len(sample.y)):
        return None
    return (
        f"PGD at {sample.norm} eps {radius:.3g} leaves {int(stands.sum())} of {len(grey)} "
        "correctly classified images standing, but painting them grey, within that radius, fools "
        f"the model on {int(missed.sum())}: the gradients mislead attacks. Attack a smooth version "
        "of the model, or with square."
    )


def weak_loss(sample: Sample) -> str | None:
    """Of what falls to 20 steps on either loss, sound models keep less than a seventh for the
    margin alone. Or the softmax hardly tells the classes apart: then the cross-entropy's gradient
    is the mean over all of them."""
    if sample.eps == 0:
        return None
    by_ce = sample.withstands(sample.eps, cross_entropy)
    few = int((~by_ce).sum())
    more = int((by_ce & ~sample.stands).sum())
    spread = (sample.logits.amax(dim=1) - sample.logits.amin(dim=1)).median().item()
    if _beyond(0.15, more, few + more):
        seen = (
            f"PGD with 20 steps on the cross-entropy breaks {few} of {len(by_ce)} correctly "
            f"classified images, on the margin {more} others"
        )
    elif 0 < spread < 0.05:
        seen = f"The largest and the least logit of an image differ by {spread:.2g} (median)"
    else:
        return None
    return (
        f"{seen}: attacks on the cross-entropy (fgsm, pgd, apgd-ce) are weak where logits are "
        "small. Trust those on margins (cw, apgd-t), or autoattack."
    )


def more_steps(sample: Sample) -> str | None:
    """Of what falls to 20 steps or to more effort, sound models keep less than a fifth for the
    latter."""
    if sample.eps == 0:
        return None
    few = int((~sample.stands).sum())
    more = len(sample.stands) - few - len(sample.left[0])
    if not _beyond(0.2, more, few + more):
        return None
    return (
        f"PGD with 20 steps breaks {few} of {len(sample.stands)} correctly classified images, "
        f"with 50 steps and restarts {more} more: it has not converged. Use autoattack, and raise "
        "steps and restarts until the figure stays."
    )


def squares(sample: Sample) -> str | None:
    """Of sound models a few hundred random squares break nothing that gradients, with restarts,
    leave standing."""
    if sample.eps == 0 or isinstance(sample.model, Mixture) or sample.x.ndim != 4:
        return None
    x, y = sample.left
    if len(x) == 0:
        return None
    attack = Square(sample.eps, sample.norm, steps=_QUERIES)
    try:
        broken = int((~run(sample.model, x, y, [attack], sample.seed).alive).sum())
    except NanLogitsError:  # attacks will name the image
        return "Some images within the ball get logits that are NaN: attacks fail there."
    if broken < max(3, 0.04 * len(sample.stands)):
        return None
    return (
        f"The square attack with {_QUERIES} queries, which needs no gradients, breaks {broken} of "
        f"{len(x)} images that PGD with restarts leaves standing: the gradients mislead attacks. "
        "Use autoattack and give the worst case, or attack a smooth version of the model."
    )


def _beyond(share: float, count: int, of: int) -> bool:
    """Whether a count is no chance if each of so many has this share: five at least, two
    standard deviations above."""
    return count >= 5 and count > share * of + 2 * math.sqrt(share * (1 - share) * of)


_BLIND = ("random", "non-finite", "no-gradient", "zero-gradient")
"""Where one of these was seen, chance or useless gradients decide what attacks find."""

CHECKS: dict[str, tuple[Callable[[Sample], str | None], tuple[str, ...]]] = {
    "random": (draws, ()),
    "batch": (batch, ("random",)),
    "train-mode": (train_mode, ("random",)),
    "probabilities": (probabilities, ()),
    "saturated": (saturated, ()),
    "rounded": (rounded, ()),
    "scaling": (scaling, ("random",)),
    "non-finite": (non_finite, ()),
    "no-gradient": (no_gradient, ()),
    "zero-gradient": (zero_gradient, ("no-gradient",)),
    "large-eps": (large_eps, ("non-finite", "no-gradient", "zero-gradient")),
    "weak-loss": (weak_loss, (*_BLIND, "probabilities", "saturated")),
    "more-steps": (more_steps, _BLIND),
    "squares": (squares, (*_BLIND, "large-eps")),
}
"""Each check, and those whose doubt makes it meaningless."""

OF_MEMBERS = ("non-finite", "zero-gradient", "large-eps")
"""What the gradients of an ensemble's other members hide."""
