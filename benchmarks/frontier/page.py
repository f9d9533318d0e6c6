"""The frontier as pictures and tables: an HTML page, SVG files, Markdown and JSON."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.frontier.table import Row, Run, Tried, rows, sweep
from distro_fed.files import write_atomically
from distro_fed.reporting.charts import Axis, Series, line_chart
from distro_fed.reporting.page_style import STYLE
from distro_fed.reporting.units import format_bytes, format_ratio

COLOURS = 6


def write_all(runs: Sequence[Run], docs: Path) -> list[Path]:
    """Write ``frontier.json``, ``frontier.html``, one SVG a task, and the tables within ``frontier.md``."""
    table = [row for row in rows(runs) if row.steps]
    written = [docs / "frontier.json", docs / "frontier.html"]
    write_atomically(written[0], json.dumps([row.to_dict() for row in table], indent=1) + "\n")
    write_atomically(written[1], _html(table, runs))
    for name, group in panels(table).items():
        path = docs / f"frontier-{re.sub(r'[^a-z0-9]+', '-', name)}.svg"
        write_atomically(path, _standalone(chart(name, group)))
        written.append(path)
    page = docs / "frontier.md"
    text = page.read_text()
    for task in sorted({row.task for row in table}):
        text = _replace(text, f"results of {task}", _markdown([row for row in table if row.task == task]))
        text = _replace(text, f"sweep of {task}", _markdown_sweep([run for run in runs if run["task"] == task]))
    write_atomically(page, text)
    return [*written, page]


def panels(table: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that can stand in one picture: the same task, steps, clients and participation."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in table:
        part = "" if row.participation == 1 else f", {row.participation:g} of them a round"
        baseline = f"{row.task}, {row.steps} steps, {row.clients} clients"
        found[baseline + part].append(row)
    return {name: group for name, group in found.items() if any(row.ratio_r1 and not _is_line(row) for row in group)}


def chart(title: str, group: Sequence[Row]) -> str:
    """Loss against bytes; a curve joins the points of one family, dashed lines are the baselines."""
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in group:
        if not _is_line(row) and row.bytes_up + row.bytes_down:
            curves[family(row.pipeline)].append((row.bytes_up + row.bytes_down, row.loss))
    places = [place for points in curves.values() for place, _ in points]
    ends = min(places), max(places)
    lines = [
        Series(row.pipeline, [(ends[0], row.loss), (ends[1], row.loss)], "train") for row in group if _is_line(row)
    ]
    lines += [
        Series(name, sorted(points), f"c{index % COLOURS}")
        for index, (name, points) in enumerate(sorted(curves.items()))
    ]
    x = Axis("bytes of one client over the run, up and down", format_bytes, format_bytes, log=True)
    y = Axis("held-out loss, nats a token", lambda value: f"{value:.4f}", lambda value: f"{value:g}")
    return line_chart(title, lines, x, y)


def family(pipeline: str) -> str:
    """The curve that a pipeline belongs to: what stands before the colon."""
    return pipeline.split(":")[0]


def _is_line(row: Row) -> bool:
    return row.pipeline.startswith(("R1", "R2", "local"))


def _standalone(svg: str) -> str:
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{STYLE} svg {{ background: var(--card); }}</style>", 1
    )


def _html(table: Sequence[Row], runs: Sequence[Run]) -> str:
    parts = []
    for name, group in panels(table).items():
        families = sorted({family(row.pipeline) for row in group if not _is_line(row) and row.bytes_up})
        legend = "".join(
            f'<li class="c{index % COLOURS}"><i></i>{escape(one)}</li>' for index, one in enumerate(families)
        )
        legend += '<li class="train"><i></i>baselines</li>'
        parts.append(
            f'<section class="card"><h2>{escape(name)}</h2><ul class="legend">{legend}</ul>{chart(name, group)}'
            f'<div class="scroll">{_html_table(group)}</div></section>'
        )
    tried = "".join(
        f"<tr><td>{escape(one.task)}</td><td class=words>{escape(one.pipeline)}</td><td>{one.steps}</td>"
        f"<td>{_who(one)}</td><td>{one.learning_rate:g}</td><td>{one.loss:.4f}</td><td>{one.seeds}</td></tr>"
        for one in sweep(runs)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Loss against bytes</title>'
        f"<style>{STYLE}</style></head><body><main><h1>Loss against bytes</h1>{''.join(parts)}"
        '<section class="card"><details><summary>Every learning rate tried</summary><table><thead><tr><th>task</th>'
        "<th class=words>pipeline</th><th>steps</th><th>clients</th><th>rate</th><th>loss</th><th>seeds</th></tr>"
        f"</thead><tbody>{tried}</tbody></table></details></section></main></body></html>\n"
    )


_HEADS = ("pipeline", "loss", "gap", "up", "down", "R1", "R2", "H", "state", "lr", "seeds")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.pipeline,
        f"{row.loss:.4f}" + (f" ± {row.loss_spread:.4f}" if len(row.seeds) > 1 else ""),
        _gap(row),
        format_bytes(row.bytes_up),
        format_bytes(row.bytes_down),
        format_ratio(row.ratio_r1),
        format_ratio(row.ratio_r2),
        str(row.local_steps or ""),
        "none" if row.stateless else "yes",
        f"{row.learning_rate:g}" + (f" x {row.outer_learning_rate:g}" if row.outer_learning_rate != 1 else ""),
        ", ".join(map(str, row.seeds)),
    )


def _gap(row: Row) -> str:
    if row.gap_nats is None:
        return ""
    on = "" if row.gap_seeds == row.seeds else f" (seed {', '.join(map(str, row.gap_seeds))})"
    return f"{row.gap_nats:+.4f}{on}"


def _html_table(group: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in group)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _markdown(table: Sequence[Row]) -> str:
    parts = []
    for name, group in sorted(panels(table).items()):
        lines = [f"**{name}**", "", "| " + " | ".join(_HEADS) + " |", "|---" * len(_HEADS) + "|"]
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in group]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _markdown_sweep(runs: Sequence[Run]) -> str:
    tried: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for one in sweep(runs):
        many = f" ({one.seeds} seeds)" if one.seeds > 1 else ""
        tried[one.pipeline, one.steps, _who(one)].append(f"{one.learning_rate:g}: {one.loss:.4f}{many}")
    lines = ["| pipeline | steps | clients | learning rate: loss |", "|---|---|---|---|"]
    lines += [f"| {pipeline} | {steps} | {who} | {'; '.join(losses)} |"
              for (pipeline, steps, who), losses in tried.items()]  # fmt: skip
    return "\n".join(lines)


def _who(one: Tried) -> str:
    return f"{one.clients}" + (f", {one.participation:g} of them a round" if one.participation < 1 else "")


def _replace(text: str, name: str, content: str) -> str:
    """Put ``content`` between the two marks of that name; a page without the marks stays as it is."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)
