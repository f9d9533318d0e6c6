"""Where a run stands, worked out from its events alone: while it goes on, after its end, and after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from distro_fed.errors import DistroFedError
from distro_fed.reporting.events import Event
from distro_fed.reporting.report import Losses
from distro_fed.reporting.run_status import LATE_STATES, MemberState, MemberStatus, RunState, RunStatus


def status_of(events: Iterable[Event]) -> RunStatus:
    """Where a run stands after these events, all of one file in their order.

    Raises
    ------
    DistroFedError
        If an event lacks one of its fields.
    """
    builder = StatusBuilder()
    for event in events:
        builder.add(event)
    return builder.status()


class StatusBuilder:
    """For who follows a run: takes events one by one and says after any of them where the run stands.

    The status is a function of the events alone. An event of an unknown kind, as a newer release may write, is passed
    over.
    """

    def __init__(self) -> None:
        self._run = RunStatus()
        self._members: dict[str, MemberStatus] = {}
        self._evaluated: dict[str, float | None] = {}

    def status(self) -> RunStatus:
        """Where the run stands now."""
        return replace(self._run, members=dict(sorted(self._members.items())))

    def add(self, event: Event) -> None:
        """Take in one event.

        Raises
        ------
        DistroFedError
            If it lacks one of its fields.
        """
        kind = event["event"]
        handler = getattr(self, f"_on_{kind}", None)
        try:
            self._change(last_event=float(event["time"]))
            if handler is not None:
                handler(event)
        except (KeyError, TypeError, ValueError) as error:
            raise DistroFedError(f"not an event {kind!r} of this release ({error!r}): {str(event)[:200]}") from error

    def _on_run_started(self, event: Event) -> None:
        names = ("name", "mode", "compressor", "rounds", "local_steps", "parameters", "trainable")
        self._change(state=RunState.RUNNING, error="", **{name: event[name] for name in names})
        self._change(started=self._run.started or event["time"])

    def _on_resumed(self, event: Event) -> None:
        again = event["round"]
        self._forget_stand_ins()
        self._change(
            state=RunState.RUNNING, error="", round=again - 1, in_round=False, rounds=event["rounds"],
            version=event["version"], resumed=self._run.resumed + 1, ends=0.0,
            skipped_rounds=tuple(number for number in self._run.skipped_rounds if number < again),
            started=self._run.started or event["time"],
        )  # fmt: skip
        for name, member in self._members.items():
            if member.state is MemberState.TRAINING:
                self._members[name] = replace(member, state=MemberState.NOT_ASKED)

    def _on_round_started(self, event: Event) -> None:
        number, asked = event["round"], event["clients"]
        self._forget_stand_ins()
        self._evaluated.clear()
        self._change(round=number, in_round=True, asked=len(asked), round_started=event["time"])
        for name, member in self._members.items():
            if member.state not in LATE_STATES:  # who is late stays so until it is asked again
                self._members[name] = replace(member, state=MemberState.NOT_ASKED, reason="")
        for name in asked:
            self._set(name, state=MemberState.TRAINING, round=number, reason="", seconds=None)

    def _on_reply(self, event: Event) -> None:
        member = self._member(event["client"])
        if member.state is not MemberState.TRAINING:
            self._forget_one_stand_in()
        accepted = event["accepted"]
        losses = {name: event[name] for name in ("loss", "held_out_loss") if accepted and event[name] is not None}
        self._set(
            member.name, state=MemberState.DONE if accepted else MemberState.LEFT_OUT, round=event["round"],
            reason=event["reason"], seconds=event["seconds"], left_out=member.left_out + (not accepted),
            bytes_up=member.bytes_up + event["bytes_up"], bytes_down=member.bytes_down + event["bytes_down"], **losses,
        )  # fmt: skip

    def _on_no_answer(self, event: Event) -> None:
        name = event["client"]
        self._set(
            name, state=MemberState.NO_ANSWER, round=event["round"], reason=event["reason"], seconds=event["seconds"],
            no_answers=self._member(name).no_answers + 1,
        )  # fmt: skip

    def _on_late_reply(self, event: Event) -> None:
        member = self._member(event["client"])
        self._set(member.name, late_replies=member.late_replies + 1)
        if member.state is MemberState.NO_ANSWER:  # else it has been asked again, and that is what counts now
            self._set(member.name, state=MemberState.LATE, round=event["round"], reason=event["reason"])

    def _on_drift(self, event: Event) -> None:
        member = self._member(event["client"])
        self._set(member.name, drifts=member.drifts + 1)

    def _on_round_finished(self, event: Event) -> None:
        run = self._run
        self._forget_stand_ins()
        for name, member in self._members.items():
            if member.state is MemberState.TRAINING:
                self._members[name] = replace(member, state=MemberState.NO_ANSWER)
        losses = {
            name: loss
            for name, loss in (("train_loss", event["loss"]), ("held_out_loss", event["held_out_loss"]))
            if loss is not None
        }
        self._change(
            in_round=False, version=run.version + (not event["skipped"]), last_round_seconds=event["seconds"],
            skipped_rounds=(*run.skipped_rounds, event["round"]) if event["skipped"] else run.skipped_rounds,
            ends=0.0 if event["eta_seconds"] is None else event["time"] + event["eta_seconds"], **losses,
        )  # fmt: skip

    def _on_traffic(self, event: Event) -> None:
        for name in event["bytes_up"].keys() | event["bytes_down"].keys():
            up, down = event["bytes_up"].get(name, 0), event["bytes_down"].get(name, 0)
            self._set(name, bytes_up=up, bytes_down=down)

    def _on_evaluation(self, event: Event) -> None:
        name, loss = event["client"], event["held_out_loss"]
        self._set(name, held_out_loss=loss)
        self._evaluated[name] = loss
        self._change(held_out_loss=Losses.of(self._evaluated).mean)

    def _on_run_finished(self, event: Event) -> None:
        self._change(state=RunState.FINISHED, in_round=False)

    def _on_run_failed(self, event: Event) -> None:
        self._change(state=RunState.FAILED, in_round=False, error=str(event["error"]))

    def _change(self, **changes: Any) -> None:
        self._run = replace(self._run, **changes)

    def _member(self, name: str) -> MemberStatus:
        return self._members.get(name) or MemberStatus(name)

    def _set(self, name: str, **changes: Any) -> None:
        self._members[name] = replace(self._member(name), **changes)

    # A member tells its name with its first answer. Until then it is asked under a stand-in, which nothing ties to the
    # name but that no answer ever comes under it.

    def _forget_stand_ins(self) -> None:
        self._members = {name: member for name, member in self._members.items() if not _is_stand_in(member)}

    def _forget_one_stand_in(self) -> None:
        name = next((name for name, member in self._members.items() if _is_stand_in(member)), None)
        if name is not None:
            del self._members[name]


def _is_stand_in(member: MemberStatus) -> bool:
    silent = not (member.bytes_up or member.bytes_down or member.no_answers)
    return silent and member.state is MemberState.TRAINING
