"""The guard in a federation: what leaves is what the log says, and nothing else leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from distro_fed.clients import PrivateClient, RoundInfo, TrainResult
from distro_fed.clients.egress_guard import EgressGuard
from distro_fed.clients.egress_log import Entry, audit
from distro_fed.compression import make_compressor
from distro_fed.strategies import DistroStrategy
from distro_fed.transport.flower_compat import message_bytes
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, norm_evaluate, run, shift_train
from tests.strategies.secure_members import Members

RULES = {"egress-allow": "update,evaluation,hello,behind,failure"}


def entries(path: Path) -> list[Entry]:
    found = audit(path)
    assert not found.broken and not found.cut_off
    return found.entries


def ask(app: Any, kind: str = "query.mine", node: dict[str, Any] | None = None, **config: Any) -> Message:
    """One message to one node, and its reply as it arrives."""
    grid = LocalGrid(app, 1, node_configs=[node or {}], run_config={"compressor": "quantized"})
    request = Message(RecordDict({"config": ConfigRecord(config)}), 101, kind)
    (reply,) = grid.send_and_receive([request])
    return reply


def own_handler(answer: Any) -> ClientApp:
    app = PrivateClient(make_model, shift_train).app()

    @app.query("mine")
    def mine(message: Message, context: Context) -> Message:
        content = answer()
        return content if content is None else Message(content, reply_to=message)

    return app


def status(reply: Message) -> tuple[Any, Any]:
    config = reply.content.config_records["config"]
    assert set(reply.content) == {"config", "metrics"} and not reply.content.metric_records["metrics"]
    assert set(config) == {"status", "name", "version", "code"} and config["version"] == 0
    return config["name"], config["code"]


def test_the_log_has_every_byte_that_left(tmp_path: Path) -> None:
    arrived: dict[int, list[Message]] = {101: [], 102: []}

    def listen(reply: Message, node_id: int) -> Message:
        arrived[node_id].append(reply)
        return reply

    configs = [{"egress-log": str(tmp_path / f"{name}.jsonl"), **RULES} for name in "ab"]
    _, grid = run(compressor="quantized", nodes=2, node_configs=configs, tamper=listen)
    for node_id, name in ((101, "a"), (102, "b")):
        log = entries(tmp_path / f"{name}.jsonl")
        assert [(entry.round, entry.kind) for entry in log] == [
            (1, "update"), (2, "update"), (3, "update"), (3, "evaluation"),
        ]  # fmt: skip
        assert sum(entry.bytes for entry in log) == grid.bytes_up[node_id]
        assert [entry.bytes for entry in log] == [message_bytes(reply) for reply in arrived[node_id]]
        assert [entry.sha256 for entry in log] == [reply.content.object_id for reply in arrived[node_id]]
        first = arrived[node_id][0].content
        assert log[0].details["metrics"] == dict(first.metric_records["metrics"])
        assert log[0].details["words"]["name"] == first.config_records["config"]["name"]
        assert log[0].run == "1" and log[0].details["message"] == "train"


def test_a_line_is_there_before_the_reply_is(tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    lines: list[int] = []

    def look(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        lines.append(len(entries(path)))
        return reply

    app = ClientApp(mods=[look, EgressGuard()])

    @app.query("mine")
    def mine(message: Message, context: Context) -> Message:
        assert not path.exists()
        return Message(RecordDict(), reply_to=message)

    ask(app, node={"egress-log": str(path)})
    assert lines == [1]


def test_members_of_a_simulation_have_a_log_each(tmp_path: Path) -> None:
    run(compressor="quantized", nodes=3, rounds=1, state_dir=str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "egress").iterdir()) == ["0.jsonl", "1.jsonl", "2.jsonl"]


def test_a_deployed_member_has_it_beside_its_state_and_none_without(tmp_path: Path) -> None:
    deployed = {"simulation": False}
    app = own_handler(RecordDict)
    ask(app, node={**deployed, "state-dir": str(tmp_path / "state")})
    assert len(entries(tmp_path / "state" / "egress.jsonl")) == 1
    assert not ask(app, node=deployed).has_error()


def test_no_run_setting_reaches_the_rules(tmp_path: Path) -> None:
    """Neither what the server asks nor what the run is configured with loosens or moves anything."""
    node = {"egress-log": str(tmp_path / "mine.jsonl"), "egress-allow": "update"}
    app = own_handler(lambda: RecordDict({"metrics": MetricRecord({"a": 1.0})}))
    reply = ask(app, node=node, **{"egress-allow": "query.mine", "egress-log": str(tmp_path / "other.jsonl")})
    assert status(reply) == ("client-0", "egress-refused")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]


def test_own_handlers_are_covered_and_leave_if_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "egress.jsonl"
    app = own_handler(lambda: RecordDict({"mine": MetricRecord({"count": 3}), "note": ConfigRecord({"text": "hi"})}))
    assert ask(app, node={"egress-log": str(path), "egress-allow": "update"}).content.metric_records["metrics"] == {}
    reply = ask(app, node={"egress-log": str(path), "egress-allow": "query.mine", "egress-metrics": "count"})
    assert reply.content.metric_records["mine"] == {"count": 3}
    refused, sent = entries(path)
    assert refused.kind == "refusal" and refused.details["refused"]["kind"] == "query.mine"
    assert sent.kind == "query.mine" and sent.details["metrics"] == {"mine.count": 3}
    assert sent.details["words"] == {"note.text": "hi"}


def test_text_of_errors_stays_at_home(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp(mods=[EgressGuard()])

    @app.query("raises")
    def raises(message: Message, context: Context) -> Message:
        raise ValueError("Jane Doe, born 1970")

    @app.query("answers")
    def answers(message: Message, context: Context) -> Message:
        return Message(Error(0, "Jane Doe, born 1970"), reply_to=message)

    @app.query("nothing")
    def nothing(message: Message, context: Context) -> Any:
        return None

    node = {"egress-log": str(tmp_path / "egress.jsonl"), "name": "clinic"}
    codes = [status(ask(app, f"query.{kind}", node)) for kind in ("raises", "answers", "nothing")]
    assert codes == [("clinic", "exception ValueError"), ("clinic", "error 0"), ("clinic", "exception AttributeError")]
    assert "Jane" in caplog.text
    assert "Jane" not in (tmp_path / "egress.jsonl").read_text()


@pytest.mark.parametrize(
    ("node", "code"),
    [
        ({"egress-log": "{}/file/egress.jsonl"}, "egress-log"),
        ({"egress-log": "{}/broken.jsonl"}, "egress-log"),
        ({"egress-allow": "updates"}, "settings"),
        ({"egress-budget": 1000}, "settings"),  # no log to count in
    ],
)
def test_nothing_leaves_if_rules_or_log_cannot_be_used(node: dict[str, Any], code: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken.jsonl").write_text('{"time": "yesterday"}\n')
    node = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in node.items()}
    app = own_handler(lambda: RecordDict({"mine": MetricRecord({"secret": 42.0})}))
    assert status(ask(app, node={**node, "name": "clinic"})) == ("", code)


def test_a_round_goes_on_without_a_member_that_may_not_send(tmp_path: Path) -> None:
    strict = {"egress-log": str(tmp_path / "a.jsonl"), "egress-allow": "evaluation"}
    server, _ = run(compressor="quantized", nodes=3, rounds=1, node_configs=[strict])
    (left_out,) = server.progress.history()[0].left_out
    assert (left_out.client, left_out.reason) == ("client-0", "the node reports egress-refused")
    assert server.replica.version == 1


def test_a_metric_of_ones_own_leaves_if_it_is_listed(tmp_path: Path) -> None:
    def train(model: nn.Module, info: RoundInfo) -> TrainResult:
        shift_train(model, info)
        return TrainResult(1, 1.0, {"f1": 0.5})

    def versions(**node: str) -> int:
        app = PrivateClient(make_model, train, norm_evaluate).app()
        grid = LocalGrid(app, 1, run_config={"compressor": "quantized"}, node_configs=[node])
        strategy = DistroStrategy(
            min_train_nodes=1, min_available_nodes=1, round_timeout=1, fraction_evaluate=0.0
        )  # fmt: skip
        strategy.start(grid, make_model(), 1)
        return strategy.replica.version

    known = "num-examples,train-loss,held-out-loss,held-out-tokens,held-out-examples,seconds"
    assert versions() == 1
    assert versions(**RULES) == 0
    assert versions(**RULES, **{"egress-metrics": f"{known},f1"}) == 1


def test_every_message_of_secure_aggregation_has_a_kind(tmp_path: Path) -> None:
    rules = {"egress-log": str(tmp_path / "egress.jsonl"), "egress-allow": "secure,masked-update,masked-evaluation"}
    members = Members(tmp_path)
    nodes = [{"secure-folder": str(folder)} for folder in members.folders]
    nodes[0] |= rules
    server, grid = members.run(make_compressor("quantized", bits=1), node_configs=nodes, rounds=2)
    assert server.replica.version == 2
    log = entries(tmp_path / "egress.jsonl")
    assert {entry.kind for entry in log} == {"secure", "masked-update", "masked-evaluation"}
    assert sum(entry.bytes for entry in log) == grid.bytes_up[101]
    assert not any("metrics" in entry.details for entry in log)
