/* SPDX-License-Identifier: MIT
 *
 * Wrong offsets, used lengths and base offsets in device memory, on GPU kernels: the call goes through, does
 * what include/sternway/jagged_bwd.h promises for the clamped values, bit by bit, reports it, and touches
 * nothing else. Arguments: [all] [TEST]. The backend is that of STERNWAY_BACKEND (cuda:sm80, hip:gfx942,
 * ...), emulated or real; on the CPU, which refuses such calls (tests/misuse), it is skipped. */
#include "clamp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static stw_context *context;
static int every_variant; /* or each row with another one, so that each op has each of them ten times */

/* Aligned rows of whole vectors, and odd ones; both storage orders, index types and element types. */
static const clamp_variant variants[] = {
    {"f32 int64 components", STW_F32, STW_I64, STW_STORAGE_COMPONENTS, 8, 0},
    {"bf16 int32 jagged", STW_BF16, STW_I32, STW_STORAGE_JAGGED, 8, 0},
    {"f32 int32 jagged odd", STW_F32, STW_I32, STW_STORAGE_JAGGED, 5, 1},
    {"bf16 int64 components odd", STW_BF16, STW_I64, STW_STORAGE_COMPONENTS, 5, 3},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* Components are at most 9 long in buffers of 23 positions. `clean` and `clean_used` are what the header says
 * is taken: the running maximum of the offsets clamped to 0..23, used lengths cut to 0..min(L, 9). `bits`:
 * *status_out without used lengths, `used_bits` with them. */
typedef struct row {
    const char *name;
    int64_t raw[5], clean[5], used[4], clean_used[4];
    int32_t bits, used_bits;
} row;

#define MIN INT64_MIN
#define MAX INT64_MAX
static const row rows[] = {
    {"a decrease", {2, 7, 5, 14, 21}, {2, 7, 7, 14, 21}, {3, 0, 7, 5}, {3, 0, 7, 5}, 1, 1},
    {"a negative start", {-1, 3, 7, 14, 21}, {0, 3, 7, 14, 21}, {3, 2, 7, 5}, {3, 2, 7, 5}, 1, 1},
    {"a negative middle", {2, -7, 9, 14, 21}, {2, 2, 9, 14, 21}, {0, 6, 5, 1}, {0, 6, 5, 1}, 1, 1},
    {"an end behind the buffer", {2, 7, 14, 20, 24}, {2, 7, 14, 20, 23}, {4, 7, 6, 2}, {4, 7, 6, 2}, 1, 1},
    {"the largest and the smallest", {MIN, 7, 7, 14, MAX}, {0, 7, 7, 14, 23}, {6, 0, 7, 8}, {6, 0, 7, 8}, 1, 1},
    {"all behind the buffer", {24, 30, 40, 50, 60}, {23, 23, 23, 23, 23}, {0}, {0}, 1, 1},
    {"all before the buffer", {-9, -8, -7, -6, -5}, {0}, {0}, {0}, 1, 1},
    {"the first behind the buffer", {99, 7, 9, 14, 21}, {23, 23, 23, 23, 23}, {0}, {0}, 1, 1},
    {"an overlap", {2, 11, 6, 15, 21}, {2, 11, 11, 15, 21}, {9, 0, 3, 6}, {9, 0, 3, 6}, 1, 1},
    {"an overlap that is too long", {2, 14, 7, 9, 21}, {2, 14, 14, 14, 21}, {12, 0, 0, 4}, {9, 0, 0, 4}, 0x11, 0x11},
    {"an end at the start", {2, 7, 8, 14, 0}, {2, 7, 8, 14, 14}, {5, 1, 2, 0}, {5, 1, 2, 0}, 1, 1},
    {"a component too long", {0, 12, 13, 16, 23}, {0, 12, 13, 16, 23}, {9, 1, 2, 7}, {9, 1, 2, 7}, 0x10, 0x10},
    {"all in one component", {0, 0, 23, 23, 23}, {0, 0, 23, 23, 23}, {0, 23, 0, 0}, {0, 9, 0, 0}, 0x10, 0x10},
    {"an end short of the buffer", {2, 7, 8, 14, 16}, {2, 7, 8, 14, 16}, {3, 1, 6, 2}, {3, 1, 6, 2}, 0, 0},
    {"a negative length", {2, 7, 8, 14, 21}, {2, 7, 8, 14, 21}, {-1, 1, 6, 5}, {0, 1, 6, 5}, 0, 0x10},
    {"a length too large", {2, 7, 8, 14, 21}, {2, 7, 8, 14, 21}, {6, 1, 7, 7}, {5, 1, 6, 7}, 0, 0x10},
    {"a length of an empty one", {2, 7, 7, 14, 21}, {2, 7, 7, 14, 21}, {3, 1, 7, 5}, {3, 0, 7, 5}, 0, 0x10},
    {"lengths at the bounds", {2, 7, 8, 14, 21}, {2, 7, 8, 14, 21}, {MIN, MAX, MAX, MIN}, {0, 1, 6, 0}, 0, 0x10},
    {"both", {2, 7, 5, 14, 24}, {2, 7, 7, 14, 23}, {5, 2, 9, 10}, {5, 0, 7, 9}, 1, 0x11},
    {"both too long", {-4, 12, 12, 16, 23}, {0, 12, 12, 16, 23}, {12, 0, 5, -2}, {9, 0, 4, 0}, 0x11, 0x11},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static clamp_lengths lengths(const int64_t *start, const int64_t *used, int64_t most) {
    clamp_lengths l = {.total = CLAMP_TOTAL};
    memcpy(l.start, start, sizeof l.start);
    for (int b = 0; b < CLAMP_COMPONENTS; ++b) {
        const int64_t length = start[b + 1] - start[b];
        l.used[b] = used ? used[b] : length < most ? length : most;
    }
    return l;
}

/* The bit of select along the ragged dimension: some component is too short for the index, right data or not.
 */
static int32_t index_bit(clamp_op op, const clamp_lengths *l) {
    if (op != CLAMP_SELECT_FIRST && op != CLAMP_SELECT_LAST) return 0;
    for (int b = 0; b < CLAMP_COMPONENTS; ++b)
        if (l->used[b] < 1) return STW_JAGGED_DATA_INDEX;
    return 0;
}

static int is_too_long(const clamp_lengths *l) {
    for (int b = 0; b < CLAMP_COMPONENTS; ++b)
        if (l->start[b + 1] - l->start[b] > CLAMP_SIZE) return 1;
    return 0;
}

static void expect(const clamp_problem *p, const clamp_call *call, int32_t seen, int32_t bits) {
    if (seen != bits)
        fail_msg("problem %d, %s%s, %s: status_out 0x%x, expected 0x%x", (int)p->op, p->v->name,
                 call->used ? ", used" : "", call->what, (unsigned)seen, (unsigned)bits);
}

/* Right lengths of a call that had wrong ones. Components that are too long are none with the size of the
 * buffer, and what was cut of them is unused. Attention to matmul, whose sums may be cut elsewhere then: they
 * are exact. */
static clamp_call right_call(const clamp_problem *p, const clamp_call *wrong, stw_jagged_desc *desc) {
    const clamp_lengths *l = &p->l[p->axis];
    clamp_call call = {
        .desc = desc, .offsets = l->start, .used = wrong->used ? l->used : NULL, .what = "the clamped lengths"};
    *desc = *wrong->desc;
    if (!is_too_long(l)) return call;
    desc->axis[p->axis].size = CLAMP_TOTAL;
    desc->flags = (desc->flags & ~STW_JAGGED_FULL) | STW_JAGGED_HAS_USED;
    call.used = l->used;
    return call;
}

/* One wrong call and the right one. */
static void both(clamp_op op, const clamp_variant *v, const clamp_lengths *clean, clamp_call wrong, uint32_t flags,
                 int32_t bits) {
    clamp_problem p;
    clamp_open(&p, context, op, v, clean, -1);
    const int32_t index = index_bit(op, clean);
    stw_jagged_desc desc = p.desc, right;
    desc.flags |= flags;
    wrong.desc = &desc;
    expect(&p, &wrong, clamp_run(&p, &wrong), bits << p.axis | index);
    unsigned char *left = clamp_image(&p);
    const clamp_call good = right_call(&p, &wrong, &right);
    expect(&p, &good, clamp_run(&p, &good), index);
    clamp_same(&p, &wrong, left);
    free(left);
    clamp_close(&p);
}

static int is_chosen(int variant, int turn) { return every_variant || (turn + turn / VARIANTS) % VARIANTS == variant; }

static void every_row(clamp_op op) {
    for (int n = 0; n < ROWS * 2; ++n) {
        const row *r = &rows[n / 2];
        const int with_used = n % 2;
        const clamp_lengths clean = lengths(r->clean, with_used ? r->clean_used : NULL, CLAMP_SIZE);
        const clamp_call wrong = {.offsets = r->raw, .used = with_used ? r->used : NULL, .what = r->name};
        for (int v = 0; v < VARIANTS; ++v)
            if (is_chosen(v, n + (int)op))
                both(op, &variants[v], &clean, wrong, with_used ? STW_JAGGED_HAS_USED : 0,
                     with_used ? r->used_bits : r->bits);
    }
}

#define OP(name, op)                                                                                                   \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        every_row(op);                                                                                                 \
    }
OP(silu, CLAMP_SILU)
OP(threshold, CLAMP_THRESHOLD)
OP(softmax_ragged, CLAMP_SOFTMAX_RAGGED)
OP(softmax_inner, CLAMP_SOFTMAX_INNER)
OP(log_softmax, CLAMP_LOG_SOFTMAX)
OP(layer_norm, CLAMP_LAYER_NORM)
OP(rms_norm, CLAMP_RMS_NORM)
OP(layer_norm_ragged, CLAMP_LAYER_NORM_RAGGED)
OP(rms_norm_ragged, CLAMP_RMS_NORM_RAGGED)
OP(sum_ragged, CLAMP_SUM_RAGGED)
OP(sum_inner, CLAMP_SUM_INNER)
OP(select_first, CLAMP_SELECT_FIRST)
OP(select_last, CLAMP_SELECT_LAST)
OP(select_component, CLAMP_SELECT_COMPONENT)
OP(linear, CLAMP_LINEAR)
OP(reshape, CLAMP_RESHAPE)
OP(to_padded, CLAMP_TO_PADDED)
OP(from_padded, CLAMP_FROM_PADDED)
OP(matmul_m, CLAMP_MATMUL_M)
OP(matmul_k, CLAMP_MATMUL_K)
OP(matmul_n, CLAMP_MATMUL_N)
OP(matmul_mn, CLAMP_MATMUL_MN)
OP(matmul_mk, CLAMP_MATMUL_MK)

/* A promise of STW_JAGGED_FULL that the offsets break: they begin with 0 and end with the buffer all the
 * same. */
static void full(void **state) {
    (void)state;
    static const row broken[] = {
        {"a start behind 0", {2, 7, 8, 14, 23}, {0, 7, 8, 14, 23}, {0}, {0}, 1, 0},
        {"an end before the last", {0, 7, 8, 16, 21}, {0, 7, 8, 16, 23}, {0}, {0}, 1, 0},
        {"a decrease", {0, 7, 5, 14, 23}, {0, 7, 7, 14, 23}, {0}, {0}, 1, 0},
        {"beyond both ends", {-3, 7, 8, 14, 30}, {0, 7, 8, 14, 23}, {0}, {0}, 1, 0},
        {"a component too long", {0, 12, 13, 16, 23}, {0, 12, 13, 16, 23}, {0}, {0}, 0x10, 0},
        {"nothing right", {5, 3, 30, 2, 1}, {0, 3, 23, 23, 23}, {0}, {0}, 0x11, 0},
    };
    for (size_t n = 0; n < sizeof broken / sizeof broken[0]; ++n)
        for (int op = 0; op < CLAMP_MATMUL_MN; ++op)
            for (int v = 0; v < VARIANTS; ++v) {
                if (!is_chosen(v, (int)n + op)) continue;
                const clamp_lengths clean =
                    lengths(broken[n].clean, NULL, op == CLAMP_LINEAR ? CLAMP_TOTAL : CLAMP_SIZE);
                const clamp_call wrong = {.offsets = broken[n].raw, .what = broken[n].name};
                both((clamp_op)op, &variants[v], &clean, wrong, STW_JAGGED_FULL, broken[n].bits);
            }
}

/* ---- base offsets ---- */

/* Component `component` has a wrong base: its gradients are left alone, the others' are as with the right
 * one. */
static void one_base(clamp_op op, const clamp_variant *v, int component, int64_t base, const char *name) {
    static const int64_t start[] = {2, 7, 10, 14, 21}, used[] = {3, 3, 2, 5};
    const clamp_lengths clean = lengths(start, used, CLAMP_SIZE);
    clamp_problem p;
    int64_t bases[CLAMP_COMPONENTS];
    clamp_open(&p, context, op, v, &clean, component);
    stw_jagged_desc desc = p.desc;
    desc.flags |= STW_JAGGED_HAS_USED;
    memcpy(bases, p.bases, sizeof bases);
    bases[component] = base;
    const clamp_call wrong = {&desc, clean.start, clean.used, bases, name};
    expect(&p, &wrong, clamp_run(&p, &wrong), STW_JAGGED_DATA_BASES);
    unsigned char *left = clamp_image(&p);
    clamp_problem whole;
    clamp_open(&whole, context, op, v, &clean, -1);
    const clamp_call right = {&desc, clean.start, clean.used, NULL, "the right bases"};
    expect(&whole, &right, clamp_run(&whole, &right), 0);
    memcpy(p.after, whole.after, p.bytes);
    clamp_same(&p, &wrong, left);
    free(left);
    clamp_close(&whole);
    clamp_close(&p);
}

static void bases(void **state) {
    (void)state;
    for (int n = 0; n < 2 * VARIANTS; ++n) {
        const clamp_op op = n & 1 ? CLAMP_MATMUL_MK : CLAMP_MATMUL_MN;
        const clamp_variant *v = &variants[n / 2];
        static const int64_t start[] = {2, 7, 10, 14, 21};
        const clamp_lengths clean = lengths(start, NULL, CLAMP_SIZE);
        clamp_problem p;
        clamp_open(&p, context, op, v, &clean, -1);
        const int64_t elements = clamp_bases_elements(&p), last = clamp_base_size(&p, 3), at = p.bases[2];
        clamp_close(&p);
        one_base(op, v, 0, -1, "a base before the buffer");
        one_base(op, v, 2, INT64_MIN, "the smallest base");
        one_base(op, v, 0, INT64_MAX, "the largest base");
        one_base(op, v, 3, elements - last + 1, "a base too close to the end");
        if (op != CLAMP_MATMUL_MK) continue; /* no gradient of grad: its components may lie anywhere */
        one_base(op, v, 3, at, "a base over another component");
        one_base(op, v, 3, at + 1, "a base within another component");
    }
}

/* ---- sums in parts ---- */

enum { PARTS_M = 2500, PARTS_K = 8, PARTS_N = 3, PARTS_WRONG = 129, PARTS_TOTAL = PARTS_WRONG + 11 };
enum { /* places in the buffer, in bytes */
       AT_LENGTHS = 4096,
       AT_STATUS = AT_LENGTHS + 256,
       AT_X = AT_LENGTHS + 4096,
       AT_GRAD = AT_X + PARTS_M * PARTS_WRONG * 4 + 4096,
       AT_OTHER = AT_GRAD + PARTS_M * PARTS_N * 4 + 4096,
       AT_WORK = (AT_OTHER + PARTS_TOTAL * PARTS_N * 4 + 8191) / 4096 * 4096,
       PARTS_ROOM = 256 * 1024
};

static stw_jagged_desc parts_desc(uint32_t transposed) {
    stw_jagged_desc d = STW_INIT(stw_jagged_desc);
    d.op = STW_JAGGED_MATMUL;
    d.dtype = STW_F32;
    d.index_dtype = STW_I64;
    d.components = 2;
    d.ragged_axes = 3;
    d.axis[STW_AXIS_M] = (stw_jagged_axis){PARTS_M, PARTS_M};
    d.axis[STW_AXIS_K] = (stw_jagged_axis){PARTS_K, PARTS_TOTAL};
    d.axis[STW_AXIS_N].size = PARTS_N;
    d.outputs = STW_JAGGED_DOTHER;
    d.flags = STW_JAGGED_X_BASES | transposed;
    d.x_elements = PARTS_M * PARTS_WRONG;
    return d;
}

/* x[m, k] = 1 + k, grad = 1: dB[k, n] = 2500 (1 + k). */
static void parts_fill(unsigned char *image, size_t bytes) {
    static const int64_t values[][8] = {
        {0, PARTS_M, PARTS_M}, {0, PARTS_WRONG, PARTS_TOTAL}, {0, PARTS_M * PARTS_WRONG}};
    float *x = (float *)(void *)(image + AT_X), *grad = (float *)(void *)(image + AT_GRAD);
    memset(image, 0xA5, bytes);
    for (int n = 0; n < PARTS_M * PARTS_WRONG; ++n) x[n] = (float)(n % PARTS_WRONG + 1);
    for (int n = 0; n < PARTS_M * PARTS_N; ++n) grad[n] = 1.0f;
    memcpy(image + AT_LENGTHS, values, sizeof values);
}

static void parts_run(const stw_plan *plan, char *buffer, size_t need) {
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    a.axis[STW_AXIS_M].offsets = buffer + AT_LENGTHS;
    a.axis[STW_AXIS_K].offsets = buffer + AT_LENGTHS + 64;
    a.x_bases = (const int64_t *)(void *)(buffer + AT_LENGTHS + 128);
    a.x = buffer + AT_X;
    a.grad = buffer + AT_GRAD;
    a.dother = buffer + AT_OTHER;
    a.status_out = (int32_t *)(void *)(buffer + AT_STATUS);
    if (stw_jagged_bwd(plan, &a, buffer + AT_WORK, need, NULL)) fail_msg("%s", stw_last_error());
}

/* What dB must hold: [k, n] by component, or [n, k]. */
static void parts_judge(const float *other, int transposed) {
    static const int starts[] = {0, PARTS_WRONG, PARTS_TOTAL};
    for (int b = 0; b < 2; ++b) {
        const int length = starts[b + 1] - starts[b];
        for (int e = 0; e < length * PARTS_N; ++e) {
            const int k = transposed ? e % length : e / PARTS_N;
            const float x = other[starts[b] * PARTS_N + e], good = !b && k < PARTS_K ? (float)(PARTS_M * (k + 1)) : 0;
            if (x != good)
                fail_msg("dother of component %d at k %d%s is %g, must be %g", b, k, transposed ? ", transposed" : "",
                         (double)x, (double)good);
        }
    }
}

/* A component longer than its axis's size in a product whose sums are cut into parts: the parts that the plan
 * made room for are those of components that are not. */
static void parts_case(uint32_t transposed) {
    const stw_jagged_desc desc = parts_desc(transposed);
    stw_plan *plan = NULL;
    assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
    const size_t need = stw_plan_workspace_size(plan), bytes = AT_WORK + need + PARTS_ROOM;
    unsigned char *image = malloc(bytes), *before = malloc(bytes);
    char *buffer = NULL;
    assert_non_null(image);
    assert_non_null(before);
    parts_fill(before, bytes);
    assert_int_equal(stw_buffer_alloc(context, bytes, (void **)&buffer), STW_OK);
    assert_int_equal(stw_copy(context, buffer, before, bytes, NULL), STW_OK);
    parts_run(plan, buffer, need);
    assert_int_equal(stw_copy(context, image, buffer, bytes, NULL), STW_OK);
    assert_int_equal(stw_stream_synchronize(context, NULL), STW_OK);
    int32_t seen;
    memcpy(&seen, image + AT_STATUS, 4);
    assert_int_equal(seen, STW_JAGGED_DATA_USED << STW_AXIS_K);
    parts_judge((const float *)(const void *)(image + AT_OTHER), transposed != 0);
    memcpy(image + AT_STATUS, before + AT_STATUS, 4);
    memcpy(image + AT_OTHER, before + AT_OTHER, PARTS_TOTAL * PARTS_N * 4);
    assert_memory_equal(image, before, AT_WORK);
    assert_memory_equal(image + AT_WORK + need, before + AT_WORK + need, PARTS_ROOM);
    free(image);
    free(before);
    stw_buffer_free(context, buffer);
    stw_plan_destroy(plan);
}

static void parts(void **state) {
    (void)state;
    parts_case(0);
    parts_case(STW_JAGGED_OTHER_TRANSPOSED);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silu),
        cmocka_unit_test(threshold),
        cmocka_unit_test(softmax_ragged),
        cmocka_unit_test(softmax_inner),
        cmocka_unit_test(log_softmax),
        cmocka_unit_test(layer_norm),
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(layer_norm_ragged),
        cmocka_unit_test(rms_norm_ragged),
        cmocka_unit_test(sum_ragged),
        cmocka_unit_test(sum_inner),
        cmocka_unit_test(select_first),
        cmocka_unit_test(select_last),
        cmocka_unit_test(select_component),
        cmocka_unit_test(linear),
        cmocka_unit_test(reshape),
        cmocka_unit_test(to_padded),
        cmocka_unit_test(from_padded),
        cmocka_unit_test(matmul_m),
        cmocka_unit_test(matmul_k),
        cmocka_unit_test(matmul_n),
        cmocka_unit_test(matmul_mn),
        cmocka_unit_test(matmul_mk),
        cmocka_unit_test(full),
        cmocka_unit_test(bases),
        cmocka_unit_test(parts),
    };
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.memory = STW_MEMORY_BUFFERS;
    every_variant = argc > 1 && !strcmp(argv[1], "all");
    if (argc > 1 + every_variant) cmocka_set_test_filter(argv[1 + every_variant]);
    const stw_status status = stw_context_create(&opts, &context);
    if (status || !strcmp(stw_context_arch(context), "cpu")) {
        printf("skip: %s\n", status ? stw_last_error() : "the CPU refuses wrong data, see tests/misuse");
        if (!status) stw_context_destroy(context);
        return 77;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    stw_context_destroy(context);
    return failed;
}
