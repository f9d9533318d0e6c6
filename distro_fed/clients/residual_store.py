"""What compression left unsent, kept in a file of the organisation's own.

The residual is an accelerator: if the file is gone, damaged or of another shape, training goes on without
it. It is derived from private data and never leaves the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.compression.base import Residual
from distro_fed.errors import CorruptBody
from distro_fed.files import write_atomically
from distro_fed.replica import Replica

if TYPE_CHECKING:
    import torch

log = logging.getLogger("distro_fed")


class ResidualStore:
    """One organisation's residual, in coefficient space or, where that changes, in the layout of the tensors.

    Parameters
    ----------
    path : Path
        A safetensors file.
    was_summed : callable
        Whether what was sent in a round went into the aggregated update, as far as this member knows.
    """

    def __init__(self, path: Path, was_summed: Callable[[int], bool] = lambda _: True) -> None:
        self._path, self._was_summed = path, was_summed

    def load(self, replica: Replica) -> torch.Tensor | None:
        """Residual to add to an update on top of this replica; flat float32, as ``agreement.residual_layout`` says.

        If the run still is at the version that the last update was made for, that round was skipped and
        what was sent is part of the residual again; so it is if the round went on without this member's update. None
        if there is none that fits.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            kept = load(self._path.read_bytes())
            residual, expected = kept["residual"], replica.agreement.residual_layout.numel
            if tuple(residual.shape) != (expected,) or not bool(residual.isfinite().all()):
                raise ValueError("it does not fit this run")
            skipped = int(kept["version"]) == replica.version
            if not skipped and not self._was_summed(int(kept["round"])):
                if replica.agreement.residual is Residual.IN_TENSORS:
                    raise ValueError("the round went on without this member, and its basis is gone")
                skipped = True
            if skipped:
                _take_back(kept["sent"].numpy().tobytes(), residual, replica, int(kept["round"]))
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, KeyError, ValueError, CorruptBody) as error:
            log.warning("the residual in %s is not used: %s", self._path, error)
            return None
        return residual

    def save(self, residual: torch.Tensor, version: int, round_: int, sent: bytes) -> None:
        """Replace the residual.

        Parameters
        ----------
        residual : torch.Tensor
            What the last update left unsent.
        version : int
            Version that the update was made on top of.
        round_ : int
            Round that it was made in.
        sent : bytes
            Its body.
        """
        import torch
        from safetensors.torch import save

        tensors = {
            "residual": residual.detach().cpu().contiguous(),
            "version": torch.tensor(version),
            "round": torch.tensor(round_),
            "sent": torch.frombuffer(bytearray(sent), dtype=torch.uint8),
        }
        write_atomically(self._path, save(tensors))


def _take_back(body: bytes, residual: torch.Tensor, replica: Replica, round_: int) -> None:
    """Add an update that was sent in vain to the residual."""
    agreement, key = replica.agreement, replica.key(round_)
    space = agreement.space(key)
    sent = agreement.uplink.decode(body, space)
    if agreement.residual is not Residual.IN_TENSORS:
        sent.add_to(residual)
        return
    coefficients = residual.new_zeros(space.numel)
    sent.add_to(coefficients)
    agreement.synthesise(coefficients, residual, key)
