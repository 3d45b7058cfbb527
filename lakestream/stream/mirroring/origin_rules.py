"""Rules of mirrors and sources in stream configurations.

Belongs here: what STREAM.CREATE and STREAM.UPDATE refuse of `mirror` and `sources`, in the order in which nats-server
2.15.1 checks it (docs/internals/streams.md#mirrors-and-sources), and what a mirror takes over from its origin's
configuration. Origins are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from msgspec.structs import replace

from lakestream.protocol.api.errors import api_error, invalid
from lakestream.protocol.subjects import overlaps, valid_subject
from lakestream.protocol.transforms import Transform, TransformError, check_destination
from lakestream.stream.core.config import (
    ExternalStream,
    StreamConfig,
    StreamConsumerSource,
    StreamSource,
    SubjectTransformConfig,
    valid_name,
)
from lakestream.stream.mirroring.origin import key_of

Find = Callable[[str], StreamConfig | None]
"""Lookup of a stream configuration of the account by name; None if there is no such stream."""

_API = "$JS.API"


def checked_origins(config: StreamConfig, find: Find, *, pedantic: bool = False) -> StreamConfig:
    """Check mirror and sources. Return the configuration with what a mirror takes over from its origin.

    Args:
        config: as requested.
        find: finds the origins.
        pedantic: refuse with 10157 where a value that was given would be changed.

    Raises:
        ApiError: the first rule that is broken.
    """
    if config.mirror is not None:
        config = _checked_mirror(config, config.mirror, find, pedantic)
    if config.sources:
        _check_sources(config, find)
    _check_cycles(config, find)
    return config


def check_filters(config: StreamConfig) -> None:
    """Raise ApiError for an invalid filter of a new stream: checked after the limits of the account."""
    mirror = config.mirror
    if mirror is not None and _bad(mirror.filter_subject):
        raise api_error(10049, err=f"subject filter '{mirror.filter_subject}' for the mirror invalid subject")
    for source in config.sources:
        if _bad(source.filter_subject):
            raise api_error(10049, err=f"subject filter '{source.filter_subject}' for the source: invalid subject")


# ------------------------------------------------------------------------------------------------ mirrors
def _checked_mirror(config: StreamConfig, mirror: StreamSource, find: Find, pedantic: bool) -> StreamConfig:
    for refused, code in (
        (config.first_seq > 0, 10143),
        (bool(config.subjects), 10034),
        (bool(config.sources), 10031),
        (config.allow_msg_counter, 10173),
        (config.allow_atomic, 10198),
        (config.allow_batched, 10209),
        (config.allow_msg_schedules, 10186),
        (not _valid_consumer(mirror), 10213),
        (bool(mirror.filter_subject and mirror.subject_transforms), 10150),
    ):
        if refused:
            raise api_error(code)
    for count in range(1, len(mirror.subject_transforms) + 1):
        # For a mirror each transform is checked together with those before it; for a source all are checked first.
        _check_transforms(mirror.subject_transforms[count - 1 : count], 10151, 10154)
        if _overlap(mirror.subject_transforms[:count]):
            raise api_error(10152)
    if mirror.external is not None:
        _check_external(mirror.external)
        return config
    if not valid_name(mirror.name):
        raise api_error(10142)
    origin = find(mirror.name)
    if origin is None:
        return config
    if _too_small(config, origin):
        raise api_error(10030)
    if config.mirror_direct != origin.allow_direct:
        if pedantic:
            raise api_error(10157, err="origin stream has direct get set, mirror has it disabled")
        config = replace(config, mirror_direct=origin.allow_direct)
    return config


# ------------------------------------------------------------------------------------------------ sources
def _check_sources(config: StreamConfig, find: Find) -> None:
    if config.allow_msg_schedules:
        raise api_error(10187)
    known: set[str] = set()
    consumers: set[str] = set()
    for source in config.sources:
        _check_source(source)
        key = key_of(source)
        if key in known:
            raise api_error(10140)
        known.add(key)
        if source.consumer is not None:
            index = key.partition(" ")[0]
            if index in consumers:
                raise api_error(10216)
            consumers.add(index)
    taken: list[str] = []
    for source in config.sources:
        found = find(source.name) if source.external is None else None
        if found is not None:
            taken += found.subjects
            if _too_small(config, found):
                raise api_error(10046)
    for source in config.sources:
        if source.external is not None:
            _check_external(source.external, taken)


def _check_source(source: StreamSource) -> None:
    """Raise ApiError for the first rule that a source breaks by itself."""
    if not valid_name(source.name):
        raise api_error(10141)
    if source.filter_subject and source.subject_transforms:
        raise api_error(10144)
    _check_transforms(source.subject_transforms, 10145, 10146)
    if _overlap(source.subject_transforms):
        raise api_error(10147)
    if not _valid_consumer(source):
        raise api_error(10215)


# ------------------------------------------------------------------------------------------------ both
def _bad(pattern: str) -> bool:
    return bool(pattern) and not valid_subject(pattern.encode())


def _too_small(config: StreamConfig, origin: StreamConfig) -> bool:
    """Return True if the origin may hold messages above max_msg_size."""
    return 0 < config.max_msg_size < origin.max_msg_size


def _valid_consumer(source: StreamSource) -> bool:
    """Return True if a prepared consumer has valid names and no option is set that needs a new consumer."""
    prepared = source.consumer
    if prepared is None:
        return True
    if source.opt_start_seq or source.opt_start_time is not None or source.filter_subject:
        return False
    return _named(prepared)


def _named(prepared: StreamConsumerSource) -> bool:
    return valid_name(prepared.name) and valid_subject(prepared.deliver_subject.encode(), wildcards=False)


def _check_transforms(transforms: Sequence[SubjectTransformConfig], src: int, dest: int) -> None:
    """Raise ApiError with the given code for an invalid source or destination."""
    for each in transforms:
        source, destination = each.src.encode(), each.dest.encode()
        if _bad(each.src):
            raise api_error(src, err=f"invalid subject {each.src}")
        if destination:
            try:
                check_destination(destination)
                Transform(source, destination)
            except TransformError as error:
                raise api_error(dest, err=error) from error


def _overlap(transforms: Sequence[SubjectTransformConfig]) -> bool:
    """Return True if the sources of two transforms overlap; transforms without a source are ignored."""
    sources = [each.src.encode() for each in transforms if each.src]
    return any(overlaps(one, other) for one, other in combinations(sources, 2))


def _check_external(external: ExternalStream, taken: Sequence[str] = ()) -> None:
    """Raise ApiError for invalid prefixes. `taken`: subjects of the streams of this account that are sources too."""
    api, deliver = external.api, external.deliver
    if deliver and not valid_subject(deliver.encode(), wildcards=False):
        raise api_error(10024, prefix=deliver)
    if api and not valid_subject(api.encode(), wildcards=False):
        raise invalid(f'stream external api prefix "{api}" must be a valid subject without wildcards')
    if api == _API:
        raise api_error(10021, prefix=api, subject=_API)
    for subject in taken if deliver else ():
        if overlaps(subject.encode(), f"{deliver}.>".encode()):
            raise api_error(10022, prefix=deliver, subject=subject)


def _check_cycles(config: StreamConfig, find: Find) -> None:
    """Raise ApiError if a message could come back to its stream.

    As in nats-server a source closes a cycle if its filter matches the subjects of the stream that has it, whatever its
    transforms are, and a mirror always closes one.
    """
    visited: set[str] = set()
    waiting = [config]
    while waiting:
        at = waiting.pop(0)
        if at.name in visited:
            continue
        visited.add(at.name)
        for source in at.sources:
            if source.external is not None:
                continue
            if source.name not in visited:
                waiting += _found(find, source.name)
            elif not source.filter_subject or _any_overlaps(at.subjects, source.filter_subject):
                raise invalid("detected cycle")
        if at.mirror is not None and at.mirror.external is None:
            if at.mirror.name in visited:
                raise invalid("detected cycle")
            waiting += _found(find, at.mirror.name)


def _found(find: Find, name: str) -> list[StreamConfig]:
    found = find(name)
    return [] if found is None else [found]


def _any_overlaps(subjects: Sequence[str], pattern: str) -> bool:
    return any(overlaps(subject.encode(), pattern.encode()) for subject in subjects)
