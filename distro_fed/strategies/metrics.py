"""Aggregation of the members' metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.app import MetricRecord, RecordDict

#: as in Flower's FedAvg: (reply contents, key of the weight) -> aggregated metrics
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]

METRICS = "metrics"


def metrics_content(metrics: dict[str, float]) -> RecordDict:
    """Wrap metrics as an aggregation function expects them."""
    return RecordDict({METRICS: MetricRecord(dict(metrics))})


def weighted_mean(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Mean of every metric over those that report it, weighed by ``weighted_by_key`` (itself summed)."""
    rows = [dict(content.metric_records[METRICS]) for content in contents]
    out: dict[str, float] = {}
    for key in sorted({key for row in rows for key in row}):
        values = [(_number(row[key]), _number(row.get(weighted_by_key, 1.0))) for row in rows if key in row]
        if key == weighted_by_key:
            out[key] = sum(value for value, _ in values)
        elif (total := sum(weight for _, weight in values)) > 0:
            out[key] = sum(value * weight for value, weight in values) / total
    return MetricRecord(dict(out))


def _number(value: float | int | Sequence[int] | Sequence[float]) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
