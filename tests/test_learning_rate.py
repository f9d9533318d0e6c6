from __future__ import annotations

import pytest

from distro_fed.learning_rate import learning_rate_at, learning_rates_of_round
from distro_fed.settings import TrainingSettings


def settings(**changes: object) -> TrainingSettings:
    return TrainingSettings(**{"learning_rate": 1.0, "local_steps": 4, **changes})  # type: ignore[arg-type]


def test_schedule_goes_over_the_whole_run() -> None:
    config = settings(lr_scheduler_type="linear", warmup_steps=2)
    rates = [learning_rate_at(step, 12, config) for step in range(12)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[-1] == pytest.approx(0.1)
    cosine = settings(lr_scheduler_type="cosine")
    assert learning_rate_at(0, 10, cosine) == 1.0
    assert learning_rate_at(5, 10, cosine) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rounds_of_a_run_have_all_of_its_steps(schedule: str) -> None:
    config = settings(lr_scheduler_type=schedule, warmup_steps=3)
    steps = [learning_rate_at(step, 12, config) for step in range(12)]
    rounds = [learning_rates_of_round(round_, 3, config) for round_ in (1, 2, 3)]
    assert rounds == pytest.approx([sum(steps[:4]), sum(steps[4:8]), sum(steps[8:])])
    assert all(rate > 0 for rate in steps)
