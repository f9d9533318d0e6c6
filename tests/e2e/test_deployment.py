"""A real SuperLink and real SuperNodes on this machine: TLS, node keys, processes that die.

One deployment serves all tests of this file, since a start takes long; each test starts the SuperNodes that it needs.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from typer.testing import CliRunner

from distro_fed.cli.demo_secure import make_members
from distro_fed.cli.deployment_files import AUTHORITY, SERVER, SERVER_KEY, create_certificates
from distro_fed.cli.deployment_runtime import STATE, Deployment
from distro_fed.cli.main import app
from distro_fed.cli.run_config import FlowerApp
from distro_fed.errors import FederationError
from distro_fed.secure_aggregation.identity import read_identity
from distro_fed.secure_aggregation.member_files import IDENTITY_FILE
from distro_fed.settings import RunSettings
from distro_fed.transport.local_grid import LocalGrid
from tests.e2e.deployed import DATA, NAMES, PATIENCE, ROOT, Federation, Run, linear_app, wait
from tests.secure_aggregation.test_secrecy import forms
from tests.tiny import tiny_model_folder

pytestmark = pytest.mark.e2e

EVERYBODY = tuple(NAMES)
#: near the mean magnitude of what a member of the linear app changes in a round
FIRST_SCALE = "0.02"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("deployment")
    home = folder / "home"
    home.mkdir()
    environment = {"HOME": str(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
    with Deployment(folder / "machines", environment) as deployment:
        deployment.register(EVERYBODY)
        federation = Federation(deployment, folder)
        make_members(folder / "members", list(EVERYBODY))
        shutil.move(folder / "members", folder / "secure")  # not in use yet: members with files send nothing in clear
        yield federation


def in_this_process(run: Run, folder: Path) -> dict[str, Any]:
    """The same run with the same members, without Flower's processes."""
    config = {**run.federation.linear.config, **run.config}
    nodes = [{"name": NAMES[name], "data": DATA[name], "state-dir": str(folder)} for name in EVERYBODY]
    client = linear_app("client_app").app
    grid = LocalGrid(client, len(nodes), run_config=config, node_configs=nodes, run_id=run.id)
    figures: dict[str, Any] = linear_app("server_app").run(grid, RunSettings.from_run_config(config))
    return figures


def files(state: Path, kind: str) -> list[bytes]:
    """Contents of the files that a run has left in a state folder."""
    return [path.read_bytes() for path in sorted(state.glob(f"*/{kind}/*"))]


def test_a_run_equals_the_same_run_in_one_process_bit_for_bit(federation: Federation, tmp_path: Path) -> None:
    federation.start(*EVERYBODY)
    run = federation.run("equal", error_feedback=True)
    figures = run.figures()
    expected = in_this_process(run, tmp_path)
    assert figures["chain"] == expected["chain"]
    assert figures["values"] == expected["values"]
    assert figures["version"] == 2
    assert {int(key): value for key, value in figures["held_out"].items()} == expected["held_out"]
    # the organisation with two nodes is there twice
    assert sorted(run.accepted()[1]) == ["bank", "clinic", "school", "school (2)"]
    assert len(files(tmp_path, "updates")) == 2
    for name in EVERYBODY:
        assert files(federation.state(name), "updates") == files(tmp_path, "updates")
    residuals = [data for name in EVERYBODY for data in files(federation.state(name), "residuals/*")]
    assert sorted(residuals) == sorted(files(tmp_path, "residuals/*"))


def test_who_is_not_known_or_not_trusted_takes_no_part(federation: Federation, tmp_path: Path) -> None:
    deployment = federation.deployment
    create_certificates(tmp_path / "another", [])
    for file in (AUTHORITY, "ca.key"):
        (tmp_path / "expired").mkdir(exist_ok=True)
        shutil.copy(deployment.certificates / file, tmp_path / "expired" / file)
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    create_certificates(tmp_path / "expired", [], days=1, start=long_ago)
    with tls_server(tmp_path / "expired") as expired:
        strangers = {
            "not registered": deployment.start_node("stranger", {}),
            "wrong authority": deployment.start_node("misled", {}, authority=tmp_path / "another" / AUTHORITY),
            "expired": deployment.start_node("late", {}, superlink=expired),
        }
        for why, node in strangers.items():
            with pytest.raises(FederationError, match="ended"):
                node.wait_until_connected(PATIENCE)
            assert node.tree.root.returncode != 0, why
    assert "Failed to activate SuperNode" in strangers["not registered"].log
    for why in ("wrong authority", "expired"):
        assert "CERTIFICATE_VERIFY_FAILED" in strangers[why].log, strangers[why].log
    assert "expired" in strangers["expired"].log.split("CERTIFICATE_VERIFY_FAILED")[1]


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """Address of something that shows the certificate in a folder, and answers nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / SERVER, folder / SERVER_KEY)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_the_example_fine_tunes_a_language_model(federation: Federation, tmp_path: Path) -> None:
    tiny_model_folder(tmp_path / "model")
    for name in ("bank", "clinic"):
        (tmp_path / name).mkdir()
        for split, count in (("train", 20), ("test", 4)):
            rows = [{"prompt": f"{name} {index % 5}:", "completion": f" answer {index % 5}"} for index in range(count)]
            (tmp_path / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    federation.stop(*EVERYBODY)
    nodes = [federation.deployment.start_node(name, {"data": str(tmp_path / name)}) for name in ("bank", "clinic")]
    for node in nodes:
        node.wait_until_connected(PATIENCE)
    run = federation.run(
        "example", FlowerApp.load(ROOT / "examples" / "cross_organisation"), base_model=str(tmp_path / "model"),
        num_server_rounds=1, local_steps=4, learning_rate=0.02, max_length=48,
    )  # fmt: skip
    run.wait_for("run_finished")
    report = json.loads((run.folder / "report.json").read_text())
    assert report["clients"] == ["bank", "clinic"]
    assert report["loss_after"]["mean"] < report["loss_before"]["mean"]
    assert (run.folder / "model" / "adapter_model.safetensors").exists()
    for node in nodes:
        audited = CliRunner().invoke(app, ["audit", str(node.folder / STATE), "--json"])
        assert audited.exit_code == 0, audited.output
        kinds = [entry["kind"] for log in json.loads(audited.output) for entry in log["entries"]]
        assert kinds == ["update", "evaluation"]


def test_the_secure_sum_is_the_plain_one_also_without_a_member_that_dies_after_its_upload(
    federation: Federation, tmp_path: Path
) -> None:
    limit = time_limit(federation)
    federation.stop(*EVERYBODY)
    shutil.move(federation.folder / "secure", federation.folder / "members")
    try:
        federation.start(*EVERYBODY)
        run = federation.run(
            "secure", secure_aggregation=True, secure_folder=str(federation.folder / "members"), round_timeout=limit,
            stage_timeout=limit, initial_scale=FIRST_SCALE, bits=1,
        )  # fmt: skip
        wait(lambda: len(run.accepted().get(2, [])) == 4, "four masked vectors in round 2")
        federation.kill("twin")
        figures = run.figures()
        seen = what_the_server_has(federation, run)
        for name in EVERYBODY:
            private = read_identity(federation.folder / "members" / name / IDENTITY_FILE).private
            assert not [form for form in forms(private) if form in seen], name
    finally:
        federation.stop(*EVERYBODY)
        shutil.move(federation.folder / "members", federation.folder / "secure")
    assert figures["skipped"] == [False, False]
    assert figures["version"] == 2
    in_clear = {"weighted-by": "", "scales": "common", "initial-scale": FIRST_SCALE, "bits": 1}
    expected = in_this_process(Run(federation, run.folder, str(run.id), in_clear), tmp_path)
    parameters = dict(linear_app("task").load_model().named_parameters())
    start = torch.cat([parameters[name].detach().flatten() for name in sorted(parameters)])
    moves = [torch.tensor(values) - start for values in (figures["values"], expected["values"])]
    # masks lose nothing, and one bit is not rounded at random: what is left is the last bit of weights up to 4
    assert float((moves[0] - moves[1]).abs().max()) < 1e-4 * float(moves[1].abs().max())


def what_the_server_has(federation: Federation, run: Run) -> bytes:
    """Database and log of the SuperLink, and what the server app has written."""
    home = federation.deployment.home
    files = [*home.glob("state.db*"), *home.glob("*.log"), *run.folder.rglob("*")]
    assert (home / "state.db").stat().st_size > 10_000
    return b"\0".join(path.read_bytes() for path in files if path.is_file())


def test_nodes_that_die_join_late_or_lose_their_files_and_a_server_that_dies(federation: Federation) -> None:
    limit = time_limit(federation)
    federation.start("bank", "clinic", "school")
    settings: dict[str, Any] = {
        "compressor": "dense", "num_server_rounds": 5, "min_available_nodes": 2, "round_timeout": limit,
    }  # fmt: skip
    run = federation.run("bumpy", **settings)
    bank, school = federation.gate("bank"), federation.gate("school")
    run.wait_for("round_started", round=1)
    (school / "hold").touch()
    wait((school / "training-1").exists, "school trains in round 1")
    federation.kill("school")
    # whoever keeps the next round open, until all are there
    run.wait_for("reply", round=1, client="bank")
    (bank / "hold").touch()
    (school / "hold").unlink()
    shutil.rmtree(federation.state("school"))
    federation.start("twin")
    run.wait_for("round_finished", round=1)
    assert sorted(run.accepted()[1]) == ["bank", "clinic"]
    federation.start("school")
    wait((bank / "training-2").exists, "bank trains in round 2")
    (bank / "hold").unlink()
    # the server app dies in round 4, while bank trains
    run.wait_for("reply", round=3, client="bank")
    (bank / "hold").touch()
    wait((bank / "training-4").exists, "bank trains in round 4")
    run.kill_server_app()
    (bank / "hold").unlink()
    resumed = federation.run("bumpy", resume_from_checkpoint=str(run.folder), **settings)
    figures = resumed.figures()
    assert figures["version"] == 5
    assert figures["skipped"] == [False] * 5
    accepted = resumed.accepted()
    # two nodes of one name: the one that came late, and the one that lost its files
    assert sorted(accepted[4]) == sorted(accepted[5]) == ["bank", "clinic", "school", "school (2)"]
    assert figures["keyframes"] >= 1


def time_limit(federation: Federation) -> float:
    """Seconds in which a member that lives has answered, however busy this machine is."""
    rounds = [Run(federation, folder, "0", {}) for folder in (federation.folder / "runs").glob("*")]
    finished = [run.seconds_of_a_round() for run in rounds if (run.folder / "figures.json").exists()]
    return max([25.0, *(3 * seconds for seconds in finished)]) if finished else 600.0


INTERRUPTED = """
import sys, time
from pathlib import Path
from distro_fed.cli.deployment_runtime import Deployment
from distro_fed.cli.follow_run import ending_signals_unwind

with ending_signals_unwind(), Deployment(Path(sys.argv[1])) as deployment:
    deployment.start_nodes({"clinic": {}})
    print("connected", flush=True)
    time.sleep(600)
"""


def test_an_interrupted_deployment_leaves_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "connected"
    assert len(processes_of(tmp_path)) > 3
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert processes_of(tmp_path) == []


def processes_of(home: Path) -> list[psutil.Process]:
    """All processes whose environment shows that the deployment started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
