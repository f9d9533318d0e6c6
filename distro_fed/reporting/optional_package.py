"""Packages that only some runs need."""

from __future__ import annotations

import importlib
from types import ModuleType

from distro_fed.errors import SettingsError


def optional_package(module: str, setting: str) -> ModuleType:
    """Import a package of the extra ``trackers``.

    Parameters
    ----------
    module : str
        Its name in Python.
    setting : str
        What asks for it, for the message: ``report-to = 'wandb'``.

    Raises
    ------
    SettingsError
        If it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"{setting} needs a package that cannot be imported here ({error}): pip install 'distro-fed[trackers]', "
            "or leave the setting out"
        ) from error
