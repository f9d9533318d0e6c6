"""Settings on the command line: ``key=value`` pairs, checked against the app before Flower starts."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distro_fed.errors import SettingsError

Value = bool | int | float | str

# The same pairs that `flwr run --run-config` takes: a value is quoted, or ends at white space.
_PAIR = re.compile(r"""\s*([^\s=]+)=("[^"]*"|'[^']*'|[^\s"']\S*|)(?=\s|$)""")


@dataclass(frozen=True, slots=True)
class FlowerApp:
    """A folder that ``flwr run`` takes.

    Attributes
    ----------
    folder : Path
        Absolute.
    name : str
        ``project.name``.
    config : dict
        ``[tool.flwr.app.config]``, nested tables flattened to dotted keys.
    """

    folder: Path
    name: str
    config: dict[str, Value]

    @classmethod
    def load(cls, folder: Path) -> FlowerApp:
        """Read the folder's ``pyproject.toml``.

        Raises
        ------
        SettingsError
            If the folder is not a Flower app.
        """
        file = folder / "pyproject.toml"
        try:
            project = tomllib.loads(file.read_text(encoding="utf-8"))
            app = project["tool"]["flwr"]["app"]
            return cls(folder.resolve(), str(project["project"]["name"]), _flat(app.get("config", {})))
        except FileNotFoundError as error:
            raise SettingsError(f"{folder} is not a Flower app: it has no pyproject.toml") from error
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{file} is not TOML: {error}") from error
        except KeyError as error:
            raise SettingsError(f"{folder} is not a Flower app: pyproject.toml lacks [{error.args[0]}]") from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise SettingsError(f"{folder} is not a Flower app: {error}") from error


def parse_run_config(texts: Sequence[str], app: FlowerApp) -> dict[str, Value]:
    """Read ``key=value`` pairs, separated by spaces.

    A value is TOML; a bare word is a string, so that ``mode=full`` needs no quotes in a shell.

    Parameters
    ----------
    texts : sequence of str
        Such as ``["num-server-rounds=3 mode=full", 'base-model="/my models/x"']``. Later ones win.
    app : FlowerApp
        Its config names the keys that exist.

    Raises
    ------
    SettingsError
        If a text is not made of such pairs, or the app has no such key.
    """
    values: dict[str, Value] = {}
    for text in texts:
        position = 0
        while text[position:].strip():
            pair = _PAIR.match(text, position)
            if pair is None:
                raise SettingsError(f"run config {text!r}: expected key=value pairs, found {text[position:].strip()!r}")
            key, value = pair.groups()
            if key not in app.config:
                raise SettingsError(f"app {app.name!r} has no setting {key!r}{_suggestion(key, app)}")
            values[key] = _value(value)
            position = pair.end()
    return values


def to_toml(values: Mapping[str, Value]) -> str:
    """Write flat settings as the TOML file that ``flwr run --run-config`` reads."""
    lines = []
    for key, value in values.items():
        # A JSON string, number or truth value is the same in TOML, except for the one character DEL.
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{key} = {text}".replace("\x7f", "\\u007f"))
    return "\n".join(lines) + "\n"


def _value(text: str) -> Value:
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text.strip("\"'")
    return value if isinstance(value, bool | int | float | str) else text


def _suggestion(key: str, app: FlowerApp) -> str:
    close = difflib.get_close_matches(key, app.config, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it has: {', '.join(sorted(app.config)) or 'none'}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
