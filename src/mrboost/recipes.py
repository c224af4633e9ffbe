"""Every method as a value. A recipe names its parts; the one training loop runs whatever they are.

A new method is one more value here, and at most one new part. Look one up with ``get``, change a part with
``dataclasses.replace``, or make your own ``Recipe`` and hand it to ``mrboost.boost``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from .attacks import Start, Uniform
from .errors import unknown_name
from .losses import margin_cross_entropy
from .objectives import Objective, OnPerturbed
from .samplers import Learner, Sampler
from .schedules import Piecewise, Schedule


@dataclass(frozen=True)
class Recipe:
    """How one classifier is trained.

    ``steps`` and ``start`` are those of the inner ascent; its radius, norm and step length are the run's.
    ``ema`` is the decay of an average of the weights that is kept in their place; ``clip`` bounds the gradient's norm.
    """

    name: str
    summary: str
    formula: str
    reference: str
    sampler: Sampler = Learner()
    objective: Objective = OnPerturbed()
    steps: int = 10
    start: Start = Uniform()
    schedule: Schedule = Piecewise()
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    ema: float | None = None
    clip: float | None = None


_PAPER = "Zhang et al., Building Robust Ensembles via Margin Boosting, ICML 2022"

AT = Recipe(
    name="at",
    summary="adversarial training: minimise the cross-entropy on PGD examples",
    formula="min_θ Σ_i max_δ CE(g(x_i + δ), y_i)",
    reference="Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018",
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

RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in (AT, AT2, AT_MCE)})


def get(name: str) -> Recipe:
    """The recipe called ``name``."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES, hint="list them with: mrboost recipes")
    return RECIPES[name]
