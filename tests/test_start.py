"""How the package and its command start: help without torch, names loaded when asked for,
Ctrl-C answered while torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mrboost
from mrboost.attacks.registry import EXAMPLES
from mrboost.cli import arguments
from mrboost.evaluation import DEFAULT_ATTACKS
from mrboost.options import BY_NAME

COMMANDS = ["train", "evaluate", "join", "reweight", "report", "study", "recipes", "data"]
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

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
signal.raise_signal(signal.SIGINT)
"""
HELP_LOADS = """
import sys
from mrboost.cli.main import main

for arguments in (["--help"], ["--version"], *([name, "--help"] for name in sys.argv[1:])):
    try:
        main(arguments)
    except SystemExit as ended:
        assert ended.code == 0
assert main(["train", "at", "--epohcs", "3"]) == 2
slow = {"torch", "numpy", "sklearn", "matplotlib", "scipy"} & sys.modules.keys()
assert not slow, slow
"""


def test_help_and_mistyped_options_load_no_torch() -> None:
    command = [sys.executable, "-c", HELP_LOADS, *COMMANDS]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for name in COMMANDS:
        assert f"usage: mrboost {name} " in ended.stdout
    assert mrboost.__version__ in ended.stdout


def test_help_names_what_there_is() -> None:
    assert ", ".join(mrboost.data.names()) == arguments.DATASETS
    assert ", ".join(EXAMPLES) == arguments.ATTACKS
    assert ",".join(DEFAULT_ATTACKS) == arguments.DEFAULT_ATTACKS


def test_help_has_every_training_option_in_one_group() -> None:
    names = [name for group in arguments.TRAINING_GROUPS.values() for name in group.split()]
    assert sorted(names) == sorted(BY_NAME)


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


ALIASES = """
import sys, mrboost

assert "torch" not in sys.modules
for alias, home in mrboost._ALIASES.items():
    first, second = (alias, home)[:: int(sys.argv[1])]
    __import__(f"mrboost.{first}")
    __import__(f"mrboost.{second}")
    module = sys.modules[f"mrboost.{home}"]
    assert sys.modules[f"mrboost.{alias}"] is module, alias
    assert module.__name__ == module.__spec__.name == f"mrboost.{home}", alias
"""


@pytest.mark.parametrize("order", ["1", "-1"])
def test_documented_modules_keep_their_names(order: str) -> None:
    """Either name can be imported first; both are one module."""
    subprocess.run([sys.executable, "-W", "error", "-c", ALIASES, order], check=True, timeout=120)
