"""Tests of the users of client certificates: which name counts, and distinguished names as users write them."""

from __future__ import annotations

import msgspec
import pytest

from lakestream.net.accounts.certificates import user_of
from lakestream.net.tls import DOMAIN_COMPONENT, PeerCertificate

pytestmark = pytest.mark.unit

UID = "0.9.2342.19200300.100.1.1"


def subject(*names: str) -> PeerCertificate:
    """Return a certificate with these relative distinguished names, `A=1+B=2` for one of two values."""
    pairs = [tuple(tuple(each.split("=", 1)) for each in name.split("+")) for name in names]
    known = {"DC": DOMAIN_COMPONENT, "UID": UID}
    return PeerCertificate(
        subject=tuple(tuple((known.get(kind, kind), value) for kind, value in name) for name in pairs)
    )


PLAIN = subject("C=DE", "O=Example", "OU=First", "CN=ann")
FULL = msgspec.structs.replace(PLAIN, emails=("a@x.org", "b@x.org"), names=("h.x.org",), uris=("spiffe://x.org/a",))


@pytest.mark.parametrize(
    ("users", "user"),
    [
        (["b@x.org", "a@x.org"], "a@x.org"),
        (["h.x.org", "b@x.org"], "b@x.org"),
        (["spiffe://x.org/a", "h.x.org"], "h.x.org"),
        (["CN=ann,OU=First,O=Example,C=DE", "spiffe://x.org/a"], "spiffe://x.org/a"),
        (["A@x.org", "x.org"], None),
        ([], None),
    ],
)
def test_the_first_name_that_is_a_user_counts(users: list[str], user: str | None) -> None:
    assert user_of(FULL, users) == user


@pytest.mark.parametrize(
    ("certificate", "written"),
    [
        (PLAIN, "CN=ann,OU=First,O=Example,C=DE"),
        (PLAIN, "C=DE,O=Example,OU=First,CN=ann"),
        (PLAIN, "cn=ann, ou=First , O = Example,C=DE "),
        (PLAIN, r"CN=\61nn,OU=First,O=Example,C=DE"),
        (subject("DC=org", "DC=x", "CN=a"), "CN=a,DC=x,DC=org"),
        (subject("DC=org", "DC=x", "CN=a"), "CN=a,DC=org,DC=x"),
        (subject("OU=a", "OU=b", "CN=x"), "CN=x,OU=b,OU=a"),
        (subject("OU=a", "OU=b", "CN=x"), "CN=x,OU=a+OU=b"),
        (subject("CN=a+OU=b"), "OU=b+CN=a"),
        (subject("CN=Smith, J"), r"CN=Smith\, J"),
        (subject("CN= a "), r"CN=\ a\ "),
        (subject("CN=a#b"), "CN=a#b"),
        (subject("CN=ü"), "CN=ü"),
        (subject("CN=ü"), r"CN=\c3\bc"),
        (subject("CN=several", f"{UID}=7"), "CN=several"),
    ],
)
def test_distinguished_names(certificate: PeerCertificate, written: str) -> None:
    assert user_of(certificate, ["nobody", written]) == written


@pytest.mark.parametrize(
    ("certificate", "written"),
    [
        (PLAIN, "CN=ann"),
        (PLAIN, "CN=ann,OU=First,O=Example"),
        (PLAIN, "CN=ann,OU=First,O=Example,C=DE,L=Munich"),
        (PLAIN, "CN=Ann,OU=First,O=Example,C=DE"),
        (PLAIN, "CN=ann,OU=First,O=Example,C"),
        (PLAIN, ""),
        (PLAIN, "="),
        (subject("OU=a", "OU=b"), "OU=a,OU=a"),
        (subject("CN=several", "UID=7"), "CN=several,UID=7"),
        (subject(), "CN=a"),
    ],
)
def test_less_than_the_subject_and_more_than_it_is_not_enough(certificate: PeerCertificate, written: str) -> None:
    assert user_of(certificate, [written]) is None


def test_subjects_are_shown_as_nats_server_shows_them() -> None:
    certificate = subject("C=DE", "ST=Bavaria", "O=Example", "OU=a", "OU=b", "SERIALNUMBER=5", "CN=x", "CN=y", "UID=7")
    assert certificate.known_subject == "SERIALNUMBER=5,CN=y,OU=a+OU=b,O=Example,ST=Bavaria,C=DE"
    assert certificate.shown_subject == f"{certificate.known_subject},{UID}=7"
    odd = PeerCertificate(subject=((("CN", '#a,"+;<>\\b '),),))
    assert odd.shown_subject == r"CN=\#a\,\"\+\;\<\>\\b\ "
