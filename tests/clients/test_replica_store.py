from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distro_fed.clients import replica_store as module
from distro_fed.clients.replica_store import ReplicaStore
from distro_fed.errors import WrongBase
from distro_fed.replica import Replica
from distro_fed.transport.records import Request
from distro_fed.update import Update, parse_frame
from tests.test_replica import agreement, next_update, replica


class Server:
    """A replica that advances, with all its updates."""

    def __init__(self) -> None:
        self.replica = replica(agreement())
        self.updates: list[Update] = []

    def advance(self, count: int = 1) -> None:
        for _ in range(count):
            update = next_update(self.replica, len(self.updates) + 1)
            self.replica.apply(update)
            self.updates.append(update)

    def request(self, since: int, keyframe: bool = False) -> Request:
        frames = (self.replica.keyframe(1),) if keyframe else tuple(self.updates[since:])
        return Request(1, 1, self.replica.version, self.replica.chain, agreement().run, frames=frames)


@pytest.fixture
def server() -> Server:
    made = Server()
    made.advance(3)
    return made


def store(folder: Path | None, seed: int = 0) -> ReplicaStore:
    return ReplicaStore(replica(agreement(), seed), folder)


def same(left: Replica, right: Replica) -> bool:
    return torch.equal(left.values, right.values) and left.chain == right.chain and left.version == right.version


def test_without_a_folder_nothing_is_said_to_be_kept(server: Server) -> None:
    member = store(None)
    assert same(member.bring_to(server.request(0)), server.replica)
    assert member.retained_version == 0
    server.advance()
    assert same(member.bring_to(server.request(0)), server.replica)


def test_a_new_process_goes_on_from_the_files(server: Server, tmp_path: Path) -> None:
    member = store(tmp_path)
    member.bring_to(server.request(0))
    assert member.retained_version == 3
    server.advance()
    assert same(store(tmp_path).bring_to(server.request(3)), server.replica)


def test_processes_of_a_machine_share_what_came(server: Server, tmp_path: Path) -> None:
    """A virtual client whose process is behind finds the updates that another process was sent."""
    first, second = store(tmp_path), store(tmp_path)
    first.bring_to(server.request(0))
    assert same(second.bring_to(server.request(3)), server.replica)


def test_what_is_missing_is_asked_for(server: Server, tmp_path: Path) -> None:
    member = store(tmp_path)
    with pytest.raises(WrongBase):
        member.bring_to(server.request(1))
    assert member.start_for(server.request(1)) == 0
    assert same(member.bring_to(server.request(0)), server.replica)


def test_other_initial_values_ask_for_a_full_state(server: Server, tmp_path: Path) -> None:
    member = store(tmp_path, seed=5)
    with pytest.raises(WrongBase):
        member.bring_to(server.request(0))
    assert member.start_for(server.request(0)) == -1
    assert same(member.bring_to(server.request(0, keyframe=True)), server.replica)
    server.advance()
    assert same(store(tmp_path, seed=5).bring_to(server.request(3)), server.replica)


@pytest.mark.parametrize("kept", ["in files", "in memory"])
def test_a_message_for_an_older_version_changes_nothing(server: Server, tmp_path: Path, kept: str) -> None:
    """It is late, as a rule."""
    member = store(tmp_path if kept == "in files" else None)
    late = server.request(0)
    server.advance()
    member.bring_to(server.request(0))
    with pytest.raises(WrongBase):
        member.bring_to(late)
    assert member.start_for(late) == -1
    assert not member.differs_from(late)
    server.advance()
    assert same(member.bring_to(server.request(4)), server.replica)


def test_a_member_follows_a_server_that_has_gone_back(server: Server, tmp_path: Path) -> None:
    """The run goes on from an older checkpoint, and takes another way from there."""
    member, back = store(tmp_path), Server()
    member.bring_to(server.request(0))
    back.advance(2)
    keyframe = back.request(0, keyframe=True)
    assert same(member.bring_to(keyframe), back.replica)
    back.updates.append(next_update(back.replica, 33))
    back.replica.apply(back.updates[-1])
    assert same(member.bring_to(back.request(2)), back.replica)
    assert same(store(tmp_path).bring_to(back.request(3)), back.replica)


# --- replicas whose values are not what their version says ------------------------------------------


@pytest.mark.parametrize("kept", ["in files", "in memory"])
def test_values_that_change_in_memory_are_found_and_repaired(server: Server, tmp_path: Path, kept: str) -> None:
    member = store(tmp_path if kept == "in files" else None)
    member.bring_to(server.request(0)).values[:2] *= -1
    server.advance()
    request = server.request(3)
    with pytest.raises(WrongBase, match="damaged"):
        member.bring_to(request)
    assert member.start_for(request) == -1
    assert member.differs_from(request)
    assert same(member.bring_to(server.request(0, keyframe=True)), server.replica)
    server.advance()
    assert same(member.bring_to(server.request(4)), server.replica)


def test_a_sound_snapshot_with_other_values_is_found_and_repaired(server: Server, tmp_path: Path) -> None:
    store(tmp_path).bring_to(server.request(0, keyframe=True))
    (path,) = tmp_path.glob("snapshot-*")
    other = Replica.from_keyframe(agreement(), parse_frame(path.read_bytes()))
    other.values[3] += 1e-3
    path.write_bytes(other.keyframe(0).to_bytes())
    member, request = store(tmp_path), server.request(3)
    with pytest.raises(WrongBase, match="damaged"):
        member.bring_to(request)
    assert member.differs_from(request)
    assert same(member.bring_to(server.request(0, keyframe=True)), server.replica)
    assert same(store(tmp_path).bring_to(server.request(3)), server.replica)


def test_another_chain_at_the_same_version_is_a_difference(server: Server) -> None:
    member, other = store(None), Server()
    other.updates.append(next_update(other.replica, 7))
    other.replica.apply(other.updates[0])
    member.bring_to(other.request(0))
    assert member.differs_from(server.request(1))
    assert not member.differs_from(server.request(2))  # nothing is said about version 1


def test_damaged_files_are_done_without(server: Server, tmp_path: Path) -> None:
    store(tmp_path).bring_to(server.request(0))
    (tmp_path / "updates" / "00000001.frame").write_bytes(b"DFED rubbish")
    member = store(tmp_path)
    assert member.retained_version == 1
    assert same(member.bring_to(server.request(1)), server.replica)
    assert store(tmp_path).retained_version == 3  # and has been replaced by what the server sent again


def test_the_folder_is_bounded(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 4)
    member = store(tmp_path)
    member.bring_to(server.request(0))
    for _ in range(30):
        server.advance()
        member.bring_to(server.request(len(server.updates) - 1))
    assert len(list(tmp_path.glob("snapshot-*"))) == 2
    assert len(list((tmp_path / "updates").iterdir())) <= 9
    assert same(store(tmp_path).bring_to(server.request(33)), server.replica)


@pytest.mark.parametrize("obstacle", ["file instead of the folder", "folder instead of an update", "odd snapshot"])
def test_a_state_folder_that_cannot_be_used_is_done_without(server: Server, tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "state"
    if obstacle == "file instead of the folder":
        folder.write_text("")
    elif obstacle == "folder instead of an update":
        (folder / "updates" / "00000000.frame").mkdir(parents=True)
    else:
        folder.mkdir()
        (folder / "snapshot-copy.frame").write_text("")
    member = store(folder)
    assert same(member.bring_to(server.request(0)), server.replica)
    assert member.retained_version == (3 if obstacle == "odd snapshot" else 0)
