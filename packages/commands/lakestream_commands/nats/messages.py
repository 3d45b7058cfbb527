"""`lakestream pub`, `sub` and `request`.

Belongs here: the three commands, and how a message is shown.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakestream.cli.server_options import Server, with_server
from lakestream_commands.nats import shown
from lakestream_commands.nats.session import TIMEOUT_S, ApiRefused, CommandFailed, NatsSession, over_nats

if TYPE_CHECKING:
    from nats.aio.msg import Msg

NO_STREAM = 10059

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject.")]
Body = Annotated[str | None, typer.Argument(metavar="[BODY]", help="Payload. Without it, read stdin.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Header to add; may be repeated.")
]
Count = Annotated[int, typer.Option("--count", min=1, help="Number of messages to send.")]
Stdin = Annotated[bool, typer.Option("--force-stdin", help="Read the payload from stdin, even if it is a terminal.")]
SendOn = Annotated[
    str, typer.Option("--send-on", metavar="eof|newline", help="With `newline`, send each line as a message.")
]
Templates = Annotated[
    bool, typer.Option(help="Replace {{Count}}, {{ID}}, {{Time}}, {{TimeStamp}}, {{Unix}}, {{UnixNano}} in it.")
]


@with_server
def pub(
    server: Server,
    subject: Subject,
    body: Body = None,
    header: Headers = None,
    reply: Annotated[str, typer.Option("--reply", metavar="SUBJECT", help="Reply subject.")] = "",
    count: Count = 1,
    sleep: Annotated[str, typer.Option("--sleep", metavar="DURATION", help="Pause between messages.")] = "",
    jetstream: Annotated[
        bool, typer.Option("--jetstream", "-J", help="Wait for the stream's ack of each message.")
    ] = False,
    create: Annotated[
        str, typer.Option("--create", metavar="STREAM", help="Create this stream if there is none. Implies -J.")
    ] = "",
    force_stdin: Stdin = False,
    send_on: SendOn = "eof",
    templates: Templates = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Publish messages."""
    bodies = _bodies(body, force_stdin, send_on)
    pause = shown.duration(sleep) / 1e9 if sleep else 0.0
    headers = _headers(header)
    say: Callable[[str], None] = (lambda text: None) if quiet else (lambda text: print(text, flush=True))

    async def work(session: NatsSession) -> None:
        if create:
            await _create(session, create, subject, say)
        js, sent = session.client.jetstream(timeout=TIMEOUT_S), 0
        for data in bodies:
            for _ in range(count):
                if sent and pause:
                    await asyncio.sleep(pause)
                sent += 1
                to, payload = (_filled(subject, sent), _filled_bytes(data, sent)) if templates else (subject, data)
                if jetstream or create:
                    ack = await js.publish(to, payload, headers=headers)
                    again = " Duplicate" if ack.duplicate else ""
                    say(f'{shown.clock()} Published {len(payload)} bytes to "{to}"')
                    say(f"{shown.clock()} Stored in Stream: {ack.stream} Sequence: {ack.seq}{again}")
                else:
                    await session.client.publish(to, payload, reply=reply, headers=headers)
                    say(f'{shown.clock()} Published {len(payload)} bytes to "{to}"')
        await session.flush()

    over_nats(server, work)


async def _create(session: NatsSession, name: str, subject: str, say: Callable[[str], None]) -> None:
    """Create a stream for a subject, unless there is one of this name."""
    try:
        await session.api(f"STREAM.INFO.{name}")
    except ApiRefused as refused:
        if refused.code != NO_STREAM:
            raise
        first, dot, _ = subject.partition(".")
        subjects = [f"{first}.>" if dot else first]
        await session.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "allow_direct": True})
        say(f"{shown.clock()} Stream {name} was created for {subjects[0]}")


@with_server
def sub(
    server: Server,
    asked: Annotated[list[str] | None, typer.Argument(metavar="SUBJECT...", help="Subjects to subscribe to.")] = None,
    queue: Annotated[str, typer.Option("--queue", help="Share the messages among this group.")] = "",
    count: Annotated[int, typer.Option("--count", min=0, help="Stop after this many messages.")] = 0,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="Stop after a pause of this length.")] = "",
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print payloads only.")] = False,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Leave out payloads.")] = False,
    subjects_only: Annotated[bool, typer.Option("--subjects-only", help="Print subjects only.")] = False,
    timestamp: Annotated[
        bool, typer.Option("--timestamp", "-t", help="Print the time at which each message arrived.")
    ] = False,
    stream: Annotated[str, typer.Option("--stream", help="Read this stream, by default only new messages.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Begin with the first stored message.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Read from the stream, only new messages.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Begin with the last stored message.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="Begin with stored messages of this age.")
    ] = "",
    start: Annotated[
        int, typer.Option("--start-sequence", min=0, help="Begin with the stored message of this sequence.")
    ] = 0,
    last_per_subject: Annotated[
        bool, typer.Option("--last-per-subject", help="Begin with the last stored message of each subject.")
    ] = False,
    terminate: Annotated[
        bool, typer.Option("--terminate-at-end", "-T", help="Stop at the last message of the stream.")
    ] = False,
) -> None:
    """Subscribe, and print the messages that arrive. With --stream or a start option, stored ones as well."""
    subjects, policy = asked or [], dict[str, Any]()
    if everything:
        policy = {"deliver_policy": "all"}
    elif last or last_per_subject:
        policy = {"deliver_policy": "last_per_subject" if last_per_subject else "last"}
    elif start:
        policy = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    elif since:
        policy = {"deliver_policy": "by_start_time", "opt_start_time": shown.moment(since)}
    elif stream or new:
        policy = {"deliver_policy": "new"}
    if not subjects and not stream:
        raise typer.BadParameter("name at least one subject, or --stream", param_hint="SUBJECT")
    patience = shown.duration(wait) / 1e9 if wait else None

    async def work(session: NatsSession) -> None:
        number = 0
        arriving = _stored(session, stream, subjects, policy) if policy else _live(session, subjects, queue, raw)
        async for message, left in _within(arriving, patience):
            number += 1
            if subjects_only:
                print(message.subject, flush=True)
            elif raw:
                shown.raw(message.data)
            else:
                _print(number, message, headers_only, timestamp)
            if number == count or (terminate and left == 0):
                return

    over_nats(server, work)


async def _within(arriving: AsyncIterator[tuple[Msg, int]], patience: float | None) -> AsyncIterator[tuple[Msg, int]]:
    """Yield what arrives until nothing does for so many seconds."""
    while True:
        try:
            yield await asyncio.wait_for(anext(arriving), patience)
        except (TimeoutError, StopAsyncIteration):
            return


async def _live(session: NatsSession, subjects: list[str], queue: str, quiet: bool) -> AsyncIterator[tuple[Msg, int]]:
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    for subject in subjects:
        await session.client.subscribe(subject, queue, cb=arrived.put)
    await session.flush()
    if not quiet:
        print(f"{shown.clock()} Subscribing on {', '.join(subjects)}", file=sys.stderr, flush=True)
    while True:
        yield await arrived.get(), -1


async def _stored(
    session: NatsSession, stream: str, subjects: list[str], policy: dict[str, Any]
) -> AsyncIterator[tuple[Msg, int]]:
    """Yield messages of a stream, each with the number of those behind it."""
    from nats.js.api import ConsumerConfig

    name = stream or await _stream_of(session, subjects[0])
    config = ConsumerConfig.from_response({**policy, "filter_subjects": subjects or None})
    if not (await session.api(f"STREAM.INFO.{name}"))["state"]["messages"] and policy["deliver_policy"] != "new":
        print(f"{shown.clock()} Stream {name} has no messages yet", file=sys.stderr, flush=True)
    js = session.client.jetstream(timeout=TIMEOUT_S)
    subscription = await js.subscribe(">", stream=name, config=config, ordered_consumer=True)
    while True:
        message = await subscription.next_msg(timeout=None)
        yield message, message.metadata.num_pending


async def _stream_of(session: NatsSession, subject: str) -> str:
    names = await session.pages("STREAM.NAMES", "streams", {"subject": subject})
    if len(names) != 1:
        what = "no stream has" if not names else f"{len(names)} streams have"
        raise CommandFailed(f"{what} messages of {subject}; name one with --stream")
    return str(names[0])


@with_server
def request(
    server: Server,
    subject: Subject,
    body: Body = None,
    header: Headers = None,
    replies: Annotated[
        int, typer.Option("--replies", min=0, help="Number of replies to wait for (0: until the timeout).")
    ] = 1,
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="Time to wait for answers.")] = "5s",
    count: Count = 1,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print payloads only.")] = False,
    force_stdin: Stdin = False,
    send_on: SendOn = "eof",
    templates: Templates = True,
) -> None:
    """Send requests, and print the answers."""
    bodies, headers, seconds = _bodies(body, force_stdin, send_on), _headers(header), shown.duration(timeout) / 1e9

    async def work(session: NatsSession) -> None:
        inbox = session.client.new_inbox()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        await session.client.subscribe(inbox, cb=arrived.put)
        sent = 0
        for data in bodies:
            for _ in range(count):
                sent += 1
                payload = _filled_bytes(data, sent) if templates else data
                if not raw:
                    print(f'{shown.clock()} Sending request on "{subject}"', file=sys.stderr, flush=True)
                began = time.monotonic()
                await session.client.publish(subject, payload, reply=inbox, headers=headers)
                got = 0
                while not replies or got < replies:
                    left = began + seconds - time.monotonic()
                    try:
                        answer = await asyncio.wait_for(arrived.get(), max(left, 0))
                    except TimeoutError:
                        session.check()
                        if replies:
                            raise CommandFailed(f"{subject}: no answer within {seconds:g} s") from None
                        break
                    if answer.headers and answer.headers.get("Status") == "503":
                        raise CommandFailed(f"{subject}: no responders are available")
                    got += 1
                    _answer(answer, (time.monotonic() - began) * 1000, raw)

    over_nats(server, work)


def _answer(message: Msg, milliseconds: float, raw: bool) -> None:
    if raw:
        shown.raw(message.data)
        return
    print(f"{shown.clock()} Received with rtt {milliseconds:.3f}ms", file=sys.stderr, flush=True)
    for name, value in shown.headers_of(message):
        print(f"{name}: {value}")
    print(f"{shown.payload(message.data)}\n", flush=True)


def _print(number: int, message: Msg, headers_only: bool, timestamp: bool) -> None:
    when = f" @ {shown.clock()}" if timestamp else ""
    found = message.headers or {}
    stored = f" Stream: {message.metadata.stream} seq {message.metadata.sequence.stream}" if _is_stored(message) else ""
    reply = f' with reply "{message.reply}"' if message.reply and not stored else ""
    print(f'[#{number}]{when} Received{stored} on "{message.subject}"{reply}')
    for name, value in shown.headers_of(message):
        print(f"{name}: {value}")
    if not headers_only:
        print(("\n" if found else "") + shown.payload(message.data))
    print(flush=True)


def _is_stored(message: Msg) -> bool:
    return (message.reply or "").startswith("$JS.ACK.")


def _headers(given: list[str] | None) -> dict[str, str] | None:
    found = {}
    for each in given or ():
        name, colon, value = each.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{each!r} is not NAME:VALUE", param_hint="--header")
        found[name.strip()] = value.strip()
    return found or None


def _bodies(body: str | None, force_stdin: bool, send_on: str) -> Iterator[bytes]:
    """Return the payloads: the argument, or stdin unless it is a terminal, whole or by lines."""
    if send_on not in ("eof", "newline"):
        raise typer.BadParameter(f"{send_on!r} is neither eof nor newline", param_hint="--send-on")
    if body is not None and not force_stdin:
        return iter([body.encode()])
    if body is None and not force_stdin and sys.stdin.isatty():
        return iter([b""])
    if send_on == "newline":
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    return iter([sys.stdin.buffer.read().rstrip(b"\n")])


def _filled(text: str, number: int) -> str:
    """Return a text with its placeholders replaced."""
    if "{{" not in text:
        return text
    now = time.time()
    values = {
        "Count": number,
        "ID": uuid.uuid4().hex,
        "Time": time.strftime("%H:%M:%S"),
        "TimeStamp": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        "Unix": int(now),
        "UnixNano": time.time_ns(),
    }
    for name, value in values.items():
        for spelling in (f"{{{{{name}}}}}", f"{{{{.{name}}}}}", f"{{{{ {name} }}}}", f"{{{{ .{name} }}}}"):
            text = text.replace(spelling, str(value))
    return text


def _filled_bytes(data: bytes, number: int) -> bytes:
    if b"{{" not in data:
        return data
    try:
        return _filled(data.decode(), number).encode()
    except UnicodeDecodeError:
        return data
