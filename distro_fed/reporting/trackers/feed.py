"""From the events of a run to the numbers that a tracker shows for each round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distro_fed.reporting.events import Event
from distro_fed.reporting.references import run_ratios
from distro_fed.reporting.report import Losses
from distro_fed.reporting.run_status import MemberState, RunState, RunStatus
from distro_fed.reporting.status import StatusBuilder
from distro_fed.reporting.trackers.base import Tracker
from distro_fed.reporting.units import printable

Values = dict[str, float]


class TrackerFeed:
    """Listens to the events of a run and logs them to one tracker, round by round.

    ========================================  ====================================================================
    name                                      what
    ========================================  ====================================================================
    ``train-loss``                            mean over the members, nats per token
    ``held-out-loss``, ``held-out-loss/...``  mean, and of each member
    ``bytes-up``, ``bytes-up/...``            since the start of the run: mean member, and each member
    ``bytes-down``, ``bytes-down/...``        the same for what members received
    ``ratio/r1``, ``ratio/r2``, ``ratio/r3``  :func:`~distro_fed.reporting.references.run_ratios` so far
    ``seconds``                               of the round
    ``left-out``                              members whose reply was not taken, or did not come in time
    ``skipped``                               1 if the round had too few replies
    ========================================  ====================================================================

    A held-out loss is noted at the round after which it holds, though it is measured during the next one.

    Parameters
    ----------
    tracker : Tracker
    past : sequence of Event
        What the run has written before it was resumed; nothing of it is logged again.
    """

    def __init__(self, tracker: Tracker, past: Sequence[Event] = ()) -> None:
        self._tracker = tracker
        self._builder = StatusBuilder()
        self._asked: dict[int, int] = {}
        self._held_out: dict[int, dict[str, float | None]] = {}
        for event in past:
            self._take(event)
        self._held_out.clear()

    def __call__(self, event: Event) -> None:
        """Take in one event, and log what it completes."""
        self._take(event)
        if event["event"] in ("round_finished", "run_finished", "run_failed"):
            for round_, values in self._complete(event):
                known = {name: float(value) for name, value in values.items() if math.isfinite(value)}
                if known:
                    self._tracker.log(known, round_)

    def close(self) -> None:
        """End the tracker's run: as failed unless the last event says that all went well."""
        self._tracker.finish(failed=self._builder.status().state is not RunState.FINISHED)

    def _take(self, event: Event) -> None:
        self._builder.add(event)
        match event["event"]:
            case "reply" if event["held_out_loss"] is not None:
                self._held_out.setdefault(event["round"] - 1, {})[event["client"]] = event["held_out_loss"]
            case "evaluation":
                self._held_out.setdefault(event["round"], {})[event["client"]] = event["held_out_loss"]
            case "round_started":
                self._asked[event["round"]] = len(event["clients"])
            case "round_finished" if event["skipped"]:
                self._asked.pop(event["round"], None)
            case "resumed":
                self._asked = {round_: count for round_, count in self._asked.items() if round_ < event["round"]}

    def _complete(self, event: Event) -> Iterator[tuple[int, Values]]:
        run = self._builder.status()
        for round_, losses in sorted(self._held_out.items()):
            yield round_, _by_member("held-out-loss", Losses.of(losses).mean, losses)
        self._held_out.clear()
        if event["event"] == "round_finished":
            yield run.round, _round(run, event)
        yield run.round, self._traffic(run)

    def _traffic(self, run: RunStatus) -> Values:
        """Bytes and ratios as they are now."""
        up = {name: member.bytes_up for name, member in run.members.items() if member.bytes_up or member.bytes_down}
        down = {name: run.members[name].bytes_down for name in up}
        if not up:
            return {}
        mean_up, mean_down = sum(up.values()) / len(up), sum(down.values()) / len(down)
        ratios = run_ratios(
            parameters=run.parameters,
            local_steps=run.local_steps,
            clients=len(up),
            asked=[count for round_, count in self._asked.items() if round_ <= run.rounds_done],
            bytes_up=mean_up,
            bytes_down=mean_down,
        )
        named = {"ratio/r1": ratios.r1, "ratio/r2": ratios.r2, "ratio/r3": ratios.r3}
        return {
            **_by_member("bytes-up", mean_up, up),
            **_by_member("bytes-down", mean_down, down),
            **{name: value for name, value in named.items() if value is not None},
        }


def _round(run: RunStatus, event: Event) -> Values:
    missing = [
        member
        for member in run.members.values()
        if member.round == event["round"] and member.state in (MemberState.LEFT_OUT, MemberState.NO_ANSWER)
    ]
    values = {"seconds": event["seconds"], "left-out": len(missing), "skipped": int(event["skipped"])}
    return values if event["loss"] is None else {"train-loss": event["loss"], **values}


def _by_member(name: str, mean: float | None, values: dict[str, float | None] | dict[str, int]) -> Values:
    members = {f"{name}/{printable(member)}": value for member, value in values.items() if value is not None}
    return members if mean is None else {name: mean, **members}
