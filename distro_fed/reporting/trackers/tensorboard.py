"""TensorBoard: event files in the folder ``tensorboard`` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from distro_fed.reporting.optional_package import optional_package
from distro_fed.setting_groups import Value


class TensorBoardTracker:
    """A :class:`~distro_fed.reporting.trackers.base.Tracker`; one that is opened again goes on in the same folder.

    Parameters
    ----------
    folder : Path
        Of the run.
    run_name : str
        TensorBoard names a run after its folder.
    settings : mapping
        Shown as text.

    Raises
    ------
    SettingsError
        TensorBoard is not installed.
    """

    def __init__(self, folder: Path, run_name: str, settings: Mapping[str, Value]) -> None:
        module = optional_package("torch.utils.tensorboard", "report-to = 'tensorboard'")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))
        # TensorBoard renders Markdown: four spaces make it show the lines as they are
        lines = "\n".join(f"    {key} = {value!r}" for key, value in settings.items())
        self._writer.add_text("settings", f"{run_name}\n\n{lines}")

    def log(self, values: Mapping[str, float], round_: int) -> None:
        """Add scalars at step ``round_``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def finish(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()
