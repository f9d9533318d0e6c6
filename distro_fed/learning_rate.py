"""The learning rate of every optimizer step of a run: members train with it, and the server knows it as well."""

from __future__ import annotations

import math

from distro_fed.setting_groups import TrainingSettings


def learning_rate_at(step: int, total_steps: int, settings: TrainingSettings) -> float:
    """Learning rate of one optimizer step of the whole run.

    Parameters
    ----------
    step : int
        0 for the first step of round 1.
    total_steps : int
        Rounds times local steps.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if settings.lr_scheduler_type == "constant":
        return peak
    left = 1.0 - (step - warmup) / max(1, total_steps - warmup)
    return peak * (left if settings.lr_scheduler_type == "linear" else 0.5 * (1.0 - math.cos(math.pi * left)))


def learning_rates_of_round(round_: int, rounds: int, settings: TrainingSettings) -> float:
    """Sum of the learning rates of the ``local_steps`` steps of a round; rounds count from 1."""
    steps = settings.local_steps
    first = (round_ - 1) * steps
    return sum(learning_rate_at(step, rounds * steps, settings) for step in range(first, first + steps))
