import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import DistroFedError
from distro_fed.reporting.events import EventWriter, finite_or_null, read_events


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    assert read_events(path) == ([], 0)
    with EventWriter(path) as writer:
        writer.write("round_started", round=1, clients=["a\nb", "ü"])
        first, offset = read_events(path)
        writer.write("run_finished", seconds=2.5)
        second, end = read_events(path, offset)
    assert [event["event"] for event in first] == ["round_started"]
    assert first[0]["clients"] == ["a\nb", "ü"]
    assert first[0]["time"] > 1e9
    assert [event["seconds"] for event in second] == [2.5]
    assert end == path.stat().st_size
    assert read_events(path, end) == ([], end)


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "run_finished", "seconds": 1}\n{"event": "run_fin')
    events, offset = read_events(path)
    assert len(events) == 1
    with path.open("ab") as file:
        file.write(b'ished", "seconds": 2}\n')
    assert read_events(path, offset)[0][0]["seconds"] == 2


@pytest.mark.parametrize("half", [b'{"event": "ro', b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"event": "run_failed", "error": "x"}\n'])
def test_opening_cuts_what_a_killed_process_left_half_written(tmp_path: Path, whole: bytes, half: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(whole + half)
    with EventWriter(path) as writer:
        writer.write("run_finished", seconds=1)
    assert [event["event"] for event in read_events(path)[0]] == ["run_failed"] * bool(whole) + ["run_finished"]


def test_a_run_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventWriter(path) as first:
        first.write("run_finished", seconds=1)
        with pytest.raises(DistroFedError, match="written by another process"):
            EventWriter(path)
    EventWriter(path).close()
    assert len(read_events(path)[0]) == 1


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventWriter(path) as writer:
        writer.write("evaluation", round=1, client="a", held_out_loss=math.nan)
        writer.write("evaluation", round=1, client="a", held_out_loss=np.float64(1.5))
    assert "NaN" not in path.read_text()
    assert [event["held_out_loss"] for event in read_events(path)[0]] == [None, 1.5]


def test_unknown_kinds_and_missing_fields_are_refused(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "events.jsonl") as writer:
        with pytest.raises(DistroFedError, match="'runstarted'"):
            writer.write("runstarted")
        with pytest.raises(DistroFedError, match="lacks client, held_out_loss"):
            writer.write("evaluation", round=1)


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"time": 1}', b"\xff\xfe"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(DistroFedError, match=r"events\.jsonl"):
        read_events(path)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON_LIKE)
def test_every_value_becomes_strict_json(value: object) -> None:
    text = json.dumps(finite_or_null(value), allow_nan=False)
    assert json.loads(text) == finite_or_null(value)
