"""The examples that the documentation names: all can be imported, and the quick ones run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_can_be_imported(path: Path) -> None:
    assert callable(load(path).main)


def test_the_documentation_names_no_other() -> None:
    named = {
        name
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"examples/(\w+\.py)", page.read_text())
    }
    assert named <= {path.name for path in EXAMPLES}


def test_averaged_statistics(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(ROOT / "examples" / "averaged_statistics.py")
    monkeypatch.setattr(module, "EPOCHS", 3)
    module.main()
    copied, averaged = (
        [float(v) for v in line.split(":")[1].split(",")] for line in capsys.readouterr().out.splitlines()
    )
    assert averaged[1] > copied[1]


def test_the_design_names_every_file() -> None:
    table = (ROOT / "docs" / "design.md").read_text()
    package = ROOT / "src" / "mrboost"
    files = {path for path in package.rglob("*.py") if not path.name.startswith("__")}
    whole = {package / "attacks", package / "data", package / "models"}  # said as folders
    missing = sorted(str(path) for path in files if path.parent not in whole and f"`{path.name}`" not in table)
    assert not missing
