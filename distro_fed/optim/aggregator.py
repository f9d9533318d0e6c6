"""One process that sums the frames of all peers and sends one answer: peers may come, go and be killed.

It holds no model and no gradients. Peers and aggregator meet in a key-value store of torch.distributed that the
aggregator hosts, so the death of one peer closes no connection but its own::

    events, event/N       "join ID" or "leave ID", N counts from 0
    frame/STEPS/ID        frame of one peer
    sign/ID               frames that this peer has sent so far: its sign of life
    answer/STEPS          sum of the frames of one step
    oldest                oldest answer that is still there
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from distro_fed.errors import SettingsError, UpdateError
from distro_fed.optim.byte_store import ByteStore, Store
from distro_fed.optim.frames import FrameCoder
from distro_fed.optim.vote_codes import VoteSum
from distro_fed.optim.votes import Votes
from distro_fed.update import parse_frame

_logger = logging.getLogger(__name__)
_PAUSE = 0.002


class Aggregator:
    """Closes one step after the other.

    A step is closed when every peer that was heard from within the last ``timeout`` seconds has sent its frame. So a
    dead peer holds up the others once, for ``timeout`` at most; one that is late is waited for again as soon as it
    sends anything. A frame that is unsound, or that was made on other parameters than most, is left out with a warning.

    Parameters
    ----------
    store : torch.distributed.Store
        For example a ``TCPStore`` with ``is_master=True, wait_for_workers=False``. Whoever can connect to it can take
        part: keep it inside a network that you trust.
    coder : FrameCoder
        What the peers' optimizers have as ``coder``; :meth:`FrameCoder.of_parameters` makes one from a model on the
        meta device.
    timeout : float
        Seconds.
    min_peers : int
        No step is closed with fewer sound frames.
    start_peers : int, optional
        The first step is not closed with fewer; by default ``min_peers``.
    steps : int
        Steps that the peers have applied already, when the aggregator of a run is started again.
    history : int
        Answers that are kept for peers that are late.
    """

    def __init__(
        self,
        store: Store,
        coder: FrameCoder,
        *,
        timeout: float = 60.0,
        min_peers: int = 1,
        start_peers: int | None = None,
        steps: int = 0,
        history: int = 64,
    ) -> None:
        if min_peers < 1 or history < 1 or not timeout > 0:
            raise SettingsError(
                f"min_peers = {min_peers}, history = {history}, timeout = {timeout}: the first two must be at least 1, "
                "the last above 0"
            )
        self.steps = steps
        self._store, self._coder = ByteStore(store), coder
        self._timeout, self._min_peers, self._history = timeout, min_peers, history
        self._needed = min_peers if start_peers is None else max(min_peers, start_peers)
        self._members: dict[int, _Member] = {}
        self._events = 0
        self._oldest = steps
        self._store.add("oldest", steps)

    def serve(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Work until ``stop()`` is true, or until every peer that ever joined has left."""
        while not stop():
            if not self.close_step():
                if self._events and not self._members:
                    return
                time.sleep(_PAUSE)

    def close_step(self) -> bool:
        """Answer the frames of the current step if it is time to; whether it was."""
        self._follow_members()
        arrived = [peer for peer in sorted(self._members) if self._store.has(_frame_key(self.steps, peer))]
        now = time.monotonic()
        late = [
            peer
            for peer, member in self._members.items()
            if peer not in arrived and now - member.heard_at < self._timeout
        ]
        if late or len(arrived) < self._needed:
            return False
        frames = {peer: self._store.get(_frame_key(self.steps, peer)) for peer in arrived}
        chain, votes = self._sound(frames)
        for peer in frames.keys() - votes.keys() if len(votes) < self._needed else frames:
            self._store.delete(_frame_key(self.steps, peer))
        if len(votes) < self._needed:
            return False
        total = VoteSum(tuple(sorted(votes)), Votes.total([votes[peer] for peer in sorted(votes)]))
        self._store.put(f"answer/{self.steps}", self._coder.answer(self.steps, chain, total))
        self.steps += 1
        self._needed = self._min_peers
        while self.steps - self._oldest > self._history:
            self._store.add("oldest", 1)
            self._store.delete(f"answer/{self._oldest}")
            self._oldest += 1
        return True

    def _sound(self, frames: dict[int, bytes]) -> tuple[bytes, dict[int, Votes]]:
        """Votes of the frames that can be used, and the history that most of them continue."""
        chains: Counter[bytes] = Counter()
        for frame in frames.values():
            try:
                chains[parse_frame(frame).chain] += 1
            except UpdateError:
                continue  # refused by name below
        chain = chains.most_common(1)[0][0] if chains else bytes(16)
        votes = {}
        for peer, frame in frames.items():
            try:
                votes[peer] = self._coder.open(frame, self.steps, chain)
            except UpdateError as error:
                _logger.warning("step %d without peer %d: %s: %s", self.steps, peer, type(error).__name__, error)
        return chain, votes

    def _follow_members(self) -> None:
        while self._store.has(f"event/{self._events}"):
            what, _, name = self._store.get(f"event/{self._events}").decode().partition(" ")
            self._events += 1
            if what == "join":
                self._members[int(name)] = _Member(0, time.monotonic())
            else:
                self._members.pop(int(name), None)
        for peer, member in self._members.items():
            signs = self._store.add(f"sign/{peer}")
            if signs != member.signs:
                member.signs, member.heard_at = signs, time.monotonic()


@dataclass
class _Member:
    signs: int
    heard_at: float


def _frame_key(steps: int, peer: int) -> str:
    return f"frame/{steps}/{peer}"
