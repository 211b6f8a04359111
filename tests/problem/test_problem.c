/* SPDX-License-Identifier: MIT
 *
 * PROBLEM strings (common/problem.h, tools/problem): canonical lines round trip, every field of the descriptor survives
 * formatting, layouts agree with the public stw_layout_* calls, and malformed lines are refused by
 * position and token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/problem/jagged.h"
#include "tools/problem/reader.h"

#include <math.h>

static const char *const canonical[] = {
    "attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1",
    "attn_bwd:f16:b1h1s1d16",
    "attn_fwd:f32:b2h4k2s65x130d192x128:bhsd",
    "attn_bwd:f32:b2h3s17x5d40:gap3:lse_heads:causal_tl:wl7:shift-3",
    "attn_bwd:bf16:b3h2s33d64:tq70:tk99:wr0",
    "attn_bwd:bf16:b3h2s33d64:tq70:qkv:lse_heads",
    "attn_bwd:bf16:b3h2s33d64:tq99:tk99:lse_local",
    "attn_bwd:f16:b2h4s20x31d8:bias_1hq1",
    "attn_bwd:f16:b2h4s20x31d8:biasf32_b11k:scale0.5:softcap30:alibi:alibi_col:sink:dlse:delta_out:used:"
    "alibi_st4",
    "attn_bwd:bf16:b2h4s20d8:bias_bhqk:dropout0.3333333333333333:map_flash2:grads_qb:acc_q:dq_f32:dbias_f32:"
    "det",
    "attn_bwd:f32:b2h4s20d8:delta_in:nodet:boff3:hoff2:htotal16",
    "attn_bwd:f32:b2h4s20d8:scale0:data_sd3:seed7:dseed9:doff4:qoff-5:koff6:skew1:pointer",
    "attn_bwd:f32:b2h4s20x31d8:biasu8_b1qk:sink",
    "attn_bwd:bf16:b3h2s33d64:tq0:tk0",
    "attn_bwd:bf16:b2h4s20d8:st_q640,1,32,4:st_dout0,0,0,0",
    "attn_fwd:bf16:b2h4s20d8:st_k640,8,32,3",
    "attn_bwd:f32:b2h4k2s20x31d8:intervals_from:causal_br:draw_documents:draw7",
    "attn_bwd:f32:b2h4k2s20x31d8:intervals_two:mask_heads:blockmask",
    "attn_bwd:f32:b2h4k2s20x31d8:tk40:intervals_range_below:st_intervals0,0,8,2:draw_tree",
    "attn_bwd:f32:b2h4k2s300x131d8:st_block_mask0,0,1,3:blockmask",
};

static void test_canonical_lines(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof canonical / sizeof *canonical; ++i) {
        stw_problem problem, again;
        char line[512];
        if (stw_problem_parse(canonical[i], &problem)) fail_msg("%s: %s", canonical[i], stw_last_error());
        size_t length = stw_problem_print(&problem, line, sizeof line);
        assert_int_equal(length, strlen(line));
        if (i != 11) assert_string_equal(line, canonical[i]);
        if (stw_problem_parse(line, &again)) fail_msg("%s: %s", line, stw_last_error());
        assert_memory_equal(&problem, &again, sizeof problem);
    }
}

/* Options in any order mean the same. */
static void test_order_is_free(void **state) {
    (void)state;
    stw_problem a, b;
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b3h4s20d8:thd:bias_1hqk:lse_heads:gap5", &a), STW_OK);
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b3h4s20d8:gap5:lse_heads:tk60:bias_1hqk:tq60", &b), STW_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.desc.total_q, 60);
    assert_int_equal(a.desc.lse.head, 1);
    assert_int_equal(a.desc.lse.seq, 4 + 5);
    assert_int_equal(a.desc.bias.batch, 0);
    assert_int_equal(a.desc.bias.query, 25);
}

static void test_fields(void **state) {
    (void)state;
    stw_problem p;
    assert_int_equal(stw_problem_parse("attn_bwd:bf16:b4h32k8s100x200d192x128:causal_br:dropout0.1:scale0.25:"
                                       "biasf32_1hqk:grads_kvs:acc_k:dk_f32:cuq1,2,3:usedk5,6:wl9",
                                       &p),
                     STW_OK);
    const stw_attn_desc *d = &p.desc;
    assert_int_equal(d->struct_size, sizeof *d);
    assert_int_equal(d->dtype, STW_BF16);
    assert_int_equal(d->bias_dtype, STW_F32);
    assert_int_equal(d->dk_dtype, STW_F32);
    assert_int_equal(d->dq_dtype, STW_DTYPE_NONE);
    assert_int_equal(d->batch, 4);
    assert_int_equal(d->heads_q, 32);
    assert_int_equal(d->heads_kv, 8);
    assert_int_equal(d->max_seq_q, 100);
    assert_int_equal(d->max_seq_kv, 200);
    assert_int_equal(d->head_dim_qk, 192);
    assert_int_equal(d->head_dim_v, 128);
    assert_int_equal(d->mask, STW_MASK_CAUSAL_BOTTOM_RIGHT);
    assert_true(d->dropout_p == 0.1 && d->scale == 0.25f);
    assert_int_equal(d->outputs, STW_OUT_DK | STW_OUT_DV | STW_OUT_DSINK);
    assert_int_equal(d->accumulate, STW_OUT_DK);
    assert_int_equal(d->window_left, 9);
    assert_int_equal(d->flags, STW_ATTN_HAS_SCALE | STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_USED_LENGTHS);
    assert_int_equal(d->k.seq, 8 * 192);
    assert_int_equal(d->out.batch, 100 * 32 * 128);
    assert_int_equal(p.cu_q.count, 3);
    assert_int_equal(p.cu_q.value[2], 3);
    assert_int_equal(p.used_kv.count, 2);
}

/* The tokens bshd, bhsd and thd are the public helpers' layouts. */
static void test_layouts_agree(void **state) {
    (void)state;
    static const struct {
        const char *line;
        stw_status (*fill)(stw_attn_desc *);
    } rows[] = {{"attn_bwd:bf16:b4h6k3s10x20d24x8:bias_bhqk:grads_qkvb:dlse", stw_layout_bshd},
                {"attn_bwd:bf16:b4h6k3s300x20d24x8:intervals_two:blockmask", stw_layout_bshd},
                {"attn_bwd:bf16:b4h6k3s300x20d24x8:thd:intervals_range_below:blockmask", stw_layout_thd},
                {"attn_bwd:bf16:b4h6k3s10x20d24x8:bhsd:bias_bhqk:grads_qkvb:dlse", stw_layout_bhsd},
                {"attn_bwd:bf16:b4h6k3s10x20d24x8:thd:bias_bhqk:grads_qkvb:dlse", stw_layout_thd}};
    for (size_t i = 0; i < 5; ++i) {
        stw_problem problem;
        char mine[512], theirs[512];
        assert_int_equal(stw_problem_parse(rows[i].line, &problem), STW_OK);
        stw_problem_format(&problem.desc, STW_PROBLEM_ATTN_BWD, mine, sizeof mine);
        assert_int_equal(rows[i].fill(&problem.desc), STW_OK);
        stw_problem_format(&problem.desc, STW_PROBLEM_ATTN_BWD, theirs, sizeof theirs);
        assert_string_equal(mine, theirs);
    }
}

/* Strides of no layout are written out and come back as they were. */
static void test_any_strides(void **state) {
    (void)state;
    stw_problem a, b;
    char line[512];
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b3h4s20d8:bias_bhqk:dlse:grads_qb", &a), STW_OK);
    a.desc.k = (stw_attn_strides){7000, 24, 333};
    a.desc.dlse = (stw_attn_strides){0, 0, 0};
    a.desc.bias = (stw_bias_strides){5000, 0, 41, 1};
    a.desc.dq = (stw_attn_strides){20 * 4 * 8 + 8, 8, 32};
    stw_problem_format(&a.desc, STW_PROBLEM_ATTN_BWD, line, sizeof line);
    assert_non_null(strstr(line, ":st_k7000,24,333"));
    assert_non_null(strstr(line, ":st_dlse0,0,0"));
    assert_non_null(strstr(line, ":st_bias5000,0,41,1"));
    assert_int_equal(stw_problem_parse(line, &b), STW_OK);
    assert_memory_equal(&a.desc.k, &b.desc.k, sizeof a.desc.k);
    assert_memory_equal(&a.desc.dq, &b.desc.dq, sizeof a.desc.dq);
    assert_memory_equal(&a.desc.q, &b.desc.q, sizeof a.desc.q);
    assert_memory_equal(&a.desc.dlse, &b.desc.dlse, sizeof a.desc.dlse);
    assert_memory_equal(&a.desc.bias, &b.desc.bias, sizeof a.desc.bias);
    assert_memory_equal(&a.desc.dbias, &b.desc.dbias, sizeof a.desc.dbias);
}

/* A descriptor as a plan resolves it prints as the line it came from. */
static void test_defaults_are_silent(void **state) {
    (void)state;
    stw_problem a;
    char line[512];
    assert_int_equal(stw_problem_parse("attn_bwd:bf16:b3h4s20d64:bias_bhqk", &a), STW_OK);
    a.desc.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    a.desc.dq_dtype = a.desc.dk_dtype = a.desc.dv_dtype = a.desc.dbias_dtype = STW_BF16;
    a.desc.flags |= STW_ATTN_HAS_SCALE;
    a.desc.scale = 0.125f;
    a.desc.heads_total = 4;
    stw_problem_format(&a.desc, STW_PROBLEM_ATTN_BWD, line, sizeof line);
    assert_string_equal(line, "attn_bwd:bf16:b3h4s20d64:bias_bhqk");
}

static void test_cut_text(void **state) {
    (void)state;
    stw_problem problem;
    char line[16];
    assert_int_equal(stw_problem_parse(canonical[0], &problem), STW_OK);
    assert_int_equal(stw_problem_print(&problem, line, sizeof line), strlen(canonical[0]));
    assert_int_equal(strlen(line), 15);
    assert_int_equal(stw_problem_print(&problem, NULL, 0), strlen(canonical[0]));
}

static void test_refusals(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"", "at 1: '' is empty"},
        {"attn_bwd", "at 9: '' is the end"},
        {"attn_bwd:bf16", "at 14: '' is the end"},
        {"attn_bwd:bf16:", "at 15: '' is empty"},
        {"attn:bf16:b1h1s1d1", "at 1: 'attn' is not an operation; accepted: attn_bwd, attn_fwd, or jagged_*"},
        {"attn_bwd:f80:b1h1s1d1", "at 10: 'f80' is not a dtype; accepted: f16, bf16, f32, f64"},
        {"attn_bwd:f16:h1b1s1d1", "at 14: 'h1b1s1d1' is not b<B>h<Hq>"},
        {"attn_bwd:f16:b1h1s1d1z", "text behind the sizes"},
        {"attn_bwd:f16:b1h1s1", "is not b<B>h<Hq>"},
        {"attn_bwd:f16:b99999999999999999999h1s1d1", "0..2147483647"},
        {"attn_bwd:f16:b2147483648h1s1d1", "0..2147483647"},
        {"attn_bwd:f16:b-1h1s1d1", "0..2147483647"},
        {"attn_bwd:f16:b1h1s1d1:dropuot0.1", "at 23: 'dropuot0.1' is not an option; did you mean dropout0.1?"},
        {"attn_bwd:f16:b1h1s1d1:causal", "'causal' is not an option; did you mean causal_tl or causal_br?"},
        {"attn_bwd:f16:b1h1s1d1:window256", "'window256' is not an option; did you mean wl256 or wr256?"},
        {"attn_bwd:f16:b1h1s1d1:window", "did you mean wl<N> or wr<N>?"},
        {"attn_bwd:f16:b1h1s1d1:window_left=128", "did you mean wl128?"},
        {"attn_bwd:f16:b1h1s1d1:detr", "did you mean det?"},
        {"attn_bwd:f16:b1h1s1d1:softcp30", "did you mean softcap30?"},
        {"attn_bwd:f16:b1h1s1d1:whatever", "'whatever' is not an option; `sternway help problem` lists them"},
        {"attn_bwd:f16:b1h1s1d1:dropout0,1", "'dropout0,1' is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:scalenan", "'scalenan' is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:scale1e999", "is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:scale1e50", "is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1::det", "at 23: '' is empty"},
        {"attn_bwd:f16:b1h1s1d1:det:det", "at 27: 'det' comes after another option of its kind"},
        {"attn_bwd:f16:b1h1s1d1:bshd:qkv", "'qkv' comes after another"},
        {"attn_bwd:f16:b1h1s1d1:wl3:wl4", "'wl4' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:wl-1", "'wl-1' is not wl<N>, N from 0"},
        {"attn_bwd:f16:b1h1s1d1:wl3x", "'wl3x' is not wl<N>"},
        {"attn_bwd:f16:b1h1s1d1:shift99999999999999999999", "is not shift<N>"},
        {"attn_bwd:f16:b1h1s1d1:bias_hbqk", "'bias_hbqk' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasf64_1hqk", "is not bias[f16|bf16|f32|u8]_"},
        {"attn_bwd:f16:b1h1s1d1:biasu8", "'biasu8' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasu9_bhqk", "'biasu9_bhqk' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:grads_qq", "'grads_qq' is not _ and letters of qkvbs"},
        {"attn_bwd:f16:b1h1s1d1:dq_f80", "'f80' is not a dtype"},
        {"attn_bwd:f16:b1h1s1d1:cuq0,,1", "is not a list of integers"},
        {"attn_bwd:f16:b1h1s1d1:st_q1,2", "needs batch,head,seq"},
        {"attn_bwd:f16:b1h1s1d1:st_q1,2,3,4,5", "has too many values"},
        {"attn_bwd:f16:b1h1s1d1:st_dq1,2,3,4", "has too many values"},
        {"attn_bwd:f16:b1h1s1d1:st_z1,2,3", "is not st_<tensor>"},
        {"attn_bwd:f16:b2147483647h2147483647s2147483647d4", "do not fit 63 bits"},
        {"attn_bwd:f16:b65536h1s65536d1:thd", "tq<N> is missing"},
        {"attn_bwd:f16:b65536h1s1x65536d1:thdk", "tk<N> is missing and batch * max_seq_kv"},
        {"attn_bwd:f16:b1h1k-1s1d1", "0..2147483647"},
        {"attn_bwd:f16:b1h1k2147483648s1d1", "0..2147483647"},
        {"attn_bwd:f16:b1h1ks1d1", "0..2147483647"},
        {"attn_bwd:f16:b1h1s1d1:gap1:gap2", "'gap2' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:splits1", "'splits1' is not an option"},
        {"attn_bwd:f16:b1h1s1d1:scale1:scale2", "'scale2' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:dq_f32:dq_f16", "'dq_f16' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:cuq0,1:cuq0,2", "'cuq0,2' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:st_q1,2,3:st_q1,2,4", "'st_q1,2,4' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:grads_q:grads_k", "'grads_k' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:sink:sink", "'sink' is given twice"},
        {"attn_bwd:f16:b1h1s1d1:biasf16", "'biasf16' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasf17_bhqk", "'biasf17_bhqk' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasbf17_bhqk", "'biasbf17_bhqk' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasf16_bhq", "'biasf16_bhq' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:biasf16.bhqk", "'biasf16.bhqk' is not bias"},
        {"attn_bwd:f16:b1h1s1d1:shift4611686018427387905", "is not shift<N>"},
        {"attn_bwd:f16:b1h1s1d1:skew256", "'skew256' is not skew<N>, N from 0 to 255"},
        {"attn_bwd:f16:b1h1s1d1:cuq0;1", "is not a list of integers"},
        {"attn_bwd:f16:b1h1s1d1:scale", "'scale' is not an option; did you mean scale<N>?"},
        {"attn_bwd:f16:b1h1s1d1:scale-", "'scale-' is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:scale1.2.3", "'scale1.2.3' is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:scale0.0000000000000000000000000000000000000001", "is not a finite number"},
        {"attn_bwd:f16:b1h1s1d1:a_long_option_of_which_the_text_shows_forty_eight_bytes",
         "at 23: 'a_long_option_of_which_the_text_shows_forty_eigh...' is not an option"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_problem problem;
        memset(&problem, 0x5A, sizeof problem);
        stw_problem before = problem;
        assert_int_equal(stw_problem_parse(rows[i][0], &problem), STW_E_INVALID);
        if (!strstr(stw_last_error(), rows[i][1])) fail_msg("%s: %s", rows[i][0], stw_last_error());
        assert_memory_equal(&before, &problem, sizeof problem);
    }
    assert_int_equal(stw_problem_parse(NULL, NULL), STW_E_INVALID);
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b1h1s1d1", NULL), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "problem: text or problem_out is NULL");
    double value;
    float single;
    static const char digits[] = "12";
    assert_int_equal(stw_reader_decimal(digits, digits, &value, &single), 0); /* nothing is no number */
    assert_int_equal(stw_reader_decimal(digits, digits + 1, &value, &single), 1);
    assert_true(value == 1.0 && single == 1.0f);
}

/* f64 problems keep all digits of scale and softcap, also of descriptors that set the f64 fields alone. */
static void test_f64_numbers(void **state) {
    (void)state;
    static const char line[] = "attn_bwd:f64:b1h2s5d8:scale0.1:softcap0.30000000000000004";
    char printed[256];
    stw_problem p;
    assert_int_equal(stw_problem_parse(line, &p), STW_OK);
    assert_int_equal(p.desc.dtype, STW_F64);
    assert_true(p.desc.scale_f64 == 0.1 && p.desc.scale == 0.1f && p.desc.softcap_f64 == 0.1 + 0.2);
    stw_problem_format(&p.desc, p.op, printed, sizeof printed);
    assert_string_equal(printed, line);
    p.desc.flags = 0;
    p.desc.scale = 0;
    stw_problem_format(&p.desc, p.op, printed, sizeof printed);
    assert_string_equal(printed, line);
    p.desc.scale_f64 = 1 / sqrt(8.0); /* the usual one */
    p.desc.softcap_f64 = 0;
    p.desc.softcap = 0.5f;
    stw_problem_format(&p.desc, p.op, printed, sizeof printed);
    assert_string_equal(printed, "attn_bwd:f64:b1h2s5d8:softcap0.5");
    assert_int_equal(stw_problem_parse("attn_bwd:f32:b1h2s5d8:scale0.1:softcap3", &p), STW_OK);
    assert_true(p.desc.scale_f64 == 0 && p.desc.softcap_f64 == 0);
}

/* The edges of what is refused above. */
static void test_edges_are_taken(void **state) {
    (void)state;
    stw_problem p;
    assert_int_equal(stw_problem_parse("attn_bwd:f32:b1h1s1d1:shift-4611686018427387904:skew255:scale1e+3:"
                                       "softcap1e+20:biasf16_bhq1:gap65536",
                                       &p),
                     STW_OK);
    assert_int_equal(p.desc.diagonal_shift, -STW_PROBLEM_WIDE_MAX);
    assert_int_equal(p.skew, 255);
    assert_true(p.desc.scale == 1000.0f && p.desc.softcap == 1e20f);
    assert_int_equal(p.desc.bias_dtype, STW_F16);
    assert_int_equal(stw_problem_parse("attn_bwd:f32:b65536h1s1x32767d1:thdk:biasbf16_1111", &p), STW_OK);
    assert_int_equal(p.desc.total_kv, 65536 * INT64_C(32767));
    assert_int_equal(p.desc.total_q, 0);
    assert_int_equal(p.desc.bias_dtype, STW_BF16);
    assert_int_equal(stw_problem_parse("attn_bwd:bf16:b1h1s1d1:biasu8_11qk", &p), STW_OK);
    assert_int_equal(p.desc.bias_dtype, STW_U8);
    assert_true(p.desc.bias.batch == 0 && p.desc.bias.head == 0 && p.desc.bias.query == 1 && p.desc.bias.key == 1);
    assert_int_equal(stw_problem_parse("attn_bwd:f32:b0h1s7d1:thd", &p), STW_OK);
    assert_int_equal(p.desc.total_q, 0); /* packed though empty */
    assert_int_equal(p.desc.flags, STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV);
    assert_int_equal(stw_problem_parse("attn_bwd:f32:b2h1s7d1:thdk:tk0", &p), STW_OK);
    assert_int_equal(p.desc.total_kv, 0);
    assert_int_equal(p.desc.flags, STW_ATTN_PACKED_KV);
}

static void formats_as(const stw_attn_desc *desc, const char *expected) {
    char line[4096];
    stw_problem_format(desc, STW_PROBLEM_ATTN_BWD, line, sizeof line);
    assert_string_equal(line, expected);
}

/* Formatting reads any descriptor, also one that no plan takes: what has no token is told as a number. */
static void test_what_no_plan_takes_is_printed(void **state) {
    (void)state;
    stw_problem p;
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b2h3s4d8", &p), STW_OK);
    stw_attn_desc good = p.desc, d = good;
    d.mask = (stw_attn_mask)9;
    d.dropout_map = (stw_dropout_map)7;
    d.deterministic = (stw_deterministic)5;
    formats_as(&d, "attn_bwd:f16:b2h3s4d8:mask9:map7:det5");
    d = good;
    d.flags |= STW_ATTN_HAS_SCALE;
    d.scale = NAN;
    d.softcap = 1e20f;
    d.dropout_p = (double)INFINITY;
    formats_as(&d, "attn_bwd:f16:b2h3s4d8:scalenan:softcap1e+20:dropoutinf");
    d = good;
    d.dtype = (stw_dtype)77;
    formats_as(&d, "attn_bwd:none:b2h3s4d8");
    d = good;
    d.heads_q = d.heads_kv = d.head_dim_qk = d.head_dim_v = INT64_C(1) << 40; /* no layout has strides */
    formats_as(&d, "attn_bwd:f16:b2h1099511627776s4d1099511627776:st_q96,8,24:st_k96,8,24:st_v96,8,24:"
                   "st_out96,8,24:st_dout96,8,24:st_dq96,8,24:st_dk96,8,24:st_dv96,8,24:st_lse12,4,1");
}

static void test_strides_beyond_63_bits(void **state) {
    (void)state;
    stw_problem p;
    stw_problem_layout layout = {STW_ORDER_BSHD, 1, STW_LSE_ROWS, 0, 0};
    assert_int_equal(stw_problem_parse("attn_bwd:f16:b1h1s1d8", &p), STW_OK);
    p.desc.head_dim_qk = INT64_MAX - 1; /* one row just fits */
    assert_int_equal(stw_problem_strides_of_layout(&p.desc, &layout), 0);
    layout.gap = 0;
    assert_int_equal(stw_problem_strides_of_layout(&p.desc, &layout), 1);
    assert_int_equal(p.desc.q.seq, INT64_MAX - 1);
    layout.gap = 2; /* the product fits, its sum with the gap does not */
    assert_int_equal(stw_problem_set_strides(&p.desc, &layout), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "the strides of bshd b1 h1 s1x1 d9223372036854775806x8 do not"));
}

/* Random cuts and byte changes of good lines: refused or stable under printing, never a crash. */
static void test_mangled_lines(void **state) {
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 20000; ++round) {
        char line[512], printed[2048];
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        strcpy(line, canonical[x % (sizeof canonical / sizeof *canonical)]);
        size_t length = strlen(line), at = (x >> 16) % length;
        if (x >> 63) line[at] = 0;
        else line[at] = "0123456789:_-.,qkvbdxhe"[(x >> 32) % 23];
        stw_problem problem, again;
        if (stw_problem_parse(line, &problem)) continue;
        assert_true(stw_problem_print(&problem, printed, sizeof printed) < sizeof printed);
        if (stw_problem_parse(printed, &again)) fail_msg("%s -> %s: %s", line, printed, stw_last_error());
        char twice[2048];
        stw_problem_print(&again, twice, sizeof twice);
        assert_string_equal(printed, twice);
    }
}

/* ---- jagged operations ---- */

static const char *const jagged_lines[] = {
    "jagged_gelu:bf16:c7l60t200",
    "jagged_gelu_tanh:f16:c7o3l60t200i33:jagged:used",
    "jagged_silu:f32:c7l60t200i33:i64:full",
    "jagged_threshold:i8:c7l60t200i33:thr-3.5",
    "jagged_softmax:bf16:c5l30t90i60:inner:ds5:da4",
    "jagged_log_softmax:f16:c5l30t90i60:ragged",
    "jagged_sum:f64:c5o12l30t90i7:outer:ds3:da2",
    "jagged_select:u8:c5l30t90i7:ragged:index-1",
    "jagged_select:i64:c5l30t90i7:component:index4",
    "jagged_layer_norm:f16:c5l60t200i64:inner:dx_f32:weight_f32:gamma:out_x:out_w:acc_x:ds16",
    "jagged_rms_norm:bf16:c5l60t200i64:weight_f32:gamma:out_x:out_w:acc_w:ds16",
    "jagged_layer_norm:f32:c5o2l60t200i64:ragged:jagged:used",
    "jagged_reshape:i32:c7l60t200:grad_jagged:shape4,-1,3:gshape-1,12",
    "jagged_to_padded:i16:c7l60t200i33p60",
    "jagged_from_padded:bf16:c7l60t200i33p60",
    "jagged_linear:bf16:c7l60t200i64f96:dweight_f32:dbias_f32:out_w:out_b:acc_w",
    "jagged_matmul:bf16:c6o2m40k24n30:xt:gt:tm120:tn90:gb9000",
    "jagged_matmul:f16:c0m0k4n5:grad_jagged:other_jagged:dother_f32:out_o:acc_o:tn20",
};

static void test_jagged_lines(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof jagged_lines / sizeof *jagged_lines; ++i) {
        stw_jagged_problem problem, again;
        char line[512];
        assert_true(stw_problem_is_jagged(jagged_lines[i]));
        if (stw_problem_jagged_parse(jagged_lines[i], &problem)) fail_msg("%s: %s", jagged_lines[i], stw_last_error());
        size_t length = stw_problem_jagged_format(&problem.desc, NULL, line, sizeof line);
        assert_int_equal(length, strlen(line));
        assert_string_equal(line, jagged_lines[i]);
        assert_int_equal(stw_problem_jagged_parse(line, &again), STW_OK);
        assert_memory_equal(&problem, &again, sizeof problem);
    }
}

static void test_jagged_fields(void **state) {
    (void)state;
    stw_jagged_problem p;
    assert_int_equal(
        stw_problem_jagged_parse("jagged_matmul:f16:c6o2m40k24n30:tm120:tn90:gb9000:ot:seed7:skew3:data_sd3:"
                                 "lens_huge",
                                 &p),
        STW_OK);
    const stw_jagged_desc *d = &p.desc;
    assert_int_equal(d->struct_size, sizeof *d);
    assert_int_equal(d->op, STW_JAGGED_MATMUL);
    assert_int_equal(d->index_dtype, STW_I32);
    assert_true(d->components == 6 && d->outer == 2 && d->ragged_axes == 5u);
    assert_true(d->axis[0].size == 40 && d->axis[0].total == 120 && d->axis[1].size == 24 && !d->axis[1].total);
    assert_true(d->axis[2].size == 30 && d->axis[2].total == 90 && d->grad_elements == 9000);
    assert_int_equal(d->flags, STW_JAGGED_GRAD_BASES | STW_JAGGED_OTHER_TRANSPOSED);
    assert_true(p.seed == 7 && p.skew == 3 && p.data == STW_JDATA_SD3 && p.lens == STW_LENS_HUGE);
    assert_int_equal(stw_problem_jagged_parse("jagged_sum:f32:c6t40:ragged", &p), STW_OK);
    assert_int_equal(p.desc.axis[0].size, 40); /* any length */
    assert_int_equal(stw_problem_jagged_parse("jagged_attention:i64:attn_bwd:bf16:b4h8s51d64:thd:used", &p), STW_OK);
    assert_true(p.desc.index_dtype == STW_I64 && p.desc.components == 4 && p.attn.desc.max_seq_q == 51);
    char line[256];
    stw_problem_jagged_format(&p.desc, &p.attn.desc, line, sizeof line);
    assert_string_equal(line, "jagged_attention:i64:attn_bwd:bf16:b4h8s51d64:tq204:tk204:used");
}

static void test_jagged_refusals(void **state) {
    static const struct {
        const char *line, *at, *what;
    } rows[] = {
        {"jagged_max:f32:c1t2", "at 1:", "jagged_max"},
        {"jagged_sum", "at 1:", "type"},
        {"jagged_sum:f8:c1t2", "at 12:", "f8"},
        {"jagged_sum:f32", "at 12:", "sizes"},
        {"jagged_sum:f32:t2", "at 16:", "components"},
        {"jagged_sum:f32:c1t2m3", "at 16:", "sizes"},
        {"jagged_matmul:f32:c1t2", "at 19:", "sizes"},
        {"jagged_sum:f32:c1c2", "at 16:", "sizes"},
        {"jagged_sum:f32:c1t", "at 16:", "number"},
        {"jagged_sum:f32:c1t2:sideways", "at 21:", "sideways"},
        {"jagged_sum:f32:c1t2:ds3x", "at 21:", "ds3x"},
        {"jagged_sum:f32:c1t2:da", "at 21:", "da"},
        {"jagged_reshape:f32:c1t2:shape1,-1,", "at 25:", "extents"},
        {"jagged_reshape:f32:c1t2:shape1,1,1,1,1,1,1,1,1", "at 25:", "extents"},
        {"jagged_threshold:f32:c1t2:thr1e", "at 27:", "number"},
        {"jagged_attention:f32:attn_bwd:f32:b1h1s1d8:thd", "at 18:", "i64"},
        {"jagged_attention:i64", "at 18:", "packed"},
        {"jagged_attention:i64:attn_fwd:f32:b1h1s1d8:thd", "at 22:", "attn_bwd"},
        {"jagged_attention:i64:attn_bwd:f32:b1h1s1", "at 14:", "b<B>h<Hq>"},
        {"jagged_sum:f32:c1z2", "at 16:", "sizes"},
        {"jagged_sum:f32:", "at 16:", "components"},
        {"jagged_reshape:f32:c1t2:shape1x2", "at 25:", "extents"},
        {"jagged_reshape:f32:c1t2:shape-", "at 25:", "extents"},
        {"jagged_sum:f32:c1t2:seed99999999999999999999", "at 21:", "is not a whole number"},
        {"jagged_sum:f32:c1t2:ds-", "at 21:", "is not a whole number"},
        {"jagged_sum:f32:c1t2:dsx", "at 21:", "is not an option"},
        {"jagged_sum:f32:c1t2:ds,1", "at 21:", "is not an option"},
        {"jagged_sum:f32:c1t2:an_option_of_more_than_sixty_bytes_of_which_only_sixty_are_shown",
         "at 21:", "'an_option_of_more_than_sixty_bytes_of_which_only_sixty_are_s' is not an option"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_jagged_problem p;
        if (stw_problem_jagged_parse(rows[i].line, &p) != STW_E_INVALID) fail_msg("%s was taken", rows[i].line);
        if (!strstr(stw_last_error(), rows[i].at) || !strstr(stw_last_error(), rows[i].what))
            fail_msg("%s: \"%s\" lacks \"%s\" or \"%s\"", rows[i].line, stw_last_error(), rows[i].at, rows[i].what);
    }
}

static void jagged_formats_as(const stw_jagged_desc *desc, const char *expected) {
    char line[512];
    assert_int_equal(stw_problem_jagged_format(desc, NULL, line, sizeof line), strlen(expected));
    assert_string_equal(line, expected);
}

/* As test_what_no_plan_takes_is_printed. */
static void test_jagged_what_no_plan_takes(void **state) {
    (void)state;
    stw_jagged_problem p;
    assert_int_equal(stw_problem_jagged_parse("jagged_reshape:f32:c1l2t3:shape-1,4", &p), STW_OK);
    p.desc.shape_rank = STW_JAGGED_RANK_MAX + 5; /* extents behind the array are not read */
    jagged_formats_as(&p.desc, "jagged_reshape:f32:c1l2t3:shape-1,4,0,0,0,0,0,0");
    p.desc.shape_rank = -3;
    jagged_formats_as(&p.desc, "jagged_reshape:f32:c1l2t3");
    p.desc.op = (stw_jagged_op)0;
    jagged_formats_as(&p.desc, "jagged_?:f32:c1l2t3");
    p.desc.op = (stw_jagged_op)99;
    jagged_formats_as(&p.desc, "jagged_?:f32:c1l2t3");
    p.desc.op = STW_JAGGED_ATTENTION; /* desc.attn is null */
    jagged_formats_as(&p.desc, "jagged_attention:i32:");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jagged_lines),
        cmocka_unit_test(test_jagged_fields),
        cmocka_unit_test(test_jagged_refusals),
        cmocka_unit_test(test_canonical_lines),
        cmocka_unit_test(test_order_is_free),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_layouts_agree),
        cmocka_unit_test(test_any_strides),
        cmocka_unit_test(test_cut_text),
        cmocka_unit_test(test_defaults_are_silent),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_f64_numbers),
        cmocka_unit_test(test_mangled_lines),
        cmocka_unit_test(test_edges_are_taken),
        cmocka_unit_test(test_what_no_plan_takes_is_printed),
        cmocka_unit_test(test_strides_beyond_63_bits),
        cmocka_unit_test(test_jagged_what_no_plan_takes),
    };
    return cmocka_run_group_tests_name("problem", tests, NULL, NULL);
}
