/* SPDX-License-Identifier: MIT
 *
 * The tables of embedded device images. With device code the build defines STW_IMAGE_ROWS, STW_JAGGED_IMAGE_ROWS and
 * STW_CP_IMAGE_ROWS as the paths of generated files of rows
 *     STW_IMAGE(BACKEND, arch, KIND, symbol, hash)   symbol_begin and symbol_end bound the bytes */
#include "backends/gpu/image.h"

#include <string.h>

#define STW_IMAGE(backend, arch, kind, symbol, hash) extern const unsigned char symbol##_begin[], symbol##_end[];
#ifdef STW_IMAGE_ROWS
#include STW_IMAGE_ROWS
#endif
#ifdef STW_JAGGED_IMAGE_ROWS
#include STW_JAGGED_IMAGE_ROWS
#endif
#ifdef STW_CP_IMAGE_ROWS
#include STW_CP_IMAGE_ROWS
#endif
#undef STW_IMAGE

#define STW_IMAGE(backend, arch, kind, symbol, hash)                                                                   \
    {STW_BACKEND_##backend, #arch, STW_IMAGE_##kind, symbol##_begin, symbol##_end, hash},
#define NO_IMAGE {STW_BACKEND_AUTO, "", STW_IMAGE_CUBIN, NULL, NULL, 0} /* C11 has no empty array; not counted */
static const stw_image image_rows[] = {
#ifdef STW_IMAGE_ROWS
#include STW_IMAGE_ROWS
#endif
    NO_IMAGE};
static const stw_image jagged_rows[] = {
#ifdef STW_JAGGED_IMAGE_ROWS
#include STW_JAGGED_IMAGE_ROWS
#endif
    NO_IMAGE};
static const stw_image cp_rows[] = {
#ifdef STW_CP_IMAGE_ROWS
#include STW_CP_IMAGE_ROWS
#endif
    NO_IMAGE};

const stw_image_set stw_images = {image_rows, sizeof image_rows / sizeof image_rows[0] - 1, "attention"};
const stw_image_set stw_jagged_images = {jagged_rows, sizeof jagged_rows / sizeof jagged_rows[0] - 1, "jagged"};
const stw_image_set stw_cp_images = {cp_rows, sizeof cp_rows / sizeof cp_rows[0] - 1, "ranks"};

const stw_image *stw_image_at(size_t index, const stw_image_set **set_out) {
    const stw_image_set *const sets[] = {&stw_images, &stw_jagged_images, &stw_cp_images};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; index -= sets[i++]->count) {
        *set_out = sets[i];
        if (index < sets[i]->count) return &sets[i]->rows[index];
    }
    return NULL;
}

const stw_image *stw_image_find(const stw_image_set *set, stw_backend backend, const char *arch, unsigned kinds) {
    for (size_t i = 0; i < set->count; ++i) {
        const stw_image *row = &set->rows[i];
        if (row->backend == backend && (kinds & (unsigned)row->kind) && !strcmp(row->arch, arch)) return row;
    }
    return NULL;
}

const char *stw_image_kind_name(stw_image_kind kind) {
    switch (kind) {
    case STW_IMAGE_CUBIN: return "cubin";
    case STW_IMAGE_PTX: return "ptx";
    case STW_IMAGE_CODE_OBJECT: return "code object";
    }
    return "?";
}

void stw_image_list(const stw_image_set *set, stw_text *text) {
    if (!set->count) stw_text_add(text, "none");
    for (size_t i = 0; i < set->count; ++i)
        stw_text_add(text, "%s%s %s", i ? ", " : "", set->rows[i].arch, stw_image_kind_name(set->rows[i].kind));
#ifdef STW_LEFT_OUT
    stw_text_add(text, "; left out: %s", STW_LEFT_OUT); /* and why (cmake/image.cmake) */
#endif
}

uint64_t stw_image_hash(const unsigned char *begin, const unsigned char *end) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const unsigned char *byte = begin; byte < end; ++byte) hash = (hash ^ *byte) * 0x100000001b3u;
    return hash;
}

int stw_image_intact(const stw_image *image) { return stw_image_hash(image->begin, image->end) == image->hash; }

static int is_packed(const stw_image *image) {
    return image->end - image->begin >= STW_PACKED_HEAD && !memcmp(image->begin, STW_PACKED_MAGIC, 8);
}

size_t stw_image_size(const stw_image *image) {
    uint64_t size = 0;
    if (!is_packed(image)) return (size_t)(image->end - image->begin);
    for (int i = 7; i >= 0; --i) size = size << 8 | image->begin[8 + i];
    return (size_t)size;
}

/* A length whose four bits were all set goes on in bytes, up to the first that is not 255. */
static int read_length(const unsigned char **in, const unsigned char *end, size_t *length) {
    if (*length < 15) return 1;
    while (*in < end) {
        unsigned char byte = *(*in)++;
        *length += byte;
        if (byte < 255) return 1;
    }
    return 0;
}

/* `count` bytes that do not overlap, or that a match of 16 bytes back and more repeats. Where `room` bytes may be read
 * and written, short ones take two copies of a constant size: most sequences are short. */
static void copy_short(unsigned char *out, const unsigned char *from, size_t count, size_t room) {
    if (count > 32 || room < 32) {
        for (; count > 16; count -= 16, out += 16, from += 16) memcpy(out, from, 16);
        memcpy(out, from, count);
        return;
    }
    memcpy(out, from, 16);
    memcpy(out + 16, from + 16, 16);
}

int stw_image_unpack(const stw_image *image, unsigned char *out) {
    const size_t size = stw_image_size(image);
    const unsigned char *in = image->begin + STW_PACKED_HEAD, *end = image->end;
    if (!is_packed(image)) {
        memcpy(out, image->begin, size);
        return 1;
    }
    size_t at = 0;
    while (at < size && in < end) {
        size_t literals = *in >> 4, match = *in & 15;
        ++in;
        if (!read_length(&in, end, &literals) || literals > (size_t)(end - in) || literals > size - at) return 0;
        const size_t left = (size_t)(end - in), room = size - at;
        copy_short(out + at, in, literals, room < left ? room : left);
        in += literals;
        at += literals;
        if (at == size) return !match && in == end; /* the last sequence has no match */
        if (end - in < 3) return 0;
        const size_t back = in[0] | (size_t)in[1] << 8 | (size_t)in[2] << 16;
        in += 3;
        if (!read_length(&in, end, &match)) return 0;
        match += STW_PACKED_MATCH;
        if (!back || back > at || match > size - at) return 0;
        if (back >= 16) {
            copy_short(out + at, out + at - back, match, size - at);
            at += match;
        } else {
            for (; match; --match, ++at) out[at] = out[at - back];
        }
    }
    return at == size && in == end;
}
