import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import DistroFedError
from distro_fed.reporting.ledger import TrafficLedger

ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "round": st.integers(0, 5),
            "client": st.sampled_from(["a", "b", "überklinik", ""]),
            "direction": st.sampled_from(["up", "down"]),
            "kind": st.sampled_from(["update", "keyframe", "evaluation", "other"]),
            "size": st.integers(0, 2**70),
        }
    )
)


def filled() -> TrafficLedger:
    ledger = TrafficLedger()
    ledger.record(round=1, client="b", direction="up", kind="update", size=10)
    ledger.record(round=1, client="b", direction="up", kind="update", size=5)
    ledger.record(round=1, client="a", direction="down", kind="keyframe", size=100)
    ledger.record(round=2, client="b", direction="down", kind="evaluation", size=1000)
    return ledger


def test_sums_by_every_key() -> None:
    ledger = filled()
    assert ledger.total() == 1115
    assert ledger.total(direction="up") == 15
    assert ledger.total(client="b") == 1015
    assert ledger.total(round=1) == 115
    assert ledger.total(kind="keyframe") == 100
    assert ledger.total(round=2, client="a") == 0
    assert ledger.total(round=1, client="b", direction="up") == 15
    assert len(list(ledger._entries(1, "b"))) == 1  # every reply asks; it must not look at all members
    assert ledger.per_client() == {"a": 100, "b": 1015}
    assert ledger.per_client("up") == {"a": 0, "b": 15}
    assert ledger.per_round() == {1: 115, 2: 1000}
    assert ledger.per_round("up") == {1: 15, 2: 0}
    assert ledger.clients() == ["a", "b"]


@settings(deadline=None)
@given(ENTRIES)
def test_json_round_trip_and_totals(entries: list[dict[str, object]]) -> None:
    ledger = TrafficLedger()
    for entry in entries:
        ledger.record(**entry)  # type: ignore[arg-type]
    again = TrafficLedger.from_json(ledger.to_json())
    assert again == ledger
    assert again.total() == sum(entry["size"] for entry in entries)  # type: ignore[misc]
    assert sum(ledger.per_client().values()) == sum(ledger.per_round().values()) == ledger.total()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "sideways"}, "sideways"),
        ({"kind": "gossip"}, "gossip"),
        ({"size": -1}, "size -1"),
        ({"round": -1}, "round -1"),
    ],
)
def test_wrong_entries_are_refused(change: dict[str, object], message: str) -> None:
    entry = {"round": 1, "client": "a", "direction": "up", "kind": "update", "size": 1, **change}
    with pytest.raises(DistroFedError, match=message):
        TrafficLedger().record(**entry)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", "3", "[3]", '[{"bytes": 1}]', '[{"round": 1}]', '{"a": 1}'])
def test_a_text_that_is_no_ledger_is_refused(text: str) -> None:
    with pytest.raises(DistroFedError, match="not a traffic ledger"):
        TrafficLedger.from_json(text)
