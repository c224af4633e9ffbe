"""The attacks that fit a model: what an attacker who knows how it is built would try.

Each point counts as its worst outcome over all of them (``Evaluation.worst``); that is
the figure to publish.

Against a ``Mixture`` any attack raises the loss of the expected probabilities, since that is what
``Mixture.forward`` returns: the paper's adaptive attack. The two weaker ones of ``attacks_on`` make
its point: a defence that only they have been tried on has not been tested. ``arc.ARC`` is a second
opinion of another kind: it counts the members it fools.

Where a model makes of its members' answers something that has no useful gradient,
``surrogates.Twin`` has one; where it has none at all, a surrogate does (``surrogates.BPDA``), or
squares and rays decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.devices import device_of, dtype_of
from mrboost.ensemble import Classifier, Ensemble, Mixture, members_of
from mrboost.losses import margin, margin_cross_entropy

from .apgd import APGD
from .arc import ARC
from .autoattack import AutoAttack
from .base import Attack
from .model import checked, difference, drawn, slopes
from .pgd import PGD
from .rays import RayS
from .square import Square
from .surrogates import BPDA, Transfer, Twin, of_tensors, on_surrogate, voters

__all__ = ["Transfer", "adaptive", "attacks_on", "on_surrogate"]

ON_MIXTURES = ("first member", "mean logits", "mean probabilities")


def adaptive(
    model: Classifier, eps: float = 8 / 255, norm: str = "Linf", x: Tensor | None = None
) -> dict[str, Attack]:
    """Attacks by label, for ``evaluate``.

    - Any model: AutoAttack, and APGD with the margin cross-entropy, the loss that it may have been
      trained with; both average gradients if the model draws random numbers.
    - An ensemble: also what fools its members one by one. That is found by PGD, since a search
      stops at a member's first mistake, which fools the others less.
    - A model with parts that answer on their own, an ensemble or not: also what fools the mean of
      their logits, and that of their probabilities.
    - A ``BPDA``: also what fools its surrogate.
    - A model without gradients: searches that need none, which others whose gradients are zero get
      too.
    - A ``Mixture``: PGD on its expected probabilities with both losses, on its mean logits and on
      its members; ARC; and searches for the mistakes of each member, by gradients and by squares.

    Args:
        model: what is attacked; of a module around an ensemble, each member is attacked with what
            is around it.
        eps, norm: the ball; with eps 0 there is nothing to attack.
        x: some images. Without them nobody sees whether a model draws random numbers, lacks
            gradients or has parts, but for the members of the library's own ensembles.

    Example:
        >>> evaluate(model, x, y, adaptive(model, 8 / 255, x=x))  # doctest: +SKIP
    """
    if eps == 0:
        return {}
    if isinstance(model, Mixture):
        return _on_mixture(model, eps, norm)
    seen = _Seen() if x is None else _look(model, x[:_LOOKED_AT])
    pgd = PGD(eps, norm, steps=100)
    found = _fitting(seen, eps, norm)
    members = {} if seen.slope is None else _on_members(model, pgd)
    found |= members if len(members) > 1 else {}
    found |= {label: Transfer(pgd, twin) for label, twin in seen.twins.items()}
    return found | on_surrogate(model, eps, norm)


def _fitting(seen: _Seen, eps: float, norm: str) -> dict[str, Attack]:
    """The attacks on the model itself, by what its gradients are like."""
    blind: dict[str, Attack] = {"square": Square(eps, norm)}
    if norm == "Linf":
        blind["rays"] = RayS(eps, norm)
    if seen.slope is None:
        return blind
    version, eot = ("rand", 20) if seen.draws else ("standard", 1)
    whole = AutoAttack(eps, norm, version=version)
    found: dict[str, Attack] = {
        whole.name: whole,
        "apgd-mce": APGD(eps, norm, loss=margin_cross_entropy, eot=eot),
    }
    return found | (blind if seen.slope == 0 else {})


_LOOKED_AT = 8  # images are enough to see what a model is like


@dataclass(frozen=True)
class _Seen:
    """What a look at a model says of the attacks that fit it.

    Attributes:
        draws: whether it draws random numbers.
        slope: the largest slope of the margin in any pixel of most images (the median); None if
            there are no gradients.
        twins: stand-ins that average the answers of its parts.
    """

    draws: bool = False
    slope: float | None = 1.0
    twins: dict[str, Classifier] = field(default_factory=dict)


def _look(model: Classifier, x: Tensor) -> _Seen:
    x = x.to(device_of(model, otherwise=x.device), dtype_of(model, x.dtype))
    model = of_tensors(model, x, classes=1)
    inner = model.model if isinstance(model, BPDA) else model
    with checked(model, x, torch.zeros(len(x), dtype=torch.int64, device=x.device)) as (images, *_):
        with torch.no_grad():
            logits = model(images.clone())
        _, slope = slopes(model, images, logits.argmax(dim=1), margin)
        draws = bool(drawn(model, images))
        parts = tuple(voters(inner, images))
        twins: dict[str, Classifier] = {}
        for label, probabilities in (("mean logits", False), ("mean probabilities", True)):
            twin = Twin(inner, parts, probabilities)
            # An ensemble is the first of them itself
            if parts and difference(twin(images), logits, 1e-4):
                twins[label] = twin
    return _Seen(draws, None if slope is None else slope.median().item(), twins)


def attacks_on(mixture: Mixture, attack: Attack) -> dict[str, Attack]:
    """The three attacks of the paper's appendix: ``attack`` on the first member, on the mean logits
    (Pinot et al. 2020), and on the mean probabilities, by the names of ``ON_MIXTURES``."""
    logits = Ensemble(mixture.members, mixture.weights.tolist()).to(mixture.weights.device)
    first, mean_logits = (Transfer(attack, part, own=True) for part in (mixture[0], logits))
    return dict(zip(ON_MIXTURES, (first, mean_logits, attack), strict=True))


def _on_mixture(mixture: Mixture, eps: float, norm: str) -> dict[str, Attack]:
    found = attacks_on(mixture, PGD(eps, norm, steps=100, restarts=2))
    found["mce"] = PGD(eps, norm, steps=100, loss=margin_cross_entropy, restarts=2)
    found["arc"] = ARC(eps, norm)
    found |= _on_members(mixture, PGD(eps, norm, steps=100))
    del found["member 1"]  # "first member" is there
    for search in (APGD(eps, norm, targets=9), Square(eps, norm)):
        for label, attack in _on_members(mixture, search).items():
            found[f"{search.name} on {label}"] = attack
    return found


def _on_members(model: Classifier, attack: Attack) -> dict[str, Attack]:
    """The attack on each member, shown to the model.

    Gradients of a Mixture's members are its own. Of an ensemble they are not: that one member's
    lead where those of the whole do not is a reason to doubt.
    """
    own = isinstance(model, Mixture)
    return {
        f"member {number}": Transfer(attack, member, own)
        for number, (member, _) in enumerate(members_of(model), start=1)
    }
