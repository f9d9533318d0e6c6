"""Links and machines of the nodes: speeds, delays, and the time of a training step, each node on its own."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from distro_fed.errors import SettingsError

MOST_NODES = 10_000


@dataclass(frozen=True, slots=True)
class Link:
    """One node, or the server, and its link to the internet.

    Attributes
    ----------
    name : str
        For people.
    down_mbit, up_mbit : float
        Speed towards and from the node, in Mbit/s (10^6 bits).
    latency_ms : float
        One-way delay to the server, or to the other peers.
    step_seconds : float
        Time of one optimizer step; of no meaning for a server.
    group : str
        Regional group in the hybrid topology.
    """

    name: str = "node"
    down_mbit: float = 100.0
    up_mbit: float = 10.0
    latency_ms: float = 20.0
    step_seconds: float = 1.0
    group: str = ""

    def __post_init__(self) -> None:
        for key, zero in (("down_mbit", False), ("up_mbit", False), ("latency_ms", True), ("step_seconds", True)):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
                raise SettingsError(
                    f"{key.replace('_', '-')} of {self.name} is {value}; use a number {'>= 0' if zero else '> 0'}"
                )

    def receive_seconds(self, size: float) -> float:
        """Seconds until ``size`` bytes are here."""
        return transfer_seconds(size, self.down_mbit)

    def send_seconds(self, size: float) -> float:
        """Seconds until ``size`` bytes are out."""
        return transfer_seconds(size, self.up_mbit)


#: a node, if nothing is said about it: a common access line
NODE = Link()
#: the server's link, and that of every aggregator, if nothing is said about it
SERVER = Link("server", down_mbit=1000.0, up_mbit=1000.0, step_seconds=0.0)


@dataclass(frozen=True, slots=True)
class Network:
    """All nodes of a run, and the server's link, which every aggregator of the hybrid topology has too."""

    nodes: tuple[Link, ...]
    server: Link = SERVER

    def __post_init__(self) -> None:
        if not 1 <= len(self.nodes) <= MOST_NODES:
            raise SettingsError(f"{len(self.nodes)} nodes; a plan needs 1 to {MOST_NODES:,}")
        names = Counter(node.name for node in self.nodes)
        if len(names) < len(self.nodes):
            raise SettingsError(f"node name {names.most_common(1)[0][0]!r} appears twice; names must be unique")

    def groups(self) -> dict[str, tuple[Link, ...]]:
        """Nodes by their group, in the order of the groups' first nodes."""
        members: dict[str, list[Link]] = {}
        for node in self.nodes:
            members.setdefault(node.group, []).append(node)
        return {name: tuple(nodes) for name, nodes in members.items()}

    def in_groups(self, count: int) -> Network:
        """The same nodes in ``count`` groups of about equal size.

        Raises
        ------
        SettingsError
            If there are not as many nodes.
        """
        if not 1 <= count <= len(self.nodes):
            raise SettingsError(f"{count} groups of {len(self.nodes)} nodes; use 1 to {len(self.nodes)}")
        nodes = (
            replace(node, group=f"group {index * count // len(self.nodes) + 1}")
            for index, node in enumerate(self.nodes)
        )
        return replace(self, nodes=tuple(nodes))


def transfer_seconds(size: float, mbit: float) -> float:
    """Seconds that ``size`` bytes take at ``mbit`` Mbit/s."""
    return size * 8 / (mbit * 1e6)


def equal_nodes(count: int, link: Link = NODE) -> tuple[Link, ...]:
    """So many nodes alike, named ``node 1`` and so on."""
    if not 1 <= count <= MOST_NODES:
        raise SettingsError(f"{count} nodes; a plan needs 1 to {MOST_NODES:,}")
    return tuple(replace(link, name=f"node {index}") for index in range(1, count + 1))


def read_network(file: Path, count: int | None, default: Link, server: Link) -> Network:
    """Read a TOML file of links.

    It may hold tables ``[default]`` and ``[server]`` and any number of ``[[node]]``, with the fields of :class:`Link`
    in kebab-case; a ``[[node]]`` may stand for several with ``count = n``. What is left open is taken from
    ``[default]``, then from ``default``.

    Parameters
    ----------
    file : Path
    count : int or None
        Number of nodes; beyond those in the file they are as the default. None: only those in the file.
    default, server : Link
        What a file that says nothing stands for.

    Raises
    ------
    SettingsError
        If the file is missing or is not TOML, a key is unknown, a value is of the wrong type or out of range, or the
        file has more nodes than ``count``.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"links file {file} does not exist; docs/planner.md shows one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"links file {file} is not TOML: {error}") from error
    _check_keys(content, ("default", "server", "node"), str(file))
    default = _link(content.get("default", {}), default, f"{file} [default]")
    server = _link(content.get("server", {}), server, f"{file} [server]")
    entries = content.get("node", [])
    if not isinstance(entries, list):
        raise SettingsError(f"{file}: a node is written as [[node]], with two brackets")
    nodes: list[Link] = []
    for number, entry in enumerate(entries, 1):
        nodes += _nodes(entry, default, f"{file} [[node]] {number}", len(nodes))
    if count is not None and len(nodes) > count:
        raise SettingsError(f"{file} has {len(nodes)} nodes, but {count} were asked for: leave --nodes out")
    nodes += [replace(default, name=f"node {index + 1}") for index in range(len(nodes), count or 0)]
    if not nodes:
        raise SettingsError(f"{file} has no [[node]]: add some, or say how many with --nodes")
    return Network(tuple(nodes), server)


def _nodes(entry: object, default: Link, where: str, before: int) -> list[Link]:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where} is {entry!r}; a table is needed")
    values = dict(entry)
    count = values.pop("count", 1)
    if type(count) is not int or not 1 <= count <= MOST_NODES:
        raise SettingsError(f"{where} has count = {count!r}; use a whole number from 1 to {MOST_NODES:,}")
    link = _link(values, replace(default, name=f"node {before + 1}"), where, also=("count",))
    if count == 1:
        return [link]
    name = link.name if "name" in values else "node"
    start = 1 if "name" in values else before + 1
    return [replace(link, name=f"{name} {start + index}") for index in range(count)]


def _link(values: object, default: Link, where: str, also: Sequence[str] = ()) -> Link:
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where} is {values!r}; a table is needed")
    known = {item.name.replace("_", "-"): item.name for item in fields(Link)}
    _check_keys(values, (*known, *also), where)
    changes: dict[str, Any] = {}
    for key, value in values.items():
        wanted = type(getattr(default, known[key]))
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise SettingsError(f"{where} has {key} = {value!r}; a {'text' if wanted is str else 'number'} is needed")
        changes[known[key]] = value
    return replace(default, **changes)


def _check_keys(found: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in found:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise SettingsError(f"{where} has an unknown key {key!r}; {hint}")
