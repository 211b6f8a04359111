/* SPDX-License-Identifier: MIT
 *
 * Safetensors containers. First byte even: the rest is the file. Odd: the second byte counts the bytes of
 * data, the rest is the JSON header, so that mutations of it need not guess the length in front. What is
 * accepted lies inside the file, without overlaps and duplicate names. */
#include "fuzz.h"

#include "tools/base/safetensors.h"

static void check_tensor(const stw_safetensors *file, size_t n, const uint8_t *bytes, size_t size) {
    const stw_st_tensor *t = &file->tensors[n];
    FUZZ_CHECK(t->name && t->rank >= 0 && t->rank <= STW_ST_RANK_MAX, "tensor %zu", n);
    FUZZ_CHECK(t->type < STW_ST_TYPE_COUNT, "type %d", (int)t->type);
    FUZZ_CHECK(t->bytes <= size, "%llu bytes", (unsigned long long)t->bytes);
    uint64_t elements = 1;
    for (int i = 0; i < t->rank; ++i) elements *= (uint64_t)t->shape[i];
    FUZZ_CHECK(elements == t->elements, "%s", t->name);
    FUZZ_CHECK(t->bytes * 8 == t->elements * stw_st_type_bits(t->type), "%s", t->name);
    if (t->bytes) {
        const uint8_t *at = t->data;
        FUZZ_CHECK(at >= bytes && at + t->bytes <= bytes + size, "%s lies outside", t->name);
    }
    for (size_t m = 0; m < n; ++m) {
        const stw_st_tensor *u = &file->tensors[m];
        FUZZ_CHECK(strcmp(t->name, u->name), "two tensors %s", t->name);
        FUZZ_CHECK(!t->bytes || !u->bytes || t->offset >= u->offset + u->bytes || u->offset >= t->offset + t->bytes,
                   "%s and %s overlap", t->name, u->name);
    }
}

static void try_file(const uint8_t *bytes, size_t size) {
    stw_safetensors file;
    char error[STW_ST_ERROR_MAX];
    memset(&file, 0xA5, sizeof file);
    memset(error, 0xA5, sizeof error);
    if (stw_safetensors_parse(bytes, size, &file, error)) {
        FUZZ_CHECK(memchr(error, 0, sizeof error) && error[0], "no text");
        return;
    }
    for (size_t n = 0; n < file.tensor_count && n < 200; ++n) check_tensor(&file, n, bytes, size);
    for (size_t n = 0; n < file.pair_count; ++n) FUZZ_CHECK(file.pairs[n].key && file.pairs[n].value, "pair %zu", n);
    stw_safetensors_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    if (data[0] % 2 == 0) {
        try_file(data + 1, size - 1);
        return 0;
    }
    const size_t header = size - 2, tail = data[1];
    uint8_t *file = calloc(1, 8 + header + tail);
    if (!file) abort();
    for (int i = 0; i < 8; ++i) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    memcpy(file + 8, data + 2, header);
    try_file(file, 8 + header + tail);
    free(file);
    return 0;
}
