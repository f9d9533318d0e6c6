from pathlib import Path

from typer.testing import CliRunner

from distro_fed.cli.main import app


def test_certificates_and_keys_are_made_and_shown(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["deployment", "certificates", "fed.example.org", "--folder", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key", "server.crt", "server.key"]
    key = runner.invoke(app, ["deployment", "node-key", "clinic", "--folder", str(tmp_path)])
    assert key.exit_code == 0, key.output
    shown = runner.invoke(app, ["deployment", "show", str(tmp_path / "ca.crt"), str(tmp_path / "clinic.pub")])
    assert shown.exit_code == 0, shown.output
    # what is shown is what was said when the files were made
    for line in shown.output.splitlines():
        assert line in made.output + key.output


def test_a_wrong_argument_is_one_message(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["deployment", "certificates", "https://x", "--folder", str(tmp_path)])
    assert refused.exit_code == 2
    assert not list(tmp_path.iterdir())
