"""What compression left unsent, kept in a file of the organisation's own.

The residual is an accelerator: if the file is gone, damaged or of another shape, training goes on without
it. It is derived from private data and never leaves the machine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.errors import CorruptBody
from distro_fed.files import write_atomically
from distro_fed.layout import Layout

if TYPE_CHECKING:
    import torch

log = logging.getLogger("distro_fed")


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

    def load(self, version: int, agreement: Agreement) -> torch.Tensor | None:
        """Residual to add to an update on top of ``version``; flat float32, ``(space.numel,)``.

        If the run still is at the version that the last update was made for, that round was skipped and
        what was sent is part of the residual again. None if there is none that fits.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            kept = load(self._path.read_bytes())
            residual, made_for = kept["residual"], int(kept["version"])
            if tuple(residual.shape) != (self._space.numel,) or not bool(residual.isfinite().all()):
                raise ValueError("it does not fit this run")
            if made_for == version:
                agreement.uplink.decode(kept["sent"].numpy().tobytes(), self._space).add_to(residual)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, KeyError, ValueError, CorruptBody) as error:
            log.warning("the residual in %s is not used: %s", self._path, error)
            return None
        return residual

    def save(self, residual: torch.Tensor, version: int, sent: bytes) -> None:
        """Replace the residual.

        Parameters
        ----------
        residual : torch.Tensor
            What the last update left unsent.
        version : int
            Version that the update was made on top of.
        sent : bytes
            Its body.
        """
        import torch
        from safetensors.torch import save

        tensors = {
            "residual": residual.detach().cpu().contiguous(),
            "version": torch.tensor(version),
            "sent": torch.frombuffer(bytearray(sent), dtype=torch.uint8),
        }
        write_atomically(self._path, save(tensors))
