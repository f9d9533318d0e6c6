from pathlib import Path

from typer.testing import CliRunner

from distro_fed.cli.main import app


def test_a_wrong_setting_is_told_before_anything_starts(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for text, expected in (("compressor=top-k", "choose one of"), ("bit=1", "did you mean")):
        refused = CliRunner().invoke(app, ["demo-deployment", "--runs-dir", str(runs), "-c", text])
        assert refused.exit_code == 2
        assert expected in " ".join(refused.output.split()), refused.output
    assert not runs.exists()
