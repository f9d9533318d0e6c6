"""A small report for tests."""

import math

from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.report import LeftOut, Losses, RoundRecord, RunReport, build_report


def sample(**changes: object) -> RunReport:
    """Two clients, three rounds, the second one skipped; 1,000 bytes per message up, 500 down."""
    ledger = TrafficLedger()
    ledger.record(round=0, client="north", direction="down", kind="other", size=100)
    for number in (1, 2, 3):
        for client in ("north", "south"):
            ledger.record(round=number, client=client, direction="down", kind="update", size=500)
            ledger.record(round=number, client=client, direction="up", kind="update", size=1000)
    history = [
        RoundRecord(1, 2.5, Losses.of({"north": 2.0, "south": 3.0})),
        RoundRecord(2, math.nan, Losses.of({}), skipped=True, left_out=[LeftOut("south", "loss is not finite")]),
        RoundRecord(3, 2.0, Losses.of({"north": 1.5, "south": 2.5})),
    ]
    facts: dict[str, object] = {
        "name": "trial",
        "mode": "lora",
        "compressor": "quantized bits=1",
        "local_steps": 8,
        "clients": ["north", "south"],
        "ledger": ledger,
        "history": history,
        "loss_before": {"north": 2.5, "south": 3.5},
        "loss_after": {"north": 1.5, "south": 2.5},
        "parameters": 1_000_000,
        "trainable_parameters": 10_000,
        "learning_rate": 1e-3,
        "seed": 7,
        "seconds": 12.5,
        "settings": {"num-server-rounds": 3},
    }
    return build_report(**{**facts, **changes})  # type: ignore[arg-type]
