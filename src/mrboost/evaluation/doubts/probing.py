"""A look at a model for what makes attacks fail without making it robust.

An attack may have had no gradient to follow, or too few steps. ``probe`` looks for the usual
causes: each check gives a ``Doubt``, or nothing.

References: Athalye et al. 2018 and Carlini et al. 2019 (signs of masked
gradients); Croce & Hein 2020.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from mrboost.attacks import Classifier, attacked
from mrboost.attacks.checks import check_logits
from mrboost.attacks.model import networks
from mrboost.devices import device_of, dtype_of
from mrboost.ensemble import members_of
from mrboost.seeds import keep_random_state
from mrboost.speed.memory import halved

from .checks import CHECKS, OF_MEMBERS, Sample
from .outcomes import Doubt


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
