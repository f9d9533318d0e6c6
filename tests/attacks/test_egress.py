"""Somebody wants more to leave than the rules allow, or to hide that it has left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from typer.testing import CliRunner

from distro_fed.cli.main import app as command
from distro_fed.clients.egress_guard import EgressGuard
from distro_fed.clients.egress_kinds import KINDS, kind_of, odd_metrics
from distro_fed.clients.egress_log import GENESIS, EgressLog, audit
from distro_fed.compression.scales import scales_digest
from distro_fed.errors import EgressLogError
from distro_fed.secure_aggregation.messages import Kind as SecureKind
from distro_fed.secure_aggregation.messages import Message as SecureMessage
from distro_fed.transport.local_grid import LocalGrid
from distro_fed.transport.records import STYPE, Reply, Status, reply_records
from distro_fed.transport.secure_records import add_messages
from distro_fed.update import Kind, Update

TEXT = "Jane Doe, born 1970, has asthma"
KNOWN = frozenset(("num-examples", "train-loss"))


def frame(kind: Kind = Kind.CLIENT) -> Update:
    return Update(kind, 1, 0, 1, 0, bytes(16), bytes(16), bytes(16), b"body")


def update_reply(**changes: Any) -> RecordDict:
    values = {"metrics": {"num-examples": 3.0}, "update": frame(), **changes}
    return reply_records(Reply(Status.OK, "clinic", 1, **values))


def secure(*kinds: SecureKind, content: RecordDict | None = None) -> RecordDict:
    messages = [SecureMessage(kind, 0, bytes(32), b"x", bytes(64)).to_bytes() for kind in kinds]
    return add_messages(RecordDict() if content is None else content, messages)


def with_config(**values: Any) -> RecordDict:
    content = update_reply()
    content["config"] = ConfigRecord({**content.config_records["config"], **values})
    return content


def with_array(**values: Any) -> RecordDict:
    content, data = update_reply(), frame().to_bytes()
    content["arrays"] = ArrayRecord(
        {"update": Array(**{"dtype": "uint8", "shape": (len(data),), "stype": STYPE, "data": data, **values})}
    )
    return content


def with_record(name: str, record: Any) -> RecordDict:
    content = update_reply()
    content[name] = record
    return content


# -- what is sent looks like something allowed, and holds something else


@pytest.mark.parametrize(
    ("type_", "content", "kind"),
    [
        ("train", update_reply(), "update"),
        ("train.default", update_reply(), "train.default"),  # the guard takes ".default" off first
        ("train", update_reply(scales=scales_digest(b"\x80\x3f")), "update"),
        ("train", reply_records(Reply(Status.BEHIND, "clinic", 2)), "behind"),
        ("train", reply_records(Reply(Status.FAILED, "clinic", 0, code="wrong-run", facts={"seed": "1"})), "failure"),
        ("train", secure(SecureKind.MASKED_VECTOR, content=reply_records(Reply(Status.OK, "c", 1))), "masked-update"),
        ("evaluate", secure(SecureKind.MASKED_VECTOR, content=reply_records(Reply(Status.OK, "c", 1))),
         "masked-evaluation"),
        ("train", secure(SecureKind.REFUSAL), "secure"),
        ("query.secure", secure(SecureKind.UNMASK_SHARES, SecureKind.ADVERTISEMENT), "secure"),
        ("evaluate", reply_records(Reply(Status.OK, "clinic", 1, metrics={"held-out-loss": 1.0})), "evaluation"),
        ("query.hello", reply_records(Reply(Status.OK, "clinic", 0)), "hello"),
        ("query.mine", RecordDict(), "query.mine"),
    ],
)  # fmt: skip
def test_every_honest_reply_has_its_kind(type_: str, content: RecordDict, kind: str) -> None:
    assert kind_of(type_, content) == kind


ODD = {
    "a record beside": with_record("notes", ConfigRecord({"text": TEXT})),
    "more metrics beside": with_record("more", MetricRecord({"a": 1.0})),
    "more arrays beside": with_record("more", ArrayRecord({"a": Array(np.zeros(2))})),
    "an array beside the update": with_record(
        "arrays", ArrayRecord({"update": with_array().array_records["arrays"]["update"], "b": Array(np.zeros(2))})
    ),
    "arrays that are no frame": with_array(data=TEXT.encode(), shape=(len(TEXT),)),
    "bytes behind the frame": with_array(data=frame().to_bytes() + b"x", shape=(len(frame().to_bytes()) + 1,)),
    "a frame of the server's": update_reply(update=frame(Kind.KEYFRAME)),
    "text as stype": with_array(stype=TEXT),
    "text as dtype": with_array(dtype=TEXT),
    "numbers as shape": with_array(shape=(19, 70)),
    "no update": reply_records(Reply(Status.OK, "clinic", 1)),
    "a key beside": with_config(note=TEXT),
    "text as status": with_config(status=TEXT),
    "text as version": with_config(version=TEXT),
    "a truth as version": with_config(version=True),
    "bytes as code": with_config(code=TEXT.encode()),
    "a text as code": with_config(code=TEXT),
    "a long name": with_config(name="n" * 65),
    "a name of two lines": with_config(name="a\nb"),
    "a text as column": with_config(columns=[TEXT]),
    "a text as scales": with_config(scales="sixteen letters."),
    "bytes as scales": with_config(scales=b"0123456789abcdef"),
    "many columns": with_config(columns=["word"] * 17),
    "a long fact": with_config(facts=["f" * 257]),
    "numbers as facts": with_config(facts=[1, 2, 3]),
    "a failure with numbers": reply_records(Reply(Status.FAILED, "clinic", 0, metrics={"train-loss": 1.0})),
    "a failure with an update": reply_records(Reply(Status.FAILED, "clinic", 0, update=frame())),
    "an update beside a masked one": secure(SecureKind.MASKED_VECTOR, content=update_reply()),
    "numbers beside a masked update": secure(
        SecureKind.MASKED_VECTOR, content=reply_records(Reply(Status.OK, "clinic", 1, metrics={"train-loss": 1.0}))
    ),
    "a masked vector without a status": secure(SecureKind.MASKED_VECTOR),
    "a message that only the server sends": secure(SecureKind.SURVIVOR_SET),
    "secure messages that are none": add_messages(RecordDict(), [TEXT.encode()]),
    "nothing": RecordDict(),
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_an_odd_reply_is_of_no_kind_that_can_be_allowed(content: RecordDict) -> None:
    assert kind_of("train", content) == "unknown"
    assert "unknown" not in KINDS


@pytest.mark.parametrize("type_", ["evaluate", "query.hello", "query.secure"])
def test_an_update_cannot_leave_as_something_else(type_: str) -> None:
    assert kind_of(type_, update_reply()) == "unknown"


@pytest.mark.parametrize(
    "metrics", [{TEXT: 1.0}, {"num-examples": [1.0] * 1000}, {"train-loss": float("nan")}, {"": 1}]
)
def test_metrics_carry_nothing_but_known_numbers(metrics: dict[str, Any]) -> None:
    assert odd_metrics(with_record("metrics", MetricRecord(metrics)), KNOWN) == list(metrics)
    assert not odd_metrics(update_reply(), KNOWN)


def sender(content: RecordDict) -> ClientApp:
    app = ClientApp(mods=[EgressGuard()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(content, reply_to=message)

    return app


def ask(grid: LocalGrid, round_: Any = 1, kind: str = "train") -> Message:
    content = RecordDict({"config": ConfigRecord({} if round_ is None else {"server-round": round_})})
    (reply,) = grid.send_and_receive([Message(content, 101, kind)])
    return reply


def leaves(content: RecordDict, log: Path, **rules: Any) -> bool:
    node = {"egress-log": str(log), "egress-allow": "update", "egress-metrics": ",".join(KNOWN), **rules}
    reply = ask(LocalGrid(sender(content), 1, node_configs=[node]))
    sent = str(reply.content) + str(reply.metadata)
    assert TEXT not in sent
    return "arrays" in reply.content


@pytest.mark.parametrize("name", ["a record beside", "text as stype", "a text as column", "an array beside the update"])
def test_the_guard_refuses_odd_replies(name: str, tmp_path: Path) -> None:
    assert leaves(update_reply(), tmp_path / "log")
    assert not leaves(ODD[name], tmp_path / "log")
    assert audit(tmp_path / "log").entries[1].details["refused"]["kind"] == "unknown"


@pytest.mark.parametrize(
    "metrics", [{TEXT: 1.0}, {"num-examples": [1.0] * 10_000}, {f"m{i}": 1.0 for i in range(5000)}]
)
def test_the_guard_refuses_odd_metrics_and_the_log_stays_small(metrics: dict[str, Any], tmp_path: Path) -> None:
    content = with_record("metrics", MetricRecord(metrics))
    assert not leaves(content, tmp_path / "log")
    assert (tmp_path / "log").stat().st_size < 2000


def test_without_rules_what_was_smuggled_stands_in_the_log(tmp_path: Path) -> None:
    content = with_record("metrics", MetricRecord({TEXT: 1.0, **{f"m{i}": 1.0 for i in range(5000)}}))
    content["notes"] = ConfigRecord({"text": TEXT * 1000})
    reply = ask(LocalGrid(sender(content), 1, node_configs=[{"egress-log": str(tmp_path / "log")}]))
    assert "notes" in reply.content
    (entry,) = audit(tmp_path / "log").entries
    assert entry.kind == "unknown" and TEXT in entry.details["metrics"]
    assert entry.details["words"]["notes.text"].startswith(TEXT)
    assert entry.bytes > 31_000 and (tmp_path / "log").stat().st_size < 5000


def test_nothing_rides_along_in_the_metadata() -> None:
    app = ClientApp(mods=[EgressGuard()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__["_group_id"] = TEXT
        return reply

    assert TEXT not in str(ask(LocalGrid(app, 1)).metadata)


# -- budgets


def budget_grid(tmp_path: Path, **node: Any) -> LocalGrid:
    node = {"egress-log": str(tmp_path / "log"), **node}
    return LocalGrid(sender(update_reply()), 1, node_configs=[node])


def size_of_one(tmp_path: Path) -> int:
    ask(budget_grid(tmp_path / "one"))
    return audit(tmp_path / "one" / "log").entries[0].bytes


def test_many_small_messages_in_one_round_add_up(tmp_path: Path) -> None:
    grid = budget_grid(tmp_path, **{"egress-budget": 3 * size_of_one(tmp_path)})
    left = ["arrays" in ask(grid).content for _ in range(5)]
    assert left == [True, True, True, False, False]
    assert "arrays" in ask(grid, 2).content  # the next round has a budget of its own
    assert "arrays" not in ask(grid, 1).content


@pytest.mark.parametrize("round_", [None, "1", 1.0, [1]])
def test_a_request_without_a_round_spends_the_budget_of_the_newest(round_: Any, tmp_path: Path) -> None:
    grid = budget_grid(tmp_path, **{"egress-budget": 3 * size_of_one(tmp_path)})
    left = ["arrays" in ask(grid, asked).content for asked in (None, 7, round_, round_, round_)]
    assert left == [True, True, True, True, False]


def test_made_up_rounds_do_not_get_round_the_budget_of_a_day(tmp_path: Path) -> None:
    grid = budget_grid(tmp_path, **{"egress-budget": 10_000, "egress-budget-day": 3 * size_of_one(tmp_path)})
    left = ["arrays" in ask(grid, round_).content for round_ in (1, 2, -3, 2**62, 5)]
    assert left == [True, True, True, False, False]


def test_a_log_that_was_made_lighter_gives_no_budget_back(tmp_path: Path) -> None:
    grid = budget_grid(tmp_path, **{"egress-budget": 2 * size_of_one(tmp_path)})
    assert "arrays" in ask(grid).content and "arrays" in ask(grid).content
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    (tmp_path / "log").write_bytes(lines[1])
    assert ask(grid).content.config_records["config"]["code"] == "egress-log"


# -- tampering with the log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "egress.jsonl"
    for number in range(4):
        with EgressLog(path).locked() as opened:
            opened.append(run="7", round=number, kind="update", bytes=100 + number, sha256="ab" * 32, message="train",
                          metrics={"train-loss": 1.5}, words={"name": "clinic"})  # fmt: skip
    return path


FIELDS = ("time", "run", "round", "kind", "bytes", "sha256", "message", "metrics", "words", "previous", "hash")


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_field_is_found_where_it_is(field: str, number: int, log: Path) -> None:
    lines = log.read_text().splitlines()
    values = json.loads(lines[number - 1])
    assert tuple(values) == FIELDS
    values[field] = {"bytes": 1, "round": None, "metrics": {}, "words": {}}.get(field, "0" * 64)
    lines[number - 1] = json.dumps(values, separators=(",", ":"))
    log.write_text("\n".join(lines) + "\n")
    assert audit(log).broken.startswith(f"line {number}: ") or (field == "previous" and number == 1)
    assert len(audit(log).entries) == number - 1 or (field == "previous" and number == 1)


def edits() -> dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]]:
    def changed(lines: list[bytes]) -> list[bytes]:
        values = json.loads(lines[1])
        values["round"] = 9
        del values["hash"]
        body = json.dumps(values, separators=(",", ":")).encode()
        again = body[:-1] + f',"hash":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()
        return [lines[0], again, *lines[2:]]

    return {
        "first line removed": (lambda lines: lines[1:], 1),
        "line removed": (lambda lines: lines[:1] + lines[2:], 2),
        "lines swapped": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        "line twice": (lambda lines: [*lines[:2], *lines[1:]], 3),
        "line of another log": (lambda lines: [*lines, lines[0]], 5),
        "line cut in the middle": (lambda lines: [lines[0], lines[1][:-20] + b"\n", *lines[2:]], 2),
        "two lines joined": (lambda lines: [lines[0][:-1], *lines[1:]], 1),
        "an empty line": (lambda lines: [lines[0], b"\n", *lines[1:]], 2),
        "a space": (lambda lines: [lines[0][:1] + b" " + lines[0][1:], *lines[1:]], 1),
        "line made anew with its own hash": (changed, 3),
        "not JSON": (lambda lines: [b"[]\n", *lines[1:]], 1),
        "bytes that are no text": (lambda lines: [b"\xff\xfe\n", *lines[1:]], 1),
    }


@pytest.mark.parametrize("name", edits())
def test_edited_lines_are_found_where_they_are(name: str, log: Path) -> None:
    edit, line = edits()[name]
    log.write_bytes(b"".join(edit(log.read_bytes().splitlines(keepends=True))))
    assert audit(log).broken.startswith(f"line {line}: ")
    assert len(audit(log).entries) == line - 1


def test_every_flipped_bit_is_found(log: Path) -> None:
    whole = log.read_bytes()
    for place in range(0, len(whole), 7):
        log.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = audit(log)
        assert found.broken or found.cut_off, place


def test_nothing_is_added_to_a_newest_line_that_was_changed(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"bytes":103', b'"bytes":3'))
    with pytest.raises(EgressLogError, match="newest line: it was changed"), EgressLog(log).locked() as opened:
        opened.append(run="7", round=9, kind="update", bytes=1, sha256="")


def test_lines_taken_off_the_end_are_found_by_a_hash_noted_before(log: Path) -> None:
    noted = audit(log).head
    run = CliRunner().invoke
    assert run(command, ["audit", str(log), "--expect", noted]).exit_code == 0
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    assert run(command, ["audit", str(log)]).exit_code == 0  # the chain alone cannot tell
    result = run(command, ["audit", str(log), "--expect", noted])
    assert result.exit_code == 1 and "No line has the hash" in result.output


def test_an_emptied_log_has_no_hash(log: Path) -> None:
    log.write_bytes(b"")
    assert audit(log).head == GENESIS
