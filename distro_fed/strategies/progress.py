"""What happened in a run: for the log, for those who watch, and for the report."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from distro_fed.reporting.events import EventWriter, finite_or_null
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
        #: by client, how often its replica differed and was replaced, and how often it answered too late
        self.drifts: Counter[str] = Counter()
        self.late_replies: Counter[str] = Counter()
        #: how often the run was gone on with after it broke off
        self.resumes = 0

    @property
    def seconds(self) -> float:
        """Wall time of the run, without what passed between a crash and the resume."""
        return time.monotonic() - self._started

    def resumed(self, done: int, version: int) -> None:
        """The run goes on after ``done`` rounds."""
        self.resumes += 1
        self.current_round = done
        log.info("the run goes on with round %d, from version %d", done + 1, version)
        self._emit("resumed", round=done + 1, version=version, rounds=self._rounds)

    def no_answer(self, round_: int, client: str, seconds: float, reason: str) -> None:
        """A node was asked, and there is no reply of it."""
        log.warning("round %d: %s: %s (%.0f s)", round_, client, reason, seconds)
        self._emit("no_answer", round=round_, client=client, seconds=seconds, reason=reason)

    def late_reply(self, round_: int, client: str, reason: str) -> None:
        """A reply came after its round was closed, and was refused."""
        self.late_replies[client] += 1
        log.warning("round %d: the reply of %s is refused: %s", round_, client, reason)
        self._emit("late_reply", round=round_, client=client, accepted=False, reason=reason)

    def drift(self, round_: int, client: str, version: int) -> None:
        """A member's replica differs from the server's of that version, and is replaced."""
        self.drifts[client] += 1
        log.warning(
            "round %d: %s holds another replica than version %d and is sent a keyframe", round_, client, version
        )
        self._emit("drift", round=round_, client=client, version=version)

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
        elapsed = self.seconds
        held_out = Losses.of(self.held_out.get(round_ - 1, {})).mean
        up, down = self._bytes(round_, None)
        left = elapsed / round_ * (self._rounds - round_)
        log.info("\tround %d closed: loss %s, about %.0f s left", round_, train_loss, left)
        self.traffic()
        self._emit(
            "round_finished", round=round_, loss=train_loss, held_out_loss=held_out, skipped=skipped, bytes_up=up,
            bytes_down=down, seconds=time.monotonic() - self._round_started, eta_seconds=left,
        )  # fmt: skip

    def traffic(self) -> None:
        """Bytes that every member has sent and received so far."""
        up, down = self._ledger.per_client("up"), self._ledger.per_client("down")
        self._emit("traffic", round=self.current_round, bytes_up=up, bytes_down=down)

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

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "seconds": self.seconds,
            "resumes": self.resumes,
            "drifts": self.drifts,
            "late-replies": self.late_replies,
            "history": [finite_or_null(asdict(record)) for record in self._training],
            "held-out": [[round_, losses] for round_, losses in self.held_out.items()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what :meth:`to_json` gave."""
        self._started -= data["seconds"]
        self.resumes = data["resumes"]
        self.drifts, self.late_replies = Counter(data["drifts"]), Counter(data["late-replies"])
        self._training = [
            RoundRecord(
                **record
                | {"held_out_loss": Losses.of({}), "left_out": [LeftOut(**left) for left in record["left_out"]]}
            )
            for record in data["history"]
        ]
        self.held_out = dict(data["held-out"])

    def _bytes(self, round_: int, client: str | None) -> tuple[int, int]:
        return (
            self._ledger.total(round=round_, client=client, direction="up"),
            self._ledger.total(round=round_, client=client, direction="down"),
        )

    def _emit(self, event: str, **fields: object) -> None:
        if self._events is not None:
            self._events.write(event, **fields)
