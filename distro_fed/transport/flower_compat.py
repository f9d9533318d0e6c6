"""Every import of a private part of Flower, in one place.

Flower moves these between minor releases; ``pyproject.toml`` pins the minor release for that reason.
Written against flwr 1.42.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Context, Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "SUPERLINK_NODE_ID", "NodeInfo", "Run", "app_error", "copy_context", "message_bytes", "parse", "serialise",
    "set_identity",
]  # fmt: skip


def message_bytes(message: Message) -> int:
    """Bytes of a message as Flower serialises it: the sum of all its content-addressed objects."""
    with no_object_id_recompute():
        return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def serialise(message: Message) -> tuple[str, dict[str, bytes]]:
    """A message as its content-addressed objects.

    Returns
    -------
    tuple of str and dict
        Id of the message's own object, and bytes by id of all objects.
    """
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        contents = {key: bytes(part.deflate()) for key, part in get_all_nested_objects(message).items()}
        return message.object_id, contents


def parse(identity: str, contents: Mapping[str, bytes]) -> Message:
    """A message out of its objects; shares no memory with the one that was serialised."""
    message = inflate_object_from_contents(identity, dict(contents))
    if not isinstance(message, Message):
        raise TypeError(f"object {identity} is a {type(message).__name__}, not a Message")
    message.metadata.__dict__["_message_id"] = identity
    return message


def copy_context(context: Context) -> Context:
    """A context after its trip through protobuf, as the client process gets it."""
    return context_from_proto(context_to_proto(context))


def set_identity(run_id: int, node_id: int) -> int:
    """Set the process-wide identity that ``Message`` takes its sender from; returns the node id before."""
    before = TaskIdentity.node_id if TaskIdentity._node_id is not None else SUPERLINK_NODE_ID
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1
    return before


def app_error(error: Exception, request: Message) -> Message:
    """The reply that Flower sends when a client app raises."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>"), reply_to=request)
