"""The last thing that a reply passes before Flower sends it: is it allowed, and is it written down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from distro_fed.clients.egress_kinds import REFUSAL, Outgoing, describe, message_type, odd_metrics
from distro_fed.clients.egress_log import EgressLog, OpenLog
from distro_fed.clients.egress_rules import EgressRules, spent
from distro_fed.errors import DistroFedError, EgressLogError, EgressRefused, SettingsError
from distro_fed.transport.records import CONFIG, Reply, Status, reply_records

log = logging.getLogger("distro_fed")

LOG_KEY, LOG_FILE = "egress-log", "egress.jsonl"

Handler = Callable[[Message, Context], Message]


def log_beside_state(context: Context) -> Path | None:
    """The log in the ``state-dir`` of the node config; None without one."""
    state_dir = context.node_config.get("state-dir")
    return Path(str(state_dir)).expanduser() / LOG_FILE if state_dir else None


class EgressGuard:
    """A Flower mod that lets a reply out only if the node's rules allow it and the node's log has it.

    ::

        app = ClientApp(mods=[EgressGuard()])

    It stands first, so that nothing is changed after it. It covers all handlers of the app. A handler that raises is
    answered for with the class name of its exception; one that answers with an ``Error`` of Flower's, whose reason is
    free text, with that alone.

    What may not leave is replaced by a failure that holds a code word and the node's name. So is everything if the
    rules cannot be read (``settings``), or if the log cannot be written or was tampered with (``egress-log``): then
    even the name stays here.

    Parameters
    ----------
    name : callable, optional
        The organisation's name; must not raise. By default ``name`` of the node config.
    default_log : callable, optional
        Where the log is if the node config has no ``egress-log``; None: nowhere. By default
        :func:`log_beside_state`.
    """

    def __init__(
        self,
        name: Callable[[Context], str] | None = None,
        default_log: Callable[[Context], Path | None] = log_beside_state,
    ) -> None:
        self._name, self._default_log = name or _configured_name, default_log

    def __call__(self, request: Message, context: Context, call_next: Handler) -> Message:
        """Answer a message by ``call_next``, if its answer may leave."""
        try:
            rules = EgressRules.from_node_config(context.node_config)
            place = context.node_config.get(LOG_KEY)
            path = Path(str(place)).expanduser() if place else self._default_log(context)
            if path is None and rules.has_budget:
                raise SettingsError(
                    "the node config has a budget but no log to count in: give it 'egress-log' or 'state-dir'"
                )
        except Exception as error:
            log.exception("nothing leaves: the rules of this node cannot be read")
            return _failure(request, "", error.code if isinstance(error, DistroFedError) else "egress")
        reply = self._answer(request, context, call_next)
        try:
            return self._let_out(reply, request, context, rules, None if path is None else EgressLog(path))
        except Exception:
            log.exception("nothing leaves: what leaves cannot be written down")
            return _failure(request, "", EgressLogError.code)

    def _answer(self, request: Message, context: Context, call_next: Handler) -> Message:
        try:
            reply = call_next(request, context)
            if not reply.has_error():
                # a message of its own: nothing rides along in the metadata
                return Message(reply.content, reply_to=request)
            log.error("a handler answers with an error: %s", reply.error.reason)
            code = f"error {int(reply.error.code)}"
        except (Exception, SystemExit) as error:
            log.exception("a handler could not answer a message")
            code = f"exception {type(error).__name__}"
        return _failure(request, self._name(context), code)

    def _let_out(
        self, reply: Message, request: Message, context: Context, rules: EgressRules, book: EgressLog | None
    ) -> Message:
        run, round_ = str(context.run_id), _round(request)
        with book.locked() if book else nullcontext() as open_log:
            outgoing = describe(reply, request)
            why = rules.refusal(outgoing, odd_metrics(reply.content, rules.metrics))
            if not why and rules.has_budget and open_log is not None:
                why = rules.over_budget(outgoing.bytes, *spent(open_log.entries(), run, round_, _today()))
            refused: dict[str, Any] = {}
            if why:
                log.error("%s: a reply of %d bytes may not leave: %s", message_type(request), outgoing.bytes, why)
                refused = {"refused": {"kind": outgoing.kind, "bytes": outgoing.bytes, "why": why}}
                reply = _failure(request, self._name(context), EgressRefused.code)
                outgoing = describe(reply, request)
            if open_log is not None:
                _write(open_log, outgoing, run, round_, refused)
        return reply


def _write(open_log: OpenLog, outgoing: Outgoing, run: str, round_: int | None, refused: dict[str, Any]) -> None:
    details = {"metrics": outgoing.metrics, "words": outgoing.words, **refused}
    open_log.append(
        run=run,
        round=round_,
        kind=REFUSAL if refused else outgoing.kind,
        bytes=outgoing.bytes,
        sha256=outgoing.sha256,
        message=outgoing.message,
        **{key: value for key, value in details.items() if value},
    )


def _failure(request: Message, name: str, code: str) -> Message:
    return Message(reply_records(Reply(Status.FAILED, name, 0, code=code)), reply_to=request)


def _round(request: Message) -> int | None:
    config = request.content.config_records.get(CONFIG) if request.has_content() else None
    value = config.get("server-round") if config else None
    return value if type(value) is int else None


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _configured_name(context: Context) -> str:
    return str(context.node_config.get("name") or f"node-{context.node_id}")
