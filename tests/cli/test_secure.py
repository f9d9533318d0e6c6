"""``distro-fed identity | roster | policy`` as a member uses them."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from distro_fed.cli.main import app

runner = CliRunner()


def call(*words: str) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_federation_is_set_up_from_public_keys(tmp_path: Path) -> None:
    names = ["alpha", "beta", "gamma", "delta"]
    keys = {}
    for name in names:
        shown = call("identity", "new", name, "--folder", str(tmp_path / name)).splitlines()
        assert shown[0] == name and shown[2].startswith("fingerprint")
        keys[name] = shown[1]
        assert (tmp_path / name / "identity.toml").stat().st_mode & 0o777 == 0o600
    here = str(tmp_path / "alpha")
    call("roster", "new", "hospitals", "--folder", here)
    for name in names:
        call("roster", "add", name, keys[name], "--folder", here)
    checked = call("roster", "check", "--folder", here)
    assert "4 members" in checked and "this member is alpha" in checked
    assert call("identity", "show", "--folder", here).splitlines()[1] == keys["alpha"]
    assert 'mode = "required"' in call("policy", "show", "--folder", here)


def test_a_roster_too_small_for_the_policy_is_named(tmp_path: Path) -> None:
    key = call("identity", "new", "alpha", "--folder", str(tmp_path)).splitlines()[1]
    call("roster", "new", "hospitals", "--folder", str(tmp_path))
    call("roster", "add", "alpha", key, "--folder", str(tmp_path))
    result = runner.invoke(app, ["roster", "check", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "min-cohort is 4" in result.output + result.stderr


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    call("identity", "new", "alpha", "--folder", str(tmp_path))
    before = (tmp_path / "identity.toml").read_text()
    result = runner.invoke(app, ["identity", "new", "alpha", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert (tmp_path / "identity.toml").read_text() == before
