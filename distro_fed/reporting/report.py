"""The result of one run: losses and bytes side by side, as ``report.json`` holds it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distro_fed.files import write_atomically
from distro_fed.reporting.events import finite_or_null
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.machine import describe_machine, installed_versions
from distro_fed.reporting.references import run_ratios

#: name, and what the reference sends, of R1, R2 and R3
REFERENCES = (
    ("R1", "FedAvg, full fine-tuning: the bf16 model down and up, every round"),
    ("R2", "AdamW with ring all-reduce: bf16 gradients, every optimizer step"),
    ("R3", "the DisTrO report's count: every other member's bf16 gradient received, every step"),
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Held-out loss in nats per trained token.

    Attributes
    ----------
    mean : float or None
        Plain mean over the clients that have a value; ``None`` if there is none.
    per_client : dict of str to (float or None)
        ``None``: that client was not evaluated, or its loss is not finite.
    """

    mean: float | None
    per_client: dict[str, float | None]

    @classmethod
    def of(cls, per_client: Mapping[str, float | None]) -> Losses:
        """Losses with their mean. One loss that is not finite makes the mean unknown: it must not look better."""
        known = [loss for loss in per_client.values() if loss is not None]
        usable = bool(known) and all(math.isfinite(loss) for loss in known)
        return cls(
            mean=math.fsum(known) / len(known) if usable else None,
            per_client={
                name: float(loss) if loss is not None and math.isfinite(loss) else None
                for name, loss in per_client.items()
            },
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A reply that did not enter a round, and why."""

    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of the history.

    Attributes
    ----------
    round : int
        1 for the first round.
    train_loss : float or None
        Mean training loss of the replies that were taken.
    held_out_loss : Losses
        After the round; without values if nobody was evaluated.
    bytes_up, bytes_down : float
        Cumulative, mean over the clients of the run. :func:`build_report` fills them from the ledger.
    skipped : bool
        Too few replies: the model stayed as it was.
    left_out : list of LeftOut
        Replies that were not taken.
    asked : int or None
        How many clients were asked to train; None: all of them.
    """

    round: int
    train_loss: float | None
    held_out_loss: Losses
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    skipped: bool = False
    left_out: list[LeftOut] = field(default_factory=list)
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a reader needs to judge a run; the attributes are the keys of ``report.json``.

    Bytes are measured on serialised messages and include evaluation, catch-up and rounds that failed; the
    first download of the public base model is in neither side of a ratio. The ratios divide the bytes of
    R1, R2 and R3 (:mod:`distro_fed.reporting.references`), sent plus received, by those of the mean client. Rounds
    that were skipped, and rounds that a client was not asked in, do not count for the references.
    ``ratio_fedavg_full_bf16_up`` and ``_down`` compare one direction with the same direction of R1.
    """

    name: str
    mode: str
    compressor: str
    rounds: int
    local_steps: int
    clients: list[str]
    loss_before: Losses
    loss_after: Losses
    bytes_up_per_client: dict[str, int]
    bytes_down_per_client: dict[str, int]
    bytes_total_per_client: dict[str, int]
    ratio_fedavg_full_bf16: float | None
    ratio_fedavg_full_bf16_up: float | None
    ratio_fedavg_full_bf16_down: float | None
    ratio_allreduce_bf16: float | None
    ratio_distro_report: float | None
    seconds: float
    parameters: int
    trainable_parameters: int
    learning_rate: float
    seed: int
    history: list[RoundRecord]
    model_path: str | None
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    #: messages to a member and back for each round, all that a run sends counted
    exchanges_per_round: float | None = None
    #: by client, how often its replica differed from the server's and was replaced
    drifts_per_client: dict[str, int] = field(default_factory=dict)
    #: by client, how often its reply came after its round was closed
    late_replies_per_client: dict[str, int] = field(default_factory=dict)
    #: times that the run was gone on with from a checkpoint
    resumed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and lists, without NaN or infinity."""
        return {key: finite_or_null(value) for key, value in asdict(self).items()}

    def write_json(self, path: Path) -> None:
        """Write ``report.json`` as a whole or not at all."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(path, (text + "\n").encode())

    def mean_bytes(self) -> tuple[float, float]:
        """Bytes up and bytes down of the mean client over the whole run."""
        return _mean(self.bytes_up_per_client), _mean(self.bytes_down_per_client)


def build_report(
    *,
    name: str,
    mode: str,
    compressor: str,
    local_steps: int,
    clients: Sequence[str],
    ledger: TrafficLedger,
    history: Sequence[RoundRecord],
    loss_before: Mapping[str, float | None],
    loss_after: Mapping[str, float | None],
    parameters: int,
    trainable_parameters: int,
    learning_rate: float,
    seed: int,
    seconds: float,
    model_path: str | None = None,
    settings: Mapping[str, Any] | None = None,
    exchanges: int | None = None,
    drifts: Mapping[str, int] | None = None,
    late_replies: Mapping[str, int] | None = None,
    resumed: int = 0,
) -> RunReport:
    """Put the report of a run together.

    Parameters
    ----------
    name, mode, compressor : str
        As in the settings of the run.
    local_steps : int
        Optimizer steps of one client per round.
    clients : sequence of str
        All members of the run, also one that never answered.
    ledger : TrafficLedger
        Measured bytes, including those before the first round (round 0).
    history : sequence of RoundRecord
        One record a round, in order; its bytes are replaced by those of the ledger.
    loss_before, loss_after : mapping of str to (float or None)
        Held-out loss by client, nats per trained token.
    parameters : int
        Parameters of the whole base model, tied weights once: the P of the references.
    trainable_parameters : int
        Values that this run trains.
    learning_rate : float
        Of the local optimizer.
    seed : int
        Of the run.
    seconds : float
        Wall time of the run.
    model_path : str, optional
        Folder of the result.
    settings : mapping, optional
        The run's settings, flat.
    exchanges : int, optional
        How many times messages went out and came back.
    drifts, late_replies : mapping of str to int, optional
        By client, replicas that were replaced and replies that came too late; those without any may be missing.
    resumed : int
        Times that the run was gone on with from a checkpoint.

    Raises
    ------
    SettingsError
        If ``clients`` is empty.
    """
    names = list(dict.fromkeys([*clients, *ledger.clients()]))
    up = dict.fromkeys(names, 0) | ledger.per_client("up")
    down = dict.fromkeys(names, 0) | ledger.per_client("down")
    asked = [len(names) if record.asked is None else record.asked for record in history if not record.skipped]
    ratios = run_ratios(
        parameters=parameters,
        local_steps=local_steps,
        clients=len(names),
        asked=asked,
        bytes_up=_mean(up),
        bytes_down=_mean(down),
    )
    return RunReport(
        name=name,
        mode=mode,
        compressor=compressor,
        rounds=len(history),
        local_steps=local_steps,
        clients=names,
        loss_before=Losses.of(loss_before),
        loss_after=Losses.of(loss_after),
        bytes_up_per_client=up,
        bytes_down_per_client=down,
        bytes_total_per_client={client: up[client] + down[client] for client in names},
        ratio_fedavg_full_bf16=ratios.r1,
        ratio_fedavg_full_bf16_up=ratios.r1_up,
        ratio_fedavg_full_bf16_down=ratios.r1_down,
        ratio_allreduce_bf16=ratios.r2,
        ratio_distro_report=ratios.r3,
        seconds=seconds,
        parameters=parameters,
        trainable_parameters=trainable_parameters,
        learning_rate=learning_rate,
        seed=seed,
        history=_with_cumulative_bytes(history, ledger, len(names)),
        model_path=model_path,
        machine=describe_machine(),
        versions=installed_versions(),
        settings=dict(settings or {}),
        exchanges_per_round=None if exchanges is None or not history else exchanges / len(history),
        drifts_per_client=dict(sorted((drifts or {}).items())),
        late_replies_per_client=dict(sorted((late_replies or {}).items())),
        resumed=resumed,
    )


def reference_rows(report: RunReport) -> list[tuple[str, str, float | None]]:
    """Name, definition and ratio of R1, R2 and R3, for tables."""
    ratios = (report.ratio_fedavg_full_bf16, report.ratio_allreduce_bf16, report.ratio_distro_report)
    return [(*reference, ratio) for reference, ratio in zip(REFERENCES, ratios, strict=True)]


def incidents(report: RunReport) -> list[tuple[str, str]]:
    """What happened besides replies that were left out, in words and with those that it happened to."""
    rows = [
        (f"{words} {count} times", client)
        for words, counts in (
            ("replica differed and was replaced", report.drifts_per_client),
            ("reply came after its round", report.late_replies_per_client),
        )
        for client, count in counts.items()
        if count
    ]
    return [*rows, (f"run was resumed from a checkpoint {report.resumed} times", "")] if report.resumed else rows


def _with_cumulative_bytes(history: Sequence[RoundRecord], ledger: TrafficLedger, clients: int) -> list[RoundRecord]:
    up, down = ledger.per_round("up"), ledger.per_round("down")
    return [
        replace(
            record,
            bytes_up=sum(size for number, size in up.items() if number <= record.round) / clients,
            bytes_down=sum(size for number, size in down.items() if number <= record.round) / clients,
        )
        for record in history
    ]


def _mean(values: Mapping[str, int]) -> float:
    return sum(values.values()) / len(values) if values else 0.0
