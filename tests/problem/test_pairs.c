/* SPDX-License-Identifier: MIT
 *
 * The pairs that `sternway bench` counts FLOP of (stw_verify_pairs) are those that the float64 reference sees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tools/reference/problem.h"
#include "tools/verify/verify.h"

static const char *const lines[] = {
    "attn_bwd:f32:b2h4k2s50x31d8",
    "attn_bwd:f32:b2h2s50x31d8:causal_br",
    "attn_bwd:f32:b2h2s31x50d8:causal_tl",
    "attn_bwd:f32:b1h2s50x31d8:shift-60:causal_tl",
    "attn_bwd:f32:b1h2s60x50d8:wl9:wr3",
    "attn_bwd:f32:b2h2s90d8:intervals_from_below:draw_causal",
    "attn_bwd:f32:b2h4k2s70x150d8:intervals_from:causal_br:draw_documents:draw9",
    "attn_bwd:f32:b2h4k2s300x290d8:intervals_two:draw_random:mask_heads",
    "attn_bwd:f32:b2h4k2s300x290d8:intervals_two:draw_dead",
    "attn_bwd:f32:b2h4k2s300x290d8:intervals_range_below:draw_random:causal_br:wl70",
    "attn_bwd:f32:b3h4k2s80d8:thd:intervals_two:draw_random:used",
    "attn_bwd:f32:b2h2s70x90d8:qoffs7,9:koffs0,3:intervals_two:draw_random:causal_br",
    "attn_bwd:f32:b2h4k2s300x290d8:blockmask:draw_random",
    "attn_bwd:f32:b2h4k2s300x290d8:blockmask:draw_random:mask_heads:causal_br",
    "attn_bwd:f32:b2h4k2s300x290d8:blockmask:intervals_two:draw_random:mask_heads:wl200",
    "attn_bwd:f32:b1h2s300x290d8:blockmask:draw_hidden",
};

static int64_t pairs_of_reference(const stw_verify_case *c, const stw_attn_args *args) {
    stw_ref_problem p;
    int64_t pairs = 0;
    assert_int_equal(stw_ref_problem_init(&p, &c->problem.desc, args, 0), STW_OK);
    for (int64_t b = 0; b < p.desc->batch; ++b) {
        const stw_ref_side q = stw_ref_side_q(&p, b), kv = stw_ref_side_kv(&p, b);
        for (int64_t h = 0; h < p.desc->heads_q; ++h)
            for (int64_t i = 0; i < q.used; ++i)
                for (int64_t j = 0; j < kv.used; ++j)
                    pairs += stw_ref_visible(&p, &q, &kv, i, j) && stw_ref_unhidden(&p, &q, &kv, b, h, i, j);
    }
    return pairs;
}

static void test_pairs(void **state) {
    (void)state;
    int64_t hidden = 0;
    for (size_t n = 0; n < sizeof lines / sizeof *lines; ++n) {
        stw_problem problem;
        stw_verify_case c;
        if (stw_problem_parse(lines[n], &problem)) fail_msg("%s: %s", lines[n], stw_last_error());
        if (stw_verify_build_inputs(&problem, &c)) fail_msg("%s: %s", lines[n], stw_last_error());
        const stw_attn_args args = stw_verify_args(&c, c.host);
        const int64_t pairs = pairs_of_reference(&c, &args);
        if ((double)pairs != stw_verify_pairs(&c))
            fail_msg("%s: the reference sees %lld pairs, stw_verify_pairs counts %.0f", lines[n], (long long)pairs,
                     stw_verify_pairs(&c));
        hidden += pairs == 0;
        stw_verify_free(&c);
    }
    assert_int_equal(hidden, 2); /* the shift by -60 and the last line */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
