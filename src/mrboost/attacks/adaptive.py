"""The attacks that fit a model: what an attacker who knows how it is built would try.

Each point counts as its worst outcome over all of them (``Evaluation.worst``); that is
the figure to publish.

Against a ``Mixture`` any attack raises the loss of the expected probabilities, since that is what
``Mixture.forward`` returns: the paper's adaptive attack. The two weaker ones of ``attacks_on`` make
its point: a defence that only they have been tried on has not been tested. ``arc.ARC`` is a second
opinion of another kind: it counts the members it fools.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.ensemble import Ensemble, Mixture, members_of
from mrboost.errors import InputError, NanLogitsError
from mrboost.losses import margin_cross_entropy

from .apgd import APGD
from .arc import ARC
from .autoattack import AutoAttack
from .base import Attack, as_attack
from .model import Classifier
from .pgd import PGD
from .square import Square

ON_MIXTURES = ("first member", "mean logits", "mean probabilities")


@dataclass(frozen=True)
class Transfer(Attack):
    """Adversarial examples made on ``source``, whichever model they are then shown to.

    Args:
        attack: what makes them.
        source: the model that it runs on.
        own: the source is a part of the model that they are shown to, so that gradients of the
            source are gradients of that model.
    """

    attack: Attack
    source: Classifier
    own: bool = False

    def __post_init__(self) -> None:
        made_by = as_attack(self.attack)
        object.__setattr__(self, "eps", made_by.eps)
        object.__setattr__(self, "norm", made_by.norm)
        object.__setattr__(self, "uses_gradients", self.own and made_by.uses_gradients)

    def work(self, classes: int) -> int:
        return as_attack(self.attack).work(classes)

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        try:
            return self.attack(self.source, x, y, generator=generator)
        except NanLogitsError:
            raise
        except InputError as error:
            raise InputError(f"of the model that the examples are made on: {error}") from error


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
