"""Addresses of catalogs."""

from __future__ import annotations

import pytest

from lakestream.lake.catalogs.address import MAX_CATALOGS, VARIABLE, BadCatalog, given, parse, parse_all


def test_addresses_of_each_kind() -> None:
    hive = parse("hive://one,two:9084/events")
    assert (hive.kind, hive.hosts, hive.database) == ("hive", ("one:9083", "two:9084"), "events")
    assert parse("hive://[::1]:9083").hosts == ("[::1]:9083",)
    glue = parse("glue://eu-central-1/events?catalog_id=123456789012&endpoint=http://127.0.0.1:5000")
    assert (glue.hosts, glue.catalog, glue.endpoint) == (("eu-central-1",), "123456789012", "http://127.0.0.1:5000")
    unity = parse("unity://uc.example:8443/main/events?token_file=/run/secrets/uc")
    assert (unity.hosts, unity.catalog, unity.database, unity.secure) == (("uc.example:8443",), "main", "events", True)
    assert unity.token_file == "/run/secrets/uc"
    assert not parse("unity+http://localhost:8080/unity").secure
    assert parse("glue://us-east-1").database == "lakestream"
    rest = parse("iceberg://polaris.example/api/catalog?warehouse=main&namespace=events&token_file=/run/secrets/p")
    assert (rest.kind, rest.hosts, rest.path, rest.format) == (
        "iceberg",
        ("polaris.example",),
        "/api/catalog",
        "iceberg",
    )
    assert (rest.catalog, rest.database, rest.token_file, rest.secure) == ("main", "events", "/run/secrets/p", True)
    plain = parse("iceberg+http://localhost:8181")
    assert (plain.path, plain.database, plain.secure) == ("", "lakestream", False)
    assert [parse(f"hive://h/db{option}").format for option in ("", "?format=delta", "?format=iceberg")] == [
        "delta",
        "delta",
        "iceberg",
    ]
    assert parse("glue://r/db?format=iceberg").format == "iceberg"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("thrift://host", "not a kind"),
        ("host:9083", "not a kind"),
        ("hive://" + "user:secret" + "@host/db", "credentials"),
        ("hive:///db", "not a host"),
        ("hive://host/a/b", "database"),
        ("hive://host/Events", "database"),
        ("hive://host?x=1", "options"),
        ("glue://", "not a region"),
        ("glue://r/db?endpoint=ftp://x", "endpoint"),
        ("glue://r/db?endpoint=http://" + "a:b" + "@x", "endpoint"),
        ("unity://host", "catalog is missing"),
        ("unity://host/c/s/t", "database"),
        ("unity://host/c?token=secret", "options"),
        ("unity://host/c?token_file=", "options"),
        ("unity://host/c?format=iceberg", "options"),
        ("hive://host/db?format=hudi", "format"),
        ("iceberg:///path", "not a host"),
        ("iceberg://host/catalog/v1", "before /v1"),
        ("iceberg://host?namespace=a.b", "database"),
        ("iceberg://host?token=secret", "options"),
    ],
)
def test_a_wrong_address_is_refused_without_its_secrets(text: str, reason: str) -> None:
    with pytest.raises(BadCatalog, match=reason) as raised:
        parse(text)
    assert "user:secret" not in str(raised.value)


def test_several_addresses() -> None:
    assert [each.kind for each in given([], {VARIABLE: "hive://h glue://r"})] == ["hive", "glue"]
    assert [each.kind for each in given(["glue://r"], {VARIABLE: "hive://h"})] == ["glue"]
    assert given([], {}) == ()
    with pytest.raises(BadCatalog, match="twice"):
        parse_all(["hive://h", "hive://h"])
    with pytest.raises(BadCatalog, match="at most"):
        parse_all([f"hive://h{number}" for number in range(MAX_CATALOGS + 1)])
