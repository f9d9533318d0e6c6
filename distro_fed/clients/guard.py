"""Nothing but a code leaves when something goes wrong.

An exception's text may quote a training example, a path or a row. Flower would send it to the server as
the reason of the error; here it is logged on this machine and the reply holds one word.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from flwr.app import Context, Message

from distro_fed.errors import DistroFedError, WrongRun
from distro_fed.transport.records import Reply, Status, reply_records

log = logging.getLogger("distro_fed")

Handler = Callable[[Message, Context], Message]


def guarded(
    name_of: Callable[[Context], str], facts_of: Callable[[Context], dict[str, str]]
) -> Callable[[Handler], Handler]:
    """Turn every exception of a message handler into a reply without data.

    Parameters
    ----------
    name_of : callable
        The organisation's name; must not raise.
    facts_of : callable
        Public facts of the run, added if the server's run digest is another one.
    """

    def wrap(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def handle(message: Message, context: Context) -> Message:
            facts: dict[str, str] = {}
            try:
                return handler(message, context)
            except WrongRun as error:
                code, facts = error.code, facts_of(context)
                log.exception("%s refuses a message", name_of(context))
            except DistroFedError as error:
                code = error.code
                log.exception("%s could not answer a message", name_of(context))
            except (Exception, SystemExit) as error:
                code = f"exception {type(error).__name__}"
                log.exception("%s could not answer a message", name_of(context))
            reply = Reply(Status.FAILED, name_of(context), 0, code=code, facts=facts)
            return Message(reply_records(reply), reply_to=message)

        return handle

    return wrap
