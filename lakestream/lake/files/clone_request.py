"""What a server and the compactor say to each other about the table of a mirror that begins as a clone.

Belongs here: the request and its answer, two files in the mirror's own staging directory, and who may do what to them.
Making the table is making.py's.

    clone.json     the request: written whole by the server, never changed
    cloned.json    the answer: created once, by the compactor (made, refused) or by the server (withdrawn)

Whoever creates the answer first has decided. After `withdrawn` the compactor takes away what it had made, and both
files; after anything else the server does, as soon as its log says what came of it. The request goes before the answer,
so that no half of a settled matter looks like a new request. A table that was made and is not wanted any more may be
discarded by the server for as long as its mirror has no message: that is a withdrawal in the answer's place.

Invariant: while a request has no answer, no segment of the mirror gets into its table.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.staging import StreamIdentity, introduce
from lakestream.lake.files.storage import Storage

REQUEST_FILE = paths.CLONE_FILE
ANSWER_FILE = "cloned.json"

MAKING = "making:"
"""Before the mirror's uid: the owner of a table that is not whole yet."""

MADE = "made"
REFUSED = "refused"
WITHDRAWN = "withdrawn"


class Picked(msgspec.Struct, frozen=True):
    """Subjects that a mirror takes: those that `filter` matches (empty: all), under the subject that `destination`
    makes of them (empty: their own)."""

    filter: str
    destination: str = ""


class CloneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of which table a mirror begins with.

    `index`: the position that the mirror's table will have, an index of the mirror's own log before its first message.
    `through`: the index of the origin's log that the origin's table has to have reached first. `start_seq`, `start_ns`:
    what was stored before is left out. `as_of_seq`, `as_of_ns`: the origin as it was right after a sequence was stored,
    or at a moment; at most one is not 0. `selections`: a row is taken if one of them matches, as the first one says;
    without any, all rows are, and the files are shared.
    """

    origin: str
    origin_uid: str
    origin_account: str = paths.DEFAULT_ACCOUNT
    index: int = 1
    through: int = 0
    start_seq: int = 0
    start_ns: int = 0
    as_of_seq: int = 0
    as_of_ns: int = 0
    selections: list[Picked] = []


class CloneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request.

    `origin_index` and `origin_version` say of which state of the origin it is (0: of a point in between, and for the
    index unknown); `last_seq`, `last_time_ns` and `floor` (its first sequence) are the origin's at that point. Of the
    rows, `messages` of them, the first and the last sequence. `version` is the version of the mirror's table that has
    them, and nothing else yet. `copied`: the rows were, instead of the files being shared.
    """

    state: str
    reason: str = ""
    index: int = 0
    origin_index: int = 0
    origin_version: int = 0
    last_seq: int = 0
    last_time_ns: int = 0
    floor: int = 0
    first_row_seq: int = 0
    last_row_seq: int = 0
    messages: int = 0
    version: int = 0
    copied: bool = False
    seconds: float = 0.0


def request(lake: str, mirror: StreamIdentity, asked: CloneRequest) -> None:
    """Ask the compactor for a table. Asking again, with an answer there, changes nothing."""
    storage, directory = _place(lake, mirror)
    introduce(storage, directory, mirror)
    if not storage.exists(f"{directory}/{REQUEST_FILE}"):
        storage.delete(f"{directory}/{ANSWER_FILE}")  # left behind by a kill
    storage.create(f"{directory}/{REQUEST_FILE}", msgspec.json.encode(asked))


def has_request(lake: str, mirror: StreamIdentity) -> bool:
    """Whether there is a request that is not settled."""
    storage, directory = _place(lake, mirror)
    return storage.exists(f"{directory}/{REQUEST_FILE}")


def answer(lake: str, mirror: StreamIdentity) -> CloneAnswer | None:
    """What came of the request; None while it is open."""
    storage, directory = _place(lake, mirror)
    return answered(storage, directory)


def withdraw(lake: str, mirror: StreamIdentity) -> CloneAnswer:
    """Give up waiting. Returns the answer: `withdrawn`, unless another one came first, which then holds."""
    storage, directory = _place(lake, mirror)
    return decide(storage, directory, CloneAnswer(state=WITHDRAWN))


def discard(lake: str, mirror: StreamIdentity) -> None:
    """Whatever was answered: the mirror begins without a clone. Only while it has no message, in log or table; nothing
    of it may be staged before this returns. Without a request nothing happens."""
    storage, directory = _place(lake, mirror)
    if storage.exists(f"{directory}/{REQUEST_FILE}"):
        storage.write(f"{directory}/{ANSWER_FILE}", msgspec.json.encode(CloneAnswer(state=WITHDRAWN)))


def settle(lake: str, mirror: StreamIdentity) -> None:
    """The mirror's log says what came of the request: take it away, with its answer. Not after `withdrawn`."""
    storage, directory = _place(lake, mirror)
    forget(storage, directory)


# The compactor's side


def asked_of(storage: Storage, directory: str) -> CloneRequest | None:
    """The request in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{REQUEST_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return msgspec.json.decode(content, type=CloneRequest)


def answered(storage: Storage, directory: str) -> CloneAnswer | None:
    """The answer in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{ANSWER_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return msgspec.json.decode(content, type=CloneAnswer)


def decide(storage: Storage, directory: str, said: CloneAnswer) -> CloneAnswer:
    """Give an answer, unless there is one; returns the one that holds."""
    if storage.create(f"{directory}/{ANSWER_FILE}", msgspec.json.encode(said)):
        return said
    return answered(storage, directory) or said  # what was withdrawn may have been cleared away already


def is_open(storage: Storage, directory: str) -> bool:
    """Whether the compactor has to see to a request first: it has no answer, or was withdrawn."""
    if not storage.exists(f"{directory}/{REQUEST_FILE}"):
        return False
    said = answered(storage, directory)
    return said is None or said.state == WITHDRAWN


def forget(storage: Storage, directory: str) -> None:
    """Take request and answer away, in this order."""
    storage.delete(f"{directory}/{REQUEST_FILE}")
    storage.delete(f"{directory}/{ANSWER_FILE}")


def _place(lake: str, mirror: StreamIdentity) -> tuple[Storage, str]:
    storage = open_storage(lake)
    return storage, paths.staging(storage.root, mirror.name, mirror.uid, mirror.account)
