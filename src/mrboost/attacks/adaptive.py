"""The attacks that fit a model: what an attacker who knows how it is built would try.

Each point counts as its worst outcome over all of them (``Evaluation.worst``); that is
the figure to publish.
"""

from __future__ import annotations

from mrboost.ensemble import Mixture, members_of
from mrboost.losses import margin_cross_entropy

from . import APGD, PGD, Attack, AutoAttack, Classifier, Square, Transfer
from .arc import ARC
from .mixtures import attacks_on


def adaptive(model: Classifier, eps: float = 8 / 255, norm: str = "Linf") -> dict[str, Attack]:
    """Attacks by label, for ``evaluate``.

    Any model gets AutoAttack and APGD with the margin cross-entropy, the loss that it may have been
    trained with. An ensemble is attacked through its mean logits, and with what fools its members
    one by one: by PGD, since a search stops at a member's first mistake, which fools the others
    less. What is around an ensemble is around each member. A randomised classifier is attacked
    through its expected probabilities, with both losses, through its mean logits and members, by
    ARC on the expected mistakes themselves, and by searches for one member's mistakes, with its
    gradients and by squares without them. In a ball of radius 0 there is nothing to attack.
    """
    if eps == 0:
        return {}
    if isinstance(model, Mixture):
        strong = PGD(eps, norm, steps=100, restarts=2)
        found: dict[str, Attack] = attacks_on(model, strong)
        found |= {
            "mce": PGD(eps, norm, steps=100, loss=margin_cross_entropy, restarts=2),
            "arc": ARC(eps, norm),
        }
        members = _on_members(model, PGD(eps, norm, steps=100))
        del members["member 1"]  # "first member" is there
        found |= members
        for search in (APGD(eps, norm, targets=9), Square(eps, norm)):
            found |= {
                f"{search.name} on {label}": one
                for label, one in _on_members(model, search).items()
            }
        return found
    found = {
        "autoattack": AutoAttack(eps, norm),
        "apgd-mce": APGD(eps, norm, loss=margin_cross_entropy),
    }
    members = _on_members(model, PGD(eps, norm, steps=100))
    return found | (members if len(members) > 1 else {})


def _on_members(model: Classifier, attack: Attack) -> dict[str, Attack]:
    """A Mixture is its members; that one of an ensemble's leads where its own gradients do not
    is a reason to doubt."""
    own, numbered = isinstance(model, Mixture), enumerate(members_of(model), start=1)
    return {f"member {number}": Transfer(attack, member, own) for number, (member, _) in numbered}
