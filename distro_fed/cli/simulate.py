"""``distro-fed simulate``: run a Flower app folder in Flower's simulation runtime and show how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import RunConfigOption, RunsDirOption, VerboseOption, console, new_run_folder
from distro_fed.cli.flower_runtime import LocalSuperLink
from distro_fed.cli.follow_run import ending_signals_unwind, hub_environment, run_to_its_end, settings_of_run
from distro_fed.cli.run_config import FlowerApp, Value, parse_run_config
from distro_fed.errors import DataNotFound
from distro_fed.reporting.console import print_report
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import REPORT_FILE
from distro_fed.settings import RunSettings


def simulate(
    app_dir: Annotated[Path, typer.Argument(help="Folder of a Flower app (pyproject.toml with [tool.flwr.app]).")],
    nodes: Annotated[int, typer.Option(min=1, help="Virtual clients.")] = 4,
    run_config: RunConfigOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run (default: that of the app, numbered).")] = None,
    runs_dir: RunsDirOption = Path("runs"),
    cpus_per_client: Annotated[int, typer.Option(min=1, help="CPUs that one virtual client takes.")] = 1,
    verbose: VerboseOption = False,
) -> None:
    """Run a Flower app in the simulation runtime, offline and apart from ~/.flwr."""
    app = FlowerApp.load(app_dir)
    overrides = parse_run_config(run_config or [], app)
    check_before_start(app, overrides, nodes)
    run_folder = new_run_folder(runs_dir, name, app.name)
    run_simulation(app, run_folder, overrides=overrides, nodes=nodes, cpus_per_client=cpus_per_client, verbose=verbose)
    if (run_folder / REPORT_FILE).exists():
        print_report(read_report(run_folder / REPORT_FILE), console)
    console.print(f"Everything about this run: {run_folder}", soft_wrap=True)


def check_before_start(app: FlowerApp, overrides: Mapping[str, Value], nodes: int) -> None:
    """Find wrong settings now, not a minute later in every client.

    Only apps with the settings of this package are looked at; others have rules of their own.

    Raises
    ------
    SettingsError
        A setting is wrong.
    DataNotFound
        The run's data folder does not hold an organisation for each node.
    """
    config = {**app.config, **overrides}
    if not {"base-model", "compressor", "data-folder"} <= config.keys():
        return
    settings = RunSettings.from_run_config(config)
    folder = Path(settings.data.data_folder).expanduser() if settings.data.data_folder else None
    if folder is None:
        raise DataNotFound("data-folder is empty: name a folder with one subfolder for each organisation")
    if not folder.is_dir():
        raise DataNotFound(f"data-folder {str(folder)!r} is not a folder")
    found = sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())
    if found < nodes:
        raise DataNotFound(f"data-folder {str(folder)!r} has {found} organisations (subfolders) for {nodes} nodes")


def run_simulation(
    app: FlowerApp,
    run_folder: Path,
    *,
    overrides: Mapping[str, Value],
    nodes: int,
    cpus_per_client: int = 1,
    verbose: bool = False,
) -> None:
    """Run an app to its end and show its events; all processes are gone when this returns or raises.

    An app that has the settings ``run-dir`` and ``run-name`` gets the run's absolute folder and its name
    there; what it writes to ``events.jsonl`` in that folder is shown. The run's log goes to ``flower.log``.

    Parameters
    ----------
    app : FlowerApp
        What to run.
    run_folder : Path
        Exists.
    overrides : mapping
        Settings that differ from the app's defaults.
    nodes : int
        Virtual clients.
    cpus_per_client : int
        CPUs that one of them takes; as many as fit run at the same time.
    verbose : bool
        Show the log as it grows.

    Raises
    ------
    FederationError
        If Flower does not start the run, or the run does not end well. The message ends with the
        traceback from the log.
    """
    settings = settings_of_run(app, run_folder, overrides)
    arguments = ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus={cpus_per_client}"]
    with ending_signals_unwind(), LocalSuperLink(hub_environment(app, settings)) as superlink:
        run_to_its_end(superlink, app, run_folder, settings, arguments, verbose=verbose)
