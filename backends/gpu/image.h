/* SPDX-License-Identifier: MIT
 *
 * The device images embedded in this build: which arch, what kind, where the bytes are and their hash.
 * The build writes the rows (STW_IMAGE_ROWS); a build without device code has none. Read by the GPU
 * backends, the probe and `sternway info`. */
#ifndef STW_GPU_IMAGE_H
#define STW_GPU_IMAGE_H

#include "common/status.h"

typedef enum stw_image_kind {
    STW_IMAGE_CUBIN = 1,      /* runs on compute capabilities of the same major version */
    STW_IMAGE_PTX = 2,        /* compiled by the driver, for any newer NVIDIA GPU       */
    STW_IMAGE_CODE_OBJECT = 4 /* runs on exactly its gfx target                         */
} stw_image_kind;

typedef struct stw_image {
    stw_backend backend;
    const char *arch; /* a row of common/arch.def */
    stw_image_kind kind;
    const unsigned char *begin, *end;
    uint64_t hash; /* stw_image_hash of the bytes when they were embedded */
} stw_image;

typedef struct stw_image_set {
    const stw_image *rows;
    size_t count;
    const char *ops; /* whose kernels they hold: "attention", "jagged" or "ranks" */
} stw_image_set;

/* The images of this build: attention's, those of the jagged operations, and what attention over ranks does between its
 * calls; a device loads each on its own. */
extern const stw_image_set stw_images, stw_jagged_images, stw_cp_images;

/* Image `index` of all that are embedded, set by set, and its set; NULL past the last. */
const stw_image *stw_image_at(size_t index, const stw_image_set **set_out);

/* The first row of that backend, arch and one of `kinds` (STW_IMAGE_* ored), or NULL. */
const stw_image *stw_image_find(const stw_image_set *set, stw_backend backend, const char *arch, unsigned kinds);

/* Adds "none", or "sm80 cubin, sm80 ptx, gfx942 code object". */
void stw_image_list(const stw_image_set *set, stw_text *text);

const char *stw_image_kind_name(stw_image_kind kind);

/* 64-bit FNV-1a: catches a damaged or wrongly linked image; it is no protection against an attacker. */
uint64_t stw_image_hash(const unsigned char *begin, const unsigned char *end);

/* 1 when the bytes are those that were embedded. */
int stw_image_intact(const stw_image *image);

/* HIP's images are embedded packed, in a quarter of their bytes: after a head of STW_PACKED_MAGIC and eight bytes of
 * the size come sequences as LZ4's blocks have them, but with offsets of three bytes, since kernels resemble one
 * another over more than 64 KB. cmake/image_rows/pack.c packs. */
#define STW_PACKED_MAGIC "STWPACK1"
enum { STW_PACKED_HEAD = 16, STW_PACKED_MATCH = 5 }; /* bytes of the head; of the shortest match */

/* Bytes of the image as a driver takes it, packed or not. */
size_t stw_image_size(const stw_image *image);

/* Writes that many bytes; 1, or 0 where packed ones are damaged. */
int stw_image_unpack(const stw_image *image, unsigned char *out);

#endif
