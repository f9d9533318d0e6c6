"""The ``distro-fed`` command."""

from __future__ import annotations

from typing import Annotated

import click
import typer
from rich.text import Text
from typer.core import TyperGroup

from distro_fed import __version__
from distro_fed.cli.audit import audit
from distro_fed.cli.common import error_console, is_verbose
from distro_fed.cli.demo import demo
from distro_fed.cli.demo_deployment import demo_deployment
from distro_fed.cli.demo_secure import demo_secure
from distro_fed.cli.deployment import deployment_app
from distro_fed.cli.fetch import fetch
from distro_fed.cli.merge import merge
from distro_fed.cli.plan import plan
from distro_fed.cli.report import report
from distro_fed.cli.secure import identity_app, policy_app, roster_app
from distro_fed.cli.simulate import simulate
from distro_fed.cli.status import status
from distro_fed.errors import DistroFedError


class _Commands(TyperGroup):
    """Commands whose :class:`DistroFedError` (or error of a file) becomes one clear message and exit code 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (DistroFedError, OSError) as error:
            if is_verbose(ctx):
                raise
            error_console.print(Text(f"Error: {error}", style="bold red"), soft_wrap=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="distro-fed",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"distro-fed {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Fine-tune one language model together, without sharing text, over ordinary internet links."""


for command in (audit, demo, demo_secure, demo_deployment, fetch, simulate, status, report, merge, plan):
    app.command()(command)
for name, group in (
    ("deployment", deployment_app), ("identity", identity_app), ("roster", roster_app), ("policy", policy_app),
):  # fmt: skip
    app.add_typer(group, name=name)
