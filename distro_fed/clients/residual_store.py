"""What compression left unsent, kept in a file of the organisation's own.

The residual is an accelerator: if the file is gone, damaged or of another shape, training goes on without
it. It is derived from private data and never leaves the machine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.files import write_atomically
from distro_fed.layout import Layout

if TYPE_CHECKING:
    import torch

log = logging.getLogger("distro_fed")
_KEY = "residual"


class ResidualStore:
    """One organisation's residual in coefficient space.

    Parameters
    ----------
    path : Path
        A safetensors file.
    space : Layout
        Layout of the coefficients.
    """

    def __init__(self, path: Path, space: Layout) -> None:
        self._path, self._space = path, space

    def load(self) -> torch.Tensor | None:
        """Flat float32, ``(space.numel,)``; None if there is none that fits."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            residual = load(self._path.read_bytes()).get(_KEY)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError) as error:
            log.warning("the residual in %s cannot be read (%s); training goes on without it", self._path, error)
            return None
        if residual is None or tuple(residual.shape) != (self._space.numel,) or not bool(residual.isfinite().all()):
            log.warning("the residual in %s does not fit this run; training goes on without it", self._path)
            return None
        return residual

    def save(self, residual: torch.Tensor) -> None:
        """Replace the residual."""
        from safetensors.torch import save

        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, save({_KEY: residual.detach().cpu().contiguous()}))
