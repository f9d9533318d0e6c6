"""Messages of secure aggregation, to and from Flower records.

They travel beside or instead of the records of :mod:`.records`, as ONE ``Array`` with a private stype: each message
behind its length (4 bytes, little-endian). Several travel together where the end of one round and the beginning of the
next share an exchange.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from distro_fed.errors import UpdateError

#: message type of the stages that need no model
SECURE = "query.secure"
STYPE = "distro_fed.secure/1"
RECORD, KEY = "secure", "messages"
_LENGTH_BYTES = 4
#: messages that may come in one record
_MOST = 4
_STATE = "secure-aggregation"


def add_messages(content: RecordDict, messages: Sequence[bytes]) -> RecordDict:
    """Put messages into ``content``; returns it."""
    data = b"".join(len(message).to_bytes(_LENGTH_BYTES, "little") + message for message in messages)
    content[RECORD] = ArrayRecord({KEY: Array("uint8", (len(data),), STYPE, data)})
    return content


def read_messages(content: RecordDict) -> list[bytes]:
    """Messages in a record; none if there is no such record.

    Raises
    ------
    UpdateError
        If the record is not sound.
    """
    if RECORD not in content.array_records:
        return []
    array = content.array_records[RECORD].get(KEY)
    if array is None or array.stype != STYPE:
        raise UpdateError(f"record {RECORD!r} holds no array {KEY!r} of stype {STYPE!r}")
    data, messages = memoryview(array.data), list[bytes]()
    while data:
        size = int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < _LENGTH_BYTES + size or len(messages) == _MOST:
            raise UpdateError(f"record {RECORD!r} of {len(array.data)} bytes does not hold whole messages")
        messages.append(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + size]))
        data = data[_LENGTH_BYTES + size :]
    return messages


def request_digest(config: ConfigRecord) -> bytes:
    """32-byte digest of everything that a request says beside its frames.

    Members sign it with the model that they train on. Otherwise a server could ask only one of them for its held-out
    loss, or give all others a configuration under which they learn nothing, and read that one's numbers off the sum.
    """
    return hashlib.sha256(repr(sorted(config.items())).encode()).digest()


def kept_state(context: Context) -> bytes:
    """What this member keeps between two stages; empty at first."""
    record = context.state.config_records.get(_STATE)
    state = record.get("state", b"") if record else b""
    return state if isinstance(state, bytes) else b""


def keep_state(context: Context, state: bytes) -> None:
    """Carry the state to the next message of this run; Flower keeps it at the node."""
    context.state[_STATE] = ConfigRecord({"state": state})
