from __future__ import annotations

import pytest
from transformers.utils import logging

from distro_fed.model.quiet import no_progress_bars


@pytest.mark.parametrize("shown", (True, False))
def test_bars_are_hidden_inside_and_as_before_outside(shown: bool) -> None:
    before = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    try:
        with pytest.raises(ValueError), no_progress_bars():
            assert not logging.is_progress_bar_enabled()
            raise ValueError
        assert logging.is_progress_bar_enabled() is shown
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()
