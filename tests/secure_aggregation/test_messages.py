from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import Refused
from distro_fed.secure_aggregation.encoding import encode_members
from distro_fed.secure_aggregation.messages import (
    HEADER_BYTES,
    SERVER,
    Kind,
    Message,
    decode_delivery,
    decode_table,
    encode_delivery,
    encode_table,
    header,
    parse,
    read_refusal,
    refusal,
)
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.refusals import TEXTS, Reason
from tests.secure_aggregation.members import Federation

CONTEXT = b"c" * 32
SIGNED = (Kind.ADVERTISEMENT, Kind.SHARES, Kind.MASKED_VECTOR, Kind.ACKNOWLEDGEMENT, Kind.UNMASK_SHARES)


def sender(kind: Kind) -> int:
    return 3 if kind in SIGNED or kind is Kind.REFUSAL else SERVER


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("body", [b"", b"some body"])
def test_round_trip(kind: Kind, body: bytes) -> None:
    message = Message(kind, sender(kind), CONTEXT, body, b"s" * 64 if kind in SIGNED else b"")
    assert parse(message.to_bytes()) == message
    assert len(message.to_bytes()) == 40 + len(body) + (64 if kind in SIGNED else 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (header(Kind.PROOF, SERVER, CONTEXT)[:-1], "malformed"),
        (b"\x80\x04" + header(Kind.PROOF, SERVER, CONTEXT), "malformed"),
        (b"DFSA\x00" + header(Kind.PROOF, SERVER, CONTEXT)[5:], "unsupported-version"),
        (b"DFSA\x01" + header(Kind.PROOF, SERVER, CONTEXT)[5:], "unsupported-version"),
        (b"DFSA\x02\x00" + header(Kind.PROOF, SERVER, CONTEXT)[6:], "malformed"),
        (b"DFSA\x02\x0c" + header(Kind.PROOF, SERVER, CONTEXT)[6:], "malformed"),
        (header(Kind.PROOF, 3, CONTEXT), "malformed"),
        (header(Kind.REFUSAL, SERVER, CONTEXT), "malformed"),
        (header(Kind.ACKNOWLEDGEMENT, SERVER, CONTEXT) + bytes(64), "malformed"),
        (header(Kind.ACKNOWLEDGEMENT, 3, CONTEXT) + bytes(63), "malformed"),
        (header(Kind.PROOF, SERVER, CONTEXT)[:7] + b"\x01" + CONTEXT, "malformed"),
    ],
)
def test_unsound(data: bytes, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(data)
    assert caught.value.reason == reason


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for attempt in (data, b"DFSA\x01" + data):
        try:
            message = parse(attempt)
        except Refused:
            continue
        assert message.to_bytes() == attempt


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 254), st.binary(min_size=5, max_size=5)))
def test_tables(rows: dict[int, bytes]) -> None:
    body = encode_table(rows)
    assert len(body) == 32 + 5 * len(rows)
    assert decode_table(body, 5) == rows
    assert list(decode_table(body, 5)) == sorted(rows)


def test_a_table_without_rows_is_a_set() -> None:
    assert decode_table(encode_members([1, 200]), 0) == {1: b"", 200: b""}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(31),
        encode_members([1]),
        encode_members([1]) + bytes(4),
        encode_members([1]) + bytes(6),
        encode_members([1, 2]) + bytes(5),
        bytes(32) + bytes(5),
        b"\xff" * 32,
        b"\xff" * 32 + bytes(5 * 256),
    ],
)
def test_tables_of_another_length(body: bytes) -> None:
    with pytest.raises(Refused, match="malformed"):
        decode_table(body, 5)


def test_a_table_that_claims_255_rows_allocates_nothing() -> None:
    body = b"\xff" * 31 + b"\x7f"
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="255 rows"):
            decode_table(body, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_deliveries() -> None:
    rows = {1: b"a" * 80, 4: b"b" * 80}
    assert decode_delivery(encode_delivery(b"m" * 32, rows)) == (b"m" * 32, rows)
    with pytest.raises(Refused, match="malformed"):
        decode_delivery(b"m" * 30)


def test_a_proposal_and_its_context() -> None:
    proposal = Federation(5).proposal(round_=3, attempt=2, bits=4, count=1000)
    data = proposal.to_bytes()
    assert len(data) == HEADER_BYTES + 154
    assert Proposal.from_message(parse(data)) == proposal
    assert proposal.context != Federation(5).proposal(round_=3, attempt=1, bits=4, count=1000).context


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"\0", lambda body: b"\1" + body[1:]])
def test_a_proposal_whose_context_is_another(change: object) -> None:
    proposal = Federation(5).proposal()
    message = Message(Kind.PROPOSAL, SERVER, proposal.context, change(proposal.to_body()))
    with pytest.raises(Refused, match="malformed"):
        Proposal.from_message(message)


def test_a_cohort_of_nobody() -> None:
    body = Federation(5).proposal().to_body()
    body = body[:26] + b"\xff" * 32 + body[58:]
    with pytest.raises(Refused, match="not a set"):
        Proposal.from_message(Message(Kind.PROPOSAL, SERVER, CONTEXT, body))


@pytest.mark.parametrize("reason", list(Reason))
def test_refusals_say_a_word_and_a_sentence(reason: Reason) -> None:
    message = parse(refusal(reason, TEXTS[reason], 7, CONTEXT))
    assert (message.kind, message.sender, message.context) == (Kind.REFUSAL, 7, CONTEXT)
    assert read_refusal(message) == (reason, TEXTS[reason])
    assert len(message.body) < 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\x05ab",
        b"\x02ab",
        b"\x02ab\x02c",
        b"\x02ab\x02cd\x00",
        b"\x02a\x1b\x02cd",
        b"\x02a\xff\x01x",
    ],
)
def test_unsound_refusals(body: bytes) -> None:
    with pytest.raises(Refused, match="malformed"):
        read_refusal(Message(Kind.REFUSAL, 1, CONTEXT, body))
