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

    - Any model: AutoAttack, and APGD with the margin cross-entropy, the loss that it may have been
      trained with.
    - An ensemble: also what fools its members one by one. That is found by PGD, since a search
      stops at a member's first mistake, which fools the others less.
    - A ``Mixture``: PGD on its expected probabilities with both losses, on its mean logits and on
      its members; ARC; and searches for the mistakes of each member, by gradients and by squares.

    Args:
        model: what is attacked; of a module around an ensemble, each member is attacked with what
            is around it.
        eps, norm: the ball; with eps 0 there is nothing to attack.

    Example:
        >>> evaluate(model, x, y, adaptive(model, eps=8 / 255))  # doctest: +SKIP
    """
    if eps == 0:
        return {}
    if isinstance(model, Mixture):
        return _on_mixture(model, eps, norm)
    found: dict[str, Attack] = {
        "autoattack": AutoAttack(eps, norm),
        "apgd-mce": APGD(eps, norm, loss=margin_cross_entropy),
    }
    members = _on_members(model, PGD(eps, norm, steps=100))
    return found | (members if len(members) > 1 else {})


def _on_mixture(mixture: Mixture, eps: float, norm: str) -> dict[str, Attack]:
    found = attacks_on(mixture, PGD(eps, norm, steps=100, restarts=2))
    found["mce"] = PGD(eps, norm, steps=100, loss=margin_cross_entropy, restarts=2)
    found["arc"] = ARC(eps, norm)
    members = _on_members(mixture, PGD(eps, norm, steps=100))
    del members["member 1"]  # "first member" is there
    found |= members
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
