"""A member of secure aggregation between Flower's messages: its files, its session, its kept state.

Identity, roster, policy and ledger come from a folder of the member's own, never from the server. Nothing here imports
torch: four of the five stages need no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from distro_fed.clients.data_source import follows_run_paths
from distro_fed.secure_aggregation.client_session import ClientSession
from distro_fed.secure_aggregation.identity import ledger_path, read_identity
from distro_fed.secure_aggregation.ledger import Ledger, Stage
from distro_fed.secure_aggregation.member_files import IDENTITY_FILE, POLICY_FILE, ROSTER_FILE
from distro_fed.secure_aggregation.policy import Policy, read_policy
from distro_fed.secure_aggregation.roster import read_roster
from distro_fed.settings import RunSettings
from distro_fed.transport.secure_records import keep_state, kept_state

#: key of a node's configuration: folder with identity, roster and policy
SECURE_FOLDER = "secure-folder"


@dataclass(frozen=True)
class SecureMember:
    """One organisation in one run.

    Attributes
    ----------
    session : ClientSession
    policy : Policy
    ledger : Ledger
    run : int
        Flower's id of the run.
    """

    session: ClientSession
    policy: Policy
    ledger: Ledger
    run: int

    @classmethod
    def from_folder(cls, folder: Path, run: int) -> SecureMember:
        """Read and check the files.

        Raises
        ------
        DistroFedError
            One of them is missing or damaged.
        """
        identity_file = folder / IDENTITY_FILE
        identity, policy = read_identity(identity_file), read_policy(folder / POLICY_FILE)
        roster, ledger = read_roster(folder / ROSTER_FILE), Ledger(ledger_path(identity_file))
        return cls(ClientSession(identity, roster, policy, ledger, run), policy, ledger, run)

    def answer(self, messages: list[bytes], context: Context) -> list[bytes]:
        """Answer messages of stages 0, 1, 3 and 4, and carry the state on to the next message."""
        replies, state = self.session.respond_all(messages, kept_state(context))
        keep_state(context, state)
        return replies

    def survived(self, round_: int) -> bool:
        """Whether this member has signed a set of survivors of that round, which then contains it."""
        return any(
            entry.run == self.run and entry.round == round_ and entry.stage is Stage.ACKNOWLEDGE
            for entry in self.ledger.entries()
        )


def secure_folder(node_config: Mapping[str, object], settings: RunSettings, name: str) -> Path | None:
    """Folder of a member; None if it takes part in no secure aggregation.

    The node's own configuration decides. A virtual node of a simulation finds its folder under its name in the run's
    ``secure-folder``.
    """
    own = node_config.get(SECURE_FOLDER)
    if own:
        return Path(str(own)).expanduser()
    if settings.security.secure_folder and follows_run_paths(node_config):
        return Path(settings.security.secure_folder).expanduser() / name
    return None
