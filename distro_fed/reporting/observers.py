"""Whom else a run tells how it goes: trackers and Prometheus, as its settings say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distro_fed.reporting.events import Event, read_events
from distro_fed.reporting.prometheus import RunCollector, serve_metrics
from distro_fed.reporting.run_folder import EVENTS_FILE
from distro_fed.reporting.trackers import TrackerFeed, open_tracker
from distro_fed.settings import RunSettings

log = logging.getLogger("flwr")

Listener = Callable[[Event], None]


@contextmanager
def observers(settings: RunSettings, folder: Path) -> Iterator[list[Listener]]:
    """Open all observers that the settings name, and close them at the end.

    One that fails while the run goes on is logged and told nothing more; the run does not notice.

    Parameters
    ----------
    settings : RunSettings
        ``report-to``, ``metrics-port`` and ``metrics-host`` count.
    folder : Path
        Of the run. What its event file holds already, before a run is resumed, is known to them but not told again.

    Yields
    ------
    list of callable
        For :class:`~distro_fed.reporting.events.EventWriter`.

    Raises
    ------
    SettingsError
        A package is missing, a tracker does not start, or the port is taken.
    """
    reporting = settings.reporting
    past, _ = read_events(folder / EVENTS_FILE)
    listeners: list[Listener] = []
    with ExitStack() as stack:
        if reporting.metrics_port:
            collector = RunCollector(past)
            port = stack.enter_context(serve_metrics(collector, reporting.metrics_host, reporting.metrics_port))
            log.info("metrics: http://%s:%d/metrics", reporting.metrics_host, port)
            listeners.append(_Guarded("the metrics", collector))
        for name in reporting.trackers:
            feed = TrackerFeed(open_tracker(name, folder, settings.run_name, settings.flat()), past)
            guarded = _Guarded(name, feed)
            stack.callback(guarded.end, feed.close)
            listeners.append(guarded)
        yield listeners


class _Guarded:
    """A listener that never raises: it is dropped at its first error."""

    def __init__(self, name: str, listener: Listener) -> None:
        self._name, self._listener = name, listener
        self._failed = False

    def __call__(self, event: Event) -> None:
        self._try(lambda: self._listener(event))

    def end(self, close: Callable[[], None]) -> None:
        """Close what stands behind it, unless it has failed."""
        self._try(close)

    def _try(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception:
            self._failed = True
            log.exception("%s failed and is told nothing more of this run", self._name)
