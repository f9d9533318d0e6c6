from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.errors import LedgerError, Refused
from distro_fed.secure_aggregation.ledger import Entry, Ledger, Stage, check_entry, create_ledger


def entry(round_: int = 1, attempt: int = 1, stage: Stage = Stage.ADVERTISE, run: int = 5) -> Entry:
    return Entry(run, round_, attempt, stage, "00" * 8)


def whole(round_: int, attempt: int = 1, run: int = 5) -> list[Entry]:
    return [entry(round_, attempt, stage, run) for stage in Stage]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_ledger(tmp_path / "member.ledger")
    return tmp_path / "member.ledger"


def test_what_is_recorded_is_there_for_the_next_process(path: Path) -> None:
    for one in whole(1):
        Ledger(path).record(one)
    assert Ledger(path).entries() == whole(1)
    assert len(path.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("earlier", "new", "reason"),
    [
        (whole(1), entry(1, 2), "round-consumed"),
        (whole(1)[:3], entry(1, 2), "round-consumed"),
        ([*whole(1)[:2], *whole(1, 2)[:3]], entry(1, 1, Stage.MASK), "round-consumed"),
        (whole(1)[:3], entry(1, 1, Stage.MASK), "round-consumed"),
        ([entry(1)], entry(1), "stale-attempt"),
        ([entry(1, 2)], entry(1, 1), "stale-attempt"),
        (whole(2), entry(1), "stale-attempt"),
        ([*whole(1)[:2], entry(2)], entry(1, 1, Stage.MASK), "stale-attempt"),
        (whole(1)[:2], entry(1, 1, Stage.SHARE), "already-answered"),
        (whole(1)[:4], entry(1, 1, Stage.ACKNOWLEDGE), "already-answered"),
        (whole(1), entry(1, 1, Stage.UNMASK), "already-answered"),
    ],
)
def test_what_may_not_follow(earlier: list[Entry], new: Entry, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        check_entry(new, earlier)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("earlier", "new"),
    [
        ([], entry()),
        (whole(1), entry(2)),
        (whole(1)[:2], entry(1, 2)),
        (whole(1), entry(1, run=6)),
        # the beginning of a round between the end of the one before
        ([*whole(1)[:3], entry(2)], entry(1, 1, Stage.ACKNOWLEDGE)),
        ([*whole(1)[:4], entry(2), entry(2, 1, Stage.SHARE)], entry(1, 1, Stage.UNMASK)),
        ([*whole(1), entry(2), entry(2, 1, Stage.SHARE)], entry(2, 1, Stage.MASK)),
    ],
)
def test_what_may_follow(earlier: list[Entry], new: Entry) -> None:
    check_entry(new, earlier)


ANY = st.builds(
    entry, round_=st.integers(1, 2), attempt=st.integers(1, 3), stage=st.sampled_from(Stage), run=st.integers(5, 6)
)


@settings(deadline=None)
@given(st.lists(ANY, max_size=40))
def test_never_two_masked_vectors_in_a_round(wanted: list[Entry]) -> None:
    kept: list[Entry] = []
    for one in wanted:
        try:
            check_entry(one, kept)
        except Refused:
            continue
        kept.append(one)
    masked = [(one.run, one.round) for one in kept if one.stage is Stage.MASK]
    assert len(masked) == len(set(masked))
    assert len(kept) == len(set(kept))


def test_a_check_records_nothing_and_a_refused_record_neither(path: Path) -> None:
    ledger = Ledger(path)
    ledger.check(entry())
    assert ledger.entries() == []
    ledger.record(entry())
    before = path.read_bytes()
    with pytest.raises(Refused):
        ledger.record(entry())
    assert path.read_bytes() == before


def test_a_line_that_was_cut_off_counts_for_nothing(path: Path) -> None:
    """It was not on the disk when the machine stopped, so its answer was not sent."""
    ledger = Ledger(path)
    ledger.record(entry(1))
    complete = path.read_bytes()
    for cut in range(1, len(entry(2).line())):
        path.write_bytes(complete + entry(2).line()[:cut])
        assert ledger.entries() == [entry(1)]
        ledger.record(entry(2))
        assert path.read_bytes() == complete + entry(2).line()
        assert ledger.entries() == [entry(1), entry(2)]


@pytest.mark.parametrize(
    "damage", ["5 1 1 advertise\n", "5 1 1 dance 00\n", "x\n", "\n", "5  1 1 advertise 00\n", "05 1 1 mask 00\n"]
)
def test_damage_stops_everything(path: Path, damage: str) -> None:
    Ledger(path).record(entry(1))
    path.write_bytes(path.read_bytes() + damage.encode() + entry(2).line())
    for action in (Ledger(path).entries, lambda: Ledger(path).record(entry(3))):
        with pytest.raises(LedgerError, match=r"member\.ledger, line 3"):
            action()


def test_a_ledger_that_is_gone_or_another_file(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not there"):
        Ledger(tmp_path / "other.ledger")
    path.write_text("")
    with pytest.raises(LedgerError, match="line 1"):
        Ledger(path).entries()
    with pytest.raises(LedgerError, match="never replaced"):
        create_ledger(path)


def test_synced_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (seen.append(path.read_bytes()), real(descriptor)))
    Ledger(path).record(entry())
    assert seen[-1].endswith(entry().line())


def test_two_processes_at_once(path: Path) -> None:
    """Each of them wants the same round; one gets it."""
    code = (
        "import sys\n"
        "from distro_fed.errors import Refused\n"
        "from distro_fed.secure_aggregation.ledger import Entry, Ledger, Stage\n"
        "won = 0\n"
        "for round_ in range(1, 40):\n"
        "    try:\n"
        "        Ledger(sys.argv[1]).record(Entry(5, round_, 1, Stage.MASK, '00'))\n"
        "        won += 1\n"
        "    except Refused:\n"
        "        pass\n"
        "print(won)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sum(int(process.communicate()[0]) for process in processes) == 39
    assert len(Ledger(path).entries()) == 39
