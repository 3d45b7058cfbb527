# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, embedsignature=True
"""Loops over many messages, compiled.

Belongs here: the functions of `lakestream.native.plain`, where each is documented, with the same results and the same
exceptions. Nothing here trusts its arguments: each offset is tested against its buffer before a byte of it is touched.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

import array as arrays

cdef enum:
    FIXED = 30  # bytes of a record before its subject
    FLAG_HEADER = 1
    MAX_SUBJECT = 0xFFFF
    SHORTEST = 11  # bytes of the shortest command: PUB, a subject of one byte, no payload
    FIELDS = 4  # numbers of one message in `places`
    SLOTS = 64  # subjects that a run recognises again, beside the last one

cdef Py_ssize_t MAX_OFFSET = 0xFFFFFFFF
cdef array.array NUMBERS = arrays.array("I")
cdef uint32_t CRC_TABLE[8][256]


# ---------------------------------------------------------------------- numbers and checksums
cdef void fill_crc_table() noexcept:
    cdef uint32_t value
    cdef int at, bit, table
    for at in range(256):
        value = at
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320U if value & 1 else 0)
        CRC_TABLE[0][at] = value
    for table in range(1, 8):
        for at in range(256):
            value = CRC_TABLE[table - 1][at]
            CRC_TABLE[table][at] = (value >> 8) ^ CRC_TABLE[0][value & 0xFF]


fill_crc_table()


cdef uint32_t crc32(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """Return zlib's CRC-32 of `length` bytes, eight at a time."""
    cdef uint32_t crc = 0xFFFFFFFFU
    cdef uint64_t word
    while length >= 8:
        memcpy(&word, text, 8)
        word ^= crc
        crc = (
            CRC_TABLE[7][word & 0xFF] ^ CRC_TABLE[6][(word >> 8) & 0xFF]
            ^ CRC_TABLE[5][(word >> 16) & 0xFF] ^ CRC_TABLE[4][(word >> 24) & 0xFF]
            ^ CRC_TABLE[3][(word >> 32) & 0xFF] ^ CRC_TABLE[2][(word >> 40) & 0xFF]
            ^ CRC_TABLE[1][(word >> 48) & 0xFF] ^ CRC_TABLE[0][word >> 56]
        )
        text += 8
        length -= 8
    while length > 0:
        crc = (crc >> 8) ^ CRC_TABLE[0][(crc ^ text[0]) & 0xFF]
        text += 1
        length -= 1
    return crc ^ 0xFFFFFFFFU


cdef inline int digits(uint64_t number) noexcept nogil:
    """Return how many decimal digits `number` has."""
    cdef int count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


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


cdef const uint32_t *checked(
    bytes buf, array.array places, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t subjects=0xFFFFFFFF
) except? NULL:
    """Return the numbers of a run's messages. Raise IndexError for messages that are not there."""
    cdef Py_ssize_t count = len(places) // FIELDS, size = PyBytes_GET_SIZE(buf), at
    cdef const uint32_t *numbers = <const uint32_t *> places.data.as_uints
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


cdef inline uint64_t slot_of(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word = 0, hashed = <uint64_t> length
    cdef Py_ssize_t at = 0
    if length < 8:
        memcpy(&word, text, length)
        hashed = (hashed ^ word) * <uint64_t> 0x9E3779B97F4A7C15U
    else:
        while at + 8 < length:
            memcpy(&word, text + at, 8)
            hashed = (hashed ^ word) * <uint64_t> 0x9E3779B97F4A7C15U
            hashed ^= hashed >> 29
            at += 8
        memcpy(&word, text + length - 8, 8)
        hashed = (hashed ^ word) * <uint64_t> 0x9E3779B97F4A7C15U
    return (hashed >> 32) % SLOTS


def parse_run(bytes buf not None, Py_ssize_t position, Py_ssize_t max_word, Py_ssize_t max_payload):
    cdef const uint8_t *text = <const uint8_t *> PyBytes_AS_STRING(buf)
    cdef Py_ssize_t stop = min(PyBytes_GET_SIZE(buf), MAX_OFFSET)
    cdef Py_ssize_t at, limit, subject_at, subject_length, reply_at, reply_length, size, count = 0, room = 64
    cdef Py_ssize_t last_length = 0
    cdef const uint8_t *last_text = NULL
    cdef PyObject *slots[SLOTS]
    cdef PyObject **slot
    cdef bytes subject = None
    cdef bint fresh
    cdef list subjects = [], starts = []
    cdef array.array places
    cdef uint32_t *place
    if position < 0:
        raise IndexError(f"position {position}")
    max_word = min(max_word, MAX_OFFSET)
    if stop - position < SHORTEST or memcmp(text + position, b"PUB ", 4) != 0:
        return None
    memset(slots, 0, sizeof(slots))
    places = array.clone(NUMBERS, room * FIELDS, False)
    while stop - position >= SHORTEST and memcmp(text + position, b"PUB ", 4) == 0:
        subject_at = position + 4
        at = subject_at + last_length
        fresh = not (last_length and at < stop and text[at] == 32 and memcmp(last_text, text + subject_at, last_length) == 0)
        if fresh:
            at = word_end(text, subject_at, min(stop, subject_at + max_word))
        subject_length = at - subject_at
        if subject_length == 0 or at == stop or text[at] != 32 or text[subject_at] == c"$":
            break
        at += 1
        reply_at = reply_length = 0
        limit = word_end(text, at, min(stop, at + max_word))
        if limit > at and limit < stop and text[limit] == 32:
            reply_at, reply_length = at, limit - at
            if memchr(text + at, c"$", reply_length) != NULL or (reply_length > 3 and memcmp(text + at, b"_R_.", 4) == 0):
                break
            at = limit + 1
        size = 0
        limit = min(stop, at + 9)
        while at < limit and 48 <= text[at] <= 57:
            size = size * 10 + text[at] - 48
            at += 1
        # A digit stands before `at` unless there is none; a blank stands there otherwise.
        if text[at - 1] == 32 or stop - at < size + 4 or size > max_payload:
            break
        if text[at] != 13 or text[at + 1] != 10 or text[at + 2 + size] != 13 or text[at + 3 + size] != 10:
            break
        at += 2
        if fresh:
            slot = slots + slot_of(text + subject_at, subject_length)
            if (
                slot[0] != NULL
                and PyBytes_GET_SIZE(<bytes> slot[0]) == subject_length
                and memcmp(PyBytes_AS_STRING(<bytes> slot[0]), text + subject_at, subject_length) == 0
            ):
                subject = <bytes> slot[0]
            else:
                subject = PyBytes_FromStringAndSize(<const char *> text + subject_at, subject_length)
                slot[0] = <PyObject *> subject  # `subjects` keeps it alive
            last_text, last_length = <const uint8_t *> PyBytes_AS_STRING(subject), subject_length
            starts.append(count)
        subjects.append(subject)
        if count == room:
            room *= 2
            array.resize(places, room * FIELDS)
        place = places.data.as_uints + count * FIELDS
        place[0], place[1] = <uint32_t> reply_at, <uint32_t> reply_length
        place[2], place[3] = <uint32_t> at, <uint32_t> size
        count += 1
        position = at + size + 2
    if count == 0:
        return None
    array.resize(places, count * FIELDS)
    return position, subjects, starts, places


def encode_run(
    bytes buf not None, list subjects not None, array.array places not None, Py_ssize_t begin, Py_ssize_t end,
    uint64_t seq, int64_t time_ns,
):
    cdef const uint32_t *numbers = checked(buf, places, begin, end, len(subjects))
    cdef const uint32_t *place
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t total = 0, at, length, subject_length
    cdef uint16_t subject_field
    cdef uint32_t crc
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
        lengths.append(length)
        total += length
    records = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(records)
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes> subjects[at]
        subject_length = PyBytes_GET_SIZE(subject)
        record, subject_field = out, <uint16_t> subject_length
        memcpy(record + 4, &seq, 8)
        memcpy(record + 12, &time_ns, 8)
        memcpy(record + 20, &subject_field, 2)
        memset(record + 22, 0, 2)
        memcpy(record + 24, &place[3], 4)
        memset(record + 28, 0, 2)
        out = put(record + FIXED, PyBytes_AS_STRING(subject), subject_length)
        out = put(out, text + place[2], place[3])
        crc = crc32(<const uint8_t *> record + 4, out - record - 4)
        memcpy(record, &crc, 4)
        seq += 1
    return records, lengths


# ---------------------------------------------------------------------- frames
def frame_run(
    bytes buf not None, list subjects not None, array.array places not None, Py_ssize_t begin, Py_ssize_t end,
    bytes sid not None,
):
    cdef const uint32_t *numbers = checked(buf, places, begin, end, len(subjects))
    cdef const uint32_t *place
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t sid_length = PyBytes_GET_SIZE(sid), total = 0, at
    cdef char *out
    cdef bytes subject, frames
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes?> subjects[at]
        # MSG, three blanks at most, two line ends.
        total += 10 + PyBytes_GET_SIZE(subject) + sid_length + digits(place[3]) + place[3]
        if place[1]:
            total += 1 + place[1]
    frames = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(frames)
    for at in range(begin, end):
        place = numbers + at * FIELDS
        subject = <bytes> subjects[at]
        out = put(out, b"MSG ", 4)
        out = put(out, PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        out[0] = 32
        out = put(out + 1, PyBytes_AS_STRING(sid), sid_length)
        out[0] = 32
        out += 1
        if place[1]:
            out = put(out, text + place[0], place[1])
            out[0] = 32
            out += 1
        out = put(put_number(out, place[3]), b"\r\n", 2)
        out = put(put(out, text + place[2], place[3]), b"\r\n", 2)
    return frames


def frame_acks(
    bytes buf not None, array.array places not None, Py_ssize_t begin, Py_ssize_t end, bytes head not None,
    bytes prefix not None, uint64_t seq, bytes sid not None,
):
    cdef const uint32_t *numbers = checked(buf, places, begin, end)
    cdef const uint32_t *place
    cdef const char *text = PyBytes_AS_STRING(buf)
    cdef Py_ssize_t head_length = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t sid_length = PyBytes_GET_SIZE(sid), prefix_length = PyBytes_GET_SIZE(prefix)
    cdef Py_ssize_t at, stop = begin, count = 0, total = 0, payload = 0, length, token
    cdef uint64_t number = seq
    cdef char *out
    cdef bytes frames
    for stop in range(begin, end + 1):
        if stop == end:
            break
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
            # MSG, two blanks, two line ends.
            total += 10 + place[1] + sid_length + digits(length) + length
            count += 1
        number += 1
    frames = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(frames)
    for at in range(begin, stop):
        place = numbers + at * FIELDS
        if place[1]:
            length = prefix_length + digits(seq) + 1
            out = put(put(out, b"MSG ", 4), text + place[0], place[1])
            out[0] = 32
            out = put(out + 1, PyBytes_AS_STRING(sid), sid_length)
            out[0] = 32
            out = put(put_number(out + 1, length), b"\r\n", 2)
            out = put_number(put(out, PyBytes_AS_STRING(prefix), prefix_length), seq)
            out = put(out, b"}\r\n", 3)
        seq += 1
    return frames, count, payload, stop
