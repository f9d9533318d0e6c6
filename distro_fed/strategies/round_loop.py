"""The loop over the rounds of a run: ask, take in, advance; evaluate at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from distro_fed.strategies.initial import replica_arrays

if TYPE_CHECKING:
    from distro_fed.strategies.distro import DistroStrategy

log = logging.getLogger("flwr")

#: share of clipped values that is worth a word
_MUCH_CLIPPED = 0.01


def run_rounds(
    strategy: DistroStrategy,
    grid: Grid,
    num_rounds: int,
    timeout: float | None = None,
    train_config: ConfigRecord | None = None,
    evaluate_config: ConfigRecord | None = None,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
) -> Result:
    """Run a strategy that is prepared; the arguments are those of :meth:`DistroStrategy.start`."""
    state = strategy.run_state
    replica, courier, result = state.replica, state.courier, state.result
    if timeout is not None:
        courier.pace.round_timeout = timeout
    train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
    nothing, saver = ArrayRecord(), strategy.saver
    log.info("Starting %s: %r, %d rounds", type(strategy).__name__, replica.agreement.layout, num_rounds)
    strategy.summary()

    def evaluate(round_: int) -> None:
        if evaluate_fn and (metrics := evaluate_fn(round_, replica_arrays(replica, strategy.array_names))) is not None:
            result.evaluate_metrics_serverapp[round_] = metrics

    if saver is not None:
        # in a resumed run with the bytes of the part that broke off
        saver.save(strategy, state)
    evaluate(state.done)
    for round_ in range(state.first_round, num_rounds + 1):
        messages = list(strategy.configure_train(round_, nothing, state.announce(round_, train_config), grid))
        replies = courier.exchange(grid, messages, courier.pace.timeout, round_)
        del messages
        _, metrics = strategy.aggregate_train(round_, replies)
        if metrics is not None:
            result.train_metrics_clientapp[round_] = metrics
            _warn_of_clipping(round_, metrics)
        if saver is not None:
            # before anybody is sent the new version: a process that takes over must not find members ahead of it
            saver.round_done(strategy, state, round_, num_rounds)
        evaluate(round_)
    messages = list(strategy.configure_evaluate(num_rounds, nothing, evaluate_config, grid))
    replies = courier.exchange(grid, messages, courier.pace.timeout, num_rounds)
    metrics = strategy.aggregate_evaluate(num_rounds, replies)
    if metrics is not None:
        result.evaluate_metrics_clientapp[num_rounds] = metrics
    courier.take_late(grid)
    courier.traffic.settle()
    courier.traffic.close()
    result.arrays = replica_arrays(replica, strategy.array_names)
    return result


def _warn_of_clipping(round_: int, metrics: MetricRecord) -> None:
    clipped = metrics.get("clipped", 0.0)
    if isinstance(clipped, float) and clipped > _MUCH_CLIPPED:
        log.warning(
            "round %d: %.1f %% of the values were beyond the common scales and were clipped. The first scales are "
            "those of initial-scale: give a larger one, or 'measured'. Later ones follow the round before and the "
            "schedule of lr-scheduler-type: name the one that your training has. scales = 'own', which secure "
            "aggregation cannot use, clips nothing",
            round_, 100 * clipped,
        )  # fmt: skip
