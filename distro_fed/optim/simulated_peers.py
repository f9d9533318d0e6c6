"""Many peers in one process with one copy of the model: every peer has a momentum buffer of its own.

The parameters of real peers are bit-equal after every step, so one copy stands for all. Frames are made, checked and
applied exactly as between processes, and their bytes are counted.
"""

from __future__ import annotations

from typing import Literal

from distro_fed.errors import FederationError, SettingsError
from distro_fed.optim.all_gather import all_gather_bytes
from distro_fed.optim.distro_adamw import DistroAdamW
from distro_fed.optim.exchange import Answer
from distro_fed.optim.momentum import LocalMomentum

Topology = Literal["all-gather", "aggregator"]
TOPOLOGIES: tuple[Topology, ...] = ("all-gather", "aggregator")


class SimulatedPeers:
    """Peers that share one model and one optimizer.

    ::

        peers = SimulatedPeers(DistroAdamW(model.parameters(), lr=1e-3), count=4)
        for batches in data:
            for peer, batch in enumerate(batches):
                model.zero_grad()
                loss(model, batch).backward()
                peers.collect(peer)
            peers.step()

    Parameters
    ----------
    optimizer : DistroAdamW
        Its own momentum buffer is not used.
    count : int
        Peers 0 to ``count - 1``; more can :meth:`join`.
    topology : str
        ``"all-gather"``: every peer receives the frames of all others; ``"aggregator"``: one frame with their sum.

    Attributes
    ----------
    bytes_sent, bytes_received : dict of int to int
        Bytes of all steps so far, by peer.
    """

    def __init__(self, optimizer: DistroAdamW, count: int, topology: Topology = "all-gather") -> None:
        if count < 1:
            raise SettingsError(f"count = {count}; there must be at least 1 peer")
        if topology not in TOPOLOGIES:
            raise SettingsError(f"topology = {topology!r}; choose one of {', '.join(TOPOLOGIES)}")
        self.optimizer = optimizer
        self.topology = topology
        self.bytes_sent: dict[int, int] = {}
        self.bytes_received: dict[int, int] = {}
        self._momenta: dict[int, LocalMomentum] = {}
        self._frames: dict[int, bytes] = {}
        for peer in range(count):
            self.join(peer)

    @property
    def peers(self) -> tuple[int, ...]:
        """Ids of the peers that are here."""
        return tuple(sorted(self._momenta))

    def join(self, peer: int) -> None:
        """Add a peer, with an empty momentum buffer."""
        if peer in self._momenta:
            raise SettingsError(f"peer {peer} is here already")
        self._momenta[peer] = self.optimizer.new_momentum()
        self.bytes_sent.setdefault(peer, 0)
        self.bytes_received.setdefault(peer, 0)

    def leave(self, peer: int) -> None:
        """Remove a peer with its momentum buffer."""
        self._momentum(peer)
        del self._momenta[peer]
        self._frames.pop(peer, None)

    def collect(self, peer: int) -> None:
        """Take the gradients in the model as those of this peer.

        Raises
        ------
        TrainingError
            If a gradient is not finite.
        """
        if peer in self._frames:
            raise FederationError(f"peer {peer} has given its gradients for this step already; call step() first")
        self._frames[peer] = self.optimizer.local_frame(self._momentum(peer))

    def step(self) -> None:
        """Apply what was collected since the last step; peers that gave nothing have no part in it."""
        if not self._frames:
            raise FederationError("no peer has given gradients; call collect() before step()")
        frames, self._frames = self._frames, {}
        optimizer = self.optimizer
        coder, steps, chain = optimizer.coder, optimizer.steps, optimizer.chain
        if self.topology == "aggregator":
            total = coder.answer(steps, chain, coder.total(frames, steps, chain))
            optimizer.apply(Answer({}, total, 0, 0))
            received = dict.fromkeys(self._momenta, len(total))
            sent = {peer: len(frame) for peer, frame in frames.items()}
        else:
            optimizer.apply(Answer(frames, None, 0, 0))
            each_way = all_gather_bytes(frames)
            received = dict.fromkeys(self._momenta, each_way)
            sent = dict.fromkeys(frames, each_way)
        for peer in self._momenta:
            self.bytes_sent[peer] += sent.get(peer, 0)
            self.bytes_received[peer] += received[peer]
        for peer in frames:
            self._momenta[peer].delivered()

    def _momentum(self, peer: int) -> LocalMomentum:
        if peer not in self._momenta:
            raise FederationError(f"there is no peer {peer}; there are {', '.join(map(str, self.peers))}")
        return self._momenta[peer]
