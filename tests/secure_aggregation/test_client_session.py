from __future__ import annotations

import logging
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from distro_fed.errors import EncodingError, LedgerError, Refused, RosterError
from distro_fed.secure_aggregation.client_session import ClientSession
from distro_fed.secure_aggregation.ledger import Stage
from distro_fed.secure_aggregation.messages import Kind, parse
from tests.secure_aggregation.members import (
    LAYOUT,
    MODEL,
    PLAN,
    POLICY,
    RUN,
    Federation,
    MemoryLedger,
    identity,
    plain_sum,
    random_codes,
    refusal_of,
    roster,
    run_round,
    stage_messages,
    up_to,
)

CODES = np.arange(8, dtype=np.uint8)


@pytest.fixture
def federation() -> Federation:
    return Federation(4)


def test_messages_have_the_sizes_that_the_documentation_gives(federation: Federation) -> None:
    server, codes, sizes = federation.server(federation.proposal(count=1000)), random_codes(4, 8, 1000), []
    for stage in range(5):
        messages = stage_messages(server, stage)
        replies = [federation.respond(member, message, codes[member]) for member, message in messages.items()]
        for reply in replies:
            server.accept(reply)
        sizes.append((len(messages[0]), len(replies[0])))
    n, t, b = 4, 3, 10
    assert sizes == [
        (194, 200),
        (72 + 160 * n, 136 + 80 * (n - 1)),
        (104 + 80 * (n - 1), 104 + 125 * b),
        (72, 104),
        (72 + 64 * t, 136 + 32 * n),
    ]
    np.testing.assert_array_equal(server.result().sums, plain_sum(codes, range(4)))


@pytest.mark.parametrize("stage", [1, 3, 4])
@pytest.mark.parametrize("state_is_saved", [True, False])
def test_a_stage_is_answered_once(federation: Federation, stage: int, state_is_saved: bool) -> None:
    message, before = up_to(federation, federation.server(), stage)[0], federation.states[0]
    assert refusal_of(federation.respond(0, message)) == ""
    if not state_is_saved:
        federation.states[0] = before
    finished = stage == 4 and state_is_saved
    assert refusal_of(federation.respond(0, message)) == ("unknown-attempt" if finished else "already-answered")


def test_every_stage_is_noted(federation: Federation) -> None:
    run_round(federation, random_codes(4, 8, 8))
    assert [entry.stage for entry in federation.ledgers[2].entries()] == list(Stage)
    assert {entry.context for entry in federation.ledgers[2].entries()} == {federation.proposal().context.hex()[:16]}


def test_stages_come_in_order(federation: Federation) -> None:
    """Each message of a whole round, to a member that has not come so far yet."""
    server, states, sent = federation.server(), [], []
    for stage in range(5):
        states.append(federation.states[0])
        messages = stage_messages(server, stage)
        sent.append(messages[0])
        for member, message in messages.items():
            server.accept(federation.respond(member, message, CODES))
    federation.ledgers[0] = MemoryLedger()
    cases = 0
    for have in range(1, 5):
        for stage in range(have + 1, 5):
            federation.states[0] = states[have]
            if stage == 2:
                with pytest.raises(Refused, match="out-of-order"):
                    federation.respond(0, sent[stage])
            else:
                assert refusal_of(federation.respond(0, sent[stage])) == "out-of-order"
            cases += 1
    assert cases == 6
    assert federation.ledgers[0].entries() == []


def test_a_lost_or_damaged_state_is_no_state(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    message = up_to(federation, federation.server(), 1)[0]
    for state in (b"", b"x", federation.states[1], federation.states[0][:-1]):
        federation.states[0] = state
        assert refusal_of(federation.respond(0, message)) == "unknown-attempt"
    assert "not the state of this member" in caplog.text
    # and the next round begins as if nothing had been
    assert refusal_of(federation.respond(0, federation.proposal(2).to_bytes())) == ""


def test_a_finished_round_leaves_nothing_behind(federation: Federation) -> None:
    run_round(federation, random_codes(4, 8, 8))
    assert set(map(len, federation.states.values())) == {6}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": b"X" * 32}, "other-model"),
        ({"layout": b"X" * 32}, "other-layout"),
        ({"plan": b"X" * 32}, "other-plan"),
    ],
)
def test_what_was_trained_must_be_what_was_announced(
    federation: Federation, change: dict[str, bytes], reason: str
) -> None:
    message = up_to(federation, federation.server(), 2)[0]
    client = federation.client(0)
    delivery = client.receive_shares(message, federation.states[0])
    digests = {"model": MODEL, "layout": LAYOUT, "plan": PLAN}
    with pytest.raises(Refused) as caught:
        client.send_masked(delivery, CODES, **(digests | change))
    assert caught.value.reason == reason
    # nothing was consumed
    client.send_masked(delivery, CODES, **digests)


@pytest.mark.parametrize("codes", [CODES[:-1], CODES.astype(np.uint16) + 249, CODES.astype(np.int16)])
def test_codes_that_were_not_proposed(federation: Federation, codes: np.ndarray) -> None:
    message = up_to(federation, federation.server(), 2)[0]
    with pytest.raises(EncodingError):
        federation.respond(0, message, codes)
    federation.respond(0, message, CODES)


def test_a_consumed_round_is_refused_before_training(federation: Federation) -> None:
    message = up_to(federation, federation.server(), 2)[0]
    before = federation.states[0]
    federation.respond(0, message, CODES)
    with pytest.raises(Refused, match="round-consumed"):
        federation.client(0).receive_shares(message, before)


def test_rounding_is_private_and_new_each_time(federation: Federation) -> None:
    messages = up_to(federation, federation.server(), 2)
    keys = [federation.client(m).receive_shares(messages[m], federation.states[m]).rounding_key for m in range(4)]
    assert len(set(keys)) == 4
    assert all(key not in b"".join(messages.values()) for key in keys)


def test_a_refusal_names_its_attempt_and_changes_nothing(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    message = federation.proposal(bits=8).to_bytes()
    federation.policy = replace(POLICY, bits=(1, 4))
    answer = federation.answer(0, message)
    reply = parse(answer.reply)
    assert (reply.kind, reply.sender, reply.context) == (Kind.REFUSAL, 0, parse(message).context)
    assert refusal_of(answer.reply) == "forbidden-bits"
    assert answer.state == b""
    assert federation.ledgers[0].entries() == []
    # the numbers stay in the member's own log
    assert "8, allowed are 1 to 4" in caplog.text
    assert b"allowed are 1 to 4" not in answer.reply


@pytest.mark.parametrize("data", [b"", b"DFSA", b"\x80\x04", bytes(200)])
def test_nonsense_is_refused(federation: Federation, data: bytes) -> None:
    assert refusal_of(federation.client(0).respond(data, b"").reply) == "malformed"


def test_a_delivery_is_not_answered_without_an_update(federation: Federation) -> None:
    message = up_to(federation, federation.server(), 2)[0]
    assert refusal_of(federation.client(0).respond(message, federation.states[0]).reply) == "malformed"


def test_a_ledger_that_cannot_be_used_refuses(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(entry: object) -> None:
        raise LedgerError("disk full at /home/secret")

    monkeypatch.setattr(federation.ledgers[0], "record", broken)
    reply = federation.client(0).respond(federation.proposal().to_bytes(), b"").reply
    assert refusal_of(reply) == "not-set-up"
    assert b"/home" not in reply


def test_who_is_not_in_the_roster_takes_no_part() -> None:
    with pytest.raises(RosterError):
        ClientSession(identity(9), roster(4), POLICY, MemoryLedger(), RUN)


def test_a_new_attempt_before_any_vector_was_sent(federation: Federation) -> None:
    up_to(federation, federation.server(), 2)
    codes = random_codes(4, 8, 8)
    result = run_round(federation, codes, server=federation.server(federation.proposal(attempt=2)))
    np.testing.assert_array_equal(result.sums, plain_sum(codes, range(4)))


def test_the_log_names_the_cohort(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "distro_fed"):
        federation.respond(0, federation.proposal(round_=3).to_bytes())
    assert "round 3, attempt 1 with member000, member001, member002, member003" in caplog.text


def test_masks_are_never_held_as_a_whole() -> None:
    """Six masks of a million values would take 12 MB."""
    federation, count = Federation(6), 1_000_000
    server = federation.server(federation.proposal(count=count))
    message = up_to(federation, server, 2, random_codes(6, 8, count))[0]
    client, codes = federation.client(0), np.zeros(count, np.uint8)
    delivery = client.receive_shares(message, federation.states[0])
    tracemalloc.start()
    try:
        reply = client.send_masked(delivery, codes, model=MODEL, layout=LAYOUT, plan=PLAN).reply
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the reply while it is filled, the reply as bytes, and blocks
    assert peak < 2 * len(reply) + 1_500_000
