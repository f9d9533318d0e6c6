"""``distro-fed audit``: what has left this organisation, and whether the log of it is whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from distro_fed.cli.common import VerboseOption, console
from distro_fed.errors import SettingsError

if TYPE_CHECKING:
    from distro_fed.clients.egress_log import Audit, Entry


def audit(
    place: Annotated[Path, typer.Argument(help="State folder of a member, or a log (egress.jsonl).")],
    expect: Annotated[
        str | None, typer.Option(help="A hash noted earlier: a line with it must still be there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every line, instead of a table.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Show everything that has left, and verify that no line of the log was changed, removed or moved.

    Exit code 1: a log is not whole.
    """
    from distro_fed.clients.egress_log import audit as verify

    logs = {path: verify(path) for path in log_files(place)}
    lost = expect is not None and not any(entry.hash == expect for log in logs.values() for entry in log.entries)
    if as_json:
        typer.echo(json.dumps([_to_dict(path, log) for path, log in logs.items()], indent=2))
    else:
        for path, log in logs.items():
            _print(path, log)
    if lost:
        typer.echo(f"No line has the hash {expect}: lines were removed or changed since it was noted.", err=True)
    if lost or any(log.broken for log in logs.values()):
        raise typer.Exit(1)


def log_files(place: Path) -> list[Path]:
    """The log itself, or the logs in a state folder.

    Raises
    ------
    SettingsError
        There is none.
    """
    if place.is_file():
        return [place]
    found = [path for path in (place / "egress.jsonl",) if path.is_file()] + sorted((place / "egress").glob("*.jsonl"))
    if not found:
        raise SettingsError(
            f"{place} has no log of what left: it is a file egress.jsonl in a member's state-dir, or the 'egress-log' "
            "of its node config"
        )
    return found


def _print(path: Path, log: Audit) -> None:
    from rich.table import Table

    table = Table(title=str(path), title_justify="left")
    for name in ("day", "run", "round", "kind", "refused"):
        table.add_column(name)
    for name in ("messages", "bytes"):
        table.add_column(name, justify="right")
    for key, (count, size) in sums(log.entries).items():
        table.add_row(*map(_plain, key), f"{count:,}", f"{size:,}")
    table.add_section()
    table.add_row("total", "", "", "", "", f"{len(log.entries):,}", f"{sum(entry.bytes for entry in log.entries):,}")
    console.print(table)
    if names := sorted({_plain(name).plain for entry in log.entries for name in entry.details.get("metrics", {})}):
        console.print("Numbers in clear: " + ", ".join(names), markup=False, highlight=False)
    console.print(verdict(log), markup=False, highlight=False, soft_wrap=True)


def _plain(text: str) -> Text:
    """What a log says, without markup and without control characters of a terminal."""
    return Text(text if text.isprintable() else ascii(text))


def verdict(log: Audit) -> str:
    """Whether the log is whole, in a few sentences."""
    if log.broken:
        return f"NOT WHOLE, {log.broken}. Lines from there on are not counted."
    text = f"Whole: {len(log.entries)} lines, newest hash {log.head}."
    if log.cut_off:
        text += (
            f" Behind them stand {log.cut_off} bytes of a line that broke off: what it was for did not leave if a "
            "crash cut it; look at the time if nothing crashed."
        )
    return text


def sums(entries: list[Entry]) -> dict[tuple[str, str, str, str, str], tuple[int, int]]:
    """Messages and bytes by day, run, round, kind, and the kind that was refused."""
    out: dict[tuple[str, str, str, str, str], tuple[int, int]] = {}
    for entry in entries:
        refused = str(entry.details.get("refused", {}).get("kind", ""))
        key = (entry.time[:10], entry.run, "" if entry.round is None else str(entry.round), entry.kind, refused)
        count, size = out.get(key, (0, 0))
        out[key] = (count + 1, size + entry.bytes)
    return out


def _to_dict(path: Path, log: Audit) -> dict[str, Any]:
    names = ("day", "run", "round", "kind", "refused")
    return {
        "log": str(path),
        "whole": not log.broken,
        "broken": log.broken,
        "cut_off": log.cut_off,
        "newest_hash": log.head,
        "bytes": sum(entry.bytes for entry in log.entries),
        "sums": [
            {**dict(zip(names, key, strict=True)), "messages": count, "bytes": size}
            for key, (count, size) in sums(log.entries).items()
        ],
        "entries": [asdict(entry) for entry in log.entries],
    }
