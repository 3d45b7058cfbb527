# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, embedsignature=True
"""Loops over many messages, compiled.

Belongs here: the functions of `lakestream.native.plain`, where each is documented, with the same results and the same
exceptions. Nothing here trusts its arguments: each offset is tested against its buffer before a byte of it is touched.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as open_file
from posix.unistd cimport close, fsync

import array as arrays
import os
from gc import get_referents

cdef enum:
    FIXED = 30  # bytes of a record before its subject
    FLAG_HEADER = 1
    MAX_SUBJECT = 0xFFFF
    SHORTEST = 11  # bytes of the shortest command: PUB, a subject of one byte, no payload
    FIELDS = 4  # numbers of one message in `places`
    SECOND = 19  # bytes of a time as text, without its fraction
    SLOTS = 128  # subjects that a run recognises again, beside the last one
    SLOT_SHIFT = 57  # of a hash, whose best bits are the upper ones
    LINE = 10  # bytes of the first line of a header block
    MAX_HEAD = 0xFFFF  # bytes of a header block in a run
    MAX_OWN = 32  # names of `Nats-` headers in a run
    MOST_KEPT = 1 << 16  # bytes of columns that a reader keeps for the next payload
    ID_CHUNKS = 1 << 12  # number of chunks whose ids one table can have
    LONG = 1 << 18  # bytes whose crc other threads need not wait for (256 KiB)
    AHEAD = 8  # ids whose slots are fetched before they are looked at

ctypedef const uint32_t *Numbers
cdef uint64_t PRIME = (1 << 61) - 1
cdef uint32_t TAG = 0xFFFFF000  # the bits of a slot that are those of an id's hash
cdef Py_ssize_t MAX_OFFSET = 0xFFFFFFFF
cdef array.array NUMBERS = arrays.array("I")  # stays empty


cdef extern from *:
    """
    #if defined(__GNUC__)
    #define lakestream_prefetch(at) __builtin_prefetch(at)
    #else
    #define lakestream_prefetch(at) ((void) (at))
    #endif
    """
    void prefetch "lakestream_prefetch"(const void *at) noexcept nogil

cdef extern from "Python.h":
    bint PyObject_GC_IsTracked(PyObject *)
    void PyObject_GC_Track(void *)
    void PyObject_GC_UnTrack(void *)

cdef extern from *:
    """
    #ifndef LAKESTREAM_SOURCES
    #define LAKESTREAM_SOURCES 0
    #endif
    #ifdef __APPLE__
    #define sync_data fsync
    #else
    #define sync_data fdatasync
    #endif
    """
    uint32_t LAKESTREAM_SOURCES
    int sync_data(int fd) nogil

SOURCES = LAKESTREAM_SOURCES  # CRC-32 of the sources, from setup.py

cdef extern from "crc32.h" nogil:
    void crc_prepare()
    uint32_t crc32_of(const uint8_t *text, size_t length)
    uint32_t crc32_on(uint32_t before, const uint8_t *text, size_t length)


crc_prepare()


cdef inline int digits(uint64_t number) noexcept nogil:
    """Return how many decimal digits `number` has."""
    cdef int count = 1
    while number >= 10000:
        number //= 10000
        count += 4
    return count + (number >= 10) + (number >= 100) + (number >= 1000)


cdef inline char *put_number(char *out, uint64_t number) noexcept nogil:
    """Write `number` in decimal; return the position after it."""
    cdef char *end = out + digits(number)
    cdef char *at = end
    while True:
        at -= 1
        at[0] = <char> (48 + number % 10)
        number //= 10
        if number == 0:
            return end


cdef inline char *put(char *out, const void *text, Py_ssize_t length) noexcept nogil:
    """Copy `length` bytes; return the position after them."""
    memcpy(out, text, length)
    return out + length


cdef Numbers checked(
    bytes buf, array.array places, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t subjects=0xFFFFFFFF
) except? NULL:
    """Return the numbers of a run's messages. Raise IndexError for messages that are not there."""
    cdef Py_ssize_t count = len(places) // FIELDS, size = PyBytes_GET_SIZE(buf), at
    cdef Numbers numbers = <Numbers> places.data.as_uints
    if places.ob_descr.typecode != c"I" or sizeof(unsigned int) != 4:
        raise TypeError("places is no array of 'I'")
    if not 0 <= begin <= end <= min(count, subjects):
        raise IndexError(f"messages {begin} to {end} of {count}")
    for at in range(FIELDS * begin, FIELDS * end, 2):
        if <int64_t> numbers[at] + numbers[at + 1] > size:
            raise IndexError(f"a message at {numbers[at]} does not lie in {size} bytes")
    return numbers


# ---------------------------------------------------------------------- runs of publishes
cdef inline Py_ssize_t word_end(const uint8_t *text, Py_ssize_t at, Py_ssize_t limit) noexcept nogil:
    """Return the position after the word at `at`, at most `limit`."""
    while at < limit and text[at] > 32:
        at += 1
    return at


cdef inline bint begins(const uint8_t *text, Py_ssize_t length, bytes head) noexcept:
    """Return True if the word begins with `head`, which is not empty."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head)
    return 0 < size <= length and text[0] == <uint8_t> head[0] and memcmp(text, PyBytes_AS_STRING(head), size) == 0


cdef bytes shared(PyObject **slots, const uint8_t *text, Py_ssize_t length):
    """Return `length` bytes of text: the object that an earlier call put into one of SLOTS slots, or a new one.

    The slots do not own what they hold: the caller keeps each result while it uses them.
    """
    cdef uint64_t word = 0, hashed = <uint64_t> length
    cdef Py_ssize_t at = 0
    cdef bytes found
    if length < 8:
        memcpy(&word, text, length)
    else:
        while at + 8 < length:
            memcpy(&word, text + at, 8)
            hashed = (hashed ^ word) * <uint64_t> 0x9E3779B97F4A7C15U
            hashed ^= hashed >> 29
            at += 8
        memcpy(&word, text + length - 8, 8)
    hashed = (hashed ^ word) * <uint64_t> 0x9E3779B97F4A7C15U
    slots += hashed >> SLOT_SHIFT
    if slots[0] != NULL:
        found = <bytes> slots[0]
        if PyBytes_GET_SIZE(found) == length and memcmp(PyBytes_AS_STRING(found), text, length) == 0:
            return found
    found = PyBytes_FromStringAndSize(<const char *> text, length)
    slots[0] = <PyObject *> found
    return found


cdef inline int64_t number(const uint8_t *text, Py_ssize_t *at, Py_ssize_t stop) noexcept nogil:
    """Return the number of at most nine digits at `at`, and move behind it; -1 if there is none."""
    cdef Py_ssize_t begin = at[0], limit = min(stop, begin + 9)
    cdef int64_t value = 0
    while at[0] < limit and 48 <= text[at[0]] <= 57:
        value = value * 10 + text[at[0]] - 48
        at[0] += 1
    return value if at[0] > begin else -1


cdef inline const uint8_t *line_end(const uint8_t *at, const uint8_t *stop) noexcept nogil:
    """Return the position of the next CR LF, `stop` without one."""
    while True:
        at = <const uint8_t *> memchr(at, 13, stop - at)
        if at == NULL or stop - at < 2:
            return stop
        if at[1] == 10:
            return at
        at += 1


cdef bint gather_own(const uint8_t *block, Py_ssize_t length, list own, bytes apart) except -1:
    """Add the names of the `Nats-` headers of a block to `own`. Return False if it has the header `apart`, or there are
    too many names."""
    cdef const uint8_t *stop = block + length
    cdef const uint8_t *line = line_end(block, stop) + 2
    cdef const uint8_t *end
    cdef const uint8_t *colon
    cdef Py_ssize_t size
    cdef bytes name
    while stop - line > 5:
        end = line_end(line, stop)
        if memcmp(line, b"Nats-", 5) == 0:
            colon = <const uint8_t *> memchr(line, 58, end - line)
            if colon != NULL:
                size = colon - line
                for name in own:
                    if PyBytes_GET_SIZE(name) == size and memcmp(PyBytes_AS_STRING(name), line, size) == 0:
                        break
                else:
                    name = PyBytes_FromStringAndSize(<const char *> line, size)
                    if name == apart or len(own) >= MAX_OWN:
                        return False
                    own.append(name)
        line = end + 2
    return True


def parse_run(
    bytes buf not None, Py_ssize_t position, Py_ssize_t max_word, Py_ssize_t max_payload, bint headers,
    bytes subjects not None, bytes replies not None, uint8_t mark, bytes header not None,
):
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf)
    cdef const uint8_t *last_text = NULL
    cdef Py_ssize_t stop = min(PyBytes_GET_SIZE(buf), MAX_OFFSET)
    cdef Py_ssize_t at, limit, second, subject_at, subject_length, reply_at, reply_length, count = 0, room = 64
    cdef Py_ssize_t last_length = 0, payload_bytes = 0
    cdef int64_t size, head
    cdef PyObject *slots[SLOTS]
    cdef bytes subject = None
    cdef bint fresh, headed
    cdef list found = [], starts = [], own = []
    cdef array.array places, heads
    cdef uint32_t *place
    if position < 0:
        raise IndexError(f"position {position}")
    max_word = min(max_word, MAX_OFFSET)
    if stop - position < SHORTEST or text[position] not in (72, 80):
        return None
    memset(slots, 0, sizeof(slots))
    places, heads = array.clone(NUMBERS, room * FIELDS, False), NUMBERS
    while stop - position >= SHORTEST:
        headed = headers and memcmp(text + position, b"HPUB ", 5) == 0
        if not headed and memcmp(text + position, b"PUB ", 4) != 0:
            break
        subject_at = position + 4 + headed
        at = subject_at + last_length
        fresh = not (last_length and at < stop and text[at] == 32 and memcmp(last_text, text + subject_at, last_length) == 0)
        if fresh:
            at = word_end(text, subject_at, min(stop, subject_at + max_word))
        subject_length = at - subject_at
        if not subject_length or at == stop or text[at] != 32 or (fresh and begins(text + subject_at, subject_length, subjects)):
            break
        at += 1
        reply_at = reply_length = 0
        limit = word_end(text, at, min(stop, at + max_word))
        if limit > at and limit < stop and text[limit] == 32:
            second = limit + 1
            if headed:  # two numbers follow a reply
                second = word_end(text, second, min(stop, second + 10))
            if not headed or (second < stop and text[second] == 32):
                reply_at, reply_length = at, limit - at
                if begins(text + at, reply_length, replies) or memchr(text + at, mark, reply_length) != NULL:
                    break
                at = limit + 1
        head = 0
        if headed:
            head = number(text, &at, stop)
            if head < LINE or head > MAX_HEAD or at == stop or text[at] != 32:
                break
            at += 1
        size = number(text, &at, stop)
        if size < head or stop - at < size + 4 or size > max_payload:
            break
        if text[at] != 13 or text[at + 1] != 10 or text[at + 2 + size] != 13 or text[at + 3 + size] != 10:
            break
        at += 2
        if headed and (memcmp(text + at, b"NATS/1.0\r\n", LINE) != 0 or not gather_own(text + at, head, own, header)):
            break
        if fresh:
            subject = shared(slots, text + subject_at, subject_length)
            last_text, last_length = <const uint8_t *> PyBytes_AS_STRING(subject), subject_length
            starts.append(count)
        found.append(subject)
        if count == room:
            room *= 2
            array.resize(places, room * FIELDS)
            if heads is not NUMBERS:
                array.resize(heads, room)
        if headed and heads is NUMBERS:
            heads = array.clone(NUMBERS, room, True)
        if heads is not NUMBERS:
            heads.data.as_uints[count] = <uint32_t> head
        place = places.data.as_uints + count * FIELDS
        place[0], place[1] = <uint32_t> reply_at, <uint32_t> reply_length
        place[2], place[3] = <uint32_t> (at + head), <uint32_t> (size - head)
        count += 1
        payload_bytes += size
        position = at + size + 2
    if count == 0:
        return None
    array.resize(places, count * FIELDS)
    if heads is not NUMBERS:
        array.resize(heads, count)
    return position, found, starts, places, payload_bytes, heads, own


cdef Numbers checked_heads(array.array heads, Numbers places, Py_ssize_t begin, Py_ssize_t end) except? NULL:
    """Return the lengths of header blocks, NULL without any. Raise IndexError for a block that is not there."""
    cdef Numbers lengths = <Numbers> heads.data.as_uints
    cdef Py_ssize_t at
    if not len(heads):
        return NULL
    if heads.ob_descr.typecode != c"I":
        raise TypeError("heads is no array of 'I'")
    if end > len(heads):
        raise IndexError(f"messages {begin} to {end} of {len(heads)}")
    for at in range(begin, end):
        if lengths[at] > places[at * FIELDS + 2]:
            raise IndexError("a header block lies before its buffer")
    return lengths


def header_values(
    bytes buf not None, array.array places not None, array.array heads not None, Py_ssize_t begin, Py_ssize_t end,
    bytes name not None,
):
    cdef Numbers numbers = checked(buf, places, begin, end)
    cdef Numbers lengths = checked_heads(heads, numbers, begin, end)
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf)
    cdef const uint8_t *line
    cdef const uint8_t *stop
    cdef const uint8_t *tail
    cdef Py_ssize_t at, size = PyBytes_GET_SIZE(name)
    cdef bytes value = b""
    cdef list values = [None] * (end - begin)
    if lengths == NULL:
        return values
    for at in range(begin, end):
        stop = text + numbers[at * FIELDS + 2]
        line = line_end(stop - lengths[at], stop) + 2
        while stop - line > size:
            tail = line_end(line, stop)
            if tail - line > size and line[size] == 58 and memcmp(line, PyBytes_AS_STRING(name), size) == 0:
                line += size + 1
                while line < tail and line[0] == 32:
                    line += 1
                if PyBytes_GET_SIZE(value) != tail - line or memcmp(PyBytes_AS_STRING(value), line, tail - line) != 0:
                    value = PyBytes_FromStringAndSize(<const char *> line, tail - line)
                values[at - begin] = value
                break
            line = tail + 2
    return values


def choose_run(
    bytes buf not None, list subjects not None, array.array places not None, array.array heads not None,
    list positions not None,
):
    cdef Py_ssize_t count = len(positions), messages = len(subjects), at = 0, position, total = 0, head
    cdef Numbers numbers = checked(buf, places, 0, len(places) // FIELDS), place
    cdef Numbers lengths = checked_heads(heads, numbers, 0, min(len(heads), len(places) // FIELDS))
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef array.array some = array.clone(NUMBERS, count * FIELDS, False)
    cdef array.array blocks = NUMBERS if lengths == NULL else array.clone(NUMBERS, count, False)
    cdef uint32_t *made = some.data.as_uints
    cdef uint64_t size = 0
    cdef char *begin
    cdef char *out
    cdef bytes subject, last = None, copy
    cdef list chosen = [], starts = []
    messages = min(messages, len(places) // FIELDS, len(heads) if lengths != NULL else messages)
    for position in positions:
        if not 0 <= position < messages:
            raise IndexError(f"message {position} of {messages}")
        place = numbers + position * FIELDS
        total += place[1] + place[3] + (lengths[position] if lengths != NULL else 0)
    if total > MAX_OFFSET:
        raise IndexError(f"{total} bytes are too many")
    copy = PyBytes_FromStringAndSize(NULL, total)
    begin = out = PyBytes_AS_STRING(copy)
    for position in positions:
        subject = <bytes?> subjects[position]
        if subject is not last and subject != last:
            starts.append(at)
            last = subject
        chosen.append(subject)
        place, head = numbers + position * FIELDS, 0
        made[0], made[1], made[3] = <uint32_t> (out - begin) if place[1] else 0, place[1], place[3]
        out = put(out, text + place[0], place[1])
        if lengths != NULL:
            head = lengths[position]
            blocks.data.as_uints[at] = <uint32_t> head
        made[2] = <uint32_t> (out - begin + head)
        out = put(out, text + place[2] - head, head + place[3])
        size += head + place[3]
        made += FIELDS
        at += 1
    return copy, chosen, starts, some, size, blocks


def crc32(data not None, uint32_t value=0, /):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len > LONG:
        with nogil:
            value = crc32_on(value, <const uint8_t *> view.buf, view.len)
    else:
        value = crc32_on(value, <const uint8_t *> view.buf, view.len)
    PyBuffer_Release(&view)
    return value


def encode_record(uint64_t seq, int64_t time_ns, bytes subject not None, bytes header not None, bytes data not None):
    cdef Py_ssize_t subject_length = PyBytes_GET_SIZE(subject), head = PyBytes_GET_SIZE(header)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if subject_length > MAX_SUBJECT:
        raise ValueError(f"a subject of {subject_length} bytes")
    if head > 0xFFFFFFFF or size > 0xFFFFFFFF:
        raise OverflowError(f"a message of {head} and {size} bytes")
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, FIXED + (4 + head if head else 0) + subject_length + size)
    cdef char *record = PyBytes_AS_STRING(encoded)
    cdef char *out = record + FIXED
    cdef uint16_t subject_field = <uint16_t> subject_length, flags = FLAG_HEADER
    cdef uint32_t head_field = <uint32_t> head, size_field = <uint32_t> size, crc
    memset(record, 0, FIXED)
    memcpy(record + 4, &seq, 8)
    memcpy(record + 12, &time_ns, 8)
    memcpy(record + 20, &subject_field, 2)
    memcpy(record + 24, &size_field, 4)
    if head:
        memcpy(record + 22, &flags, 2)
        out = put(out, &head_field, 4)
    out = put(put(out, PyBytes_AS_STRING(subject), subject_length), PyBytes_AS_STRING(header), head)
    out = put(out, PyBytes_AS_STRING(data), size)
    crc = crc32_of(<const uint8_t *> record + 4, out - record - 4)
    memcpy(record, &crc, 4)
    return encoded


def encode_run(
    bytes buf not None, list subjects not None, array.array places not None, array.array heads not None,
    Py_ssize_t begin, Py_ssize_t end, uint64_t seq, int64_t time_ns, int64_t step_ns,
):
    cdef Numbers numbers = checked(buf, places, begin, end, len(subjects)), place
    cdef Numbers blocks = checked_heads(heads, numbers, begin, end)
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t total = 0, at, length, subject_length
    cdef uint16_t subject_field, flags = FLAG_HEADER
    cdef uint32_t crc, head = 0
    cdef char *out
    cdef char *record
    cdef bytes subject, records
    cdef list lengths = []
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes?> subjects[at]
        subject_length = PyBytes_GET_SIZE(subject)
        if subject_length > MAX_SUBJECT:
            raise ValueError(f"a subject of {subject_length} bytes")
        length = FIXED + subject_length + place[3]
        if blocks != NULL and blocks[at]:
            length += 4 + blocks[at]
        lengths.append(length)
        total += length
    records = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(records)
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes> subjects[at]
        subject_length = PyBytes_GET_SIZE(subject)
        record, subject_field = out, <uint16_t> subject_length
        memset(record, 0, FIXED)
        memcpy(record + 4, &seq, 8)
        memcpy(record + 12, &time_ns, 8)
        memcpy(record + 20, &subject_field, 2)
        memcpy(record + 24, &place[3], 4)
        out, head = record + FIXED, blocks[at] if blocks != NULL else 0
        if head:
            memcpy(record + 22, &flags, 2)
            out = put(out, &head, 4)
        out = put(out, PyBytes_AS_STRING(subject), subject_length)
        out = put(out, text + place[2] - head, head + place[3])  # a payload follows its header block
        crc = crc32_of(<const uint8_t *> record + 4, out - record - 4)
        memcpy(record, &crc, 4)
        seq, time_ns = seq + 1, time_ns + step_ns
    return records, lengths


cdef struct Texts:
    const int32_t *ends
    const char *content
    Py_ssize_t count
    Py_ssize_t size


cdef inline Py_ssize_t text_of(Texts *texts, int64_t row, const char **text) noexcept nogil:
    """Return the length of a text and set where it begins; -1 if it does not lie in the content."""
    cdef int64_t begin = texts.ends[row], end = texts.ends[row + 1]
    if begin < 0 or end < begin or end > texts.size:
        return -1
    text[0] = texts.content + begin
    return <Py_ssize_t> (end - begin)


def encode_rows(
    object order not None, object seqs not None, object times not None, object subject_ends not None,
    object subjects not None, object head_ends not None, object heads not None, object data_ends not None,
    object data not None,
):
    cdef Py_buffer views[9]
    cdef int held = 0
    cdef Py_ssize_t count, rows, at, length, head_length, size
    cdef int64_t row, total = 0, wrong = 0
    cdef Texts names, blocks, payloads
    cdef const int64_t *chosen
    cdef const char *name = NULL
    cdef const char *head = NULL
    cdef const char *payload = NULL
    cdef array.array offsets, lengths
    cdef uint32_t *offset_of
    cdef uint32_t *length_of
    cdef uint32_t field, crc
    cdef uint16_t subject_field, flags = FLAG_HEADER
    cdef char *out
    cdef char *record
    cdef bytes encoded
    try:
        for part in (order, seqs, times, subject_ends, subjects, head_ends, heads, data_ends, data):
            PyObject_GetBuffer(part, &views[held], PyBUF_SIMPLE)
            held += 1
        count, rows = views[0].len // 8, views[1].len // 8
        chosen = <const int64_t *> views[0].buf
        names.ends, names.content = <const int32_t *> views[3].buf, <const char *> views[4].buf
        names.count, names.size = views[3].len // 4, views[4].len
        blocks.ends, blocks.content = <const int32_t *> views[5].buf, <const char *> views[6].buf
        blocks.count, blocks.size = views[5].len // 4, views[6].len
        payloads.ends, payloads.content = <const int32_t *> views[7].buf, <const char *> views[8].buf
        payloads.count, payloads.size = views[7].len // 4, views[8].len
        if views[2].len // 8 != rows or names.count != rows + 1 or payloads.count != rows + 1:
            raise ValueError("the columns have different lengths")
        if blocks.count and blocks.count != rows + 1:
            raise ValueError("the columns have different lengths")
        offsets, lengths = array.clone(NUMBERS, count, False), array.clone(NUMBERS, count, False)
        offset_of, length_of = <uint32_t *> offsets.data.as_uints, <uint32_t *> lengths.data.as_uints
        with nogil:
            for at in range(count):
                row = chosen[at]
                if row < 0 or row >= rows:
                    wrong = 1
                    break
                length, size = text_of(&names, row, &name), text_of(&payloads, row, &payload)
                head_length = text_of(&blocks, row, &head) if blocks.count else 0
                if length < 0 or length > MAX_SUBJECT or size < 0 or head_length < 0 or total > MAX_OFFSET:
                    wrong = 1
                    break
                offset_of[at] = <uint32_t> total
                length_of[at] = <uint32_t> (FIXED + length + (4 + head_length if head_length else 0) + size)
                total += length_of[at]
        if wrong or total > MAX_OFFSET:
            raise ValueError("a row is no message")
        encoded = PyBytes_FromStringAndSize(NULL, total)
        out = PyBytes_AS_STRING(encoded)
        with nogil:
            for at in range(count):
                row, record = chosen[at], out
                length, size = text_of(&names, row, &name), text_of(&payloads, row, &payload)
                head_length = text_of(&blocks, row, &head) if blocks.count else 0
                memset(record, 0, FIXED)
                memcpy(record + 4, <const char *> views[1].buf + 8 * row, 8)
                memcpy(record + 12, <const char *> views[2].buf + 8 * row, 8)
                subject_field, field = <uint16_t> length, <uint32_t> size
                memcpy(record + 20, &subject_field, 2)
                memcpy(record + 24, &field, 4)
                out = record + FIXED
                if head_length:
                    memcpy(record + 22, &flags, 2)
                    field = <uint32_t> head_length
                    out = put(out, &field, 4)
                out = put(put(out, name, length), head, head_length)
                out = put(out, payload, size)
                crc = crc32_of(<const uint8_t *> record + 4, out - record - 4)
                memcpy(record, &crc, 4)
        return encoded, offsets, lengths
    finally:
        for at in range(held):
            PyBuffer_Release(&views[at])


# ---------------------------------------------------------------------- records
cdef struct Fields:
    uint32_t crc
    uint64_t seq
    int64_t time_ns
    uint32_t subject_length
    uint32_t header_length
    Py_ssize_t subject_at
    Py_ssize_t end
    bint flagged


cdef int read(bytes buf, Py_ssize_t offset, Py_ssize_t stop, Fields *fields) except -1:
    """Read the fixed part of the record at `offset`. Raise ValueError if the record does not end by `stop`."""
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf) + offset
    cdef uint16_t subject_length, flags
    cdef uint32_t data_length
    if stop - offset < FIXED:
        raise ValueError(offset, f"{stop - offset} bytes are left where at least {FIXED} belong")
    memcpy(&fields.crc, text, 4)
    memcpy(&fields.seq, text + 4, 8)
    memcpy(&fields.time_ns, text + 12, 8)
    memcpy(&subject_length, text + 20, 2)
    memcpy(&flags, text + 22, 2)
    memcpy(&data_length, text + 24, 4)
    fields.subject_at, fields.subject_length, fields.header_length = offset + FIXED, subject_length, 0
    fields.flagged = flags & FLAG_HEADER
    if fields.flagged:
        if stop - offset < FIXED + 4:
            raise ValueError(offset, "it is cut short")
        memcpy(&fields.header_length, text + FIXED, 4)
        fields.subject_at += 4
    fields.end = fields.subject_at + subject_length + <Py_ssize_t> fields.header_length + <Py_ssize_t> data_length
    if fields.end > stop:
        raise ValueError(offset, f"it claims {fields.end - offset} bytes where {stop - offset} are left")
    return 0


cdef object made(make, bytes buf, Py_ssize_t offset, Py_ssize_t stop, bint verify, Py_ssize_t *end):
    """Return `make` of the record at `offset`, and in `end` the position after it."""
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Fields fields
    read(buf, offset, stop, &fields)
    if verify and crc32_of(<const uint8_t *> text + offset + 4, fields.end - offset - 4) != fields.crc:
        raise ValueError(offset, "its crc does not match")
    end[0] = fields.end
    cdef Py_ssize_t header_at = fields.subject_at + fields.subject_length
    cdef Py_ssize_t data_at = header_at + fields.header_length
    return make(
        fields.seq, fields.time_ns, text[fields.subject_at : header_at], text[header_at : data_at], text[data_at : fields.end]
    )


def decode_record(make, bytes buf not None, Py_ssize_t offset, Py_ssize_t stop, bint verify):
    cdef Py_ssize_t end = 0
    if offset < 0 or stop > PyBytes_GET_SIZE(buf):
        raise IndexError(f"{offset} to {stop} of {PyBytes_GET_SIZE(buf)} bytes")
    return made(make, buf, offset, stop, verify, &end), end


def decode_spans(make, bytes buf not None, offsets, lengths):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buf), offset, length, end = 0
    cdef list records = []
    for offset, length in zip(offsets, lengths, strict=True):
        if not (0 <= offset <= size and 0 <= length <= size - offset):
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {size}")
        records.append(made(make, buf, offset, offset + length, True, &end))
        if end != offset + length:
            raise ValueError(offset, f"it has {end - offset} bytes, not {length}")
    return records


def split_records(bytes buf not None):
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t stop = PyBytes_GET_SIZE(buf), offset = 0, count = 0, header_at
    cdef uint64_t first_seq = 0
    cdef PyObject *slots[SLOTS]
    cdef Fields fields
    cdef list subjects = [], lengths = [], headers = []
    memset(slots, 0, sizeof(slots))
    fields.time_ns = 0
    while offset < stop:
        read(buf, offset, stop, &fields)
        if count == 0:
            first_seq = fields.seq
        elif fields.seq - first_seq != <uint64_t> count or fields.seq < first_seq:
            return None
        header_at = fields.subject_at + fields.subject_length
        if fields.flagged:
            headers.append((count, text[header_at : header_at + fields.header_length], fields.time_ns))
        subjects.append(shared(slots, <const uint8_t *> text + fields.subject_at, fields.subject_length))
        lengths.append(fields.end - offset)
        offset = fields.end
        count += 1
    return first_seq, subjects, lengths, headers, fields.time_ns


# ---------------------------------------------------------------------- frames
def frame_run(
    bytes buf not None, list subjects not None, array.array places not None, array.array heads not None,
    Py_ssize_t begin, Py_ssize_t end, bytes sid not None,
):
    cdef Numbers numbers = checked(buf, places, begin, end, len(subjects)), place
    cdef Numbers blocks = checked_heads(heads, numbers, begin, end)
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t total = 0, ids = 0, at, head, size, each
    cdef char *out
    cdef bytes subject, addressed, frames, verb = b"HMSG " if sid else b"HPUB "
    cdef list several = [b" " + one for one in sid.split(b" ")] if sid else [sid]
    cdef Py_ssize_t count = len(several)
    for addressed in several:
        ids += PyBytes_GET_SIZE(addressed)
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes?> subjects[at]
        head = blocks[at] if blocks != NULL else 0
        size = head + place[3]
        # MSG or PUB, two blanks, two line ends; with a header block an H, a blank and a number more.
        each = 9 + PyBytes_GET_SIZE(subject) + digits(size) + size
        each += place[1] + (place[1] > 0) + (2 + digits(head) if head else 0)
        total += each * count + ids
    frames = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(frames)
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes> subjects[at]
        head = blocks[at] if blocks != NULL else 0
        size = head + place[3]
        for each in range(count):
            addressed = <bytes> several[each]
            out = put(out, PyBytes_AS_STRING(verb) + (head == 0), 4 + (head > 0))
            out = put(out, PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
            out = put(put(out, PyBytes_AS_STRING(addressed), PyBytes_GET_SIZE(addressed)), b" ", 1)
            if place[1]:
                out = put(put(out, text + place[0], place[1]), b" ", 1)
            if head:
                out = put(put_number(out, head), b" ", 1)
            out = put(put_number(out, size), b"\r\n", 2)
            out = put(put(out, text + place[2] - head, size), b"\r\n", 2)
    return frames


def frame_acks(
    bytes buf not None, array.array places not None, Py_ssize_t begin, Py_ssize_t end, bytes head not None,
    bytes prefix not None, uint64_t seq, bytes sid not None,
):
    cdef Numbers numbers = checked(buf, places, begin, end), place
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t head_length = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t at, stop = begin, count = 0, total = 0, payload = 0, length, token
    cdef uint64_t number = seq
    cdef char *out
    cdef bytes frames, verb = b"MSG " if sid else b"PUB ", addressed = b" " + sid if sid else sid
    cdef Py_ssize_t addressed_length = PyBytes_GET_SIZE(addressed), prefix_length = PyBytes_GET_SIZE(prefix)
    while stop < end:
        place = numbers + stop * FIELDS
        if place[1]:
            token = place[1] - head_length
            if (
                token <= 0
                or memcmp(text + place[0], PyBytes_AS_STRING(head), head_length) != 0
                or memchr(text + place[0] + head_length, c".", token) != NULL
            ):
                break
            length = prefix_length + digits(number) + 1
            payload += length
            # MSG or PUB, two blanks, two line ends.
            total += 9 + place[1] + addressed_length + digits(length) + length
            count += 1
        number += 1
        stop += 1
    frames = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(frames)
    for at in range(begin, stop):
        place = numbers + at * FIELDS
        if place[1]:
            length = prefix_length + digits(seq) + 1
            out = put(put(out, PyBytes_AS_STRING(verb), 4), text + place[0], place[1])
            out = put(put(out, PyBytes_AS_STRING(addressed), addressed_length), b" ", 1)
            out = put(put_number(out, length), b"\r\n", 2)
            out = put_number(put(out, PyBytes_AS_STRING(prefix), prefix_length), seq)
            out = put(out, b"}\r\n", 3)
        seq += 1
    return frames, count, payload, stop


# ---------------------------------------------------------------------- stored records in columns
cdef int check_places(array.array offsets, array.array lengths, Py_ssize_t begin, Py_ssize_t end) except -1:
    if offsets.ob_descr.typecode != c"I" or lengths.ob_descr.typecode != c"I" or sizeof(unsigned int) != 4:
        raise TypeError("offsets and lengths are no arrays of 'I'")
    if not 0 <= begin <= end <= len(offsets) or len(offsets) != len(lengths):
        raise IndexError(f"records {begin} to {end} of {len(offsets)} and {len(lengths)}")
    return 0


cdef int find(bytes buf, array.array offsets, array.array lengths, Py_ssize_t at, Fields *fields) except -1:
    """Read the fixed part of a record, which has to fill its place."""
    cdef Py_ssize_t offset = offsets.data.as_uints[at], length = lengths.data.as_uints[at]
    if offset + length > PyBytes_GET_SIZE(buf):
        raise ValueError(offset, f"{length} bytes do not lie in a buffer of {PyBytes_GET_SIZE(buf)}")
    read(buf, offset, offset + length, fields)
    if fields.end != offset + length:
        raise ValueError(offset, f"it has {fields.end - offset} bytes, not {length}")
    return 0


cdef inline int signed_digits(int64_t number) noexcept nogil:
    return digits(number) if number >= 0 else 1 + digits(-<uint64_t> number)


cdef inline char *put_signed(char *out, int64_t number) noexcept nogil:
    if number >= 0:
        return put_number(out, number)
    return put_number(put(out, b"-", 1), -<uint64_t> number)


def check_records(bytes buf not None, array.array offsets not None, array.array lengths not None):
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf)
    cdef Py_ssize_t at, offset, length, count = len(offsets)
    cdef uint32_t crc
    check_places(offsets, lengths, 0, count)
    for at in range(count):
        offset, length = offsets.data.as_uints[at], lengths.data.as_uints[at]
        if offset + length > PyBytes_GET_SIZE(buf) or length < FIXED:
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {PyBytes_GET_SIZE(buf)}")
        memcpy(&crc, text + offset, 4)
        if crc32_of(text + offset + 4, length - 4) != crc:
            raise ValueError(offset, "its crc does not match")


def record_subjects(bytes buf not None, array.array offsets not None, array.array lengths not None):
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf)
    cdef Py_ssize_t at, count = len(offsets)
    cdef PyObject *slots[SLOTS]
    cdef Fields it
    cdef list subjects = []
    check_places(offsets, lengths, 0, count)
    memset(slots, 0, sizeof(slots))
    for at in range(count):
        find(buf, offsets, lengths, at, &it)
        subjects.append(shared(slots, text + it.subject_at, it.subject_length))
    return subjects


cdef struct Header:  # fields of a page header, and of the structs in it
    int64_t own[9]
    int64_t first[9]
    int64_t second[9]
    bint has_crc


cdef uint64_t varint(const uint8_t *text, Py_ssize_t *at, Py_ssize_t stop) except? 0x5EED:
    cdef uint64_t value = 0, byte
    cdef int shift
    for shift in range(0, 70, 7):
        if at[0] >= stop:
            raise IndexError("it is cut short")
        byte = text[at[0]]
        at[0] += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("it has a number of more than 64 bits")


cdef int64_t zigzag(const uint8_t *text, Py_ssize_t *at, Py_ssize_t stop) except? 0x5EED:
    cdef uint64_t value = varint(text, at, stop)
    return <int64_t> (value >> 1) ^ -<int64_t> (value & 1)


cdef int page_fields(
    const uint8_t *text, Py_ssize_t *at, Py_ssize_t stop, Header *header, int64_t *found, int depth
) except -1:
    """Decode a struct into the numbers of its first fields (NULL: none are wanted)."""
    cdef int64_t field = 0, value
    cdef uint64_t size
    cdef int head, kind, each
    cdef int64_t *inner
    if depth > 8:
        raise ValueError("it has structs within structs")
    while True:
        if at[0] >= stop:
            raise IndexError("it is cut short")
        head = text[at[0]]
        at[0] += 1
        if head == 0:
            return 0
        kind = head & 15
        field = field + (head >> 4) if head >> 4 else zigzag(text, at, stop)
        if not 0 < field < 0x8000:
            raise ValueError(f"it has a field {field}")
        if 4 <= kind <= 6:
            value = zigzag(text, at, stop)
            if found != NULL and field < 9:
                found[field] = value
                header.has_crc |= depth == 0 and field == 4
        elif kind == 12:
            inner = NULL
            if depth == 0 and (field == 5 or field == 8):
                inner = header.first
                if field == 8:
                    inner = header.second
                for each in range(9):
                    inner[each] = -1
            page_fields(text, at, stop, header, inner, depth + 1)
        elif kind == 8:
            size = varint(text, at, stop)
            if size > <uint64_t> (stop - at[0]):
                raise IndexError("it is cut short")
            at[0] += size
        elif kind == 3 or kind == 7:
            at[0] += 1 if kind == 3 else 8
        elif kind != 1 and kind != 2:
            raise ValueError(f"it has a field of type {kind}")


def page_header(bytes content not None):
    cdef Header it
    cdef Py_ssize_t at = 0
    memset(&it, 0xFF, sizeof(Header))
    it.has_crc = False
    page_fields(<const uint8_t *> PyBytes_AS_STRING(content), &at, PyBytes_GET_SIZE(content), &it, it.own, 0)
    cdef int64_t kind = it.own[1], count = it.first[1]
    if kind != 0:
        count = it.second[1] if kind == 3 else 0 if kind == 2 else -1
        it.first[2] = it.first[3] = it.first[4] = -1
    crc = it.own[4] & 0xFFFFFFFF if it.has_crc else -1
    return at, kind, it.own[2], it.own[3], crc, count, it.first[2], it.first[3], it.first[4]


def text_cells(bytes page not None, Py_ssize_t at, places not None):
    cdef const char *text = PyBytes_AS_STRING(page)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(page), number = 0, place
    cdef uint32_t length = 0
    cdef list found = []
    if at < 0:
        raise ValueError("text 0 is cut short")
    for place in places:
        while number <= place:
            if size - at < 4:
                raise ValueError(f"text {number} is cut short")
            memcpy(&length, text + at, 4)
            if length > size - at - 4:
                raise ValueError(f"text {number} is cut short")
            at, number = at + 4 + length, number + 1
        found.append(PyBytes_FromStringAndSize(text + at - length, length))
    return found


def split_names(bytes packed not None):
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(packed)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(packed), at, count, number, length
    if size and text[0] >> 4 == 9:
        at, count = 1, text[0] & 15
    elif size >= 3 and text[0] == 0xDC:
        at, count = 3, text[1] << 8 | text[2]
    elif size >= 5 and text[0] == 0xDD:
        at, count = 5, <Py_ssize_t> text[1] << 24 | text[2] << 16 | text[3] << 8 | text[4]
    else:
        raise ValueError("this is no list")
    if count > size:
        raise ValueError(f"{count} texts are not in {size} bytes")
    cdef array.array marks = array.clone(NUMBERS, count + 1, False)
    for number in range(count):
        marks.data.as_uints[number] = at
        if at + 2 < size and text[at] == 0xC4:
            length = 2 + text[at + 1]
        elif at + 3 < size and text[at] == 0xC5:
            length = 3 + (text[at + 1] << 8 | text[at + 2])
        else:
            raise ValueError(f"text {number} has another form")
        at += length
    if at != size or at > MAX_OFFSET:
        raise ValueError(f"{count} texts are {at} bytes, not {size}")
    marks.data.as_uints[count] = at
    return marks


def records_match(
    bytes buf not None, array.array offsets not None, array.array lengths not None, Py_ssize_t begin, rows not None,
    array.array sizes not None, array.array ids not None, bytes packed not None, array.array marks not None,
):
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef const char *names = PyBytes_AS_STRING(packed)
    cdef Py_ssize_t at = begin, row, count = len(ids), start, end
    cdef size_t number
    cdef Fields it
    check_places(offsets, lengths, begin, begin + len(rows))
    check_places(ids, sizes, 0, count)
    for row in rows:
        if not 0 <= row < count:
            raise IndexError(f"row {row} of {count}")
        if lengths.data.as_uints[at] != sizes.data.as_uints[row]:
            return False
        find(buf, offsets, lengths, at, &it)
        number = ids.data.as_uints[row]
        if number + 1 >= <size_t> len(marks):
            raise IndexError(f"name {number} of {len(marks) - 1}")
        start, end = marks.data.as_uints[number], marks.data.as_uints[number + 1]
        if not start + 3 <= end <= PyBytes_GET_SIZE(packed):
            raise IndexError(f"name {number} is not in {PyBytes_GET_SIZE(packed)} bytes")
        start += 2 if <uint8_t> names[start] == 0xC4 else 3
        if it.subject_length != end - start or memcmp(text + it.subject_at, names + start, end - start) != 0:
            return False
        at += 1
    return True


def copy_records(bytes buf not None, array.array offsets not None, array.array lengths not None, some not None):
    cdef array.array places = array.clone(NUMBERS, len(some), False), sizes = array.clone(NUMBERS, len(some), False)
    cdef Py_ssize_t number, at, offset, length, size = 0
    check_places(offsets, lengths, 0, len(offsets))
    for number, at in enumerate(some):
        if not 0 <= at < len(offsets):
            raise IndexError(f"record {at} of {len(offsets)}")
        offset, length = offsets.data.as_uints[at], lengths.data.as_uints[at]
        if offset + length > PyBytes_GET_SIZE(buf):
            raise ValueError(offset, f"{length} bytes do not lie in a buffer of {PyBytes_GET_SIZE(buf)}")
        if size > MAX_OFFSET:
            raise OverflowError(f"the records have more than {MAX_OFFSET} bytes")
        places.data.as_uints[number], sizes.data.as_uints[number] = size, length
        size += length
    cdef bytes copy = PyBytes_FromStringAndSize(NULL, size)
    cdef char *out = PyBytes_AS_STRING(copy)
    for at in some:
        out = put(out, PyBytes_AS_STRING(buf) + offsets.data.as_uints[at], lengths.data.as_uints[at])
    return copy, places, sizes


cdef inline Py_ssize_t reply_length(Fields *it, Py_ssize_t head, uint64_t consumer, int64_t pending) noexcept nogil:
    return head + 3 + digits(it.seq) + digits(consumer) + signed_digits(it.time_ns) + signed_digits(pending)


def delivery_sizes(
    bytes buf not None, array.array offsets not None, array.array lengths not None, Py_ssize_t begin, Py_ssize_t end,
    bytes head not None, uint64_t consumer, int64_t pending,
):
    cdef Py_ssize_t at, reply, head_length = PyBytes_GET_SIZE(head)
    cdef list sizes = []
    cdef Fields it
    check_places(offsets, lengths, begin, end)
    for at in range(begin, end):
        find(buf, offsets, lengths, at, &it)
        reply = reply_length(&it, head_length, consumer, pending) if head_length else 0
        sizes.append(it.end - it.subject_at + reply)
        consumer += 1
        pending -= 1
    return sizes


def frame_deliveries(
    bytes buf not None, array.array offsets not None, array.array lengths not None, Py_ssize_t begin, Py_ssize_t end,
    bytes sid not None, bytes head not None, uint64_t consumer, int64_t pending,
):
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t at, step, count, total = 0, size = 0
    cdef Py_ssize_t sid_length = PyBytes_GET_SIZE(sid), head_length = PyBytes_GET_SIZE(head)
    cdef int64_t left = pending
    cdef uint64_t number = consumer
    cdef char *out = NULL
    cdef bytes frames = None
    cdef Fields it
    check_places(offsets, lengths, begin, end)
    for step in range(2):  # first the length of the frames, then the frames
        if step:
            frames, number, left = PyBytes_FromStringAndSize(NULL, total), consumer, pending
            out = PyBytes_AS_STRING(frames)
        for at in range(begin, end):
            find(buf, offsets, lengths, at, &it)
            count = it.end - it.subject_at - it.subject_length
            if step == 0:
                size += count
                # MSG, three blanks, two line ends; with a header block HMSG and one number more.
                total += 11 + it.subject_length + sid_length + reply_length(&it, head_length, number, left)
                total += digits(count) + count + (2 + digits(it.header_length) if it.header_length else 0)
            else:
                out = put(out, b"HMSG ", 5) if it.header_length else put(out, b"MSG ", 4)
                out = put(put(out, text + it.subject_at, it.subject_length), b" ", 1)
                out = put(put(out, PyBytes_AS_STRING(sid), sid_length), b" ", 1)
                out = put_number(put(out, PyBytes_AS_STRING(head), head_length), it.seq)
                out = put_number(put(out, b".", 1), number)
                out = put_signed(put(out, b".", 1), it.time_ns)
                out = put(put_signed(put(out, b".", 1), left), b" ", 1)
                if it.header_length:
                    out = put(put_number(out, it.header_length), b" ", 1)
                out = put(put_number(out, count), b"\r\n", 2)
                out = put(put(out, text + it.end - count, count), b"\r\n", 2)
            number += 1
            left -= 1
    return frames, size


# ---------------------------------------------------------------------- direct gets
cdef inline Py_ssize_t put_fraction(char *out, int64_t nanos) noexcept nogil:
    """Write the fraction of a second without trailing zeros, and Z; return its length."""
    cdef Py_ssize_t length = 9, at
    while length and nanos % 10 == 0:
        nanos //= 10
        length -= 1
    for at in range(length, 0, -1):
        out[at] = <char> (48 + nanos % 10)
        nanos //= 10
    length += length > 0
    out[0], out[length] = c".", c"Z"
    return length + 1


def frame_direct(
    bytes buf not None, array.array offsets not None, array.array lengths not None, Py_ssize_t begin, Py_ssize_t end,
    bytes sid not None, bytes subject not None, bytes stream not None, int64_t pending, uint64_t last_seq, second not None,
):
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef const char *opening
    cdef Py_ssize_t at, step, opened, stamped, data, count, block, total = 0, size = 0
    cdef Py_ssize_t sid_length = len(sid), subject_length = len(subject), stream_length = len(stream)
    cdef int64_t seconds = 0, whole, nanos, left = pending
    cdef uint64_t last = last_seq
    cdef char fraction[16]
    cdef char *out = NULL
    cdef bytes frames = None, when = b""
    cdef Fields it
    check_places(offsets, lengths, begin, end)
    for step in range(2):  # first the length of the frames, then the frames
        if step:
            frames, last, left = PyBytes_FromStringAndSize(NULL, total), last_seq, pending
            out = PyBytes_AS_STRING(frames)
        for at in range(begin, end):
            find(buf, offsets, lengths, at, &it)
            whole, nanos = it.time_ns // 1000000000, it.time_ns % 1000000000
            if nanos < 0:
                whole, nanos = whole - 1, nanos + 1000000000
            if whole != seconds or not when:
                seconds, when = whole, second(it.time_ns)
                if len(when) != SECOND:
                    raise ValueError(when, "it is no second of RFC 3339")
            stamped = put_fraction(fraction, nanos)
            opening, opened, data = text + it.subject_at + it.subject_length, it.header_length, it.end
            data -= it.subject_at + it.subject_length + opened
            if opened == 0:
                opening, opened = b"NATS/1.0", 8
            elif opened >= 2 and memcmp(opening + opened - 2, b"\r\n", 2) == 0:
                opened -= 2  # the line end; and the blank line behind it
                if opened >= 2 and memcmp(opening + opened - 2, b"\r\n", 2) == 0:
                    opened -= 2
            # The names of six lines and their ends.
            block = 98 + opened + stream_length + it.subject_length + digits(it.seq)
            block += SECOND + stamped + signed_digits(left) + digits(last)
            count = block + data
            if step == 0:
                size += count
                total += 12 + subject_length + sid_length + digits(block) + digits(count) + count
            else:
                out = put(put(put(out, b"HMSG ", 5), PyBytes_AS_STRING(subject), subject_length), b" ", 1)
                out = put_number(put(put(out, PyBytes_AS_STRING(sid), sid_length), b" ", 1), block)
                out = put(put_number(put(out, b" ", 1), count), b"\r\n", 2)
                out = put(put(out, opening, opened), b"\r\n", 2)
                out = put(put(out, PyBytes_AS_STRING(stream), stream_length), b"Nats-Subject: ", 14)
                out = put(put(out, text + it.subject_at, it.subject_length), b"\r\nNats-Sequence: ", 17)
                out = put(put_number(out, it.seq), b"\r\nNats-Time-Stamp: ", 19)
                out = put(put(out, PyBytes_AS_STRING(when), SECOND), fraction, stamped)
                out = put_signed(put(out, b"\r\nNats-Num-Pending: ", 20), left)
                out = put(put_number(put(out, b"\r\nNats-Last-Sequence: ", 22), last), b"\r\n\r\n", 4)
                out = put(put(out, text + it.end - data, data), b"\r\n", 2)
            last = it.seq
            left -= 1
    return frames, size


# ---------------------------------------------------------------------- subjects that match patterns
cdef class MatcherNode:
    """The patterns that go on behind the same tokens."""
    cdef dict children  # by literal token
    cdef bytes only  # the token of the only child
    cdef MatcherNode first, star
    cdef bint end, rest  # a pattern ends here; one has `>` here

    def __cinit__(self):
        self.children = {}

    cdef MatcherNode child(self, bytes token):
        cdef MatcherNode found = self.children.get(token)
        if found is None:
            found = self.children[token] = MatcherNode()
            self.only, self.first = (token, found) if len(self.children) == 1 else (None, None)
        return found


cdef bint matched(MatcherNode node, const char *at, const char *stop):
    """Return True if the tokens from `at` on match a pattern below a node."""
    cdef const char *dot
    cdef Py_ssize_t length
    cdef MatcherNode child
    if node.rest:
        return True
    dot = <const char *> memchr(at, 46, stop - at)
    length = (stop if dot == NULL else dot) - at
    if node.star is not None and (node.star.end if dot == NULL else matched(node.star, dot + 1, stop)):
        return True
    if node.only is not None:
        if PyBytes_GET_SIZE(node.only) != length or memcmp(PyBytes_AS_STRING(node.only), at, length) != 0:
            return False
        child = node.first
    elif not node.children:
        return False
    else:
        child = node.children.get(PyBytes_FromStringAndSize(at, length))
        if child is None:
            return False
    return child.end if dot == NULL else matched(child, dot + 1, stop)


cdef class SubjectMatcher:
    cdef MatcherNode root

    def __init__(self, patterns):
        cdef MatcherNode node
        self.root = MatcherNode()
        for pattern in patterns:
            node = self.root
            head, dot, tail = pattern.rpartition(b".")
            rest = tail == b">"
            for token in (head if rest else pattern).split(b".") if dot or not rest else ():
                node = self.step(node, token)
            if rest:
                node.rest = True
            else:
                node.end = True

    cdef MatcherNode step(self, MatcherNode node, bytes token):
        if token != b"*":
            return node.child(token)
        if node.star is None:
            node.star = MatcherNode()
        return node.star

    def choose(self, list subjects not None):
        cdef list found = []
        cdef const char *text
        cdef bytes subject
        for subject in subjects:
            text = PyBytes_AS_STRING(subject)
            if matched(self.root, text, text + PyBytes_GET_SIZE(subject)):
                found.append(subject)
        return found


    def choose_records(
        self, bytes buf not None, array.array offsets not None, array.array lengths not None, Py_ssize_t most
    ):
        cdef const char *text = PyBytes_AS_STRING(buf)
        cdef Py_ssize_t at, count = len(offsets)
        cdef list found = []
        cdef Fields it
        check_places(offsets, lengths, 0, count)
        for at in range(count):
            if len(found) >= most:
                break
            find(buf, offsets, lengths, at, &it)
            if matched(self.root, text + it.subject_at, text + it.subject_at + it.subject_length):
                found.append(at)
        return found


cdef bytes sought(list tokens, bytes low):
    """Return a lower bound of the subjects from `low` on that match a pattern: `low` itself, or a greater one."""
    cdef const char *text = PyBytes_AS_STRING(low)
    cdef const char *dot
    cdef Py_ssize_t size = PyBytes_GET_SIZE(low), last = len(tokens) - 1, at = 0, star = -1, number, length, there
    cdef bytes token
    cdef int order
    for number in range(last + 1):
        token = tokens[number]
        length = PyBytes_GET_SIZE(token)
        if length == 1 and PyBytes_AS_STRING(token)[0] == 42:
            dot = <const char *> memchr(text + at, 46, size - at)
            if dot == NULL:
                return low
            star = dot - text
            at = star + 1
            continue
        there = min(size - at, length)
        order = memcmp(PyBytes_AS_STRING(token), text + at, there)
        if order == 0 and there < length:
            order = 1
        elif order == 0 and number < last:
            order = 46 - <int> <uint8_t> text[at + length] if at + length < size else 1
        if order > 0:
            return low[:at] + token + (b"." if number < last else b"")
        if order < 0:
            break
        at += length + (number < last)
    else:
        if at == size:
            return low
    return low if star < 0 else low[:star] + b"/"


cdef inline bint less(bytes one, bytes other) noexcept:
    """Return True if `one` is before `other`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(one), more = PyBytes_GET_SIZE(other)
    cdef int order = memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), min(size, more))
    return order < 0 or (order == 0 and size < more)


cdef Py_ssize_t place_between(list names, bytes wanted, Py_ssize_t lo, Py_ssize_t hi):
    """Return the place from `lo` through `hi` of the first name that is not less than `wanted`."""
    cdef Py_ssize_t middle
    while lo < hi:
        middle = (lo + hi) // 2
        if less(<bytes?> names[middle], wanted):
            lo = middle + 1
        else:
            hi = middle
    return lo


cdef Py_ssize_t place_of(list names, bytes wanted, Py_ssize_t lo):
    """Return the place of the first name from `lo` on that is not less than `wanted`, by galloping from there."""
    cdef Py_ssize_t count = len(names), hi = lo, step = 1
    while hi < count and less(<bytes?> names[hi], wanted):
        lo = hi + 1
        hi += step
        step *= 2
    return place_between(names, wanted, lo, min(hi, count))


cdef class SubjectSeeker:
    cdef list parted

    def __init__(self, patterns):
        self.parted = [pattern.split(b".") for pattern in patterns]

    cpdef bytes bound(self, bytes low):
        cdef bytes least = None, found
        for tokens in self.parted:
            found = sought(tokens, low)
            if found is low:
                return low
            if least is None or less(found, least):
                least = found
        return least

    def choose(self, list names not None, bytes low not None, bytes end not None):
        cdef list found = []
        return found, self.gather(names, low, end, found)

    cdef bytes gather(self, list names, bytes low, bytes end, list found):
        cdef Py_ssize_t at = 0, stop = len(names)
        cdef bytes name
        if end and stop and not less(<bytes?> names[stop - 1], end):
            stop = place_of(names, end, 0)
        # Each comparison reads a name somewhere in memory: the last one mostly tells that there is no match left, and
        # the first match may be anywhere.
        if stop and less(<bytes?> names[0], low):
            at = place_between(names, low, 1, stop)
        while at < stop and not less(<bytes?> names[stop - 1], low):
            at = place_of(names, low, at)
            name = names[at]
            low = self.bound(name)
            if low is name:
                found.append(name)
                at += 1
                low = name + b"\0"
        return low

    def walk(self, list lows not None, leaves not None, bytes low not None, bytes end not None, Py_ssize_t most):
        cdef list found = [], names
        cdef Py_ssize_t at = 0, number
        cdef bytes high
        for number in range(most):
            low = self.bound(low)
            if end and not less(low, end):
                return found, None, -1
            at = place_of(lows, low, at)
            if at == len(lows) or <bytes?> lows[at] != low:
                at -= 1
            leaf = leaves[at]
            if leaf.block is not None:
                return found, low, at
            names = <list?> leaf.names
            low = self.gather(names if leaf.ordered == len(names) else <list?> leaf.in_order(), low, end, found)
            if at + 1 == len(lows):
                return found, None, -1
            high = <bytes?> lows[at + 1]
            if end and not less(high, end):
                return found, None, -1
            if less(low, high):
                low = high
        return found, low, -1


# ---------------------------------------------------------------------- message ids
cdef inline uint64_t reduced(uint64_t value) noexcept nogil:
    """Return a number that is congruent modulo 2**61 - 1, of at most 61 bits and a little."""
    return (value & PRIME) + (value >> 61)


cdef inline uint64_t hash_of(bytes each) noexcept:
    """Return the hash of an id."""
    cdef Py_ssize_t at = PyBytes_GET_SIZE(each), length
    cdef const char *text = PyBytes_AS_STRING(each)
    cdef uint64_t limb, found = 0
    while at > 0:  # a number of base 2**64, which is 8 modulo 2**61 - 1; its highest digit first
        length = (at - 1) % 8 + 1
        at -= length
        limb = 0
        memcpy(&limb, text + at, length)
        found = reduced(reduced(found << 3) + reduced(limb))
        if found >= PRIME:
            found -= PRIME
    found = (found + <uint64_t> PyBytes_GET_SIZE(each)) * <uint64_t> 0x9E3779B97F4A7C15U
    found = (found ^ found >> 32) * <uint64_t> 0xD6E8FEB86659FD93U
    return found if found else 1  # which has the same slot and tag


cdef inline uint64_t slot_of(uint64_t mixed, uint64_t number) noexcept nogil:
    return (mixed >> 32) * number >> 32


cdef inline uint32_t tag_of(uint64_t mixed) noexcept nogil:
    cdef uint32_t tag = <uint32_t> mixed & TAG
    return tag if tag else ID_CHUNKS


def note_ids(uint8_t[::1] slots not None, ids not None, Py_ssize_t chunk):
    cdef uint64_t number = slots.shape[0] // 4, at, left, mixed
    cdef uint32_t *table = <uint32_t *> &slots[0] if number else NULL
    cdef bytes each
    if number == 0 or number >> 32 or not 0 <= chunk < ID_CHUNKS:
        raise ValueError(f"chunk {chunk} in a table of {number} slots")
    for each in list(ids):
        if each is None:
            raise TypeError("an id is bytes")
        mixed = hash_of(each)
        at, left = slot_of(mixed, number), number
        while table[at]:
            at = at + 1 if at + 1 < number else 0
            left -= 1
            if left == 0:
                raise ValueError(f"all {number} slots of the table are taken")
        table[at] = tag_of(mixed) | <uint32_t> chunk


def seek_ids(tables not None, list ids not None):
    cdef list found = []
    cdef Py_ssize_t count = len(ids), place, which = 0
    cdef uint64_t number, at, left
    cdef uint64_t *hashes
    cdef uint32_t *table
    cdef uint32_t tag
    cdef Py_buffer view
    cdef bytes each
    hashes = <uint64_t *> PyMem_Calloc(count or 1, sizeof(uint64_t))
    if hashes == NULL:
        raise MemoryError
    try:
        for place in range(count):
            each = ids[place]
            if each:
                hashes[place] = hash_of(each)
        for slots in tables:
            PyObject_GetBuffer(slots, &view, PyBUF_SIMPLE)
            try:
                table, number = <uint32_t *> view.buf, view.len // 4
                for place in range(count if 0 < number < 1 << 32 else 0):
                    if place + AHEAD < count:
                        prefetch(table + slot_of(hashes[place + AHEAD], number))
                    if hashes[place]:
                        tag, at, left = tag_of(hashes[place]), slot_of(hashes[place], number), number
                        while table[at] and left:
                            if table[at] & TAG == tag:
                                found.append((place, which, table[at] & ~TAG))
                            at = at + 1 if at + 1 < number else 0
                            left -= 1
            finally:
                PyBuffer_Release(&view)
            which += 1
    finally:
        PyMem_Free(hashes)
    return found


# ---------------------------------------------------------------------- columns of payloads
cdef extern from "columns.h":
    ctypedef struct Buffer:
        uint8_t *data
        size_t size

    ctypedef struct Name:
        const char *text
        size_t length
        int number

    ctypedef struct Node:
        int kind, first, count, nullable, required, closed, above, below, precision, scale, symbol_count, wire, number
        int group, wrapped
        int64_t low, high, rows
        double least, most
        Name name
        const Name *symbols
        Buffer valid, values, text

    ctypedef struct Cursor:
        const uint8_t *at
        const uint8_t *end
        Node *nodes
        int depth, deepest, no_memory
        Buffer scratch

    enum:
        BOOLEAN, RECORD, MAP
    int begin_columns(Cursor *cursor, int count)
    void free_columns(Cursor *cursor, int count, size_t kept)
    void cut(Node *nodes, Node *node, int64_t rows)
    int put_null(Cursor *cursor, Node *node)
    int64_t pack_bits(const uint8_t *flags, int64_t count, uint8_t *bits)
    int json_row(Cursor *cursor)
    int avro_row(Cursor *cursor)
    int pb_row(Cursor *cursor)

ctypedef int (*RowReader)(Cursor *cursor)


cdef bytes packed(Buffer *flags, int64_t *zeros):
    """Return bytes of 0 and 1 as bits, and how many are 0."""
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, (<Py_ssize_t> flags.size + 7) // 8)
    zeros[0] = pack_bits(flags.data, flags.size, <uint8_t *> PyBytes_AS_STRING(bits))
    return bits


cdef class ColumnReader:
    cdef list plan  # owns the names
    cdef Node *nodes
    cdef Name *symbols
    cdef int count, deepest
    cdef RowReader row

    def __init__(self, str form not None, list plan not None, int deepest):
        cdef Py_ssize_t at, named = 0
        cdef Node *node
        cdef bytes text
        if self.nodes != NULL or not plan:
            raise ValueError("a plan has nodes, and is read once")
        self.row = avro_row if form == "avro" else pb_row if form == "protobuf" else json_row
        self.plan, self.count, self.deepest = list(plan), len(plan), deepest
        self.nodes = <Node *> PyMem_Calloc(self.count, sizeof(Node))
        self.symbols = <Name *> PyMem_Calloc(sum([len(each.symbols) for each in plan]) + 1, sizeof(Name))
        if self.nodes == NULL or self.symbols == NULL:
            raise MemoryError
        for at in range(self.count):
            each, node = plan[at], self.nodes + at
            node.kind, node.first, node.count = each.kind, each.first, each.count
            if not 0 <= node.kind <= MAP or node.count < 0 or (node.kind != RECORD and node.count != max(node.kind - RECORD, 0)):
                raise ValueError(f"node {at} of the plan has children that it cannot have")
            if node.count and not at < node.first <= self.count - node.count:
                raise ValueError(f"the children of node {at} do not lie behind it in the plan")
            node.nullable, node.required, node.closed = each.nullable, each.required, each.closed
            node.low, node.high, node.least, node.most = each.low, each.high, each.least, each.most
            node.above, node.below = each.above, each.below
            node.precision, node.scale = each.precision, each.scale
            node.wire, node.number, node.group, node.wrapped = each.wire, each.number, each.group, each.wrapped
            text = each.name
            node.name.text, node.name.length = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
            if not (form != "protobuf" or node.kind > RECORD or 0 < node.wire <= 18) or not 0 <= node.wrapped <= 18:
                raise ValueError(f"node {at} of the plan has a type that Protobuf does not have")
            if each.symbols:
                node.symbols, node.symbol_count = self.symbols + named, len(each.symbols)
            for text, number in zip(each.symbols, each.numbers or range(len(each.symbols))):
                self.symbols[named].number = number
                self.symbols[named].text, self.symbols[named].length = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
                named += 1

    def __dealloc__(self):
        cdef Cursor cursor
        if self.nodes != NULL:
            memset(&cursor, 0, sizeof(cursor))
            cursor.nodes = self.nodes
            free_columns(&cursor, self.count, 0)
        PyMem_Free(self.nodes)
        PyMem_Free(self.symbols)

    def read(self, const uint8_t[::1] data, const int32_t[::1] ends):
        cdef Cursor cursor
        cdef Py_ssize_t row, rows = ends.shape[0] - 1
        cdef int64_t nulls
        cdef list odd = [], columns = []
        cdef Node *node
        cdef bytes valid, values
        memset(&cursor, 0, sizeof(cursor))
        cursor.nodes, cursor.deepest = self.nodes, self.deepest
        try:
            if not begin_columns(&cursor, self.count):
                raise MemoryError
            for row in range(rows):
                if not 0 <= ends[row] <= ends[row + 1] <= data.shape[0]:
                    raise IndexError(f"payload {row} does not lie in {data.shape[0]} bytes")
                cursor.at, cursor.end, cursor.depth = &data[0] + ends[row], &data[0] + ends[row + 1], 0
                if not self.row(&cursor):
                    if not cursor.no_memory:
                        cut(self.nodes, self.nodes, row)
                        put_null(&cursor, self.nodes)
                    if cursor.no_memory:
                        raise MemoryError
                    odd.append(row)
            for row in range(self.count):
                node = self.nodes + row
                valid = packed(&node.valid, &nulls)
                if node.kind == BOOLEAN:
                    values = packed(&node.values, &node.low)
                else:
                    values = PyBytes_FromStringAndSize(<const char *> node.values.data, node.values.size)
                columns.append((node.rows, nulls, valid if nulls else None, values,
                                PyBytes_FromStringAndSize(<const char *> node.text.data, node.text.size)))
            return columns, odd
        finally:
            free_columns(&cursor, self.count, 0)

    def takes(self, bytes payload not None):
        cdef Cursor cursor
        cdef bint taken
        memset(&cursor, 0, sizeof(cursor))
        cursor.nodes, cursor.deepest = self.nodes, self.deepest
        cursor.at = <const uint8_t *> PyBytes_AS_STRING(payload)
        cursor.end = cursor.at + PyBytes_GET_SIZE(payload)
        taken = begin_columns(&cursor, self.count) and self.row(&cursor)
        free_columns(&cursor, self.count, MOST_KEPT)
        return taken


# ---------------------------------------------------------------------- objects
def renew(object ended, tuple shared not None, object kinds, Py_ssize_t most, Py_ssize_t large):
    cdef list found = [ended]
    cdef set seen = {id(ended)}
    cdef Py_ssize_t at = 0
    cdef object each, kind, mark
    for each in shared:
        seen.add(id(each))
    while at < len(found) < most:
        for each in <list> get_referents(found[at]):
            if not PyObject_GC_IsTracked(<PyObject *> each):
                continue
            kind = type(each)
            if not kinds[kind]:
                continue
            mark = id(each)
            if mark in seen or ((kind is dict or kind is list or kind is set) and (len(each) > large or "__name__" in each)):
                continue
            seen.add(mark)
            found.append(each)
        at += 1
    for each in found:
        PyObject_GC_UnTrack(<PyObject *> each)
        PyObject_GC_Track(<PyObject *> each)
    return len(found)


cdef int _synced(const char *path, bint data) noexcept nogil:
    """Make a file, or the names inside a directory, durable; return 0, or errno."""
    cdef int fd = -1, done = -1
    while fd < 0:
        fd = open_file(path, O_RDONLY | O_CLOEXEC)
        if fd < 0 and errno != EINTR:
            return errno
    while done < 0:
        done = sync_data(fd) if data else fsync(fd)
        if done < 0 and errno != EINTR:
            break
    done = errno if done < 0 else 0
    close(fd)
    return done


def sync_paths(files: Sequence[str], directories: Sequence[str]) -> dict[str, OSError]:
    cdef list paths = [*files, *directories], encoded = [os.fsencode(path) for path in paths]
    cdef Py_ssize_t at, count = len(paths), data = len(files)
    cdef const char **names = <const char **> PyMem_Calloc(count or 1, sizeof(char *))
    cdef int *wrong = <int *> PyMem_Calloc(count or 1, sizeof(int))
    try:
        if names == NULL or wrong == NULL:
            raise MemoryError
        for at in range(count):
            names[at] = <bytes> encoded[at]
        with nogil:
            for at in range(count):
                wrong[at] = _synced(names[at], at < data)
        return {
            paths[at]: OSError(wrong[at], os.strerror(wrong[at]), paths[at]) for at in range(count) if wrong[at]
        }
    finally:
        PyMem_Free(names)
        PyMem_Free(wrong)
