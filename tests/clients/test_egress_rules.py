from __future__ import annotations

import pytest

from distro_fed.clients.egress_kinds import METRIC_NAMES, Outgoing
from distro_fed.clients.egress_log import Entry
from distro_fed.clients.egress_rules import EgressRules, spent
from distro_fed.errors import SettingsError


def entry(round_: int | None, size: int, run: str = "1", time: str = "2026-01-02T10:00:00Z") -> Entry:
    return Entry(time, run, round_, "update", size, "", "", {})


def outgoing(kind: str) -> Outgoing:
    return Outgoing(kind, "train", 10, "", {}, {})


def test_without_keys_everything_leaves() -> None:
    rules = EgressRules.from_node_config({"name": "clinic"})
    assert rules == EgressRules()
    assert not rules.refusal(outgoing("unknown"), ["anything"]) and not rules.has_budget


def test_kinds_and_metrics_that_are_listed_leave() -> None:
    rules = EgressRules.from_node_config({"egress-allow": "update, hello,query.mine", "egress-metrics": "num-examples"})
    assert rules.kinds == {"update", "hello", "query.mine"}
    assert not rules.refusal(outgoing("update"), [])
    assert "'evaluation' is not in egress-allow" in rules.refusal(outgoing("evaluation"), [])
    assert "'seconds' is not in egress-metrics" in rules.refusal(outgoing("update"), ["seconds"])
    assert rules.metrics == {"num-examples"}
    assert EgressRules.from_node_config({"egress-allow": "update"}).metrics == METRIC_NAMES


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"egress-allow": "updates"}, "names 'updates'; there is update, masked-update"),
        ({"egress-allow": ""}, "words with commas"),
        ({"egress-allow": " , "}, "words with commas"),
        ({"egress-allow": True}, "= True; words"),
        ({"egress-metrics": "seconds"}, "egress-metrics without egress-allow"),
        ({"egress-budget": 0}, "egress-budget = 0; a whole number"),
        ({"egress-budget": "1000"}, "egress-budget = '1000'"),
        ({"egress-budget": True}, "egress-budget = True"),
        ({"egress-budget-day": 1.5}, r"egress-budget-day = 1\.5"),
    ],
)
def test_wrong_rules_are_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EgressRules.from_node_config(config)


def test_what_left_without_a_round_counts_for_the_round_that_was_on() -> None:
    log = [entry(None, 1), entry(1, 10), entry(None, 100), entry(2, 1000), entry(1, 10_000), entry(None, 100_000)]
    assert spent(log, "1", 1, "2026-01-02") == (10_110, 111_111)
    assert spent(log, "1", 2, "2026-01-02") == (101_000, 111_111)
    assert spent(log, "1", None, "2026-01-02") == (101_000, 111_111)
    assert spent(log, "1", 3, "2026-01-03") == (0, 0)


def test_runs_are_counted_apart_and_days_together() -> None:
    log = [entry(1, 1), entry(1, 10, run="2"), entry(1, 100, time="2026-01-01T23:59:59Z")]
    assert spent(log, "1", 1, "2026-01-02") == (101, 11)


def test_a_budget_is_not_exceeded_by_one_byte() -> None:
    rules = EgressRules(round_budget=100, day_budget=1000)
    assert not rules.over_budget(40, 60, 960)
    assert "41 bytes after 60 are more than egress-budget = 100" in rules.over_budget(41, 60, 0)
    assert "egress-budget-day" in rules.over_budget(40, 60, 961)
