"""A KV bucket whose files fail, and the judge of its revisions.

Belongs here: the clients of a bucket beside a stream under a rule, and the check of what they were told against each
other and against the revisions that a server without faults finds. The operations are those of tests/key_clients.py,
the search for an order that explains them is in tests/linearizable.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

from tests.key_clients import Client, History, finish, stored
from tests.linearizable import Outcome
from tests.wire import Wire

CLIENTS = 2
REST_S = 0.01


class Bucket:
    """Clients that create, update, put, delete, purge and read keys of one bucket at the same time.

    Args:
        name: name of the bucket; its stream is `KV_<name>`.
        connect: opens a connection.
    """

    def __init__(self, name: str, connect: Callable[[], Wire], random: Random) -> None:
        self.name = name
        self.history = History()
        self._connect, self._random = connect, random
        self._clients: list[Client] = []

    def start(self) -> None:
        """Start the clients."""
        for number in range(CLIENTS):
            rng = Random(self._random.getrandbits(32))
            # Markers keep the revisions before them, so that each write can be found.
            options = {"keep": True, "insist": True, "rest_s": REST_S}
            self._clients.append(Client(number, self.history, self._connect, rng, bucket=self.name, **options))  # type: ignore[arg-type]
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Stop the clients, and wait for their last answers."""
        for client in self._clients:
            client.stop()
        finish(self._clients)

    def unanswered(self) -> int:
        """Return the number of operations without an answer within the timeout."""
        return sum(client.unanswered for client in self._clients)

    def died(self) -> None:
        """Note that the server is dead: operations without an answer have no effect from now on."""
        self.history.died(time.monotonic())

    def problems(self, wire: Wire) -> Iterator[str]:
        """Yield the broken promises, as a server that has started again on the same files shows them."""
        held = stored(wire, self.name)
        values = {value: seq for seq, (_, value) in held.items()}
        for each in self.history.operations:
            if each.write and each.outcome is Outcome.OK and values.get(each.value) != each.seq:
                found = values.get(each.value, 0)
                yield f"bucket {self.name}: {each.key} = {each.value} was acked as revision {each.seq}, and is {found}"
            if each.write and each.outcome is Outcome.REFUSED and each.value in values:
                yield f"bucket {self.name}: {each.key} = {each.value} was refused, and is revision {values[each.value]}"
        self.history.resolve(held)
        for check in (self.history.check, lambda: self.history.check_declined(held), self._reads_of(held)):
            try:
                check()
            except AssertionError as error:
                yield f"bucket {self.name}: {error}"

    def _reads_of(self, held: dict[int, tuple[str, str]]) -> Callable[[], None]:
        return lambda: self.history.check_direct(held)
