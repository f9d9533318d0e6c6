"""A plan as tables for people, and as plain values for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distro_fed.planner.advice import Change
from distro_fed.planner.plan import Plan
from distro_fed.planner.presets import NODES, DistroReport
from distro_fed.reporting.references import ratio
from distro_fed.reporting.report import REFERENCES
from distro_fed.reporting.units import format_bytes, format_ratio, format_seconds, printable


def plan_to_dict(plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
    """Everything that :func:`print_plan` shows, in bytes and seconds."""
    scenario = plan.scenario
    references = plan.references()
    return {
        "model": scenario.model.name,
        "parameters": scenario.model.parameters,
        "trainable_parameters": scenario.layout.numel,
        "shapes": "exact" if scenario.model.exact else "typical",
        "mode": scenario.mode,
        "uplink": scenario.uplink.describe(),
        "downlink": scenario.downlink.describe(),
        "topology": scenario.topology,
        "nodes": len(scenario.network.nodes),
        "local_steps": scenario.local_steps,
        "rounds": scenario.rounds,
        "frame_bytes_up": plan.frame_up,
        "frame_bytes_down": plan.frame_down,
        **_numbers(plan),
        "hub_bytes_sent_per_round": plan.hub.sent if plan.hub else None,
        "hub_bytes_received_per_round": plan.hub.received if plan.hub else None,
        "seconds_compute": plan.seconds_compute,
        "seconds_down": plan.seconds_down,
        "seconds_up": plan.seconds_up,
        "stages": [asdict(stage) for stage in plan.stages],
        "bottleneck": {**asdict(plan.bottleneck), "description": plan.describe_bottleneck()},
        "references": {
            name: {
                "definition": definition,
                "bytes_up_per_run": references[name].sent,
                "bytes_down_per_run": references[name].received,
                "ratio": ratio(references[name].total, plan.per_run.total),
            }
            for name, definition in REFERENCES
        },
        "changes": [{"change": change.what, **_numbers(change.plan)} for change in changes],
    }


def print_plan(plan: Plan, changes: Sequence[Change], console: Console) -> None:
    """Print bytes and seconds, what the round waits for, the references, and what to change."""
    scenario = plan.scenario
    shapes = "" if scenario.model.exact else " (shapes of a typical decoder: name a model for exact ones)"
    console.print(
        Text.assemble(
            (printable(scenario.model.name), "bold"),
            f": {scenario.mode}, {scenario.layout.numel:,} of {scenario.model.parameters:,} parameters{shapes}; "
            f"{_codecs(plan)}; {len(scenario.network.nodes)} nodes, {scenario.topology}; "
            f"{scenario.rounds} rounds of {scenario.local_steps} steps",
        )
    )
    console.print(_byte_table(plan))
    console.print(_time_table(plan))
    slow = plan.bottleneck
    share = slow.seconds / plan.seconds_round if plan.seconds_round else 0.0
    console.print(
        Text(f"Bottleneck: {printable(plan.describe_bottleneck())}, {_time(slow.seconds)} of a round ({share:.0%})")
    )
    console.print(_reference_table(plan))
    if changes:
        console.print(_change_table(plan, changes))
    console.print(
        Text("Bytes as the traffic ledger counts them, without TLS. A change of compressor or steps changes the loss.")
    )


def print_distro_report(report: DistroReport, console: Console) -> None:
    """Print the report's figures, beside the same without its rounding."""
    printed, exact = report.printed, report.exact
    table = Table(box=box.SIMPLE_HEAD, title="DisTrO report, one step of one node", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("as printed", justify="right", no_wrap=True)
    table.add_column("not rounded", justify="right", no_wrap=True)
    table.add_column("from")
    rows: list[tuple[str, str, str, str]] = [
        (
            "model",
            f"{round(report.parameters, -8):,}",
            f"{report.parameters:,}",
            "the report's Llama without its norms",
        ),
        *(
            (what, form(getattr(printed, key)), form(getattr(exact, key)), how)
            for what, key, form, how in (
                ("gradient", "gradient_bytes", format_bytes, "2 bytes a parameter"),
                (
                    "message",
                    "message_bytes",
                    format_bytes,
                    "10 bytes for 4096 parameters; 2.8 MiB, called MB",
                ),
                ("all-reduce, received", "all_reduce_bytes_per_step", format_bytes, f"{NODES - 1} gradients (R3)"),
                ("DisTrO, received", "distro_bytes_per_step", format_bytes, f"{NODES - 1} messages"),
                ("ratio, naive", "ratio_naive", format_ratio, "of these two"),
                (
                    "ring all-reduce, received",
                    "ring_bytes_per_step",
                    format_bytes,
                    f"2 * {NODES - 1} / {NODES} gradients (R2)",
                ),
                ("ratio, ring", "ratio_ring", format_ratio, "ring over DisTrO, for the same traffic"),
                ("sent with a server", "upload_bytes_server", format_bytes, "one message, passed on by the server"),
                ("time down", "seconds_down", _seconds, "at 100 Mbit/s"),
                ("time up, with a server", "seconds_up", _seconds, "at 10 Mbit/s"),
                (
                    "time up, peer to peer",
                    "seconds_up_peer_to_peer",
                    _seconds,
                    f"{NODES - 1} messages; not in the report",
                ),
            )
        ),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _numbers(plan: Plan) -> dict[str, float]:
    return {
        "bytes_up_per_round": plan.per_round.sent,
        "bytes_down_per_round": plan.per_round.received,
        "bytes_up_per_run": plan.per_run.sent,
        "bytes_down_per_run": plan.per_run.received,
        "seconds_per_round": plan.seconds_round,
        "seconds_per_run": plan.seconds_run,
    }


def _codecs(plan: Plan) -> str:
    up, down = plan.scenario.uplink.describe(), plan.scenario.downlink.describe()
    return up if up == down or plan.scenario.topology == "peer-to-peer" else f"{up} up, {down} down"


def _byte_table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("bytes of one node", no_wrap=True)
    for title in ("up", "down", "total"):
        table.add_column(title, justify="right", no_wrap=True)
    rows = {"a round": plan.per_round, "the run": plan.per_run}
    if plan.hub:
        hub = "server" if plan.scenario.topology == "server" else "busiest aggregator"
        rows[f"{hub}, a round"] = plan.hub
    for what, size in rows.items():
        table.add_row(what, *(format_bytes(count) for count in (size.sent, size.received, size.total)))
    return table


def _time_table(plan: Plan) -> Table:
    """The stages that the slowest node goes through, the longest one marked."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("time of the slowest node")
    for title in ("a round", "the run"):
        table.add_column(title, justify="right", no_wrap=True)
    rounds = plan.scenario.rounds
    for stage in plan.stages:
        style = "bold" if stage is plan.bottleneck else None
        what = Text(printable(stage.describe()))
        table.add_row(what, _time(stage.seconds), _time(stage.seconds * rounds), style=style)
    table.add_section()
    table.add_row("total", _time(plan.seconds_round), _time(plan.seconds_run))
    return table


def _reference_table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption="a ratio says nothing without the losses of both sides")
    table.add_column("reference", no_wrap=True)
    table.add_column("which sends")
    table.add_column("up", justify="right", no_wrap=True)
    table.add_column("down", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True, style="bold")
    references = plan.references()
    for name, definition in REFERENCES:
        traffic = references[name]
        fewer = format_ratio(ratio(traffic.total, plan.per_run.total))
        table.add_row(name, definition, format_bytes(traffic.sent), format_bytes(traffic.received), fewer)
    return table


def _change_table(plan: Plan, changes: Sequence[Change]) -> Table:
    computing = plan.bottleneck.what == "compute"
    table = Table(box=box.SIMPLE_HEAD, caption="up + down of one node; as many optimizer steps as now")
    table.add_column("the links have room for" if computing else "faster")
    for column in ("bytes a round", "time a round", "the run"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="bold")
    for change in changes:
        other = change.plan
        times = other.seconds_run / plan.seconds_run
        table.add_row(
            Text(printable(change.what)),
            format_bytes(other.per_round.total),
            _time(other.seconds_round),
            _time(other.seconds_run),
            f"{times - 1:+.1%}",
        )
    return table


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"
