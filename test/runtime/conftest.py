"""Puts this folder's helper modules on the path, and gives each test an empty cache folder."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def fresh_runtime(tmp_path, monkeypatch):
    from fa4c.runtime import cache, counters

    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FA4C_BACKEND", raising=False)
    monkeypatch.delenv("FA4C_TARGET", raising=False)
    cache.forget()
    counters.reset()
    yield
    cache.forget()
