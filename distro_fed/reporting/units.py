"""Numbers as a person reads them. Bytes are decimal: 1 kB = 1000 bytes."""

from __future__ import annotations

UNKNOWN = "-"
_UNITS = ("kB", "MB", "GB", "TB")


def format_bytes(count: float) -> str:
    """Three significant digits: ``512 B``, ``3.84 kB``, ``26.9 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    power = 1
    while float(f"{count / 1000**power:.3g}") >= 1000 and power < len(_UNITS):
        power += 1
    return f"{_three_digits(count / 1000**power)} {_UNITS[power - 1]}"


def format_seconds(seconds: float | None) -> str:
    """Format as ``8.2 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_ratio(ratio: float | None) -> str:
    """Three significant digits and ``x``: ``9,840x``, ``3.2x``."""
    return UNKNOWN if ratio is None else f"{_three_digits(ratio)}x"


def format_loss(loss: float | None) -> str:
    """Four decimals, in nats."""
    return UNKNOWN if loss is None else f"{loss:.4f}"


def printable(text: object) -> str:
    """Copy a text that others wrote so that it cannot move the cursor or colour a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def _three_digits(value: float) -> str:
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
