"""The public names and their signatures are those of public_api.txt.

A change of the public API that is meant is written there by: python tests/test_public_api.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("public_api.txt")
MODULES = [
    "mrboost",
    *("mrboost.losses", "mrboost.attacks", "mrboost.recipes", "mrboost.data", "mrboost.models"),
    *("mrboost.game", "mrboost.tabular", "mrboost.samplers", "mrboost.objectives"),
    *("mrboost.initial", "mrboost.exponential", "mrboost.awp", "mrboost.schedules"),
    "mrboost.adaptive",
]
WITH_METHODS = {"mrboost", "mrboost.game", "mrboost.tabular"}
"""Where users call methods of what they get."""


def public_api() -> str:
    """One line for each public name: functions, classes and some methods with their arguments,
    constants with their type."""
    lines = []
    for name in MODULES:
        module = import_module(name)
        for public in sorted(_public_names(module)):
            value = getattr(module, public)
            lines.append(_described(f"{name}.{public}", value))
            if inspect.isclass(value) and name in WITH_METHODS:
                lines += _methods(value)
    return "\n".join(lines) + "\n"


def _public_names(module: object) -> list[str]:
    """``__all__``, or else what the module itself defines."""
    if hasattr(module, "__all__"):
        return module.__all__
    found = []
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and (inspect.isfunction(value) or inspect.isclass(value)) and name[0] != "_":
            found.append(name)
    return found


def _described(name: str, value: object) -> str:
    if inspect.ismodule(value):
        return f"{name}: module"
    if inspect.isclass(value):
        return f"class {name}{_signature(value)}"
    if callable(value) and not is_dataclass(value):
        return f"{name}{_signature(value)}"
    return f"{name}: {type(value).__name__}"


def _methods(kind: type) -> Iterator[str]:
    """The public methods and properties that this package defines, inherited ones included."""
    names = set()
    for base in kind.__mro__:
        if base.__module__.startswith("mrboost"):
            names |= {name for name in vars(base) if name[0] != "_"}
    for name in sorted(names):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            yield f"    {name}"
        elif inspect.isroutine(value):
            yield f"    {name}{_signature(getattr(kind, name))}"


def _signature(function: object) -> str:
    """The names of the arguments, their kinds and defaults; types are for the type checker."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a built-in type
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(parameters)))
    return re.sub(r"<(?:function|class) '?([\w.]+)'?>", r"\1", text)


def test_public_api() -> None:
    expected = SNAPSHOT.read_text("utf-8").splitlines()
    found = public_api().splitlines()
    gone = [line for line in expected if line not in found]
    new = [line for line in found if line not in expected]
    assert found == expected, f"gone: {gone}; new: {new}; if meant: python tests/test_public_api.py"


if __name__ == "__main__":
    SNAPSHOT.write_text(public_api(), "utf-8")
