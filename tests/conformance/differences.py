"""Lasting differences between the answers of lakestream and nats-server, with their reasons.

Belongs here: differences that are intended to stay. Missing behaviour is a failing scenario, never an entry.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One allowed difference.

    scenario and where are shell patterns; where is `<label of the entry>/<key>/<key>…`.
    """

    scenario: str
    where: str
    why: str


DEFAULT_TIME_TRAVEL = "lakestream.time_travel"
"""Metadata that lakestream gives to buckets."""

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "*",
        f"*/metadata/{DEFAULT_TIME_TRAVEL}",
        "buckets can be read as of any time of the last 7 days by default; nats-server has no such reads",
    ),
    Difference(
        "streams.unknown_requests_are_not_answered",
        "NOTHING.LIKE.THIS*",
        "a subject of no API family is told at once that nobody listens; nats-server lets the request time out",
    ),
    Difference(
        "domains.unknown_requests_under_the_domains_prefix",
        "$JS.D.API.[CD]*/header",
        "that nobody listens is told with the subject as the client sent it, not as the domain's prefix maps it",
    ),
    Difference(
        "limits.reached[[]max_bytes_too_small_for_one_new]",
        "state of S*",
        "nats-server shows sequence 0 as deleted when the first message of a stream in memory was refused",
    ),
    *(
        Difference(
            "limits.purge[[]seq_huge]",
            label,
            "a purge to a sequence above 2^62 empties the stream, which goes on where it was: tables end at 2^63",
        )
        for label in ("state of S*", "publish a.1*")
    ),
    *(
        Difference(
            f"publish.first_sequence_is_huge[[]{row}]",
            "STREAM.CREATE.S*",
            "no stream begins above 2^62, as tables end at 2^63; nats-server takes it, and after a restart has none of "
            "the stream's messages",
        )
        for row in ("above", "int64", "beyond_int64", "last_but_one", "last")
    ),
    Difference(
        "permissions.more_than_is_allowed",
        "SUB *",
        "a permission for `a.*` is none for `a.>` here; nats-server lets that through, with all that is below",
    ),
    Difference(
        "permissions.denied_and_denied_to_a_group",
        "SUB a.no other",
        "what is denied to all is denied to every queue group here, though another entry denies it to one of them",
    ),
    *(
        Difference(
            f"consumer_config.{kind}[[]filter_subject{'s' * several}-*]",
            f"{label} filter_subject*/num_pending",
            "nats-server counts what a new filter of a last_per_subject consumer matches, but goes on to deliver what "
            "the first one chose; here what is counted is what will be delivered",
        )
        for kind in ("create", "update")
        for several in (0, 1)
        for label in ("without", "update", "info", "pedantic", "once more")
    ),
    Difference(
        "tracing.an_atomic_batch_tells_with_its_commit",
        "trace/trace/events/1/subject",
        "which member its one event names depends on a race between two threads of nats-server; here: the commit",
    ),
    Difference(
        "imports.a_maximum_counts_what_is_imported",
        "at most two*",
        "nats-server goes on delivering messages of another account after the maximum of an UNSUB",
    ),
    Difference(
        "imports.the_api_of_another_in_the_place_of_the_own[[]r]",
        "*",
        "in nats-server both accounts do what is asked, and both answer, in any order; here the imported one alone",
    ),
    Difference(
        "imports.empty_messages_end_no_pull",
        "pulled*",
        "nats-server takes an empty message of a stream for the end of the answer: the rest of a pull is lost",
    ),
    *(
        Difference(
            "foreign_clients.rollup_of_a_subject_with_a_wildcard[[]star_in_a_token]",
            label,
            "nats-server 2.15.1 loses the acked rollup itself in memory, and keeps in files what it replaces; here and "
            "in 2.15.3 `s.a*` is literal",
        )
        for label in ("subjects*", "messages*")
    ),
    Difference(
        "direct_multi.times_beyond_64_bits_of_ns[[]*]",
        "as of a time*",
        "before 1678 and after 2262 a time overflows in nats-server, which then answers as for another one: up_to_time "
        "gives messages stored after it, start_time none or too many; here all times are compared as they are",
    ),
    Difference(
        "direct_requests.the_newest_of_all_after_it_was_deleted",
        "the last of >*",
        "nats-server looks for the last message of `>` at the last sequence alone, and finds nothing when that one was "
        "deleted; here it is the newest message that there is",
    ),
    Difference(
        "mirror_config.origin[[]filter*",
        "*/mirror/filter_subject",
        "nats-server shows a mirror's filter only once it has first asked its origin for messages; here it always does",
    ),
    Difference(
        "kv.expectations_that_no_sequence_can_meet[[]1844*",
        "publish $KV.b.*",
        "nats-server reads an expected sequence modulo 2^64, so that 2^64 is met by a key that was never written; here "
        "what is no sequence is never the last one",
    ),
    Difference(
        "kv_watch.watched[[]resumed_beyond]",
        "then/0/reply",
        "nats-server counts one message before the start of a consumer that begins beyond the end as pending, until it "
        "is asked for the consumer's state",
    ),
)
