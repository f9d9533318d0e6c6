"""What the server remembers of its members between rounds: names, and versions they hold.

No optimizer state and nothing that a round's result depends on, but for the names that order a sum. If it
is lost, a member that is thought to hold nothing gets more than it lacks, and one that holds less than
thought says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: the member needs a full state: its initial values are not those of the run
NEEDS_KEYFRAME = -1


@dataclass
class Members:
    """Names and versions by node id; by name, how much data of what columns a member trains on."""

    names: dict[int, str] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    data_shapes: dict[str, dict[str, float]] = field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: nodes known from a checkpoint alone so far
    unheard: set[int] = field(default_factory=set)

    def name(self, node_id: int) -> str:
        """Name for logs and reports; a stand-in before the member has told it."""
        return self.names.get(node_id, f"node {node_id}")

    def learn_name(self, node_id: int, name: str) -> str:
        """Remember what a member calls itself, made unique; a later change is not followed.

        After a resume a node may take over the name of one that has not been heard of since: where Flower gives every
        run new node ids, that is the same member.
        """
        self.unheard.discard(node_id)
        if node_id not in self.names:
            taken = {self.names[other] for other in self.names.keys() - self.unheard}
            unique, count = name or f"node {node_id}", 2
            while unique in taken:
                unique, count = f"{name} ({count})", count + 1
            for other in [other for other in self.unheard if self.names[other] == unique]:
                self.unheard.discard(other)
                del self.names[other]
                self.versions.pop(other, None)
            self.names[node_id] = unique
        return self.names[node_id]

    def ordered(self, nodes: Iterable[int]) -> list[int]:
        """Nodes by name, as far as it is known: Flower's node ids are random in every run."""
        return sorted(nodes, key=lambda node_id: (self.names.get(node_id, ""), node_id))

    def version(self, node_id: int) -> int:
        """Version that a member is thought to hold; every member can make version 0 itself."""
        return self.versions.get(node_id, 0)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "names": list(self.names.items()),
            "versions": list(self.versions.items()),
            "data-shapes": self.data_shapes,
            "columns": self.columns,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what :meth:`to_json` gave."""
        self.names = dict(data["names"])
        self.versions = dict(data["versions"])
        self.data_shapes = data["data-shapes"]
        self.columns = {name: tuple(columns) for name, columns in data["columns"].items()}
        self.unheard = set(self.names)
