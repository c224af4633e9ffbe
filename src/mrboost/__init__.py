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
    from .runs.export import export
    from .runs.join import join
    from .runs.predict import predict
    from .training.boost import boost
    from .training.soup import soup

# Idle OpenMP threads sleep instead of spinning: on a machine whose cores are shared, small networks
# are otherwise many times slower. torch reads this once, so it is set before torch is loaded; a
# setting of the user's stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.2.0"

__all__ = ["Ensemble", "Evaluation", "InputError", "Mixture", "Recipe", "attacks", "boost"]
__all__ += ["compare", "data", "evaluate", "export", "game", "join", "load", "losses", "models"]
__all__ += ["predict", "recipes", "robustness_curve", "soup", "tabular"]
# The modules of the names that are not modules themselves
_HOMES = {
    "Ensemble": "ensemble",
    "Evaluation": "evaluation.result",
    "InputError": "errors",
    "Mixture": "ensemble",
    "Recipe": "recipes",
    "boost": "training.boost",
    "compare": "evaluation.result",
    "evaluate": "evaluation.evaluate",
    "export": "runs.export",
    "join": "runs.join",
    "load": "runs.folder",
    "predict": "runs.predict",
    "robustness_curve": "evaluation.curve",
    "soup": "training.soup",
}

# Modules that can also be imported by a shorter name: ``mrboost.samplers``
_ALIASES = {
    "adaptive": "attacks.adaptive",
    "attacks.queue": "attacks.survivors",
    "awp": "recipes.awp",
    "copies": "speed.copies",
    "exponential": "recipes.exponential",
    "initial": "recipes.optimisation",
    "loggers": "training.loggers",
    "objectives": "recipes.objectives",
    "outcomes": "evaluation.result",
    "recipes.initial": "recipes.optimisation",
    "recipes.schedules": "recipes.optimisation",
    "samplers": "recipes.samplers",
    "schedules": "recipes.optimisation",
}


class _AliasFinder(MetaPathFinder, Loader):
    """``import mrboost.samplers`` gives ``mrboost.recipes.samplers``, the same module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self) if name.removeprefix("mrboost.") in _ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"mrboost.{_ALIASES[spec.name.removeprefix('mrboost.')]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the module was run under its own name, whose spec it gets back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_AliasFinder())


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: ``import mrboost`` takes no time."""
    if name in _HOMES:
        return getattr(import_module(f"mrboost.{_HOMES[name]}"), name)
    if name in __all__ or name in _ALIASES:
        return import_module(f"mrboost.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
