"""How the package and its command start: names are loaded when asked for, Ctrl-C is
answered from the first."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mrboost

SCRIPT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
    "scripts"
]["mrboost"]
MODULE, FUNCTION = SCRIPT.split(":")
WAYS = {
    "python -m mrboost": ["-m", "mrboost"],
    "mrboost": ["-c", f"import sys; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"],
}
INTERRUPTED = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test that a shell runs in the background ignores it
signal.raise_signal(signal.SIGINT)
"""  # noqa: E501


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ctrl_c_while_torch_is_loaded(way: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(INTERRUPTED)
    places = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, *way, "train", "at"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\nmrboost: interrupted\n")


def test_the_package_has_what_it_names() -> None:
    for name in mrboost.__all__:
        assert getattr(mrboost, name).__name__.rpartition(".")[2] == name
    assert set(mrboost.__all__) <= set(dir(mrboost))
    with pytest.raises(AttributeError, match="'mrboost' has no attribute 'boots'"):
        mrboost.boots  # noqa: B018


@pytest.mark.parametrize("name", sorted(mrboost._MOVED))
def test_documented_modules_keep_their_names(name: str) -> None:
    """Either name can be imported first; both are one module, whose own imports go on to work."""
    moved = mrboost._MOVED[name].removeprefix(".")
    for first, second in ((name, moved), (moved, name)):
        script = f"""if True:
            import sys, mrboost
            assert "torch" not in sys.modules
            import mrboost.{first} as first, mrboost.{second} as second
            assert first is second is sys.modules["mrboost.{moved}"]
            assert first.__name__ == first.__spec__.name == "mrboost.{moved}"
            """
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)
