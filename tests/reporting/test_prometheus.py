from __future__ import annotations

import socket
import urllib.request

import pytest

from distro_fed.errors import SettingsError
from distro_fed.reporting.prometheus import RunCollector, serve_metrics
from tests.reporting.sample_events import (
    EVIL,
    START,
    drift,
    finished,
    late_reply,
    no_answer,
    reply,
    resumed,
    round_started,
    started,
    timed,
    traffic,
)

pytest.importorskip("prometheus_client")

EVENTS = timed(
    started(3), round_started(1, "north", "south", EVIL), reply(1, "north"), drift(1, "south"),
    no_answer(1, "south", reason="gone"), reply(1, EVIL, held_out=None), traffic(1, north=1500), finished(1),
    late_reply(1, "south"), round_started(2, "north", "south"), no_answer(2, "south"), finished(2, skipped=True),
    resumed(3, version=1), round_started(3, "north"), reply(3, "north"),
)  # fmt: skip


def scrape(port: int) -> tuple[str, dict[str, float]]:
    """Content type and the samples by name and labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
        kind = answer.headers["Content-Type"]
    samples = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    return kind, {name: float(value) for name, _, value in samples}


def test_what_is_served_follows_the_events() -> None:
    collector = RunCollector(EVENTS[:3])
    with serve_metrics(collector, "127.0.0.1", 0) as port:
        assert scrape(port)[1]['distro_fed_bytes_up_total{member="north"}'] == 1000
        for event in EVENTS[3:]:
            collector(event)
        kind, found = scrape(port)
    assert kind.startswith("text/plain; version=0.0.4")
    for name, value in {
        'distro_fed_run_info{compressor="quantized bits=1",mode="lora",run="trial"}': 1,
        'distro_fed_run_state{state="running"}': 1,
        'distro_fed_run_state{state="failed"}': 0,
        "distro_fed_round": 3,
        "distro_fed_rounds": 3,
        "distro_fed_version": 1,
        "distro_fed_members_asked": 1,
        "distro_fed_members_in": 1,
        "distro_fed_members_late": 1,
        "distro_fed_train_loss": 2.5,
        "distro_fed_round_seconds": 4.0,
        "distro_fed_skipped_rounds_total": 1,
        "distro_fed_resumed_total": 1,
        "distro_fed_last_event_timestamp_seconds": START + 14,
        'distro_fed_member_held_out_loss{member="north"}': 2.75,
        'distro_fed_bytes_up_total{member="north"}': 2500,
        'distro_fed_bytes_down_total{member="north"}': 5000,
        'distro_fed_drifts_total{member="south"}': 1,
        'distro_fed_no_answers_total{member="south"}': 2,
        'distro_fed_late_replies_total{member="south"}': 1,
    }.items():
        assert found[name] == value, name
    assert not any(name.startswith('distro_fed_member_held_out_loss{member="south"') for name in found)


def test_the_port_is_free_again_afterwards() -> None:
    with serve_metrics(RunCollector(), "127.0.0.1", 0) as port:
        assert scrape(port)[1]["distro_fed_round"] == 0
    with pytest.raises(OSError, match="refused"):
        scrape(port)
    with serve_metrics(RunCollector(), "127.0.0.1", port):
        pass


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"metrics-port = {port} on metrics-host = '127.0.0.1'"),
            serve_metrics(RunCollector(), "127.0.0.1", port),
        ):
            pass
    with (
        pytest.raises(SettingsError, match=r"metrics-host = '192\.0\.2\.1'"),
        serve_metrics(RunCollector(), "192.0.2.1", 0),
    ):
        pass
