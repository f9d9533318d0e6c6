import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distro_fed import __version__
from distro_fed.cli.main import app
from distro_fed.errors import DistroFedError
from tests.reporting.sample_report import sample

runner = CliRunner()


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"distro-fed {__version__}\n"


def test_all_commands_have_help() -> None:
    overview = runner.invoke(app, ["--help"]).output
    for command in ("demo", "fetch", "simulate", "report", "merge"):
        assert command in overview
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


def test_an_error_of_ours_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    result = runner.invoke(app, ["simulate", str(tmp_path)])
    assert result.exit_code == 2
    assert "Error:" in result.output and "is not a Flower app" in result.output
    assert "Traceback" not in result.output


def test_verbose_raises_it(tmp_path: Path) -> None:
    result = runner.invoke(app, ["simulate", str(tmp_path), "--verbose"])
    assert isinstance(result.exception, DistroFedError)


def test_report(tmp_path: Path) -> None:
    sample().write_json(tmp_path / "report.json")
    table = runner.invoke(app, ["report", str(tmp_path)])
    assert table.exit_code == 0 and "1,760x" in table.output
    as_json = runner.invoke(app, ["report", str(tmp_path), "--json"])
    assert json.loads(as_json.output) == sample().to_dict()
    assert runner.invoke(app, ["report", str(tmp_path / "none")]).exit_code == 2


def test_nothing_heavy_is_imported_before_a_command_needs_it() -> None:
    code = (
        "import sys, distro_fed.cli.main;"
        "heavy = {'torch', 'transformers', 'peft', 'datasets', 'flwr', 'ray'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["simulate"], ["simulate", "x", "--nodes", "0"], ["demo", "--mode", "half"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2
