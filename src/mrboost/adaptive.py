"""The attacks that fit a model: what an attacker who knows how it is built would try.

Each point counts as its worst outcome over all of them (``Evaluation.worst``); that is the figure to publish.
"""

from __future__ import annotations

from .attacks import APGD, PGD, Attack, AutoAttack, Classifier, Transfer
from .attacks.arc import ARC
from .ensemble import Ensemble, Mixture
from .losses import margin_cross_entropy
from .mixtures import attacks_on


def adaptive(model: Classifier, eps: float = 8 / 255, norm: str = "Linf") -> dict[str, Attack]:
    """Attacks by label, for ``evaluate``.

    Any model gets AutoAttack and APGD with the margin cross-entropy, the loss that it may have been trained with. An
    ensemble is attacked through its mean logits, and with what fools its members one by one: by PGD, since a search
    stops at a member's first mistake, which fools the others less. A randomised classifier is attacked through its
    expected probabilities, with both losses, through its mean logits and members, and by ARC on the expected mistakes
    themselves.
    """
    if isinstance(model, Mixture):
        strong = PGD(eps, norm, steps=100, restarts=2)
        found: dict[str, Attack] = attacks_on(model, strong)
        found |= {"mce": PGD(eps, norm, steps=100, loss=margin_cross_entropy, restarts=2), "arc": ARC(eps, norm)}
        return found | _members(model, eps, norm, first=2)
    found = {"autoattack": AutoAttack(eps, norm), "apgd-mce": APGD(eps, norm, loss=margin_cross_entropy)}
    if isinstance(model, Ensemble) and len(model) > 1:
        found |= _members(model, eps, norm)
    return found


def _members(model: Ensemble | Mixture, eps: float, norm: str, first: int = 1) -> dict[str, Attack]:
    attack, numbered = PGD(eps, norm, steps=100), enumerate(model, start=1)
    return {f"member {number}": Transfer(attack, member) for number, member in numbered if number >= first}
