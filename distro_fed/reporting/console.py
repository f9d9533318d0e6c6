"""A run in the terminal: a live view of its events, and the table at its end."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distro_fed.reporting.progress_view import ProgressView
from distro_fed.reporting.report import RunReport, incidents, reference_rows
from distro_fed.reporting.units import (
    UNKNOWN,
    format_bytes,
    format_loss,
    format_ratio,
    format_seconds,
    printable,
)

__all__ = ["ProgressView", "print_report"]


def print_report(report: RunReport, console: Console) -> None:
    """Print losses and bytes of each organisation, the ratios, and where the model lies."""
    console.print()
    console.print(
        Text.assemble(
            (printable(report.name), "bold"),
            f": {printable(report.mode)}, {printable(report.compressor)}, {report.rounds} rounds of "
            f"{report.local_steps} steps, {report.trainable_parameters:,} of {report.parameters:,} parameters trained, "
            f"{format_seconds(report.seconds)}",
        )
    )
    console.print(_organisations(report))
    console.print(_ratios(report))
    skipped = [record.round for record in report.history if record.skipped]
    if skipped:
        console.print(Text(f"Skipped below quorum: rounds {', '.join(map(str, skipped))}", style="yellow"))
    for record in report.history:
        for left in record.left_out:
            console.print(
                Text(f"Round {record.round} without {printable(left.client)}: {printable(left.reason)}", style="yellow")
            )
    for words, client in incidents(report):
        console.print(Text(f"{words}: {printable(client)}" if client else words, style="yellow"))
    if report.model_path:
        console.print(Text(f"Model: {printable(report.model_path)}"), soft_wrap=True)


def _organisations(report: RunReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption="held-out loss in nats per token; bytes measured on serialised messages")
    table.add_column("organisation", overflow="fold")
    for title in ("loss before", "after", "change", "bytes up", "down", "total"):
        table.add_column(title, justify="right", no_wrap=True)
    before, after = report.loss_before, report.loss_after
    for name in report.clients:
        table.add_row(
            Text(printable(name)),
            *_loss_cells(before.per_client.get(name), after.per_client.get(name)),
            format_bytes(report.bytes_up_per_client[name]),
            format_bytes(report.bytes_down_per_client[name]),
            format_bytes(report.bytes_total_per_client[name]),
        )
    up, down = report.mean_bytes()
    table.add_section()
    sizes = (format_bytes(size) for size in (up, down, up + down))
    table.add_row("mean", *_loss_cells(before.mean, after.mean), *sizes, style="bold")
    return table


def _loss_cells(before: float | None, after: float | None) -> tuple[str, str, Text]:
    change = Text(UNKNOWN)
    if before is not None and after is not None:
        change = Text(f"{after - before:+.4f}", style="green" if after < before else "red")
    return format_loss(before), format_loss(after), change


def _ratios(report: RunReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption="a ratio says nothing without the losses above")
    table.add_column("fewer bytes than", no_wrap=True)
    table.add_column("which sends")
    table.add_column("ratio", justify="right", no_wrap=True, style="bold")
    for name, definition, ratio in reference_rows(report):
        table.add_row(name, definition, format_ratio(ratio))
    table.add_row("R1", "uplink alone", format_ratio(report.ratio_fedavg_full_bf16_up), style="dim")
    table.add_row("R1", "downlink alone", format_ratio(report.ratio_fedavg_full_bf16_down), style="dim")
    return table
