"""Attacks on a randomised classifier, from the weakest to the honest one.

Against a ``Mixture`` any attack raises the loss of the expected probabilities, since that is what
``Mixture.forward`` returns: the paper's adaptive attack. The two weaker ones make its point: a
defence that only they have been tried on has not been tested. ``attacks.arc.ARC`` is a second
opinion of another kind: it counts the members it fools.
"""

from __future__ import annotations

from mrboost.ensemble import Ensemble, Mixture

from . import Attack, Transfer

ON_MIXTURES = ("first member", "mean logits", "mean probabilities")


def attacks_on(mixture: Mixture, attack: Attack) -> dict[str, Attack]:
    """The three attacks of the paper's appendix: ``attack`` on the first member, on the mean logits
    (Pinot et al. 2020), and on the mean probabilities, by the names of ``ON_MIXTURES``."""
    logits = Ensemble(mixture.members, mixture.weights.tolist()).to(mixture.weights.device)
    first, mean_logits = (Transfer(attack, part, own=True) for part in (mixture[0], logits))
    return dict(zip(ON_MIXTURES, (first, mean_logits, attack), strict=True))
