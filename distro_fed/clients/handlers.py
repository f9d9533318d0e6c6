"""What a member does with a message: in clear, or under the masks of secure aggregation.

Which of the two is for the member to say: one that has files for secure aggregation follows the policy among them, and
that asks for masks unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from distro_fed.clients.masked_upload import MaskedUpload
from distro_fed.clients.participant import OpenUpload, Participant
from distro_fed.clients.process_state import ProcessState
from distro_fed.clients.task import RoundInfo
from distro_fed.errors import LedgerError, Refused, SecureAggregationError
from distro_fed.transport.records import CONFIG, Reply, Request, read_request, reply_records
from distro_fed.transport.secure_records import add_messages, read_messages, request_digest


def answer_light_stages(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """Answer the stages of secure aggregation that need no model.

    Raises
    ------
    SecureAggregationError
        This member has no files for it, or they cannot be used.
    """
    member = state.secure_member(context)
    if member is None:
        raise _no_files()
    return add_messages(RecordDict(), member.answer(read_messages(message.content), context))


def train(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """One round of local training."""
    return _work(message, context, state, Participant.train, Participant.train_masked)


def evaluate(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """Held-out loss of the replica that the message is about."""
    return _work(message, context, state, Participant.evaluate, Participant.evaluate_masked)


def _work(
    message: Message,
    context: Context,
    state: ProcessState,
    in_clear: Callable[[Participant, Request, RoundInfo], Reply],
    under_masks: Callable[[Participant, Request, RoundInfo, OpenUpload], tuple[Reply, bytes]],
) -> RecordDict:
    """Do what the message asks for, in the way it asks for it, if this member gives it so.

    Raises
    ------
    Refused
        The message asks for something in clear, and the policy allows nothing in clear.
    SecureAggregationError
        The message asks for masks, and this member has no files for them.
    """
    request = read_request(message)
    deliveries, member = read_messages(message.content), state.secure_member(context)
    if not deliveries:
        if member is not None:
            member.policy.refuse_plain()
        return reply_records(in_clear(state.participant(context, request), request, state.round_info(request, context)))
    if member is None:
        raise _no_files()
    participant, info = state.participant(context, request), state.round_info(request, context)
    asked = request_digest(message.content.config_records[CONFIG])
    try:
        reply, masked = under_masks(
            participant, request, info, lambda: MaskedUpload.open(member, deliveries[0], context, asked, info.settings)
        )
    except (Refused, LedgerError) as error:
        return add_messages(RecordDict(), [member.session.refusal(error, deliveries[0])])
    content = reply_records(reply)
    return add_messages(content, [masked]) if masked else content


def _no_files() -> SecureAggregationError:
    return SecureAggregationError(
        "the server asks for secure aggregation, but this node's config names no 'secure-folder' with identity.toml, "
        "roster.toml and policy.toml"
    )
