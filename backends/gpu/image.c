/* SPDX-License-Identifier: MIT
 *
 * The tables of embedded device images. With device code the build defines STW_IMAGE_ROWS and
 * STW_JAGGED_IMAGE_ROWS as the paths of generated files of rows
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

const stw_image_set stw_images = {image_rows, sizeof image_rows / sizeof image_rows[0] - 1, "attention"};
const stw_image_set stw_jagged_images = {jagged_rows, sizeof jagged_rows / sizeof jagged_rows[0] - 1, "jagged"};

const stw_image *stw_image_at(size_t index, const stw_image_set **set_out) {
    const stw_image_set *set = index < stw_images.count ? &stw_images : &stw_jagged_images;
    size_t row = index < stw_images.count ? index : index - stw_images.count;
    *set_out = set;
    return row < set->count ? &set->rows[row] : NULL;
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
