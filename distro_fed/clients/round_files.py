"""One file a round, of which the last two are kept: a resumed run does its last round again."""

from __future__ import annotations

from pathlib import Path

from distro_fed.files import write_atomically

#: that of the last round, and the one before it
_KEPT = 2
_NAMES = "[0-9]" * 8 + ".safetensors"


class RoundFiles:
    """What something was after each of the last rounds that it took part in.

    Parameters
    ----------
    folder : Path
        Made when the first file is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, round_: int) -> Path | None:
        """The newest file of an earlier round; None if there is none."""
        earlier = [path for path in sorted(self._folder.glob(_NAMES)) if round_of(path) < round_]
        return earlier[-1] if earlier else None

    def write(self, round_: int, data: bytes) -> None:
        """Write the file of a round; those before the last two, and of later rounds, go.

        Raises
        ------
        OSError
            It cannot be written; nothing is lost then.
        """
        write_atomically(self._folder / f"{round_:08d}.safetensors", data)
        kept = [path for path in sorted(self._folder.glob(_NAMES)) if round_of(path) <= round_][-_KEPT:]
        for path in self._folder.glob(_NAMES):
            if path not in kept:
                path.unlink(missing_ok=True)


def round_of(path: Path) -> int:
    """Round that a file is of."""
    return int(path.stem)
