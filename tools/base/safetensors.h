/* SPDX-License-Identifier: MIT
 *
 * The safetensors container (8 bytes of little-endian header length, a JSON header, the data), read and
 * written. `sternway run`, the tests and the fuzzer call it. Nothing in a file is trusted: what the parser
 * accepts lies wholly inside the bytes it was given, without overlap, holes or duplicate names.
 *
 * Every function that can fail returns 0, or -1 with a text in `error` (always terminated, cut to fit). */
#ifndef STW_TOOLS_BASE_SAFETENSORS_H
#define STW_TOOLS_BASE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

/* STW_ST_TYPE(name, bits of one element): every type of the format. */
#define STW_ST_TYPES(X)                                                                                                \
    X(F64, 64)                                                                                                         \
    X(F32, 32)                                                                                                         \
    X(F16, 16)                                                                                                         \
    X(BF16, 16)                                                                                                        \
    X(I64, 64)                                                                                                         \
    X(I32, 32)                                                                                                         \
    X(I16, 16)                                                                                                         \
    X(I8, 8)                                                                                                           \
    X(U64, 64)                                                                                                         \
    X(U32, 32)                                                                                                         \
    X(U16, 16)                                                                                                         \
    X(U8, 8)                                                                                                           \
    X(BOOL, 8)                                                                                                         \
    X(C64, 64)                                                                                                         \
    X(F8_E5M2, 8) X(F8_E4M3, 8) X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(F6_E2M3, 6) X(F6_E3M2, 6) X(F4, 4)

typedef enum stw_st_type {
#define STW_ST_TYPE(name, bits) STW_ST_##name,
    STW_ST_TYPES(STW_ST_TYPE)
#undef STW_ST_TYPE
        STW_ST_TYPE_COUNT
} stw_st_type;

const char *stw_st_type_name(stw_st_type type);
unsigned stw_st_type_bits(stw_st_type type);

#define STW_ST_RANK_MAX   8
#define STW_ST_HEADER_MAX 100000000u /* bytes; the limit of the format's own reader */
#define STW_ST_ERROR_MAX  512

typedef struct stw_st_tensor {
    const char *name; /* without control characters */
    stw_st_type type;
    int rank;
    int64_t shape[STW_ST_RANK_MAX];
    uint64_t elements, bytes;
    uint64_t offset;  /* of the data, from the end of the header */
    const void *data; /* aligned as the file aligns it: maybe not at all */
} stw_st_tensor;

typedef struct stw_st_pair {
    const char *key, *value;
} stw_st_pair;

typedef struct stw_safetensors {
    stw_st_tensor *tensors; /* in the order of the header */
    size_t tensor_count;
    stw_st_pair *pairs; /* __metadata__, in its order */
    size_t pair_count;
    void *tree;  /* cJSON; owns the strings */
    void *bytes; /* the file, of stw_safetensors_open */
} stw_safetensors;

/* Reads a container in memory; `data` must outlive `file_out`. No file is touched. */
int stw_safetensors_parse(const void *data, size_t size, stw_safetensors *file_out, char error[STW_ST_ERROR_MAX]);

/* Reads a file and parses it. The text does not repeat the path. */
int stw_safetensors_open(const char *path, stw_safetensors *file_out, char error[STW_ST_ERROR_MAX]);

void stw_safetensors_close(stw_safetensors *file); /* zeroed is fine */

/* Writes tensors (name, type, rank, shape, data; the rest is computed) and metadata, widest type first so
 * that each is aligned to its element. A file of that name is replaced only once the new one is complete. */
int stw_safetensors_write(const char *path, const stw_st_tensor *tensors, size_t tensor_count, const stw_st_pair *pairs,
                          size_t pair_count, char error[STW_ST_ERROR_MAX]);

#endif
