"""A list of configurations out of a TOML file: every ``[[run]]`` is one pipeline, every list in it is swept."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Value = bool | int | float | str
_KEYS = {"task", "pipeline", "runner", "seeds", "steps", "clients", "settings"}


@dataclass(frozen=True)
class Configuration:
    """One training run.

    Attributes
    ----------
    task : str
        ``real`` or ``small``.
    pipeline : str
        What the run is called in tables; not part of its identity.
    runner : str
        What drives it, see :mod:`benchmarks.frontier.runners`.
    steps : int
        Optimizer steps of each client over the whole run.
    clients : int
    seed : int
    settings : mapping
        Settings of the product on top of those of the task.
    """

    task: str
    pipeline: str
    runner: str
    steps: int
    clients: int
    seed: int
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The same for two configurations that give the same result."""
        facts = {name: value for name, value in vars(self).items() if name != "pipeline"}
        text = json.dumps(facts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def to_json(self) -> str:
        """One line."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Configuration:
        """Inverse of :meth:`to_json`."""
        return cls(**json.loads(text))


def read_grid(path: Path) -> list[Configuration]:
    """All configurations of a file, in its order, without repetitions.

    Raises
    ------
    ValueError
        A key is unknown or missing; the message names the entry.
    """
    found: dict[str, Configuration] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text())["run"], start=1):
        if unknown := entry.keys() - _KEYS:
            raise ValueError(f"{path}, run {number}: unknown key {sorted(unknown)}; known: {sorted(_KEYS)}")
        if missing := {"task", "pipeline", "steps"} - entry.keys():
            raise ValueError(f"{path}, run {number}: {sorted(missing)} is missing")
        for settings in _swept(entry.get("settings", {})):
            for seed, clients in itertools.product(entry.get("seeds", [0]), _listed(entry.get("clients", 4))):
                one = Configuration(
                    entry["task"], entry["pipeline"], entry.get("runner", "product"), entry["steps"], clients, seed,
                    settings,
                )  # fmt: skip
                found.setdefault(one.id, one)
    return list(found.values())


def _swept(settings: Mapping[str, Any]) -> Iterator[dict[str, Value]]:
    names = list(settings)
    for values in itertools.product(*(_listed(settings[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
