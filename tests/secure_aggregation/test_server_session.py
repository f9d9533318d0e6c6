from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from distro_fed.errors import BadReply, RoundAborted
from distro_fed.secure_aggregation import client_session
from distro_fed.secure_aggregation.messages import Kind, Message, encode_table, parse, refusal
from distro_fed.secure_aggregation.server_session import ServerSession
from distro_fed.secure_aggregation.shamir import PRIME
from tests.secure_aggregation.members import (
    Federation,
    plain_sum,
    random_codes,
    run_round,
    signed_message,
    stage_messages,
    up_to,
)

CODES = random_codes(5, 8, 8)


@pytest.fixture
def federation() -> Federation:
    return Federation(5)


def refused(server: ServerSession, reply: bytes, text: str) -> None:
    missing = server.missing
    with pytest.raises(BadReply, match=text):
        server.accept(reply)
    assert server.missing == missing


@pytest.mark.parametrize("stage", range(5))
def test_what_does_not_belong_to_the_stage(federation: Federation, stage: int) -> None:
    server = federation.server()
    earlier: list[bytes] = []
    for before in range(stage + 1):
        replies = [federation.respond(m, data, CODES[m]) for m, data in stage_messages(server, before).items()]
        if before < stage:
            earlier += replies
            for reply in replies:
                server.accept(reply)
    for reply in earlier:
        refused(server, reply, "is awaited|not awaited")
    assert server.accept(replies[2]) == 2
    refused(server, replies[2], "not awaited")
    outsider = parse(replies[3])
    refused(server, Message(outsider.kind, 77, outsider.context, outsider.body, outsider.signature).to_bytes(), "77")
    posing = Message(outsider.kind, 4, outsider.context, outsider.body, outsider.signature).to_bytes()
    refused(server, posing, "signature is not that of member 4")
    other = Message(outsider.kind, 3, b"o" * 32, outsider.body, outsider.signature).to_bytes()
    refused(server, other, "of attempt 6f6f6f6f")
    refused(server, b"junk", "malformed")


def test_a_refusal_is_told_to_the_operator(federation: Federation) -> None:
    server = federation.server()
    refused(server, refusal("small-cohort", "the cohort is too small", 3), "member 3 refuses: small-cohort: the cohort")


def test_keys_that_others_would_refuse_are_left_out(federation: Federation) -> None:
    server = federation.server()
    context, message = federation.proposal().context, server.proposal_message
    first = federation.respond(0, message)
    server.accept(first)
    keys = bytes(parse(first).body)

    def advertise(body: bytes) -> bytes:
        return signed_message(Kind.ADVERTISEMENT, 1, context, context, body)

    own = bytes(parse(federation.respond(1, message)).body)
    refused(server, advertise(keys), "used twice")
    refused(server, advertise(own[:32] + keys[32:64] + own[64:]), "used twice")
    refused(server, advertise(own[:32] + own[:32] + own[64:]), "used twice")
    refused(server, advertise(bytes(32) + own[32:]), "bad-key")
    refused(server, advertise(own[:32] + b"\x01" + bytes(31) + own[64:]), "bad-key")
    refused(server, advertise(own[:-1]), "95 bytes")
    server.accept(advertise(own))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: {m: row for m, row in rows.items() if m != 2},
        lambda rows: rows | {1: bytes(80)},
        lambda rows: rows | {9: bytes(80)},
        lambda rows: {},
    ],
)
def test_shares_for_others_than_everybody_else(
    federation: Federation, change: Callable[[dict[int, bytes]], dict[int, bytes]]
) -> None:
    server = federation.server()
    up_to(federation, server, 1)
    rows = {member: bytes(80) for member in (0, 2, 3, 4)}
    body = encode_table(change(rows))
    reply = signed_message(Kind.SHARES, 1, federation.proposal().context, server._transcript, body)
    refused(server, reply, "not for everybody else")


@pytest.mark.parametrize("size", [0, 10, 12, 1000])
def test_vectors_of_another_length(federation: Federation, size: int) -> None:
    server = federation.server()
    up_to(federation, server, 2)
    context, transcript = federation.proposal().context, server._transcript
    refused(server, signed_message(Kind.MASKED_VECTOR, 1, context, transcript, bytes(size)), "8 values of 11 bits")


def test_a_vector_for_another_model_is_left_out(federation: Federation) -> None:
    """Its masks would not cancel. Only the signature over the transcript says so."""
    server = federation.server()
    message = up_to(federation, server, 2)[1]
    client = federation.client(1)
    delivery = client.receive_shares(message[:40] + b"N" * 32 + message[72:], federation.states[1])
    answer = client.send_masked(delivery, CODES[1], model=b"N" * 32, layout=b"L" * 32, plan=b"P" * 32)
    refused(server, answer.reply, "signature is not that of member 1 on this attempt")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: {m: row for m, row in rows.items() if m != 2}, "did not send a share for each"),
        (lambda rows: rows | {9: bytes(32)}, "did not send a share for each"),
        (lambda rows: rows | {3: PRIME.to_bytes(32, "little")}, "below 2"),
        (lambda rows: {m: row + b"\0" for m, row in rows.items()}, "malformed"),
    ],
)
def test_shares_that_are_none(
    federation: Federation, change: Callable[[dict[int, bytes]], dict[int, bytes]], text: str
) -> None:
    server = federation.server()
    up_to(federation, server, 4)
    body = encode_table(change({member: bytes(32) for member in range(5)}))
    reply = signed_message(Kind.UNMASK_SHARES, 1, federation.proposal().context, server._transcript, body)
    refused(server, reply, text)


def test_an_acknowledgement_has_no_body(federation: Federation) -> None:
    server = federation.server()
    up_to(federation, server, 3)
    reply = signed_message(Kind.ACKNOWLEDGEMENT, 1, federation.proposal().context, server._transcript, b"x")
    refused(server, reply, "body of 1 bytes")


def lying(federation: Federation, server: ServerSession, liars: set[int], owner: int) -> None:
    """Stage 4, with a wrong share of one owner's secret from some members."""
    for member, message in up_to(federation, server, 4, CODES).items():
        reply = federation.respond(member, message)
        if member in liars:
            parsed = parse(reply)
            body = bytearray(parsed.body)
            body[32 + 32 * owner] ^= 1
            reply = signed_message(parsed.kind, member, parsed.context, server._transcript, bytes(body))
        server.accept(reply)


@pytest.mark.parametrize("liar", range(5))
def test_one_wrong_share_more_than_is_needed_spoils_nothing(federation: Federation, liar: int) -> None:
    server = federation.server()
    lying(federation, server, {liar}, owner=3)
    np.testing.assert_array_equal(server.result().sums, plain_sum(CODES, range(5)))


def test_too_many_wrong_shares_abort(federation: Federation) -> None:
    server = federation.server()
    lying(federation, server, {1, 3}, owner=2)
    with pytest.raises(RoundAborted, match=r"do not give the secrets of members \[2\]"):
        server.result()


def test_a_sum_that_cannot_be_is_no_result(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "check_codes", lambda *_: None)
    codes = {member: np.zeros(8, np.uint16) for member in range(5)}
    codes[2][3] = 5 * 255
    assert run_round(Federation(5), codes).sums[3] == 5 * 255
    codes[2][3] += 1
    with pytest.raises(RoundAborted, match="masked something else than codes"):
        run_round(federation, codes)


def test_steps_come_in_order(federation: Federation) -> None:
    server = federation.server()
    for step in (server.survivor_set, server.proof, server.result, lambda: server.deliveries(b"m" * 32)):
        with pytest.raises(RoundAborted, match="ADVERTISEMENT is awaited"):
            step()
    run_round(federation, CODES, server=server)
    with pytest.raises(RoundAborted, match="cannot end now"):
        server.result()


def test_memory_does_not_grow_with_the_members() -> None:
    federation, count = Federation(6), 200_000
    server = federation.server(federation.proposal(count=count))
    codes = random_codes(6, 8, count)
    messages = up_to(federation, server, 2)
    replies = [federation.respond(member, data, codes[member]) for member, data in messages.items()]
    server.accept(replies[0])
    tracemalloc.start()
    try:
        for reply in replies[1:]:
            server.accept(reply)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50_000
