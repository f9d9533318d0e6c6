"""Traffic ledger, progress events, and the report of a run. Nothing here needs torch."""

from distro_fed.reporting.events import EventWriter, read_events
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.references import Traffic, allreduce_bf16, distro_report, fedavg_full_bf16, ratio
from distro_fed.reporting.report import LeftOut, Losses, RoundRecord, RunReport, build_report
from distro_fed.reporting.report_file import read_report

__all__ = [
    "EventWriter",
    "LeftOut",
    "Losses",
    "RoundRecord",
    "RunReport",
    "Traffic",
    "TrafficLedger",
    "allreduce_bf16",
    "build_report",
    "distro_report",
    "fedavg_full_bf16",
    "ratio",
    "read_events",
    "read_report",
]
