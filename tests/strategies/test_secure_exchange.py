"""Members that do not answer in the stages of secure aggregation that need no training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from distro_fed.clients.secure_member import SecureMember
from distro_fed.compression import make_compressor
from distro_fed.reporting.events import EventWriter
from distro_fed.secure_aggregation.messages import Kind, parse
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.strategies import secure_exchange
from distro_fed.strategies.exchange import Exchange
from distro_fed.transport.records import HELLO
from distro_fed.transport.secure_records import SECURE, read_messages
from tests.strategies.secure_members import Members

CODE = make_compressor("quantized", bits=8)


def losing(kind: Kind, nodes: set[int], times: int = 1) -> Callable[[Message, int], bool]:
    """Lose the first messages of a kind to some nodes, whatever comes with them."""
    seen = Counter[int]()

    def drop(message: Message, node_id: int) -> bool:
        if node_id not in nodes or not any(parse(part).kind is kind for part in read_messages(message.content)):
            return False
        seen[node_id] += 1
        return seen[node_id] <= times

    return drop


def survived(members: Members, index: int, round_: int) -> bool:
    return SecureMember.from_folder(members.folders[index], run=1).survived(round_)


def test_a_silent_node_is_waited_for_no_longer_than_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()

    class Watched(Exchange):
        def __init__(self, grid: Any, timeout: float) -> None:
            waited.append(timeout)
            super().__init__(grid, 0.0)

    monkeypatch.setattr(secure_exchange, "Exchange", Watched)
    for stage_timeout in (7.0, 0.0):
        members = Members(tmp_path / str(stage_timeout))
        members.run(CODE, rounds=1, strategy={"stage_timeout": stage_timeout, "round_timeout": 0.5})
    assert set(waited) == {7.0, 0.5}


def test_silent_and_failing_nodes_are_left_out_with_the_reason(tmp_path: Path) -> None:
    members = Members(tmp_path / "members", count=6)
    (members.folders[4] / "identity.toml").unlink()
    with EventWriter(tmp_path / "events.jsonl") as events:
        drop = losing(Kind.PROPOSAL, {106}, times=9)
        server, _ = members.run(CODE, rounds=1, drop=drop, strategy={"events": events})
    (record,) = server.progress.history()
    # neither has proved to be a member, and 4 of 6 are too few where t = 5
    reasons = {one.client: one.reason for one in record.left_out}
    assert reasons == {"node 105": "the node reports identity", "node 106": "no answer in time"}
    assert record.skipped
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    silent = [line for line in lines if line["event"] == "no_answer"]
    assert {line["client"] for line in silent} == {"node 106"}


def test_a_member_that_is_silent_in_training_is_left_out_with_the_reason(tmp_path: Path) -> None:
    server, _ = Members(tmp_path).run(CODE, rounds=1, drop=losing(Kind.DELIVERY, {102}))
    (record,) = server.progress.history()
    assert [(one.client, one.reason) for one in record.left_out] == [("client-1", "no answer in time")]
    assert not record.skipped


@pytest.mark.parametrize(("attempts", "skipped"), [(1, True), (2, False)])
def test_a_round_that_lacks_shares_is_agreed_on_again(tmp_path: Path, attempts: int, skipped: bool) -> None:
    members = Members(tmp_path, Policy(min_cohort=3, min_survivors=2, max_attempts=attempts))
    server, _ = members.run(CODE, rounds=1, drop=losing(Kind.KEYS, {103, 104}))
    (record,) = server.progress.history()
    assert record.skipped is skipped
    assert not record.left_out or skipped


@pytest.mark.parametrize("fixed", [True, False])
def test_where_the_cohort_is_not_fixed_the_silent_are_not_in_the_next_one(tmp_path: Path, fixed: bool) -> None:
    members = Members(tmp_path, Policy(min_cohort=3, min_survivors=2, fixed_cohort=fixed), count=6)
    server, grid = members.run(CODE, rounds=1, drop=losing(Kind.KEYS, {105, 106}, times=9))
    (record,) = server.progress.history()
    assert record.skipped is fixed
    assert {one.client for one in record.left_out} == {"client-4", "client-5"}
    # in the second attempt only the others were asked
    assert (grid.bytes_down[106] < grid.bytes_down[101] / 2) is not fixed


def test_a_member_that_was_not_told_that_it_is_in_the_sum_is_told_later(tmp_path: Path) -> None:
    members = Members(tmp_path)
    server, _ = members.run(CODE, rounds=1, drop=losing(Kind.SURVIVOR_SET, {104}))
    (record,) = server.progress.history()
    assert not record.left_out
    assert not survived(members, 3, 1), "it has not been asked anything since"
    members = Members(tmp_path / "longer")
    server, _ = members.run(CODE, rounds=3, drop=losing(Kind.SURVIVOR_SET, {104}))
    assert [len(record.left_out) for record in server.progress.history()] == [0, 1, 0]
    assert [survived(members, 3, round_) for round_ in (1, 2, 3)] == [True, False, True]


def test_a_node_that_is_busy_with_an_older_request_is_not_asked(tmp_path: Path) -> None:
    asked = list[str]()

    def drop(message: Message, node_id: int) -> bool:
        if node_id == 104:
            asked.append(message.metadata.message_type)
        return node_id == 104 and message.metadata.message_type != SECURE

    server, _ = Members(tmp_path).run(CODE, rounds=2, drop=drop)
    assert server.replica.version == 2
    # the proposal and the keys of round 1, its training, and a sign of life that does not come either
    assert asked == [SECURE, SECURE, "train", HELLO]
