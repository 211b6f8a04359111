/* SPDX-License-Identifier: MIT
 *
 * The reader of golden.h. */
#include "golden.h"

#include "common/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add_name(golden *g, const char *key) {
    const char *dot = strrchr(key, '.');
    if (!dot) return;
    const size_t length = (size_t)(dot - key);
    for (int n = 0; n < g->count; ++n)
        if (strlen(g->names[n]) == length && !memcmp(g->names[n], key, length)) return;
    assert_true(g->count < GOLDEN_MAX && length < sizeof g->names[0]);
    memcpy(g->names[g->count], key, length);
    g->names[g->count++][length] = 0;
}

void golden_open(golden *g, const char *name) {
    char path[4096], error[STW_ST_ERROR_MAX];
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/tests/golden/jagged/%s.safetensors", STW_SOURCE_DIR, name);
    if (stw_safetensors_open(path, &g->file, error)) fail_msg("%s: %s", path, error);
    for (size_t n = 0; n < g->file.tensor_count; ++n) add_name(g, g->file.tensors[n].name);
    assert_true(g->count > 0);
}

void golden_close(golden *g) { stw_safetensors_close(&g->file); }

const char *golden_text(const golden_case *c, const char *key) {
    char full[192];
    snprintf(full, sizeof full, "%s.%s", c->name, key);
    for (size_t n = 0; n < c->from->file.pair_count; ++n)
        if (!strcmp(c->from->file.pairs[n].key, full)) return c->from->file.pairs[n].value;
    return NULL;
}

golden_case golden_at(const golden *g, int n) {
    static const char *const names[] = {"none", "f16", "bf16", "f32", "f64", "i8", "bool", "i16", "i32", "i64"};
    golden_case c = {.from = g, .name = g->names[n]};
    const char *op = golden_text(&c, "op"), *dtype = golden_text(&c, "dtype");
    if (!op || !dtype) fail_msg("%s has no op or no dtype", c.name);
    snprintf(c.op, sizeof c.op, "%s", op);
    for (int i = 1; i <= STW_I64; ++i)
        if (!strcmp(dtype, names[i])) c.dtype = (stw_dtype)i;
    if (!strcmp(dtype, "u8")) c.dtype = STW_U8;
    assert_int_not_equal(c.dtype, STW_DTYPE_NONE);
    return c;
}

int64_t golden_number(const golden_case *c, const char *key, int64_t absent) {
    const char *text = golden_text(c, key);
    return text ? strtoll(text, NULL, 10) : absent;
}

int golden_list(const golden_case *c, const char *key, int64_t list_out[RANK_MAX]) {
    const char *text = golden_text(c, key);
    int count = 0;
    if (!text) fail_msg("%s has no %s", c->name, key);
    for (char *end; count < RANK_MAX; text = end + 1) {
        list_out[count++] = strtoll(text, &end, 10);
        if (*end != ',') break;
    }
    return count;
}

const stw_st_tensor *golden_tensor(const golden_case *c, const char *key, int required) {
    char full[192];
    snprintf(full, sizeof full, "%s.%s", c->name, key);
    for (size_t n = 0; n < c->from->file.tensor_count; ++n)
        if (!strcmp(c->from->file.tensors[n].name, full)) return &c->from->file.tensors[n];
    if (required) fail_msg("%s has no %s", c->name, key);
    return NULL;
}

double golden_real(const stw_st_tensor *t, int64_t n) {
    const unsigned char *at = (const unsigned char *)t->data + (size_t)n * stw_st_type_bits(t->type) / 8;
    double wide;
    float single;
    uint16_t half;
    switch (t->type) {
    case STW_ST_F64: memcpy(&wide, at, 8); return wide;
    case STW_ST_F32: memcpy(&single, at, 4); return (double)single;
    case STW_ST_F16: memcpy(&half, at, 2); return (double)stw_f32_from_f16(half);
    case STW_ST_BF16: memcpy(&half, at, 2); return (double)stw_f32_from_bf16(half);
    default: fail_msg("%s is not of a real type", t->name); return 0;
    }
}

int golden_integers(const golden_case *c, const char *key, int64_t list_out[COMPONENTS_MAX]) {
    const stw_st_tensor *t = golden_tensor(c, key, 1);
    assert_true(t->type == STW_ST_I64 || t->type == STW_ST_I32);
    assert_true(t->elements <= COMPONENTS_MAX);
    for (uint64_t n = 0; n < t->elements; ++n) {
        int32_t narrow = 0;
        if (t->type == STW_ST_I64) memcpy(&list_out[n], (const char *)t->data + 8 * n, 8);
        if (t->type == STW_ST_I32) memcpy(&narrow, (const char *)t->data + 4 * n, 4);
        if (t->type == STW_ST_I32) list_out[n] = narrow;
    }
    return (int)t->elements;
}
