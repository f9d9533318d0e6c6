"""TOML files that people write, read so that an error says where it is."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from distro_fed.errors import SecureAggregationError

_T = TypeVar("_T")


@dataclass(frozen=True)
class TomlFile:
    """A parsed file.

    Attributes
    ----------
    path : Path
    text : str
    data : dict
    error : type
        What is raised about it.
    """

    path: Path
    text: str
    data: dict[str, Any]
    error: type[SecureAggregationError]

    @classmethod
    def read(cls, path: str | Path, error: type[SecureAggregationError], how_to_make: str) -> TomlFile:
        """Read and parse.

        Raises
        ------
        SecureAggregationError
            Of the class ``error``: the file is not there, not readable or not TOML.
        """
        path = Path(path)
        try:
            text = path.read_text("utf-8")
            return cls(path, text, tomllib.loads(text), error)
        except FileNotFoundError:
            raise error(f"{path} is not there; {how_to_make}") from None
        except (OSError, UnicodeDecodeError) as problem:
            raise error(f"{path} cannot be read: {problem}") from None
        except tomllib.TOMLDecodeError as problem:
            raise error(f"{path}: {problem}; it must be TOML") from None

    def fail(self, key: str, text: str, table: str = "") -> SecureAggregationError:
        """An error about a key, with its line if it has one."""
        line = self._line(key, table)
        return self.error(f"{self.path}{f', line {line}' if line else ''}: {text}")

    def take(self, values: dict[str, Any], key: str, kind: type[_T], default: _T | None = None, table: str = "") -> _T:
        """A value that must have a type; without default it must be there."""
        if key not in values:
            if default is None:
                raise self.fail("", f"{key!r} is missing{f' in [{table}]' if table else ''}", table)
            return default
        value = values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            names = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "a table"}
            raise self.fail(key, f"{key} = {value!r} must be {names[kind]}", table)
        return value

    def check_keys(self, values: Iterable[str], known: Iterable[str], table: str = "") -> None:
        """Refuse keys that mean nothing; the error offers the nearest one."""
        known = sorted(known)
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
                raise self.fail(key, f"unknown key {key!r}{hint}", table)

    def _line(self, key: str, table: str) -> int | None:
        """Line of ``key`` in ``table``, else that of the table's head."""
        current, head = "", None
        for number, line in enumerate(self.text.splitlines(), 1):
            if match := re.match(r"\s*\[([^\]]+)\]", line):
                current = match[1].replace('"', "").replace("'", "").strip()
                head = number if current == table else head
            elif key and current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return head
