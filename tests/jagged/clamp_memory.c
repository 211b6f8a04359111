/* SPDX-License-Identifier: MIT
 *
 * The memory of clamp.h: tensors with guard bands in one image, which goes to the device as a whole before a
 * call and comes back behind it. Numbers are multiples of 1/8 whose sums are exact in f32 in any order, so
 * that calls with different plans must give the same bits. Linked into the programs of test_clamp*.c. */
#include "clamp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 1024, TAIL = 256 * 1024, PATTERN = 0xA5, POISON = 0xFF };

#define FAIL(p, call, ...) fail_case(p, call, __FILE__, __LINE__, __VA_ARGS__)

__attribute__((format(printf, 5, 6))) static void fail_case(const clamp_problem *p, const clamp_call *call,
                                                            const char *file, int line, const char *format, ...) {
    static const char *const ops[CLAMP_OPS] = {
        "silu",      "threshold",         "softmax ragged",  "softmax inner", "log_softmax", "layer_norm",
        "rms_norm",  "layer_norm ragged", "rms_norm ragged", "sum ragged",    "sum inner",   "select 0",
        "select -1", "select component",  "linear",          "reshape",       "to_padded",   "from_padded",
        "matmul m",  "matmul k",          "matmul n",        "matmul mn",     "matmul mk"};
    char text[300];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    print_error("%s, %s%s, %s: %s\n", ops[p->op], p->v->name, call->used ? ", used" : "", call->what, text);
    _fail(file, line);
}

int clamp_add(clamp_problem *p, const char *name, clamp_kind kind, int64_t elements, size_t size) {
    assert_true(p->blocks < CLAMP_BLOCKS);
    clamp_block *b = &p->block[p->blocks];
    const size_t skew = kind == CLAMP_SCRATCH ? 0 : (size_t)p->v->skew * size;
    *b = (clamp_block){.name = name, .kind = kind, .elements = elements, .size = size};
    b->at = (p->bytes + GUARD + 255) / 256 * 256 + skew;
    b->bytes = (size_t)elements * size;
    p->bytes = b->at + b->bytes;
    return p->blocks++;
}

void *clamp_at(const clamp_problem *p, int block) { return p->buffer + p->block[block].at; }

size_t clamp_element(const clamp_problem *p) { return p->v->dtype == STW_F32 ? 4 : 2; }

static void put_number(unsigned char *to, size_t size, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t half = (uint16_t)(bits >> 16); /* exact: bf16 */
    memcpy(to, size == 4 ? (const void *)&bits : &half, size);
}

static float number(const unsigned char *from, size_t size) {
    uint32_t bits = 0;
    memcpy(size == 4 ? (unsigned char *)&bits : (unsigned char *)&bits + 2, from, size);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void fill_input(clamp_problem *p, int block) {
    const clamp_block *b = &p->block[block];
    for (int64_t n = 0; n < b->elements; ++n) {
        const int64_t salt = (n * 7 + block * 5) % 15 - 7;
        const float x = (float)(salt ? salt : 8) / 8;
        if (!b->state || b->state[n] == CLAMP_VALUE) put_number(p->before + b->at + (size_t)n * b->size, b->size, x);
    }
}

void clamp_place(clamp_problem *p) {
    p->before = malloc(p->bytes);
    p->after = malloc(p->bytes);
    assert_non_null(p->before);
    assert_non_null(p->after);
    memset(p->before, PATTERN, p->bytes);
    for (int n = 0; n < p->blocks; ++n) {
        memset(p->before + p->block[n].at, POISON, p->block[n].bytes); /* NaN */
        if (p->block[n].kind == CLAMP_INPUT) fill_input(p, n);
    }
}

/* Integers of the call as its index type has them: what is beyond int32 becomes its bound. */
static void put_integers(clamp_problem *p, int block, const int64_t *values, int count) {
    const clamp_block *b = &p->block[block];
    assert_true((size_t)count * b->size <= b->bytes);
    for (int n = 0; n < count; ++n) {
        const int64_t x = values[n] > INT32_MAX ? INT32_MAX : values[n] < INT32_MIN ? INT32_MIN : values[n];
        const int32_t narrow = (int32_t)x;
        memcpy(p->before + b->at + (size_t)n * b->size, b->size == 4 ? (const void *)&narrow : &values[n], b->size);
    }
}

static void put_call(clamp_problem *p, const clamp_call *call, stw_jagged_args *args) {
    for (int axis = 0; axis < 3; ++axis) {
        if (!p->args.axis[axis].offsets) continue;
        const clamp_lengths *l = &p->l[axis];
        const int wrong = axis == p->axis;
        put_integers(p, p->offsets[axis], wrong ? call->offsets : l->start, CLAMP_COMPONENTS + 1);
        args->axis[axis].used = NULL;
        if (!call->used) continue;
        put_integers(p, p->used[axis], wrong ? call->used : l->used, CLAMP_COMPONENTS);
        args->axis[axis].used = clamp_at(p, p->used[axis]);
    }
    if (p->base_block >= 0) put_integers(p, p->base_block, call->bases ? call->bases : p->bases, CLAMP_COMPONENTS);
}

/* One guard band behind the other: what lies between outputs must be as it was, and in them what is left. */
static void check_image(const clamp_problem *p, const clamp_call *call) {
    size_t at = 0;
    for (int n = 0; n <= p->blocks; ++n) {
        const clamp_block *b = n < p->blocks ? &p->block[n] : NULL;
        if (b && b->kind == CLAMP_INPUT) continue;
        const size_t end = b ? b->at : p->bytes;
        for (; at < end; ++at)
            if (p->after[at] != p->before[at]) {
                int owner = p->blocks - 1;
                while (owner && p->block[owner].at > at) --owner;
                FAIL(p, call, "byte %ld from the start of %s (%zu bytes) was written", (long)(at - p->block[owner].at),
                     p->block[owner].name, p->block[owner].bytes);
            }
        if (b) at = b->at + b->bytes;
    }
}

static void check_outputs(const clamp_problem *p, const clamp_call *call) {
    for (int n = 0; n < p->blocks; ++n) {
        const clamp_block *b = &p->block[n];
        if (b->kind != CLAMP_OUTPUT) continue;
        for (int64_t e = 0; e < b->elements; ++e) {
            const size_t at = b->at + (size_t)e * b->size;
            const int state = b->state ? b->state[e] : CLAMP_VALUE;
            const float x = number(p->after + at, b->size);
            if (state == CLAMP_LEFT && memcmp(p->before + at, p->after + at, b->size))
                FAIL(p, call, "%s[%ld] is in no component and was written: %g", b->name, (long)e, (double)x);
            if (state == CLAMP_ZERO && x != 0.0f)
                FAIL(p, call, "%s[%ld] is %g, must be 0", b->name, (long)e, (double)x);
            if (state == CLAMP_VALUE && !isfinite(x)) FAIL(p, call, "%s[%ld] is %g", b->name, (long)e, (double)x);
        }
    }
}

#define OK(p, call, status) check_status(p, call, status, #status)
static void check_status(const clamp_problem *p, const clamp_call *call, stw_status status, const char *what) {
    if (status) FAIL(p, call, "%.60s: %s", what, stw_last_error());
}

/* The image, and behind it the workspace between its own guards: other memory on the device alone. */
static void exchange(clamp_problem *p, const clamp_call *call, size_t need, const stw_plan *plan,
                     const stw_jagged_args *args) {
    const size_t from = (p->bytes + GUARD + 255) / 256 * 256, whole = from + need + TAIL;
    unsigned char *guard = malloc(whole);
    assert_non_null(guard);
    assert_true(whole <= p->capacity);
    memcpy(guard, p->before, p->bytes);
    memset(guard + p->bytes, PATTERN, whole - p->bytes);
    memset(guard + from, POISON, need);
    OK(p, call, stw_copy(p->context, p->buffer, guard, whole, NULL));
    OK(p, call, stw_jagged_bwd(plan, args, p->buffer + from, need, NULL));
    OK(p, call, stw_copy(p->context, guard, p->buffer, whole, NULL));
    OK(p, call, stw_stream_synchronize(p->context, NULL));
    memcpy(p->after, guard, p->bytes);
    for (size_t at = p->bytes; at < whole; ++at)
        if ((at < from || at >= from + need) && guard[at] != PATTERN) {
            free(guard);
            FAIL(p, call, "byte %ld of the workspace's %zu was written", (long)at - (long)from, need);
        }
    free(guard);
}

int32_t clamp_run(clamp_problem *p, const clamp_call *call) {
    stw_plan *plan = NULL;
    OK(p, call, stw_jagged_bwd_plan(p->context, call->desc, &plan));
    stw_jagged_args args = p->args;
    put_call(p, call, &args);
    exchange(p, call, stw_plan_workspace_size(plan), plan, &args);
    stw_plan_destroy(plan);
    int32_t status;
    memcpy(&status, p->after + p->block[p->status_block].at, 4);
    check_image(p, call);
    check_outputs(p, call);
    return status;
}

unsigned char *clamp_image(const clamp_problem *p) {
    unsigned char *copy = malloc(p->bytes);
    assert_non_null(copy);
    return memcpy(copy, p->after, p->bytes);
}

void clamp_same(const clamp_problem *p, const clamp_call *call, const unsigned char *other) {
    for (int n = 0; n < p->blocks; ++n) {
        const clamp_block *b = &p->block[n];
        if (b->kind != CLAMP_OUTPUT) continue;
        for (int64_t e = 0; e < b->elements; ++e) {
            const size_t at = b->at + (size_t)e * b->size;
            if ((b->state && b->state[e] == CLAMP_LEFT) || !memcmp(p->after + at, other + at, b->size)) continue;
            FAIL(p, call, "%s[%ld] is %.9g, with the right data %.9g", b->name, (long)e,
                 (double)number(other + at, b->size), (double)number(p->after + at, b->size));
        }
    }
}
