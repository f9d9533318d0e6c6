"""Bytes to and from nodes, under the names of their members, and noted so that they survive the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from distro_fed.errors import CheckpointError
from distro_fed.reporting.ledger import Direction, TrafficLedger
from distro_fed.reporting.ledger import Kind as TrafficKind
from distro_fed.strategies.members import Members


class Traffic:
    """Records messages of nodes in the ledger, which knows members by name.

    What a node sent before it told its name waits until it does.

    Parameters
    ----------
    ledger : TrafficLedger
    members : Members
    """

    def __init__(self, ledger: TrafficLedger, members: Members) -> None:
        self._ledger, self._members = ledger, members
        self._unnamed: dict[int, list[tuple[int, Direction, TrafficKind, int]]] = {}
        self._notes: IO[str] | None = None

    def record(self, node_id: int, round_: int, direction: Direction, kind: TrafficKind, size: int) -> None:
        """A message of ``size`` bytes; also if it is lost or refused."""
        name = self._members.names.get(node_id)
        if self._notes is not None:
            self._notes.write(json.dumps([node_id, name, round_, direction, kind, size]) + "\n")
        if name is None:
            self._unnamed.setdefault(node_id, []).append((round_, direction, kind, size))
        else:
            self._ledger.record(round=round_, client=name, direction=direction, kind=kind, size=size)

    def named(self, node_id: int) -> None:
        """A node has told its name."""
        for round_, direction, kind, size in self._unnamed.pop(node_id, []):
            self._ledger.record(
                round=round_, client=self._members.name(node_id), direction=direction, kind=kind, size=size
            )

    def settle(self) -> None:
        """Record the bytes of nodes that never told a name under a stand-in."""
        for node_id in list(self._unnamed):
            self.named(node_id)

    def note_in(self, path: Path) -> None:
        """Note each message in a file from now on, for a process that goes on after this one was killed."""
        self.close()
        self._notes = path.open("a", buffering=1, encoding="utf-8")

    def close(self) -> None:
        """Note no more."""
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def take_notes(self, path: Path) -> None:
        """Record the messages that another process noted in a file, as far as it came.

        Raises
        ------
        CheckpointError
            If a complete line is not such a note.
        """
        try:
            complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
        except FileNotFoundError:
            return
        for line in complete.splitlines():
            try:
                node_id, name, *message = json.loads(line)
                round_, direction, kind, size = message
            except (ValueError, TypeError) as error:
                raise CheckpointError(f"{path} holds a line that is no message: {line[:80]!r}") from error
            if name is None:
                self.record(node_id, round_, direction, kind, size)
            else:
                self._ledger.record(round=round_, client=name, direction=direction, kind=kind, size=size)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "ledger": [[*entry, size] for entry, size in self._ledger],
            "unnamed": [[node_id, *message] for node_id, kept in self._unnamed.items() for message in kept],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what :meth:`to_json` gave."""
        for round_, client, direction, kind, size in data["ledger"]:
            self._ledger.record(round=round_, client=client, direction=direction, kind=kind, size=size)
        for node_id, *message in data["unnamed"]:
            self._unnamed.setdefault(node_id, []).append(tuple(message))
