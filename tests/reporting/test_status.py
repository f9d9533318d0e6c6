from __future__ import annotations

import json

import pytest

from distro_fed.errors import DistroFedError
from distro_fed.reporting.events import Event
from distro_fed.reporting.run_status import MemberState, RunState, RunStatus
from distro_fed.reporting.status import StatusBuilder, status_of
from tests.reporting.sample_events import (
    RUN_FAILED,
    RUN_FINISHED,
    SOMETHING_NEWER,
    START,
    drift,
    evaluation,
    finished,
    late_reply,
    no_answer,
    refused,
    reply,
    resumed,
    round_started,
    started,
    timed,
    traffic,
)


def after(*events: Event) -> RunStatus:
    return status_of(timed(*events))


def states(run: RunStatus) -> dict[str, str]:
    return {name: str(member.state) for name, member in run.members.items()}


def test_nothing_yet() -> None:
    run = status_of([])
    assert run.state is RunState.STARTING
    assert (run.seconds(START), run.seconds_left(START), run.silent_seconds(START)) == (0.0, None, None)


def test_within_a_round() -> None:
    run = after(
        started(), round_started(1, "north", "south", "west"), reply(1, "north"), refused(1, "west", "wrong layout")
    )
    assert (run.state, run.round, run.rounds, run.in_round, run.rounds_done) == (RunState.RUNNING, 1, 3, True, 0)
    assert states(run) == {"north": "done", "south": "training", "west": "left out"}
    west = run.members["west"]
    assert (west.reason, west.left_out, west.bytes_up, west.bytes_down) == ("wrong layout", 1, 5, 6)
    assert (run.members["north"].loss, run.members["north"].held_out_loss) == (2.5, 2.75)
    assert run.round_seconds(START + 11) == 10
    assert run.seconds(START + 11) == 11
    assert run.silent_seconds(START + 11) == 8


def test_a_closed_round_moves_the_version_and_a_skipped_one_does_not() -> None:
    run = after(started(), round_started(1, "a"), reply(1, "a"), finished(1), round_started(2, "a"), no_answer(2, "a"),
                finished(2, skipped=True, loss=None, left=50.0))  # fmt: skip
    assert (run.version, run.skipped_rounds, run.rounds_done, run.last_round_seconds) == (1, (2,), 2, 4.0)
    assert run.train_loss == 2.5  # of the last round that had one
    assert run.round_seconds(START + 100) is None
    assert run.seconds_left(START + 6 + 20) == 30.0
    assert run.seconds_left(START + 1000) == 0.0


def test_who_is_late_stays_late_until_it_is_asked_again() -> None:
    events = [started(), round_started(1, "a", "b"), reply(1, "a"), no_answer(1, "b"), finished(1)]
    run = after(*events)
    b = run.members["b"]
    assert (b.state, b.reason, b.seconds, b.no_answers) == (MemberState.NO_ANSWER, "no answer in time", 30.0, 1)
    events += [round_started(2, "a")]
    assert states(after(*events)) == {"a": "training", "b": "no answer"}
    events += [late_reply(1, "b")]
    b = after(*events).members["b"]
    assert (b.state, b.round, b.reason, b.late_replies) == (MemberState.LATE, 1, "its round is closed", 1)
    events += [reply(2, "a"), finished(2), round_started(3, "a", "b"), late_reply(1, "b")]
    run = after(*events)
    assert states(run) == {"a": "training", "b": "training"}
    assert run.total("late_replies") == 2


def test_who_is_not_asked_in_a_round_says_so() -> None:
    run = after(started(), round_started(1, "a", "b"), reply(1, "a"), refused(1, "b", "x"), finished(1),
                round_started(2, "a"))  # fmt: skip
    assert states(run) == {"a": "training", "b": "not asked"}
    assert run.members["b"].reason == ""


def test_traffic_replaces_what_replies_told() -> None:
    run = after(started(), round_started(1, "a"), reply(1, "a"), traffic(1, a=1500, b=7), finished(1),
                round_started(2, "a"), reply(2, "a"))  # fmt: skip
    assert (run.members["a"].bytes_up, run.members["a"].bytes_down) == (2500, 5000)
    assert (run.total("bytes_up"), run.total("bytes_down")) == (2507, 5014)


def test_a_member_is_not_counted_under_its_stand_in_too() -> None:
    """Asked as node 1 and node 2, of which one tells its name and the other never answers."""
    events = [started(), round_started(1, "node 1", "node 2"), reply(1, "north")]
    assert sorted(states(after(*events)).values()) == ["done", "training"]
    run = after(*events, no_answer(1, "node 2"), finished(1))
    assert states(run) == {"north": "done", "node 2": "no answer"}


def test_without_an_event_of_its_own_silence_is_seen_when_the_round_closes() -> None:
    run = after(started(), round_started(1, "a", "b"), reply(1, "a"), reply(1, "b"), finished(1),
                round_started(2, "a", "b"), reply(2, "a"), finished(2))  # fmt: skip
    assert states(run) == {"a": "done", "b": "no answer"}


def test_drifts_are_counted() -> None:
    run = after(started(), round_started(1, "a", "b"), drift(1, "b"), drift(1, "b"))
    assert (run.members["b"].drifts, run.total("drifts"), run.members["b"].state) == (2, 2, "training")


def test_the_end() -> None:
    events = [started(1), round_started(1, "a", "b"), reply(1, "a"), reply(1, "b"), finished(1, left=0.0),
              evaluation(1, "a", 2.0), evaluation(1, "b", 1.0), RUN_FINISHED]  # fmt: skip
    run = after(*events)
    assert (run.state, run.is_over, run.held_out_loss) == (RunState.FINISHED, True, 1.5)
    assert run.members["b"].held_out_loss == 1.0
    assert run.seconds(START + 1e6) == len(events) - 1
    assert run.seconds_left(START + 1e6) is None


def test_a_run_that_failed_and_was_resumed() -> None:
    before = [started(), round_started(1, "a"), reply(1, "a"), finished(1), round_started(2, "a"),
              finished(2, skipped=True), round_started(3, "a"), RUN_FAILED]  # fmt: skip
    failed = after(*before)
    assert (failed.state, failed.error, failed.in_round) == (RunState.FAILED, "no \x07 nodes", False)
    run = after(*before, resumed(2, version=1, rounds=5))
    assert run.rounds == 5  # a run may go on for longer than it was meant to
    assert (run.state, run.error, run.round, run.version, run.resumed) == (RunState.RUNNING, "", 1, 1, 1)
    assert run.skipped_rounds == ()  # round 2 is done again
    assert states(run) == {"a": "not asked"}
    assert run.started == START
    again = after(*before, started(), resumed(2, version=1), round_started(2, "a"), reply(2, "a"), finished(2))
    assert (again.round, again.version, again.resumed) == (2, 2, 1)


def test_a_builder_says_at_every_moment_what_the_function_says() -> None:
    events = timed(started(), round_started(1, "b", "a"), reply(1, "b"), SOMETHING_NEWER, no_answer(1, "a"),
                   finished(1), RUN_FINISHED)  # fmt: skip
    builder = StatusBuilder()
    moments = []
    for count, event in enumerate(events, start=1):
        builder.add(event)
        moments.append(builder.status())
        assert moments[-1] == status_of(events[:count])
    assert moments[1].members["b"].state is MemberState.TRAINING  # later events do not change an earlier status


def test_json_has_everything() -> None:
    run = after(started(), round_started(1, "a"), reply(1, "a"), traffic(1, a=10), finished(1, left=100.0))
    facts = json.loads(json.dumps(run.to_dict(START + 14), allow_nan=False))
    assert facts["state"] == "running"
    assert facts["members"][0]["state"] == "done"
    assert facts["members"][0]["bytes_down"] == facts["bytes_down"] == 20
    assert (facts["seconds"], facts["seconds_left"], facts["silent_seconds"]) == (14.0, 90.0, 10.0)
    assert (facts["rounds_done"], facts["round_seconds"]) == (1, None)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "round_started", "round": 1},
        {"event": "round_started", "round": 1, "clients": 5},
        {"event": "reply", "round": 1, "client": "a"},
        {"event": "run_failed", "time": "yesterday", "error": ""},
    ],
)
def test_an_event_that_lacks_something_is_named(event: Event) -> None:
    with pytest.raises(DistroFedError, match=f"'{event['event']}' of this release"):
        after(event)
    with pytest.raises(DistroFedError, match="'time'"):
        status_of([{"event": "run_finished", "seconds": 1}])
