"""What the server remembers of its members between rounds: names, and versions they hold.

No optimizer state and nothing that a round's result depends on, but for the names that order a sum. If it
is lost, a member that is thought to hold nothing gets more than it lacks, and one that holds less than
thought says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: the member needs a full state: its initial values are not those of the run
NEEDS_KEYFRAME = -1


@dataclass
class Members:
    """Names and versions by node id; by name, how much data of what columns a member trains on."""

    names: dict[int, str] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    data_shapes: dict[str, dict[str, float]] = field(default_factory=dict)
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def name(self, node_id: int) -> str:
        """Name for logs and reports; a stand-in before the member has told it."""
        return self.names.get(node_id, f"node {node_id}")

    def learn_name(self, node_id: int, name: str) -> str:
        """Remember what a member calls itself, made unique; a later change is not followed."""
        if node_id not in self.names:
            taken = set(self.names.values())
            unique, count = name or f"node {node_id}", 2
            while unique in taken:
                unique, count = f"{name} ({count})", count + 1
            self.names[node_id] = unique
        return self.names[node_id]

    def version(self, node_id: int) -> int:
        """Version that a member is thought to hold; every member can make version 0 itself."""
        return self.versions.get(node_id, 0)
