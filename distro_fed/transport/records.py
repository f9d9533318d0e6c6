"""Updates and the few facts beside them, to and from Flower records.

Frames travel as ONE ``Array`` with a private stype: Flower carries it unchanged and chunks it, where a
``ConfigRecord`` is neither chunked nor fast, and one Array a tensor costs about 450 bytes each.

=========  =======================  ====================================================================
message    record                   content
=========  =======================  ====================================================================
request    ``arrays["updates"]``    frames that the node lacks, one after the other; absent if none
request    ``config``               ``server-round``, ``rounds``, ``version``, ``chain``, ``run``, ``evaluate``;
                                    ``run-id`` in a resumed run; ``common-scales`` if all members code with the same
reply      ``arrays["update"]``     one frame of kind CLIENT; absent in an evaluation
reply      ``metrics``              ``num-examples``, ``train-loss``, ``held-out-loss``, ``seconds``, ...
reply      ``config``               ``status``, ``name``, ``version`` (kept by the node), ``code``; ``scales`` if
                                    common ones were announced: digest of those that the update is coded with
=========  =======================  ====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from distro_fed.errors import UpdateError
from distro_fed.update import Update, parse_frame, parse_frames

STYPE = "distro_fed.update/1"
#: message type that asks a node for nothing but its name
HELLO = "query.hello"
NAME_LIMIT = 64
_WORDS_LIMIT, _METRICS_LIMIT = 16, 64
#: a number beyond it is no loss and no count, and is not believed
LARGEST_METRIC = 1e15
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
#: key, in the configuration of a round, of the scales that all its members code with, two bytes each
SCALES = "common-scales"
_REQUEST_KEYS = ("server-round", "rounds", "version", "chain", "run", "evaluate", "run-id", SCALES)
#: code of a reply that says BEHIND because the node's replica is not what its version says
DRIFT = "drift"


class Status(StrEnum):
    """What a node says about its reply."""

    #: the reply holds what was asked for
    OK = "ok"
    #: the node lacks versions that the request took for granted; it holds ``version``. With the code ``drift`` its
    #: replica differs from the server's
    BEHIND = "behind"
    #: the node could not do it; ``code`` says why, without data
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """What the server asks of a node.

    Attributes
    ----------
    round, rounds : int
        This round and the number of rounds of the run.
    version : int
        Version of the replica to train or evaluate.
    chain : bytes
        Its chain digest.
    run : bytes
        The server's run digest.
    evaluate : bool
        Evaluate the replica on held-out data first.
    frames : tuple of Update
        Updates that the node is thought to lack.
    extra : dict
        Keys of the caller's own (``train_config`` of the strategy).
    run_id : int
        In a resumed run, the id of the Flower run that it began in: members find their files by it. 0: Flower's own.
    scales : bytes
        Scales that all members of the round code with; empty: each takes its own.
    """

    round: int
    rounds: int
    version: int
    chain: bytes
    run: bytes
    evaluate: bool = False
    frames: tuple[Update, ...] = ()
    extra: dict[str, object] = field(default_factory=dict)
    run_id: int = 0
    scales: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a node answers.

    Attributes
    ----------
    status : Status
    name : str
        The organisation's name for itself.
    version : int
        Version that the node will still hold at the next message; -1 if it must be sent a keyframe.
    update : Update or None
    metrics : dict
        Numbers only.
    code : str
        Why it failed, a word without data.
    facts : dict
        The node's :meth:`Agreement.facts`, when the run digests differ.
    columns : tuple of str
        Names of the columns that the node trains on, for the model card.
    scales : str
        Digest of the common scales that the update is coded with; empty: its own.
    """

    status: Status
    name: str
    version: int
    update: Update | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    code: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    scales: str = ""


def frames_record(frames: Iterable[bytes]) -> ArrayRecord:
    """One Array with the frames one after the other."""
    data = b"".join(frames)
    return ArrayRecord({"updates": Array("uint8", (len(data),), STYPE, data)} if data else {})


def request_records(request: Request, frames: ArrayRecord, extra: ConfigRecord) -> RecordDict:
    """A request as records; ``frames`` is shared among nodes that lack the same updates.

    ``extra`` holds the caller's own keys for the clients, and the common scales of the round; the keys of the protocol
    win over them.
    """
    config = ConfigRecord(
        {
            **extra,
            "server-round": request.round,
            "rounds": request.rounds,
            "version": request.version,
            "chain": request.chain,
            "run": request.run,
            "evaluate": request.evaluate,
        }
    )
    if request.run_id:
        config["run-id"] = request.run_id
    return RecordDict({ARRAYS: frames, CONFIG: config})


def read_request(message: Message) -> Request:
    """Parse a request.

    Raises
    ------
    UpdateError
        If a record or key is missing or a frame is unsound.
    """
    content = message.content
    try:
        config = content.config_records[CONFIG]
        frames = _frames(content.array_records[ARRAYS], "updates")
        return Request(
            round=_int(config, "server-round"),
            rounds=_int(config, "rounds"),
            version=_int(config, "version"),
            chain=_bytes(config, "chain"),
            run=_bytes(config, "run"),
            evaluate=bool(config["evaluate"]),
            frames=tuple(parse_frames(frames)),
            extra={key: value for key, value in config.items() if key not in _REQUEST_KEYS},
            run_id=_int(config, "run-id") if "run-id" in config else 0,
            scales=_bytes(config, SCALES) if SCALES in config else b"",
        )
    except KeyError as error:
        raise UpdateError(f"request lacks {error}; server and client need the same release of distro-fed") from None


def reply_records(reply: Reply) -> RecordDict:
    """A reply as records."""
    config = ConfigRecord({"status": str(reply.status), "name": reply.name[:NAME_LIMIT], "version": reply.version})
    if reply.code:
        config["code"] = reply.code
    if reply.columns:
        config["columns"] = list(reply.columns)
    if reply.scales:
        config["scales"] = reply.scales
    if reply.facts:
        config["facts"] = [f"{name}={value}" for name, value in reply.facts.items()]
    # a loss that is not finite stays home: the server could only misread it
    metrics = MetricRecord({key: value for key, value in reply.metrics.items() if math.isfinite(value)})
    content = RecordDict({CONFIG: config, METRICS: metrics})
    if reply.update is not None:
        data = reply.update.to_bytes()
        content[ARRAYS] = ArrayRecord({"update": Array("uint8", (len(data),), STYPE, data)})
    return content


def read_reply(message: Message, *, with_update: bool = True) -> Reply:
    """Parse a reply; its frame is checked for soundness, not yet for this run.

    ``with_update = False`` leaves the frame alone, however big it is.

    Raises
    ------
    UpdateError
        If a record or key is missing, of the wrong type, or the frame is unsound.
    """
    content = message.content
    try:
        config = content.config_records[CONFIG]
        status = Status(str(config["status"]))
        metrics = {
            _printable(key): float(value)
            for key, value in list(content.metric_records[METRICS].items())[:_METRICS_LIMIT]
            if isinstance(value, int | float) and abs(value) < LARGEST_METRIC
        }
        there = with_update and ARRAYS in content
        update = parse_frame(_frames(content.array_records[ARRAYS], "update")) if there else None
        return Reply(
            status=status,
            name=_printable(str(config["name"])),
            version=_int(config, "version"),
            update=update,
            metrics=metrics,
            code=_printable(str(config.get("code", ""))),
            facts=dict(fact.partition("=")[::2] for fact in _words(config, "facts")),
            columns=_words(config, "columns"),
            scales=_printable(str(config.get("scales", ""))),
        )
    except KeyError as error:
        raise UpdateError(f"reply lacks {error}; the client app must come from distro_fed.clients") from None
    except ValueError as error:
        raise UpdateError(f"reply has an unusable value: {error}") from None


def _frames(record: ArrayRecord, key: str) -> bytes:
    array = record.get(key)
    if array is None:
        return b""
    if array.stype != STYPE:
        raise UpdateError(f"array {key!r} has stype {array.stype!r}, expected {STYPE!r}")
    return array.data


def _int(config: ConfigRecord, key: str) -> int:
    value = config[key]
    if not isinstance(value, int):
        raise UpdateError(f"{key} = {value!r} is not an integer")
    return value


def _bytes(config: ConfigRecord, key: str) -> bytes:
    value = config[key]
    if not isinstance(value, bytes):
        raise UpdateError(f"{key} = {value!r} is not bytes")
    return value


def _words(config: ConfigRecord, key: str) -> tuple[str, ...]:
    value = config.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UpdateError(f"{key} is not a list of words")
    return tuple(_printable(str(word), 4 * NAME_LIMIT) for word in value[:_WORDS_LIMIT])


def _printable(text: str, limit: int = NAME_LIMIT) -> str:
    """Names and codes come from outside and end in logs and pages: printable, one line, bounded."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])
