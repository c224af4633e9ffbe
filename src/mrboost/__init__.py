"""mrboost: margin-boosted robust ensembles, and what it takes to trust them."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import attacks, data, game, losses, models, recipes, tabular
    from .boosting import boost
    from .curves import robustness_curve
    from .ensemble import Ensemble, Mixture
    from .errors import InputError
    from .evaluation import evaluate
    from .joined import join
    from .outcomes import Evaluation, compare
    from .recipes import Recipe
    from .runs import load

# Before torch is loaded: OpenMP's threads spin while they wait, and when another process holds a core, small networks
# are many times slower for it; asleep they lose a third on an idle machine. So they spin for a moment, where that can
# be said (by GNU's OpenMP, torch's own on Linux), and sleep. A setting of the user's stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

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
_MODULE_OF = {
    "Ensemble": "ensemble",
    "Evaluation": "outcomes",
    "InputError": "errors",
    "Mixture": "ensemble",
    "Recipe": "recipes",
    "boost": "boosting",
    "compare": "outcomes",
    "evaluate": "evaluation",
    "join": "joined",
    "load": "runs",
    "robustness_curve": "curves",
}


def __getattr__(name: str) -> Any:
    """What is asked for, loaded then: torch takes a second, and Ctrl-C within it is the command's to answer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_MODULE_OF.get(name, name)}", __name__)
    return getattr(module, name) if name in _MODULE_OF else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
