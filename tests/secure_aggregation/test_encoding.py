from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.encoding import decode_members, digest, encode, encode_members

FIELD = st.one_of(st.binary(max_size=9), st.integers(0, 2**64 - 1), st.text(max_size=4))


@settings(deadline=None)
@given(st.lists(FIELD, max_size=4), st.lists(FIELD, max_size=4), st.text(max_size=3), st.text(max_size=3))
def test_different_things_have_different_bytes(one: list, other: list, name: str, other_name: str) -> None:
    same = (name, [(type(x), x) for x in one]) == (other_name, [(type(x), x) for x in other])
    assert (encode(name, *one) == encode(other_name, *other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"ab", b"c"), (b"a", b"bc")),
        ((b"", b"x"), (b"x", b"")),
        ((1,), (b"\0\0\0\0\0\0\0\1",)),
        (("a",), (b"a",)),
        ((b"x",), (b"x", b"")),
    ],
)
def test_no_two_lists_of_fields_run_together(one: tuple, other: tuple) -> None:
    assert encode("name", *one) != encode("name", *other)


def test_the_name_and_the_protocol_are_covered() -> None:
    assert digest("one", b"x") != digest("other", b"x")
    assert b"distro-fed secure aggregation 2" in encode("one")


@settings(deadline=None)
@given(st.sets(st.integers(0, 254)))
def test_member_sets(members: set[int]) -> None:
    data = encode_members(members)
    assert len(data) == 32
    assert decode_members(data) == tuple(sorted(members))


def test_layout_of_a_set() -> None:
    assert encode_members([0, 9]) == bytes([1, 2]) + bytes(30)


@pytest.mark.parametrize("member", [-1, 255, 1000])
def test_nobody_has_such_an_index(member: int) -> None:
    with pytest.raises(EncodingError, match=str(member)):
        encode_members([member])


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), bytes(31) + b"\x80"])
def test_not_a_set(data: bytes) -> None:
    with pytest.raises(EncodingError):
        decode_members(data)
