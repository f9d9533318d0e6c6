"""What the server holds during one run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Result

from distro_fed.agreement import Agreement
from distro_fed.errors import CheckpointError, TrainingError
from distro_fed.layout import Layout
from distro_fed.replica import Replica
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.strategies import resume
from distro_fed.strategies.common_scales import CommonScales, common_scales
from distro_fed.strategies.courier import Courier
from distro_fed.strategies.initial import InitialModel, initial_values, turns_of
from distro_fed.strategies.members import Members
from distro_fed.strategies.option_checks import check_turns
from distro_fed.strategies.outer_step import OuterStep
from distro_fed.strategies.progress import Progress
from distro_fed.strategies.secure_training_round import SecureTrainingRound
from distro_fed.strategies.traffic import Traffic
from distro_fed.strategies.training_round import TrainingRound
from distro_fed.transport.records import SCALES
from distro_fed.update import Kind

if TYPE_CHECKING:
    import torch

    from distro_fed.strategies.distro import DistroStrategy

log = logging.getLogger("flwr")

#: norm that no training comes near; however many such steps follow, the values stay below 2**64 and can be coded
LARGEST_STEP = 2.0**32


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
    scales : CommonScales or None
        Gives the scales that all members of a round code with; None: each takes its own.

    Attributes
    ----------
    done, first_round : int
        Rounds that are over, and the first round that this process does.
    busy : int
        Nodes that are not asked in the round because they are busy with an older request.
    residuals : dict of int to torch.Tensor
        That which is carried, flat float32, by the turn of the tensors that are trained; 0 if all are in every round.
    announced : bytes
        Scales that all members of the round code with; empty: each takes its own.
    result : Result
        Metrics of the rounds so far.
    """

    def __init__(
        self,
        replica: Replica,
        courier: Courier,
        progress: Progress,
        outer_step: OuterStep,
        *,
        keep_residual: bool,
        scales: CommonScales | None = None,
    ) -> None:
        self.replica, self.courier, self.progress, self.outer_step = replica, courier, progress, outer_step
        self.round: TrainingRound | SecureTrainingRound | None = None
        self.done, self.first_round, self.busy = 0, 1, 0
        self.residuals: dict[int, torch.Tensor] = {}
        self.result = Result()
        self._keep_residual = keep_residual
        self.scales, self.announced = scales, b""

    def announce(self, round_: int, config: ConfigRecord) -> ConfigRecord:
        """The configuration of a round, with its common scales if there are such."""
        if self.scales is not None:
            self.announced = self.scales.announce(self._space(round_), round_)
        return ConfigRecord({**config, SCALES: self.announced}) if self.announced else config

    def advance(self, round_: int, mean: torch.Tensor, measured: Sequence[float] = ()) -> torch.Tensor | None:
        """Take the outer step on the members' mean, compress it once more and apply it, exactly as every member will.

        Returns None, with the replica unchanged and without momentum, if the step cannot be coded or is longer than
        :data:`LARGEST_STEP`: a member may send numbers that are finite and yet too large.

        Parameters
        ----------
        round_ : int
        mean : torch.Tensor
            Flat float32 in the coefficient space of the round; overwritten.
        measured : sequence of float
            Mean of the scales that members measured, if common ones are made of them.
        """
        replica, agreement = self.replica, self.replica.agreement
        space = self._space(round_)
        self.outer_step.take_(mean)
        turn = agreement.turn(replica.version)
        if turn in self.residuals:
            mean.add_(self.residuals[turn])
        try:
            _check_length(mean)
            body = agreement.downlink.encode(mean, space, seed=_rounding_seed(agreement.seed, round_))
        except TrainingError as error:
            self.outer_step.reset()  # those numbers would come back with it
            log.warning("round %d is skipped: the mean of its updates is unusable: %s", round_, error)
            return None
        if self.scales is not None:
            self.scales.learn(space, round_, measured)
        update = agreement.frame(Kind.AGGREGATE, round_, replica.version, replica.chain, body)
        if self._keep_residual:
            agreement.decode(update).add_to(mean, -1.0)
            self.residuals[turn] = mean
            replica.apply(update)
        else:
            replica.apply(update, scratch=mean)
        self.courier.downlink.advanced(update)
        return mean

    def _space(self, round_: int) -> Layout:
        return self.replica.agreement.space(self.replica.key(round_))


def begin(strategy: DistroStrategy, initial: ArrayRecord | InitialModel, flower_run: int, rounds: int) -> RunState:
    """Agree on layout and initial values, or take up the run that the strategy is to go on with."""
    layout, values = initial_values(initial)
    strategy.ledger, strategy.members = TrafficLedger(), Members()
    strategy.array_names = list(initial) if isinstance(initial, ArrayRecord) else [spec.name for spec in layout]
    saved = strategy.resume_from
    agreement = Agreement(
        layout,
        strategy.compressor,
        strategy.downlink_compressor,
        strategy.seed,
        strategy.base_digest,
        flower_run if saved is None else resume.run_id(saved),
        turns_of(initial),
    )
    check_turns(strategy, agreement)
    replica = Replica.initial(agreement, values) if saved is None else resume.saved_replica(saved, agreement)
    progress = Progress(strategy.ledger, rounds, strategy.events)
    traffic = Traffic(strategy.ledger, strategy.members)
    courier = Courier(replica, strategy.members, traffic, progress, rounds, strategy.round_timeout, flower_run)
    outer_step = OuterStep(strategy.outer_learning_rate, strategy.outer_momentum, strategy.outer_nesterov)
    scales = common_scales(strategy.members_code, strategy.scale_rule, rounds)
    state = RunState(replica, courier, progress, outer_step, keep_residual=strategy.server_residual, scales=scales)
    if saved is not None:
        resume.restore(strategy, state, saved)
        if state.done > rounds:
            raise CheckpointError(
                f"{saved.traffic.parent} has done {state.done} rounds, and num-server-rounds = {rounds} ends before: "
                f"resume it with {state.done} or more"
            )
        state.first_round = state.done + 1
    return state


def _check_length(step: torch.Tensor) -> None:
    import torch

    length = float(torch.linalg.vector_norm(step))
    if not length < LARGEST_STEP:  # a NaN compares false
        raise TrainingError(f"its norm is {length:g}, and a step must be shorter than {LARGEST_STEP:g}")


def _rounding_seed(seed: int, round_: int) -> int:
    return (seed * 1_000_003 + round_) % 2**63
