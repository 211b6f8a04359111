/* SPDX-License-Identifier: MIT
 *
 * A shard of a larger problem gives exactly its part: by batch, by heads, by queries (context parallel) and
 * by keys (partial sums), with masks, ALiBi, softcap, sink and dropout in force. Shards read the whole
 * problem's tensors through shifted pointers. */
#include "tools/reference/reference.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define EXACT_SUM 1e-13 /* sums of at most 4 parts of order 1, in float64 */

static fixture whole_problem(stw_dropout_map map) {
    fixture f = fixture_start();
    f.desc.batch = 3;
    f.desc.max_seq_q = 9;
    f.desc.max_seq_kv = 11;
    f.desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f.desc.flags = STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_ALIBI | STW_ATTN_DLSE;
    f.desc.window_left = 6;
    f.desc.softcap = 2;
    f.desc.dropout_p = 0.25;
    f.desc.dropout_map = map;
    f.desc.alibi_stride_batch = 4;
    f.args.dropout_seed = UINT64_C(0xFEDCBA9876543210);
    f.args.dropout_offset = 41;
    fixture_build(&f);
    return f;
}

static stw_ref_result backward(const stw_attn_desc *desc, const stw_attn_args *args) {
    stw_ref_result r;
    assert_int_equal(stw_ref_attn_bwd(desc, args, NULL, &r), STW_OK);
    return r;
}

static const float *at(const void *data, int64_t elements) { return (const float *)data + elements; }

/* The problem restricted to batch b.. and query heads h.. (whole groups), local row i.. of q. */
static void shift_pointers(const fixture *f, stw_attn_args *a, int64_t b, int64_t h, int64_t i) {
    const stw_attn_desc *d = &f->desc;
    int64_t group = d->heads_q / d->heads_kv;
    a->q = at(a->q, b * d->q.batch + h * d->q.head + i * d->q.seq);
    a->k = at(a->k, b * d->k.batch + h / group * d->k.head);
    a->v = at(a->v, b * d->v.batch + h / group * d->v.head);
    a->out = (float *)a->out + b * d->out.batch + h * d->out.head + i * d->out.seq;
    a->dout = at(a->dout, b * d->dout.batch + h * d->dout.head + i * d->dout.seq);
    a->lse += b * d->lse.batch + h * d->lse.head + i * d->lse.seq;
    a->dlse += b * d->dlse.batch + h * d->dlse.head + i * d->dlse.seq;
    a->alibi_slopes += b * d->alibi_stride_batch + h;
}

static void assert_part(const double *part, int64_t part_row, const double *whole, int64_t whole_row, int64_t offset,
                        int64_t rows) {
    int moved = 0;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < part_row; ++n) {
            assert_true(part[r * part_row + n] == whole[r * whole_row + offset + n]);
            moved |= part[r * part_row + n] != 0;
        }
    }
    assert_true(moved);
}

static void test_batch_and_head_shards(void **state) {
    stw_dropout_map map = (stw_dropout_map)(uintptr_t)*state;
    fixture f = whole_problem(map);
    stw_ref_result whole = backward(&f.desc, &f.args);
    for (int64_t b = 0; b < 3; ++b) {
        for (int64_t h = 0; h < 4; h += 2) {
            stw_attn_desc desc = f.desc;
            stw_attn_args args = f.args;
            desc.batch = 1;
            desc.heads_q = 2;
            desc.heads_kv = 1;
            desc.heads_total = 4;
            desc.batch_offset = b;
            desc.head_offset = h;
            shift_pointers(&f, &args, b, h, 0);
            stw_ref_result part = backward(&desc, &args);
            assert_part(part.dq, 2 * 3, whole.dq + b * 9 * 12, 12, h * 3, 9);
            assert_part(part.dk, 3, whole.dk + b * 11 * 6, 6, h / 2 * 3, 11);
            assert_part(part.dv, 4, whole.dv + b * 11 * 8, 8, h / 2 * 4, 11);
            stw_ref_free(&part);
        }
    }
    stw_ref_free(&whole);
    fixture_free(&f);
}

static void add_into(double *sum, const double *part, int64_t count) {
    for (int64_t n = 0; n < count; ++n) sum[n] += part[n];
}

static void assert_close(const double *a, const double *b, int64_t count) {
    for (int64_t n = 0; n < count; ++n) assert_true(fabs(a[n] - b[n]) < EXACT_SUM);
}

/* The diagonal of the whole problem: shift = Lk - Lq = 2 there, so shards state it. */
static void test_query_shards(void **state) {
    (void)state;
    fixture f = whole_problem(STW_DROPOUT_PHILOX);
    stw_ref_result whole = backward(&f.desc, &f.args);
    double dk[3 * 11 * 6] = {0}, dv[3 * 11 * 8] = {0};
    const int64_t starts[] = {0, 3, 4, 9};
    for (int n = 0; n < 3; ++n) {
        stw_attn_desc desc = f.desc;
        stw_attn_args args = f.args;
        int64_t rows = starts[n + 1] - starts[n];
        desc.max_seq_q = rows;
        desc.flags |= STW_ATTN_HAS_SHIFT;
        desc.diagonal_shift = 2;
        args.q_offset = starts[n];
        shift_pointers(&f, &args, 0, 0, starts[n]);
        stw_ref_result part = backward(&desc, &args);
        for (int64_t b = 0; b < 3; ++b)
            assert_part(part.dq + b * rows * 12, 12, whole.dq + (b * 9 + starts[n]) * 12, 12, 0, rows);
        add_into(dk, part.dk, 3 * 11 * 6);
        add_into(dv, part.dv, 3 * 11 * 8);
        stw_ref_free(&part);
    }
    assert_close(dk, whole.dk, 3 * 11 * 6);
    assert_close(dv, whole.dv, 3 * 11 * 8);
    stw_ref_free(&whole);
    fixture_free(&f);
}

/* Ring attention: LSE and O of the whole, K and V in parts. */
static void test_key_shards(void **state) {
    (void)state;
    fixture f = whole_problem(STW_DROPOUT_PHILOX);
    stw_ref_result whole = backward(&f.desc, &f.args);
    double dq[3 * 9 * 12] = {0};
    const int64_t starts[] = {0, 5, 11};
    for (int n = 0; n < 2; ++n) {
        stw_attn_desc desc = f.desc;
        stw_attn_args args = f.args;
        int64_t rows = starts[n + 1] - starts[n];
        desc.max_seq_kv = rows;
        desc.flags |= STW_ATTN_HAS_SHIFT;
        desc.diagonal_shift = 2;
        args.k_offset = starts[n];
        args.k = at(args.k, starts[n] * desc.k.seq);
        args.v = at(args.v, starts[n] * desc.v.seq);
        /* D of a row that sees no key of this shard is the whole row's all the same: hand it over */
        desc.flags = (desc.flags & ~STW_ATTN_DLSE) | STW_ATTN_GIVEN_DELTA;
        for (int64_t row = 0; row < 3 * 4 * 9; ++row) {
            int64_t b = row / 36, h = row / 9 % 4, i = row % 9;
            args.delta[fixture_row_index(&f, &f.desc.delta, b, h, i)] = (float)whole.delta[h * 27 + b * 9 + i];
        }
        stw_ref_result part = backward(&desc, &args);
        for (int64_t b = 0; b < 3; ++b) {
            for (int64_t e = 0; e < rows * 6; ++e) {
                int64_t at_whole = (b * 11 + starts[n]) * 6 + e;
                double error = fabs(part.dk[b * rows * 6 + e] - whole.dk[at_whole]);
                assert_true(error <= 0x1p-23 * whole.abs_dk[at_whole]); /* delta was rounded */
            }
        }
        add_into(dq, part.dq, 3 * 9 * 12);
        stw_ref_free(&part);
    }
    for (int64_t n = 0; n < 3 * 9 * 12; ++n) assert_true(fabs(dq[n] - whole.dq[n]) <= 0x1p-23 * whole.abs_dq[n]);
    stw_ref_free(&whole);
    fixture_free(&f);
}

/* A packed batch gives row for row what the dense one gives (mem_eff numbers it in another way). */
static void test_packed_equals_dense(void **state) {
    fixture f = whole_problem((stw_dropout_map)(uintptr_t)*state);
    stw_ref_result whole = backward(&f.desc, &f.args);
    const int32_t starts_q[] = {0, 9, 18, 27}, starts_kv[] = {0, 11, 22, 33};
    fixture g = f;
    g.count = 0;
    g.desc.total_q = 27;
    g.desc.total_kv = 33;
    g.args.cu_seqlens_q = starts_q;
    g.args.cu_seqlens_kv = starts_kv;
    g.state = 1;
    fixture_build(&g); /* the same generator gives the same values in the same order */
    stw_ref_result packed = backward(&g.desc, &g.args);
    assert_part(packed.dq, 12, whole.dq, 12, 0, 27);
    assert_part(packed.dk, 6, whole.dk, 6, 0, 33);
    assert_part(packed.dv, 8, whole.dv, 8, 0, 33);
    stw_ref_free(&whole);
    stw_ref_free(&packed);
    fixture_free(&g);
    fixture_free(&f);
}

/* dK and dV of a key/value head are the sums over its group: K and V repeated give the parts. */
static void test_group_is_a_sum(void **state) {
    (void)state;
    fixture f = whole_problem(STW_DROPOUT_PHILOX);
    stw_ref_result whole = backward(&f.desc, &f.args);
    for (int64_t h_kv = 0; h_kv < 2; ++h_kv) {
        double dk[3 * 11 * 3] = {0};
        for (int64_t h = h_kv * 2; h < h_kv * 2 + 2; ++h) {
            stw_attn_desc desc = f.desc;
            stw_attn_args args = f.args;
            desc.heads_q = desc.heads_kv = 1;
            desc.heads_total = 4;
            desc.head_offset = h;
            shift_pointers(&f, &args, 0, h, 0);
            stw_ref_result part = backward(&desc, &args);
            add_into(dk, part.dk, 3 * 11 * 3);
            stw_ref_free(&part);
        }
        for (int64_t n = 0; n < 3 * 11 * 3; ++n)
            assert_true(fabs(dk[n] - whole.dk[n / 3 * 6 + h_kv * 3 + n % 3]) < EXACT_SUM);
    }
    stw_ref_free(&whole);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_batch_and_head_shards, (void *)STW_DROPOUT_PHILOX),
        cmocka_unit_test_prestate(test_batch_and_head_shards, (void *)STW_DROPOUT_MEM_EFF),
        cmocka_unit_test_prestate(test_batch_and_head_shards, (void *)STW_DROPOUT_FLASH2),
        cmocka_unit_test(test_query_shards),
        cmocka_unit_test(test_key_shards),
        cmocka_unit_test_prestate(test_packed_equals_dense, (void *)STW_DROPOUT_PHILOX),
        cmocka_unit_test_prestate(test_packed_equals_dense, (void *)STW_DROPOUT_FLASH2),
        cmocka_unit_test(test_group_is_a_sum),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
