"""Checks of the logits themselves: their scale, and whether they are those of the image
and the model alone.

Each gives its message, or None.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrboost.attacks.checks import are_probabilities
from mrboost.attacks.model import LOW_PRECISION, Classifier, networks
from mrboost.losses import margin

from .sample import Sample, difference, is_right

# Mean and standard deviation of each channel, with which models of these data are usually fed
_STATISTICS = {
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
}


@dataclass(frozen=True)
class AsGiven:
    """The model in the mode in which it is given: the kinds of its layers in train mode whose
    forward pass asks for the mode; where there are none, its logits in that mode."""

    layers: list[str]
    logits: Tensor | None


def as_given(model: Classifier, x: Tensor) -> AsGiven:
    """To be asked before the model is put into eval mode."""
    modules = [module for network in networks(model) for module in network.modules()]
    # A frozen script has no mode
    training = [module for module in modules if getattr(module, "training", False)]
    asking = [module for module in training if _asks_for_mode(module)]
    if asking or not training:
        kinds = [getattr(module, "original_name", type(module).__name__) for module in asking]
        return AsGiven(kinds, None)
    kept = [
        (buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)
    ]
    try:
        with torch.no_grad():
            return AsGiven([], model(x.clone()))
    except Exception:  # in eval mode, which counts, it may work
        return AsGiven([], None)
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)


def train_mode(sample: Sample, given: AsGiven) -> str | None:
    if given.layers:
        kinds = ", ".join(sorted(set(given.layers)))
        what = f"Layers of this model are in train mode ({len(given.layers)}: {kinds})"
    elif given.logits is not None and given.logits.shape == sample.logits.shape:
        change, size = difference(sample.logits, given.logits)
        if not change > max(1e-4, torch.finfo(sample.logits.dtype).eps) * size:
            return None
        what = (
            f"This model is in train mode, and its logits are others there (by up to {change:.2g})"
        )
    else:
        return None
    return (
        f"{what}, but evaluation is "
        "done in eval mode: its figures are not those of the model as given. Call model.eval() if "
        "you use it so."
    )


def _asks_for_mode(module: nn.Module) -> bool:
    """Whether the forward pass asks for the mode: containers are often left in train mode,
    which means nothing."""
    if isinstance(module, torch.jit.ScriptModule):  # its forward has no code to look at
        return "training" in getattr(module, "code", "")
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is not None and "training" in code.co_names:
        return True
    return bool(getattr(module, "track_running_stats", False))


def probabilities(sample: Sample) -> str | None:
    if not are_probabilities(sample.logits):
        return None
    return (
        f"The model returns probabilities: on all {len(sample.y)} images the outputs are not "
        "negative and sum to 1. Losses of logits are nearly flat in them, which weakens attacks: "
        "return the logits, or take the logarithm."
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
        f"Of {n} images x in [0, 1] the model classifies {given / n:.0%} correctly, but scaled "
        f"otherwise {figures}: it expects such a scaling, or has unsettled BatchNorm statistics. "
        "Put the scaling inside the model, or train on."
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
    with torch.no_grad():
        # A draw may be the same a few times
        passes = [sample.model(sample.x[:8].clone()) for _ in range(10)]
    change, size = max(difference(passes[0], other) for other in passes[1:])
    if not change > max(1e-4, torch.finfo(sample.logits.dtype).eps) * size:  # not for NaN either
        return None
    return (
        f"The same images ten times gave logits that differ by up to {change:.2g} (of {size:.2g}): "
        "the model draws random numbers, and an attack follows one draw's gradient. Use "
        "autoattack-rand, which averages."
    )


def batch(sample: Sample) -> str | None:
    with torch.no_grad():
        alone = torch.cat([sample.model(image[None].clone()) for image in sample.x[:4]])
    change, size = difference(sample.logits[:4], alone)
    if not change > max(1e-2, 10 * torch.finfo(sample.logits.dtype).eps) * size:
        return None
    return (
        "An image alone and the same image in a batch got logits that differ by up to "
        f"{change:.2g} (of {size:.2g}): the answer depends on the other images, so no accuracy is "
        "the model's own. Fix the statistics that it takes from the batch (BatchNorm with "
        "track_running_stats=False, say)."
    )


def saturated(sample: Sample) -> str | None:
    lead = -margin(sample.logits, sample.y, reduction="none")
    right = int(sample.right.sum())
    flat = (lead > 16) & (sample.ce_slope == 0) & (sample.slope != 0)
    if flat.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(flat.sum())} of {right} correctly classified images the cross-entropy is "
        f"exactly flat: the true logit leads by {lead[flat].median():.3g} (median), more than the "
        "softmax resolves. Attacks on it (fgsm, pgd, apgd-ce) fail there: trust those on margins "
        "(cw, apgd-dlr, apgd-t), or divide the logits by a constant."
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
        f"{lead[lost].median():.2g} (median) beside logits of {size[lost].median():.2g}: that is "
        "hardly more than rounding, and so are the mistakes that attacks find. Take from the "
        "logits what they have in common, or compute in float64."
    )


def flat(sample: Sample) -> str | None:
    """A softmax that hardly tells the classes apart: the cross-entropy's gradient is the
    mean over all of them."""
    spread = (sample.logits.amax(dim=1) - sample.logits.amin(dim=1)).median().item()
    if not 0 < spread < 0.05:
        return None
    return (
        f"The largest and the least logit of an image differ by {spread:.2g} (median): the softmax "
        "is nearly uniform, and attacks on the cross-entropy (fgsm, pgd, apgd-ce) push towards "
        "all false labels at once. Trust those on margins (cw, apgd-dlr, apgd-t), or autoattack."
    )
