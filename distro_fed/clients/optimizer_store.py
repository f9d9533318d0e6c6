"""State of the local optimizer (AdamW's moments), kept from round to round in files of the organisation's own.

Short rounds need it: moments of two gradients are hardly more than their signs. It is an accelerator as the residual
is: if a file is gone, damaged or of other parameters, training starts with a fresh optimizer. It is derived from
private data and never leaves the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.clients.round_files import RoundFiles

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger("distro_fed")

#: what the state of a parameter consists of, by optimizer
_FIELDS = {"AdamW": {"step", "exp_avg", "exp_avg_sq"}, "SGD": {"momentum_buffer"}, "Muon": {"momentum_buffer"}}


class OptimizerStore:
    """One organisation's optimizer state.

    Parameters
    ----------
    folder : Path
        One safetensors file for each of the last rounds; ``<field>:<parameter>`` names a tensor.
    round_ : int
        The round that is trained.
    """

    def __init__(self, folder: Path, round_: int) -> None:
        self._files, self._round = RoundFiles(folder), round_

    def load(self, optimizers: Sequence[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
        """Take up the state that was there before this round.

        Parameters
        ----------
        optimizers : sequence of torch.optim.Optimizer
            Without any state yet.
        parameters : mapping of str to torch.nn.Parameter
            What they train, by name; one that the file does not know starts afresh.
        """
        by_name: dict[str, dict[str, torch.Tensor]] = {}
        for key, value in self._read().items():
            field, _, name = key.partition(":")
            if name in parameters and value.ndim and value.shape != parameters[name].shape:
                log.warning("the optimizer's state is not used: that of %s has another shape", name)
                return
            by_name.setdefault(name, {})[field] = value
        names = {id(parameter): name for name, parameter in parameters.items()}
        for optimizer in optimizers:
            order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            fields, kept = _FIELDS[type(optimizer).__name__], [by_name.get(names[id(one)], {}) for one in order]
            found = {index: state for index, state in enumerate(kept) if state.keys() >= fields}
            # it moves tensors to where the parameters are, and leaves counts of steps where they belong
            optimizer.load_state_dict({"state": found, "param_groups": optimizer.state_dict()["param_groups"]})

    def save(self, optimizers: Sequence[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
        """Keep the state after this round, and what there is of parameters that this round did not train."""
        import torch
        from safetensors.torch import save

        names = {id(parameter): name for name, parameter in parameters.items()}
        tensors = self._read()
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                for field, value in state.items():
                    if isinstance(value, torch.Tensor):
                        tensors[f"{field}:{names[id(parameter)]}"] = value.detach().cpu().contiguous()
        try:
            self._files.write(self._round, save(tensors))
        except OSError as error:
            log.warning("the optimizer's state cannot be kept (%s); the next round starts with a fresh one", error)

    def _read(self) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self._files.before(self._round)
        if path is None:
            return {}
        try:
            kept = load(path.read_bytes())
            if any(not bool(value.isfinite().all()) for value in kept.values()):
                raise ValueError("it has values that are not finite")
        except (SafetensorError, OSError, ValueError) as error:
            log.warning("the optimizer's state in %s is not used: %s", path, error)
            return {}
        return kept
