/* SPDX-License-Identifier: MIT
 *
 * Build-time tool of cmake/image.cmake: packs a device image as backends/gpu/image.h describes, and unpacks it again to
 * be sure.
 *   image_pack IMAGE OUTPUT */
#include "backends/gpu/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HASH_BITS = 18, CANDIDATES = 64, BACK_MOST = (1 << 24) - 1 };

typedef struct buffer {
    unsigned char *bytes;
    size_t size, capacity;
} buffer;

static void put(buffer *b, const void *bytes, size_t size) {
    if (b->size + size > b->capacity) {
        b->capacity = 2 * (b->size + size) + (1 << 20);
        b->bytes = realloc(b->bytes, b->capacity);
        if (!b->bytes) abort();
    }
    if (size) memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

static void put_byte(buffer *b, size_t byte) { put(b, &(unsigned char){(unsigned char)byte}, 1); }

static void put_length(buffer *b, size_t length) {
    if (length < 15) return;
    for (length -= 15; length >= 255; length -= 255) put_byte(b, 255);
    put_byte(b, length);
}

/* Literals, then a match `back` bytes before; the last sequence has none (match 0). */
static void put_sequence(buffer *b, const unsigned char *literals, size_t count, size_t back, size_t match) {
    const size_t more = match ? match - STW_PACKED_MATCH : 0;
    put_byte(b, (count < 15 ? count : 15) << 4 | (more < 15 ? more : 15));
    put_length(b, count);
    put(b, literals, count);
    if (!match) return;
    for (int i = 0; i < 3; ++i) put_byte(b, back >> 8 * i & 255);
    put_length(b, more);
}

static uint32_t hash_of(const unsigned char *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return (word ^ at[4] * 0x9e3779u) * 2654435761u >> (32 - HASH_BITS);
}

static void pack(const unsigned char *in, size_t size, buffer *out) {
    int64_t *last = malloc(sizeof *last << HASH_BITS), *before = malloc(sizeof *before * (size + 1));
    if (!last || !before) abort();
    for (size_t i = 0; i < (size_t)1 << HASH_BITS; ++i) last[i] = -1;
    put(out, STW_PACKED_MAGIC, 8);
    for (int i = 0; i < 8; ++i) put_byte(out, (uint64_t)size >> 8 * i & 255);
    size_t literals = 0, at = 0;
    while (at + STW_PACKED_MATCH <= size) {
        size_t best = 0, back = 0;
        int tries = CANDIDATES;
        for (int64_t from = last[hash_of(in + at)]; from >= 0 && tries--; from = before[from]) {
            size_t length = 0;
            if (at - (size_t)from > BACK_MOST) break;
            while (at + length < size && in[from + (int64_t)length] == in[at + length]) ++length;
            if (length > best) best = length, back = at - (size_t)from;
        }
        if (best < STW_PACKED_MATCH) best = 0;
        if (best) {
            put_sequence(out, in + literals, at - literals, back, best);
            literals = at + best;
        }
        for (size_t end = at + (best ? best : 1); at < end; ++at) {
            if (at + STW_PACKED_MATCH > size) continue;
            uint32_t hash = hash_of(in + at);
            before[at] = last[hash];
            last[hash] = (int64_t)at;
        }
    }
    if (literals < size) put_sequence(out, in + literals, size - literals, 0, 0);
    free(last);
    free(before);
}

int main(int count, char **words) {
    buffer in = {0}, out = {0};
    FILE *from = count == 3 ? fopen(words[1], "rb") : NULL, *to;
    if (!from) {
        fprintf(stderr, "usage: image_pack IMAGE OUTPUT\n");
        return 1;
    }
    unsigned char part[4096];
    for (size_t got; (got = fread(part, 1, sizeof part, from)) > 0;) put(&in, part, got);
    if (ferror(from) || fclose(from)) return perror(words[1]), 1;
    pack(in.bytes, in.size, &out);
    const stw_image packed = {.begin = out.bytes, .end = out.bytes + out.size};
    unsigned char *again = malloc(in.size + 1);
    if (!again || stw_image_size(&packed) != in.size || !stw_image_unpack(&packed, again) ||
        memcmp(again, in.bytes, in.size)) {
        fprintf(stderr, "image_pack: %s does not come back\n", words[1]);
        return 1;
    }
    to = fopen(words[2], "wb");
    if (!to || fwrite(out.bytes, 1, out.size, to) != out.size || fclose(to)) return perror(words[2]), 1;
    free(again);
    free(in.bytes);
    free(out.bytes);
    return 0;
}
