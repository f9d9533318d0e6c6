"""What each node lacks, as records that nodes with the same gap share."""

from __future__ import annotations

from flwr.app import ArrayRecord

from distro_fed.replica import Replica, UpdateLog
from distro_fed.strategies.members import NEEDS_KEYFRAME
from distro_fed.transport.records import frames_record
from distro_fed.update import Update


class Downlink:
    """Chooses between the updates since a version and a keyframe, whichever is smaller.

    Parameters
    ----------
    replica : Replica
        The server's replica; read when a keyframe is needed.

    Attributes
    ----------
    log : UpdateLog
        Updates so far. Never bigger than a keyframe, which is cheaper beyond that.
    keyframes_sent : int
        How many nodes were sent a full state.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._keyframe_bytes = replica.agreement.keyframe_bytes(max(1, replica.version))
        self.log = UpdateLog(replica.version)
        self.keyframes_sent = 0
        self._records: dict[int, tuple[ArrayRecord, bool]] = {}

    def lacking(self, version: int, round_: int) -> tuple[ArrayRecord, bool]:
        """Frames that lead from ``version`` to the server's replica.

        Returns
        -------
        tuple of ArrayRecord and bool
            Records for the message, and whether they hold a keyframe.
        """
        if version not in self._records:
            # None for NEEDS_KEYFRAME, and for a version that a member made up: one keyframe serves them all
            frames = self.log.frames_since(version)
            if frames is None or sum(map(len, frames)) > self._keyframe_bytes:
                if NEEDS_KEYFRAME not in self._records:
                    keyframe = self._replica.keyframe(round_)
                    self._records[NEEDS_KEYFRAME] = (frames_record([keyframe.to_bytes()]), True)
                self._records[version] = self._records[NEEDS_KEYFRAME]
            else:
                self._records[version] = (frames_record(frames), False)
        records, is_keyframe = self._records[version]
        self.keyframes_sent += is_keyframe
        return records, is_keyframe

    def release(self) -> None:
        """Drop the shared records; call when the messages of a round are out."""
        self._records.clear()

    def advanced(self, update: Update) -> None:
        """``update`` has led the replica to a new version."""
        self.log.append(update)
        self.release()
        self.log.prune(self._keyframe_bytes)
