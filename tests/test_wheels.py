from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from distro_fed.errors import DataNotFound, UnusableData
from distro_fed.wheels import PackagedFile, PackagedWheel, is_intact, packaged_wheels, read_member, wheels_dir


def _wheel(content: bytes) -> PackagedFile:
    path = wheels_dir() / "pretend_wheel-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pretend_wheel/data/file.bin", content)
    wheel = PackagedWheel("pretend-wheel==1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    return PackagedFile(wheel, "pretend_wheel/data/file.bin", hashlib.sha256(b"content").hexdigest())


def test_a_member_is_read_out_of_a_wheel_that_is_not_installed() -> None:
    file = _wheel(b"content")
    assert is_intact(file.wheel)
    assert read_member(file, missing=DataNotFound, mismatch=UnusableData) == b"content"


def test_a_member_is_read_from_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _wheel(b"other content in the wheel")
    installed = tmp_path / "site" / "pretend_wheel"
    (installed / "data").mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('must not be imported')")
    (installed / "data" / "file.bin").write_bytes(b"content")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert read_member(file, missing=DataNotFound, mismatch=UnusableData) == b"content"
    assert "pretend_wheel" not in sys.modules


def test_another_content_is_refused() -> None:
    file = _wheel(b"tampered")
    with pytest.raises(UnusableData, match=r"SHA-256 .* expected .* `distro-fed fetch` again"):
        read_member(file, missing=DataNotFound, mismatch=UnusableData)


def test_a_missing_or_broken_wheel_says_how_to_get_it() -> None:
    file = _wheel(b"content")
    path = wheels_dir() / file.wheel.filename
    path.write_bytes(path.read_bytes()[:50])
    assert not is_intact(file.wheel)
    with pytest.raises(DataNotFound, match=r"pretend-wheel==1\.0 is neither installed nor in .* `distro-fed fetch`"):
        read_member(file, missing=DataNotFound, mismatch=UnusableData)
    path.unlink()
    assert not is_intact(file.wheel)
    with pytest.raises(DataNotFound):
        read_member(file, missing=DataNotFound, mismatch=UnusableData)


def test_wheels_are_pinned_by_version_and_digest() -> None:
    for wheel in packaged_wheels():
        name, version = wheel.requirement.split("==")
        assert wheel.filename.startswith(f"{name.replace('-', '_')}-{version}-")
        assert len(bytes.fromhex(wheel.sha256)) == 32
