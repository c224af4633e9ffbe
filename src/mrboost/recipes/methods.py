"""The methods, each a value: a ``Recipe`` names its parts, and one training loop runs them all.

A new method is one more value in this file and in ``RECIPES``, which gives it a name on the command
line. It is usually another one with some parts changed: ``replace(AT_MCE, sampler=…)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mrboost.attacks import Gaussian, Start, Uniform
from mrboost.data import CutMix
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError, check_new_name, check_part, look_up
from mrboost.losses import cross_entropy, margin_cross_entropy, margin_kl_divergence

from .awp import AWP
from .exponential import Exp
from .objectives import Ind, Mart, Objective, OnPairs, OnPerturbed, Scope, Trades, Whole
from .optimisation import Init, OneCycle, PerInit, Piecewise, RndInit, Schedule
from .samplers import All, Diverge, Drawn, Geometry, Learner, Max, Past, Rnd, Sampler

# The parts, and the attributes that training asks of them
_PARTS = {
    "sampler": ("joint",),
    "objective": (),
    "scope": (),
    "init": (),
    "start": (),
    "schedule": ("settled",),
}


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained, round by round.

    Args:
        name, summary, formula, reference: what tables and ``mrboost recipes`` show.
        sampler: the adversary, which perturbs each batch.
        objective: the loss of each example of that batch.
        scope: whether the loss sees the learner's logits or the ensemble's.
        init: the weights a round starts from.
        combine: what the trained networks become, an ``Ensemble`` or a randomised ``Mixture``.
        rounds: the number of networks, unless the run says otherwise.
        model: the network; ``{}`` stands for the one that was asked for, or the data's usual one.
        steps, start: those of the inner attack; its radius, norm and step size are the run's.
        schedule: the factor of the learning rate ``lr`` over the training.
        momentum, weight_decay, batch_size: those of SGD.
        ema: the decay of an average of the weights, which is kept in their place.
        clip: the largest norm of a gradient.
        awp: adversarial weight perturbation around each step.
        cutmix: images of a batch are cut and mixed.
    """

    name: str
    summary: str
    formula: str
    reference: str
    sampler: Sampler = Learner()
    objective: Objective = OnPerturbed()
    scope: Scope = Ind()
    init: Init = RndInit()
    combine: type[Ensemble] | type[Mixture] = Ensemble
    rounds: int = 1
    model: str = "{}"
    steps: int = 10
    start: Start = Uniform()
    schedule: Schedule = Piecewise()
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    ema: float | None = None
    clip: float | None = None
    awp: AWP | None = None
    cutmix: CutMix | None = None

    def __post_init__(self) -> None:
        for part, needed in _PARTS.items():
            check_part(f"{part} of recipe {self.name!r}", getattr(self, part), *needed)
        if not isinstance(self.steps, int) or self.steps < 1:
            raise InputError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"ema must be an average's decay, between 0 and 1, got {self.ema}")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip is a positive bound of the gradient's norm, got {self.clip}")

    @property
    def coupled(self) -> bool:
        """Whether a round depends on the members before it, or all rounds are independent."""
        return self.sampler.joint or self.init != RndInit() or self.scope != Ind()


_PAPER = "Zhang et al., Building Robust Ensembles via Margin Boosting, ICML 2022"
_MADRY = "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018"
_ABERNETHY = (
    "Abernethy et al., A Multiclass Boosting Framework "
    "for Achieving Fast and Provable Adversarial Robustness, 2021"
)
_PINOT = (
    "Pinot et al., Randomization Matters: "
    "How to Defend Against Strong Adversarial Attacks, ICML 2020"
)
_TRADES = (
    "Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy, ICML 2019"
)
_MART = (
    "Wang et al., "
    "Improving Adversarial Robustness Requires Revisiting Misclassified Examples, ICLR 2020"
)
_AWP = "Wu et al., Adversarial Weight Perturbation Helps Robust Generalization, NeurIPS 2020"
_GAIR = "Zhang et al., Geometry-aware Instance-reweighted Adversarial Training, ICLR 2021"
_MARGIN_KL = "KL(p(x_i) ‖ p(x_i + δ)) + KL(p̃(x_i) ‖ p̃(x_i + δ))"
_PROBABILITIES = "p = softmax(g), p̃ = softmax(−g)"

AT = Recipe(
    name="at",
    summary="adversarial training: minimise the cross-entropy on PGD examples",
    formula="min_θ Σ_i max_δ CE(g(x_i + δ), y_i)",
    reference=_MADRY,
)
AT2 = replace(
    AT,
    name="at2",
    summary="adversarial training with the loss doubled: the control for MCE's larger scale",
    formula="min_θ Σ_i 2 max_δ CE(g(x_i + δ), y_i)",
    reference=_PAPER,
    objective=OnPerturbed(scale=2.0),
)
AT_MCE = replace(
    AT,
    name="at-mce",
    summary="adversarial training with the margin cross-entropy in attack and loss",
    formula="min_θ Σ_i max_δ MCE-A(g(x_i + δ), y_i)",
    reference=_PAPER,
    sampler=Learner(loss=margin_cross_entropy),
    objective=OnPerturbed(loss=margin_cross_entropy),
)
WIDER = replace(
    AT,
    name="wider",
    summary="at on five networks as one model, end to end: the control for the ensemble's size",
    reference=_PAPER,
    model="5x{}",
)
DEEPER = replace(
    AT,
    name="deeper",
    summary="at on a ResNet-152: the control for the ensemble's number of parameters",
    reference=_PAPER,
    model="resnet152",
)

TRADES = Recipe(
    name="trades",
    summary="TRADES: the clean cross-entropy, and that perturbations do not change the answer",
    formula="min_θ Σ_i CE(g(x_i), y_i) + 6 max_δ KL(p(x_i) ‖ p(x_i + δ)),  p = softmax(g)",
    reference=_TRADES,
    sampler=Diverge(),
    objective=Trades(),
    start=Gaussian(),
)
TRADES_MCE = replace(
    TRADES,
    name="trades-mce",
    summary="TRADES with the margin cross-entropy, and the divergence of softmax(−g) too",
    formula=f"min_θ Σ_i MCE-A(g(x_i), y_i) + 6 max_δ ({_MARGIN_KL}),  {_PROBABILITIES}",
    reference=_PAPER,
    sampler=Diverge(margin_kl_divergence),
    objective=Trades(margin_cross_entropy, margin_kl_divergence),
)
MART = Recipe(
    name="mart",
    summary="MART: boosted cross-entropy, and the same answer where the clean image is doubtful",
    formula="min_θ Σ_i BCE(g(x_i + δ_i), y_i) + 5 KL(p(x_i) ‖ p(x_i + δ_i)) (1 − p(x_i)_{y_i}),  "
    "p = softmax(g),  δ_i = argmax_δ CE(g(x_i + δ), y_i),  "
    "BCE(g, y) = CE(g, y) − log(1 − max_{j≠y} p_j)",
    reference=_MART,
    objective=Mart(),
    start=Gaussian(),
)
MART_MCE = replace(
    MART,
    name="mart-mce",
    summary="MART with MCE as printed, on the clean image, and both divergences (weak)",
    formula="min_θ Σ_i MCE-A(g(x_i), y_i) + KL(p(x_i) ‖ p(x_i + δ_i)) (1 − p(x_i)_{y_i}) "
    f"+ KL(p̃(x_i) ‖ p̃(x_i + δ_i)) (1 − p̃(x_i)_{{y_i}}),  {_PROBABILITIES},  "
    "δ_i = argmax_δ CE(g(x_i + δ), y_i)",
    reference=_PAPER,
    objective=Mart(margin_cross_entropy, weight=1.0, mirrored=True, on_clean=True),
)
MART_MCE_PERTURBED = replace(
    MART_MCE,
    name="mart-mce-perturbed",
    summary="MART with the margin cross-entropy where MART has its own, on the perturbed image",
    formula=MART_MCE.formula.replace("MCE-A(g(x_i)", "MCE-A(g(x_i + δ_i)"),
    reference=f"after {_PAPER}",
    objective=Mart(margin_cross_entropy, weight=1.0, mirrored=True),
)
AT_AWP = replace(
    AT,
    name="awp",
    summary="adversarial training with the weights, too, moved to where they do worst",
    formula="min_θ max_{‖v_l‖ <= γ ‖θ_l‖} Σ_i max_δ CE(g_{θ + v}(x_i + δ), y_i),  "
    "l over the layers",
    reference=_AWP,
    awp=AWP(),
)
AWP_MCE = replace(
    AT_MCE,
    name="awp-mce",
    summary="adversarial weight perturbation with the margin cross-entropy in attack and loss",
    formula="min_θ max_{‖v_l‖ <= γ ‖θ_l‖} Σ_i max_δ MCE-A(g_{θ + v}(x_i + δ), y_i),  "
    "l over the layers",
    awp=AWP(),
)
GAIR = replace(
    AT,
    name="gair",
    summary="adversarial training that weighs examples by how soon they fall, from the first decay",
    formula="min_θ Σ_i ω_i CE(g(x_i + δ_i), y_i),  ω_i ∝ sigmoid(5 (1 − 2 κ_i / K)),  "
    "κ_i of the K steps of the attack begin at a point that is classified correctly",
    reference=_GAIR,
    sampler=Geometry(),
)
GAIR_MCE = replace(
    GAIR,
    name="gair-mce",
    summary="GAIR with the margin cross-entropy in attack and loss",
    formula=GAIR.formula.replace("CE", "MCE-A", 1),
    reference=_PAPER,
    sampler=Geometry(margin_cross_entropy),
    objective=OnPerturbed(margin_cross_entropy),
)
STRONG = replace(
    AWP_MCE,
    name="strong",
    summary="most robust single model here: awp-mce with smaller weight steps, one-cycle, averages",
    reference="composed here, of awp-mce, one-cycle rates and averaged weights",
    schedule=OneCycle(),
    lr=0.2,
    awp=AWP(0.005),
    ema=0.999,
)

_MEAN = "mean_{j<=t} g_j(x_i + δ)"
_DELTA_ALL = f"δ_i = argmax_δ MCE-A({_MEAN}, y_i)"
_PAIR = "min_θt Σ_i MCE(g_t(x_i + δ_i), y_i, y'_i)"

SNAPSHOTS = replace(
    AT_MCE,
    name="snapshots",
    summary="at-mce in rounds, each from the last one's weights: the control for boosting",
    formula="min_θt Σ_i max_δ MCE-A(g_t(x_i + δ), y_i),  θ_t from θ_{t−1}",
    reference="after Huang et al., Snapshot Ensembles: Train 1, Get M for Free, ICLR 2017",
    init=PerInit(),
    rounds=5,
)
MRBOOST = Recipe(
    name="mrboost",
    summary="margin boosting: each learner minimises MCE where the ensemble with it does worst",
    formula=f"min_θt Σ_i MCE-A(g_t(x_i + δ_i), y_i),  {_DELTA_ALL}",
    reference=_PAPER,
    sampler=All(),
    objective=OnPerturbed(loss=margin_cross_entropy),
    init=PerInit(),
    rounds=5,
)
ROBBOOST = Recipe(
    name="robboost",
    summary="greedy boosting: the cross-entropy of the whole ensemble on its own PGD examples",
    formula="min_θt Σ_i max_δ CE(mean_{j<=t} g_j(x_i + δ), y_i)",
    reference=_ABERNETHY,
    sampler=All(loss=cross_entropy),
    scope=Whole(),
    rounds=5,
)
PINOT = Recipe(
    name="pinot",
    summary="a randomised pair: the second network trains on the adversarial examples of the first",
    formula="g_1 by adversarial training;  min_θ2 Σ_i CE(g_2(x_i + δ_i), y_i),  "
    "δ_i = argmax_δ CE(g_1(x_i + δ), y_i)",
    reference=_PINOT,
    sampler=Past(),
    combine=Mixture,
    rounds=2,
)
MRBOOST_STRONG = replace(
    STRONG,
    name="mrboost-strong",
    summary="strong, boosted: each learner meets the adversary of the ensemble with it",
    formula=f"min_θt max_{{‖v_l‖ <= γ ‖θ_l‖}} Σ_i MCE-A(g_{{θt + v}}(x_i + δ_i), y_i),  "
    f"{_DELTA_ALL}",
    sampler=All(),
    init=PerInit(),
    rounds=5,
)


def _variant(base: Recipe, name: str, summary: str, **parts: Any) -> Recipe:
    """A recipe named after another one that it differs from in some parts."""
    return replace(base, name=f"{base.name}-{name}", summary=f"{base.name} {summary}", **parts)


_MRBOOST_WHOLE = _variant(
    MRBOOST,
    "whole",
    "with the loss on the whole ensemble",
    formula=f"min_θt Σ_i MCE-A(mean_{{j<=t}} g_j(x_i + δ_i), y_i),  {_DELTA_ALL}",
    scope=Whole(),
)
_ROBBOOST_IND = _variant(
    ROBBOOST,
    "ind",
    "with the loss on the learner alone",
    formula="min_θt Σ_i CE(g_t(x_i + δ_i), y_i),  δ_i = argmax_δ CE(mean_{j<=t} g_j(x_i + δ), y_i)",
    reference=_PAPER,
    scope=Ind(),
)
_FRESH = "with freshly initialised learners"
_FROM_LAST = "with each learner starting from the last"
_VARIANTS = (
    _variant(MRBOOST, "rndinit", _FRESH, init=RndInit()),
    _MRBOOST_WHOLE,
    _variant(_MRBOOST_WHOLE, "rndinit", _FRESH, init=RndInit()),
    _variant(
        MRBOOST,
        "drawn",
        "on the learner and one earlier member for each image: cheap late rounds",
        formula="min_θt Σ_i MCE-A(g_t(x_i + δ_i), y_i),  "
        "δ_i = argmax_δ MCE-A((g_t + (t − 1) g_j)(x_i + δ) / t, y_i),  j < t drawn for each i",
        reference="composed here: an estimate of mrboost's ensemble",
        sampler=Drawn(),
    ),
    _variant(ROBBOOST, "perinit", _FROM_LAST, reference=_PAPER, init=PerInit()),
    _ROBBOOST_IND,
    _variant(_ROBBOOST_IND, "perinit", _FROM_LAST, init=PerInit()),
    _variant(
        MRBOOST,
        "rnd",
        "with a random false label for each example",
        formula=f"{_PAIR},  y'_i random,  δ_i = argmax_δ MCE({_MEAN}, y_i, y'_i)",
        sampler=Rnd(),
        objective=OnPairs(),
    ),
    _variant(
        MRBOOST,
        "max",
        "with the worst false label of each example",
        formula=f"{_PAIR},  (y'_i, δ_i) = argmax_{{y', δ}} MCE({_MEAN}, y_i, y')",
        sampler=Max(),
        objective=OnPairs(),
    ),
    _variant(
        MRBOOST,
        "exp",
        "with draws from the exponential weights P_t: faithful, and weak (docs/results)",
        formula=f"{_PAIR} over (x, y, y', δ) ~ P_t ∝ exp(η MCE(Σ_{{j<=t}} g_j(x + δ), y, y'))",
        sampler=Exp(),
        objective=OnPairs(),
    ),
)

_ORDERED = (
    *(AT, AT2, AT_MCE, TRADES, TRADES_MCE, MART, MART_MCE, MART_MCE_PERTURBED),
    *(AT_AWP, AWP_MCE, GAIR, GAIR_MCE, STRONG, MRBOOST, MRBOOST_STRONG, SNAPSHOTS),
    *(ROBBOOST, PINOT, WIDER, DEEPER, *_VARIANTS),
)
_BY_NAME = {recipe.name: recipe for recipe in _ORDERED}
# Every method by its name
RECIPES: Mapping[str, Recipe] = MappingProxyType(_BY_NAME)


def register(recipe: Any) -> Recipe:
    """Give a recipe of your own its name in ``boost``, and on the command line with ``--import`` of
    the module that does so.

    Returns:
        The recipe.

    Example:
        >>> register(replace(AT, name="at-slow", summary="at in small steps", lr=0.01)).lr
        0.01
    """
    if not isinstance(recipe, Recipe):
        problem = f"a recipe is a mrboost.Recipe, got {recipe!r:.80}"
        raise InputError(f"{problem}: make one with dataclasses.replace(mrboost.recipes.AT, ...)")
    check_new_name("recipe", recipe.name, _BY_NAME)
    _BY_NAME[recipe.name] = recipe
    return recipe


_HINT = "list them with: mrboost recipes; your own: recipes.register, and --import its module"


def get(name: str) -> Recipe:
    """The recipe called ``name``; a name that does not exist is refused with the nearest one.

    Example:
        >>> get("at-mce").rounds
        1
    """
    return look_up("recipe", name, RECIPES, hint=_HINT)
