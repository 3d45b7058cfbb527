"""Tests of cron expressions: times chosen by nats-server 2.15.1, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol import gotime
from lakestream.stream.features import cron

pytestmark = pytest.mark.unit

NOW = gotime.time_ns("2026-11-21T19:10:55.9Z")
"""Time at which the expected times were requested.

Every zone in the table that changes its clocks does so between some of them.
"""

MEASURED = [
    ("*/7 * * * * *", "", "2026-11-21T19:11:00Z"),
    ("0 */20 3 * * *", "", "2026-11-22T03:00:00Z"),
    ("5,10,55 59 23 31 12 *", "", "2026-12-31T23:59:05Z"),
    ("0 0 */6 */10 * MON", "", "2026-11-23T00:00:00Z"),
    ("0 0 0 13 * FRI", "", "2026-11-27T00:00:00Z"),
    ("0 0 0 ? * FRI", "", "2026-11-27T00:00:00Z"),
    ("0 0 0 29 2 *", "", "2028-02-29T00:00:00Z"),
    ("0 0 0 31 2,4,12 *", "", "2026-12-31T00:00:00Z"),
    ("0 0 0 1-7 * *", "Asia/Kolkata", "2026-12-01T00:00:00+05:30"),
    ("0 30 2 28 3 *", "Europe/Berlin", "2028-03-28T02:30:00+02:00"),
    ("0 30 2 31 10 *", "Europe/Berlin", "2027-10-31T02:30:00+02:00"),
    ("0 0 3 28 3 *", "Europe/Berlin", "2027-03-28T03:00:00+02:00"),
    ("0 30 2 * 3 SUN", "America/New_York", "2027-03-07T02:30:00-05:00"),
    ("0 30 1 * 11 SUN", "America/New_York", "2026-11-22T01:30:00-05:00"),
    ("0 30 1 * 10 SUN", "Europe/London", "2027-10-03T01:30:00+01:00"),
    ("0 15 2 * 4 SUN", "Australia/Lord_Howe", "2027-04-11T02:15:00+10:30"),
    ("0 45 1 * 10 SUN", "Australia/Lord_Howe", "2027-10-03T01:45:00+10:30"),
    ("0 0 2 * 4 SUN", "Australia/Lord_Howe", "2027-04-11T02:00:00+10:30"),
    ("0 0 0 5 9 *", "America/Santiago", "2030-09-05T00:00:00-04:00"),
    ("0 0 12 5 9 *", "America/Santiago", "2030-09-05T12:00:00-04:00"),
    ("0 0 12 * 9 SUN", "America/Santiago", "2027-09-12T12:00:00-03:00"),
    ("0 0 0 28 3 *", "Asia/Beirut", "2030-03-28T00:00:00+02:00"),
    ("0 15 0 28 3 *", "Asia/Beirut", "2030-03-28T00:15:00+02:00"),
    ("0 0 12 28 3 *", "Asia/Beirut", "2027-03-28T12:00:00+03:00"),
    ("0 0 1 27-29 3 *", "America/Havana", "2027-03-28T01:00:00-04:00"),
    ("0 0 0 * 3 SUN", "America/Havana", "2027-03-07T00:00:00-05:00"),
    ("0 0 12 30 4 *", "Africa/Cairo", "2027-04-30T12:00:00+03:00"),
    ("0 0 0 * 4 FRI", "Africa/Cairo", "2027-04-02T00:00:00+02:00"),
    ("0 30 2 * 3 *", "Africa/Casablanca", "2027-03-01T02:30:00Z"),
    ("0 15 23 27 3 *", "America/Nuuk", "2028-03-27T23:15:00-01:00"),
    ("0 30 2 * 3 SUN", "Pacific/Chatham", "2027-03-07T02:30:00+13:45"),
    ("0 0 0 24 4 *", "Asia/Gaza", "2027-04-24T00:00:00+03:00"),
    ("59 59 23 * * *", "Pacific/Chatham", "2026-11-22T23:59:59+13:45"),
]


@pytest.mark.parametrize(("expression", "zone", "expected"), MEASURED)
def test_the_next_time_is_that_of_nats_server(expression: str, zone: str, expected: str) -> None:
    place = cron.zone(zone or "UTC")
    found = cron.parse(expression).after(NOW, place)
    assert found is not None
    assert cron.show(found, place) == expected


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 0 0 31 4 *", "UTC"),
        ("0 0 0 30 2 *", "UTC"),
        ("0 0 0 28 9 *", "America/Santiago"),
        ("0 0 12 28 3 *", "America/Havana"),
        ("0 30 0 14 3 *", "America/Havana"),
    ],
)
def test_what_does_not_come_for_years_never_comes(expression: str, zone: str) -> None:
    assert cron.parse(expression).after(NOW, cron.zone(zone)) is None


def test_what_fired_goes_on_to_its_next_time() -> None:
    every_second = cron.parse("* * * * * *")
    second = 1_000_000_000
    at = NOW // second * second
    assert every_second.after(at, cron.utc) == at + second
    assert every_second.after(at + second // 2 - 1, cron.utc) == at + second
    assert every_second.after(at + second // 2, cron.utc) == at + 2 * second, "half a second rounds up"


def test_a_time_that_is_shown_twice_comes_twice_and_one_that_is_skipped_does_not_come() -> None:
    place, expression = cron.zone("Europe/Berlin"), cron.parse("0 30 2 * * *")
    shown = []
    for day in ("2027-03-27T12:00:00Z", "2027-10-30T12:00:00Z"):
        at = gotime.time_ns(day)
        for _ in range(2):
            found = expression.after(at, place)
            assert found is not None
            at = found
            shown.append(cron.show(at, place))
    assert shown == [
        "2027-03-29T02:30:00+02:00",
        "2027-03-30T02:30:00+02:00",
        "2027-10-31T02:30:00+02:00",
        "2027-10-31T02:30:00+01:00",
    ]


@pytest.mark.parametrize(
    "zone", ["", "utc", "Europe", "../UTC", "/etc/localtime", "No/Where", "x" * 5000, "a\x00b", "+02:00"]
)
def test_what_is_no_zone(zone: str) -> None:
    with pytest.raises(ValueError, match="zone"):
        cron.zone(zone)


def test_an_endless_expression_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="characters"):
        cron.parse(",".join(str(n % 60) for n in range(1000)) + " * * * * *")


FIELD = st.lists(st.sampled_from(["*", "?", "1", "3-5", "*/2", "2/3", "1-5/2", "jan", "mon"]), min_size=1, max_size=3)


@given(
    st.lists(FIELD.map(",".join), min_size=6, max_size=6),
    st.sampled_from(sorted({row[1] or "UTC" for row in MEASURED})),
)
def test_a_next_time_lies_ahead_and_matches(fields: list[str], zone: str) -> None:
    place = cron.zone(zone)
    try:
        expression = cron.parse(" ".join(fields))
    except ValueError:
        return
    found = expression.after(NOW, place)
    if found is not None:
        assert found > NOW
        second = found // 1_000_000_000
        wall = second + place(second)
        assert wall % 60 in expression.seconds
        assert wall // 60 % 60 in expression.minutes
