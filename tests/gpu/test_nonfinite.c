/* SPDX-License-Identifier: MIT
 *
 * Infinite and undefined numbers in rows that take part: they reach what depends on them, and nothing else.
 * Keys that no query sees get zeros, keys that a mask hides from a row with LSE = NaN get what they always
 * get. Rows with an infinite LSE are conform's (data_dead_rows). */
#include "gpu.h"

#include "common/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An input row of every head of a sequence is overwritten with `value` in its first element. */
typedef struct change {
    stw_verify_tensor tensor;
    int64_t b, row;
    float value;
} change;

static stw_dtype dtype_of(const stw_verify_case *c, stw_verify_tensor t) {
    if (t == STW_VERIFY_BIAS) return c->problem.desc.bias_dtype;
    if (t == STW_VERIFY_LSE || t == STW_VERIFY_DELTA || t == STW_VERIFY_DLSE || t == STW_VERIFY_ALIBI) return STW_F32;
    return c->problem.desc.dtype;
}

static int64_t place_of(const stw_verify_case *c, stw_verify_tensor t, int64_t b, int64_t h, int64_t row) {
    const stw_bias_strides *s = &c->problem.desc.bias;
    if (t == STW_VERIFY_BIAS) return b * s->batch + h * s->head + row * s->query;
    if (t == STW_VERIFY_ALIBI) return h;
    return stw_verify_row_index(c, t, b, h, row);
}

static void run_changed(gpu_case *g, const change *changes, int count) {
    unsigned char *kept = malloc(g->c.bytes);
    assert_non_null(kept);
    memcpy(kept, g->c.host, g->c.bytes);
    for (int n = 0; n < count; ++n) {
        const change *x = &changes[n];
        for (int64_t h = 0; h < g->c.problem.desc.heads_q; ++h)
            stw_store_f32(g->c.host + g->c.offset[x->tensor], place_of(&g->c, x->tensor, x->b, h, x->row),
                          dtype_of(&g->c, x->tensor), x->value);
    }
    gpu_case_load(g, &g->c, 0xFF);
    GPU_OK(gpu_case_run(g, g->device.stream));
    gpu_case_store(g, g->device.stream);
    memcpy(g->c.host, kept, g->c.bytes);
    free(kept);
}

static float at(const stw_verify_case *c, const unsigned char *arena, stw_verify_tensor t, int64_t b, int64_t h,
                int64_t row, int64_t n) {
    return stw_load_f32(arena + c->offset[t], stw_verify_row_index(c, t, b, h, row) + n, c->problem.desc.dtype);
}

/* Rows [first, end) of dK and dV of a sequence are exactly zero. */
static void zeros(const gpu_case *g, int64_t b, int64_t first, int64_t end) {
    const stw_attn_desc *d = &g->c.problem.desc;
    for (int64_t h = 0; h < d->heads_kv; ++h)
        for (int64_t j = first; j < end; ++j)
            for (int64_t n = 0; n < d->head_dim_qk; ++n) {
                float dk = at(&g->c, g->after, STW_VERIFY_DK, b, h, j, n),
                      dv = at(&g->c, g->after, STW_VERIFY_DV, b, h, j, n);
                if (dk != 0 || dv != 0)
                    fail_msg("%s: sequence %lld, key %lld: dK %g, dV %g, not 0", g->line, (long long)b, (long long)j,
                             dk, dv);
            }
}

/* The first key behind the work tiles that a query sees: what is no number may reach the other keys of a work tile. */
static int64_t first_unseen(const gpu_case *g) {
    char text[4096];
    unsigned rows, keys = 1;
    GPU_OK(stw_plan_describe(g->plan, text, sizeof text, NULL));
    const char *tile = strstr(text, "tile: ");
    if (!tile || sscanf(tile, "tile: %ux%u", &rows, &keys) != 2) fail_msg("no tile in: %s", text);
    return (g->c.problem.desc.max_seq_q + keys - 1) / keys * keys;
}

static void unseen_keys(void **state) {
    (void)state;
    static const char *const lines[] = {
        "attn_bwd:bf16:b2h2s128x512d128:causal_tl", "attn_bwd:f16:b2h4k2s128x512d64:causal_tl",
        "attn_bwd:bf16:b2h2s100x300d96:causal_tl",  "attn_bwd:f16:b2h2s70x300d128:causal_tl",
        "attn_bwd:f32:b2h2s100x300d64:causal_tl",   "attn_bwd:bf16:b2h2s100x300d256:causal_tl"};
    for (size_t n = 0; n < sizeof lines / sizeof *lines; ++n) {
        gpu_case g;
        gpu_case_open(&g, gpu_context, lines[n]);
        const stw_attn_desc *d = &g.c.problem.desc;
        run_changed(&g,
                    (const change[]){{STW_VERIFY_Q, 0, 0, INFINITY},
                                     {STW_VERIFY_DOUT, 0, 5, NAN},
                                     {STW_VERIFY_DOUT, 1, 64, INFINITY},
                                     {STW_VERIFY_Q, 1, 65, NAN}},
                    4);
        if (at(&g.c, g.after, STW_VERIFY_DV, 0, 0, 0, 0) == at(&g.c, g.after, STW_VERIFY_DV, 0, 0, 0, 0))
            fail_msg("%s: the numbers did not reach a key that sees them", lines[n]);
        for (int64_t b = 0; b < 2; ++b) zeros(&g, b, first_unseen(&g), d->max_seq_kv);
        gpu_case_round(&g, "ordinary numbers again");
        gpu_case_close(&g);
    }
}

/* Packed: keys of a sequence without queries, whose neighbours' rows lie where its own would. */
static void keys_without_queries(void **state) {
    (void)state;
    static const char *const dims[] = {"64", "128"};
    for (int n = 0; n < 2; ++n) {
        char line[200];
        gpu_case g;
        snprintf(line, sizeof line, "attn_bwd:bf16:b3h2s130x200d%s:thd:tq260:tk500:cuq0,130,130,260:cuk0,150,350,500",
                 dims[n]);
        gpu_case_open(&g, gpu_context, line);
        run_changed(
            &g,
            (const change[]){{STW_VERIFY_Q, 2, 0, INFINITY}, {STW_VERIFY_DOUT, 2, 1, NAN}, {STW_VERIFY_LSE, 2, 3, NAN}},
            3);
        zeros(&g, 1, 0, 200);
        gpu_case_round(&g, "ordinary numbers again");
        gpu_case_close(&g);
    }
}

/* LSE of row 100 is NaN: hidden keys have the bits they had, other rows of dQ are numbers. */
static void undefined_lse(void **state) {
    (void)state;
    static const char *const lines[] = {
        "attn_bwd:bf16:b1h2s256x256d128:causal_tl", "attn_bwd:bf16:b1h2s256x256d64:causal_tl",
        "attn_bwd:f16:b1h2s200x200d96:causal_br", "attn_bwd:bf16:b1h2s200x200d192:causal_br",
        "attn_bwd:f32:b1h2s200x200d64:causal_tl"};
    for (size_t n = 0; n < sizeof lines / sizeof *lines; ++n) {
        gpu_case g;
        gpu_case_open(&g, gpu_context, lines[n]);
        const stw_attn_desc *d = &g.c.problem.desc;
        gpu_case_round(&g, "ordinary numbers");
        unsigned char *usual = malloc(g.c.bytes);
        assert_non_null(usual);
        memcpy(usual, g.after, g.c.bytes);
        run_changed(&g, (const change[]){{STW_VERIFY_LSE, 0, 100, NAN}}, 1);
        float reached = at(&g.c, g.after, STW_VERIFY_DV, 0, 0, 100, 0),
              row = at(&g.c, g.after, STW_VERIFY_DQ, 0, 0, 100, 0);
        if (reached == reached || row == row) fail_msg("%s: NaN did not propagate", lines[n]);
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t j = 0; j < d->max_seq_kv; ++j)
                for (int64_t e = 0; e < d->head_dim_qk; ++e) {
                    float dq = at(&g.c, g.after, STW_VERIFY_DQ, 0, h, j, e);
                    int same =
                        at(&g.c, g.after, STW_VERIFY_DK, 0, h, j, e) == at(&g.c, usual, STW_VERIFY_DK, 0, h, j, e) &&
                        at(&g.c, g.after, STW_VERIFY_DV, 0, h, j, e) == at(&g.c, usual, STW_VERIFY_DV, 0, h, j, e);
                    if (j > 100 && !same) fail_msg("%s: hidden key %lld has other gradients", lines[n], (long long)j);
                    if (j != 100 && dq != dq) fail_msg("%s: row %lld of dQ is NaN", lines[n], (long long)j);
                }
        free(usual);
        gpu_case_close(&g);
    }
}

/* Any NaN of f32 stays one, also one whose low bits would overflow where P and dS are rounded to 16 bits: row 10 and
 * what it reaches are NaN, row 11 is not, but with a slope, which is every row's. */
static void any_nan(void **state) {
    (void)state;
    static const uint32_t numbers[] = {0xffffffffu, 0x7fff8000u};
    static const struct {
        const char *words;
        stw_verify_tensor tensor;
    } inputs[] = {{"delta_in", STW_VERIFY_DELTA},    {"dlse", STW_VERIFY_DLSE},
                  {"biasf32_bhqk", STW_VERIFY_BIAS}, {"biasf32_bhqk:alibi:det", STW_VERIFY_BIAS},
                  {"softcap9", STW_VERIFY_LSE},      {"softcap9:alibi:delta_in", STW_VERIFY_DELTA},
                  {"alibi", STW_VERIFY_ALIBI},       {"dropout0.2:alibi", STW_VERIFY_ALIBI}};
    static const char *const problems[] = {"bf16:b1h2s70x130d64", "bf16:b1h2s70x130d128", "f16:b1h2s70x130d64",
                                           "bf16:b1h1s40x70d192", "f32:b1h2s70x130d64"};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; ++i)
        for (size_t n = 0; n < sizeof problems / sizeof *problems; ++n) {
            char line[200];
            gpu_case g;
            snprintf(line, sizeof line, "attn_bwd:%s:%s", problems[n], inputs[i].words);
            gpu_case_open(&g, gpu_context, line);
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; ++k) {
                float value;
                memcpy(&value, &numbers[k], sizeof value);
                run_changed(&g, &(const change){inputs[i].tensor, 0, 10, value}, 1);
                const float key = at(&g.c, g.after, STW_VERIFY_DK, 0, 0, 0, 0),
                            row = at(&g.c, g.after, STW_VERIFY_DQ, 0, 0, 10, 0),
                            next = at(&g.c, g.after, STW_VERIFY_DQ, 0, 0, 11, 0);
                const int all_rows = inputs[i].tensor == STW_VERIFY_ALIBI;
                if (key == key || row == row || (next != next) != all_rows)
                    fail_msg("%s, 0x%08x: dK of key 0 is %g, dQ of rows 10 and 11 %g, %g", line, numbers[k], key, row,
                             next);
            }
            gpu_case_close(&g);
        }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unseen_keys),
        cmocka_unit_test(keys_without_queries),
        cmocka_unit_test(undefined_lse),
        cmocka_unit_test(any_nan),
    };
    return gpu_main(argc, argv, "gpu_nonfinite", tests, sizeof tests / sizeof *tests, 160);
}
