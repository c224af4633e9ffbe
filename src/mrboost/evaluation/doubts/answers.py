"""Checks of the logits themselves: their scale, and whether they are those of the image
and the model alone.

Each gives its message, or None.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mrboost.attacks.base import LOW_PRECISION, Classifier
from mrboost.attacks.checks import are_probabilities
from mrboost.attacks.networks import networks
from mrboost.losses import margin

from .look import Look, difference, is_right

# Mean and standard deviation of each channel, with which models of these data are usually fed
_STATISTICS = {
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
}


def as_it_is_given(model: Classifier, x: Tensor) -> tuple[list[str], Tensor | None]:
    """Layers in train mode that ask for the mode; where none is seen to, the logits of the
    model as it is given."""
    modules = [module for network in networks(model) for module in network.modules()]
    # A frozen script has no mode
    training = [module for module in modules if getattr(module, "training", False)]
    minding = [module for module in training if _minds_mode(module)]
    if minding or not training:
        return [
            str(getattr(module, "original_name", type(module).__name__)) for module in minding
        ], None
    kept = [
        (buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)
    ]
    try:
        with torch.no_grad():
            return [], model(x.clone())
    except Exception:  # in eval mode, which counts, it may work
        return [], None
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)


def train_mode(kinds: list[str], as_given: Tensor | None, look: Look) -> str | None:
    layers = (
        f"Layers of this model are in train mode ({len(kinds)}: {', '.join(sorted(set(kinds)))})"
    )
    if not kinds:
        if as_given is None or as_given.shape != look.logits.shape:
            return None
        change, size = difference(look.logits, as_given)
        if not change > max(1e-4, torch.finfo(look.logits.dtype).eps) * size:
            return None
        layers = (
            f"This model is in train mode, and its logits are others there (by up to {change:.2g})"
        )
    return (
        f"{layers}, but evaluation is "
        "done in eval mode: its figures are not those of the model as given. Call model.eval() if "
        "you use it so."
    )


def _minds_mode(module: nn.Module) -> bool:
    """Whether the forward pass asks for the mode: containers are often left in train mode,
    which means nothing."""
    if isinstance(module, torch.jit.ScriptModule):  # its forward has no code to look at
        return "training" in getattr(module, "code", "")
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return (code is not None and "training" in code.co_names) or bool(
        getattr(module, "track_running_stats", False)
    )


def probabilities(look: Look) -> str | None:
    if not are_probabilities(look.logits):
        return None
    return (
        f"The model returns probabilities: on all {len(look.y)} images the outputs are not "
        "negative and sum to 1. Losses of logits are nearly flat in them, which weakens attacks: "
        "return the logits, or take the logarithm."
    )


def scaling(model: Classifier, look: Look) -> str | None:
    """Images scaled in a usual way are classified far better than as given, and than by
    always giving one label."""
    n, given = len(look.y), int(look.right.sum())
    enough = max(given, int(look.y.bincount().max())) + max(5, math.ceil(0.2 * n))
    found: dict[str, int] = {}
    for name, images in _scaled(look.x) if enough <= n else ():
        try:
            found[name] = int(is_right(model, images, look.y).sum())
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


def draws(model: Classifier, look: Look) -> str | None:
    with torch.no_grad():
        # A draw may be the same a few times
        passes = [model(look.x[:8].clone()) for _ in range(10)]
    change, size = max(difference(passes[0], other) for other in passes[1:])
    if not change > max(1e-4, torch.finfo(look.logits.dtype).eps) * size:  # not for NaN either
        return None
    return (
        f"The same images ten times gave logits that differ by up to {change:.2g} (of {size:.2g}): "
        "the model draws random numbers, and an attack follows one draw's gradient. Use "
        "autoattack-rand, which averages."
    )


def batch(model: Classifier, look: Look) -> str | None:
    with torch.no_grad():
        alone = torch.cat([model(image[None].clone()) for image in look.x[:4]])
    change, size = difference(look.logits[:4], alone)
    if not change > max(1e-2, 10 * torch.finfo(look.logits.dtype).eps) * size:
        return None
    return (
        "An image alone and the same image in a batch got logits that differ by up to "
        f"{change:.2g} (of {size:.2g}): the answer depends on the other images, so no accuracy is "
        "the model's own. Fix the statistics that it takes from the batch (BatchNorm with "
        "track_running_stats=False, say)."
    )


def saturated(look: Look) -> str | None:
    lead, right = -margin(look.logits, look.y, reduction="none"), int(look.right.sum())
    flat = (lead > 16) & (look.ce_slope == 0) & (look.slope != 0)
    if flat.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(flat.sum())} of {right} correctly classified images the cross-entropy is "
        f"exactly flat: the true logit leads by {lead[flat].median():.3g} (median), more than the "
        "softmax resolves. Attacks on it (fgsm, pgd, apgd-ce) fail there: trust those on margins "
        "(cw, apgd-dlr, apgd-t), or divide the logits by a constant."
    )


def rounded(look: Look) -> str | None:
    """The last bits, about 16 of a logit's, change with the batch: no attack says
    much of such images."""
    logits = look.logits.float() if look.logits.dtype in LOW_PRECISION else look.logits
    lead, true = (
        -margin(logits, look.y, reduction="none"),
        logits.gather(1, look.y[:, None]).squeeze(1),
    )
    size = true.abs().maximum((true - lead).abs())
    right, lost = (
        int(look.right.sum()),
        look.right & (lead < 32 * torch.finfo(logits.dtype).eps * size),
    )
    if lost.sum() <= 0.1 * right:
        return None
    return (
        f"For {int(lost.sum())} of {right} correctly classified images the true logit leads by "
        f"{lead[lost].median():.2g} (median) beside logits of {size[lost].median():.2g}: that is "
        "hardly more than rounding, and so are the mistakes that attacks find. Take from the "
        "logits what they have in common, or compute in float64."
    )


def flat(look: Look) -> str | None:
    """A softmax that hardly tells the classes apart: the cross-entropy's gradient is the
    mean over all of them."""
    spread = (look.logits.amax(dim=1) - look.logits.amin(dim=1)).median().item()
    if not 0 < spread < 0.05:
        return None
    return (
        f"The largest and the least logit of an image differ by {spread:.2g} (median): the softmax "
        "is nearly uniform, and attacks on the cross-entropy (fgsm, pgd, apgd-ce) push towards "
        "all false labels at once. Trust those on margins (cw, apgd-dlr, apgd-t), or autoattack."
    )
