"""mrboost: margin-boosted robust ensembles, and what it takes to trust them."""

import os
from importlib import import_module
from typing import Any

# Before torch is loaded: OpenMP's threads spin while they wait, and when another process holds a core, small networks
# train many times slower for it. Sleeping costs them a third on an idle machine. A setting of the user's stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from . import attacks, data, game, losses, models, recipes
from .boosting import boost
from .curves import robustness_curve
from .ensemble import Ensemble, Mixture
from .errors import InputError
from .evaluation import evaluate
from .outcomes import Evaluation, compare
from .recipes import Recipe
from .runs import load

__version__ = "0.1.0"

__all__ = [
    "Ensemble",
    "Evaluation",
    "InputError",
    "Mixture",
    "Recipe",
    "attacks",
    "boost",
    "compare",
    "data",
    "evaluate",
    "game",
    "load",
    "losses",
    "models",
    "recipes",
    "robustness_curve",
    "tabular",
]


def __getattr__(name: str) -> Any:
    if name == "tabular":  # when it is asked for: scikit-learn takes a while to load
        return import_module(".tabular", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
