/* SPDX-License-Identifier: MIT
 *
 * The blocks of arena.h. */
#include "arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { GUARD = 512, PATTERN = 0xA5 };

void *arena_add(arena *a, const char *name, double elements, size_t element_size, arena_kind kind) {
    const double bytes = elements * (double)element_size;
    if (bytes < 0 || bytes > 1e9 || a->count == ARENA_MAX) {
        fprintf(stderr, "arena: %s needs %g bytes\n", name, bytes);
        abort();
    }
    arena_block *b = &a->list[a->count++];
    const size_t skew = kind == ARENA_WORKSPACE ? 1 : (size_t)a->skew * element_size;
    b->name = name;
    b->kind = kind;
    b->bytes = (size_t)bytes;
    b->base_bytes = (GUARD + skew + b->bytes + GUARD + 255) / 256 * 256;
    b->base = aligned_alloc(256, b->base_bytes);
    b->kept = malloc(b->bytes ? b->bytes : 1);
    if (!b->base || !b->kept) abort();
    memset(b->base, PATTERN, b->base_bytes);
    b->data = b->base + GUARD + skew;
    memset(b->data, ARENA_POISON, b->bytes);
    ASAN_POISON_MEMORY_REGION(b->base, (size_t)(b->data - b->base));
    ASAN_POISON_MEMORY_REGION(b->data + b->bytes, b->base_bytes - (size_t)(b->data - b->base) - b->bytes);
    return b->data;
}

void arena_keep(arena *a) {
    for (int n = 0; n < a->count; ++n) memcpy(a->list[n].kept, a->list[n].data, a->list[n].bytes);
}

static int block_wrong(const arena_block *b, int refused, char *text, size_t size) {
    const size_t front = (size_t)(b->data - b->base);
    for (size_t i = 0; i < b->base_bytes; ++i) {
        if (i >= front && i < front + b->bytes) continue;
        if (b->base[i] == PATTERN) continue;
        snprintf(text, size, "%s: the byte %ld of its %zu was written", b->name, (long)i - (long)front, b->bytes);
        return 1;
    }
    if (b->kind != ARENA_INPUT && (b->kind != ARENA_OUTPUT || !refused)) return 0;
    for (size_t i = 0; i < b->bytes; ++i) {
        if (b->data[i] == b->kept[i]) continue;
        snprintf(text, size, "%s: byte %zu of it was written%s", b->name, i,
                 refused ? " by a refused call" : ", an input");
        return 1;
    }
    return 0;
}

const char *arena_wrong(arena *a, int refused) {
    static char text[256];
    int wrong = 0;
    for (int n = 0; n < a->count && !wrong; ++n) {
        arena_block *b = &a->list[n];
        ASAN_UNPOISON_MEMORY_REGION(b->base, b->base_bytes);
        wrong = block_wrong(b, refused, text, sizeof text);
        ASAN_POISON_MEMORY_REGION(b->base, (size_t)(b->data - b->base));
        ASAN_POISON_MEMORY_REGION(b->data + b->bytes, b->base_bytes - (size_t)(b->data - b->base) - b->bytes);
    }
    return wrong ? text : NULL;
}

void arena_free(arena *a) {
    for (int n = 0; n < a->count; ++n) {
        ASAN_UNPOISON_MEMORY_REGION(a->list[n].base, a->list[n].base_bytes);
        free(a->list[n].base);
        free(a->list[n].kept);
    }
    memset(a, 0, sizeof *a);
}
