"""Measured bytes of every client, in each direction, in each round."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from distro_fed.errors import DistroFedError

Direction = Literal["up", "down"]
Kind = Literal["update", "keyframe", "evaluation", "secure", "other"]

_DIRECTIONS = get_args(Direction)
_KINDS = get_args(Kind)


class Entry(NamedTuple):
    """What one number of bytes belongs to."""

    round: int
    client: str
    direction: Direction
    kind: Kind


class TrafficLedger:
    """Sums of serialised bytes, by round, client, direction and kind.

    Whoever serialises a message records its size here, also when the message is lost or refused later:
    the bytes were sent. Round 0 is what happens before the first round. Not safe to share among threads.
    """

    def __init__(self) -> None:
        # by round and client: sums that every reply asks for take no longer in a long run, or among many members
        self._rounds: defaultdict[int, defaultdict[str, Counter[Entry]]] = defaultdict(lambda: defaultdict(Counter))
        self._clients: dict[Direction, Counter[str]] = {direction: Counter() for direction in _DIRECTIONS}

    def record(self, *, round: int, client: str, direction: Direction, kind: Kind, size: int) -> None:
        """Add ``size`` bytes of one message.

        Parameters
        ----------
        round : int
            0 before the first round, then 1, 2, ...
        client : str
            Name of the client at the other end.
        direction : {"up", "down"}
            ``"up"`` from the client to the server.
        kind : {"update", "keyframe", "evaluation", "secure", "other"}
            What the message carries.
        size : int
            Serialised bytes of the whole message.

        Raises
        ------
        DistroFedError
            If the round or the size is negative, or direction or kind is another word.
        """
        if direction not in _DIRECTIONS:
            raise DistroFedError(f"traffic direction {direction!r} is not one of {', '.join(_DIRECTIONS)}")
        if kind not in _KINDS:
            raise DistroFedError(f"traffic kind {kind!r} is not one of {', '.join(_KINDS)}")
        if round < 0 or size < 0:
            raise DistroFedError(f"traffic of client {client!r} has round {round} and size {size}; both must be >= 0")
        self._rounds[round][client][Entry(round, client, direction, kind)] += size
        self._clients[direction][client] += size

    def total(
        self,
        *,
        round: int | None = None,
        client: str | None = None,
        direction: Direction | None = None,
        kind: Kind | None = None,
    ) -> int:
        """Bytes of all entries that fit every given filter."""
        return sum(
            size
            for entry, size in self._entries(round, client)
            if (direction is None or entry.direction == direction) and (kind is None or entry.kind == kind)
        )

    def per_client(self, direction: Direction | None = None) -> dict[str, int]:
        """Bytes over all rounds by client name, names sorted."""
        wanted = _DIRECTIONS if direction is None else (direction,)
        return {client: sum(self._clients[item][client] for item in wanted) for client in self.clients()}

    def per_round(self, direction: Direction | None = None) -> dict[int, int]:
        """Bytes of all clients together by round, rounds ascending."""
        sums: Counter[int] = Counter()
        for entry, size in self._entries():
            sums[entry.round] += size if direction in (None, entry.direction) else 0
        return dict(sorted(sums.items()))

    def clients(self) -> list[str]:
        """Names of all clients that sent or received something, sorted."""
        return sorted(set().union(*self._clients.values()))

    def _entries(self, round: int | None = None, client: str | None = None) -> Iterator[tuple[Entry, int]]:
        """Entries of one round, or of all, and of one client, or of all."""
        for number in self._rounds if round is None else self._rounds.keys() & {round}:
            clients = self._rounds[number]
            for name in clients if client is None else clients.keys() & {client}:
                yield from clients[name].items()

    def __iter__(self) -> Iterator[tuple[Entry, int]]:
        """Each entry with its bytes, in a fixed order."""
        return iter(sorted(self._entries()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrafficLedger) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def to_json(self) -> str:
        """All entries as one JSON list, for a checkpoint."""
        return json.dumps([{**entry._asdict(), "bytes": size} for entry, size in self])

    @classmethod
    def from_json(cls, text: str) -> TrafficLedger:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        DistroFedError
            If the text is not a ledger.
        """
        ledger = cls()
        try:
            for row in json.loads(text):
                size = row.pop("bytes")
                ledger.record(**row, size=size)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DistroFedError(f"not a traffic ledger ({error}): {text[:80]!r}") from error
        return ledger
