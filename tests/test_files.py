from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from distro_fed.files import atomic_folder, cache_dir, write_atomically


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, "first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_atomically(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_a_written_file_has_the_rights_of_an_ordinary_one(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("x")
    write_atomically(tmp_path / "atomic", "x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_folder_appears_complete(tmp_path: Path) -> None:
    target = tmp_path / "a" / "folder"
    with atomic_folder(target) as beside:
        (beside / "inner").mkdir()
        (beside / "inner" / "file").write_text("x")
        assert not target.exists()
    assert (target / "inner" / "file").read_text() == "x"
    assert [entry.name for entry in target.parent.iterdir()] == ["folder"]


def test_files_of_a_folder_have_the_rights_of_ordinary_ones(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("x")
    with atomic_folder(tmp_path / "folder") as beside:
        (beside / "private").write_text("x")
        (beside / "private").chmod(0o600)
    assert (tmp_path / "folder" / "private").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_folder_does_not_appear_when_the_block_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "folder") as beside:
        (beside / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_old_folder_is_kept_unless_it_shall_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("x")
    with pytest.raises(FileExistsError, match="choose another"), atomic_folder(target):
        pass
    with pytest.raises(RuntimeError), atomic_folder(target, replace=True):
        raise RuntimeError
    assert (target / "old").exists()
    with atomic_folder(target, replace=True) as beside:
        (beside / "new").write_text("x")
    assert [entry.name for entry in target.iterdir()] == ["new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_the_first_of_two_folders_stays(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with atomic_folder(target) as slow:
        (slow / "by").write_text("slow")
        with atomic_folder(target) as quick:
            (quick / "by").write_text("quick")
    assert (target / "by").read_text() == "quick"
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def _fill(target: Path) -> None:
    with atomic_folder(target) as beside:
        for name in range(20):
            (beside / str(name)).write_text("x" * 1000)


def test_processes_that_fill_the_same_folder_do_not_clash(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_try_to_fill, args=(target,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(list(target.iterdir())) == 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def _try_to_fill(target: Path) -> None:
    try:
        _fill(target)
    except FileExistsError:
        assert len(list(target.iterdir())) == 20


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRO_FED_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("DISTRO_FED_CACHE")
    assert cache_dir().name == "distro-fed"
