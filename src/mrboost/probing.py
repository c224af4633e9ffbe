"""A look at a model for what makes attacks fail without making it robust.

An attack may have had no gradient to follow, or too few steps. ``probe`` looks for the usual causes: each check gives a
``Doubt``, or nothing.

References: Athalye et al. 2018 and Carlini et al. 2019 (signs of masked gradients); Croce & Hein 2020.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attacks.base import LOW_PRECISION, Classifier, attacked, check_batch, check_logits, keep_random_state
from .attacks.pgd import PGD
from .behind import networks
from .devices import device_of, dtype_of
from .doubts import Doubt
from .errors import InputError
from .losses import cross_entropy, margin
from .threat import ball

_STATISTICS = {  # mean and standard deviation of each channel, with which models of these data are usually fed
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
}


def probe(
    model: Classifier, x: Tensor, y: Tensor, *, eps: float = 8 / 255, norm: str = "Linf", n: int = 64, seed: int = 0
) -> list[Doubt]:
    """Reasons to doubt what attacks within ``eps`` say of ``model``, seen on ``n`` of the images, evenly spaced.

    The model is left as found. It takes about 130 forward and backward passes, at most 230. Where gradients are useless
    in themselves, what attacks make of them is not tried.
    """
    check_batch(x, y)
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}: 64 images are enough")
    if eps != 0:
        ball(norm, eps)
    device = device_of(model, otherwise=x.device)
    picked = torch.linspace(0, len(x) - 1, min(n, len(x)), dtype=torch.float64).round().long()
    with keep_random_state(device), torch.inference_mode(False):
        images = x[picked.to(x.device)].detach().to(device, dtype_of(model, x.dtype), copy=True)
        labels = y[picked.to(y.device)].to(device, copy=True)
        minding, as_given = _as_given(model, images)
    with attacked(model), keep_random_state(device), torch.inference_mode(False):
        check_logits(model, images, labels)
        look = _look(model, images, labels)
        seen = {"random": _random(model, look)}
        if not seen["random"]:
            seen["batch"] = _batch(model, look)
        seen["train-mode"] = _train_mode(minding, None if seen["random"] else as_given, look)
        seen |= {"probabilities": _probabilities(look), "scaling": _scaling(model, look)}
        seen |= {"non-finite": _non_finite(look), "zero-gradient": _zero_gradient(look), "saturated": _saturated(look)}
        seen["rounded"] = _rounded(look)
        if not seen["non-finite"] and not seen["zero-gradient"]:
            seen["large-eps"] = _large_eps(model, look, norm, eps, seed)
            if eps != 0 and not seen["random"]:  # chance breaks points that are tried again and again
                stands = _stands(model, look, PGD(eps, norm, steps=20, loss=margin, seed=seed))
                if not seen["probabilities"] and not seen["saturated"]:
                    seen["weak-loss"] = _weak_loss(stands, _stands(model, look, PGD(eps, norm, steps=20, seed=seed)))
                seen["more-steps"] = _more_steps(model, look, stands, norm, eps, seed)
    return [Doubt(check, message) for check, message in seen.items() if message]


@dataclass(frozen=True)
class _Look:
    """The model on clean images: its logits; of margin and cross-entropy the largest slope in any pixel."""

    x: Tensor
    y: Tensor
    logits: Tensor
    slope: Tensor
    ce_slope: Tensor

    @property
    def right(self) -> Tensor:
        return self.logits.argmax(dim=1) == self.y


def _look(model: Classifier, x: Tensor, y: Tensor) -> _Look:
    leaf = x.clone().requires_grad_(True)
    with torch.enable_grad():
        logits = model(leaf.clone())  # a model may work in place
        slopes = [_slope(loss(logits, y, reduction="none"), leaf) for loss in (margin, cross_entropy)]
    return _Look(x, y, logits.detach(), *slopes)


def _slope(values: Tensor, leaf: Tensor) -> Tensor:
    gradient = None
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.sum(), leaf, retain_graph=True, allow_unused=True)
    return leaf.new_zeros(len(leaf)) if gradient is None else gradient.flatten(1).abs().amax(dim=1)


def _right(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x.clone()).argmax(dim=1) == y


def _stands(model: Classifier, look: _Look, attack: PGD) -> Tensor:
    """Which of the correctly classified images stay so."""
    x, y = look.x[look.right], look.y[look.right]
    return _right(model, attack(model, x, y), y) if len(x) else look.right[:0]


def _change(logits: Tensor, others: Tensor) -> tuple[float, float]:
    """The largest difference, and the size of the logits that decide: those of classes ruled out are huge."""
    change = (logits - others).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    return change.abs().max().item(), logits.topk(min(2, logits.shape[1]), dim=1).values.abs().max().item()


def _as_given(model: Classifier, x: Tensor) -> tuple[list[str], Tensor | None]:
    """Layers in train mode that ask for the mode; where none is seen to, the logits of the model as it is given."""
    modules = [module for network in networks(model) for module in network.modules()]
    minding = [module for module in modules if module.training and _minds_mode(module)]
    if minding or not any(module.training for module in modules):
        return [str(getattr(module, "original_name", type(module).__name__)) for module in minding], None
    kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    try:
        with torch.no_grad():
            return [], model(x.clone())
    except Exception:  # in eval mode, which counts, it may work
        return [], None
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)


# Each check gives its message, or None.


def _train_mode(kinds: list[str], as_given: Tensor | None, look: _Look) -> str | None:
    layers = f"Layers of this model are in train mode ({len(kinds)}: {', '.join(sorted(set(kinds)))})"
    if not kinds:
        if as_given is None or as_given.shape != look.logits.shape:
            return None
        change, size = _change(look.logits, as_given)
        if not change > max(1e-4, torch.finfo(look.logits.dtype).eps) * size:
            return None
        layers = f"This model is in train mode, and its logits are others there (by up to {change:.2g})"
    return (
        f"{layers}, but evaluation is "
        "done in eval mode: its figures are not those of the model as given. Call model.eval() if you use it so."
    )


def _minds_mode(module: nn.Module) -> bool:
    """Whether the forward pass asks for the mode: containers are often left in train mode, which means nothing."""
    if isinstance(module, torch.jit.ScriptModule):  # its forward has no code to look at
        return "training" in getattr(module, "code", "")
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return (code is not None and "training" in code.co_names) or bool(getattr(module, "track_running_stats", False))


def _probabilities(look: _Look) -> str | None:
    slack = max(1e-3, 8 * torch.finfo(look.logits.dtype).eps)
    if (look.logits < 0).any() or not ((look.logits.sum(dim=1) - 1).abs() < slack).all():
        return None
    return (
        f"The model returns probabilities: on all {len(look.y)} images the outputs are not negative and sum to 1. "
        "Losses of logits are nearly flat in them, which weakens attacks: return the logits, or take the logarithm."
    )


def _scaling(model: Classifier, look: _Look) -> str | None:
    """Images scaled in a usual way are classified far better than as given, and than by always giving one label."""
    n, given = len(look.y), int(look.right.sum())
    enough = max(given, int(look.y.bincount().max())) + max(5, math.ceil(0.2 * n))
    found: dict[str, int] = {}
    for name, images in _scaled(look.x) if enough <= n else ():
        try:
            found[name] = int(_right(model, images, look.y).sum())
        except Exception:  # a model that refuses such images does not expect them
            continue
    if max(found.values(), default=0) < enough:
        return None
    figures = ", ".join(f"{count / n:.0%} as {name}" for name, count in found.items())
    return (
        f"Of {n} images x in [0, 1] the model classifies {given / n:.0%} correctly, but scaled otherwise {figures}: it "
        "expects such a scaling, or has unsettled BatchNorm statistics. Put the scaling inside the model, or train on."
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


def _random(model: Classifier, look: _Look) -> str | None:
    with torch.no_grad():
        passes = [model(look.x[:8].clone()) for _ in range(10)]  # a draw may be the same a few times
    change, size = max(_change(passes[0], other) for other in passes[1:])
    if not change > max(1e-4, torch.finfo(look.logits.dtype).eps) * size:  # not for NaN either
        return None
    return (
        f"The same images ten times gave logits that differ by up to {change:.2g} (of {size:.2g}): the model "
        "draws random numbers, and an attack follows one draw's gradient. Use autoattack-rand, which averages."
    )


def _batch(model: Classifier, look: _Look) -> str | None:
    with torch.no_grad():
        alone = torch.cat([model(image[None].clone()) for image in look.x[:4]])
    change, size = _change(look.logits[:4], alone)
    if not change > max(1e-2, 10 * torch.finfo(look.logits.dtype).eps) * size:
        return None
    return (
        f"An image alone and the same image in a batch got logits that differ by up to {change:.2g} (of "
        f"{size:.2g}): the answer depends on the other images, so no accuracy is the model's own. Fix the statistics "
        "that it takes from the batch (BatchNorm with track_running_stats=False, say)."
    )


def _non_finite(look: _Look) -> str | None:
    values = torch.stack([margin(look.logits, look.y, reduction="none"), look.slope, look.ce_slope])
    count = int((~values.isfinite()).any(dim=0).sum())
    if count == 0:
        return None
    return (
        f"For {count} of {len(look.y)} images the logits or the loss's gradient are not finite: attacks stand still "
        "there, or end in images that are none. Look for overflow, division by zero, roots and logarithms of zero."
    )


def _zero_gradient(look: _Look) -> str | None:
    zero = look.slope == 0
    if zero.sum() <= 0.05 * len(zero):
        return None
    return (
        f"For {int(zero.sum())} of {len(zero)} images ({int((zero & look.right).sum())} of them classified correctly) "
        "the gradient of the margin is exactly zero: attacks by gradient cannot move, and what they leave standing is "
        "not robust. Look for rounding or detaching; attack a smooth version of the model, or with square."
    )


def _saturated(look: _Look) -> str | None:
    lead, right = -margin(look.logits, look.y, reduction="none"), int(look.right.sum())
    flat = (lead > 16) & (look.ce_slope == 0) & (look.slope != 0)
    if flat.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(flat.sum())} of {right} correctly classified images the cross-entropy is exactly flat: the true "
        f"logit leads by {lead[flat].median():.3g} (median), more than the softmax resolves. Attacks on it (fgsm, pgd, "
        "apgd-ce) fail there: trust those on margins (cw, apgd-dlr, apgd-t), or divide the logits by a constant."
    )


def _rounded(look: _Look) -> str | None:
    """The last bits, about 16 of a logit's, change with the batch: no attack says much of such images."""
    logits = look.logits.float() if look.logits.dtype in LOW_PRECISION else look.logits
    lead, true = -margin(logits, look.y, reduction="none"), logits.gather(1, look.y[:, None]).squeeze(1)
    size = true.abs().maximum((true - lead).abs())
    right, lost = int(look.right.sum()), look.right & (lead < 32 * torch.finfo(logits.dtype).eps * size)
    if lost.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(lost.sum())} of {right} correctly classified images the true logit leads by "
        f"{lead[lost].median():.2g} (median) beside logits of {size[lost].median():.2g}: that is hardly more than "
        "rounding, and so are the mistakes that attacks find. Take from the logits what they have in common, or "
        "compute in float64."
    )


def _large_eps(model: Classifier, look: _Look, norm: str, eps: float, seed: int) -> str | None:
    """Within a radius that reaches the grey image from anywhere, an attack has to break what that image breaks."""
    radius = max(eps, 0.5 if norm == "Linf" else 0.5 * math.sqrt(look.x[0].numel()))
    x, y = look.x[look.right], look.y[look.right]
    if len(x) == 0:
        return None
    stands = _right(model, PGD(radius, norm, steps=20, loss=margin, seed=seed)(model, x, y), y)
    missed = stands & ~_right(model, torch.full_like(x, 0.5), y)
    if missed.sum() < max(2, 0.05 * len(look.y)):
        return None
    return (
        f"PGD at {norm} eps {radius:.3g} leaves {int(stands.sum())} of {len(x)} correctly classified images standing, "
        f"but painting them grey, within that radius, fools the model on {int(missed.sum())} of them: the gradients "
        "mislead attacks. Attack a smooth version of the model, or with square."
    )


def _weak_loss(stands: Tensor, stands_ce: Tensor) -> str | None:
    """Of what falls to 20 steps on either loss, sound models keep less than a seventh for the margin alone."""
    few, more = int((~stands_ce).sum()), int((stands_ce & ~stands).sum())
    if not _beyond(0.15, more, few + more):
        return None
    return (
        f"PGD with 20 steps on the cross-entropy breaks {few} of {len(stands)} correctly classified images, on the "
        f"margin {more} others: attacks on the cross-entropy (fgsm, pgd, apgd-ce) are weak here, as they are where "
        "logits are small. Trust those on margins (cw, apgd-dlr, apgd-t), or autoattack."
    )


def _beyond(share: float, count: int, of: int) -> bool:
    """Whether a count is no chance if each of so many has this share: five at least, two standard deviations above."""
    return count >= 5 and count > share * of + 2 * math.sqrt(share * (1 - share) * of)


def _more_steps(model: Classifier, look: _Look, stands: Tensor, norm: str, eps: float, seed: int) -> str | None:
    """Of what falls to 20 steps or to more effort, sound models keep less than a fifth for the latter."""
    x, y = look.x[look.right][stands], look.y[look.right][stands]
    broken = [int((~stands).sum())]
    for restart in range(1, 4):
        if len(x) == 0 or (restart > 1 and broken[-1] == 0):
            break
        left = _right(model, PGD(eps, norm, steps=50, loss=margin, seed=seed + restart)(model, x, y), y)
        broken.append(int((~left).sum()))
        x, y = x[left], y[left]
    few, more = broken[0], sum(broken[1:])
    if not _beyond(0.2, more, few + more):
        return None
    return (
        f"PGD with 20 steps breaks {few} of {int(look.right.sum())} correctly classified images, with 50 steps and "
        f"{len(broken) - 1} restarts {more} more: it has not converged, and the accuracy it leaves is too high. Use "
        "autoattack, and raise steps and restarts until the figure stays."
    )
