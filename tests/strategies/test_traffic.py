from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.errors import CheckpointError
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.strategies.members import Members
from distro_fed.strategies.traffic import Traffic


def made(names: dict[int, str] | None = None) -> tuple[Traffic, TrafficLedger, Members]:
    ledger, members = TrafficLedger(), Members(names=dict(names or {}))
    return Traffic(ledger, members), ledger, members


def test_bytes_wait_for_the_name() -> None:
    traffic, ledger, members = made()
    traffic.record(7, 1, "down", "update", 10)
    assert ledger.total() == 0
    members.learn_name(7, "bank")
    traffic.named(7)
    traffic.record(8, 1, "down", "update", 5)
    traffic.settle()
    assert ledger.per_client() == {"bank": 10, "node 8": 5}


def test_what_a_killed_process_noted_is_counted_by_the_next(tmp_path: Path) -> None:
    """Also what came from a node without a name; half a line is what it did not get to write."""
    traffic, _, members = made({7: "bank"})
    traffic.record(7, 1, "up", "update", 100)
    kept = traffic.to_json()
    traffic.note_in(tmp_path / "notes")
    traffic.record(7, 2, "down", "update", 10)
    traffic.record(9, 2, "down", "keyframe", 1000)
    members.learn_name(9, "clinic")
    traffic.named(9)
    traffic.record(9, 2, "up", "update", 3)
    with (tmp_path / "notes").open("a") as notes:
        notes.write('[7, "bank", 2, "do')
    after, ledger, members = made({7: "bank"})
    after.restore(kept)
    after.take_notes(tmp_path / "notes")
    after.take_notes(tmp_path / "there is none")
    assert ledger.per_client() == {"bank": 110, "clinic": 3}
    members.learn_name(9, "clinic")
    after.named(9)
    assert ledger.per_client() == {"bank": 110, "clinic": 1003}


def test_notes_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("[1, 2]\n")
    with pytest.raises(CheckpointError, match="notes holds a line that is no message"):
        made()[0].take_notes(tmp_path / "notes")
