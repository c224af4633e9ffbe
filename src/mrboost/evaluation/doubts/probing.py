"""A look at a model for what makes attacks fail without making it robust.

An attack may have had no gradient to follow, or too few steps. ``probe`` looks for the usual
causes: each check gives a ``Doubt``, or nothing.

References: Athalye et al. 2018 and Carlini et al. 2019 (signs of masked
gradients); Croce & Hein 2020.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mrboost.attacks import PGD, Classifier, attacked
from mrboost.attacks.checks import check_batch, check_logits
from mrboost.devices import device_of, dtype_of
from mrboost.ensemble import Mixture, members_of
from mrboost.errors import InputError
from mrboost.losses import margin
from mrboost.seeds import keep_random_state
from mrboost.threat import ball

from . import answers, gradients
from .outcomes import Doubt
from .sample import Sample

Seen = dict[str, str | None]
"""What each check says, or None."""


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
    images, evenly spaced.

    The model is left as found. It takes about 130 forward and backward passes, at most 230, and up
    to 300 forward ones for images that stand. Where gradients are useless in themselves, what
    attacks make of them is not tried.
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
        given = answers.as_given(model, images)
    with attacked(model), keep_random_state(device), torch.inference_mode(False):
        check_logits(model, images, labels)
        sample = Sample.of(model, images, labels, eps=eps, norm=norm, seed=seed)
        seen = _answers(sample, given) | gradients.useless(sample)
        # Chance breaks points that are tried again and again.
        blind = any(seen.get(check) for check in ("random", "non-finite", "zero-gradient"))
        if eps != 0 and not blind:
            seen |= _small_attacks(sample, seen)
        doubts = [Doubt(check, message) for check, message in seen.items() if message]
        return doubts if seen["random"] else [*doubts, *_of_members(sample, seen)]


def _of_members(sample: Sample, seen: Seen) -> list[Doubt]:
    """Of the members of an ensemble that count: one without gradients leaves those of the others,
    which an attack on all of them then follows alone."""
    doubts = []
    members = members_of(sample.model)
    for number, (member, weight) in enumerate(members, start=1):
        if len(members) == 1 or weight <= 0.01:
            continue
        of = f"Of member {number} of {len(members)}, on its own: "
        for check, message in gradients.useless(sample.another(member)).items():
            if message and not seen.get(check):
                doubts.append(Doubt(check, of + message))
    return doubts


def _answers(sample: Sample, given: answers.AsGiven) -> Seen:
    """What the logits themselves show."""
    random = answers.draws(sample)
    if random:
        given = replace(given, logits=None)
    return {
        "random": random,
        "batch": None if random else answers.batch(sample),
        "train-mode": answers.train_mode(sample, given),
        "probabilities": answers.probabilities(sample),
        "saturated": answers.saturated(sample),
        "rounded": answers.rounded(sample),
        "scaling": None if random else answers.scaling(sample),
    }


def _small_attacks(sample: Sample, seen: Seen) -> Seen:
    """What other losses, more steps and no gradients at all break of what a short PGD leaves."""
    found: Seen = {}
    eps, norm, seed = sample.eps, sample.norm, sample.seed
    stands = sample.withstands(PGD(eps, norm, steps=20, loss=margin, seed=seed))
    if not seen["probabilities"] and not seen["saturated"]:
        by_ce = sample.withstands(PGD(eps, norm, steps=20, seed=seed))
        found["weak-loss"] = gradients.weak_loss(stands, by_ce) or answers.flat(sample)
    found["more-steps"], left = gradients.more_steps(sample, stands)
    if not isinstance(sample.model, Mixture) and sample.x.ndim == 4 and not seen.get("large-eps"):
        found |= gradients.squares(sample, left)
    return found
