"""What the same training would have sent by other methods: R1, R2 and R3.

All three keep the number of optimizer steps the same and send bfloat16, 2 bytes a value. None of them
counts the first download of the public base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distro_fed.errors import SettingsError

BYTES_PER_VALUE = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one client over a whole run.

    Attributes
    ----------
    sent : int
        Bytes that the client sends.
    received : int
        Bytes that the client receives.
    """

    sent: int
    received: int

    @property
    def total(self) -> int:
        """Sent plus received."""
        return self.sent + self.received


def fedavg_full_bf16(*, parameters: int, clients: float, rounds: float, local_steps: int) -> Traffic:
    """R1: federated averaging of the full model, dense bf16 down and up once a round.

    Parameters
    ----------
    parameters : int
        Parameters of the whole model, tied weights once.
    clients : float
        Members of a round, on average, >= 1. Has no influence here.
    rounds : float
        Rounds that changed the model and that the client took part in, on average.
    local_steps : int
        Optimizer steps of a client per round. Has no influence here.

    Raises
    ------
    SettingsError
        If a number is out of range.
    """
    _check(parameters, clients, rounds, local_steps)
    size = round(BYTES_PER_VALUE * parameters * rounds)
    return Traffic(sent=size, received=size)


def allreduce_bf16(*, parameters: int, clients: float, rounds: float, local_steps: int) -> Traffic:
    """R2: AdamW with a ring all-reduce of bf16 gradients in every optimizer step.

    In a ring each member sends, and receives, 2 (N - 1) / N gradients per step
    (Patarasuk and Yuan 2009, section 3). Parameters as in :func:`fedavg_full_bf16`.
    """
    _check(parameters, clients, rounds, local_steps)
    gradient = BYTES_PER_VALUE * parameters
    one_way = round(2 * (clients - 1) * gradient * rounds * local_steps / clients)
    return Traffic(sent=one_way, received=one_way)


def distro_report(*, parameters: int, clients: float, rounds: float, local_steps: int) -> Traffic:
    """R3: the DisTrO report's own count: every member receives the bf16 gradient of every other, each step.

    The report (Peng et al. 2024, "A Preliminary Report on DisTrO", table 1) counts what one worker receives
    and nothing else, so ``sent`` is 0. Parameters as in :func:`fedavg_full_bf16`.
    """
    _check(parameters, clients, rounds, local_steps)
    gradient = BYTES_PER_VALUE * parameters
    return Traffic(sent=0, received=round((clients - 1) * gradient * rounds * local_steps))


@dataclass(frozen=True, slots=True)
class Ratios:
    """How many times more bytes each reference sends than the mean client of a run; None if that one sent nothing.

    ``r1_up`` and ``r1_down`` compare one direction with the same direction of R1, the others what is sent and received
    together.
    """

    r1: float | None
    r1_up: float | None
    r1_down: float | None
    r2: float | None
    r3: float | None


def run_ratios(
    *, parameters: int, local_steps: int, clients: int, asked: Sequence[int], bytes_up: float, bytes_down: float
) -> Ratios:
    """Compare a run, or what there is of it, with R1, R2 and R3.

    A reference must not be charged for clients that sat a round out, nor for a round that was skipped: ours are not
    either.

    Parameters
    ----------
    parameters, local_steps : int
        As for the references.
    clients : int
        Members of the run, >= 1.
    asked : sequence of int
        For each round that was not skipped, how many members were asked to train.
    bytes_up, bytes_down : float
        Of the mean client.

    Raises
    ------
    SettingsError
        If a number is out of range.
    """
    _check(parameters, clients, len(asked), local_steps)
    rounds, cohort = (sum(asked) / clients, sum(asked) / len(asked)) if asked else (0.0, float(clients))
    r1, r2, r3 = (
        reference(parameters=parameters, clients=cohort, rounds=rounds, local_steps=local_steps)
        for reference in (fedavg_full_bf16, allreduce_bf16, distro_report)
    )
    ours = bytes_up + bytes_down
    return Ratios(
        r1=ratio(r1.total, ours),
        r1_up=ratio(r1.sent, bytes_up),
        r1_down=ratio(r1.received, bytes_down),
        r2=ratio(r2.total, ours),
        r3=ratio(r3.total, ours),
    )


def ratio(reference_bytes: float, our_bytes: float) -> float | None:
    """How many times more bytes the reference needs; ``None`` if we sent nothing at all.

    Raises
    ------
    SettingsError
        If a number of bytes is negative.
    """
    if reference_bytes < 0 or our_bytes < 0:
        raise SettingsError(f"bytes cannot be negative: reference {reference_bytes}, ours {our_bytes}")
    return reference_bytes / our_bytes if our_bytes else None


def _check(parameters: int, clients: float, rounds: float, local_steps: int) -> None:
    for name, value, least in (
        ("parameters", parameters, 0),
        ("clients", clients, 1),
        ("rounds", rounds, 0),
        ("local_steps", local_steps, 0),
    ):
        if value < least:
            raise SettingsError(f"{name} is {value}; a traffic reference needs {name} >= {least}")
