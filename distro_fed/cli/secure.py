"""``distro-fed identity | roster | policy``: the files of a member of secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import VerboseOption
from distro_fed.errors import PolicyError

identity_app = typer.Typer(help="The signing key of this member.", no_args_is_help=True)
roster_app = typer.Typer(help="Who belongs to the federation, exchanged out of band.", no_args_is_help=True)
policy_app = typer.Typer(help="What this member agrees to.", no_args_is_help=True)

FolderOption = Annotated[Path, typer.Option(help="Folder with identity.toml, roster.toml and policy.toml.")]


@identity_app.command("new")
def identity_new(
    name: Annotated[str, typer.Argument(help="Name of this member in the roster.")],
    folder: FolderOption = Path(),
    verbose: VerboseOption = False,
) -> None:
    """Make a key (mode 0600), an empty ledger beside it, and a policy with safe defaults if there is none."""
    from distro_fed.secure_aggregation.identity import create_identity, show_identity
    from distro_fed.secure_aggregation.member_files import IDENTITY_FILE, POLICY_FILE
    from distro_fed.secure_aggregation.policy import create_policy

    identity = create_identity(folder / IDENTITY_FILE, name)
    if not (folder / POLICY_FILE).exists():
        create_policy(folder / POLICY_FILE)
    typer.echo(show_identity(identity))


@identity_app.command("show")
def identity_show(folder: FolderOption = Path(), verbose: VerboseOption = False) -> None:
    """Print what others may know: name, public key, fingerprint."""
    from distro_fed.secure_aggregation.identity import read_identity, show_identity
    from distro_fed.secure_aggregation.member_files import IDENTITY_FILE

    typer.echo(show_identity(read_identity(folder / IDENTITY_FILE)))


@roster_app.command("new")
def roster_new(
    federation: Annotated[str, typer.Argument(help="Name of the federation.")],
    folder: FolderOption = Path(),
    verbose: VerboseOption = False,
) -> None:
    """Make an empty roster."""
    from distro_fed.secure_aggregation.member_files import ROSTER_FILE
    from distro_fed.secure_aggregation.roster import create_roster

    create_roster(folder / ROSTER_FILE, federation)
    typer.echo(f"{folder / ROSTER_FILE}: add the members with 'distro-fed roster add NAME PUBLIC-KEY'")


@roster_app.command("add")
def roster_add(
    name: Annotated[str, typer.Argument(help="Name of the member.")],
    public_key: Annotated[str, typer.Argument(help="As 'distro-fed identity show' prints it at the member.")],
    weight: Annotated[int, typer.Option(help="Public weight, for the weighting 'roster'.")] = 1,
    folder: FolderOption = Path(),
    verbose: VerboseOption = False,
) -> None:
    """Add a member; everybody needs the new file then."""
    from distro_fed.secure_aggregation.member_files import ROSTER_FILE
    from distro_fed.secure_aggregation.roster import add_member

    roster = add_member(folder / ROSTER_FILE, name, public_key, weight)
    typer.echo(f"{len(roster.members)} members")


@roster_app.command("check")
def roster_check(folder: FolderOption = Path(), verbose: VerboseOption = False) -> None:
    """Print members and fingerprints, and check that identity, roster and policy go together."""
    from distro_fed.secure_aggregation.identity import fingerprint, read_identity
    from distro_fed.secure_aggregation.member_files import IDENTITY_FILE, POLICY_FILE, ROSTER_FILE
    from distro_fed.secure_aggregation.policy import check_policy, read_policy
    from distro_fed.secure_aggregation.roster import read_roster

    roster = read_roster(folder / ROSTER_FILE)
    typer.echo(f"federation {roster.federation}, {len(roster.members)} members, digest {roster.digest.hex()[:16]}")
    for member in roster.members:
        typer.echo(f"{member.name:24} {fingerprint(member.public)}")
    if (folder / IDENTITY_FILE).exists():
        identity = read_identity(folder / IDENTITY_FILE)
        roster.index(identity)
        typer.echo(f"this member is {identity.name}")
    if (folder / POLICY_FILE).exists() and (problems := check_policy(read_policy(folder / POLICY_FILE), roster)):
        raise PolicyError(f"{folder / POLICY_FILE} does not go together with the roster: {'; '.join(problems)}")


@policy_app.command("show")
def policy_show(folder: FolderOption = Path(), verbose: VerboseOption = False) -> None:
    """Print the policy, defaults filled in."""
    from distro_fed.secure_aggregation.member_files import POLICY_FILE
    from distro_fed.secure_aggregation.policy import read_policy, show_policy

    typer.echo(show_policy(read_policy(folder / POLICY_FILE)))
