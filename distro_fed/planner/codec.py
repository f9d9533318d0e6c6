"""A compressor by its name and parameters, as the planner knows it: checked, but without torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distro_fed.errors import SettingsError
from distro_fed.layout import DTYPES
from distro_fed.presets import COMPRESSOR_PRESETS

#: settings of each compressor, under the names of a run's settings
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "dense": ("dense_dtype",),
    "quantized": ("bits",),
    "topk": ("density", "value_bits"),
    "dct-topk": ("density", "value_bits"),
    "subspace": ("rank", "bits"),
    "lowrank": ("rank", "bits"),
    "tracking": ("rank", "bits"),
    "tracking-topk": ("rank", "density", "value_bits"),
}
COMPRESSORS = tuple(PARAMETERS)


def largest_rank(compressor: str) -> int:
    """Largest rank that the header of a frame has room for."""
    return 2**8 if compressor == "tracking-topk" else 2**16


@dataclass(frozen=True, slots=True)
class Codec:
    """A compressor and its parameters; those that it does not have are left at their defaults.

    Parameters
    ----------
    name : str
        One of :data:`COMPRESSORS`.
    bits : int
        Bits of a value, 1 to 8.
    rank : int
        Rank of the projection, 1 to 65536; of ``tracking-topk`` 1 to 256.
    density : float
        Coefficients sent over coefficients there are, above 0 and at most 1.
    value_bits : int
        Bits of a selected value, 1 (its sign) or 2.
    dense_dtype : str
        Number format of ``dense``.
    """

    name: str
    bits: int = 1
    rank: int = 8
    density: float = 1 / 64
    value_bits: int = 1
    dense_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.name not in COMPRESSORS:
            close = difflib.get_close_matches(self.name, COMPRESSORS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SettingsError(f"unknown compressor {self.name!r}{hint} (known: {', '.join(COMPRESSORS)})")
        for name, ok, use in (
            ("bits", 1 <= self.bits <= 8, "1 to 8"),
            ("rank", 1 <= self.rank <= largest_rank(self.name), f"1 to {largest_rank(self.name)}"),
            ("density", 0 < self.density <= 1, "a fraction above 0 and at most 1"),
            ("value_bits", self.value_bits in (1, 2), "1 or 2"),
            ("dense_dtype", self.dense_dtype in DTYPES, " or ".join(DTYPES)),
        ):
            if not ok:
                raise SettingsError(f"{_dashed(name)} of {self.name} is {getattr(self, name)}; use {use}")

    @classmethod
    def preset(cls, name: str, **given: Any) -> Codec:
        """The compressor with what is given, and otherwise what a run takes.

        Raises
        ------
        SettingsError
            If the compressor is unknown or does not have a parameter that is given.
        """
        cls(name)._check_has(given)
        preset = {key: value for key, value in COMPRESSOR_PRESETS.get(name, {}).items() if key in PARAMETERS[name]}
        return cls(name, **{**preset, **given})

    def for_downlink(self, **given: Any) -> Codec:
        """The same compressor for the aggregated update, with what is given instead.

        Raises
        ------
        SettingsError
            As :meth:`preset`.
        """
        self._check_has(given, "downlink-")
        return replace(self, **given)

    def _check_has(self, given: Mapping[str, Any], prefix: str = "") -> None:
        for key, value in given.items():
            if key not in PARAMETERS[self.name]:
                raise SettingsError(
                    f"{prefix}{_dashed(key)} = {value} has no meaning for {self.name}: leave it out "
                    f"({self.name} has {', '.join(map(_dashed, PARAMETERS[self.name]))})"
                )

    def describe(self) -> str:
        """Name and parameters, such as ``"subspace rank=8 bits=1"``."""
        values = {_dashed(key): getattr(self, key) for key in PARAMETERS[self.name]}
        if values.get("value-bits") == 1:
            del values["value-bits"]
        return " ".join(
            [self.name, *(f"{key.removeprefix('dense-')}={_short(value)}" for key, value in values.items())]
        )


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _short(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    inverse = round(1 / max(value, 1e-9))
    return f"1/{inverse}" if abs(inverse * value - 1) < 1e-9 else f"{value:g}"
