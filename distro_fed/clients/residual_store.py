"""What compression left unsent, kept in files of the organisation's own.

The residual is an accelerator: if a file is gone, damaged or of another shape, training goes on without
it. It is derived from private data and never leaves the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.clients.round_files import RoundFiles, round_of
from distro_fed.compression.base import Compressor, Decoded, Residual
from distro_fed.errors import CorruptBody
from distro_fed.replica import Replica

if TYPE_CHECKING:
    import torch

log = logging.getLogger("distro_fed")


class ResidualStore:
    """One organisation's residuals, in coefficient space or, where that changes, in the layout of the tensors.

    Parameters
    ----------
    folder : Path
        One safetensors file for each of the last rounds that this organisation took part in.
    flower_run : int
        Flower's id of the run; a run that is resumed has another one from then on.
    was_summed : callable, optional
        ``was_summed(flower_run, round) -> bool``: whether what was sent in a round went into the aggregated update, as
        far as this member knows. By default it is taken to be so if the run went on.
    """

    def __init__(self, folder: Path, flower_run: int = 0, was_summed: Callable[[int, int], bool] | None = None) -> None:
        self._files, self._flower_run = RoundFiles(folder), flower_run
        self._was_summed = was_summed or (lambda _run, _round: True)

    def load(self, replica: Replica, round_: int, code: Compressor) -> torch.Tensor | None:
        """Residual to add to an update on top of this replica; flat float32, as ``agreement.residual_layout`` says.

        It is the one that was there before ``round_``: if the server did not live to use what was sent in that very
        round, the round is done again as if for the first time. If the run still is at the version that the update
        of an earlier round was made for, that round was skipped and what was sent is part of the residual again; so it
        is if the run went on without this member's update. None if there is none that fits.

        ``code`` is what made the bodies that :meth:`save` was given: under masks another one than the uplink.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self._files.before(round_)
        if path is None:
            return None
        sent_in = round_of(path)
        try:
            kept = load(path.read_bytes())
            residual, expected = kept["residual"], replica.agreement.residual_layout.numel
            if tuple(residual.shape) != (expected,) or not bool(residual.isfinite().all()):
                raise ValueError("it does not fit this run")
            if int(kept["version"]) > replica.version:
                raise ValueError(f"it is of version {int(kept['version'])}, and the run is at {replica.version} again")
            skipped = int(kept["version"]) == replica.version
            flower_run = int.from_bytes(kept["flower-run"].numpy().tobytes(), "little")
            if not skipped and not self._was_summed(flower_run, sent_in):
                if replica.agreement.residual is Residual.IN_TENSORS:
                    raise ValueError("the round went on without this member, and its basis is gone")
                skipped = True
            if skipped:
                space = replica.agreement.space(replica.key(sent_in))
                sent = code.decode(kept["sent"].numpy().tobytes(), space)
                _take_back(sent, residual, replica, sent_in)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, KeyError, ValueError, CorruptBody) as error:
            log.warning("the residual in %s is not used: %s", path, error)
            return None
        return residual

    def save(self, residual: torch.Tensor, version: int, round_: int, sent: bytes) -> None:
        """Keep the residual after a round; those before the last two, and of later rounds, go.

        Parameters
        ----------
        residual : torch.Tensor
            What the update left unsent.
        version : int
            Version that the update was made on top of.
        round_ : int
            Round that it was made in.
        sent : bytes
            Its body, with the scales that its codes stand for.
        """
        import torch
        from safetensors.torch import save

        tensors = {
            "residual": residual.detach().cpu().contiguous(),
            "version": torch.tensor(version),
            "flower-run": torch.frombuffer(bytearray(self._flower_run.to_bytes(8, "little")), dtype=torch.uint8),
            "sent": torch.frombuffer(bytearray(sent), dtype=torch.uint8),
        }
        self._files.write(round_, save(tensors))


def _take_back(sent: Decoded, residual: torch.Tensor, replica: Replica, round_: int) -> None:
    """Add an update that was sent in vain to the residual."""
    agreement, key = replica.agreement, replica.key(round_)
    if agreement.residual is not Residual.IN_TENSORS:
        sent.add_to(residual)
        return
    coefficients = residual.new_zeros(agreement.space(key).numel)
    sent.add_to(coefficients)
    agreement.synthesise(coefficients, residual, key)
