"""Tests of the unmodified npm packages `nats` and `@nats-io/*` on the real socket; js/*.cjs are the scripts.

Buckets are used on nats-server and on the server under test at once, and the client's results must be the same. Those
of the older package `nats`, which has the same code, are heavy tests.
"""

from __future__ import annotations

import pytest

from tests.clients import npm
from tests.pairs import Pair
from tests.servers import Server

pytestmark = pytest.mark.conformance

CLIENT = (
    "core",
    "publish",
    "streams",
    "directGet",
    "fetch",
    "consume",
    "consumers",
    "orderedConsumer",
    "pushSubscribe",
    "orderedPush",
)
KEY_VALUE = (
    "putAndGet",
    "getARevision",
    "withoutDirectGet",
    "createAndUpdate",
    "expectedRevisions",
    "oneOfManyCreates",
    "countingByUpdates",
    "deleteAndPurge",
    "deleteByWildcard",
    "purgeDeletes",
    "purgeTheBucket",
    "historyOfKeys",
    "keys",
    "watchAll",
    "watchHistory",
    "watchUpdatesOnly",
    "watchWithoutDeletes",
    "watchHeadersOnly",
    "watchWildcards",
    "watchSeveralFilters",
    "watchResumes",
    "watchManyChanges",
    "status",
    "compressed",
    "limits",
    "bucketTtl",
    "openedAgain",
    "republished",
    "sourced",
    "codecs",
    "keysOfEverySpelling",
)
OBJECTS = (
    "sizes",
    "streamsOfParts",
    "metadata",
    "replaced",
    "listed",
    "deleted",
    "watched",
    "updated",
    "links",
    "sealed",
    "status",
    "expectedRevisions",
    "interruptedUpload",
    "fullStore",
    "corruptedObject",
    "storeTtl",
    "severalAtOnce",
    "large",
)
NEWER = {
    "kv.cjs": (
        "keysOfSeveralFilters",
        "historyOfSeveralFilters",
        "markerTtl",
        "purgeWithTtl",
        "createAfterAMarker",
        "ttlWithoutMarkersIsRefused",
        "watchTellsUpdates",
        "bucketsAreListed",
    ),
    "objects.cjs": ("inBatches", "storesAreListed", "openedAgain"),
}
"""Tests that only @nats-io/* supports."""
BUCKETS = {"kv.cjs": KEY_VALUE, "objects.cjs": OBJECTS}
LIBRARIES = {"nats": dict.fromkeys(NEWER, ()), "nats-io": NEWER}
ROWS = [
    (library, script, name)
    for library, more in LIBRARIES.items()
    for script, names in BUCKETS.items()
    for name in (*names, *more[script])
]


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    npm.install()


def test_every_test_of_the_scripts_is_run() -> None:
    assert npm.listed("client.cjs") == CLIENT
    for library, more in LIBRARIES.items():
        for script, names in BUCKETS.items():
            assert npm.listed(script, library) == (*names, *more[script])


@pytest.mark.parametrize("name", CLIENT)
def test_npm_nats(server: Server, trials: npm.Trials, name: str) -> None:
    trials.passes("client.cjs", server.url, name)


@pytest.mark.parametrize(
    ("library", "script", "name"),
    [
        pytest.param(
            *row, id="-".join(row), marks=() if row[0] == "nats-io" and row[2] != "large" else pytest.mark.heavy
        )
        for row in ROWS
    ],
)
def test_buckets(pair: Pair, trials: npm.Trials, library: str, script: str, name: str) -> None:
    trials.passes(script, library, name, pair.expected.url, pair.tested.url)
