"""No secret leaves a member, in no form: not in messages, not in logs, not in what is kept between stages."""

from __future__ import annotations

import base64
import logging

import pytest

from distro_fed.errors import BadReply, RoundAborted
from distro_fed.secure_aggregation import client_session
from distro_fed.secure_aggregation.key_agreement import AttemptSecrets
from tests.secure_aggregation.members import Federation, identity, random_codes, stage_messages


def forms(secret: bytes) -> list[bytes]:
    """Raw, hex, base64 at each of the three places that it can start at, and as Python shows it."""
    shifted = [base64.b64encode(bytes(shift) + secret)[4:-4] for shift in range(3)]
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), *shifted, repr(secret)[2:-1].encode()]


def raw(private: object) -> bytes:
    return private.private_bytes_raw()  # type: ignore[attr-defined]


@pytest.mark.parametrize("dropped", [{}, {3: 2}, {1: 3}])
def test_no_secret_in_messages_states_or_logs(
    dropped: dict[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    federation, codes = Federation(5), random_codes(5, 8, 8)
    proposal = federation.proposal()
    server = federation.server(proposal)
    seeds: list[bytes] = []
    real = client_session.new_seed
    monkeypatch.setattr(client_session, "new_seed", lambda: seeds.append(real()) or seeds[-1])
    seen: list[bytes] = []
    for stage in range(5):
        for member, message in stage_messages(server, stage).items():
            seen.append(message)
            if dropped.get(member, 5) <= stage:
                continue
            # something that is refused, and logged
            damaged = federation.client(member).respond(message[:-1] + b"?", federation.states[member]).reply
            seen.append(damaged)
            reply = federation.respond(member, message, codes[member])
            seen += [reply, federation.states[member]]
            with pytest.raises(BadReply) as caught:
                server.accept(reply[:-1] + bytes([reply[-1] ^ 1]))
            seen.append(str(caught.value).encode())
            server.accept(reply)
    server.result()
    assert len(seeds) == 5
    secrets: list[bytes] = []
    for member, seed in enumerate(seeds):
        own = AttemptSecrets(seed, proposal.context)
        secrets += [seed, raw(own.channel_private), own.mask_key, own.self_mask, own.rounding_key]
        secrets += [identity(member).private, identity(member).sealing_key]
    everything = b"\0".join([*seen, caplog.text.encode()])
    assert "secure aggregation" in caplog.text
    assert len(seen) > 60
    checked = 0
    for secret in secrets:
        for form in forms(secret):
            assert form not in everything
            checked += 1
    assert checked == 5 * 7 * 7


def test_this_search_would_find_them() -> None:
    secret = bytes(range(7, 39))
    for text in (secret, secret.hex().encode(), base64.b64encode(b"x" + secret + b"yy"), repr(secret).encode()):
        assert any(form in b"before" + text + b"after" for form in forms(secret))


def test_a_failed_round_leaves_only_the_sealed_seed() -> None:
    federation = Federation(3)
    server = federation.server()
    for member, message in stage_messages(server, 0).items():
        if member < 2:
            server.accept(federation.respond(member, message))
    with pytest.raises(RoundAborted):
        server.keys()
    assert len(federation.states[0]) == 6 + 60 + 1 + 4 + len(server.proposal_message)
