"""What the server holds during one run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from distro_fed.errors import TrainingError
from distro_fed.replica import Replica
from distro_fed.strategies.courier import Courier
from distro_fed.strategies.outer_step import OuterStep
from distro_fed.strategies.progress import Progress
from distro_fed.strategies.secure_training_round import SecureTrainingRound
from distro_fed.strategies.training_round import TrainingRound
from distro_fed.update import Kind

if TYPE_CHECKING:
    import torch

log = logging.getLogger("flwr")


class RunState:
    """Replica, traffic and history of a run, and the round that is going on.

    Parameters
    ----------
    replica : Replica
    courier : Courier
    progress : Progress
    outer_step : OuterStep
        What is made of the members' mean.
    keep_residual : bool
        Carry what the compression of one aggregated update lost into the next.
    """

    def __init__(
        self, replica: Replica, courier: Courier, progress: Progress, outer_step: OuterStep, *, keep_residual: bool
    ) -> None:
        self.replica, self.courier, self.progress = replica, courier, progress
        self.round: TrainingRound | SecureTrainingRound | None = None
        self._outer_step = outer_step
        self._keep_residual = keep_residual
        self._residual: torch.Tensor | None = None

    def advance(self, round_: int, mean: torch.Tensor) -> torch.Tensor | None:
        """Take the outer step on the members' mean, compress it once more and apply it, exactly as every member will.

        Returns None, with the replica unchanged and without momentum, if the step cannot be coded: a member may send
        numbers that are finite and yet too large.

        Parameters
        ----------
        round_ : int
        mean : torch.Tensor
            Flat float32 in the coefficient space of the round; overwritten.
        """
        replica, agreement = self.replica, self.replica.agreement
        space = agreement.space(replica.key(round_))
        self._outer_step.take_(mean)
        if self._residual is not None:
            mean.add_(self._residual)
        try:
            body = agreement.downlink.encode(mean, space, seed=_rounding_seed(agreement.seed, round_))
        except TrainingError as error:
            self._outer_step.reset()  # those numbers would come back with it
            log.warning("round %d is skipped: the mean of its updates is unusable: %s", round_, error)
            return None
        update = agreement.frame(Kind.AGGREGATE, round_, replica.version, replica.chain, body)
        if self._keep_residual:
            agreement.decode(update).add_to(mean, -1.0)
            self._residual = mean
            replica.apply(update)
        else:
            replica.apply(update, scratch=mean)
        self.courier.downlink.advanced(update)
        return mean


def _rounding_seed(seed: int, round_: int) -> int:
    return (seed * 1_000_003 + round_) % 2**63
