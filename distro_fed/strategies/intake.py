"""From a reply to a checked update, or to the reason why it is left out."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from flwr.app import Message

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Decoded
from distro_fed.errors import UpdateError
from distro_fed.replica import Replica
from distro_fed.transport.records import Reply, Status, read_reply
from distro_fed.update import Kind, Update

log = logging.getLogger("flwr")

EXAMPLES = "num-examples"
#: far above any number of examples, and small enough that no weighted sum overflows float32
LARGEST_WEIGHT = 1e12


@dataclass(frozen=True, slots=True)
class Refused:
    """A reply that does not enter the round."""

    reason: str
    reply: Reply | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A reply whose update is sound and fits this round."""

    reply: Reply
    update: Update
    decoded: Decoded
    weight: float


@dataclass(frozen=True, slots=True)
class Masked:
    """A reply whose masked vector is in the sum."""

    reply: Reply | None


def examine(
    message: Message, replica: Replica, round_: int, weighted_by: str | None, scales: str = ""
) -> Accepted | Refused:
    """Check a training reply completely; nothing is changed.

    ``scales`` is the digest of the common scales of the round, empty if there are none.
    """
    try:
        return _examine(message, replica, round_, weighted_by, scales)
    except Exception as error:  # whatever one member sends, the round goes on without it
        log.exception("a reply cannot be read")
        return Refused(f"it cannot be read ({type(error).__name__})")


def _examine(
    message: Message, replica: Replica, round_: int, weighted_by: str | None, scales: str
) -> Accepted | Refused:
    reply = parse(message)
    if isinstance(reply, Refused):
        return reply
    update = reply.update
    if update is None:
        return Refused("it holds no update", reply)
    try:
        if update.round != round_:
            raise UpdateError(f"update of round {update.round}, this is round {round_}")
        decoded = replica.agreement.open(update, kind=Kind.CLIENT, base_version=replica.version, chain=replica.chain)
    except UpdateError as error:
        return Refused(f"{error.code}: {error}", reply)
    if reply.scales != scales:
        return Refused(
            "its update is coded with other scales than the round's: every member needs the release of distro-fed "
            "that the server has",
            reply,
        )
    examples = reply.metrics.get(EXAMPLES, 0.0)
    if examples <= 0:
        return Refused(f"it reports {examples:g} training examples", reply)
    weight = 1.0 if not weighted_by else reply.metrics.get(weighted_by, math.nan)
    if not 0 < weight <= LARGEST_WEIGHT:
        return Refused(f"its weight {weighted_by!r} is {weight}; a positive number is needed", reply)
    return Accepted(reply, update, decoded, weight)


def parse(message: Message) -> Reply | Refused:
    """Read a reply and sort out errors and failures."""
    if message.has_error():
        # Flower's reason may hold a stack trace with data in it; its number and first line are enough here
        first_line = (message.error.reason or "").strip().splitlines()[:1]
        return Refused(f"error reply (code {message.error.code}) {''.join(first_line)[:200]}")
    try:
        reply = read_reply(message)
    except UpdateError as error:
        return Refused(f"{error.code}: {error}")
    except Exception as error:
        return Refused(f"it cannot be read ({type(error).__name__})")
    if reply.status is Status.FAILED:
        return Refused(f"the node reports {reply.code or 'a failure'}", reply)
    if reply.status is Status.BEHIND:
        return Refused("it still lacks versions after catching up", reply)
    return reply


def explain_facts(agreement: Agreement, facts: dict[str, str]) -> str:
    """Which public facts of a run a member sees differently."""
    mine = agreement.facts()
    different = [
        f"{name}: {facts[name]} there, {mine[name]} here"
        for name in mine
        if name in facts and facts[name] != mine[name]
    ]
    return "; ".join(different)
