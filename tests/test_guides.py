"""The guides are true: what they type runs, with fewer epochs and images."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import done, write_pictures
from mrboost.attacks import APGD, autoattack
from mrboost.cli.arguments import parse

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = [DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md"))]
SMALLER = {
    "train": "--epochs 1 --steps 2 --device cpu --quiet",
    "evaluate": "--n 4 --no-check --device cpu --quiet",
    "report": "--n 4 --device cpu --quiet",
}
ELSEWHERE = ("torchrun", "CUDA_VISIBLE_DEVICES", "pip", "wait")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each block of code."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def lines(block: str) -> list[str]:
    """The commands of a block, each in one line."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def arguments(line: str) -> list[str]:
    return shlex.split(line.partition("mrboost ")[2].rstrip("&"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_command_is_one(page: Path) -> None:
    """Also those that need downloads, or several processes."""
    typed = [line for language, block in blocks(page) if not language for line in lines(block)]
    for line in typed:
        if "mrboost " in line:
            parse(arguments(line))
        else:
            assert line.startswith(ELSEWHERE), line


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_what_it_types_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    monkeypatch.setitem(autoattack.VERSIONS, "standard", lambda eps, norm: (APGD(eps, steps=2),))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    write_pictures(tmp_path / "pets", ["cat", "dog", "owl"])
    names: dict[str, object] = {"__name__": "guide"}
    for language, block in blocks(page):
        if file := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / file[1]).write_text(block)
        elif language == "python":
            code = re.sub(r"epochs=\d+", "epochs=1", block)
            exec(compile(code, str(page), "exec", dont_inherit=True), names)
        elif not language:
            run(line for line in lines(block) if not line.startswith(ELSEWHERE))


def run(typed: Iterator[str]) -> None:
    for line in typed:
        if "runs/s0" in line:
            continue  # joins what several GPUs have trained
        command, *rest = arguments(line)
        small = "--model cnn-digits" if "folder:" in line and command == "train" else ""
        done(command, *rest, *SMALLER.get(command, "").split(), *small.split())
