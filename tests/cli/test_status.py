from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distro_fed.cli import status as command
from distro_fed.cli.main import app
from distro_fed.reporting.events import Event, EventWriter
from distro_fed.reporting.run_folder import EVENTS_FILE
from tests.reporting.sample_events import RUN_FINISHED, finished, no_answer, reply, round_started, started, traffic

runner = CliRunner()
BEGINNING: list[Event] = [started(2), round_started(1, "north", "south"), reply(1, "north"), no_answer(1, "south")]
END: list[Event] = [traffic(1, north=2000), finished(1), RUN_FINISHED]


def write(folder: Path, events: Sequence[Event]) -> None:
    with EventWriter(folder / EVENTS_FILE) as writer:
        for event in events:
            writer.write(**event)


def test_a_run_that_goes_on_and_one_that_is_over(tmp_path: Path) -> None:
    write(tmp_path, BEGINNING)
    going = runner.invoke(app, ["status", str(tmp_path)])
    assert going.exit_code == 0
    assert "round 1/2, 1 of 2 are in" in going.output
    assert "requests without an answer in time: 1 (south)" in going.output
    write(tmp_path, END)
    assert "finished 1/2 rounds" in runner.invoke(app, ["status", str(tmp_path)]).output


def test_json(tmp_path: Path) -> None:
    write(tmp_path, [*BEGINNING, *END])
    facts = json.loads(runner.invoke(app, ["status", str(tmp_path), "--json"]).output)
    assert (facts["state"], facts["bytes_up"]) == ("finished", 2000)
    assert {member["name"]: member["state"] for member in facts["members"]} == {"north": "done", "south": "no answer"}


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for arguments in ([str(tmp_path)], [str(tmp_path / "none"), "--watch"]):
        result = runner.invoke(app, ["status", *arguments])
        assert result.exit_code == 2
        assert "events.jsonl does not exist" in result.output.replace("\n", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_watching_goes_on_until_the_run_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """Begins before the run does; what is written later is shown, and then it ends by itself."""
    looked = threading.Event()
    monkeypatch.setattr(command, "POLL_SECONDS", 0.01)

    def run() -> None:
        write(tmp_path, BEGINNING)
        looked.wait(0.2)
        write(tmp_path, END)

    thread = threading.Thread(target=run)
    thread.start()
    result = runner.invoke(app, ["status", str(tmp_path), "--watch", *(["--json"] if as_json else [])])
    thread.join()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    if as_json:
        assert json.loads(lines[-1])["state"] == "finished"
    else:
        assert "round 1/2  south: no answer in time (30 s)" in lines
        assert lines[-1] == "run finished in 1 min 01 s"
