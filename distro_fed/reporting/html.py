"""The report of a run as one HTML page: no script, no file beside it, nothing loaded from anywhere.

Names of clients and reasons come from other organisations, so every text is escaped, and the page's own
content policy forbids scripts and all loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from distro_fed.files import write_atomically
from distro_fed.reporting.charts import Axis, Marker, Series, line_chart
from distro_fed.reporting.page_style import STYLE
from distro_fed.reporting.references import fedavg_full_bf16
from distro_fed.reporting.report import Losses, RunReport, incidents, reference_rows
from distro_fed.reporting.units import format_bytes, format_loss, format_ratio, format_seconds

#: with more organisations than colours, all lines get the same thin one
COLOURS = 6

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_html(report: RunReport, path: Path) -> None:
    """Write the page as a whole or not at all."""
    write_atomically(path, render_html(report))


def render_html(report: RunReport) -> str:
    """Text of the page."""
    body = [
        _header(report),
        _cards(report),
        _charts(report),
        _organisations(report),
        _ratios(report),
        _left_out(report),
        _details(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.name)} | distro_fed</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


def _header(report: RunReport) -> str:
    share = 100 * report.trainable_parameters / report.parameters if report.parameters else 0
    return (
        f"<header>\n<h1>{escape(report.name)}</h1>\n"
        f'<p class="soft">{len(report.clients)} organisations fine-tuned one model: mode {escape(report.mode)}, '
        f"compressor {escape(report.compressor)}, {report.rounds} rounds of {report.local_steps} optimizer steps, "
        f"learning rate {report.learning_rate:g}. {report.trainable_parameters:,} of {report.parameters:,} parameters "
        f"trained ({share:.3g} %), {format_seconds(report.seconds)}.</p>\n</header>\n"
    )


def _cards(report: RunReport) -> str:
    before, after = report.loss_before.mean, report.loss_after.mean
    up, down = report.mean_bytes()
    cards = [
        (
            f"{format_loss(before)} → {format_loss(after)}",
            f"mean held-out loss, nats per token {_change(before, after)}",
        ),
        (
            format_bytes(up + down),
            f"sent and received by the mean client: {format_bytes(up)} up, {format_bytes(down)} down",
        ),
        (format_ratio(report.ratio_fedavg_full_bf16), "fewer bytes than FedAvg of the full model in bf16 (R1)"),
    ]
    items = (f'<div class="card"><div class="figure">{figure}</div><p>{words}</p></div>\n' for figure, words in cards)
    return f'<div class="cards">\n{"".join(items)}</div>\n'


def _charts(report: RunReport) -> str:
    by_round = {0: report.loss_before} | {record.round: record.held_out_loss for record in report.history}
    # the last round's model may only be evaluated after the run's last round has been closed
    if report.history and by_round[report.history[-1].round].mean is None:
        by_round[report.history[-1].round] = report.loss_after
    sent = {0: 0.0} | {record.round: record.bytes_up + record.bytes_down for record in report.history}
    styles = {
        name: f"c{index}" if len(report.clients) <= COLOURS else "many" for index, name in enumerate(report.clients)
    }
    training = Series(
        "training loss, mean",
        [(record.round, record.train_loss) for record in report.history if record.train_loss is not None],
        "train",
    )
    loss = Axis("loss (nats per token)", format_loss, "{:g}".format)
    over_rounds = line_chart(
        "Loss against round",
        [training, *_lines(by_round, {number: float(number) for number in by_round}, styles)],
        Axis("round", "round {:g}".format, "{:g}".format, whole=True),
        loss,
    )
    one_round = fedavg_full_bf16(parameters=report.parameters, clients=1, rounds=1, local_steps=1).total
    over_bytes = line_chart(
        "Loss against bytes",
        _lines(by_round, sent, styles),
        Axis("bytes sent and received by the mean client (log scale)", format_bytes, _byte_tick, log=True),
        replace(loss, label="held-out loss (nats per token)"),
        [Marker(one_round, "one round of R1")] if one_round else [],
    )
    legend = _legend(styles)
    with_training = legend.replace("</ul>", '<li class="train"><i></i>training, mean</li></ul>')
    return (
        '<div class="charts">\n'
        f'<section class="card"><h2>Loss against round</h2>{with_training}{over_rounds}</section>\n'
        f'<section class="card"><h2>Loss against bytes</h2>{legend}{over_bytes}</section>\n</div>\n'
    )


def _lines(by_round: Mapping[int, Losses], x_of: Mapping[int, float], styles: Mapping[str, str]) -> list[Series]:
    def points(losses: Iterable[tuple[int, float | None]]) -> list[tuple[float, float]]:
        return [(x_of[number], loss) for number, loss in losses if loss is not None]

    lines = [
        Series(name, points((number, losses.per_client.get(name)) for number, losses in by_round.items()), style)
        for name, style in styles.items()
    ]
    return [*lines, Series("mean", points((number, losses.mean) for number, losses in by_round.items()), "mean")]


def _byte_tick(size: float) -> str:
    number, unit = format_bytes(size).split()
    return f"{float(number.replace(',', '')):g} {unit}"


def _legend(styles: Mapping[str, str]) -> str:
    if "many" in styles.values():
        items = [f'<li class="many"><i></i>each of {len(styles)} organisations</li>']
    else:
        items = [f'<li class="{style}"><i></i>{escape(name)}</li>' for name, style in styles.items()]
    return f'<ul class="legend">{"".join(items)}<li class="mean"><i></i>mean</li></ul>'


def _organisations(report: RunReport) -> str:
    before, after = report.loss_before, report.loss_after
    rows = [
        (
            name,
            *_losses(before.per_client.get(name), after.per_client.get(name)),
            *(
                format_bytes(sizes[name])
                for sizes in (report.bytes_up_per_client, report.bytes_down_per_client, report.bytes_total_per_client)
            ),
        )
        for name in report.clients
    ]
    up, down = report.mean_bytes()
    mean = ("mean", *_losses(before.mean, after.mean), *(format_bytes(size) for size in (up, down, up + down)))
    head = ("organisation", "loss before", "loss after", "change", "bytes up", "bytes down", "total")
    return _section(
        "Organisations",
        _table(head, rows, foot=mean),
        "Held-out loss in nats per trained token, on each organisation's own data. Bytes are measured on serialised "
        "messages, with evaluation, catch-up and failed rounds; the first download of the base model is not in them.",
    )


def _ratios(report: RunReport) -> str:
    rows = [(f"{name}: {definition}", format_ratio(ratio)) for name, definition, ratio in reference_rows(report)]
    rows += [
        ("R1, uplink alone", format_ratio(report.ratio_fedavg_full_bf16_up)),
        ("R1, downlink alone", format_ratio(report.ratio_fedavg_full_bf16_down)),
    ]
    return _section(
        "Fewer bytes than",
        _table(("reference, with as many optimizer steps", "ratio"), rows),
        "Bytes of the reference divided by those of the mean client. R1 and R2 count sent plus received; R3 counts "
        "what is received, as its authors do, against sent plus received here. Skipped rounds do not count for a "
        "reference. A ratio says nothing without the losses above.",
    )


def _left_out(report: RunReport) -> str:
    rows = [(str(record.round), "", "round skipped: too few replies") for record in report.history if record.skipped]
    rows += [(str(record.round), left.client, left.reason) for record in report.history for left in record.left_out]
    rows.sort(key=lambda row: (int(row[0]), row[1]))
    left_out = _section("Left out", _table(("round", "organisation", "reason"), rows, words=True), "") if rows else ""
    others = [(client or "all", words) for words, client in incidents(report)]
    table = _table(("organisation", "what happened"), others, words=True)
    return left_out + (_section("Incidents", table, "") if others else "")


def _details(report: RunReport) -> str:
    facts = {"seed": report.seed, "model": report.model_path or "not kept", **report.machine}
    groups = [
        ("Settings", report.settings),
        ("Machine", facts),
        ("Versions", report.versions),
    ]
    parts = [f"<h2>{title}</h2>\n{_list(values)}" for title, values in groups if values]
    content = f"<summary>Settings, machine, versions</summary>\n{''.join(parts)}"
    return f'<section class="card"><details>{content}</details></section>\n'


def _section(title: str, content: str, note: str) -> str:
    note = f'<p class="note">{note}</p>' if note else ""
    return f'<section class="card"><h2>{title}</h2>\n<div class="scroll">{content}</div>\n{note}</section>\n'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, foot: Sequence[str] = (), words: bool = False) -> str:
    kind = ' class="words"' if words else ""
    titles = "".join(f"<th{kind}>{title}</th>" for title in head)

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        others = "".join(f"<td{kind}>{cell if isinstance(cell, _Markup) else escape(cell)}</td>" for cell in rest)
        return f'<tr><td class="name">{escape(first)}</td>{others}</tr>\n'

    end = f"<tfoot>{line(foot)}</tfoot>" if foot else ""
    return f"<table><thead><tr>{titles}</tr></thead>\n<tbody>{''.join(map(line, rows))}</tbody>{end}</table>"


class _Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


def _losses(before: float | None, after: float | None) -> tuple[str, str, str]:
    return format_loss(before), format_loss(after), _change(before, after)


def _change(before: float | None, after: float | None) -> _Markup:
    if before is None or after is None:
        return _Markup("")
    return _Markup(f'<span class="{"good" if after < before else "bad"}">{after - before:+.4f}</span>')


def _list(values: Mapping[str, object]) -> str:
    rows = (
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd></div>" for key, value in sorted(values.items())
    )
    return f"<dl>{''.join(rows)}</dl>\n"
