"""Members of a secure federation in this process, with files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distro_fed.compression.base import Compressor
from distro_fed.secure_aggregation.identity import Identity, create_identity
from distro_fed.secure_aggregation.member_files import IDENTITY_FILE, POLICY_FILE, ROSTER_FILE
from distro_fed.secure_aggregation.policy import Policy, create_policy
from distro_fed.secure_aggregation.roster import Member, Roster, create_roster
from distro_fed.strategies.secure_distro import SecureDistroStrategy
from tests import federation


class Members:
    """Files of some members, and the server's copies; ``client-2`` weighs 3 where weights count."""

    def __init__(self, folder: Path, policy: Policy | None = None, count: int = 4) -> None:
        self.policy = policy or Policy(min_cohort=3, min_survivors=2)
        names = [f"client-{index}" for index in range(count)]
        self.folders = [folder / name for name in names]
        identities: list[Identity] = [
            create_identity(own / IDENTITY_FILE, name) for own, name in zip(self.folders, names, strict=True)
        ]
        self.roster = Roster(
            "test", tuple(Member(one.name, one.public, index + 1) for index, one in enumerate(identities))
        )
        for own in self.folders:
            create_roster(own / ROSTER_FILE, "test", self.roster.members)
            create_policy(own / POLICY_FILE, self.policy)

    def run(self, compressor: Compressor, **options: Any) -> tuple[SecureDistroStrategy, Any]:
        strategy = {"roster": self.roster, "policy": self.policy, **options.pop("strategy", {})}
        nodes = [{"secure-folder": str(own)} for own in self.folders]
        options = {"kind": SecureDistroStrategy, "nodes": len(nodes), "node_configs": nodes, **options}
        server, grid = federation.run(compressor=compressor, strategy=strategy, **options)
        assert isinstance(server, SecureDistroStrategy)
        return server, grid
