"""The documentation is true: examples run, what docs/design.md names exists, rooms lie in order."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import mrboost

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mrboost"
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    return DESIGN.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_blocks_run_one_after_the_other(forgotten: None) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", DESIGN, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5, "a dataset, an attack, a sampler, a loss, a method"
    names: dict[str, object] = {"__name__": "design"}
    for block in blocks:
        exec(compile(block, "docs/design.md", "exec", dont_inherit=True), names)
    result = names["result"]
    assert isinstance(result, mrboost.Evaluation)
    assert [outcome.attack for outcome in result.outcomes] == [
        "clean",
        "noise",
        "pgd-focal-5",
        "pgd-5",
    ]
    assert result["clean"].accuracy > 0.9


def test_the_tree_lists_exactly_the_files() -> None:
    folders: list[tuple[int, str]] = []
    listed = set()
    for line in re.findall(r"^ +\S+(?:  .*)?$", section("Files"), re.MULTILINE):
        indent = len(line) - len(line.lstrip())
        name = line.split()[0]
        if indent > 4:
            continue  # the words go on
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        if name.endswith("/"):
            folders.append((indent, name))
        else:
            listed.add("".join(folder for _, folder in folders) + name)
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    openings = {name for name in files if name.endswith("/__init__.py")}
    assert listed == files - openings, "renew it: python docs/house.py --write"


def test_a_room_imports_only_those_above_it(house: ModuleType) -> None:
    rooms = re.findall(r"^\| (\w+) \| .* \|$", section("Rooms"), re.MULTILINE)
    assert rooms == ["room", *house.ROOMS, "all"]
    for room, imported in house.imported_rooms().items():
        below = house.ROOMS[: house.ROOMS.index(room)]
        assert imported <= set(below), room


def test_the_ways_name_files_and_functions_that_exist() -> None:
    for path, name in re.findall(r"`(\w+/\w+\.py)`(?: `(\w+)`)?", DESIGN):
        assert (PACKAGE / path).exists(), path
        if name:
            tree = ast.parse((PACKAGE / path).read_text("utf-8"))
            defined = {getattr(node, "name", None) for node in tree.body}
            assert name in defined, f"{path} defines no {name}"


MODULES = sorted(
    file.relative_to(PACKAGE.parent).with_suffix("") for file in PACKAGE.rglob("[!_]*.py")
)


def test_examples_in_docstrings() -> None:
    for path in MODULES:
        module = importlib.import_module(".".join(path.parts))
        assert doctest.testmod(module).failed == 0, module.__name__
