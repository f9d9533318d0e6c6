"""A server that means harm, as scripts: each of its moves is refused with its own word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distro_fed.errors import Refused
from distro_fed.secure_aggregation.key_agreement import ShareChannel, exchange
from distro_fed.secure_aggregation.messages import (
    SERVER,
    Kind,
    Message,
    decode_delivery,
    decode_table,
    encode_delivery,
    encode_table,
    parse,
)
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.refusals import Reason
from distro_fed.secure_aggregation.roster import Member, Roster
from distro_fed.secure_aggregation.transcript import body_digest, signed_bytes
from distro_fed.secure_aggregation.weighting import Weighting
from tests.secure_aggregation.members import (
    LAYOUT,
    MODEL,
    PLAN,
    POLICY,
    Federation,
    identity,
    random_codes,
    refusal_of,
    roster,
    stage_messages,
    up_to,
)

MEMBERS, VICTIM = 5, 0
CODES = random_codes(MEMBERS, 8, 8)


@pytest.fixture
def federation() -> Federation:
    return Federation(MEMBERS)


def ask(federation: Federation, message: bytes, member: int = VICTIM) -> str:
    """The word with which a member refuses; empty if it answers."""
    try:
        return refusal_of(federation.respond(member, message, CODES[member]))
    except Refused as error:
        return error.reason


def message(kind: Kind, context: bytes, body: bytes) -> bytes:
    return Message(kind, SERVER, context, body).to_bytes()


# Stage 0: proposals


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"threshold": 1}, "wrong-threshold"),
        ({"threshold": 3}, "wrong-threshold"),
        ({"threshold": 5}, "wrong-threshold"),
        ({"threshold": 0}, "wrong-threshold"),
        ({"width": 8}, "wrong-width"),
        ({"width": 10}, "wrong-width"),
        ({"width": 32}, "wrong-width"),
        ({"bits": 0, "width": 3}, "forbidden-bits"),
        ({"bits": 25, "width": 28}, "forbidden-bits"),
        ({"bits": 255, "width": 2}, "forbidden-bits"),
        ({"cohort": (0, 1), "threshold": 2, "width": 9}, "small-cohort"),
        ({"cohort": (0,), "threshold": 1, "width": 8}, "small-cohort"),
        ({"cohort": (0, 1, 2, 3), "threshold": 3, "width": 10}, "cohort-changed"),
        ({"cohort": (1, 2, 3, 4), "threshold": 3, "width": 10}, "not-in-cohort"),
        ({"cohort": ()}, "not-in-cohort"),
        ({"cohort": (0, 1, 2, 3, 9)}, "unknown-member"),
        ({"cohort": (0, 1, 2, 3, 4, 254), "threshold": 5}, "unknown-member"),
        ({"weighting": 1}, "forbidden-weights"),
        ({"weighting": 1, "width": 12}, "forbidden-weights"),
        ({"weighting": 2}, "forbidden-weights"),
        ({"weighting": 77}, "forbidden-weights"),
        ({"count": 0}, "too-many-values"),
        ({"count": 2**63}, "too-many-values"),
        ({"attempt": 4}, "too-many-attempts"),
        ({"attempt": 0}, "too-many-attempts"),
        ({"run": 8}, "other-run"),
        ({"roster": bytes(32)}, "other-roster"),
    ],
)
def test_proposals(federation: Federation, change: dict[str, object], word: str) -> None:
    proposal = replace(federation.proposal(), **change)
    assert ask(federation, proposal.to_bytes()) == word
    assert federation.ledgers[VICTIM].entries() == []


def test_weights_that_do_not_fit_the_width() -> None:
    federation = Federation(MEMBERS, replace(POLICY, weights=(Weighting.ROSTER,)))
    proposal = federation.proposal(weighting=Weighting.ROSTER)
    assert proposal.width == 8 + 4  # the weights are 1 to 5
    assert ask(federation, replace(proposal, width=11).to_bytes()) == "wrong-width"
    assert ask(federation, replace(proposal, bits=24, width=28).to_bytes()) == ""
    assert ask(federation, replace(proposal, weighting=0, width=11).to_bytes()) == "forbidden-weights"


def test_defaults_are_four_members_or_more() -> None:
    federation = Federation(3, Policy())
    assert ask(federation, federation.proposal().to_bytes()) == "small-cohort"


def test_another_version_and_a_plain_update(federation: Federation) -> None:
    proposal = federation.proposal().to_bytes()
    assert ask(federation, proposal[:4] + b"\x03" + proposal[5:]) == "unsupported-version"
    assert ask(federation, b"\x80\x04pickle") == "malformed"
    with pytest.raises(Refused) as caught:
        federation.policy.refuse_plain()
    assert caught.value.reason == "plain-refused"


def test_a_roster_with_members_of_the_servers_own(federation: Federation) -> None:
    sybils = tuple(Member(f"sybil{i}", identity(100 + i).public) for i in range(9))
    other = Roster("federation", (*roster(MEMBERS).members, *sybils))
    proposal = replace(federation.proposal(), roster=other.digest, cohort=other.everybody, threshold=10, width=12)
    assert ask(federation, proposal.to_bytes()) == "other-roster"
    assert ask(federation, replace(proposal, roster=federation.roster.digest).to_bytes()) == "unknown-member"


def test_the_same_round_again(federation: Federation) -> None:
    up_to(federation, federation.server(), 3, CODES)
    for attempt in (1, 2, 3):
        assert ask(federation, federation.proposal(attempt=attempt).to_bytes()) == "round-consumed"
    assert ask(federation, federation.proposal(round_=2).to_bytes()) == ""


def test_a_lower_attempt_and_an_earlier_round(federation: Federation) -> None:
    assert ask(federation, federation.proposal(round_=5, attempt=2).to_bytes()) == ""
    assert ask(federation, federation.proposal(round_=5, attempt=1).to_bytes()) == "stale-attempt"
    assert ask(federation, federation.proposal(round_=5, attempt=2).to_bytes()) == "stale-attempt"
    assert ask(federation, federation.proposal(round_=4, attempt=3).to_bytes()) == "stale-attempt"


def test_two_attempts_at_once_for_two_vectors(federation: Federation) -> None:
    """Both are opened; the older one is dead from then on, and the newer one gives the only vector."""
    servers = [federation.server(federation.proposal(attempt=attempt)) for attempt in (1, 2)]
    deliveries = [up_to(federation, server, 2)[VICTIM] for server in servers]
    assert ask(federation, deliveries[0]) == "stale-attempt"
    assert ask(federation, deliveries[1]) == ""
    assert ask(federation, deliveries[0]) == "round-consumed"


# Stage 1: keys


def keys(federation: Federation) -> tuple[bytes, dict[int, bytes]]:
    parsed = parse(up_to(federation, federation.server(), 1)[VICTIM])
    return parsed.context, decode_table(parsed.body, 160)


def test_keys_of_the_servers_own(federation: Federation) -> None:
    context, rows = keys(federation)
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for place in (0, 32):
        row = rows[1][:place] + own + rows[1][place + 32 :]
        assert ask(federation, message(Kind.KEYS, context, encode_table(rows | {1: row}))) == "bad-signature"
    # signed by a member that helps the server
    body = own + own[::-1] + rows[1][64:96]
    signature = identity(2).sign(signed_bytes(Kind.ADVERTISEMENT, 1, context, body_digest(body)))
    assert ask(federation, message(Kind.KEYS, context, encode_table(rows | {1: body + signature}))) == "bad-signature"


def test_keys_of_an_earlier_attempt(federation: Federation) -> None:
    _, old = keys(federation)
    parsed = parse(up_to(federation, federation.server(federation.proposal(attempt=2)), 1)[VICTIM])
    rows = decode_table(parsed.body, 160) | {3: old[3]}
    assert ask(federation, message(Kind.KEYS, parsed.context, encode_table(rows))) == "bad-signature"


def test_the_victims_own_keys_changed_or_gone(federation: Federation) -> None:
    context, rows = keys(federation)
    changed = rows | {VICTIM: rows[1][:96] + rows[VICTIM][96:]}
    assert ask(federation, message(Kind.KEYS, context, encode_table(changed))) == "own-key-changed"
    without = {member: row for member, row in rows.items() if member != VICTIM}
    assert ask(federation, message(Kind.KEYS, context, encode_table(without))) == "own-key-changed"


def test_too_few_and_too_many_keys(federation: Federation) -> None:
    context, rows = keys(federation)
    few = {member: rows[member] for member in (0, 1, 2)}
    assert ask(federation, message(Kind.KEYS, context, encode_table(few))) == "too-few-members"
    assert ask(federation, message(Kind.KEYS, context, encode_table(rows | {9: rows[1]}))) == "unknown-member"


def collude(context: bytes, member: int, body: bytes) -> bytes:
    """Keys that a member signs because the server asks it to."""
    return body + identity(member).sign(signed_bytes(Kind.ADVERTISEMENT, member, context, body_digest(body)))


def test_a_colluding_member_copies_keys_or_sends_weak_ones(federation: Federation) -> None:
    context, rows = keys(federation)
    copied = collude(context, 2, rows[1][:96])
    assert ask(federation, message(Kind.KEYS, context, encode_table(rows | {2: copied}))) == "repeated-key"
    for weak in (bytes(32), b"\x01" + bytes(31)):
        row = collude(context, 2, weak + rows[2][32:96])
        assert ask(federation, message(Kind.KEYS, context, encode_table(rows | {2: row}))) == "bad-key"
    assert federation.ledgers[VICTIM].entries()[-1].stage == "advertise"


# Stage 2: shares and model


def delivery(federation: Federation) -> tuple[bytes, bytes, dict[int, bytes]]:
    parsed = parse(up_to(federation, federation.server(), 2, CODES)[VICTIM])
    return parsed.context, *decode_delivery(parsed.body)


def test_shares_that_were_changed_or_mixed_up(federation: Federation) -> None:
    context, model, rows = delivery(federation)
    flipped = rows[2][:5] + bytes([rows[2][5] ^ 1]) + rows[2][6:]
    for changed in (rows | {2: flipped}, rows | {2: rows[3]}, rows | {2: rows[3], 3: rows[2]}, rows | {2: bytes(80)}):
        assert ask(federation, message(Kind.DELIVERY, context, encode_delivery(model, changed))) == "bad-share"


def test_a_colluding_member_sends_what_is_no_share(federation: Federation) -> None:
    server = federation.server()
    parsed = parse(up_to(federation, server, 2, CODES)[VICTIM])
    model, rows = decode_delivery(parsed.body)
    colluder = federation.client(2)
    [attempt] = colluder._load(federation.states[2]).attempts
    secret = exchange(attempt.secrets.channel_private, attempt.keys[VICTIM][:32])
    channel = ShareChannel(secret, attempt.keys_transcript, 2, VICTIM)
    changed = rows | {2: channel.encrypt(b"\xff" * 64)}
    assert ask(federation, message(Kind.DELIVERY, parsed.context, encode_delivery(model, changed))) == "bad-share"


def test_too_few_who_shared_and_strangers(federation: Federation) -> None:
    context, model, rows = delivery(federation)
    few = {member: rows[member] for member in (1, 2)}
    assert ask(federation, message(Kind.DELIVERY, context, encode_delivery(model, few))) == "too-few-members"
    stranger = encode_delivery(model, rows | {9: rows[1]})
    assert ask(federation, message(Kind.DELIVERY, context, stranger)) == "unknown-member"
    # the victim as somebody who shared with itself
    assert (
        ask(federation, message(Kind.DELIVERY, context, encode_delivery(model, rows | {0: rows[1]})))
        == "unknown-member"
    )


def test_another_model_than_announced(federation: Federation) -> None:
    """The server sends a model to the victim and announces the digest of the one that the others got."""
    context, _, rows = delivery(federation)
    assert ask(federation, message(Kind.DELIVERY, context, encode_delivery(b"?" * 32, rows))) == "other-model"


@pytest.mark.parametrize(("what", "word"), [("layout", "other-layout"), ("plan", "other-plan")])
def test_another_layout_or_compressor_than_proposed(federation: Federation, what: str, word: str) -> None:
    server = federation.server(replace(federation.proposal(), **{what: b"?" * 32}))
    assert ask(federation, up_to(federation, server, 2)[VICTIM]) == word


def test_one_model_for_the_victim_and_another_for_the_rest(federation: Federation) -> None:
    """Model inconsistency (Pasquini et al., CCS 2022): the rest trains on a model that gives no update."""
    server = federation.server()
    messages = {m: parse(data) for m, data in up_to(federation, server, 2, CODES).items()}
    for member, parsed in messages.items():
        announced = MODEL if member == VICTIM else b"Z" * 32
        _, rows = decode_delivery(parsed.body)
        client = federation.client(member)
        data = message(Kind.DELIVERY, parsed.context, encode_delivery(announced, rows))
        ready = client.receive_shares(data, federation.states[member])
        codes = CODES[member] if member == VICTIM else np.full(8, 127, np.uint8)
        answer = client.send_masked(ready, codes, model=announced, layout=LAYOUT, plan=PLAN)
        federation.states[member] = answer.state
    context = messages[VICTIM].context
    everybody = message(Kind.SURVIVOR_SET, context, encode_table(dict.fromkeys(range(MEMBERS), b"")))
    signatures = {}
    for member in range(MEMBERS):
        signatures[member] = parse(federation.respond(member, everybody)).signature
    for chosen in ({1, 2, 3, 4}, {0, 1, 2, 3}, set(range(5))):
        proof = encode_table({member: signatures[member] for member in chosen})
        assert ask(federation.copy(), message(Kind.PROOF, context, proof)) == "bad-signature"
    assert ask(federation, message(Kind.PROOF, context, encode_table({0: signatures[0]}))) == "too-few-acknowledgements"


# Stages 3 and 4: survivors and shares


def survivor_set(context: bytes, members: Iterator[int] | tuple[int, ...] | range) -> bytes:
    return message(Kind.SURVIVOR_SET, context, encode_table(dict.fromkeys(members, b"")))


def proof(context: bytes, signatures: Mapping[int, bytes]) -> bytes:
    return message(Kind.PROOF, context, encode_table(dict(signatures)))


@pytest.fixture
def masked(federation: Federation) -> bytes:
    """All have sent their masked vectors; returns the context."""
    server = federation.server()
    up_to(federation, server, 3, CODES)
    return federation.proposal().context


def test_survivors_that_are_too_few_or_others(federation: Federation, masked: bytes) -> None:
    assert ask(federation, survivor_set(masked, (0, 1, 2))) == "too-few-members"
    assert ask(federation, survivor_set(masked, (0,))) == "too-few-members"
    assert ask(federation, survivor_set(masked, (1, 2, 3, 4))) == "not-a-survivor"
    assert ask(federation, survivor_set(masked, (0, 1, 2, 9))) == "unknown-member"
    assert ask(federation, survivor_set(masked, range(5))) == ""


def test_a_second_survivor_set(federation: Federation, masked: bytes) -> None:
    before = federation.states[VICTIM]
    assert ask(federation, survivor_set(masked, range(5))) == ""
    assert ask(federation, survivor_set(masked, (0, 1, 2, 3))) == "already-answered"
    federation.states[VICTIM] = before
    assert ask(federation, survivor_set(masked, (0, 1, 2, 3))) == "already-answered"


def test_two_survivor_sets_for_both_kinds_of_share(federation: Federation, masked: bytes) -> None:
    """The classical attack: some say that member 4 is in the sum, some that it is not.

    Whatever the server asks afterwards, no member gives a share: neither set has enough signatures.
    """
    sets = {0: range(5), 1: range(5), 2: (0, 1, 2, 3), 3: (0, 1, 2, 3), 4: range(5)}
    signatures = {}
    for member, members in sets.items():
        reply = federation.respond(member, survivor_set(masked, members))
        assert refusal_of(reply) == ""
        signatures[member] = parse(reply).signature
    for member in range(MEMBERS):
        own = {other for other in sets if sets[other] == sets[member]}
        allowed = {other: signatures[other] for other in own}
        assert ask(federation.copy(), proof(masked, allowed), member) == "too-few-acknowledgements"
        among = {other: signatures[other] for other in range(4)}
        assert ask(federation.copy(), proof(masked, among), member) == "bad-signature"


def test_nobody_is_active_and_dead() -> None:
    """An honest unmasking gives one share for each member: both kinds never come out of one member."""
    fresh = Federation(MEMBERS)
    server = fresh.server()
    for stage in range(3):
        for member, data in stage_messages(server, stage).items():
            if stage < 2 or member != 4:
                server.accept(fresh.respond(member, data, CODES[member]))
    for stage in (3, 4):
        for member, data in stage_messages(server, stage).items():
            reply = fresh.respond(member, data)
            if stage == 4:
                rows = decode_table(parse(reply).body, 32)
                assert sorted(rows) == [0, 1, 2, 3, 4]
            server.accept(reply)
    assert server.result().survivors == (0, 1, 2, 3)


def acknowledged(federation: Federation, context: bytes) -> dict[int, bytes]:
    """All five are survivors and say so."""
    return {
        member: parse(federation.respond(member, survivor_set(context, range(5)))).signature
        for member in range(MEMBERS)
    }


def test_too_few_signers_under_many_names(federation: Federation, masked: bytes) -> None:
    signatures = acknowledged(federation, masked)
    few = {member: signatures[member] for member in (0, 1, 2)}
    assert ask(federation, proof(masked, few)) == "too-few-acknowledgements"
    assert ask(federation, proof(masked, {})) == "too-few-acknowledgements"
    assert ask(federation, proof(masked, few | {3: signatures[2]})) == "bad-signature"
    assert ask(federation, proof(masked, signatures | {9: signatures[2]})) == "unknown-member"
    assert ask(federation, proof(masked, few | {4: signatures[4]})) == ""


def test_shares_before_their_time_and_of_an_earlier_round(federation: Federation, masked: bytes) -> None:
    assert ask(federation, proof(masked, {0: bytes(64)})) == "out-of-order"
    signatures = acknowledged(federation, masked)
    assert ask(federation, proof(masked, signatures)) == ""
    assert ask(federation, proof(masked, signatures)) == "unknown-attempt"
    assert ask(federation, proof(bytes(32), signatures)) == "unknown-attempt"


def test_the_other_kind_of_share_later(federation: Federation, masked: bytes) -> None:
    """The state goes back to before the acknowledgement, and the server asks with another set: the ledger remembers."""
    before = dict(federation.states)
    signatures = acknowledged(federation, masked)
    assert ask(federation, proof(masked, signatures)) == ""
    federation.states = before
    assert ask(federation, survivor_set(masked, (0, 1, 2, 3))) == "already-answered"
    assert ask(federation, proof(masked, signatures)) == "out-of-order"


def test_every_reason_has_a_script() -> None:
    scripts = Path(__file__).read_text()
    assert [reason for reason in Reason if reason is not Reason.NOT_SET_UP and f'"{reason}"' not in scripts] == []
