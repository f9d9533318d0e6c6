"""What a reply is: its kind by its exact shape, its size, its digest, and everything in it that can be read as text.

A reply has one of the kinds below only if it holds what this package puts into such a reply and nothing else; a record,
an array or a key beside that makes it ``unknown``. Replies of handlers that an app adds by itself have the type of the
message as kind, such as ``query.my_statistics``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from distro_fed.errors import DistroFedError
from distro_fed.secure_aggregation.messages import Kind as SecureKind
from distro_fed.secure_aggregation.messages import parse as parse_secure
from distro_fed.transport.flower_compat import message_bytes
from distro_fed.transport.records import ARRAYS, CONFIG, METRICS, NAME_LIMIT, STYPE, Status
from distro_fed.transport.secure_records import KEY, RECORD, read_messages
from distro_fed.transport.secure_records import STYPE as SECURE_STYPE
from distro_fed.update import Kind as FrameKind
from distro_fed.update import parse_frame

#: one compressed update; one masked vector with an update in it; held-out loss in clear, and under masks; a stage of
#: secure aggregation; the member's name; "I lack versions"; "I cannot", with a code word
KINDS = ("update", "masked-update", "evaluation", "masked-evaluation", "secure", "hello", "behind", "failure")
UNKNOWN = "unknown"
#: a failure in place of something that may not leave; always let out
REFUSAL = "refusal"

#: numbers that members of this package send in clear
METRIC_NAMES = frozenset(
    ("num-examples", "train-loss", "train-tokens", "held-out-loss", "held-out-tokens", "held-out-examples", "seconds",
     "examples-per-step", "clipped")
)  # fmt: skip

_TYPES = ("train", "evaluate", "query.hello", "query.secure")
_CONFIG_KEYS = {"status", "name", "version", "code", "columns", "facts", "scales"}
_MOST_WORDS, _LONGEST_FACT = 16, 256
_CODE, _COLUMN = re.compile(r"[A-Za-z0-9_. -]{0,64}"), re.compile(r"[\w.-]{1,64}")
_SCALES = re.compile(r"([0-9a-f]{16})?")
#: of texts and names in the log; the digest stands for the whole
_SHOWN_ITEMS, _SHOWN_CHARS = 64, 256


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A reply that is about to leave.

    Attributes
    ----------
    kind : str
    message : str
        Type of the message that it answers.
    bytes : int
        As Flower serialises it.
    sha256 : str
        Flower's id of the content, which is what it stores and sends it by: SHA-256 of the serialised records, whose
        parts stand in it by their own SHA-256.
    metrics : dict
        Names and values of all plain numbers.
    words : dict
        All plain texts, by key.
    """

    kind: str
    message: str
    bytes: int
    sha256: str
    metrics: dict[str, Any]
    words: dict[str, Any]


def describe(reply: Message, request: Message) -> Outgoing:
    """Look through a reply that holds content."""
    content, type_ = reply.content, message_type(request)
    metrics = _items(content.metric_records, METRICS)
    config = _items(content.config_records, CONFIG)
    words = {key: value for key, value in config.items() if isinstance(value, str | list)}
    return Outgoing(
        kind_of(type_, content), type_, message_bytes(reply), content.object_id, _shown(metrics), _shown(words)
    )


def message_type(request: Message) -> str:
    """Type of a request; the default action has no name of its own."""
    return request.metadata.message_type.removesuffix(".default")


def kind_of(type_: str, content: RecordDict) -> str:
    """One of :data:`KINDS`, :data:`UNKNOWN`, or the type of the message if this package has no handler for it."""
    if type_ not in _TYPES:
        return type_
    try:
        return _kind_of(type_, content) or UNKNOWN
    except (DistroFedError, KeyError, ValueError, TypeError):
        return UNKNOWN


def _kind_of(type_: str, content: RecordDict) -> str:
    secure = _secure_kinds(content)
    if set(content) == {RECORD}:
        return "secure" if secure and SecureKind.MASKED_VECTOR not in secure else ""
    if set(content) - {ARRAYS, RECORD} != {CONFIG, METRICS} or not _is_plain_config(content.config_records[CONFIG]):
        return ""
    metrics, update = content.metric_records[METRICS], _is_update(content)
    masked = secure == [SecureKind.MASKED_VECTOR]
    if (ARRAYS in content and not update) or (RECORD in content and not masked):
        return ""
    alone = not update and not masked
    status = Status(str(content.config_records[CONFIG]["status"]))
    if status is not Status.OK:
        return ("failure" if status is Status.FAILED else "behind") if alone and not metrics else ""
    if update:
        return "update" if type_ == "train" and not masked else ""
    if masked:
        return {"train": "masked-update", "evaluate": "masked-evaluation"}.get(type_, "") if not metrics else ""
    if type_ == "query.hello":
        return "hello" if not metrics else ""
    return "evaluation" if type_ == "evaluate" else ""


def odd_metrics(content: RecordDict, allowed: frozenset[str]) -> list[str]:
    """Names of metrics that are not allowed, or whose value is not one finite number."""
    return [
        key
        for record in content.metric_records.values()
        for key, value in record.items()
        if key not in allowed or not isinstance(value, int | float) or not math.isfinite(value)
    ]


def _secure_kinds(content: RecordDict) -> list[SecureKind]:
    """Kinds of the messages of secure aggregation, if the record holds what a member may send and nothing else."""
    if RECORD not in content:
        return []
    record = content.array_records[RECORD]
    if list(record) != [KEY] or not _is_bytes(record, KEY, SECURE_STYPE):
        return []
    kinds = [parse_secure(message).kind for message in read_messages(content)]
    return kinds if all(kind % 2 == 0 or kind is SecureKind.REFUSAL for kind in kinds) else []


def _is_update(content: RecordDict) -> bool:
    """Whether the arrays are one sound frame of a client and nothing else."""
    record = content.array_records.get(ARRAYS)
    if record is None or list(record) != ["update"] or not _is_bytes(record, "update", STYPE):
        return False
    return parse_frame(record["update"].data).kind is FrameKind.CLIENT


def _is_bytes(record: ArrayRecord, key: str, stype: str) -> bool:
    array = record[key]
    return (array.dtype, tuple(array.shape), array.stype) == ("uint8", (len(array.data),), stype)


def _is_plain_config(config: ConfigRecord) -> bool:
    """Whether keys and lengths are those of this package's replies: little room for anything else."""
    if not {"status", "name", "version"} <= set(config) <= _CONFIG_KEYS or type(config["version"]) is not int:
        return False
    name, code, scales = config["name"], config.get("code", ""), config.get("scales", "")
    columns, facts = config.get("columns", []), config.get("facts", [])
    return (
        isinstance(name, str) and len(name) <= NAME_LIMIT and name.isprintable()
        and isinstance(code, str) and _CODE.fullmatch(code) is not None
        and isinstance(scales, str) and _SCALES.fullmatch(scales) is not None
        and _are_words(columns, _COLUMN) and _are_words(facts, re.compile(rf"[ -~]{{1,{_LONGEST_FACT}}}"))
    )  # fmt: skip


def _are_words(value: object, pattern: re.Pattern[str]) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_WORDS
        and all(isinstance(word, str) and pattern.fullmatch(word) for word in value)
    )


def _items(records: Mapping[str, Mapping[str, Any]], own: str) -> dict[str, Any]:
    """Everything in some records; names of others than this package's stand before the keys."""
    return {
        key if name == own else f"{name}.{key}": value
        for name, record in records.items()
        for key, value in record.items()
    }


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """For the log: bounded, and numbers that JSON has."""
    shown = {_short(key): _short(value) for key, value in list(values.items())[:_SHOWN_ITEMS]}
    return shown if len(values) <= _SHOWN_ITEMS else {**shown, "...": len(values) - _SHOWN_ITEMS}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value[:_SHOWN_ITEMS]] + (["..."] if len(value) > _SHOWN_ITEMS else [])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > _SHOWN_CHARS:
        return f"{value[:_SHOWN_CHARS]}... ({len(value)} characters)"
    return value
