"""The server's strategy: compressed updates in, one compressed aggregated update out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from distro_fed.compression.base import Compressor
from distro_fed.compression.configured import preset_compressor
from distro_fed.errors import FederationError, NotEnoughNodes
from distro_fed.replica import Replica
from distro_fed.reporting.events import EventWriter
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.strategies.checkpoint import Checkpoint
from distro_fed.strategies.common_scales import ScaleRule
from distro_fed.strategies.courier import Courier
from distro_fed.strategies.final_evaluation import evaluators, take_evaluations
from distro_fed.strategies.initial import InitialModel
from distro_fed.strategies.intake import Refused
from distro_fed.strategies.members import Members
from distro_fed.strategies.metrics import MetricsAggregation, metrics_content, weighted_mean
from distro_fed.strategies.option_checks import check_options
from distro_fed.strategies.progress import Progress
from distro_fed.strategies.resume import Saver
from distro_fed.strategies.round_loop import run_rounds
from distro_fed.strategies.run_state import RunState, begin
from distro_fed.strategies.sampling import sample_free, wait_for_nodes
from distro_fed.strategies.training_round import TrainingRound

log = logging.getLogger("flwr")


class DistroStrategy(Strategy):
    """Stateless aggregation of compressed updates.

    Every round is a pure function of the replies of that round: the weighted mean of the updates, taken in
    an order that does not depend on arrival, is compressed once more and applied to the server's replica;
    members get that same compressed update and so stay equal to it. The server keeps no optimizer state
    unless ``outer_momentum`` asks for it.

    What happens on failure: a reply that is an error, late, of another run, layout or version, not finite
    or without examples is left out with a warning that names the node and the reason. With fewer valid
    replies than the quorum the round is skipped and the model is unchanged. A node that lacks versions is
    sent what it lacks within the round. One that is busy with an older request is not asked. Too few nodes at the
    start end the run with :class:`~distro_fed.errors.NotEnoughNodes`. A process that is killed leaves a checkpoint to
    go on from, if it has a ``saver``.

    Parameters
    ----------
    fraction_train, fraction_evaluate : float
        Share of the nodes that train in a round, and that evaluate the final model.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int
        As in Flower's FedAvg.
    weighted_by_key : str or None
        Metric of the reply that weighs an update; None or empty: every member counts the same.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in FedAvg: ``(list of RecordDict, weighted_by_key) -> MetricRecord``.
    compressor : Compressor or str
        Codes the members' updates; a name stands for the preset that members take too.
    downlink_compressor : Compressor, optional
        Codes the aggregated update; by default as ``compressor``. Must be of the same class and, where it has one, of
        the same rank.
    seed : int
        Public randomness of the run (bases, stochastic rounding, sampling of nodes).
    base_digest : str
        Identity of the frozen base model.
    quorum : float
        Share of the sampled nodes whose valid replies a round needs.
    round_timeout, start_timeout : float
        Seconds until a round is closed (0: sized by the run), and until the run gives up waiting for nodes.
    aggregation : str
        ``"mean"`` of all members' updates, where a coefficient that a member did not send counts as 0; or
        ``"contributors"``: every coefficient is the mean over those members that sent it, as in DeMo and SparseLoCo,
        which moves the model further. Only with the compressors that leave coefficients out.
    outer_learning_rate, outer_momentum, outer_nesterov : float, float, bool
        The server's step on that mean (:class:`~distro_fed.strategies.outer_step.OuterStep`). DiLoCo takes 0.7, 0.9 and
        True; by default the mean is applied as it is. Momentum is state of the size of the model, and not for a
        compressor whose space changes every round.
    server_residual : bool
        Keep what the compression of the aggregated update lost and add it in the next round. State of that size too.
    evaluate_every : int
        Members evaluate the replica before they train it in every so many rounds, without an exchange of
        its own; 0: only in the first round.
    scale_rule : ScaleRule, optional
        All members of a round code with the same scales, which follow this rule; by default each takes its own.
    events : EventWriter, optional
        Where others follow the run.
    saver : Saver, optional
        Saves the run after its rounds.
    resume_from : Checkpoint, optional
        Go on with the run that left it.

    References
    ----------
    A. Peng et al., "A Preliminary Report on DisTrO", 2024; M. Douillard et al., "DiLoCo", arXiv 2311.08105.
    """

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str | None = "num-examples",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        compressor: Compressor | str = "quantized",
        downlink_compressor: Compressor | None = None,
        seed: int = 0,
        base_digest: str = "",
        quorum: float = 0.5,
        round_timeout: float = 3600.0,
        start_timeout: float = 300.0,
        aggregation: str = "mean",
        outer_learning_rate: float = 1.0,
        outer_momentum: float = 0.0,
        outer_nesterov: bool = True,
        server_residual: bool = False,
        evaluate_every: int = 1,
        scale_rule: ScaleRule | None = None,
        events: EventWriter | None = None,
        saver: Saver | None = None,
        resume_from: Checkpoint | None = None,
    ) -> None:
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes, self.weighted_by_key = min_available_nodes, weighted_by_key or None
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or weighted_mean
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or weighted_mean
        self.compressor = preset_compressor(compressor) if isinstance(compressor, str) else compressor
        self.downlink_compressor = downlink_compressor or self.compressor
        self.seed, self.base_digest = seed, base_digest
        self.quorum, self.round_timeout, self.start_timeout = quorum, round_timeout, start_timeout
        self.aggregation, self.server_residual = aggregation, server_residual
        self.outer_learning_rate, self.outer_momentum = outer_learning_rate, outer_momentum
        self.outer_nesterov, self.evaluate_every, self.scale_rule = outer_nesterov, evaluate_every, scale_rule
        self.events, self.saver, self.resume_from = events, saver, resume_from
        self.array_names: list[str] = []
        self.ledger, self.members = TrafficLedger(), Members()
        self._state: RunState | None = None
        check_options(self)

    @property
    def replica(self) -> Replica:
        """The server's replica."""
        return self.run_state.replica

    @property
    def members_code(self) -> Compressor:
        """What codes a member's coefficients."""
        return self.compressor

    @property
    def progress(self) -> Progress:
        """History of the run so far."""
        return self.run_state.progress

    @property
    def courier(self) -> Courier:
        """Traffic of the run so far."""
        return self.run_state.courier

    def summary(self) -> None:
        """Log the configuration."""
        log.info("\t├──> Compression: up %s | down %s", self.compressor.describe(), self.downlink_compressor.describe())
        log.info("\t├──> Fraction of nodes: train %.2f | evaluate %.2f", self.fraction_train, self.fraction_evaluate)
        step = f"{self.outer_learning_rate:g}, momentum {self.outer_momentum:g}"
        log.info("\t├──> Aggregation: %s | outer learning rate %s", self.aggregation, step)
        timeout = f"{self.round_timeout:g} s" if self.round_timeout else "sized by the run"
        log.info("\t└──> Quorum %.2f, round timeout %s", self.quorum, timeout)

    def prepare(self, initial: ArrayRecord | InitialModel, run_id: int, num_rounds: int) -> Replica:
        """Agree on layout and initial values; :meth:`start` calls it."""
        self._state = begin(self, initial, run_id, num_rounds)
        return self.replica

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | InitialModel,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation.

        As ``Strategy.start`` of Flower; ``initial_arrays`` may also be a
        :class:`~distro_fed.model.trainable.Trainable` (any dtype, bfloat16 too). ``timeout`` overrides
        ``round_timeout``. Federated evaluation rides on the training messages and is asked for by itself
        only after the last round.

        Raises
        ------
        NotEnoughNodes
            Too few nodes within ``start_timeout``.
        """
        self.prepare(initial_arrays, grid.run.run_id, num_rounds)
        del initial_arrays
        return run_rounds(self, grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages for the sampled nodes, each with the updates that this node lacks; ``arrays`` is not used."""
        del arrays
        state = self.run_state
        state.round = None
        state.courier.take_late(grid)
        if self.fraction_train == 0.0:
            return []
        try:
            nodes = wait_for_nodes(grid, max(self.min_available_nodes, self.min_train_nodes), self.start_timeout)
        except NotEnoughNodes as error:
            if server_round == state.first_round:
                raise
            # what the run has reached is worth more than a round
            log.warning("round %d is skipped: %s", server_round, error)
            nodes = []
        if self.fraction_train < 1.0:
            state.courier.greet(grid, nodes, self.round_timeout)
        cohort, state.busy = sample_free(
            self.members.ordered(nodes), state.courier.stragglers.busy(), self.fraction_train, self.min_train_nodes,
            self.quorum, self.seed, server_round,
        )  # fmt: skip
        cohort, secure = self._open_round(server_round, cohort, grid)
        state.progress.round_started(server_round, [self.members.name(node_id) for node_id in cohort])
        evaluate = self._evaluates(server_round)
        return state.courier.messages(cohort, MessageType.TRAIN, server_round, config, evaluate=evaluate, secure=secure)

    def _evaluates(self, server_round: int) -> bool:
        """Whether members evaluate the replica before they train it in this round."""
        return server_round == 1 or (self.evaluate_every > 0 and (server_round - 1) % self.evaluate_every == 0)

    def _open_round(self, server_round: int, cohort: list[int], grid: Grid) -> tuple[list[int], Mapping[int, bytes]]:
        """Make the round; returns who takes part, and what goes along with the request to each of them."""
        del grid
        state = self.run_state
        state.round = TrainingRound(
            server_round, cohort, state.replica, self.members, self.weighted_by_key, self.quorum, self.aggregation,
            state.busy, state.announced,
        )  # fmt: skip
        return cohort, {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in replies one by one and advance the replica.

        Returns
        -------
        tuple of None and MetricRecord or None
            No arrays: the model is :attr:`replica`. No metrics if no reply was valid.
        """
        state = self.run_state
        if state.round is None or state.round.number != server_round:
            return None, None
        current, state.round = state.round, None
        for message in replies:
            name, outcome = current.take(state.courier.node_of(message), message)
            metrics = outcome.reply.metrics if outcome.reply else {}
            reason = outcome.reason if isinstance(outcome, Refused) else ""
            state.progress.reply(server_round, name, reason, metrics)
            del message, outcome
        mean = current.close()
        contents = [metrics_content(current.metrics[name]) for name in sorted(current.metrics)]
        aggregated = self.train_metrics_aggr_fn(contents, self.weighted_by_key or "") if contents else None
        if mean is not None:
            mean = state.advance(server_round, mean, current.measured)
        loss = aggregated.get("train-loss") if aggregated else None
        state.progress.round_finished(
            server_round, float(loss) if isinstance(loss, float | int) else None, current.left_out, skipped=mean is None
        )
        return None, aggregated

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages that bring nodes up to date and ask them to evaluate; ``arrays`` is not used."""
        del arrays
        cohort = evaluators(self, grid, server_round)
        return self.courier.messages(cohort, MessageType.EVALUATE, server_round, config, evaluate=True)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean of the members' metrics; what they measured is in :attr:`progress`."""
        contents = take_evaluations(server_round, replies, self.run_state, self.members)
        return self.evaluate_metrics_aggr_fn(contents, "held-out-tokens") if contents else None

    @property
    def run_state(self) -> RunState:
        """What the server holds during this run.

        Raises
        ------
        FederationError
            Before :meth:`start` or :meth:`prepare`.
        """
        if self._state is None:
            raise FederationError("the strategy has no model yet: call start() or prepare() first")
        return self._state
