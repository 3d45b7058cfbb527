"""The meta layer of a server without other nodes.

Belongs here: the trivial implementations of the interfaces in ports.py and placement.py for one node, and assembling
them. cluster.py is the counterpart for a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lakestream.meta.keeping import SoloKeeping
from lakestream.meta.meta import SoloMeta
from lakestream.meta.node import AnswerStyle, MetaNode
from lakestream.meta.ports import AllAccounts
from lakestream.meta.replica_files import SoloFiles
from lakestream.meta.shared import Shared
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.raft.group.ports import Channel
from lakestream.raft.group.solo import SoloGroups
from lakestream.stream.core.config import Placement, StreamConfig

ANSWERS = AnswerStyle(
    peers=False, acks_by_stream=False, stream_first=False, recreated=True, counts_all=True, domain_always=False
)


Handler = Callable[[str, bytes, Callable[[bytes], None]], None]


class SoloNodes:
    """`Nodes` of a server without other nodes. `node` describes it."""

    def __init__(self, node: NodeInfo) -> None:
        self.node, self.me = node, node.name

    def connected(self) -> list[str]:
        return []

    def alive(self, node: str) -> bool:
        return node == self.me

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        return False

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None: ...

    def watch(self, callback: Callable[[str, bool], None]) -> None: ...

    def info(self, node: str) -> NodeInfo | None:
        return self.node if node == self.me else None

    def nodes(self) -> Mapping[str, NodeInfo]:
        return {}

    def sees(self, node: str) -> frozenset[str]:
        return frozenset()

    def routes_met(self) -> bool:
        return True

    def update(self, **changes: Any) -> None: ...

    def watch_nodes(self, callback: Callable[[Any], None]) -> None: ...


class SoloCalls:
    """`Calls` to this node itself, answered by a function call."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._methods: dict[str, Handler] = {}

    def serve(self, method: str, handler: Handler) -> None:
        self._methods[method] = handler

    def call(
        self, node: str, method: str, body: bytes, done: Callable[[bytes | None, str], None], timeout_ns: int
    ) -> None:
        self._methods[method](self._me, body, lambda answer: done(answer, ""))

    def tell(self, node: str, method: str, body: bytes) -> bool:
        self._methods[method](self._me, body, lambda answer: None)
        return True


class SoloLeaders:
    """`Led` of a node that leads every stream itself."""

    def lead(self, uid: str, term: int) -> None: ...

    def note(self, uid: str, term: int, leader: str) -> None: ...

    def forget(self, uid: str) -> None: ...

    def of(self, uid: str) -> str:
        return ""


class SoloRequests:
    """`Dispatcher` that answers every request here."""

    def accept(self, account: str, pattern: str, handler: Callable[[Any], None]) -> None: ...

    def dispatch(
        self, request: Request, where: Where, here: Callable[[], None], decided: Callable[[], None] | None = None
    ) -> None:
        here()

    def again(self, request: Request, where: Where, here: Callable[[], None]) -> None:
        request.fail(api_error(10008))

    def answer(self, origin: str, account: str, reply: bytes, body: bytes, header: bytes = b"") -> bool:
        return False

    def changed(self) -> None: ...


class SoloPlacing:
    """`Placing` on this node. Limits are bytes; -1: none."""

    several = False

    def __init__(self, me: str, max_memory: int, max_file: int) -> None:
        self._me, self._max_memory, self._max_file = me, max_memory, max_file

    def copies(self, replicas: int) -> int:
        return 1

    def check_storage(self, config: StreamConfig, reserved: Callable[[], int]) -> None:
        from lakestream.stream import rules  # with the first stream

        rules.check_reserved(config, reserved, self._max_memory, self._max_file)

    def check_growth(self, peers: Sequence[str], old: StreamConfig, new: StreamConfig) -> None:
        """Do nothing: `check_storage` has checked the server's room."""

    def place(self, config: StreamConfig, *, keep: Sequence[str] = (), avoid: Collection[str] = ()) -> tuple[str, ...]:
        return (self._me,)

    def leader(self, placement: Placement, members: Sequence[str]) -> str:
        return ""


def solo_node(shared: Shared, accounts: AllAccounts) -> MetaNode:
    """Return the meta node of a server without other nodes."""
    options = shared.options
    info = NodeInfo(
        name=options.server_name,
        server_id=options.server_id,
        jetstream=True,
        domain=options.domain,
        max_memory=options.max_memory,
        max_storage=options.max_file,
    )
    meta = SoloMeta(options.server_name)
    node = MetaNode(
        shared,
        accounts,
        nodes=SoloNodes(info),
        calls=SoloCalls(options.server_name),
        meta=meta,
        groups=SoloGroups(options.server_name),
        files=SoloFiles(shared.stores),
        leaders=SoloLeaders(),
        answers=ANSWERS,
    )
    meta.on_applied = node.applied
    node.requests = SoloRequests()
    node.placing = SoloPlacing(options.server_name, options.max_memory, options.max_file)
    node.keeping = node.shown = SoloKeeping(node, meta)
    node.replicas.start()  # there are no other nodes to wait for
    return node
