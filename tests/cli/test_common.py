from pathlib import Path

import pytest

from distro_fed.cli.common import new_run_folder
from distro_fed.errors import SettingsError


def test_runs_are_numbered(tmp_path: Path) -> None:
    folders = [new_run_folder(tmp_path / "runs", None, "demo") for _ in range(3)]
    assert [folder.name for folder in folders] == ["demo", "demo-2", "demo-3"]
    assert all(folder.is_dir() and folder.is_absolute() for folder in folders)


def test_a_named_run_is_never_overwritten(tmp_path: Path) -> None:
    new_run_folder(tmp_path, "mine", "demo")
    with pytest.raises(SettingsError, match="mine exists already"):
        new_run_folder(tmp_path, "mine", "demo")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a b", "-x"])
def test_a_name_is_one_plain_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="run name"):
        new_run_folder(tmp_path, name, "demo")
