"""mrboost: margin-boosted robust ensembles, and what it takes to trust them."""

import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import attacks, data, game, losses, models, recipes, tabular
    from .ensemble import Ensemble, Mixture
    from .errors import InputError
    from .evaluation import Evaluation, compare, evaluate, robustness_curve
    from .recipes import Recipe
    from .runs import load
    from .runs.join import join
    from .training.boost import boost

# Before torch is loaded: OpenMP's threads spin while they wait, and when another process holds a
# core, small networks are many times slower for it; asleep they lose a third on an idle machine. So
# they spin for a moment, where that can be said (by GNU's OpenMP, torch's own on Linux), and sleep.
# A setting of the user's stays.
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
    "Evaluation": "evaluation.result",
    "InputError": "errors",
    "Mixture": "ensemble",
    "Recipe": "recipes",
    "boost": "training.boost",
    "compare": "evaluation.result",
    "evaluate": "evaluation.evaluate",
    "join": "runs.join",
    "load": "runs.folder",
    "robustness_curve": "evaluation.curve",
}

# Modules by the names that the documentation uses, and where they are.
_MOVED = {
    "adaptive": ".attacks.adaptive",
    "attacks.queue": ".attacks.survivors",
    "awp": ".recipes.awp",
    "copies": ".speed.copies",
    "exponential": ".recipes.exponential",
    "initial": ".recipes.initial",
    "objectives": ".recipes.objectives",
    "outcomes": ".evaluation.result",
    "samplers": ".recipes.samplers",
    "schedules": ".recipes.schedules",
}


class _Moved(MetaPathFinder, Loader):
    """``import mrboost.samplers`` gives ``mrboost.recipes.samplers``, the same module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self) if name.removeprefix("mrboost.") in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_MOVED[spec.name.removeprefix("mrboost.")], __name__)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # it has run already, under its own name
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_Moved())


def __getattr__(name: str) -> Any:
    """What is asked for, loaded then: torch takes a second, and Ctrl-C within it is the
    command's to answer."""
    if name not in __all__ and name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_MODULE_OF.get(name, name)}", __name__)
    return getattr(module, name) if name in _MODULE_OF else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
