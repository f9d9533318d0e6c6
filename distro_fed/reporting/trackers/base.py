"""What every experiment tracker can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """One run in one experiment tracker, from its making on."""

    def log(self, values: Mapping[str, float], round_: int) -> None:
        """Note finite numbers by name, as they are after so many rounds. Rounds may come out of order."""

    def finish(self, *, failed: bool) -> None:
        """Write out what is left, and say how the run ended."""
