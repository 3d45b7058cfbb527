"""Transfer of a replica's state between nodes.

Belongs here: sending and fetching the files of a store, in pieces that the receiver requests, for a replica that lacks
entries which the leader's log no longer has. Messages that the receiver can read from the lake are not sent.

Calls between nodes: `replica.open` (a stream; answered with the list of files), `replica.read` (a piece of one),
`replica.close`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.segment import SUFFIX
from lakestream.log.store.export import ExportPart, link_part
from lakestream.log.store.repair import verify
from lakestream.meta.site import HeldReplica, Site
from lakestream.ports import Timer
from lakestream.protocol.decoding import PackDecoder
from lakestream.raft.core.messages import Membership

PIECE_BYTES = 1 << 20
"""Maximum size of a piece of a file (1 MiB)."""

PIECES_AHEAD = 4
"""Maximum number of outstanding requests for pieces."""

MAX_SENDING = 4
"""Maximum number of states sent at the same time; further requests fail and are repeated."""

CALL_TIMEOUT_NS = 10_000_000_000
"""Longest wait for an answer (10 s)."""

IDLE_NS = 30_000_000_000
"""A transfer without a request for this long (30 s) is ended."""

SEAL_WAIT_NS = 2_000_000
"""Interval of polling for the end of a seal in progress (2 ms)."""


class ReplicaOpen(msgspec.Struct, array_like=True):
    """`replica.open`: the stream's uid, the entry that the state must reach, and the last entry whose messages the
    receiver can read from the lake (0: none)."""

    uid: str
    index: int
    lake_through: int
    segment: tuple[int, int] | None = None
    """First and last entry of a sealed segment that is requested instead of a state."""
    damaged: bool = False
    """True if the segment's file is wanted also if it is damaged."""


class Offer(msgspec.Struct, array_like=True):
    """The answer to `replica.open`: a state as of entry `index`, with its term and membership. `left_through`: messages
    of entries through this index are only in the lake. `wrong`: the reason why there is none."""

    number: int = 0
    index: int = 0
    term: int = 0
    membership: Membership = Membership(())
    left_through: int = 0
    parts: list[ExportPart] = []
    wrong: str = ""
    released: bool = False
    """True if the requested segment has left the log of this member, which can send its state instead."""


class StatePiece(msgspec.Struct, array_like=True):
    """`replica.read`: a piece of the file `parts[part]`. Also `replica.close`, with the number alone."""

    number: int
    part: int = 0
    offset: int = 0


LOG_DIRECTORY = "log"
_encode = msgspec.msgpack.Encoder().encode
_WANTED = PackDecoder(ReplicaOpen)
_offer = msgspec.msgpack.Decoder(Offer).decode
_piece = msgspec.msgpack.Decoder(StatePiece).decode

PLAIN, PACKED, REFUSED = b"=", b"z", b"-"
"""First byte of a piece: plain, compressed (zlib), or an error text instead."""


class _Sending:
    """One state that another node is fetching."""

    def __init__(self, number: int, directory: str, parts: list[ExportPart]) -> None:
        self.number, self.directory, self.parts = number, directory, parts
        self.timer: Timer | None = None


class StateSender:
    """Sends states to other nodes."""

    def __init__(self, site: Site, find: Callable[[str], HeldReplica | None]) -> None:
        self._site, self._find = site, find
        self._sending: dict[int, _Sending] = {}
        self._opening = 0
        self._number = 0
        site.peers.serve("replica.open", self._open)
        site.peers.serve("replica.read", self._read)
        site.peers.serve("replica.close", self._close)

    def _open(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        wanted = _WANTED.decode(body)
        replica = self._find(wanted.uid)
        wrong = ""
        if replica is None or replica.stream is None or replica.closed or replica.stream.failed is not None:
            wrong = "this node has no such replica"
        elif replica.stream.store.applied < wanted.index:
            wrong = f"this replica has not applied entry {wanted.index} yet"
        elif len(self._sending) + self._opening >= MAX_SENDING:
            wrong = f"{MAX_SENDING} replicas are being sent already"
        if wrong or replica is None:
            answer(_encode(Offer(wrong=wrong)))
            return
        self._opening += 1
        if wanted.segment is not None:
            self._offer_segment(replica, wanted.segment, wanted.damaged, node, answer)
        else:
            self._offer(replica, wanted, answer)

    def _offer(self, replica: HeldReplica, wanted: ReplicaOpen, answer: Callable[[bytes], None]) -> None:
        """Collect the files once no seal is in progress, as its segment would be neither open nor sealed."""
        stream, stores = replica.stream, self._site.files.stores
        if stream is None or stream.closed or stream.failed is not None or replica.group is None:
            self._opening -= 1
            answer(_encode(Offer(wrong="this replica is being removed, or takes part no more")))
            return
        now = replica.group.snapshot()
        if now.index != stream.store.applied or not stream.sealed:
            self._site.shared.clock.call_later(SEAL_WAIT_NS, lambda: self._offer(replica, wanted, answer))
            return
        self._number += 1
        number, left = self._number, stream.store.left_through
        export = stream.store.export(stream.dump(), wanted.lake_through)

        def collect() -> tuple[str, list[ExportPart]]:
            directory = stores.sending(replica.directory, number)
            return directory, export.write(directory)

        self._collect(collect, Offer(number, now.index, now.last_term, now.membership, left), answer)

    def _offer_segment(
        self, replica: HeldReplica, wanted: tuple[int, int], damaged: bool, node: str, answer: Callable[[bytes], None]
    ) -> None:
        """Offer one sealed segment, if the copy here is intact, or also if it is `damaged`."""
        stream, stores = replica.stream, self._site.files.stores
        assert stream is not None  # Invariant: `_open` has looked
        if wanted[1] <= stream.store.left_through:
            self._opening -= 1
            answer(_encode(Offer(wrong="it has left this log for the lake", released=self._is_whole(replica, node))))
            return
        self._number += 1
        number = self._number
        sealed = [each for each in stream.store.sealed() if (each.first_index, each.last_index) == wanted]

        def collect() -> tuple[str, list[ExportPart]]:
            if not sealed:
                raise LogError("there is no such segment here")
            if not damaged:
                verify(stores.files, sealed[0].path)
            directory = stores.sending(replica.directory, number)
            return directory, [link_part(stores.files, sealed[0].path, directory, LOG_DIRECTORY)]

        self._collect(collect, Offer(number), answer)

    def _is_whole(self, replica: HeldReplica, node: str) -> bool:
        """Return True if this member can do without another one, which sets its files aside. Of two members with damage
        the first by name goes first: a majority has to stay."""
        recovering = replica.group is None or replica.group.recovering
        return not recovering and not (replica.repairing and self._site.peers.me < node)

    def _collect(
        self, collect: Callable[[], tuple[str, list[ExportPart]]], offer: Offer, answer: Callable[[bytes], None]
    ) -> None:
        def collected(found: tuple[str, list[ExportPart]] | None, error: BaseException | None) -> None:
            self._opening -= 1
            if found is None:
                answer(_encode(Offer(wrong=str(error))))
                return
            sending = self._sending[offer.number] = _Sending(offer.number, *found)
            self._watch(sending)
            answer(_encode(msgspec.structs.replace(offer, parts=sending.parts)))

        self._site.shared.io.submit(collect, collected)

    def _read(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _piece(body)
        sending = self._sending.get(asked.number)
        if sending is None or not 0 <= asked.part < len(sending.parts):
            answer(REFUSED + b"this state is not being sent")
            return
        self._watch(sending)
        part = sending.parts[asked.part]
        path, stores = os.path.join(sending.directory, part.name), self._site.files.stores
        length = min(PIECE_BYTES, part.size - asked.offset)

        def read() -> bytes:
            data = stores.read(path, asked.offset, length)
            # Compress the sequences of numbers in checkpoints and outlines, not the clients' data in segments.
            return PLAIN + data if part.name.endswith(SUFFIX) else PACKED + zlib.compress(data, 1)

        def done(data: bytes | None, error: BaseException | None) -> None:
            answer(data if data is not None else REFUSED + str(error).encode())

        self._site.shared.io.submit(read, done)

    def _close(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        self._end(_piece(body).number)
        answer(b"")

    def _watch(self, sending: _Sending) -> None:
        if sending.timer is not None:
            sending.timer.cancel()
        sending.timer = self._site.shared.clock.call_later(IDLE_NS, lambda: self._end(sending.number))

    def _end(self, number: int) -> None:
        sending = self._sending.pop(number, None)
        if sending is None:
            return
        if sending.timer is not None:
            sending.timer.cancel()
        stores = self._site.files.stores
        self._site.shared.io.submit(lambda: stores.sent(sending.directory), lambda _, __: None)


class Fetch:
    """Fetches one state.

    Args:
        sender: the node that has it.
        index: the entry that it must reach.
        done: called once with (offer, directory, "") when all files are durable there, or with the error as the last
            argument.
        segment: first and last entry of a sealed segment to fetch instead of a state.
        damaged: it is wanted also if it is damaged.
    """

    def __init__(
        self,
        site: Site,
        replica: HeldReplica,
        sender: str,
        index: int,
        done: Callable[[Offer, str, str], None],
        *,
        segment: tuple[int, int] | None = None,
        damaged: bool = False,
    ) -> None:
        self._segment, self._damaged = segment, damaged
        self._site, self._replica, self._sender, self._index = site, replica, sender, index
        self._done: Callable[[Offer, str, str], None] | None = done
        self._offer = Offer()
        self._directory = ""
        self.size = 0
        """Bytes received, after compression."""
        self._todo: list[StatePiece] = []
        self._outstanding = 0

    def begin(self) -> None:
        """Request the list of files."""
        if self._segment is not None:
            self._ask(0)
        else:
            self._site.lake_through(self._replica, self._ask)

    def cancel(self) -> None:
        self._end("", "it is not wanted any more")

    def _ask(self, lake_through: int) -> None:
        if self._done is not None:
            wanted = ReplicaOpen(self._replica.uid, self._index, lake_through, self._segment, self._damaged)
            self._call("replica.open", _encode(wanted), self._offered)

    def _call(self, method: str, body: bytes, then: Callable[[bytes], None]) -> None:
        def answered(answer: bytes | None, why: str) -> None:
            if self._done is None:
                return
            if answer is None:
                self._end("", why)
                return
            self.size += len(answer)
            self._site.bytes_fetched += len(answer)
            then(answer)

        self._site.peers.call(self._sender, method, body, answered, CALL_TIMEOUT_NS)

    def _offered(self, answer: bytes) -> None:
        self._offer = offer = _offer(answer)
        if self._replica.closed:  # its directory may be removed, and must not be created again
            self._end("", "it is not wanted any more")
            return
        if offer.wrong or offer.index < self._index:
            self._end("", offer.wrong or f"it is only as of entry {offer.index}")
            return
        stores, names, replica = self._site.files.stores, [part.name for part in offer.parts], self._replica
        if (segment := self._segment) is not None:
            self._submit(lambda: stores.repairing(replica.directory, segment[0], names), self._begun)
        else:
            self._submit(lambda: stores.incoming(replica.directory, replica.identity, names), self._begun)

    def _submit(self, work: Callable[[], str], then: Callable[[str], None]) -> None:
        def finished(result: str | None, error: BaseException | None) -> None:
            if self._done is None:
                return
            if result is None:
                self._end("", str(error))
            else:
                then(result)

        self._site.shared.io.submit(work, finished)

    def _begun(self, directory: str) -> None:
        self._directory = directory
        number = self._offer.number
        self._todo = [
            StatePiece(number, place, offset)
            for place, part in enumerate(self._offer.parts)
            for offset in range(0, part.size, PIECE_BYTES)
        ]
        self._todo.reverse()
        self._fetch_next("")

    def _fetch_next(self, _: str) -> None:
        while self._todo and self._outstanding < PIECES_AHEAD:
            self._outstanding += 1
            self._fetch(self._todo.pop())
        if not self._outstanding:
            stores, names = self._site.files.stores, [part.name for part in self._offer.parts]

            def settle() -> str:
                stores.arrived(self._directory, names)
                return self._directory

            self._submit(settle, lambda directory: self._end(directory, ""))

    def _fetch(self, piece: StatePiece) -> None:
        part = self._offer.parts[piece.part]
        path, stores = os.path.join(self._directory, part.name), self._site.files.stores

        def received(answer: bytes) -> None:
            if answer[:1] == REFUSED:
                self._end("", answer[1:].decode("utf-8", "replace"))
                return

            def keep() -> str:
                data = answer[1:] if answer[:1] == PLAIN else zlib.decompress(answer[1:])
                expected = min(PIECE_BYTES, part.size - piece.offset)
                if len(data) != expected:
                    raise ValueError(f"{part.name}: received {len(data)} bytes at {piece.offset} instead of {expected}")
                stores.write(path, data, piece.offset)
                return ""

            self._submit(keep, kept)

        def kept(_: str) -> None:
            self._outstanding -= 1
            self._fetch_next("")

        self._call("replica.read", _encode(piece), received)

    def _end(self, directory: str, wrong: str) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if self._offer.number:
            self._site.peers.tell(self._sender, "replica.close", _encode(StatePiece(self._offer.number)))
        if not wrong and self._offer.left_through:
            self._site.check_history(self._replica, self._offer.left_through)
        done(self._offer, directory, wrong)
