"""What may leave an organisation, by its own node config: kinds, names of metrics, and bytes.

Nothing of it comes from a run. Without any of these keys everything leaves, and the log tells what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distro_fed.clients.egress_kinds import KINDS, METRIC_NAMES, Outgoing
from distro_fed.clients.egress_log import Entry
from distro_fed.errors import SettingsError

ALLOW, METRICS, ROUND_BUDGET, DAY_BUDGET = "egress-allow", "egress-metrics", "egress-budget", "egress-budget-day"
_CATEGORIES = ("train.", "evaluate.", "query.")


@dataclass(frozen=True, slots=True)
class EgressRules:
    """Limits of one node.

    Attributes
    ----------
    kinds : frozenset of str or None
        Kinds that may leave; None: all of them, of any shape.
    metrics : frozenset of str
        Numbers that may leave in clear, by name; looked at only if ``kinds`` are given.
    round_budget : int or None
        Bytes in one round of a run.
    day_budget : int or None
        Bytes in one day (UTC), of all runs together, whatever round the server says it is.
    """

    kinds: frozenset[str] | None = None
    metrics: frozenset[str] = METRIC_NAMES
    round_budget: int | None = None
    day_budget: int | None = None

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, object]) -> EgressRules:
        """Read ``egress-allow``, ``egress-metrics``, ``egress-budget`` and ``egress-budget-day``.

        Raises
        ------
        SettingsError
            A kind is unknown, a budget is no positive integer, or metrics are listed without kinds.
        """
        kinds, metrics = _words(node_config, ALLOW), _words(node_config, METRICS)
        for kind in kinds or ():
            if kind not in KINDS and not kind.startswith(_CATEGORIES):
                raise SettingsError(
                    f"node config {ALLOW} names {kind!r}; there is {', '.join(KINDS)}, and the message types of an "
                    "app's own handlers, such as query.my_statistics"
                )
        if metrics is not None and kinds is None:
            raise SettingsError(f"node config {METRICS} without {ALLOW}: name the kinds that may leave as well")
        return cls(
            kinds,
            METRIC_NAMES if metrics is None else metrics,
            _budget(node_config, ROUND_BUDGET),
            _budget(node_config, DAY_BUDGET),
        )

    @property
    def has_budget(self) -> bool:
        """Whether bytes that have left before matter."""
        return self.round_budget is not None or self.day_budget is not None

    def refusal(self, outgoing: Outgoing, odd_metrics: Iterable[str]) -> str:
        """Why something may not leave whatever has left before; empty: it may.

        Parameters
        ----------
        outgoing : Outgoing
        odd_metrics : iterable of str
            Names of metrics that are not among :attr:`metrics` or are not one number.
        """
        if self.kinds is None:
            return ""
        if outgoing.kind not in self.kinds:
            return f"kind {outgoing.kind!r} is not in {ALLOW}"
        odd = [name[:64] for name in odd_metrics]
        return f"metric {odd[0]!r} is not in {METRICS}, or is not one finite number" if odd else ""

    def over_budget(self, size: int, round_bytes: int, day_bytes: int) -> str:
        """Why ``size`` more bytes may not leave after so many in this round and today; empty: they may."""
        for key, budget, spent in (
            (ROUND_BUDGET, self.round_budget, round_bytes),
            (DAY_BUDGET, self.day_budget, day_bytes),
        ):
            if budget is not None and spent + size > budget:
                return f"{size} bytes after {spent} are more than {key} = {budget}"
        return ""


def spent(entries: Iterable[Entry], run: str, round_: int | None, day: str) -> tuple[int, int]:
    """Bytes that have left in a round of a run, and on a day.

    What left without a round (names, stages of secure aggregation) counts for the newest round that the run had then.

    Parameters
    ----------
    entries : iterable of Entry
        The whole log.
    run : str
        Flower's id of the run.
    round_ : int or None
        None: the newest round of the run.
    day : str
        ``YYYY-MM-DD``, UTC.
    """
    newest, by_round, day_bytes = 0, dict[int, int](), 0
    for entry in entries:
        if entry.time.startswith(day):
            day_bytes += entry.bytes
        if entry.run == run:
            newest = max(newest, entry.round or 0)
            counts_for = newest if entry.round is None else entry.round
            by_round[counts_for] = by_round.get(counts_for, 0) + entry.bytes
    return by_round.get(newest if round_ is None else round_, 0), day_bytes


def _words(node_config: Mapping[str, object], key: str) -> frozenset[str] | None:
    value = node_config.get(key)
    if value is None:
        return None
    words = frozenset(word.strip() for word in value.split(",")) - {""} if isinstance(value, str) else frozenset()
    if not words:
        raise SettingsError(f"node config {key} = {value!r}; words with commas between are needed: 'update,hello'")
    return words


def _budget(node_config: Mapping[str, object], key: str) -> int | None:
    value = node_config.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise SettingsError(f"node config {key} = {value!r}; a whole number of bytes from 1 on is needed")
    return value
