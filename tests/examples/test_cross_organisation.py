"""The pages for operator and organisation name only what exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from distro_fed.cli.main import app
from distro_fed.cli.run_config import FlowerApp, parse_run_config
from distro_fed.clients.egress_rules import EgressRules
from distro_fed.clients.node_overrides import with_node_overrides
from distro_fed.settings import RunSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "cross_organisation"
PAGES = [FOLDER / name for name in ("README.md", "operator.md", "organisation.md")]


def blocks(page: Path, kind: str) -> Iterator[str]:
    yield from re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every command line of the pages, in words."""
    for page in PAGES:
        lines = [block.replace("\\\n", " ") for block in blocks(page, "sh")]
        lines += [line.split("ExecStart=")[1] for unit in blocks(page, "ini") for line in unit_lines(unit)]
        for line in "\n".join(lines).splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield [words[0].removeprefix("/opt/distro-fed/bin/"), *words[1:]]


def unit_lines(unit: str) -> list[str]:
    return [line for line in unit.replace("\\\n", " ").splitlines() if line.startswith("ExecStart=")]


@cache
def flower_help(*command: str) -> str:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:], "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_of_this_package_parse() -> None:
    group = typer.main.get_command(app)
    seen = set()
    for words in commands():
        if words[0] == "distro-fed":
            seen.add(words[1])
            command, rest = group, words[1:]
            while isinstance(command, click.Group):
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context("distro-fed", list(rest), resilient_parsing=False)
    assert seen >= {"deployment", "status", "audit", "identity", "roster", "fetch"}


@pytest.mark.e2e
def test_options_of_flowers_commands_exist() -> None:
    seen = set()
    for words in commands():
        if words[0] in ("flower-superlink", "flower-supernode"):
            text = flower_help(words[0])
        elif words[0] == "flwr":
            names = [words[1]] if words[1] != "supernode" else words[1:3]
            text = flower_help("flwr", *names)
        else:
            continue
        seen.add(words[0])
        for word in words:
            if word.startswith("--"):
                assert word in text, f"{words[0]} {word}"
    assert seen == {"flower-superlink", "flower-supernode", "flwr"}


def test_run_configs_of_the_pages_are_settings_of_the_app() -> None:
    example = FlowerApp.load(FOLDER)
    assert {key for key in example.config if not key.startswith("peft.")} <= RunSettings.from_run_config(
        {}
    ).flat().keys()
    RunSettings.from_run_config(example.config)
    given = [words[words.index("--run-config") + 1] for words in commands() if "--run-config" in words]
    assert len(given) == 2
    for text in given:
        RunSettings.from_run_config({**example.config, **parse_run_config([text], example)})
    for page in PAGES:
        for key in re.findall(r"`([a-z][a-z-]+)=", page.read_text()):
            assert key in example.config, f"{page.name}: {key}"


def test_node_config_keys_exist() -> None:
    page = (FOLDER / "organisation.md").read_text()
    config = tomllib.loads(next(blocks(FOLDER / "organisation.md", "toml")))
    with_node_overrides(RunSettings.from_run_config({}), config)
    EgressRules.from_node_config(config)
    table = page.split("| key | meaning |")[1].split("\n\n")[0]
    keys = [key for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for key in re.findall(r"`([^`]+)`", row)]
    assert {"name", "data", "state-dir", "egress-allow", "secure-folder", "device"} <= set(keys)
    assert set(config) <= set(keys)
    source = "\n".join(path.read_text() for path in (ROOT / "distro_fed" / "clients").glob("*.py"))
    for key in keys:
        assert f'"{key}"' in source, key


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_flowers_configuration_is_toml() -> None:
    config = tomllib.loads(next(blocks(FOLDER / "operator.md", "toml")))
    name = config["superlink"]["default"]
    assert config["superlink"][name].keys() == {"address", "root-certificates"}
    used = {words[-1] for words in commands() if words[:2] == ["flwr", "supernode"]}
    assert used == {name}
