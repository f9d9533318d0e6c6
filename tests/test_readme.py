"""What the documents promise exists: links, commands, settings, code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest
import typer

from distro_fed.cli.main import app
from distro_fed.settings import RunSettings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_parse(document: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        ast.parse(block)


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in re.findall(r"`?make ([a-z]+)", document.read_text()):
            if target not in ("and", "an", "the", "it", "themselves", "itself"):
                assert f"\n{target}:" in makefile, f"{document.name}: make {target}"


def test_commands_of_the_documents_exist() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    commands = set(group.commands)
    for document in DOCUMENTS:
        for command in re.findall(r"(?<![\w\"/])distro-fed ([a-z][a-z-]*)\b", document.read_text()):
            assert command in commands, f"{document.name}: distro-fed {command}"


def test_options_of_the_documents_exist() -> None:
    """In lines of a shell that begin with the command, up to a pipe or a comment."""
    group = typer.main.get_command(app)
    found = 0
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?:\$ )?distro-fed ([^#|\n]+)", text, re.MULTILINE):
            command: click.Command = group
            for word in line.split():
                if isinstance(command, click.Group) and word in command.commands:
                    command = command.commands[word]
            known = {option for parameter in command.params for option in parameter.opts}
            for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", re.sub(r"'[^']*'", "", line)):
                found += 1
                assert option in known, f"{document.name}: distro-fed {line}: {option}"
    assert found > 5


def test_settings_of_the_readme_exist() -> None:
    table = (ROOT / "README.md").read_text().split("### Settings")[1].split("## ")[0]
    known = RunSettings.from_run_config({}).flat()
    named = [
        key for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for key in re.findall(r"`([a-z.*-]+)`", row)
    ]
    assert len(named) > 15
    for key in named:
        assert key in known or key.startswith("peft."), key


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
