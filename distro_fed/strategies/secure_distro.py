"""The server's strategy with secure aggregation: it learns the sum of the updates, and nothing else about any one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from distro_fed.compression.round_code import integer_code
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout
from distro_fed.secure_aggregation.digests import layout_digest, model_digest, plan_digest, work_digest
from distro_fed.secure_aggregation.policy import Policy, check_policy
from distro_fed.secure_aggregation.proposal import make_proposal
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.rules import MAX_WIDTH, sum_width
from distro_fed.secure_aggregation.server_session import SecureSum
from distro_fed.secure_aggregation.weighting import proposed_bits, total_weight
from distro_fed.settings import RunSettings
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.strategies.distro import DistroStrategy
from distro_fed.strategies.intake import Refused
from distro_fed.strategies.secure_exchange import LightStages
from distro_fed.strategies.secure_round import SecureRound, agree, finish
from distro_fed.strategies.secure_training_round import (
    EVERYBODY,
    SecureTrainingRound,
    evaluation_count,
    mean_evaluation,
    take_masked,
    update_count,
)
from distro_fed.transport.records import CONFIG, request_records
from distro_fed.transport.secure_records import request_digest

if TYPE_CHECKING:
    from distro_fed.compression.quantized import Quantized

log = logging.getLogger("flwr")


class SecureDistroStrategy(DistroStrategy):
    """:class:`~distro_fed.strategies.distro.DistroStrategy` whose members' updates are summed under masks.

    A round takes three exchanges: the stages that end it travel together with those that begin the next one. The first
    round takes two more, and so does the final evaluation. Members count the same, as much as the roster says, or as
    each says under its mask; the server is told means over them, and no number about one alone.

    What happens on failure: as in ``DistroStrategy``, and a round with fewer members than threshold and policy need is
    skipped. A member that is lost after it has sent its vector is in the sum as long as enough others are left to
    unmask it. A member that refuses is left out with the reason that it gives. If too few are left before a vector was
    sent, the round is agreed on once more, as often as the policy allows; where the cohort is not fixed, without those
    that are silent.

    Parameters
    ----------
    roster : Roster
        The members' own; they refuse a server with another one.
    policy : Policy
        The server's copy of what members agree to; its first weighting is the one that is proposed.
    settings : RunSettings, optional
        What members train with, the same as their run config says: one that trains with another learning rate or
        number of steps refuses, so that no server can give some of them settings under which they learn nothing. By
        default those of a run config without a word about training.
    stage_timeout : float
        Seconds to wait for answers in the stages without training; 0: as for a round of training.
    **options
        As of ``DistroStrategy``. ``quorum`` and ``weighted_by_key`` have no meaning here. All members code with the
        same scales; ``scale_rule`` is by default that of ``settings``, and without such one that knows of no schedule.

    Raises
    ------
    SettingsError
        The compressor's updates cannot be summed as integers, not all nodes are asked, or members with this policy
        would refuse every round.
    """

    def __init__(
        self,
        *,
        roster: Roster,
        policy: Policy,
        settings: RunSettings | None = None,
        stage_timeout: float = 120.0,
        **options: Any,
    ) -> None:
        completed = (settings or RunSettings()).completed()
        rule = ScaleRule(completed.training if settings else None)
        super().__init__(**{"scale_rule": rule} | options | {"weighted_by_key": None})
        self.roster, self.policy, self.stage_timeout = roster, policy, stage_timeout
        self._work = work_digest(completed)
        self._code = integer_code(self.compressor)
        _check_policy(roster, policy, proposed_bits(policy.weights[0], self._code.bits))
        if self.fraction_train < 1.0:
            raise SettingsError(
                f"fraction-train = {self.fraction_train:g} with secure aggregation: the server could compare the sums "
                "of different cohorts; set it to 1"
            )
        self._agreed: SecureRound | None = None
        self._evaluation: SecureRound | None = None
        self._rounds = 0
        self._train_config = ConfigRecord()

    @property
    def members_code(self) -> Quantized:
        """Integers, which alone can be summed under masks."""
        return self._code

    def prepare(self, initial: Any, run_id: int, num_rounds: int) -> Any:
        """As ``DistroStrategy.prepare``."""
        self._agreed = self._evaluation = None
        self._rounds = num_rounds
        replica = super().prepare(initial, run_id, num_rounds)
        self._stages = LightStages(self.courier, self.progress, self.members, self.stage_timeout)
        return replica

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As ``DistroStrategy.configure_train``."""
        self._train_config = config
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As ``DistroStrategy.aggregate_train``; metrics are means over all members."""
        _, metrics = super().aggregate_train(server_round, replies)
        held_out = metrics.get("held-out-loss") if metrics else None
        if isinstance(held_out, float):
            self.progress.evaluation(server_round - 1, EVERYBODY, held_out)
        return None, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages that bring members up to date and ask them for their held-out loss, under masks."""
        del arrays
        if self.fraction_evaluate == 0.0:
            return []
        current = self._agreed_round(server_round + 1, grid, evaluation=True)
        self._evaluation = current
        deliveries = current.deliveries(self._model(server_round, config, evaluate=True))
        return self.courier.messages(
            list(deliveries), MessageType.EVALUATE, server_round, config, evaluate=True, secure=deliveries
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean held-out loss over all members."""
        current, self._evaluation = self._evaluation, None
        if current is None:
            return None
        for message in replies:
            node_id = self.courier.node_of(message)
            outcome = take_masked(current, node_id, message)
            if isinstance(outcome, Refused):
                log.warning("evaluation: %s is left out: %s", self.members.name(node_id), outcome.reason)
        found = finish(self._stages.ask, current, None, [])
        loss = mean_evaluation(found, current.proposal.bits) if found is not None else None
        if loss is None:
            return None
        self.progress.evaluation(server_round, EVERYBODY, loss)
        return MetricRecord({"held-out-loss": loss})

    def _open_round(self, server_round: int, cohort: list[int], grid: Grid) -> tuple[list[int], Mapping[int, bytes]]:
        current = self._agreed_round(server_round, grid, evaluation=False)
        if not cohort:
            current.abandon("there are fewer nodes than the run asks for")
        evaluate = self._evaluates(server_round)
        deliveries = current.deliveries(self._model(server_round, self._train_config, evaluate=evaluate))
        self.run_state.round = SecureTrainingRound(
            current, self._space(server_round, self.replica.version), self.members,
            lambda: self._finish(current), self.run_state.announced,
        )  # fmt: skip
        return list(deliveries), deliveries

    def _agreed_round(self, round_: int, grid: Grid, *, evaluation: bool) -> SecureRound:
        """The round as it was agreed on together with the end of the one before; else it is agreed on now."""
        self._stages.use(grid)
        version, attempt = self.replica.version, 1
        earlier, self._agreed = self._agreed, None
        current = self._propose(round_, version, evaluation=evaluation, attempt=attempt)
        # after a round that was skipped, the version and with it the space may be another one
        if earlier is not None and earlier.proposal == current.proposal and earlier.is_agreed:
            return earlier
        while True:
            nodes = self._stages.nodes()
            if earlier is not None:
                attempt += 1
                current = self._propose(round_, version, evaluation=evaluation, attempt=attempt)
                if cohort := self._cohort_without_silent(earlier):
                    current = self._propose(round_, version, evaluation=evaluation, attempt=attempt, cohort=cohort)
                    current.left_out |= earlier.left_out
                    nodes = list(cohort.values())
            agree(self._stages.ask, current, nodes)
            self._learn_names(current)
            if not current.lacks_shares or attempt >= self.policy.max_attempts:
                return current
            earlier = current

    def _cohort_without_silent(self, earlier: SecureRound) -> dict[int, int]:
        """Members that have answered all of an attempt that lacked shares, with their nodes; empty if they are too few.

        Empty too where members want the whole roster: then all are asked again, and the silent may be back.
        """
        answered = earlier.answered() if earlier.lacks_shares and not self.policy.fixed_cohort else {}
        return answered if len(answered) >= max(self.policy.min_cohort, self.policy.min_survivors) else {}

    def _finish(self, ending: SecureRound) -> SecureSum | None:
        """End a round, and agree on what comes next in the same exchanges."""
        following = ending.proposal.round + 1
        evaluation = following > self._rounds
        if evaluation and self.fraction_evaluate == 0.0:
            return finish(self._stages.ask, ending, None, [])
        # what comes next works on the version that this round leads to
        version = self.replica.version + (0 if ending.aborted else 1)
        self._agreed = self._propose(following, version, evaluation=evaluation, attempt=1)
        found = finish(self._stages.ask, ending, self._agreed, self._stages.nodes())
        self._learn_names(self._agreed)
        if found is not None:
            self._stages.remind(ending.reminders())
        return found

    def _propose(
        self, round_: int, version: int, *, evaluation: bool, attempt: int, cohort: Collection[int] | None = None
    ) -> SecureRound:
        agreement = self.replica.agreement
        space = None if evaluation else self._space(round_, version)
        weighting = self.policy.weights[0]
        bits = proposed_bits(weighting, self._code.bits)
        proposal = make_proposal(
            self.roster,
            self.policy,
            run=self.courier.flower_run,
            round_=round_,
            attempt=attempt,
            bits=bits,
            count=evaluation_count(bits) if space is None else update_count(space, bits, weighting),
            layout=layout_digest(b"" if space is None else space.digest),
            plan=plan_digest(agreement.run, self._work),
            weighting=weighting,
            cohort=None if cohort is None else tuple(cohort),
        )
        return SecureRound(self.roster, proposal, self.policy.min_survivors)

    def _model(self, round_: int, config: ConfigRecord, *, evaluate: bool) -> bytes:
        """Digest of what members are to work on: the model, and everything else that the request says."""
        replica = self.replica
        request = self.courier.request(round_, evaluate=evaluate)
        records = request_records(request, ArrayRecord(), config)
        return model_digest(replica.chain + request_digest(records.config_records[CONFIG]))

    def _space(self, round_: int, version: int) -> Layout:
        agreement = self.replica.agreement
        return agreement.space(agreement.key(round_, version))

    def _learn_names(self, current: SecureRound) -> None:
        for node_id, name in current.names().items():
            self.members.learn_name(node_id, name)


def _check_policy(roster: Roster, policy: Policy, bits: int) -> None:
    """Raise :class:`SettingsError` for what would make members with the same files refuse in every round."""
    problems = check_policy(policy, roster)
    low, high = policy.bits
    if not low <= bits <= high:
        problems.append(
            f"updates have {bits} bits a value (with masked weights 4 more than codes), and the policy allows {low} to "
            f"{high}"
        )
    weight = total_weight(policy.weights[0], roster, roster.everybody)
    if (width := sum_width(bits, weight)) > MAX_WIDTH:
        problems.append(
            f"sums of {bits} bits with weights of {weight} together take {width} bits, and {MAX_WIDTH} can be "
            "masked: divide the weights of the roster by what they have in common, or round them"
        )
    if problems:
        raise SettingsError(f"no round could ever be agreed on: {'; '.join(problems)}")
