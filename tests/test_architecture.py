"""Rules of the code base that a linter does not check."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "distro_fed").rglob("*.py"))
PUBLIC_FLOWER = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
COMPAT = ROOT / "distro_fed" / "transport" / "flower_compat.py"


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_flower_modules_are_imported_in_one_place(path: Path) -> None:
    flower = {name for name in imports(path) if name.split(".")[0] == "flwr"}
    if path != COMPAT:
        assert flower <= set(PUBLIC_FLOWER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 330


@pytest.mark.parametrize("module", ["distro_fed", "distro_fed.clients", "distro_fed.strategies", "distro_fed.cli.main"])
def test_light_processes_do_not_import_heavy_libraries(module: str) -> None:
    """In a deployment Flower starts a new client process for every message."""
    code = (
        f"import sys, {module}; "
        "print([name for name in ('torch', 'transformers', 'peft', 'datasets') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"
