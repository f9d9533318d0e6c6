"""``distro-fed report``: show the result of a run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import VerboseOption, console
from distro_fed.reporting.console import print_report
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import HTML_FILE, REPORT_FILE


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/demo-lora.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of a table.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Print losses, bytes and ratios of a run that has ended."""
    result = read_report(run_dir / REPORT_FILE)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    print_report(result, console)
    if (run_dir / HTML_FILE).exists():
        console.print(f"Curves: {run_dir / HTML_FILE}", soft_wrap=True, highlight=False)
