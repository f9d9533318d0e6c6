"""How frames travel between peers: the interface, and the peer that is alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Answer:
    """What one exchange brought.

    Attributes
    ----------
    frames : dict of int to bytes
        Frame of every peer, this one included, by id; empty if ``total`` is there.
    total : bytes or None
        One frame that holds the sum over peers.
    sent, received : int
        Bytes that this peer put on and took from the network.
    """

    frames: dict[int, bytes]
    total: bytes | None
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class PeerState:
    """What a peer needs to go on where another one is.

    Attributes
    ----------
    steps : int
        Steps applied.
    chain : bytes
        16 bytes that stand for the initial parameters and these steps.
    values : list of torch.Tensor
        The parameters themselves, not copies, in order.
    """

    steps: int
    chain: bytes
    values: list[torch.Tensor]


class Exchange(ABC):
    """A way to the other peers.

    Attributes
    ----------
    peer : int
        Id of this peer, unique among them; 0 to 2**32 - 1.
    """

    peer: int

    def offer(self, state: Callable[[], PeerState]) -> None:
        """Called before every step: the moment to hand parameters to a peer that joins, if one asks for them."""
        del state

    @abstractmethod
    def exchange(self, frame: bytes, steps: int) -> Answer:
        """Give this peer's frame for the step that follows ``steps`` others, and wait for the answer.

        Raises
        ------
        PeerLost
            If the others cannot be reached.
        """

    @abstractmethod
    def gather(self, payload: bytes, steps: int, peers: Sequence[int]) -> dict[int, bytes]:
        """A few bytes from each of ``peers``, by id; all of them call this after the same number of steps.

        Raises
        ------
        PeerLost
            If the others cannot be reached.
        """

    @abstractmethod
    def synchronise(self, state: PeerState) -> PeerState:
        """Take over the state of a peer that has gone furthest.

        ``state.values`` are overwritten in place.

        Returns
        -------
        PeerState
            With ``steps`` and ``chain`` of that peer.

        Raises
        ------
        PeerLost
            If the others cannot be reached.
        """


class Alone(Exchange):
    """One peer without others."""

    peer = 0

    def exchange(self, frame: bytes, steps: int) -> Answer:
        """Return the frame."""
        del steps
        return Answer({self.peer: frame}, None, 0, 0)

    def gather(self, payload: bytes, steps: int, peers: Sequence[int]) -> dict[int, bytes]:
        """Return the payload."""
        del steps, peers
        return {self.peer: payload}

    def synchronise(self, state: PeerState) -> PeerState:
        """Return the state."""
        return state
