"""Commands as a user types them, for the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrboost.cli import main


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mrboost: error: ")
    assert err.count("\n") == 1
    return err


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    capsys.readouterr()
    assert main([*(str(a) for a in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
