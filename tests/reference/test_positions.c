/* SPDX-License-Identifier: MIT
 *
 * What a query row sees, drawn by hand, and the forward of every feature against a naive one written here
 * from the public header alone: positions, shifts, ALiBi, softcap, bias, sink. The oracle's forward and
 * backward share these, so finite differences cannot tell. */
#include "tools/reference/problem.h"
#include "tests/reference/compare.h"
#include "tests/reference/setups.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Rows of '1' (seen) and '.', 3 queries and 5 keys unless lengths say otherwise. */
typedef struct picture {
    const char *name, *rows;
    stw_attn_mask mask;
    uint32_t flags;
    int64_t left, right, shift, q_offset, k_offset;
    int32_t used_q, used_kv; /* 0: all */
} picture;

#define LEFT  STW_ATTN_HAS_WINDOW_LEFT
#define RIGHT STW_ATTN_HAS_WINDOW_RIGHT
#define SHIFT STW_ATTN_HAS_SHIFT
#define TL    STW_MASK_CAUSAL_TOP_LEFT
#define BR    STW_MASK_CAUSAL_BOTTOM_RIGHT

static const picture pictures[] = {
    {"none", "11111 11111 11111", .mask = STW_MASK_NONE},
    {"top-left", "1.... 11... 111..", .mask = TL},
    {"bottom-right", "111.. 1111. 11111", .mask = BR},
    {"left 1", ".1111 ..111 ...11", .flags = LEFT, .left = 1},
    {"left 0", "..111 ...11 ....1", .flags = LEFT},
    {"right 1", "1111. 11111 11111", .flags = RIGHT, .right = 1},
    {"left 1, right 0", ".11.. ..11. ...11", .flags = LEFT | RIGHT, .left = 1},
    {"top-left, left 1", "1.... 11... .11..", .mask = TL, .flags = LEFT, .left = 1},
    {"top-left, right 2", "1.... 11... 111..", .mask = TL, .flags = RIGHT, .right = 2},
    {"bottom-right, left 2", "111.. .111. ..111", .mask = BR, .flags = LEFT, .left = 2},
    {"top-left, shift -1", "..... 1.... 11...", .mask = TL, .flags = SHIFT, .shift = -1},
    {"bottom-right, shift 1", "11... 111.. 1111.", .mask = BR, .flags = SHIFT, .shift = 1},
    {"shift 0, left 1", "11111 11111 .1111", .flags = SHIFT | LEFT, .left = 1},
    {"top-left, q offset 2", "111.. 1111. 11111", .mask = TL, .q_offset = 2},
    {"top-left, k offset 1", "..... 1.... 11...", .mask = TL, .k_offset = 1},
    {"bottom-right, q offset -2, k offset -1", "11... 111.. 1111.", .mask = BR, .q_offset = -2, .k_offset = -1},
    {"bottom-right, used 2 and 3", "11. 111", .mask = BR, .used_q = 2, .used_kv = 3},
    {"bottom-right, used 3 and 1", ". . 1", .mask = BR, .used_q = 3, .used_kv = 1},
};

static void test_pictures(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof pictures / sizeof *pictures; ++n) {
        const picture *x = &pictures[n];
        int32_t used_q[] = {x->used_q}, used_kv[] = {x->used_kv};
        fixture f = fixture_start();
        f.desc.batch = 1;
        f.desc.max_seq_q = 3;
        f.desc.max_seq_kv = 5;
        f.desc.mask = x->mask;
        f.desc.flags = x->flags | (x->used_q ? STW_ATTN_HAS_USED_LENGTHS : 0);
        f.desc.window_left = x->left;
        f.desc.window_right = x->right;
        f.desc.diagonal_shift = x->shift;
        f.args.q_offset = x->q_offset;
        f.args.k_offset = x->k_offset;
        f.args.used_q = x->used_q ? used_q : NULL;
        f.args.used_kv = x->used_kv ? used_kv : NULL;
        fixture_build(&f);
        stw_ref_problem p;
        assert_int_equal(stw_ref_problem_init(&p, &f.desc, &f.args, 1), STW_OK);
        stw_ref_side q = stw_ref_side_q(&p, 0), kv = stw_ref_side_kv(&p, 0);
        char drawn[64];
        size_t length = 0;
        for (int64_t i = 0; i < q.used; ++i) {
            for (int64_t j = 0; j < kv.used; ++j) drawn[length++] = stw_ref_visible(&p, &q, &kv, i, j) ? '1' : '.';
            drawn[length++] = i + 1 < q.used ? ' ' : '\0';
        }
        if (strcmp(drawn, x->rows)) fail_msg("%s: %s, not %s", x->name, drawn, x->rows);
        fixture_free(&f);
    }
}

/* shift and positions of (i, j) in sequence b, by the sentences of POSITIONS. */
static double naive_alibi(const fixture *f, int64_t b, int64_t h, int64_t i, int64_t j, int *seen) {
    const stw_attn_desc *d = &f->desc;
    const stw_attn_args *a = &f->args;
    int64_t row = i + (a->q_offsets ? a->q_offsets[b] : a->q_offset);
    int64_t key = j + (a->k_offsets ? a->k_offsets[b] : a->k_offset);
    int64_t shift = fixture_used_kv(f, b) - fixture_used_q(f, b);
    if (d->mask == TL) shift = 0;
    if (d->flags & SHIFT) shift = d->diagonal_shift;
    int64_t ahead = key - (row + shift); /* of the diagonal */
    *seen = !(d->mask != STW_MASK_NONE && ahead > 0) && !((d->flags & LEFT) && ahead < -d->window_left) &&
            !((d->flags & RIGHT) && ahead > d->window_right);
    if (!(d->flags & STW_ATTN_ALIBI)) return 0;
    double slope = (double)a->alibi_slopes[b * d->alibi_stride_batch + h];
    return d->flags & STW_ATTN_ALIBI_COLUMN ? slope * (double)key : -slope * fabs((double)ahead);
}

/* Intervals and block mask, each as a table of what the bounds hide. */
static int naive_hides(const fixture *f, int64_t b, int64_t h, int64_t i, int64_t j) {
    const stw_attn_desc *d = &f->desc;
    const int64_t row = i + (f->args.q_offsets ? f->args.q_offsets[b] : f->args.q_offset), far = INT64_C(1) << 40;
    if (d->flags & STW_ATTN_BLOCK_MASK && !f->args.block_mask[b * d->block_mask.batch + h * d->block_mask.head])
        return 1;
    if (!d->interval_form) return 0;
    const int64_t h_kv = h / (d->heads_q / d->heads_kv);
    const int32_t *c = f->args.intervals + b * d->intervals.batch + h_kv * d->intervals.head + j * d->intervals.key;
    const int64_t ranges[6][2][2] = {[STW_INTERVALS_FROM] = {{c[0], far}},
                                     [STW_INTERVALS_RANGE] = {{c[0], c[1]}},
                                     [STW_INTERVALS_FROM_BELOW] = {{c[0], far}, {-far, c[1]}},
                                     [STW_INTERVALS_RANGE_BELOW] = {{c[0], c[1]}, {-far, c[2]}},
                                     [STW_INTERVALS_TWO_RANGES] = {{c[0], c[1]}, {c[2], c[3]}}};
    for (int n = 0; n < 2; ++n)
        if (row >= ranges[d->interval_form][n][0] && row < ranges[d->interval_form][n][1]) return 1;
    return 0;
}

static double naive_score(const fixture *f, int64_t b, int64_t h, int64_t i, int64_t j) {
    const stw_attn_desc *d = &f->desc;
    const float *q = f->args.q, *k = f->args.k;
    int64_t h_kv = h / (d->heads_q / d->heads_kv);
    double s = 0;
    int seen;
    for (int64_t e = 0; e < d->head_dim_qk; ++e)
        s += (double)q[fixture_index(f, FIXTURE_Q, b, h, i, e)] * (double)k[fixture_index(f, FIXTURE_K, b, h_kv, j, e)];
    s *= d->flags & STW_ATTN_HAS_SCALE ? (double)d->scale : pow((double)d->head_dim_qk, -0.5);
    if (d->softcap != 0) s = (double)d->softcap * tanh(s / (double)d->softcap);
    if (d->bias_dtype == STW_F32) s += (double)((const float *)f->args.bias)[fixture_bias_index(f, b, h, i, j)];
    if (d->bias_dtype == STW_U8 && !((const unsigned char *)f->args.bias)[fixture_bias_index(f, b, h, i, j)])
        return -INFINITY;
    s += naive_alibi(f, b, h, i, j, &seen);
    return seen && !naive_hides(f, b, h, i, j) ? s : -INFINITY;
}

/* Row (b, h, i) of the forward against the naive one. Scores here are small: no maximum is subtracted. */
static void check_row(const fixture *f, const stw_ref_result *r, int64_t b, int64_t h, int64_t i) {
    const stw_attn_desc *d = &f->desc;
    const float *v = f->args.v;
    double sum = d->flags & STW_ATTN_SINK ? exp((double)f->args.sink[h]) : 0, out[4] = {0};
    int64_t row = fixture_result_row_q(f, b, i), h_kv = h / (d->heads_q / d->heads_kv);
    stw_ref_problem p;
    assert_int_equal(stw_ref_problem_init(&p, d, &f->args, 0), STW_OK);
    stw_ref_side q = stw_ref_side_q(&p, b), kv = stw_ref_side_kv(&p, b);
    for (int64_t j = 0; j < fixture_used_kv(f, b); ++j) {
        double weight = exp(naive_score(f, b, h, i, j));
        sum += weight;
        if (weight == 0 || (d->dropout_p > 0 && !stw_ref_keeps(&p, &q, &kv, b, h, i, j))) continue;
        for (int64_t e = 0; e < d->head_dim_v; ++e)
            out[e] += weight / (1 - d->dropout_p) * (double)v[fixture_index(f, FIXTURE_V, b, h_kv, j, e)];
    }
    double lse = r->lse[h * r->rows_q + row];
    assert_true(sum > 0 ? fabs(lse - log(sum)) < 1e-12 : lse == -INFINITY);
    for (int64_t e = 0; e < d->head_dim_v; ++e) {
        double expected = sum > 0 ? out[e] / sum : 0;
        assert_true(fabs(r->out[(row * d->heads_q + h) * d->head_dim_v + e] - expected) < 1e-12);
    }
}

static void test_forward(void **state) {
    (void)state;
    for (int n = 0; n < setups_count; ++n) {
        fixture f = fixture_start();
        setups[n].apply(&f);
        fixture_build(&f);
        stw_ref_result r;
        assert_int_equal(stw_ref_attn_fwd(&f.desc, &f.args, &r), STW_OK);
        for (int64_t b = 0; b < f.desc.batch; ++b)
            for (int64_t e = 0; e < f.desc.heads_q * fixture_used_q(&f, b); ++e)
                check_row(&f, &r, b, e % f.desc.heads_q, e / f.desc.heads_q);
        stw_ref_free(&r);
        fixture_free(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_forward),
    };
    return cmocka_run_group_tests_name("positions", tests, NULL, NULL);
}
