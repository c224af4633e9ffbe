"""A look at a model for what makes attacks fail without making it robust.

An attack may have had no gradient to follow, or too few steps. ``probe`` looks for the usual
causes: each check gives a ``Doubt``, or nothing.

References: Athalye et al. 2018 and Carlini et al. 2019 (signs of masked
gradients); Croce & Hein 2020.
"""

from __future__ import annotations

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
from .look import Look, look_at, still_right
from .outcomes import Doubt

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
        minding, as_given = answers.as_it_is_given(model, images)
    with attacked(model), keep_random_state(device), torch.inference_mode(False):
        check_logits(model, images, labels)
        look = look_at(model, images, labels)
        seen = _answers(model, look, minding, as_given) | gradients.useless(
            model, look, norm, eps, seed
        )
        # Chance breaks points that are tried again and again.
        if eps != 0 and not any(
            seen.get(check) for check in ("random", "non-finite", "zero-gradient")
        ):
            seen |= _small_attacks(model, look, seen, norm, eps, seed)
        doubts = [Doubt(check, message) for check, message in seen.items() if message]
        members = [] if seen["random"] else members_of(model)
        for number, (member, weight) in enumerate(members, start=1):
            if len(members) == 1 or weight <= 0.01:
                continue
            # One without gradients leaves those of the others, which an attack on all of
            # them then follows alone.
            mine = gradients.useless(member, look_at(member, images, labels), norm, eps, seed)
            of = f"Of member {number} of {len(members)}, on its own: "
            doubts += [
                Doubt(check, of + said)
                for check, said in mine.items()
                if said and not seen.get(check)
            ]
    return doubts


def _answers(model: Classifier, look: Look, minding: list[str], as_given: Tensor | None) -> Seen:
    random = answers.draws(model, look)
    return {
        "random": random,
        "batch": None if random else answers.batch(model, look),
        "train-mode": answers.train_mode(minding, None if random else as_given, look),
        "probabilities": answers.probabilities(look),
        "saturated": answers.saturated(look),
        "rounded": answers.rounded(look),
        "scaling": None if random else answers.scaling(model, look),
    }


def _small_attacks(
    model: Classifier, look: Look, seen: Seen, norm: str, eps: float, seed: int
) -> Seen:
    """What other losses, more steps and no gradients at all break of what a short PGD leaves."""
    found: Seen = {}
    stands = still_right(model, look, PGD(eps, norm, steps=20, loss=margin, seed=seed))
    if not seen["probabilities"] and not seen["saturated"]:
        by_ce = still_right(model, look, PGD(eps, norm, steps=20, seed=seed))
        found["weak-loss"] = gradients.weak_loss(stands, by_ce) or answers.flat(look)
    found["more-steps"], left = gradients.more_steps(model, look, stands, norm, eps, seed)
    if not isinstance(model, Mixture) and look.x.ndim == 4 and not seen.get("large-eps"):
        found |= gradients.squares(model, look, left, norm, eps, seed)
    return found
