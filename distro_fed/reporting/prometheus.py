"""Metrics of a run for Prometheus, in its text format 0.0.4, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distro_fed.errors import SettingsError
from distro_fed.reporting.events import Event
from distro_fed.reporting.optional_package import optional_package
from distro_fed.reporting.run_status import LATE_STATES, MemberState, MemberStatus, RunState, RunStatus
from distro_fed.reporting.status import StatusBuilder

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "distro_fed"

_Number = float | int | None
_RUN_GAUGES: dict[str, tuple[str, Callable[[RunStatus], _Number]]] = {
    "round": ("Round that was started last.", lambda run: run.round),
    "rounds": ("Rounds of the run.", lambda run: run.rounds),
    "version": ("Version of the server's replica.", lambda run: run.version),
    "members_asked": ("Members asked to train in the round.", lambda run: run.asked),
    "members_in": ("Members whose reply was taken in the round.", lambda run: run.count(MemberState.DONE)),
    "members_late": ("Members that did not answer in time, until they are asked again.",
                     lambda run: run.count(*LATE_STATES)),
    "train_loss": ("Mean training loss of the last round, nats per token.", lambda run: run.train_loss),
    "held_out_loss": ("Mean held-out loss, nats per token.", lambda run: run.held_out_loss),
    "round_seconds": ("Seconds that the last closed round took.", lambda run: run.last_round_seconds),
    "round_started_timestamp_seconds": ("When the last round was started.", lambda run: run.round_started or None),
    "last_event_timestamp_seconds": ("Last sign of life.", lambda run: run.last_event or None),
    "estimated_end_timestamp_seconds": ("When the run will end at this pace.", lambda run: run.ends or None),
}  # fmt: skip
_RUN_COUNTERS: dict[str, tuple[str, Callable[[RunStatus], int]]] = {
    "skipped_rounds": ("Rounds with too few replies.", lambda run: len(run.skipped_rounds)),
    "resumed": ("Times that the run was resumed from a checkpoint.", lambda run: run.resumed),
}
_MEMBER_GAUGES: dict[str, tuple[str, Callable[[MemberStatus], _Number]]] = {
    "member_train_loss": ("Training loss that a member reported last.", lambda member: member.loss),
    "member_held_out_loss": ("Held-out loss that a member reported last.", lambda member: member.held_out_loss),
    "member_seconds": ("Seconds of a member's last answer.", lambda member: member.seconds),
}
_MEMBER_COUNTERS: dict[str, tuple[str, Callable[[MemberStatus], int]]] = {
    "bytes_up": ("Serialised bytes that a member sent.", lambda member: member.bytes_up),
    "bytes_down": ("Serialised bytes that a member was sent.", lambda member: member.bytes_down),
    "left_out": ("Replies that were not taken.", lambda member: member.left_out),
    "no_answers": ("Requests that were not answered in time.", lambda member: member.no_answers),
    "late_replies": ("Replies that came after their round.", lambda member: member.late_replies),
    "drifts": ("Times that a member's replica differed and was replaced.", lambda member: member.drifts),
}


class RunCollector:
    """Listens to a run's events in one thread and is asked for metrics in another.

    Parameters
    ----------
    past : sequence of Event
        What the run has written before it was resumed.

    Raises
    ------
    SettingsError
        ``prometheus-client`` is not installed.
    """

    def __init__(self, past: Sequence[Event] = ()) -> None:
        self._families = optional_package("prometheus_client.core", "metrics-port")
        self._lock = threading.Lock()
        self._builder = StatusBuilder()
        for event in past:
            self._builder.add(event)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        with self._lock:
            self._builder.add(event)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; those without a value are left out."""
        with self._lock:
            run = self._builder.status()
        gauge, counter = self._families.GaugeMetricFamily, self._families.CounterMetricFamily
        info = gauge(f"{PREFIX}_run_info", "What is run.", labels=["run", "mode", "compressor"])
        info.add_metric([run.name, run.mode, run.compressor], 1)
        state = gauge(f"{PREFIX}_run_state", "1 for the state that the run is in.", labels=["state"])
        for name in RunState:
            state.add_metric([name], int(run.state is name))
        yield from (info, state)
        yield from _of_run(gauge, run, _RUN_GAUGES)
        yield from _of_run(counter, run, _RUN_COUNTERS)
        yield from _of_members(gauge, run, _MEMBER_GAUGES)
        yield from _of_members(counter, run, _MEMBER_COUNTERS)


def _of_run(family: Any, run: RunStatus, metrics: Any) -> Iterator[Metric]:
    for name, (words, number) in metrics.items():
        if (value := number(run)) is not None:
            yield family(f"{PREFIX}_{name}", words, value=value)


def _of_members(family: Any, run: RunStatus, metrics: Any) -> Iterator[Metric]:
    for name, (words, number) in metrics.items():
        metric = family(f"{PREFIX}_{name}", words, labels=["member"])
        for member in run.members.values():
            if (value := number(member)) is not None:
                metric.add_metric([member.name], value)
        yield metric


@contextmanager
def serve_metrics(collector: RunCollector, host: str, port: int) -> Iterator[int]:
    """Serve the metrics at ``http://host:port/metrics`` as long as the context is open.

    Parameters
    ----------
    collector : RunCollector
    host : str
        Address of this machine to listen on.
    port : int
        0: any that is free.

    Yields
    ------
    int
        The port.

    Raises
    ------
    SettingsError
        The port is taken, or the address is not one of this machine's.
    """
    client = optional_package("prometheus_client", "metrics-port")
    registry = client.CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = client.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SettingsError(
            f"metrics-port = {port} on metrics-host = {host!r} cannot be served ({error}): choose another port or "
            "address, or 0 for no metrics"
        ) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
