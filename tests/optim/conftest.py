from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.optim.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    running = Processes()
    yield running
    running.stop()
