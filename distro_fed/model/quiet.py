"""Loading and saving without progress bars, which would tear the run's own display."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers inside the block."""
    logging: Any = importlib.import_module("transformers.utils.logging")

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
