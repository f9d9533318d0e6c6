"""What the server runs."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from distro_fed.settings import RunSettings
from distro_fed.strategies.server import run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's configuration describes."""
    run_server(grid, RunSettings.from_run_config(context.run_config))
