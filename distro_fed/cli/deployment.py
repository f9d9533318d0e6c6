"""``distro-fed deployment``: certificates and keys for machines of several organisations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import VerboseOption

deployment_app = typer.Typer(help="Certificates and node keys of a deployment.", no_args_is_help=True)


@deployment_app.command("certificates")
def certificates(
    hosts: Annotated[list[str], typer.Argument(help="Names and addresses under which SuperNodes reach the SuperLink.")],
    folder: Annotated[Path, typer.Option(help="Where ca.crt, ca.key, server.crt and server.key lie.")] = Path(),
    days: Annotated[int, typer.Option(help="Days until the server's certificate has to be renewed.")] = 365,
    verbose: VerboseOption = False,
) -> None:
    """Make or renew the SuperLink's certificate; the authority behind it is made once and kept."""
    from distro_fed.cli.deployment_files import AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY, create_certificates

    create_certificates(folder, hosts, days)
    _show(folder / SERVER)
    typer.echo(f"{folder / AUTHORITY} is for every organisation; {AUTHORITY_KEY} and {SERVER_KEY} are for nobody else")
    _show(folder / AUTHORITY)


@deployment_app.command("node-key")
def node_key(
    name: Annotated[str, typer.Argument(help="Name of the organisation; it names the files.")],
    folder: Annotated[Path, typer.Option(help="Where NAME.key and NAME.pub are written.")] = Path(),
    verbose: VerboseOption = False,
) -> None:
    """Make the key of a SuperNode; its public half goes to the operator."""
    from distro_fed.cli.deployment_files import create_node_key

    public = create_node_key(folder, name)
    typer.echo(f"{public} is for the operator; {public.with_suffix('.key').name} stays on this machine")
    _show(public)


@deployment_app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(help="Certificates (*.crt) and public keys (*.pub).")],
    verbose: VerboseOption = False,
) -> None:
    """Print names, validity and fingerprints, to be compared by telephone."""
    for file in files:
        _show(file)


def _show(file: Path) -> None:
    from distro_fed.cli.deployment_files import describe

    typer.echo("\n    ".join([f"{file}:", *describe(file)]))
