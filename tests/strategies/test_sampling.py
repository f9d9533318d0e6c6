from __future__ import annotations

from unittest.mock import Mock

import pytest
from flwr.serverapp import Grid

from distro_fed.errors import NotEnoughNodes
from distro_fed.strategies.sampling import sample, wait_for_nodes


def test_too_few_nodes_end_with_the_numbers_and_the_way_out() -> None:
    grid = Mock(spec=Grid)
    grid.get_node_ids.return_value = [7]
    with pytest.raises(NotEnoughNodes, match=r"1 of the 3 nodes needed were there after 0.05 s.*min-available-nodes"):
        wait_for_nodes(grid, 3, timeout=0.05, poll_interval=0.01)


def test_waits_until_they_come() -> None:
    grid = Mock(spec=Grid)
    grid.get_node_ids.side_effect = [[5], [5, 3], [5, 3, 9]]
    assert wait_for_nodes(grid, 3, timeout=5, poll_interval=0.001) == [3, 5, 9]


def test_sample_depends_on_seed_and_round_only() -> None:
    nodes = list(range(20))
    assert sample(nodes, 0.5, 2, seed=1, round_=3) == sample(nodes, 0.5, 2, seed=1, round_=3)
    assert sample(nodes, 0.5, 2, seed=1, round_=3) != sample(nodes, 0.5, 2, seed=1, round_=4)
    assert len(sample(nodes, 0.5, 2, seed=1, round_=3)) == 10
    assert len(sample(nodes, 0.01, 2, seed=1, round_=3)) == 2
    assert sample(nodes, 1.0, 2, seed=1, round_=3) == nodes
