"""The interest graph of an account.

Belongs here: finding the subscriptions that match a published subject, and watching single subjects for interest.
Delivery is the hub's.

Three structures hold the subscriptions, by the form of their subject:

- literal subjects: a dict;
- `head.*` with a literal head, the form of request inboxes, which come and go by the thousand: a dict by head;
- every other filter: a trie by token.
"""

# The problem. Each message asks who wants its subject. Walking a trie for each is the most expensive part of routing. A
# cache by subject is the obvious answer, and nats-server's. It fails where subjects never repeat, and those are the
# busiest: an inbox for each request, an ack subject for each delivery, a key or a device number in the subject. Such a
# cache only turns over.
#
# The idea. A match may be cached by a *prefix* of the subject if no subscription could tell two subjects with this
# prefix apart. From the most to the least general:
#
#     firsts    the first token decides: nothing below it has more than `>` or nothing at all
#     seconds   the first two tokens decide: `_INBOX.abc.>`, or a stream's `orders.>`
#     deeps     up to five tokens: `$JS.ACK.<stream>.<consumer>.>`
#     inboxes   all but the last token: `head.*`, with no literal subject below that head
#     heads     the same for wildcards alone; whether a literal subject exists is looked up as well
#     subjects  the whole subject, for those that do repeat
#
# `_resolve` walks the trie once and makes the most general entry that is right. `_prefix` is the prefix of the last
# answer, tried before all caches: a read buffer full of acks is one comparison each.
#
#     Invariant: an entry is complete for every valid subject with its key. So each subscription that appears must drop
#     the entries that it could change, before the next match: one subject (literal), one head (`head.*`), else all
#     entries that share its first two literal tokens. `_below` and `_literals_under` count what lies below a prefix,
#     so that this is known without a search.
#
# Which subjects repeat? Caching each subject that the prefixes answered would fill `subjects` with those that never
# come again. So one in eight is sampled, and one that is sampled twice gets its place: frequent subjects get there
# soon, and unique ones never.
#
# Cost under attack. Caches have a limit each; keys are bounded in length. A change drops at most what matches have
# filled in, so no sequence of SUB, UNSUB and PUB costs more than the publishes in it.
#
# Inboxes come and go by the thousand, so `head.*` with a literal head is a dict entry (`_stars`) and no path of the
# trie, and neither are literal subjects. Only filters with other wildcards pay for it.
#
# A Match is never changed, only replaced. Whoever routes by it holds it for one delivery, so a SUB or UNSUB in the
# middle breaks no iteration.
#
# What is ugly: three places (here, cache.py, trie.py) know the rule which subscriptions depend on which tokens, and it
# has to be the same rule. The property tests compare every answer with a naive search.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lakestream.net.interest.cache import MAX_CACHED, MAX_CACHED_SUBJECT, MAX_DEPTH, Caches, prefixes_of
from lakestream.net.interest.subscription import Match, Subscription
from lakestream.net.interest.trie import NO_MATCH, Trie, TrieLeaf, TrieNode, merge
from lakestream.protocol.subjects import is_literal, literal_head

_DOT = 46

SAMPLE_EVERY = 8
"""One in this many matches that are not served from `_subjects` is sampled."""

MAX_SAMPLED = 256
"""Sampled subjects that are remembered. A subject that is sampled again is cached by subject from then on, so that only
repeated ones take a place in the cache."""


class Watch:
    """A watched queue group of one subject.

    Args:
        watches: all watches of the graph, by subject.
        value: the last reported value.
    """

    __slots__ = ("_subject", "_watches", "callback", "queue", "value")

    def __init__(
        self,
        watches: dict[bytes, list[Watch]],
        subject: bytes,
        queue: bytes,
        callback: Callable[[bool], None],
        value: bool,
    ) -> None:
        self._watches, self._subject = watches, subject
        self.queue, self.callback, self.value = queue, callback, value

    def cancel(self) -> None:
        """End the watch. Idempotent."""
        watches = self._watches.get(self._subject, [])
        if self in watches:
            watches.remove(self)
            if not watches:
                del self._watches[self._subject]


NO_PREFIX = b"\n"
"""Prefix of no published subject."""


class InterestFigures(NamedTuple):
    """Figures of one graph.

    Attributes:
        subscriptions: now.
        inserts: subscriptions since the start.
        misses: matches that no cache had.
        cached: cached matches.
        fanouts: the receivers (single subscriptions and queue groups) of all cached matches together.
        max_fanout: the receivers of the match with the most.
    """

    subscriptions: int
    inserts: int
    misses: int
    cached: int
    fanouts: int
    max_fanout: int


class Interest:
    """The subscriptions of one account.

    Args:
        max_cached: entries in each cache.
    """

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._literals: dict[bytes, TrieLeaf] = {}
        self._stars: dict[bytes, TrieLeaf] = {}
        self._trie = Trie()
        self._count = self._inserts = self._misses = 0
        self._caches = caches = Caches(max_cached)
        self._subjects, self._heads, self._inboxes = caches.subjects, caches.heads, caches.inboxes
        self._firsts, self._seconds, self._deeps = caches.firsts, caches.seconds, caches.deeps
        # How many literal subjects lie right below a head; absent = none.
        self._literals_under: dict[bytes, int] = {}
        # How many literal and `head.*` subjects lie below a prefix; absent = none.
        self._below: dict[bytes, int] = {}
        self._until_sample = SAMPLE_EVERY
        self._sampled: set[bytes] = set()
        # The match of the last prefix below which all subjects match the same: acks come by the hundred, and no
        # two of them have the same subject.
        self._prefix, self._below_prefix = NO_PREFIX, NO_MATCH
        self._watches: dict[bytes, list[Watch]] = {}
        self._observers: tuple[Callable[[Subscription, bool], None], ...] = ()

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return self._count

    def figures(self) -> InterestFigures:
        """Return figures of the graph and its caches; linear in the cached matches."""
        fanouts = [len(match.plain) + len(match.queues) for match in self._caches.matches()]
        return InterestFigures(
            self._count, self._inserts, self._misses, len(fanouts), sum(fanouts), max(fanouts, default=0)
        )

    # ------------------------------------------------------------------ matching
    def match(self, subject: bytes) -> Match:
        """Return the subscriptions that match `subject`, a published subject: any bytes are allowed, wildcards in it
        are literal tokens, and a subject with an empty token matches nothing.

        The result does not change with subscriptions; hold it no longer than one delivery.
        """
        found = self._subjects.get(subject)
        if found is not None:
            return found
        if subject.startswith(self._prefix) and subject[-1] != _DOT and b".." not in subject:
            self._until_sample -= 1
            if not self._until_sample:
                self._sample(subject, subject.rpartition(b".")[0], self._below_prefix)
            return self._below_prefix
        head, _, last = subject.rpartition(b".")
        if last:
            found = self._inboxes.get(head)
            if found is not None:
                return found
        return self._miss(subject, head, last)

    def covers(self, head: bytes, match: Match) -> bool:
        """Return True if this match of one subject is known to be that of every subject of one more token than
        `head`."""
        if self._inboxes.get(head) is match:
            return True
        return self._below_prefix is match and (head + b".").startswith(self._prefix)

    def prefix_of(self, match: Match) -> bytes:
        """Return a prefix of which all valid subjects have this match, b"" if none is known."""
        return self._prefix if self._below_prefix is match else b""

    def _miss(self, subject: bytes, head: bytes, last: bytes) -> Match:
        # `head` is b"" both for a single token and for ".x": neither is ever in `_heads`.
        found = self._heads.get(head)
        if found is None or not last:
            # A subject with an empty token matches nothing. (Cached heads have none.)
            if not last or subject[0] == _DOT or b".." in subject:
                return NO_MATCH
            first = subject.find(b".")
            if first < 0:
                self._misses += 1
                return self._remember(subject, head, self._full(subject, head, last))
            found = self._firsts.get(subject[:first])
            if found is not None:
                self._prefix, self._below_prefix = subject[: first + 1], found
            else:
                by_two = self._seconds.get(subject[:first])
                second = subject.find(b".", first + 1)
                if by_two is not None and second > 0:
                    found = by_two.get(subject[:second])
                if found is not None:
                    self._prefix, self._below_prefix = subject[: second + 1], found
                else:
                    by_two_deep = self._deeps.get(subject[:first])
                    deep = by_two_deep.get(subject[:second]) if by_two_deep is not None and second > 0 else None
                    if deep is not None:
                        found = deep.find(subject, second)
                if found is None:
                    return self._resolve(subject, head, last)
        elif subject in self._literals:
            self._misses += 1
            return self._remember(subject, head, self._full(subject, head, last))
        self._until_sample -= 1
        if not self._until_sample:
            self._sample(subject, head, found)
        return found

    def _sample(self, subject: bytes, head: bytes, found: Match) -> None:
        self._until_sample = SAMPLE_EVERY
        if subject in self._sampled:
            self._remember(subject, head, found)
            self._sampled.discard(subject)
        elif len(subject) <= MAX_CACHED_SUBJECT:
            if len(self._sampled) >= MAX_SAMPLED:
                self._sampled.clear()
            self._sampled.add(subject)

    def _resolve(self, subject: bytes, head: bytes, last: bytes) -> Match:
        """Match a subject of several tokens that no cache covers, and make the most general cache entry for it."""
        self._misses += 1
        for prefix in prefixes_of(subject):
            if prefix not in self._below:
                found, nodes = self._trie.reach(prefix.split(b"."))
                if not any(node.children or node.star for node in nodes):
                    found.extend(node.rest for node in nodes if node.rest is not None)
                    match = merge(found)
                    self._caches.add_prefix(prefix, match)
                    return match
        words = head.split(b".")
        deep = self._resolve_deep(words) if len(words) > 2 else None
        if deep is not None:
            return deep
        found, nodes = self._trie.reach(words)
        if subject in self._literals or any(node.children for node in nodes):
            # The match depends on the whole subject, on its last token or on what could follow it.
            return self._remember(subject, head, self._full(subject, head, last))
        leaves = self._last(found, nodes, last)
        star = self._stars.get(head)
        if star is not None:
            leaves.append(star)
        match = merge(leaves)
        if star is not None and head not in self._literals_under:
            self._caches.add_inbox(head, match)
        else:
            self._caches.add_head(head, match)
        return match

    def _resolve_deep(self, words: list[bytes]) -> Match | None:
        """Match where only filters depend on tokens behind the first two, and none beyond MAX_DEPTH.

        Args:
            words: all tokens of the subject but the last.
        """
        two = b".".join(words[:2])
        if two in self._below:
            return None
        # All matches below the same two tokens are cached by the same number of tokens.
        for depth in range(max(3, self._caches.depth(two)), min(len(words), MAX_DEPTH) + 1):
            found, nodes = self._trie.reach(words[:depth])
            if not any(node.children or node.star for node in nodes):
                found.extend(node.rest for node in nodes if node.rest is not None)
                match = merge(found)
                self._caches.add_deep(b".".join(words[:depth]), depth, match)
                return match
        return None

    def _full(self, subject: bytes, head: bytes, last: bytes) -> Match:
        """Match without caches. No token may be empty."""
        has_head = len(head) != len(subject) - len(last)
        found, nodes = self._trie.reach(head.split(b".") if has_head else [])
        leaves = self._last(found, nodes, last)
        if has_head:
            star = self._stars.get(head)
            if star is not None:
                leaves.append(star)
        literal = self._literals.get(subject)
        if literal is not None:
            leaves.append(literal)
        return merge(leaves)

    @staticmethod
    def _last(found: list[TrieLeaf], nodes: list[TrieNode], last: bytes) -> list[TrieLeaf]:
        for node in nodes:
            if node.rest is not None:
                found.append(node.rest)
            if node.star is not None and node.star.leaf is not None:
                found.append(node.star.leaf)
            child = node.children.get(last)
            if child is not None and child.leaf is not None:
                found.append(child.leaf)
        return found

    def _remember(self, subject: bytes, head: bytes, found: Match) -> Match:
        self._caches.add_subject(subject, head, found)
        return found

    # ------------------------------------------------------------------ changes
    def insert(self, sub: Subscription) -> bool:
        """Add a subscription, whose subject must be valid for SUB; return False when it is there already.

        Watchers are called before this returns.
        """
        self._prefix, subject = NO_PREFIX, sub.subject
        if is_literal(subject):
            leaf = self._literals.get(subject)
            head = subject.rpartition(b".")[0]
            if leaf is None:
                leaf = self._literals[subject] = TrieLeaf()
                self._literals_under[head] = self._literals_under.get(head, 0) + 1
                self._caches.forget_wild(head)
                self._count_below(subject, 1)
            if not leaf.add(sub):
                return False
            self._caches.forget_subject(subject, head)
        elif subject.endswith(b".*") and is_literal(subject[:-2]):
            head = subject[:-2]
            leaf = self._stars.get(head)
            if leaf is None:
                leaf = self._stars[head] = TrieLeaf()
                self._count_below(subject, 1)
            if not leaf.add(sub):
                return False
            self._caches.forget_head(head)
        else:
            if not self._trie.add(sub):
                return False
            self._caches.forget_below(literal_head(subject)[:-1])
        self._count += 1
        self._inserts += 1
        for observer in self._observers:
            observer(sub, True)
        if subject in self._watches:
            self._report(subject)
        return True

    def remove(self, sub: Subscription) -> bool:
        """Remove a subscription; return False when it is not there.

        Watchers are called before this returns.
        """
        self._prefix, subject = NO_PREFIX, sub.subject
        if is_literal(subject):
            leaf = self._literals.get(subject)
            if leaf is None or not leaf.discard(sub):
                return False
            head = subject.rpartition(b".")[0]
            if leaf.empty():
                self._drop_literal(subject, head)
            self._caches.forget_subject(subject, head)
        elif subject.endswith(b".*") and is_literal(subject[:-2]):
            head = subject[:-2]
            leaf = self._stars.get(head)
            if leaf is None or not leaf.discard(sub):
                return False
            if leaf.empty():
                del self._stars[head]
                self._count_below(subject, -1)
            self._caches.forget_head(head)
        else:
            if not self._trie.discard(sub):
                return False
            self._caches.forget_below(literal_head(subject)[:-1])
        self._count -= 1
        for observer in self._observers:
            observer(sub, False)
        if subject in self._watches:
            self._report(subject)
        return True

    def _count_below(self, subject: bytes, change: int) -> None:
        """Note that a literal or `head.*` subject appeared (+1) or disappeared (-1) below its prefixes."""
        for prefix in prefixes_of(subject):
            count = self._below.get(prefix, 0) + change
            if count:
                self._below[prefix] = count
                self._caches.forget_prefix(prefix)
            else:
                del self._below[prefix]

    def _drop_literal(self, subject: bytes, head: bytes) -> None:
        del self._literals[subject]
        self._count_below(subject, -1)
        left = self._literals_under[head] - 1
        if left:
            self._literals_under[head] = left
        else:
            del self._literals_under[head]
            # The head may be an inbox again; the next match decides.
            if head in self._stars:
                self._caches.forget_wild(head)

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, in no particular order."""
        leaves = [*self._literals.values(), *self._stars.values(), *self._trie.leaves()]
        return [sub for leaf in leaves for sub in leaf.subscriptions()]

    # ------------------------------------------------------------------ watching
    def observe(self, observer: Callable[[Subscription, bool], None]) -> None:
        """Call `observer(sub, True)` for each subscription, now and after each further one that is inserted, and with
        False after each removed one. It must not change interest.
        """
        for sub in self.subscriptions():
            observer(sub, True)
        self._observers = (*self._observers, observer)

    def interest(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return True if a message to `subject` has a receiver; with `queue`, one in that group."""
        found = self.match(subject)
        if not queue:
            return bool(found.plain or found.queues)
        return any(group[0].queue == queue for group in found.queues)

    def bound(self, subject: bytes, queue: bytes = b"") -> bool:
        """Return True if there is a subscription to exactly `subject` in exactly that queue group (b"": in none).

        This is nats-server's rule for an active push consumer: subscribers through wildcards or in another group
        receive its messages but do not start it.
        """
        leaf = self._literals.get(subject)
        if leaf is None:
            return False
        if not queue:
            return bool(leaf.plain)
        return leaf.queues is not None and queue in leaf.queues

    def watch(self, subject: bytes, queue: bytes, callback: Callable[[bool], None]) -> Watch:
        """Call `callback(value)` whenever `bound(subject, queue)` changes, with its new value.

        The call comes from inside `insert` or `remove`, after the change; the callback may change interest itself.

        Args:
            subject: a literal subject.
            queue: the queue group, b"" for none.
            callback: called for changes only, not for the initial value.
        """
        watch = Watch(self._watches, subject, queue, callback, self.bound(subject, queue))
        self._watches.setdefault(subject, []).append(watch)
        return watch

    def _report(self, subject: bytes) -> None:
        for watch in list(self._watches[subject]):
            # An earlier callback may have ended this watch or changed interest again: the present value counts.
            if watch in self._watches.get(subject, ()):
                value = self.bound(subject, watch.queue)
                if value != watch.value:
                    watch.value = value
                    watch.callback(value)
