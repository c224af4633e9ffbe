"""No test finds, or writes into, the data of the person who runs it."""

import pytest


@pytest.fixture(autouse=True)
def private_places(tmp_path, monkeypatch):
    monkeypatch.delenv("MRBOOST_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
