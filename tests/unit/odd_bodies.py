"""Values, bodies and header blocks that no client should send.

Belongs here: input that the tests send to every subject that is answered.
"""

from __future__ import annotations

DEEP = "[" * 3000 + "]" * 3000
ODD = (
    *("1.5", "-0.0", "1e400", "-1e400", "1e-400", "1E+2", "0", "-1", "18446744073709551616", "9223372036854775807"),
    *("-9223372036854775809", "1" * 5000, "null", "true", "NaN", "Infinity", "01", '""', '"x"', '"1"', '"a.>"'),
    *('"\\ud800"', '"\\u0000"', '"é\\n*. >"', '"' + "x" * 70_000 + '"', "[]", "[1.5]", '["\\udfff",1e400]', "[null]"),
    *(
        '["a","a"]',
        "{}",
        '{"a":1.5}',
        '{"\\ud800":1.5}',
        '{"a":"b","a":2}',
        '[{"a":[1.5]}]',
        "[" * 900 + "]" * 900,
        '{"_nats.req.level":"99"}',
    ),
    *('"0000-01-01T00:00:00+23:59"', '"0000-06-01T00:00:00Z"', '"9999-12-31T23:59:59Z"', '"2100-01-01T00:00:00+24:60"'),
    *(DEEP, '{"a":' * 3000 + "1" + "}" * 3000, '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999999-23:59"'),
)
"""Values as JSON text, some of them invalid."""

BODIES = (
    *(
        b"",
        b" ",
        b"{}",
        b"{ }",
        b"[]",
        b"null",
        b"1.5",
        b'"x"',
        b"{",
        b"}",
        b"{}{}",
        b"{} x",
        b'{"a"',
        b"\xff\xfe",
        b"\x00",
    ),
    *(b"{\xff}", b'{"name":"\xff\xc3"}', b"{" * 3000, DEEP.encode(), b'{"a":' + DEEP.encode() + b"}", b"A" * 100_000),
    *(b'{"\\ud800":1}', b'{"seq":' + b"9" * 10_000 + b"}", b"[" * 20_000, b"\xef\xbb\xbf{}", b'{"a":1e999999999}'),
    *(b"-5", b"+7", b"999999999999999999999", b"0x10", b"1" * 400, b"NaN", b"1_000", "٣".encode()),
)
"""Bodies that are no object with fields."""

HEADERS = (
    *(b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Required-Api-Level: 1.5\r\n\r\n", b"NATS/1.0 503\r\nA\r\n\r\n"),
    *(b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n" % value for value in (b"1e400", b"{}", b"9" * 9000, b"\xff")),
    *(b"NATS/1.0\r\nNats-Stream-Identity: %b\r\n\r\n" % value for value in (b"", b"\xff", b"[1.5]", b"x" * 9000)),
    b"garbage",
)
