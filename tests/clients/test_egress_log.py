"""The log of what left: order, durability, several writers, what a crash leaves."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from distro_fed.clients.egress_log import CUT_OFF, GENESIS, EgressLog, audit
from distro_fed.errors import EgressLogError


def write(path: Path, count: int, run: str = "1") -> None:
    for number in range(count):
        with EgressLog(path).locked() as log:
            log.append(run=run, round=number, kind="update", bytes=10, sha256="ab", message="train")


def test_lines_come_back_in_order_and_chained(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "egress.jsonl"
    write(path, 3)
    found = audit(path)
    assert (found.broken, found.cut_off) == ("", 0)
    assert [(entry.run, entry.round, entry.kind, entry.bytes) for entry in found.entries] == [
        ("1", number, "update", 10) for number in range(3)
    ]
    assert found.entries[0].details == {"message": "train"}
    assert found.head == found.entries[-1].hash
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_log_is_whole(tmp_path: Path) -> None:
    (tmp_path / "egress.jsonl").touch()
    assert audit(tmp_path / "egress.jsonl").head == GENESIS
    write(tmp_path / "egress.jsonl", 1)
    assert not audit(tmp_path / "egress.jsonl").broken


def test_a_line_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "egress.jsonl", list[int]()
    original = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.stat().st_size), original(descriptor))[1])
    write(path, 1)
    assert synced[-1] == path.stat().st_size > 0


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    path, context = tmp_path / "egress.jsonl", multiprocessing.get_context("spawn")
    writers = [context.Process(target=write, args=(path, 20, str(run))) for run in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = audit(path)
    assert not found.broken
    assert sorted((entry.run, entry.round) for entry in found.entries) == [
        (str(run), number) for run in range(3) for number in range(20)
    ]


@pytest.mark.parametrize("left", [1, 60, -1])
def test_a_line_that_a_crash_cut_is_told_and_stays_told(left: int, tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    write(path, 2)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    cut = whole[start:][:left]
    path.write_bytes(whole[:start] + cut)
    found = audit(path)
    assert (found.broken, found.cut_off, len(found.entries)) == ("", len(cut), 1)
    write(path, 1)
    found = audit(path)
    assert (found.broken, found.cut_off) == ("", 0)
    assert [entry.kind for entry in found.entries] == ["update", CUT_OFF, "update"]
    assert found.entries[1].details["cut_bytes"] == len(cut)


def test_a_first_line_that_a_crash_cut(tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    path.write_bytes(b'{"time":')
    assert audit(path).cut_off == 8
    write(path, 1)
    assert [entry.kind for entry in audit(path).entries] == [CUT_OFF, "update"]


def test_a_long_line_is_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    for _ in range(3):
        with EgressLog(path).locked() as log:
            log.append(run="1", round=1, kind="update", bytes=1, sha256="", words={"name": "x" * 200_000})
    assert len(audit(path).entries) == 3


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "egress.jsonl"
    write(path, 1)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(EgressLogError, match=r"No space left.*nothing may leave"):
            write(path, 1)
    assert path.read_bytes() == before
    write(path, 1)
    assert len(audit(path).entries) == 2


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EgressLogError, match="egress-log"):
        write(tmp_path / "file" / "egress.jsonl", 1)
