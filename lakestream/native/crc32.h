/* CRC-32 as zlib has it (polynomial 0xEDB88320, reflected), without a library that a machine may lack.

Belongs here: the two ways to compute it. Eight bytes at a time by tables everywhere; on x86-64 with PCLMULQDQ, found at
run time, 64 bytes at a time by carry-less multiplication, after Gopal, Ozturk, Guilford et al., "Fast CRC Computation
for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). Little-endian machines only. */

#ifndef LAKESTREAM_CRC32_H
#define LAKESTREAM_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC_BY_FOLDING 1
#include <cpuid.h>
#include <immintrin.h>
#endif

static uint32_t crc_tables[8][256];
static int crc_folds = 0;

/* Call it once before crc32_of. */
static void crc_prepare(void) {
    for (uint32_t at = 0; at < 256; at++) {
        uint32_t value = at;
        for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
        crc_tables[0][at] = value;
    }
    for (int table = 1; table < 8; table++)
        for (int at = 0; at < 256; at++) {
            uint32_t value = crc_tables[table - 1][at];
            crc_tables[table][at] = (value >> 8) ^ crc_tables[0][value & 255];
        }
#ifdef CRC_BY_FOLDING
    /* Not __builtin_cpu_supports: its table is in a library that not every compiler links into a module. */
    unsigned eax, ebx, ecx = 0, edx;
    crc_folds = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_PCLMUL) && (ecx & bit_SSE4_1);
#endif
}

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *text, size_t length) {
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        word ^= crc;
        crc = crc_tables[7][word & 255] ^ crc_tables[6][(word >> 8) & 255] ^ crc_tables[5][(word >> 16) & 255] ^
              crc_tables[4][(word >> 24) & 255] ^ crc_tables[3][(word >> 32) & 255] ^
              crc_tables[2][(word >> 40) & 255] ^ crc_tables[1][(word >> 48) & 255] ^ crc_tables[0][word >> 56];
    }
    for (; length; length--) crc = (crc >> 8) ^ crc_tables[0][(crc ^ *text++) & 255];
    return crc;
}

#ifdef CRC_BY_FOLDING
#define LOADED(at) _mm_loadu_si128((const __m128i *)(at))
/* The 128 bits of x moved on by the distance that the two constants stand for. */
#define FOLDED(x, by) _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11))

/* At least 64 bytes, a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_folding(uint32_t crc, const uint8_t *text, size_t length) {
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(LOADED(text), _mm_cvtsi32_si128((int)crc));
    __m128i b = LOADED(text + 16), c = LOADED(text + 32), d = LOADED(text + 48), rest;
    for (text += 64, length -= 64; length >= 64; text += 64, length -= 64) {
        a = _mm_xor_si128(FOLDED(a, by_512), LOADED(text));
        b = _mm_xor_si128(FOLDED(b, by_512), LOADED(text + 16));
        c = _mm_xor_si128(FOLDED(c, by_512), LOADED(text + 32));
        d = _mm_xor_si128(FOLDED(d, by_512), LOADED(text + 48));
    }
    a = _mm_xor_si128(FOLDED(a, by_128), b);
    a = _mm_xor_si128(FOLDED(a, by_128), c);
    a = _mm_xor_si128(FOLDED(a, by_128), d);
    for (; length; text += 16, length -= 16) a = _mm_xor_si128(FOLDED(a, by_128), LOADED(text));
    /* 128 bits to 64, to 32, and Barrett's reduction. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), by_64, 0x00));
    rest = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low), barrett, 0x10), low);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, _mm_clmulepi64_si128(rest, barrett, 0x00)), 1);
}
#endif

/* The CRC of bytes behind others that have the CRC `before`. */
static uint32_t crc32_on(uint32_t before, const uint8_t *text, size_t length) {
    uint32_t crc = before ^ 0xFFFFFFFFu;
#ifdef CRC_BY_FOLDING
    if (crc_folds && length >= 64) {
        size_t folded = length & ~(size_t)15;
        crc = crc_by_folding(crc, text, folded);
        text += folded;
        length -= folded;
    }
#endif
    return crc_by_tables(crc, text, length) ^ 0xFFFFFFFFu;
}

static uint32_t crc32_of(const uint8_t *text, size_t length) { return crc32_on(0, text, length); }

#endif
