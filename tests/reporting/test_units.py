import pytest

from distro_fed.reporting.units import format_bytes, format_loss, format_ratio, format_seconds, printable


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (3840, "3.84 kB"),
        (999_400, "999 kB"),
        (999_900, "1.00 MB"),
        (26_903_001_600, "26.9 GB"),
        (74.4e9, "74.4 GB"),
        (5e15, "5,000 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.0 s"), (8.25, "8.2 s"), (59.4, "59 s"), (59.9, "1 min 00 s"), (185, "3 min 05 s"),
     (7620, "2 h 07 min")],
)  # fmt: skip
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (0.5, "0.50x"), (3.2, "3.20x"), (57.14, "57.1x"), (999.9, "1000x"), (9843.2, "9,840x")],
)
def test_ratio(ratio: float | None, text: str) -> None:
    assert format_ratio(ratio) == text


def test_loss() -> None:
    assert format_loss(None) == "-"
    assert format_loss(2.34567) == "2.3457"


def test_printable_disarms_terminal_codes() -> None:
    assert printable("Überklinik \x1b[2J\n1") == "Überklinik �[2J�1"
