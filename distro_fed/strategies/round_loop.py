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
    timeout = strategy.round_timeout if timeout is None else timeout
    replica, courier = strategy.replica, strategy.courier
    train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
    result, nothing = Result(), ArrayRecord()
    log.info("Starting %s: %r, %d rounds", type(strategy).__name__, replica.agreement.layout, num_rounds)
    strategy.summary()
    if evaluate_fn and (metrics := evaluate_fn(0, replica_arrays(replica, strategy.array_names))) is not None:
        result.evaluate_metrics_serverapp[0] = metrics
    for round_ in range(1, num_rounds + 1):
        messages = list(strategy.configure_train(round_, nothing, train_config, grid))
        replies = courier.exchange(grid, messages, timeout, round_)
        del messages
        _, metrics = strategy.aggregate_train(round_, replies)
        if metrics is not None:
            result.train_metrics_clientapp[round_] = metrics
        if evaluate_fn and (metrics := evaluate_fn(round_, replica_arrays(replica, strategy.array_names))) is not None:
            result.evaluate_metrics_serverapp[round_] = metrics
    messages = list(strategy.configure_evaluate(num_rounds, nothing, evaluate_config, grid))
    metrics = strategy.aggregate_evaluate(num_rounds, courier.exchange(grid, messages, timeout, num_rounds))
    if metrics is not None:
        result.evaluate_metrics_clientapp[num_rounds] = metrics
    courier.settle_traffic()
    result.arrays = replica_arrays(replica, strategy.array_names)
    return result
