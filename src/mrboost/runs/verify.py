"""Measures a part of a card again: are its weights and images these, and does its sample hold?"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

import scipy
import torch
from torch import Tensor

from mrboost.attacks import Attack
from mrboost.attacks.adaptive import adaptive
from mrboost.devices import make_fabric
from mrboost.errors import InputError
from mrboost.evaluation import EvaluationOptions, Outcome, measure
from mrboost.evaluation.statistics import wilson_interval

from .card import UNSEEN, Card, settings_of, versions, weights_of
from .evaluate_run import Request, Subject, Where
from .folder import GivenModel, Run

BY_CHANCE = 0.01
"""Two evaluations of one network differ on up to this share of the images: another processor's
rounding, another version's random numbers (docs/evaluation.md, "Points that differ")."""
_WORDS = {True: "agrees", False: "DIFFERS", None: "unknown"}
_RARE = 1e-3  # how often a card that is right may be refused


@dataclass(frozen=True)
class Check:
    """One comparison of a card with what was found here.

    ``agrees`` is None where nobody can tell. ``counts`` is false for what a reader should know, and
    what does not refute the card.
    """

    what: str
    agrees: bool | None
    detail: str
    counts: bool = True

    @property
    def refutes(self) -> bool:
        return self.counts and self.agrees is False


@dataclass(frozen=True)
class Verification:
    """What agrees with a card and what differs; ``seed`` draws the same images again."""

    seed: int
    n: int
    checks: tuple[Check, ...] = ()

    @property
    def problems(self) -> list[str]:
        """What refutes the card."""
        return [f"{one.what}: {one.detail}" for one in self.checks if one.refutes]

    def __str__(self) -> str:
        lines = [f"{self.n} images measured again (--seed {self.seed} draws the same)"]
        if self.n == 0:
            lines = ["nothing is measured again, since it would be of something else"]
        for one in self.checks:
            lines.append(f"  {one.what:<20} {_WORDS[one.agrees]:<7}  {one.detail}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        checks = [vars(one) for one in self.checks]
        return {"holds": not self.problems, "seed": self.seed, "n": self.n, "checks": checks}


def verify(
    card: Card,
    run: Run,
    n: int | None = None,
    seed: int | None = None,
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008 — a frozen value
    **where: Unpack[Where],
) -> Verification:
    """Measure some images of a card again, with its attacks; nothing is written.

    Where weights or test images are not those of the card, nothing is attacked.

    Args:
        card: what is claimed.
        run: whose classifier it is said to be.
        n: how many images, 100 if not given.
        seed: which ones; drawn anew if not given, so that nobody can know them beforehand.
        options: how it is done; doubts are not looked for.
        where: as for ``evaluate_run``.
    """
    fabric = make_fabric(where.get("device", "auto"), "32-true")
    subject = Subject.load(run, _request(card, run), fabric, **where)
    seed = secrets.randbelow(2**31) if seed is None else seed
    identity = tuple(_identity(card, subject))
    if any(one.refutes for one in identity):
        return Verification(seed, 0, identity)
    points = card.points
    count = min(len(points), 100 if n is None else n)
    if count < 1:
        raise InputError(f"n must be at least 1, got {n}")
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    taken = order[:count].sort().values
    found = tuple(_figures(card, subject, taken, options))
    return Verification(seed, count, identity + found)


def _request(card: Card, run: Run) -> Request:
    """The classifier that the card names."""
    if isinstance(run, GivenModel):
        return Request("given")
    model = card.config["model"]
    return Request("best" if model["which"] == "given" else model["which"], model["members"])


def _identity(card: Card, subject: Subject) -> Iterator[Check]:
    """Whether weights and test images are those of the card, told by their hashes."""
    data, whole = card.config["data"], subject.whole
    said = f"{data['fingerprint']}, {data['test_images']} of them"
    weights = card.config["model"]["weights"]
    pairs = {"test images": (said, f"{whole.fingerprint()}, {len(whole)} of them")}
    if weights is None:
        yield Check("weights", None, UNSEEN)
    else:
        pairs = {"weights": (weights, weights_of(subject.model) or UNSEEN)} | pairs
    for what, (said, here) in pairs.items():
        detail = here if said == here else f"the card has {said[:40]}, here it is {here}"
        yield Check(what, said == here, detail)
    for name in ("mrboost", "torch"):
        said, here = card.config["made"]["versions"][name], versions()[name]
        if said != here:
            detail = f"the card was made with {said[:40]}, here it is {here}"
            yield Check(name, False, detail, counts=False)
    said = card.config["model"].get("surrogate")
    here = subject.run.config.get("given", {}).get("surrogate")
    if said != here:
        said, here = (name or "none" for name in (said, here))
        detail = f"the card has {said[:40]}, here it is {here[:40]}: --surrogate names it"
        yield Check("surrogate", False, detail, counts=False)


def _figures(
    card: Card, subject: Subject, taken: Tensor, options: EvaluationOptions
) -> Iterator[Check]:
    """The card's attacks on these of its images, one check for each attack."""
    claims = card.config["evaluation"]
    attacks = _attacks(card, subject)
    for one in claims["outcomes"]:
        here = settings_of(attacks.get(one["attack"]))
        if one["settings"] != here:
            detail = f"the card has {str(one['settings'])[:80]}, here it is {str(here)[:80]}"
            yield Check(f"{one['attack']} settings", False, detail, counts=False)
    images = subject.images(card.points)[taken]
    ball = (claims["eps"] or 0.0, claims["norm"] or "Linf")
    how = replace(options, check=False)
    measured = measure(subject.model, images, None, attacks, how, ball=ball)
    if measured.problem:
        raise InputError(measured.problem)
    evaluation = measured.evaluation()
    for one in claims["outcomes"]:
        yield _compared(one, card.correct(one), evaluation[one["attack"]], taken)


def _attacks(card: Card, subject: Subject) -> dict[str, Attack]:
    """The card's attacks by their names; those that fit the model are made for it."""
    claims = card.config["evaluation"]
    eps, norm = claims["eps"], claims["norm"]
    if eps is None or norm is None:
        raise InputError(f"{card.folder} has attacks of several balls: nothing is measured again")
    names = [one["attack"] for one in claims["outcomes"] if one["attack"] != "clean"]
    fitting = adaptive(subject.model, eps, norm)
    return {
        name: fitting[name] if name in fitting else subject.attacks([name], eps, norm)[name]
        for name in names
    }


def _compared(one: dict[str, Any], said: Tensor | None, found: Outcome, taken: Tensor) -> Check:
    """Image by image where the card says how each did, else by intervals."""
    n = len(taken)
    if said is None:
        (low, high), interval = wilson_interval(found.accuracy * n, n), one["interval"]
        agrees = low <= interval[1] and interval[0] <= high
        detail = f"{one['accuracy']:.2%} on the card, "
        detail += f"{found.accuracy:.2%} ({low:.2%} to {high:.2%}) here"
        return Check(one["attack"], agrees, detail)
    here = torch.tensor(found.correct) > 0
    worse, better = int((said[taken] & ~here).sum()), int((~said[taken] & here).sum())
    most = int(scipy.stats.binom.ppf(1 - _RARE, n, BY_CHANCE))
    detail = f"{worse + better} of {n} images differ"
    if worse + better:
        detail += f" ({worse} fall here alone, {better} on the card alone; {most} may by chance)"
    return Check(one["attack"], worse + better <= most, detail)
