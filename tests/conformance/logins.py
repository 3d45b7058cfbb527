"""Log in with keys, tokens or other credentials; record the answers and the permissions of the user.

Belongs here: steps of scripts about logins. Operator, accounts and users are in `operators.py`.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.conformance.harness import Script
from tests.keys import Key, proof
from tests.wire import Closed, Frame, Wire, WireTimeout, pub

Fields = Callable[[str], Mapping[str, Any]]
"""Returns the fields of CONNECT, given the nonce of INFO."""


def with_token(key: Key, token: str, **fields: Any) -> Fields:
    """Return the fields of a login with a user token."""
    return lambda nonce: {**proof(key, nonce, token), **fields}


def with_nkey(key: Key, **fields: Any) -> Fields:
    """Return the fields of a login as an nkey user of the configuration."""
    return lambda nonce: {**proof(key, nonce), **fields}


def only(**fields: Any) -> Fields:
    """Return these fields for every nonce."""
    return lambda nonce: fields


def encodings(key: Key) -> dict[str, Callable[[str], str]]:
    """Return encodings of the signature of a nonce, by name."""
    return {
        "url": key.sign,
        "standard": lambda nonce: base64.b64encode(key.sign_raw(nonce)).decode(),
        "hex": lambda nonce: key.sign_raw(nonce).hex(),
        "cut": lambda nonce: key.sign(nonce)[:40],
        "of_other_text": lambda nonce: key.sign(f"{nonce}x"),
        "of_no_text": lambda nonce: key.sign(""),
        "no_base64": lambda nonce: "!!!",
        "empty": lambda nonce: "",
    }


def in_either_alphabet(t: Script, key: Key, **fields: Any) -> None:
    """Record which forms of base64 a signature may have, padded and not, where the two alphabets differ."""
    for padded in (True, False):
        for altchars in (b"-_", b"+/"):
            while True:
                wire = t.connect_bare()
                written = base64.b64encode(key.sign_raw(wire.info["nonce"]), altchars).decode()
                if any(letter in written for letter in altchars.decode()):
                    break
            wire.connect({**fields, "sig": written if padded else written.rstrip("=")}, b"PING\r\n")
            t.frames(f"{altchars.decode()} {'padded' if padded else 'unpadded'}", heard(wire))


def attempt(t: Script, label: str, fields: Fields) -> Wire | None:
    """Record what is said to a login; return the connection if it was let in."""
    wire = t.connect_bare()
    wire.connect(fields(wire.info.get("nonce", "")), b"PING\r\n")
    return judged(t, label, wire)


def judged(t: Script, label: str, wire: Wire) -> Wire | None:
    """Record what is said to a connection up to its first PONG, and what the log says if it is refused."""
    frames = heard(wire)
    t.frames(label, frames)
    if not frames or frames[-1].verb != "CLOSED":
        return wire
    t.note(f"{label}: log", logged(t, wire))
    return None


def logged(t: Script, wire: Wire, timeout: float = 2.0) -> list[str]:
    """Return the log lines about a connection that was refused, without its address."""
    line = re.compile(rf"(\[\w+\]) \S+ - cid:{wire.info['client_id']} - (.*)$")
    deadline = time.monotonic() + timeout
    while True:
        found = {f"{match[1]} {match[2]}" for text in t.server.log(500).splitlines() if (match := line.search(text))}
        if any("authentication error" in text or "exceeded" in text for text in found) or time.monotonic() > deadline:
            return sorted(found)
        time.sleep(0.005)


def heard(wire: Wire, until: str = "PONG") -> list[Frame]:
    """Return all frames up to the next PONG; the last one is `CLOSED` if the connection ended first."""
    frames: list[Frame] = []
    try:
        while (frame := wire.next()).verb != until:
            frames.append(frame)
    except Closed:
        frames.append(Frame("CLOSED"))
    except WireTimeout:
        frames.append(Frame("NOTHING"))
    return frames


def admitted(t: Script, fields: Fields) -> Wire:
    """Return a connection that was let in; not recorded."""
    wire = t.connect_bare()
    wire.connect(fields(wire.info.get("nonce", "")), b"PING\r\n")
    refused = heard(wire)
    assert not refused, refused
    return wire


_TOLD = ("remote_account", "max_payload", "auth_required", "acc_is_sys")


def told(t: Script, wire: Wire, label: str = "INFO") -> None:
    """Record what the second INFO says of the account and its limits."""
    info = wire.told()[-1]
    t.note(label, {key: info[key] for key in _TOLD if key in info})


def user_info(t: Script, wire: Wire) -> None:
    """Record what a user is told of itself, or why it may not ask."""
    reply = wire.new_reply()
    wire.publish("$SYS.REQ.USER.INFO", b"", reply)
    frame = wire.next(lambda frame: frame.subject == reply or frame.verb == "-ERR")
    if frame.verb == "-ERR" or not frame.data:
        t.note("USER.INFO", t.show(frame))
        return
    data = frame.json()["data"]
    if "expires" in data:
        data["expires"] = "<positive>" if data["expires"] > 0 else data["expires"]
    for rules in (data.get("permissions") or {}).values():
        for name, entries in rules.items():
            rules[name] = sorted(entries) if isinstance(entries, list) else entries  # there they come in any order
    t.note("USER.INFO", data)


def may(t: Script, wire: Wire, publish: Iterable[str] = (), subscribe: Iterable[str] = ()) -> None:
    """Record what is said to messages to these subjects, and to these subscriptions (`subject queue`)."""
    steps = [
        *((f"PUB {subject}", pub(subject, b"x")) for subject in publish),
        *((f"SUB {each}", f"SUB {each} s{number}\r\n".encode()) for number, each in enumerate(subscribe)),
    ]
    for label, data in steps:
        if not fenced(t, wire, label, data):
            return


def fenced(t: Script, wire: Wire, label: str, data: bytes = b"") -> bool:
    """Send, and record what is said up to the answer to a PING; return False if the connection ended."""
    try:
        wire.send(data + b"PING\r\n")
        frames = heard(wire)
    except OSError:
        frames = [Frame("CLOSED")]
    t.frames(label, frames)
    return not frames or frames[-1].verb != "CLOSED"


def claims_answer(t: Script, frame: Frame) -> Any:
    """Return what a request about tokens was answered, without what tells of the server."""
    if not frame.data.startswith(b"{"):
        return t.show(frame)
    answer = frame.json()
    answer.pop("server", None)
    return answer
