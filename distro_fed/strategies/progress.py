"""What happened in a run: for the log, for those who watch, and for the report."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from distro_fed.reporting.events import EventWriter
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.report import LeftOut, Losses, RoundRecord
from distro_fed.reporting.units import format_bytes

log = logging.getLogger("flwr")


class Progress:
    """Collects the history of a run and tells it to the log and to an event file.

    Parameters
    ----------
    ledger : TrafficLedger
        Bytes measured so far.
    rounds : int
        Rounds of the run.
    events : EventWriter, optional
        Where others follow the run.
    """

    def __init__(self, ledger: TrafficLedger, rounds: int, events: EventWriter | None = None) -> None:
        self._ledger, self._rounds, self._events = ledger, rounds, events
        self._started = self._round_started = time.monotonic()
        self._asked = 0
        #: round that was started last; 0 before the first
        self.current_round = 0
        self._training: list[RoundRecord] = []
        #: held-out loss by client after so many rounds; 0: before training
        self.held_out: dict[int, dict[str, float]] = {}

    def round_started(self, round_: int, clients: Sequence[str]) -> None:
        """A round's messages are made."""
        self._round_started = time.monotonic()
        self._asked = len(clients)
        self.current_round = round_
        log.info("[ROUND %d/%d] %d nodes", round_, self._rounds, len(clients))
        self._emit("round_started", round=round_, clients=list(clients))

    def reply(self, round_: int, client: str, reason: str, metrics: Mapping[str, float]) -> None:
        """A training reply came; ``reason`` is empty if it was accepted."""
        held_out = metrics.get("held-out-loss") if not reason else None
        if held_out is not None:
            self.held_out.setdefault(round_ - 1, {})[client] = held_out
        up, down = self._bytes(round_, client)
        if not reason:
            log.info(
                "\t%s: loss %.4f, held-out %s, %.1f s, %s up, %s down",
                client, metrics.get("train-loss", math.nan), "-" if held_out is None else f"{held_out:.4f}",
                metrics.get("seconds", math.nan), format_bytes(up), format_bytes(down),
            )  # fmt: skip
        self._emit(
            "reply", round=round_, client=client, accepted=not reason, reason=reason, loss=metrics.get("train-loss"),
            held_out_loss=held_out, seconds=metrics.get("seconds"), bytes_up=up, bytes_down=down,
        )  # fmt: skip

    def round_finished(
        self, round_: int, train_loss: float | None, left_out: Mapping[str, str], *, skipped: bool
    ) -> None:
        """A round is closed and the replica has advanced, or not."""
        record = RoundRecord(
            round=round_, train_loss=train_loss, held_out_loss=Losses.of({}), skipped=skipped,
            left_out=[LeftOut(client, reason) for client, reason in sorted(left_out.items())], asked=self._asked,
        )  # fmt: skip
        self._training.append(record)
        elapsed = time.monotonic() - self._started
        held_out = Losses.of(self.held_out.get(round_ - 1, {})).mean
        up, down = self._bytes(round_, None)
        left = elapsed / round_ * (self._rounds - round_)
        log.info("\tround %d closed: loss %s, about %.0f s left", round_, train_loss, left)
        self._emit(
            "round_finished", round=round_, loss=train_loss, held_out_loss=held_out, skipped=skipped, bytes_up=up,
            bytes_down=down, seconds=time.monotonic() - self._round_started, eta_seconds=left,
        )  # fmt: skip

    def evaluation(self, round_: int, client: str, loss: float) -> None:
        """A member evaluated the replica as it is after ``round_`` rounds."""
        self.held_out.setdefault(round_, {})[client] = loss
        log.info("\t%s: held-out loss %.4f after %d rounds", client, loss, round_)
        self._emit("evaluation", round=round_, client=client, held_out_loss=loss)

    def history(self) -> list[RoundRecord]:
        """One record a round, with the held-out losses measured after it."""
        return [
            replace(record, held_out_loss=Losses.of(self.held_out.get(record.round, {}))) for record in self._training
        ]

    def _bytes(self, round_: int, client: str | None) -> tuple[int, int]:
        return (
            self._ledger.total(round=round_, client=client, direction="up"),
            self._ledger.total(round=round_, client=client, direction="down"),
        )

    def _emit(self, event: str, **fields: object) -> None:
        if self._events is not None:
            self._events.write(event, **fields)
