from __future__ import annotations

import pytest

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.client_state import ClientState, OpenAttempt
from tests.secure_aggregation.members import Federation

KEY, SEED = b"k" * 32, b"seed" * 8


def attempt(round_: int, *more: bytes) -> OpenAttempt:
    return OpenAttempt(1, SEED, (Federation(3).proposal(round_).to_bytes(), *more))


STATE = ClientState((attempt(1, b"second", b"", b"fourth"), attempt(2)))
DATA = STATE.to_bytes(KEY)


def test_round_trip() -> None:
    assert ClientState.from_bytes(DATA, KEY, 1) == STATE
    assert ClientState.from_bytes(b"", KEY, 1) == ClientState()
    assert ClientState.from_bytes(ClientState().to_bytes(KEY), KEY, 1) == ClientState()


def test_the_seed_is_sealed_anew_each_time() -> None:
    assert SEED not in DATA
    assert STATE.to_bytes(KEY) != DATA


def test_another_member_cannot_use_it() -> None:
    with pytest.raises(EncodingError, match="not the state of this member"):
        ClientState.from_bytes(DATA, b"K" * 32, 1)


def test_every_byte_is_covered() -> None:
    cases = 0
    for place in range(len(DATA)):
        changed = DATA[:place] + bytes([DATA[place] ^ 1 << place % 8]) + DATA[place + 1 :]
        with pytest.raises(EncodingError):
            ClientState.from_bytes(changed, KEY, 1)
        cases += 1
    assert cases == len(DATA) > 500


@pytest.mark.parametrize("length", [1, 5, 6, 7, 66, 67, len(DATA) - 1])
def test_truncated(length: int) -> None:
    with pytest.raises(EncodingError):
        ClientState.from_bytes(DATA[:length], KEY, 1)
    with pytest.raises(EncodingError):
        ClientState.from_bytes(DATA + b"\0", KEY, 1)


def test_the_two_newest_attempts_stay() -> None:
    state = ClientState()
    for round_ in (1, 2, 3):
        state = state.opened(attempt(round_))
    assert [one.proposal.round for one in state.attempts] == [2, 3]
    assert state.find(attempt(1).context) is None
    assert state.find(attempt(2).context) == attempt(2)
    further = state.changed(attempt(2, b"x"))
    assert [one.stage for one in further.attempts] == [2, 1]
    assert [one.proposal.round for one in further.closed(attempt(2)).attempts] == [3]


def test_the_seed_is_not_shown() -> None:
    assert "seedseed" not in repr(STATE)
