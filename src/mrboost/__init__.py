"""mrboost: margin-boosted robust ensembles, and what it takes to trust them."""

import os
from importlib import import_module
from typing import Any

# Before torch is loaded: OpenMP's threads spin while they wait, and when another process holds a core, small networks
# are many times slower for it; asleep they lose a third on an idle machine. So they spin for a moment, where that can
# be said (by GNU's OpenMP, torch's own on Linux), and sleep. A setting of the user's stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from . import attacks, data, game, losses, models, recipes
from .boosting import boost
from .curves import robustness_curve
from .ensemble import Ensemble, Mixture
from .errors import InputError
from .evaluation import evaluate
from .joined import join
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
    "join",
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
