/* Payloads straight into columns of Arrow, by a plan that was compiled from a schema.

Belongs here: nodes of a plan with the buffers of their columns, and a reader for each format of payloads. A row is taken
only if it certainly has the value that the decoder of single messages (lakestream/schemas) would give it. Everything else
is odd: what was written of the row is cut off again, the row gets NULLs, and the caller decodes it by itself. So no rule
is here twice that says why a payload is wrong, and a reader may leave out what is rare.

Little-endian machines only. Called with the GIL. */

#ifndef LAKESTREAM_COLUMNS_H
#define LAKESTREAM_COLUMNS_H

#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of nodes, as in lakestream/schemas/plan.py. A map has two children, keys and items; a list has one. */
enum { BOOLEAN, INTEGER, NUMBER, DECIMAL, STRING, BYTES, DATE, INSTANT, TEXT, RECORD, LIST, MAP };
static const int WIDTHS[] = {1, 8, 8, 16, 4, 4, 4, 8, 4, 0, 4, 4};
enum { ODD, TAKEN };
#define MOST_KEYS 64     /* of one map; more are odd, because each is compared with each */
#define MOST_NUMBER 60   /* characters of a number */

typedef struct { uint8_t *data; size_t size, room; } Buffer;
typedef struct { const char *text; size_t length; int number; } Name;

typedef struct {
    int kind, first, count;         /* children: `count` nodes from `first` on */
    int nullable, required, closed; /* may be null; must be there; has no other fields */
    int64_t low, high;              /* bounds of an integer; of a string's or list's length */
    double least, most;             /* bounds of a number */
    int above, below;               /* these are exclusive */
    int precision, scale;
    int wire;                       /* Avro: bytes of a number or of a fixed, -1 with their length in front; tick.
                                       Protobuf: type of the field */
    int number;                     /* Avro: branch of a union that is null; Protobuf: of the field */
    int group, wrapped;             /* Protobuf: its `oneof`, from 1 on; type inside of a wrapper */
    Name name;
    const Name *symbols;            /* the only values of a string */
    int symbol_count;
    int64_t rows;
    Buffer valid, values, text;     /* a byte a row; fixed values, or the ends of parts, from 0 on; bytes of strings */
} Node;

typedef struct {
    const uint8_t *at, *end;
    Node *nodes;
    int depth, deepest, no_memory;
    Buffer scratch;
} Cursor;

/* ---------------------------------------------------------------- columns */
static int roomy(Cursor *c, Buffer *buffer, size_t more) {
    if (buffer->room - buffer->size >= more) return TAKEN;
    size_t room = (buffer->size + more) * 3 / 2 + 256;
    uint8_t *data = realloc(buffer->data, room);
    if (data == NULL) {
        c->no_memory = 1;
        return ODD;
    }
    buffer->data = data;
    buffer->room = room;
    return TAKEN;
}

static inline int put_row(Cursor *c, Node *n, const void *value, size_t width, int valid) {
    if (!roomy(c, &n->valid, 1) || !roomy(c, &n->values, width)) return ODD;
    n->valid.data[n->valid.size++] = (uint8_t)valid;
    if (width) memcpy(n->values.data + n->values.size, value, width);
    n->values.size += width;
    n->rows++;
    return TAKEN;
}

/* A row that ends at this offset of the bytes or of the child. */
static inline int put_end(Cursor *c, Node *n, int64_t end, int valid) {
    int32_t narrow = (int32_t)end;
    return end > INT32_MAX ? ODD : put_row(c, n, &narrow, 4, valid);
}

static inline int32_t end_of(const Node *n, int64_t rows) {
    int32_t end;
    memcpy(&end, n->values.data + 4 * rows, 4);
    return end;
}

static int put_null(Cursor *c, Node *n) {
    static const uint8_t zeros[16];
    if (n->kind == LIST || n->kind == MAP) return put_end(c, n, c->nodes[n->first].rows, 0);
    if (n->kind == STRING || n->kind == BYTES || n->kind == TEXT) return put_end(c, n, (int64_t)n->text.size, 0);
    if (n->kind == RECORD)
        for (int at = 0; at < n->count; at++)
            if (!put_null(c, c->nodes + n->first + at)) return ODD;
    return put_row(c, n, zeros, WIDTHS[n->kind], 0);
}

/* Leave `rows` rows. Parts of the row behind them may be there or not. */
static void cut(Node *nodes, Node *n, int64_t rows) {
    n->rows = rows;
    n->valid.size = rows;
    if (n->kind == RECORD) {
        for (int at = 0; at < n->count; at++) cut(nodes, nodes + n->first + at, rows);
        return;
    }
    n->values.size = rows * WIDTHS[n->kind];
    if (WIDTHS[n->kind] != 4 || n->kind == DATE) return;
    n->values.size += 4;
    int32_t end = end_of(n, rows);
    if (n->kind != LIST && n->kind != MAP) n->text.size = end;
    else for (int at = 0; at < n->count; at++) cut(nodes, nodes + n->first + at, end);
}

static int begin_columns(Cursor *c, int count) {
    for (int at = 0; at < count; at++) {
        Node *n = c->nodes + at;
        n->rows = 0;
        n->valid.size = n->values.size = n->text.size = 0;
        if (WIDTHS[n->kind] == 4 && n->kind != DATE) {
            if (!roomy(c, &n->values, 4)) return ODD;
            memset(n->values.data, 0, n->values.size = 4);
        }
    }
    return TAKEN;
}

/* Free the buffers, unless they are smaller than `kept` bytes together. */
static void free_columns(Cursor *c, int count, size_t kept) {
    size_t room = 0;
    free(c->scratch.data);
    for (int at = 0; kept && at < count; at++)
        room += c->nodes[at].valid.room + c->nodes[at].values.room + c->nodes[at].text.room;
    for (int at = 0; room >= kept && at < count; at++) {
        free(c->nodes[at].valid.data);
        free(c->nodes[at].values.data);
        free(c->nodes[at].text.data);
        c->nodes[at].valid = c->nodes[at].values = c->nodes[at].text = (Buffer){0};
    }
}

/* Bits of `count` bytes that are 0 or 1; return how many are 0. */
static int64_t pack_bits(const uint8_t *bytes, int64_t count, uint8_t *bits) {
    int64_t zeros = 0;
    memset(bits, 0, (count + 7) / 8);
    for (int64_t at = 0; at < count; at++) {
        bits[at >> 3] |= (uint8_t)(bytes[at] << (at & 7));
        zeros += !bytes[at];
    }
    return zeros;
}

/* End the string whose bytes were put behind those of the rows before. */
static int put_text(Cursor *c, Node *n) {
    size_t begin = end_of(n, n->rows), size = n->text.size - begin;
    const char *text = (const char *)n->text.data + begin;
    if (n->symbols != NULL) {
        int at = 0;
        while (at < n->symbol_count && (n->symbols[at].length != size || memcmp(n->symbols[at].text, text, size))) at++;
        if (at == n->symbol_count) return ODD;
    }
    if (n->low > 0 || n->high < INT64_MAX) {
        int64_t characters = 0;
        for (size_t at = 0; at < size; at++) characters += ((uint8_t)text[at] & 0xC0) != 0x80;
        if (characters < n->low || characters > n->high) return ODD;
    }
    return put_end(c, n, (int64_t)n->text.size, 1);
}

static int put_integer(Cursor *c, Node *n, int64_t value) {
    return value < n->low || value > n->high ? ODD : put_row(c, n, &value, 8, 1);
}

static int put_number(Cursor *c, Node *n, double value) {
    if (value < n->least || value > n->most) return ODD;
    if ((n->above && value == n->least) || (n->below && value == n->most)) return ODD;
    return put_row(c, n, &value, 8, 1);
}

static int put_decimal(Cursor *c, Node *n, uint64_t magnitude, int negative) {
    uint64_t low = negative ? ~magnitude + 1 : magnitude, words[2] = {low, negative && magnitude ? ~(uint64_t)0 : 0};
    uint64_t limit = 1;
    for (int digit = 0; digit < n->precision && digit < 19; digit++) limit *= 10;
    return n->precision < 20 && magnitude >= limit ? ODD : put_row(c, n, words, 16, 1);
}

/* Length of the character of UTF-8 at `at`, which is not ASCII; 0 if it is none. */
static int character(const uint8_t *at, const uint8_t *end) {
    int lead = at[0], size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || end - at < size) return 0;
    for (int next = 1; next < size; next++)
        if ((at[next] & 0xC0) != 0x80) return 0;
    if ((lead == 0xE0 && at[1] < 0xA0) || (lead == 0xED && at[1] > 0x9F)) return 0;
    return (lead == 0xF0 && at[1] < 0x90) || (lead == 0xF4 && at[1] > 0x8F) ? 0 : size;
}

static int put_bytes(Cursor *c, Node *n, const uint8_t *text, size_t size) {
    if (!roomy(c, &n->text, size)) return ODD;
    for (const uint8_t *at = text, *end = text + size; n->kind == STRING && at < end;) {
        uint64_t ascii;
        int step = 1;
        if (end - at >= 8 && (memcpy(&ascii, at, 8), !(ascii & 0x8080808080808080u))) step = 8;
        else if (*at >= 0x80 && !(step = character(at, end))) return ODD;
        at += step;
    }
    if (size) memcpy(n->text.data + n->text.size, text, size);
    n->text.size += size;
    return put_end(c, n, (int64_t)n->text.size, 1);
}

static int put_symbol(Cursor *c, Node *n, int64_t at) {
    if (at < 0 || at >= n->symbol_count) return ODD;
    return put_bytes(c, n, (const uint8_t *)n->symbols[at].text, n->symbols[at].length);
}

/* True if the last `count` keys of a map are different. */
static int are_different(const Node *keys, int64_t count) {
    size_t width = WIDTHS[keys->kind];
    if (count > MOST_KEYS) return 0;
    for (int64_t one = keys->rows - count; one < keys->rows; one++)
        for (int64_t other = keys->rows - count; other < one; other++) {
            if (keys->kind != STRING) {
                if (!memcmp(keys->values.data + width * one, keys->values.data + width * other, width)) return 0;
                continue;
            }
            int32_t begin = end_of(keys, one), size = end_of(keys, one + 1) - begin, earlier = end_of(keys, other);
            if (end_of(keys, other + 1) - earlier == size &&
                !memcmp(keys->text.data + begin, keys->text.data + earlier, size)) return 0;
        }
    return 1;
}

/* ---------------------------------------------------------------- JSON */
#define ONES 0x0101010101010101u
#define HIGHS 0x8080808080808080u
#define HAS_ZERO(word) (((word)-ONES) & ~(word))

static inline void skip_blanks(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

static inline int is_next(Cursor *c, char wanted) {
    skip_blanks(c);
    return c->at < c->end && *c->at == (uint8_t)wanted;
}

static int word(Cursor *c, const char *text, int size) {
    if (c->end - c->at < size || memcmp(c->at, text, size)) return ODD;
    c->at += size;
    return TAKEN;
}

static int hex4(const uint8_t *at) {
    int value = 0;
    for (int digit = 0; digit < 4; digit++) {
        int one = at[digit] | 0x20;
        if (at[digit] >= '0' && at[digit] <= '9') value = value * 16 + at[digit] - '0';
        else if (one >= 'a' && one <= 'f') value = value * 16 + one - 'a' + 10;
        else return -1;
    }
    return value;
}

/* Append the character of the escape at the cursor, behind its backslash. */
static int json_escape(Cursor *c, Buffer *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (c->at == c->end) return ODD;
    if (*c->at != 'u') {
        const char *found = *c->at ? strchr(names, *c->at) : NULL;
        if (found == NULL) return ODD;
        out->data[out->size++] = (uint8_t)values[found - names];
        c->at++;
        return TAKEN;
    }
    int code = c->end - c->at < 5 ? -1 : hex4(c->at + 1);
    c->at += 5;
    if (code >= 0xD800 && code < 0xDC00) {
        int low = c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u' ? -1 : hex4(c->at + 2);
        if (low < 0xDC00 || low > 0xDFFF) return ODD;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        c->at += 6;
    } else if (code < 0 || (code >= 0xDC00 && code < 0xE000)) return ODD;
    uint8_t *to = out->data + out->size;
    if (code < 0x80) *to++ = (uint8_t)code;
    else {
        int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        *to++ = (uint8_t)((0xFF80 >> more) | (code >> (6 * more)));
        while (more--) *to++ = (uint8_t)(0x80 | ((code >> (6 * more)) & 0x3F));
    }
    out->size = to - out->data;
    return TAKEN;
}

/* Append the string at the cursor, which is behind its opening quote, and go behind its closing one. */
static int json_string(Cursor *c, Buffer *out) {
    if (!roomy(c, out, c->end - c->at + 8)) return ODD;
    for (;;) {
        while (c->end - c->at >= 8) {
            uint64_t text, stops;
            memcpy(&text, c->at, 8);
            memcpy(out->data + out->size, &text, 8);
            stops = HAS_ZERO(text ^ ONES * '"') | HAS_ZERO(text ^ ONES * '\\') | ((text - ONES * ' ') & ~text) | text;
            stops &= HIGHS;
            int plain = stops ? __builtin_ctzll(stops) >> 3 : 8;
            out->size += plain;
            c->at += plain;
            if (stops) break;
        }
        if (c->at >= c->end) return ODD;
        uint8_t byte = *c->at;
        if (byte == '"') {
            c->at++;
            return TAKEN;
        }
        if (byte < ' ') return ODD;
        if (byte == '\\') {
            c->at++;
            if (!json_escape(c, out)) return ODD;
        } else {
            int size = byte < 0x80 ? 1 : character(c->at, c->end);
            if (!size) return ODD;
            memcpy(out->data + out->size, c->at, size);
            out->size += size;
            c->at += size;
        }
    }
}

typedef struct { uint64_t digits; int negative, is_whole, exponent, size; const uint8_t *text; } Number;

/* Read the number at the cursor; one with more than 19 digits is odd. */
static int json_number(Cursor *c, Number *found) {
    const uint8_t *at = c->at, *end = c->end, *first;
    int digits, given = 0;
    *found = (Number){.text = at, .is_whole = 1};
    if (at < end && *at == '-') found->negative = 1, at++;
    for (first = at; at < end && *at >= '0' && *at <= '9'; at++) found->digits = found->digits * 10 + (*at - '0');
    digits = (int)(at - first);
    if (!digits || (digits > 1 && *first == '0')) return ODD;
    if (at < end && *at == '.') {
        for (first = ++at; at < end && *at >= '0' && *at <= '9'; at++) found->digits = found->digits * 10 + (*at - '0');
        found->exponent = (int)(first - at);
        if (at == first) return ODD;
        digits += (int)(at - first);
        found->is_whole = 0;
    }
    if (at < end && (*at | 0x20) == 'e') {
        int minus = ++at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) at++;
        for (first = at; at < end && at - first < 4 && *at >= '0' && *at <= '9'; at++) given = given * 10 + (*at - '0');
        if (at == first || at - first > 3) return ODD;
        found->exponent += minus ? -given : given;
        found->is_whole = 0;
    }
    found->size = (int)(at - found->text);
    c->at = at;
    return digits <= 19 && found->size < MOST_NUMBER ? TAKEN : ODD;
}

static int json_double(Cursor *c, Node *n) {
    static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    Number number;
    double value;
    if (!json_number(c, &number) || (number.is_whole && number.negative && !number.digits)) return ODD;
    if (number.digits <= (uint64_t)1 << 53 && number.exponent >= -22 && number.exponent <= 22) {
        /* Both are exact, so that their product or quotient is rounded once. */
        value = (double)number.digits;
        value = number.exponent < 0 ? value / powers[-number.exponent] : value * powers[number.exponent];
        value = number.negative ? -value : value;
    } else {
        char text[MOST_NUMBER + 1];
        memcpy(text, number.text, number.size);
        text[number.size] = 0;
        value = PyOS_string_to_double(text, NULL, NULL);
        if (!isfinite(value)) return ODD;
    }
    return put_number(c, n, value);
}

static int json_integer(Cursor *c, Node *n) {
    Number number;
    if (!json_number(c, &number) || !number.is_whole) return ODD;
    if (n->kind == DECIMAL) return number.negative ? ODD : put_decimal(c, n, number.digits, 0);
    if (number.digits > INT64_MAX) return ODD;
    return put_integer(c, n, number.negative ? -(int64_t)number.digits : (int64_t)number.digits);
}

/* Return the value of `count` digits, -1 if there is another character. */
static int digits_at(const uint8_t *at, int count) {
    int value = 0;
    for (int digit = 0; digit < count; digit++) {
        if (at[digit] < '0' || at[digit] > '9') return -1;
        value = value * 10 + at[digit] - '0';
    }
    return value;
}

/* Days since the epoch of YYYY-MM-DD; INT32_MIN if it is no date. */
static int32_t day_at(const uint8_t *at) {
    static const uint8_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year = digits_at(at, 4), month = digits_at(at + 5, 2), day = digits_at(at + 8, 2);
    if (year < 1 || at[4] != '-' || at[7] != '-' || month < 1 || month > 12 || day < 1) return INT32_MIN;
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day > lengths[month - 1] + (month == 2 && leap)) return INT32_MIN;
    int from_march = (month + 9) % 12, years = year - (month < 3);
    return 365 * years + years / 4 - years / 100 + years / 400 + (153 * from_march + 2) / 5 + day - 1 - 719468;
}

static int put_day(Cursor *c, Node *n, const uint8_t *text, size_t size) {
    int32_t day = size == 10 ? day_at(text) : INT32_MIN;
    return day == INT32_MIN ? ODD : put_row(c, n, &day, 4, 1);
}

static int put_instant(Cursor *c, Node *n, const uint8_t *text, size_t size) {
    if (size < 19 || (text[10] != 'T' && text[10] != ' ') || text[13] != ':' || text[16] != ':') return ODD;
    int hour = digits_at(text + 11, 2), minute = digits_at(text + 14, 2), second = digits_at(text + 17, 2);
    int32_t day = day_at(text);
    if (day == INT32_MIN || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return ODD;
    int64_t micros = 0, zone = 0;
    const uint8_t *at = text + 19, *end = text + size;
    if (at < end && *at == '.') {
        int count = 0;
        for (at++; at < end && *at >= '0' && *at <= '9'; at++, count++) {
            if (count < 6) micros = micros * 10 + (*at - '0');
            else if (count == 6) micros += *at >= '5'; /* msgspec rounds by the seventh digit */
        }
        if (!count || count > 9) return ODD;
        for (; count < 6; count++) micros *= 10;
    }
    if (end - at == 6 && (*at == '+' || *at == '-') && at[3] == ':') {
        int hours = digits_at(at + 1, 2), minutes = digits_at(at + 4, 2);
        if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return ODD;
        zone = (*at == '-' ? -60 : 60) * (int64_t)(60 * hours + minutes);
    } else if (at != end && (end - at != 1 || *at != 'Z')) return ODD;
    /* The first and the last year may end in another one. */
    if (day < -719162 + 366 || day > 2932896 - 366) return ODD;
    int64_t value = (86400 * (int64_t)day + 3600 * hour + 60 * minute + second - zone) * 1000000 + micros;
    return put_row(c, n, &value, 8, 1);
}

/* A decimal of up to 18 digits as text. */
static int put_decimal_text(Cursor *c, Node *n, const uint8_t *text, size_t size) {
    const uint8_t *at = text, *end = text + size;
    int negative = at < end && *at == '-', digits = 0, scale = -1;
    uint64_t value = 0;
    for (at += negative; at < end; at++) {
        if (*at == '.' && scale < 0 && digits) scale = 0;
        else if (*at < '0' || *at > '9' || ++digits > 18) return ODD;
        else value = value * 10 + (*at - '0'), scale += scale >= 0;
    }
    if (!digits || scale == 0) return ODD;
    for (scale = scale < 0 ? 0 : scale; scale < n->scale; scale++, value *= 10)
        if (++digits > 18) return ODD;
    return scale > n->scale ? ODD : put_decimal(c, n, value, negative);
}

/* Go over any value. */
static int json_skip(Cursor *c) {
    Number number;
    skip_blanks(c);
    if (c->at == c->end) return ODD;
    uint8_t first = *c->at;
    if (first == '"') {
        c->at++;
        c->scratch.size = 0;
        return json_string(c, &c->scratch);
    }
    if (first == 't') return word(c, "true", 4);
    if (first == 'f') return word(c, "false", 5);
    if (first == 'n') return word(c, "null", 4);
    if (first != '{' && first != '[') return json_number(c, &number);
    if (++c->depth > c->deepest) return ODD;
    c->at++;
    char close = first == '{' ? '}' : ']';
    for (int more = 0; more || !is_next(c, close); more = 1) {
        if (close == '}') {
            if (!is_next(c, '"') || !json_skip(c) || !is_next(c, ':')) return ODD;
            c->at++;
        }
        if (!json_skip(c)) return ODD;
        if (!is_next(c, ',')) break;
        c->at++;
    }
    if (!is_next(c, close)) return ODD;
    c->at++;
    c->depth--;
    return TAKEN;
}

static int json_value(Cursor *c, Node *n);

/* Find the field whose name is at the cursor, behind its opening quote, beginning with the one that is likely. */
static Node *json_field(Cursor *c, Node *n, int likely) {
    Node *fields = c->nodes + n->first;
    if (likely < n->count) {
        const Name *name = &fields[likely].name;
        if ((size_t)(c->end - c->at) > name->length && c->at[name->length] == '"' &&
            !memcmp(c->at, name->text, name->length)) {
            c->at += name->length + 1;
            return fields + likely;
        }
    }
    c->scratch.size = 0;
    if (!json_string(c, &c->scratch)) return NULL;
    for (int step = 0; step < n->count; step++) {
        Node *field = fields + (likely + step) % n->count;
        if (field->name.length == c->scratch.size && !memcmp(field->name.text, c->scratch.data, c->scratch.size)) return field;
    }
    return n; /* a field that the schema does not have */
}

static int json_record(Cursor *c, Node *n) {
    int64_t row = n->rows;
    int likely = 0, found = 0;
    for (int more = 0; more || !is_next(c, '}'); more = 1) {
        if (!is_next(c, '"')) return ODD;
        c->at++;
        Node *field = json_field(c, n, likely);
        if (field == NULL || !is_next(c, ':')) return ODD;
        c->at++;
        if (field == n) {
            if (n->closed || !json_skip(c)) return ODD;
        } else {
            if (field->rows > row || !json_value(c, field)) return ODD; /* of a name that comes twice, the last counts */
            likely = (int)(field - c->nodes) - n->first + 1;
            found++;
        }
        if (!is_next(c, ',')) break;
        c->at++;
    }
    if (!is_next(c, '}')) return ODD;
    for (int at = 0; found < n->count && at < n->count; at++) {
        Node *field = c->nodes + n->first + at;
        if (field->rows == row && (field->required || !put_null(c, field))) return ODD;
    }
    return put_row(c, n, "", 0, 1);
}

static int json_list(Cursor *c, Node *n) {
    Node *first = c->nodes + n->first, *items = first + n->count - 1;
    int64_t before = items->rows, count;
    for (int more = 0; more || !is_next(c, n->kind == MAP ? '}' : ']'); more = 1) {
        if (n->kind == MAP) {
            if (!is_next(c, '"') || !json_value(c, first) || !is_next(c, ':')) return ODD;
            c->at++;
        }
        if (!json_value(c, items)) return ODD;
        if (!is_next(c, ',')) break;
        c->at++;
    }
    if (!is_next(c, n->kind == MAP ? '}' : ']')) return ODD;
    count = items->rows - before;
    if (count < n->low || count > n->high || (n->kind == MAP && !are_different(first, count))) return ODD;
    return put_end(c, n, items->rows, 1);
}

static int json_value(Cursor *c, Node *n) {
    skip_blanks(c);
    if (c->at == c->end) return ODD;
    uint8_t first = *c->at;
    const uint8_t *begin = c->at;
    if (n->kind == TEXT) {
        if (!json_skip(c)) return ODD;
        size_t size = c->at - begin;
        if (size == 4 && !memcmp(begin, "null", 4)) return put_null(c, n);
        if (!roomy(c, &n->text, size)) return ODD;
        memcpy(n->text.data + n->text.size, begin, size);
        n->text.size += size;
        return put_end(c, n, (int64_t)n->text.size, 1);
    }
    if (first == 'n') return n->nullable && word(c, "null", 4) ? put_null(c, n) : ODD;
    switch (n->kind) {
    case BOOLEAN:
        first = first == 't';
        return word(c, first ? "true" : "false", first ? 4 : 5) ? put_row(c, n, &first, 1, 1) : ODD;
    case INTEGER: return json_integer(c, n);
    case NUMBER: return json_double(c, n);
    case STRING:
        c->at++;
        return first == '"' && json_string(c, &n->text) ? put_text(c, n) : ODD;
    case RECORD: case LIST: case MAP:
        if (first != (n->kind == LIST ? '[' : '{') || ++c->depth > c->deepest) return ODD;
        c->at++;
        if (!(n->kind == RECORD ? json_record(c, n) : json_list(c, n))) return ODD;
        c->at++;
        c->depth--;
        return TAKEN;
    }
    if (first != '"') return n->kind == DECIMAL && n->closed ? json_integer(c, n) : ODD;
    c->at++;
    c->scratch.size = 0;
    if ((n->kind == DECIMAL && n->closed) || !json_string(c, &c->scratch)) return ODD;
    if (n->kind == DATE) return put_day(c, n, c->scratch.data, c->scratch.size);
    if (n->kind == INSTANT) return put_instant(c, n, c->scratch.data, c->scratch.size);
    return n->kind == DECIMAL ? put_decimal_text(c, n, c->scratch.data, c->scratch.size) : ODD;
}

static int json_row(Cursor *c) {
    if (!json_value(c, c->nodes)) return ODD;
    skip_blanks(c);
    return c->at == c->end ? TAKEN : ODD;
}

/* ---------------------------------------------------------------- Avro */
static int varint(Cursor *c, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        if (shift == 63 && byte > 1) return ODD;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return TAKEN;
    }
    return ODD;
}

static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static int avro_long(Cursor *c, int64_t *value) {
    uint64_t raw;
    if (!varint(c, &raw)) return ODD;
    *value = unzigzag(raw);
    return TAKEN;
}

/* The bytes at the cursor, of a size that is known (0 or more) or in front of them. */
static const uint8_t *avro_bytes(Cursor *c, int64_t *size) {
    const uint8_t *found;
    if ((*size < 0 && !avro_long(c, size)) || *size < 0 || *size > c->end - c->at) return NULL;
    found = c->at;
    c->at += *size;
    return found;
}

static int avro_value(Cursor *c, Node *n);

static int avro_blocks(Cursor *c, Node *n) {
    Node *first = c->nodes + n->first, *items = first + n->count - 1;
    int64_t before = items->rows, count, size;
    while (avro_long(c, &count)) {
        if (!count) {
            count = items->rows - before;
            return n->kind == MAP && !are_different(first, count) ? ODD : put_end(c, n, items->rows, 1);
        }
        if (count < -INT32_MAX || (count < 0 && !avro_long(c, &size))) return ODD;
        count = count < 0 ? -count : count;
        if (count > c->end - c->at) return ODD; /* elements without bytes, too */
        while (count--)
            if ((n->kind == MAP && !avro_value(c, first)) || !avro_value(c, items)) return ODD;
    }
    return ODD;
}

static int avro_decimal(Cursor *c, Node *n) {
    int64_t size = n->wire;
    const uint8_t *at = avro_bytes(c, &size);
    if (at == NULL) return ODD;
    int negative = size && at[0] >= 0x80;
    uint64_t value = negative ? ~(uint64_t)0 : 0;
    for (; size > 8; size--)
        if (*at++ != (uint8_t)value) return ODD; /* more than 64 bits */
    if (size == 8 && (at[0] >= 0x80) != negative) return ODD;
    for (; size; size--) value = value << 8 | *at++;
    return put_decimal(c, n, negative ? ~value + 1 : value, negative);
}

static int avro_value(Cursor *c, Node *n) {
    int64_t value = n->wire;
    const uint8_t *at;
    double wide;
    float narrow;
    int32_t day;
    if (n->nullable) {
        if (!avro_long(c, &value) || value < 0 || value > 1) return ODD;
        if (value == n->number) return put_null(c, n);
        value = n->wire;
    }
    switch (n->kind) {
    case BOOLEAN: return c->at < c->end && *c->at < 2 ? put_row(c, n, c->at++, 1, 1) : ODD;
    case INTEGER: return avro_long(c, &value) ? put_integer(c, n, value) : ODD;
    case NUMBER:
        if ((at = avro_bytes(c, &value)) == NULL) return ODD;
        memcpy(value == 4 ? (void *)&narrow : (void *)&wide, at, value);
        return put_number(c, n, value == 4 ? narrow : wide);
    case DECIMAL: return avro_decimal(c, n);
    case STRING: case BYTES:
        if (n->symbols != NULL) return avro_long(c, &value) ? put_symbol(c, n, value) : ODD;
        return (at = avro_bytes(c, &value)) != NULL ? put_bytes(c, n, at, value) : ODD;
    case DATE:
        if (!avro_long(c, &value) || value < n->low || value > n->high) return ODD;
        day = (int32_t)value;
        return put_row(c, n, &day, 4, 1);
    case INSTANT:
        if (!avro_long(c, &value)) return ODD;
        if (n->wire > 1 && (value > INT64_MAX / n->wire || value < INT64_MIN / n->wire)) return ODD;
        if (n->wire < 0) value = value / -n->wire - (value % -n->wire < 0); /* rounded down */
        return put_integer(c, n, n->wire < 0 ? value : value * n->wire);
    case RECORD:
        for (int child = 0; child < n->count; child++)
            if (!avro_value(c, c->nodes + n->first + child)) return ODD;
        return put_row(c, n, "", 0, 1);
    case LIST: case MAP: return avro_blocks(c, n);
    }
    return ODD;
}

static int avro_row(Cursor *c) { return avro_value(c, c->nodes) && c->at == c->end ? TAKEN : ODD; }

/* ---------------------------------------------------------------- Protobuf */
/* Types of fields, as descriptors number them, and of what is on the wire. */
enum { T_DOUBLE = 1, T_FLOAT, T_INT64, T_UINT64, T_INT32, T_FIXED64, T_FIXED32, T_BOOL, T_STRING, T_GROUP, T_MESSAGE,
       T_BYTES, T_UINT32, T_ENUM, T_SFIXED32, T_SFIXED64, T_SINT32, T_SINT64 };
enum { VARINT, WIDE, LENGTH, NARROW = 5 };
static const int WIRES[] = {-1, WIDE, NARROW, VARINT, VARINT, VARINT, WIDE, NARROW, VARINT, LENGTH, -1, LENGTH, LENGTH,
                            VARINT, VARINT, NARROW, WIDE, VARINT, VARINT};

static int pb_tag(Cursor *c, uint64_t *number, int *wire) {
    const uint8_t *begin = c->at;
    if (!varint(c, number) || c->at - begin > 5 || *number >> 32) return ODD;
    *wire = (int)(*number & 7);
    *number >>= 3;
    return *number ? TAKEN : ODD;
}

/* Read what is on the wire: a number, or the size of the bytes at the cursor, which are there. */
static int pb_raw(Cursor *c, int wire, uint64_t *raw) {
    *raw = 0;
    if (wire == VARINT) return varint(c, raw);
    if (wire == LENGTH) return varint(c, raw) && *raw <= (uint64_t)(c->end - c->at) ? TAKEN : ODD;
    int size = wire == WIDE ? 8 : 4;
    if ((wire != WIDE && wire != NARROW) || c->end - c->at < size) return ODD;
    memcpy(raw, c->at, size);
    c->at += size;
    return TAKEN;
}

static int pb_message(Cursor *c, Node *n);

/* A value whose bytes are those of the cursor; without any, the default. */
static int pb_value(Cursor *c, Node *n, int type, uint64_t raw) {
    double number;
    float narrow;
    char text[24];
    uint8_t flag = raw != 0;
    switch (type) {
    case T_DOUBLE: memcpy(&number, &raw, 8); return put_number(c, n, number);
    case T_FLOAT: memcpy(&narrow, &raw, 4); return put_number(c, n, narrow);
    case T_UINT64: case T_FIXED64:
        if (n->kind == DECIMAL) return put_decimal(c, n, raw, 0);
        return put_bytes(c, n, (uint8_t *)text, snprintf(text, sizeof text, "%llu", (unsigned long long)raw)); /* key */
    case T_BOOL: return put_row(c, n, &flag, 1, 1);
    case T_UINT32: case T_FIXED32: return put_integer(c, n, (uint32_t)raw);
    case T_INT32: case T_SFIXED32: return put_integer(c, n, (int32_t)raw);
    case T_SINT32: return put_integer(c, n, (int32_t)unzigzag((uint32_t)raw));
    case T_SINT64: return put_integer(c, n, unzigzag(raw));
    case T_INT64: case T_SFIXED64: return put_integer(c, n, (int64_t)raw);
    case T_ENUM:
        for (int at = 0; at < n->symbol_count; at++)
            if (n->symbols[at].number == (int32_t)raw) return put_symbol(c, n, at);
        return ODD;
    case T_STRING: case T_BYTES:
        if (!put_bytes(c, n, c->at, raw)) return ODD;
        c->at += raw;
        return TAKEN;
    }
    const uint8_t *end = c->end;
    uint64_t field, parts[2] = {0, 0};
    int wire, taken;
    if (type != T_MESSAGE) return ODD;
    c->end = c->at + raw;
    if (n->kind == RECORD) taken = pb_message(c, n);
    else if (n->kind == INSTANT) { /* seconds and nanoseconds */
        while ((taken = c->at < c->end))
            if (!pb_tag(c, &field, &wire) || field > 2 || wire != VARINT || !varint(c, parts + field - 1)) break;
        int64_t seconds = (int64_t)parts[0], nanos = (int32_t)parts[1];
        if (taken || nanos < 0 || nanos > 999999999 || seconds < -100000000000 || seconds > 1000000000000) taken = ODD;
        else taken = put_integer(c, n, seconds * 1000000 + nanos / 1000);
    } else { /* a wrapper */
        wire = WIRES[n->wrapped];
        taken = c->at == c->end || (pb_tag(c, &field, &wire) && field == 1 && wire == WIRES[n->wrapped] &&
                                    pb_raw(c, wire, parts));
        taken = taken && pb_value(c, n, n->wrapped, parts[0]) && c->at == c->end;
    }
    c->end = end;
    return taken;
}

/* One entry of a map: its key and its value, each at most once, in any order. */
static int pb_entry(Cursor *c, Node *n, uint64_t size) {
    const uint8_t *end = c->end;
    int64_t rows = c->nodes[n->first].rows;
    uint64_t number, raw;
    int wire;
    for (c->end = c->at + size; c->at < c->end;) {
        if (!pb_tag(c, &number, &wire) || number > 2) return ODD;
        Node *part = c->nodes + n->first + number - 1;
        if (part->rows != rows || wire != WIRES[part->wire] || !pb_raw(c, wire, &raw)) return ODD;
        if (!pb_value(c, part, part->wire, raw)) return ODD;
    }
    for (Node *part = c->nodes + n->first; part < c->nodes + n->first + 2; part++)
        if (part->rows == rows && !pb_value(c, part, part->wire, 0)) return ODD;
    c->end = end;
    return TAKEN;
}

static int pb_field(Cursor *c, Node *n, int64_t row, int wire) {
    uint64_t raw;
    Node *items = c->nodes + n->first;
    if (n->kind == MAP) return wire == LENGTH && pb_raw(c, wire, &raw) ? pb_entry(c, n, raw) : ODD;
    if (n->kind != LIST) {
        if (n->rows > row || wire != WIRES[n->wire] || !pb_raw(c, wire, &raw)) return ODD; /* of two, the last counts */
        return pb_value(c, n, n->wire, raw);
    }
    if (wire != LENGTH || WIRES[items->wire] == LENGTH)
        return wire == WIRES[items->wire] && pb_raw(c, wire, &raw) ? pb_value(c, items, items->wire, raw) : ODD;
    if (!pb_raw(c, wire, &raw)) return ODD;
    const uint8_t *end = c->end;
    for (c->end = c->at + raw; c->at < c->end;) /* packed */
        if (!pb_raw(c, WIRES[items->wire], &raw) || !pb_value(c, items, items->wire, raw)) return ODD;
    c->end = end;
    return TAKEN;
}

static int pb_message(Cursor *c, Node *n) {
    int64_t row = n->rows;
    int likely = 0, wire, step;
    uint64_t number;
    Node *fields = c->nodes + n->first, *field = NULL;
    while (c->at < c->end) {
        if (!pb_tag(c, &number, &wire)) return ODD;
        for (step = 0; step < n->count; step++, likely = likely + 1 == n->count ? 0 : likely + 1)
            if ((uint64_t)(field = fields + likely)->number == number) break;
        if (step == n->count) {
            uint64_t raw;
            if (!pb_raw(c, wire, &raw)) return ODD;
            c->at += wire == LENGTH ? raw : 0;
        } else {
            for (int at = 0; field->group && at < n->count; at++) /* another member of a `oneof` takes its place */
                if (fields[at].group == field->group && fields[at].rows > row) return ODD;
            if (!pb_field(c, field, row, wire)) return ODD;
        }
    }
    for (field = fields; field < fields + n->count; field++) {
        if (field->rows > row) continue;
        if (field->kind == LIST || field->kind == MAP) {
            Node *items = c->nodes + field->first;
            if (field->kind == MAP && !are_different(items, items->rows - end_of(field, row))) return ODD;
            if (!put_end(c, field, items->rows, 1)) return ODD;
        } else if (field->required || !(field->nullable ? put_null(c, field) : pb_value(c, field, field->wire, 0))) return ODD;
    }
    return put_row(c, n, "", 0, 1);
}

static int pb_row(Cursor *c) { return pb_message(c, c->nodes); }

#endif
