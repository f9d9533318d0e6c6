from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.errors import SettingsError
from distro_fed.planner.links import NODE, SERVER, Link, Network, equal_nodes, read_network, transfer_seconds

FILE = """
[default]
down-mbit = 50
latency-ms = 5

[server]
up-mbit = 200

[[node]]
name = "north"
up-mbit = 2.5
group = "eu"

[[node]]
count = 2
step-seconds = 3

[[node]]
name = "lab"
count = 2
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "links.toml"
    file.write_text(text)
    return file


def test_a_file(tmp_path: Path) -> None:
    network = read_network(write(tmp_path, FILE), 7, NODE, SERVER)
    assert [node.name for node in network.nodes] == ["north", "node 2", "node 3", "lab 1", "lab 2", "node 6", "node 7"]
    assert network.nodes[0] == Link("north", 50.0, 2.5, 5.0, NODE.step_seconds, "eu")
    assert network.nodes[2] == Link("node 3", 50.0, NODE.up_mbit, 5.0, 3.0)
    assert network.server.up_mbit == 200 and network.server.down_mbit == SERVER.down_mbit
    assert len(read_network(write(tmp_path, FILE), None, NODE, SERVER).nodes) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "is not TOML"),
        ("[nodes]", "unknown key 'nodes'; did you mean 'node'?"),
        ("[node]", r"written as \[\[node\]\]"),
        ("", r"has no \[\[node\]\]"),
        ("node = [1]", "is 1; a table is needed"),
        ("default = 3", "is 3; a table is needed"),
        ("[[node]]\nup-mbits = 3", "did you mean 'up-mbit'?"),
        ("[[node]]\ncolour = 3", "known: name, down-mbit"),
        ("[[node]]\nup-mbit = '3'", "up-mbit = '3'; a number is needed"),
        ("[[node]]\nup-mbit = true", "up-mbit = True; a number is needed"),
        ("[[node]]\nname = 3", "name = 3; a text is needed"),
        ("[[node]]\ncount = 0", "count = 0"),
        ("[[node]]\ncount = 1.5", "count = 1.5"),
        ("[[node]]\nup-mbit = 0", "up-mbit of node 1 is 0.0; use a number > 0"),
        ("[[node]]\ndown-mbit = inf", "down-mbit of node 1 is inf"),
        ("[[node]]\nlatency-ms = -1", "latency-ms of node 1 is -1.0; use a number >= 0"),
        ("[[node]]\nname = 'a'\n[[node]]\nname = 'a'", "'a' appears twice"),
        ("[[node]]\ncount = 4", "has 4 nodes, but 3 were asked for"),
    ],
)
def test_a_file_that_cannot_be_used(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        read_network(write(tmp_path, text), None if text == "" else 3, NODE, SERVER)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        read_network(tmp_path / "none.toml", None, NODE, SERVER)


def test_groups_are_of_about_equal_size() -> None:
    network = Network(equal_nodes(7)).in_groups(3)
    assert [len(nodes) for nodes in network.groups().values()] == [3, 2, 2]
    for count in (0, 8):
        with pytest.raises(SettingsError, match="use 1 to 7"):
            network.in_groups(count)


@pytest.mark.parametrize("count", [0, 10_001])
def test_how_many_nodes(count: int) -> None:
    with pytest.raises(SettingsError, match=f"{count} nodes; a plan needs 1 to 10,000"):
        equal_nodes(count)


def test_a_megabit_is_a_million_bits() -> None:
    assert transfer_seconds(1_000_000, 8) == 1.0
    link = Link(down_mbit=100, up_mbit=10)
    assert link.send_seconds(10**6) == 10 * link.receive_seconds(10**6) == 0.8
