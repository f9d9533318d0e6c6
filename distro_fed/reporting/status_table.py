"""The status of a run as a person reads it: what it does now, and a table of its members."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distro_fed.reporting.event_lines import run_line
from distro_fed.reporting.run_status import LATE_STATES, MemberState, MemberStatus, RunState, RunStatus
from distro_fed.reporting.units import UNKNOWN, format_bytes, format_loss, format_seconds, printable

_STYLES = {
    MemberState.TRAINING: "dim",
    MemberState.NOT_ASKED: "dim",
    MemberState.LEFT_OUT: "yellow",
    MemberState.NO_ANSWER: "yellow",
    MemberState.LATE: "yellow",
}


def render_status(run: RunStatus, now: float) -> RenderableType:
    """Everything about a run.

    Parameters
    ----------
    run : RunStatus
    now : float
        Unix seconds.
    """
    failed = run.state is RunState.FAILED
    words = [activity(run, now)]
    if run.started:
        words.append(f"{format_seconds(run.seconds(now))} {'in all' if run.is_over else 'so far'}")
    if (left := run.seconds_left(now)) is not None:
        words.append(f"about {format_seconds(left)} left")
    if (silent := run.silent_seconds(now)) is not None and not run.is_over:
        words.append(f"last sign of life {format_seconds(silent)} ago")
    return Group(
        *([Text(run_line(run), style="bold")] if run.name else []),
        Text(", ".join(words), style="red" if failed else ""),
        *([member_table(run, now)] if run.members else []),
        *incidents(run),
    )


def activity(run: RunStatus, now: float) -> str:
    """What the run does now."""
    if run.state is RunState.STARTING:
        return "starting: no event yet"
    if run.state is RunState.FINISHED:
        return f"finished {run.round}/{run.rounds} rounds"
    if run.state is RunState.FAILED:
        return f"failed in round {run.round}/{run.rounds}: {printable(run.error)}"
    if run.in_round:
        into = format_seconds(run.round_seconds(now))
        return f"round {run.round}/{run.rounds}, {run.count(MemberState.DONE)} of {run.asked} are in after {into}"
    if run.round == 0:
        return "waiting for members"
    if run.round >= run.rounds:
        return "evaluating on held-out data"
    return f"between rounds {run.round} and {run.round + 1}"


def member_table(run: RunStatus, now: float) -> Table:
    """One line a member: who is in, who is late and why, losses and bytes; sums at the end."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("organisation", overflow="fold")
    table.add_column("state", overflow="fold", min_width=16)
    for title in ("loss", "held-out", "up", "down"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, member in run.members.items():
        table.add_row(
            Text(printable(name)),
            Text(_state(member, run, now), style=_STYLES.get(member.state, "")),
            format_loss(member.loss),
            format_loss(member.held_out_loss),
            *(format_bytes(size) if size else UNKNOWN for size in (member.bytes_up, member.bytes_down)),
        )
    table.add_section()
    late = run.count(*LATE_STATES)
    table.add_row(
        "all",
        f"{late} late" if late else "",
        format_loss(run.train_loss),
        format_loss(run.held_out_loss),
        *(format_bytes(size) if size else UNKNOWN for size in (run.total("bytes_up"), run.total("bytes_down"))),
        style="bold",
    )
    return table


def incidents(run: RunStatus) -> list[Text]:
    """What did not go as it should, one line each; empty if all went well."""
    lines = []
    if run.skipped_rounds:
        lines.append(f"rounds skipped with too few replies: {', '.join(map(str, run.skipped_rounds))}")
    for number, words in (
        ("left_out", "replies left out"),
        ("no_answers", "requests without an answer in time"),
        ("late_replies", "late replies"),
        ("drifts", "replicas that differed and were replaced"),
    ):
        if run.total(number):
            who = ", ".join(printable(item.name) for item in run.members.values() if getattr(item, number))
            lines.append(f"{words}: {run.total(number)} ({who})")
    if run.resumed:
        lines.append(f"resumed from a checkpoint: {run.resumed}")
    return [Text(line, style="yellow") for line in lines]


def _state(member: MemberStatus, run: RunStatus, now: float) -> str:
    reason = f": {printable(member.reason)}" if member.reason else ""
    of_round = "" if member.round == run.round else f" in round {member.round}"
    match member.state:
        case MemberState.TRAINING:
            return "training"
        case MemberState.DONE:
            return f"done in {format_seconds(member.seconds)}"
        case MemberState.NO_ANSWER:
            waited = f" ({format_seconds(member.seconds)})" if member.seconds else ""
            return f"{printable(member.reason) or 'no answer'}{of_round}{waited}"
        case MemberState.LATE:
            return f"late{of_round}{reason}"
        case _:
            return f"{member.state}{of_round if member.reason else ''}{reason}"
