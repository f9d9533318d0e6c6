from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("DISTRO_FED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every attempt to reach another machine; libraries are told that they are online."""
    attempts: list[object] = []

    def attempt(*args: object, **kwargs: object) -> None:
        attempts.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.getaddrinfo", attempt)
    monkeypatch.setattr("socket.socket.connect", attempt)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return attempts
