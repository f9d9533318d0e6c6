"""Nodes that answer late or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.clients import PrivateClient
from distro_fed.reporting.events import EventWriter, read_events
from distro_fed.strategies import DistroStrategy
from distro_fed.strategies.sampling import sample, sample_free
from distro_fed.strategies.stragglers import LONGEST_SECONDS, SHORTEST_SECONDS, Pace, Timing, sized_timeout
from distro_fed.transport.local_grid import LocalGrid
from tests.federation import make_model, norm_evaluate, shift_train

# --- how long to wait -----------------------------------------------------------------------------------


def test_without_a_measurement_an_hour() -> None:
    assert sized_timeout([], 10**9) == LONGEST_SECONDS


@pytest.mark.parametrize(
    ("timing", "size", "expected"),
    [
        (Timing(worked=20, waited=30, size=10_000), 10_000, 90),  # three times what it took
        (Timing(worked=20, waited=30, size=10_000), 500, 90),  # a smaller message is no faster: latency
        (Timing(worked=20, waited=30, size=10_000), 1_260_000, 3 * (30 + 10)),  # 1.25 MB more at 1 Mbit/s
        (Timing(worked=20, waited=30, size=100_000_000), 200_000_000, 3 * (30 + 10)),  # at the 10 MB/s it showed
        (Timing(worked=0, waited=1, size=10_000), 10_000, SHORTEST_SECONDS),
        (Timing(worked=0, waited=2000, size=10_000), 10_000, LONGEST_SECONDS),
        (Timing(worked=1e9, waited=30, size=10_000), 10_000, 90),  # what a member claims does not count
    ],
)
def test_the_formula(timing: Timing, size: int, expected: float) -> None:
    assert sized_timeout([timing], size) == pytest.approx(expected)


timings = st.builds(Timing, worked=st.floats(-1e15, 1e15), waited=st.floats(0, 1e5), size=st.integers(0, 10**10))


@given(st.lists(timings, min_size=1, max_size=4), timings, st.integers(0, 10**10))
@settings(deadline=None)
def test_it_covers_everybody_and_is_bounded(known: list[Timing], other: Timing, size: int) -> None:
    seconds = sized_timeout(known, size)
    assert SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS
    assert seconds >= min(LONGEST_SECONDS, max(timing.waited for timing in known))
    assert sized_timeout([*known, other], size) >= seconds
    assert sized_timeout(known, size + 1000) >= seconds


def test_the_pace_of_a_run_follows_those_who_are_asked() -> None:
    pace = Pace(0)
    pace.asks([1, 2], 1000)
    assert pace.timeout == LONGEST_SECONDS
    pace.took(1, Timing(10, 20, 1000))
    pace.took(2, Timing(90, 100, 1000))
    assert pace.timeout == 300
    assert pace.time_to_live == 600
    pace.asks([1], 1000)
    assert pace.timeout == 60
    restored = Pace(0)
    restored.restore(pace.to_json())
    restored.asks([2], 1000)
    assert restored.timeout == 300
    pace.round_timeout = 7.0
    assert (pace.timeout, pace.time_to_live) == (7.0, 60.0)


# --- who is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "quorum", "cohort", "short"),
    [
        ([], 0.5, [1, 2, 3, 4], 0),
        ([3], 0.5, [1, 2, 4], 1),
        ([3, 4], 0.5, [1, 2], 2),
        ([2, 3, 4], 0.5, [1, 2, 3, 4], 0),  # one alone is below the quorum
        ([2, 3, 4], 0.0, [1, 2, 3, 4], 0),  # and below the minimum of two
        ([4], 1.0, [1, 2, 3, 4], 0),
    ],
)
def test_busy_nodes_are_spared_as_long_as_the_round_can_count(
    busy: list[int], quorum: float, cohort: list[int], short: int
) -> None:
    assert sample_free([1, 2, 3, 4], busy, 1.0, 2, quorum, 0, 1) == (cohort, short)


def test_with_nobody_busy_the_sample_is_the_same() -> None:
    nodes = list(range(20))
    assert sample_free(nodes, [], 0.3, 2, 0.5, 7, 3) == (sample(nodes, 0.3, 2, 7, 3), 0)
    cohort, short = sample_free(nodes, [0, 1], 0.3, 2, 0.5, 7, 3)
    assert len(cohort) == 6
    assert not {0, 1} & set(cohort)
    assert short == 0


# --- a federation with slow nodes ------------------------------------------------------------------------


class SlowGrid(LocalGrid):
    """A node works through its messages one by one; some messages of round r are answered in round r + delay.

    Parameters
    ----------
    delay : callable
        ``delay(node_id, round) -> rounds``; 0: at once.
    """

    def __init__(self, *args: Any, delay: Callable[[int, int], int], **options: Any) -> None:
        self._delay, self.now = delay, 0
        self._due: dict[str, tuple[int, int]] = {}
        self._done: dict[str, list[Message]] = {}
        super().__init__(*args, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed: list[str] = []
        for message in messages:
            number, node_id = int(message.metadata.group_id), message.metadata.dst_node_id
            is_probe = message.metadata.message_type == "query.hello"
            self.now = max(self.now, number)
            for key in super().push_messages([message]):
                own = number + (0 if is_probe else self._delay(node_id, number))
                before = max((due for other, due in self._due.values() if other == node_id), default=0)
                self._due[key] = (node_id, max(own, before))  # it comes after the one that the node is busy with
                if own > number:
                    self._done[key] = list(super().pull_messages([key]))
                pushed.append(key)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        due = [key for key in message_ids if self._due[key][1] <= self.now]
        done = [reply for key in due for reply in self._done.pop(key, [])]
        return done or super().pull_messages(due)


def serve(tmp_path: Path, delay: Callable[[int, int], int], rounds: int = 6, **options: Any) -> DistroStrategy:
    client = PrivateClient(make_model, shift_train, norm_evaluate, state_dir=str(tmp_path / "members"))
    grid = SlowGrid(client.app(), 4, run_config={"compressor": "quantized"}, delay=delay)
    with EventWriter(tmp_path / "events.jsonl") as events:
        server = DistroStrategy(**{"round_timeout": 0.3, "events": events, "fraction_evaluate": 0.0} | options)
        server.start(grid, make_model(), rounds)
    return server


def test_a_slow_node_blocks_one_round_and_no_other(tmp_path: Path) -> None:
    """Node 102 answers the request of round 2 when round 5 is on: it is not asked until then, and is in again in 6."""
    server = serve(tmp_path, lambda node_id, number: 3 if (node_id, number) == (102, 2) else 0)
    history = server.progress.history()
    assert [record.asked for record in history] == [4, 4, 3, 3, 3, 4]
    assert [[item.client for item in record.left_out] for record in history] == [[], ["client-1"], [], [], [], []]
    assert not any(record.skipped for record in history)
    events, _ = read_events(tmp_path / "events.jsonl")
    (silent,) = [event for event in events if event["event"] == "no_answer"]
    assert (silent["round"], silent["client"], silent["reason"]) == (2, "client-1", "no answer in time")
    assert 0 < silent["seconds"] < 30
    (late,) = [event for event in events if event["event"] == "late_reply"]
    assert (late["round"], late["client"], late["accepted"]) == (2, "client-1", False)
    assert "its base was gone" in late["reason"]
    assert server.progress.late_replies == {"client-1": 1}


def test_every_byte_of_a_late_reply_is_counted(tmp_path: Path) -> None:
    in_time = serve(tmp_path / "a", lambda node_id, number: 0, rounds=3)
    late = serve(tmp_path / "b", lambda node_id, number: int(node_id == 102 and number == 2), rounds=3)
    size = in_time.ledger.total(round=2, client="client-1", direction="up", kind="update")
    assert late.ledger.total(round=2, client="client-1", direction="up", kind="update") == pytest.approx(size, abs=32)
    assert late.ledger.total(client="client-1", direction="up", kind="other") > 0  # and of the probe


def test_the_final_evaluation_does_not_wait_for_a_busy_node(tmp_path: Path) -> None:
    server = serve(
        tmp_path, lambda node_id, number: 9 * ((node_id, number) == (102, 2)), rounds=2, fraction_evaluate=1.0
    )
    assert server.ledger.total(client="client-1", direction="down", kind="evaluation") == 0
    assert set(server.progress.held_out[2]) == {"client-0", "client-2", "client-3"}


def test_two_slow_nodes_of_four_and_the_run_goes_on(tmp_path: Path) -> None:
    server = serve(tmp_path, lambda node_id, number: 2 * (node_id > 102), rounds=5)
    assert [record.skipped for record in server.progress.history()] == [False] * 5
    assert server.progress.history()[1].asked == 2


def test_a_node_that_was_started_anew_is_asked_again(tmp_path: Path) -> None:
    """It has lost its request, and answers the probe; without that it would be left alone until the request is void."""
    client = PrivateClient(make_model, shift_train, norm_evaluate, state_dir=str(tmp_path))
    grid = LocalGrid(
        client.app(), 4, run_config={"compressor": "quantized"},
        drop=lambda message, node_id: node_id == 102 and message.metadata.message_type == "train"
        and message.metadata.group_id == "2",
    )  # fmt: skip
    server = DistroStrategy(round_timeout=0.3, fraction_evaluate=0.0)
    server.start(grid, make_model(), 4)
    assert [record.asked for record in server.progress.history()] == [4, 4, 4, 4]
    assert server.ledger.total(kind="other", direction="up") > 0


def test_a_timeout_sized_by_the_run(tmp_path: Path) -> None:
    server = serve(tmp_path, lambda node_id, number: 0, rounds=2, round_timeout=0.0)
    server.courier.pace.asks([101, 102], 0)
    assert server.courier.pace.timeout == SHORTEST_SECONDS
    assert server.replica.version == 2
