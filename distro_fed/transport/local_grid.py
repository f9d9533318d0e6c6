"""A Flower ``Grid`` that runs the client app in this process, one node after the other.

Every message is serialised and parsed as on the wire, every context makes its trip through protobuf, and
bytes are counted; there are no sockets, no Ray and no threads. For tests, benchmarks and small
simulations. Nodes run when their reply is pulled, one a call, so that a caller which pulls replies one by
one holds one at a time, as in a real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from distro_fed.transport.flower_compat import (
    SUPERLINK_NODE_ID,
    NodeInfo,
    Run,
    app_error,
    copy_context,
    parse,
    serialise,
    set_identity,
)


class _Queued(NamedTuple):
    identity: str
    node_id: int
    objects: dict[str, bytes]


class LocalGrid(Grid):
    """In-process Grid.

    Parameters
    ----------
    client_app : ClientApp
        Serves the messages of all nodes.
    nodes : int
        Number of nodes; ids are 101, 102, ...
    run_config : mapping
        ``context.run_config`` of all nodes.
    node_configs : sequence of mappings, optional
        Added to ``partition-id`` and ``num-partitions`` of each node.
    run_id : int
        Flower's id of the run.
    drop : callable, optional
        ``drop(message, node_id) -> bool``: true loses the request, like a node that does not answer in time.
    tamper : callable, optional
        ``tamper(reply, node_id) -> Message``: what arrives instead of a reply.
    order : callable, optional
        ``order(node_ids) -> node_ids``: in which order nodes of one push answer.

    Attributes
    ----------
    bytes_down, bytes_up : dict of int to int
        Serialised bytes of all messages to and from each node.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int = 4,
        *,
        run_config: Mapping[str, Any] | None = None,
        node_configs: Sequence[Mapping[str, Any]] = (),
        run_id: int = 1,
        drop: Callable[[Message, int], bool] | None = None,
        tamper: Callable[[Message, int], Message] | None = None,
        order: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        set_identity(run_id, SUPERLINK_NODE_ID)
        self._run = Run.create_empty(run_id=run_id)
        self._app = client_app
        self._run_config = dict(run_config or {})
        self._drop, self._tamper, self._order = drop, tamper, order
        self._contexts: dict[int, Context] = {}
        self._waiting: dict[str, _Queued] = {}
        # as in Flower, an object that many messages share is kept once
        self._objects: dict[str, bytes] = {}
        self.bytes_down: dict[int, int] = {}
        self.bytes_up: dict[int, int] = {}
        for index in range(nodes):
            config = node_configs[index] if index < len(node_configs) else {}
            self.add_node({"partition-id": index, "num-partitions": nodes, "simulation": True, **config})

    def add_node(self, node_config: Mapping[str, Any]) -> int:
        """Let one more node join; returns its id."""
        node_id = 101 + len(self._contexts)
        self._contexts[node_id] = Context(
            run_id=self._run.run_id, node_id=node_id, node_config=dict(node_config), state=RecordDict(),
            run_config=dict(self._run_config),
        )  # fmt: skip
        self.bytes_down[node_id] = self.bytes_up[node_id] = 0
        return node_id

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message (Flower deprecates this method)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes."""
        return list(self._contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """What is known about all nodes."""
        return [NodeInfo(node_id=node_id) for node_id in self._contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serialise and queue messages."""
        pushed: list[_Queued] = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id in self._contexts:
                identity, contents = serialise(message)
                self.bytes_down[node_id] += sum(map(len, contents.values()))
                objects = {key: self._objects.setdefault(key, data) for key, data in contents.items()}
                pushed.append(_Queued(identity, node_id, objects))
        for queued in self._ordered(pushed):
            if not (self._drop and self._drop(parse(queued.identity, queued.objects), queued.node_id)):
                self._waiting[queued.identity] = queued
        self._forget()
        return [queued.identity for queued in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the next node that has one of these messages and return its reply, if any."""
        wanted = set(message_ids)
        for key in list(self._waiting):
            if key in wanted:
                queued = self._waiting.pop(key)
                self._forget()
                return [self._answer(parse(queued.identity, queued.objects))]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull until no node answers any more."""
        del timeout
        wanted = list(self.push_messages(messages))
        replies: list[Message] = []
        while batch := list(self.pull_messages(wanted)):
            replies.extend(batch)
        return replies

    def _ordered(self, pushed: list[_Queued]) -> list[_Queued]:
        if self._order is None:
            return pushed
        by_node = {queued.node_id: queued for queued in pushed}
        return [by_node[node_id] for node_id in self._order(list(by_node))]

    def _forget(self) -> None:
        """Drop objects that no waiting message refers to."""
        used = {key for queued in self._waiting.values() for key in queued.objects}
        self._objects = {key: data for key, data in self._objects.items() if key in used}

    def _answer(self, request: Message) -> Message:
        node_id = request.metadata.dst_node_id
        context = copy_context(self._contexts[node_id])
        before = set_identity(self._run.run_id, node_id)
        try:
            reply = self._app(request, context)
        except Exception as error:
            reply = app_error(error, request)
        finally:
            set_identity(self._run.run_id, before)
        self._contexts[node_id] = copy_context(context)
        identity, contents = serialise(reply)
        self.bytes_up[node_id] += sum(map(len, contents.values()))
        arrived = parse(identity, contents)
        return self._tamper(arrived, node_id) if self._tamper else arrived
