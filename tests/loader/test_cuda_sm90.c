/* SPDX-License-Identifier: MIT
 *
 * A device of 9.0 over a fake libcuda.so.1: its two images, which problems Hopper's own main loop takes, the
 * tensor maps of each call (worked out by hand from attn_bwd.h), and calls that go to the shared kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "run_calls.h"

#define H200      "FAKE_CUDA_DEVICES=NVIDIA H200|9.0|132|232448|150754820096"
#define A100      "FAKE_CUDA_DEVICES=NVIDIA A100-SXM4-40GB|8.0|108|166912|42949672960"
#define UNALIGNED "costs more: q, k, v or dout that start at no multiple of 16 bytes: "
#define NO_MAPS   "cuda-without-cuTensorMapEncodeTiled"

static void one(const char *folder, const char *const *environment, const char *command, const char *problem) {
    char words[512];
    snprintf(words, sizeof words, "%s %s", command, problem);
    tool(folder, environment, LIST(words));
}

/* The rest of the line that begins so; "" when there is none. */
static const char *behind(const char *text, const char *start) {
    for (int i = 0; *spawn_line(text, i); ++i)
        if (!strncmp(spawn_line(text, i), start, strlen(start))) return spawn_line(text, i) + strlen(start);
    return "";
}

static int variant_begins(const char *with) { return !strncmp(behind(run.out, "variant: "), with, strlen(with)); }

/* ---- tensor maps ---- */

typedef struct maps_case {
    const char *problem, *variant, *type, *q, *dout, *k, *v; /* the four: panels, then the map */
} maps_case;

/* Byte strides of rows, (panels,) heads, sequences; an extent of 1 has none, and gets 16. Rows of a box: the
 * variant's queries, or its keys. Head dims of whole panels up to 128: 5 dimensions, others 4. */
static const maps_case maps_cases[] = {
    {"attn_bwd:bf16:b2h4k2s300x200d128", "sm90_64x128_hd128", "9",
     "2 rank 5 dims 64,300,2,4,2 strides 1024,128,256,307200 box 64,64,2,1,1",
     "2 rank 5 dims 64,300,2,4,2 strides 1024,128,256,307200 box 64,64,2,1,1",
     "2 rank 5 dims 64,200,2,2,2 strides 512,128,256,102400 box 64,128,2,1,1",
     "2 rank 5 dims 64,200,2,2,2 strides 512,128,256,102400 box 64,128,2,1,1"},
    {"attn_bwd:f16:b3h2s130d64:bhsd", "sm90_128x128_hd64", "6",
     "1 rank 5 dims 64,130,1,2,3 strides 128,128,16640,33280 box 64,128,1,1,1",
     "1 rank 5 dims 64,130,1,2,3 strides 128,128,16640,33280 box 64,128,1,1,1",
     "1 rank 5 dims 64,130,1,2,3 strides 128,128,16640,33280 box 64,128,1,1,1",
     "1 rank 5 dims 64,130,1,2,3 strides 128,128,16640,33280 box 64,128,1,1,1"},
    /* packed: rows are numbered through the pack */
    {"attn_bwd:bf16:b3h4k2s100x110d64:thd:tq250:tk280", "sm90_128x128_hd64", "9",
     "1 rank 5 dims 64,250,1,4,1 strides 512,128,128,16 box 64,128,1,1,1",
     "1 rank 5 dims 64,250,1,4,1 strides 512,128,128,16 box 64,128,1,1,1",
     "1 rank 5 dims 64,280,1,2,1 strides 256,128,128,16 box 64,128,1,1,1",
     "1 rank 5 dims 64,280,1,2,1 strides 256,128,128,16 box 64,128,1,1,1"},
    /* one side packed */
    {"attn_bwd:f16:b3h2s100x110d128:thdk:tk280", "sm90_64x128_hd128", "6",
     "2 rank 5 dims 64,100,2,2,3 strides 512,128,256,51200 box 64,64,2,1,1",
     "2 rank 5 dims 64,100,2,2,3 strides 512,128,256,51200 box 64,64,2,1,1",
     "2 rank 5 dims 64,280,2,2,1 strides 512,128,256,16 box 64,128,2,1,1",
     "2 rank 5 dims 64,280,2,2,1 strides 512,128,256,16 box 64,128,2,1,1"},
    {"attn_bwd:bf16:b1h2s70d96", "sm90_64x128_hd96", "9", "0 rank 4 dims 96,70,2,1 strides 384,192,16 box 64,64,1,1",
     "0 rank 4 dims 96,70,2,1 strides 384,192,16 box 64,64,1,1",
     "0 rank 4 dims 96,70,2,1 strides 384,192,16 box 64,128,1,1",
     "0 rank 4 dims 96,70,2,1 strides 384,192,16 box 64,128,1,1"},
    {"attn_bwd:f16:b2h3s70d104:bhsd", "sm90_64x128_hd128", "6",
     "0 rank 4 dims 104,70,3,2 strides 208,14560,43680 box 64,64,1,1",
     "0 rank 4 dims 104,70,3,2 strides 208,14560,43680 box 64,64,1,1",
     "0 rank 4 dims 104,70,3,2 strides 208,14560,43680 box 64,128,1,1",
     "0 rank 4 dims 104,70,3,2 strides 208,14560,43680 box 64,128,1,1"},
    /* wide heads: a load a panel, 80 or 96 keys; head dims differ, 128 keys */
    {"attn_bwd:bf16:b2h4k2s300x200d256", "sm90_64x80_hd256", "9",
     "0 rank 4 dims 256,300,4,2 strides 2048,512,614400 box 64,64,1,1",
     "0 rank 4 dims 256,300,4,2 strides 2048,512,614400 box 64,64,1,1",
     "0 rank 4 dims 256,200,2,2 strides 1024,512,204800 box 64,80,1,1",
     "0 rank 4 dims 256,200,2,2 strides 1024,512,204800 box 64,80,1,1"},
    {"attn_bwd:f16:b1h2s70d192x128", "sm90_64x128_hd192v128", "6",
     "0 rank 4 dims 192,70,2,1 strides 768,384,16 box 64,64,1,1",
     "0 rank 4 dims 128,70,2,1 strides 512,256,16 box 64,64,1,1",
     "0 rank 4 dims 192,70,2,1 strides 768,384,16 box 64,128,1,1",
     "0 rank 4 dims 128,70,2,1 strides 512,256,16 box 64,128,1,1"},
    {"attn_bwd:bf16:b1h2s70d136", "sm90_64x96_hd192", "9", "0 rank 4 dims 136,70,2,1 strides 544,272,16 box 64,64,1,1",
     "0 rank 4 dims 136,70,2,1 strides 544,272,16 box 64,64,1,1",
     "0 rank 4 dims 136,70,2,1 strides 544,272,16 box 64,96,1,1",
     "0 rank 4 dims 136,70,2,1 strides 544,272,16 box 64,96,1,1"},
    /* head dims differ */
    {"attn_bwd:f16:b1h2s33x50d64x40", "sm90_128x128_hd64", "6",
     "1 rank 5 dims 64,33,1,2,1 strides 256,128,128,16 box 64,128,1,1,1",
     "0 rank 4 dims 40,33,2,1 strides 160,80,16 box 64,128,1,1",
     "1 rank 5 dims 64,50,1,2,1 strides 256,128,128,16 box 64,128,1,1,1",
     "0 rank 4 dims 40,50,2,1 strides 160,80,16 box 64,128,1,1"},
    /* an odd head dim, whose rows have room behind them; strides of the other dimensions are never used */
    {"attn_bwd:bf16:b1h1s10d33:st_q7,7,40:st_k7,7,40:st_v7,7,48:st_dout7,7,56", "sm90_128x128_hd64", "9",
     "0 rank 4 dims 33,10,1,1 strides 80,16,16 box 64,128,1,1",
     "0 rank 4 dims 33,10,1,1 strides 112,16,16 box 64,128,1,1",
     "0 rank 4 dims 33,10,1,1 strides 80,16,16 box 64,128,1,1",
     "0 rank 4 dims 33,10,1,1 strides 96,16,16 box 64,128,1,1"},
    /* one column, one query, two keys */
    {"attn_bwd:f16:b1h1s1x2d1:st_k7,7,8:st_v7,7,16", "sm90_128x128_hd64", "6",
     "0 rank 4 dims 1,1,1,1 strides 16,16,16 box 64,128,1,1", "0 rank 4 dims 1,1,1,1 strides 16,16,16 box 64,128,1,1",
     "0 rank 4 dims 1,2,1,1 strides 16,16,16 box 64,128,1,1", "0 rank 4 dims 1,2,1,1 strides 32,16,16 box 64,128,1,1"},
    /* interleaved: a row of the buffer has 2 + 1 + 1 heads */
    {"attn_bwd:bf16:b2h2k1s64d64:qkv", "sm90_128x128_hd64", "9",
     "1 rank 5 dims 64,64,1,2,2 strides 512,128,128,32768 box 64,128,1,1,1",
     "1 rank 5 dims 64,64,1,2,2 strides 256,128,128,16384 box 64,128,1,1,1",
     "1 rank 5 dims 64,64,1,1,2 strides 512,128,16,32768 box 64,128,1,1,1",
     "1 rank 5 dims 64,64,1,1,2 strides 512,128,16,32768 box 64,128,1,1,1"},
    /* the longest stride: 2^40 - 16 bytes */
    {"attn_bwd:bf16:b2h1s10d64:st_q549755813880,64,64", "sm90_128x128_hd64", "9",
     "1 rank 5 dims 64,10,1,1,2 strides 128,128,16,1099511627760 box 64,128,1,1,1",
     "1 rank 5 dims 64,10,1,1,2 strides 128,128,16,1280 box 64,128,1,1,1",
     "1 rank 5 dims 64,10,1,1,2 strides 128,128,16,1280 box 64,128,1,1,1",
     "1 rank 5 dims 64,10,1,1,2 strides 128,128,16,1280 box 64,128,1,1,1"},
};

/* panels, type, rank, address, extents, strides, box; steps of 1; no interleaving, swizzle of 128 bytes,
 * L2 lines of 256, zeros outside. */
static void expect_map(const maps_case *c, const char *name, const char *words) {
    char line[512], start[64], at[32];
    const char *rank = strchr(words, ' ') + 1, *dims = strstr(words, " dims");
    snprintf(start, sizeof start, "at %s ", name);
    snprintf(at, sizeof at, "%s", behind(run.out, start));
    snprintf(line, sizeof line, "cuda:map %s panels %c type %s %.*s start %s%s steps %s modes 0,3,3,0", name, words[0],
             c->type, (int)(dims - rank), rank, at, dims, rank[5] == '5' ? "1,1,1,1,1" : "1,1,1,1");
    if (spawn_count(run.log, line) != 1) fail_msg("%s: no line\n%s\nin\n%s", c->problem, line, run.log);
}

static void maps_say_the_layout(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof maps_cases / sizeof *maps_cases; ++i) {
        const maps_case *c = &maps_cases[i];
        char launch[128], force[64];
        /* the work tiles of two are parts, whose heads are no heads of K and V */
        const char *mode = i == 0 ? "general" : strstr(c->problem, "k2s300x200d256") ? "outputs" : "plain";
        snprintf(force, sizeof force, "STERNWAY_VARIANT=%s", c->variant); /* many are short */
        one("cuda", LIST(H200, force), "call", c->problem);
        if (failures(NULL)) fail_msg("%s: %s", c->problem, run.out);
        assert_string_equal(behind(run.out, "variant: "), c->variant);
        assert_int_equal(lines_with(run.log, "cuda:map "), 4);
        expect_map(c, "q", c->q);
        expect_map(c, "dout", c->dout);
        expect_map(c, "k", c->k);
        expect_map(c, "v", c->v);
        snprintf(launch, sizeof launch, "cuda:launch stw_attn_bwd_%s_%s_%s", c->variant,
                 *c->type == '9' ? "bf16" : "f16", mode);
        assert_int_equal(spawn_count(run.log, launch), 1);
        assert_int_equal(lines_with(run.log, ":left "), 0);
    }
}

/* ---- what goes to the shared kernels, and why ---- */

static const char bad_strides[] =
    "tensor loads need strides of q, k, v and dout that are 0 or positive multiples of 16 bytes";

static const char *const refusals[][2] = {
    {"bf16:b1h2s64d64:biasf32_bhqk:softcap9:dropout0.1:grads_qkvb",
     "it makes dBias of 16 bits: sums as good as f32 made it slower than this"},
    {"bf16:b1h2s10d64:biasf32_bhqk:st_bias10737418240,5368709120,536870912,1",
     "rows of the bias are more than 2 GiB apart"},
    {"f16:b1h2s64d128:biasf32_bhqk:grads_qkvb:acc_b:det",
     "it makes dBias of 16 bits: sums as good as f32 made it slower than this"},
    {"bf16:b2h2s64d64:bias_1hqk:grads_b", "it makes dQ, dK and dV"},
    {"bf16:b1h2s64d256:softcap9:bias_bhqk:grads_qkvb:dbias_f32",
     "it makes dBias of 16 bits: sums as good as f32 made it slower than this"},
    {"f16:b1h1s1000000x64d64:grads_kv:dk_f32", "without dQ, dK or dV its f32 sums would be of too many rows"},
    {"f16:b1h2s64d128:softcap1000", "it takes a softcap from 1/64 to 512"},
    {"bf16:b1h2s0x64d64", "it takes no empty tensors"},
    {"bf16:b1h2s64x0d64", "it takes no empty tensors"},
    {"bf16:b0h2s64d64", "it takes no empty tensors"},
    {"bf16:b1h2s64x1d64:delta_in", "rows see one key, and its sums of dP are truncated, not rounded"},
    {"bf16:b1h2s64d64:wl0:causal_br", "rows see one key, and its sums of dP are truncated, not rounded"},
    {"bf16:b1h2s64d64:scale0", "it hides pairs by infinite scores, which a scale of 0 makes NaN"},
    /* 2^20 * 16 heads of 128 blocks of keys: 2^31 work tiles */
    {"bf16:b1048576h16s128x16384d64", "it counts work tiles in 31 bits"},
    {"bf16:b1h1s1073741824x64d64", bad_strides},
    {"bf16:b1h2s64d64:gap1", bad_strides},
    {"bf16:b1h2s64d36", bad_strides},
    {"bf16:b1h2s10d64:st_q0,68,136", bad_strides},
    {"bf16:b1h2s10d64:st_k0,68,136", bad_strides},
    {"bf16:b1h2s10d64:st_v0,68,136", bad_strides},
    {"bf16:b1h2s10d64:st_dout0,68,136", bad_strides},
    {"bf16:b2h1s10d64:st_dout4100,64,64", bad_strides},
    {"bf16:b2h1s10d64:st_q549755813888,64,64", bad_strides}, /* 2^40 bytes */
    {"f16:b1h2s10d64:st_v0,549755813888,64", bad_strides},
    {"f16:b1h1s10d64:st_k0,64,549755813888", bad_strides},
};

/* What is near a refusal and none. */
static const char *const accepted[] = {
    "bf16:b1048575h16s128x16384d64",
    "bf16:b1h2s64d64:dq_f32:acc_q",
    "bf16:b1h2s64d64:delta_in",
    "bf16:b1h2s64d64:sink:dlse:grads_qkvs",
    "f16:b1h2s64d64:delta_out",
    "bf16:b2h2s64d64:used:causal_br",
    "bf16:b1h2s64d64:causal_tl",
    "bf16:b1h2s64d64:wl7:wr0",
    "bf16:b1h2s64x2d64:delta_in",
    "bf16:b1h2s64d64:wl1:wr0",
    "bf16:b1h2s64d64:scale-0.5",
    "bf16:b1h2s64d64:st_dq0,65,131:st_dk0,65,131",
    "bf16:b1h2s64d64:gap8",
    "bf16:b1h2s64d64:st_out0,65,131",
    "bf16:b2h2s64d64:st_q0,0,0",
    "bf16:b2h2k1s64d64:st_k0,64,0:st_v0,0,64:st_dout0,0,0",
    "bf16:b1h1s64d64:st_q3,5,64",
    "bf16:b2h1s10d64:st_q549755813880,64,64",
    "bf16:b1h1s1073741823x64d64",
    "bf16:b1h2s64d96:det",
    "bf16:b1h2s64d256:causal_br",
    "f16:b1h2s64d192x128:det",
    "bf16:b1h2s64d256:softcap50:det",
    "f16:b1h2s64d192x128:alibi:alibi_col",
    "bf16:b1h2s64d192:grads_kv",
    "f16:b1h2s64d192x128:dk_f32:dv_f32:acc_kv",
    "f16:b1h2s64d136",
    "bf16:b1h2s64d128x200",
    "bf16:b1h2s64d64:alibi",
    "f16:b1h2s64d128:softcap30",
    "bf16:b1h2s64d96:dropout0.1",
    "bf16:b1h2s64d96:det:dropout0.1",
    "bf16:b1h2s64d192x128:dropout0.1",
    "f16:b1h2s64d256:dropout0.1:map_mem_eff:det",
    "bf16:b1h2s64d64:dropout0.1:alibi:alibi_col",
    "f16:b1h2s64d96:dropout0.1:biasu8_b1qk:map_flash2",
    "bf16:b2h2s64d128:det:dropout0.1:bias_1hqk:grads_qkvb",
    "f16:b1h2s64d128:bias_bhqk",
    "bf16:b1h2s64d64:biasf32_bhqk",
    "bf16:b1h2s64d64:bias_bhqk:grads_qkvb",
    "f16:b1h2s64d128:bias_bhqk:grads_qkvb:det",
    "bf16:b1h2s64d192:biasu8_b1qk",
    "f16:b1h2s64d192x128:bias_bhqk:grads_qkvb",
    "bf16:b1h2s64d64:dk_f32:dropout0.1",
    "bf16:b1h2s64d256:dropout0.1:grads_kv:acc_kv:dk_f32:dv_f32",
    "bf16:b2h2s64d96:det:bias_1hqk:grads_qkvb",
    "bf16:b1h2s64d64:biasu8_b11k",
    "bf16:b1h2s64d64:grads_kv",
    "bf16:b1h2s64d64:grads_q",
    "bf16:b1h2s64d64:dk_f32",
    "bf16:b1h2s64d64:dv_f32:acc_v",
    "bf16:b1h2s64d64:grads_kv:alibi",
    "bf16:b1h2s64d64:dropout0.1:grads_kv:dk_f32",
    "bf16:b1h2s64d192:biasu8_b1qk:dk_f32",
    "bf16:b1h2s64d256:dropout0.1:alibi",
    "bf16:b1h2s64d192:grads_q:alibi",
    "bf16:b1h2s64d256:dv_f32:softcap30",
    "f16:b1h2s64d200:intervals_from:softcap30",
};

/* The variant that would be, which alone is told of. */
static const char *made_for(const char *problem) {
    return strstr(problem, "d256")   ? "sm90_64x80_hd256"
           : strstr(problem, "d192") ? "sm90_64x96_hd192"
           : strstr(problem, "d128") ? "sm90_64x128_hd128"
           : strstr(problem, "d96")  ? "sm90_64x128_hd96"
                                     : "sm90_128x128_hd64";
}

static void plans_refuse_by_name(void **state) {
    (void)state;
    char problem[256], reason[256];
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
        snprintf(problem, sizeof problem, "attn_bwd:%s", refusals[i][0]);
        one("cuda", LIST(H200), "why", problem);
        snprintf(reason, sizeof reason, "attn_bwd.sm90.def): %s\n", refusals[i][1]);
        if (!variant_begins("sm80_") || !strstr(run.out, reason)) fail_msg("%s: %s", problem, run.out);
        snprintf(reason, sizeof reason, "%s: not %s", refusals[i][1], made_for(refusals[i][0]));
        assert_string_equal(behind(run.out, "costs more: "), reason);
    }
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; ++i) {
        snprintf(problem, sizeof problem, "attn_bwd:%s", accepted[i]);
        one("cuda", LIST(H200), "why", problem);
        if (!variant_begins("sm90_")) fail_msg("%s: %s", problem, run.out);
    }
    static const char *const others[][2] = {{"attn_bwd:bf16:b1h2s64d192x128:softcap9:biasf32_bhqk:grads_qkvb",
                                             "it makes dBias of 16 bits: sums as good as f32 made it slower than this: "
                                             "not sm90_64x96_hd192"},
                                            {"attn_bwd:f32:b1h2s64d64", "dtype is f32: not sm90_64x80_hd256"},
                                            {"attn_fwd:bf16:b1h2s64d64", "nothing"}};
    for (int i = 0; i < 3; ++i) {
        one("cuda", LIST(H200), "plan", others[i][0]);
        assert_true(variant_begins("sm80_"));
        assert_string_equal(behind(run.out, "costs more: "), others[i][1]);
    }
}

/* Deterministic mode is a kernel of its own, and so is what the usual one does not know: parts of work tiles, other
 * types of dK and dV, few outputs. */
static void kernels_of_modes(void **state) {
    (void)state;
    static const char *const launches[][2] = {
        {"attn_bwd:bf16:b1h2s264d64:det", "cuda:launch stw_attn_bwd_sm90_128x128_hd64_bf16_ordered"},
        {"attn_bwd:f16:b1h2s264d96:det:causal_br", "cuda:launch stw_attn_bwd_sm90_64x128_hd96_f16_ordered"},
        {"attn_bwd:bf16:b1h4k2s264d128:det", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_bf16_ordered"},
        {"attn_bwd:bf16:b1h2s264d64:nodet", "cuda:launch stw_attn_bwd_sm90_128x128_hd64_bf16_plain"},
        {"attn_bwd:bf16:b1h2s64d64:grads_q", "cuda:launch stw_attn_bwd_sm90_128x128_hd64_bf16_general"},
        {"attn_bwd:f16:b1h2s64d128:dk_f32", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_f16_outputs"},
        {"attn_bwd:f16:b1h2s64d128:dv_f32:det", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_f16_outputs_ordered"},
        {"attn_bwd:bf16:b1h8k1s8192d128", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_bf16_general"},
        {"attn_bwd:bf16:b1h8k1s8192d128:softcap50", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_bf16_softcap_outputs"},
        {"attn_bwd:f16:b1h8k1s8192d64:dropout0.1:det",
         "cuda:launch stw_attn_bwd_sm90_128x128_hd64_f16_dropout_outputs"},
        {"attn_bwd:bf16:b1h8k1s8192d256:causal_br", "cuda:launch stw_attn_bwd_sm90_64x80_hd256_bf16_outputs"},
        {"attn_bwd:f16:b1h8k1s8192d192x128", "cuda:launch stw_attn_bwd_sm90_64x128_hd192v128_f16_outputs"},
        {"attn_bwd:f16:b1h8k1s8192d192:dropout0.1", "cuda:launch stw_attn_bwd_sm90_64x96_hd192_f16_dropout_outputs"},
        {"attn_bwd:bf16:b1h8k1s8192d256:det", "cuda:launch stw_attn_bwd_postprocess_parts"},
        {"attn_bwd:bf16:b1h2s64d256:softcap50", "cuda:launch stw_attn_bwd_sm90_64x80_hd256_bf16_features"},
        {"attn_bwd:bf16:b1h2s64d192x128:dk_f32:det", "cuda:launch stw_attn_bwd_sm90_64x128_hd192v128_bf16_outputs"},
        {"attn_bwd:f16:b1h2s64d256:grads_kv", "cuda:launch stw_attn_bwd_sm90_64x80_hd256_f16_outputs"},
        {"attn_bwd:f16:b1h2s64d256:dropout0.1", "cuda:launch stw_attn_bwd_sm90_64x80_hd256_f16_dropout"},
        {"attn_bwd:bf16:b1h2s64d192x128:dropout0.1:det", "cuda:launch stw_attn_bwd_sm90_64x96_hd192_bf16_dropout"},
        {"attn_bwd:bf16:b1h8k1s8192d128", "cuda:launch stw_attn_bwd_postprocess_sm90_hd128_bf16"},
        {"attn_bwd:bf16:b1h8k1s8192d128:det", "cuda:launch stw_attn_bwd_postprocess_parts"},
        {"attn_bwd:bf16:b1h8k1s8192d128:det", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_bf16_general_ordered"},
        {"attn_bwd:bf16:b1h2s16x2048d128:det", "cuda:launch stw_attn_bwd_sm90_few16_hd128_bf16_plain"},
        {"attn_bwd:f16:b1h4k1s16x4096d40:causal_br", "cuda:launch stw_attn_bwd_sm90_few64_hd64_f16_plain"},
        {"attn_bwd:f16:b1h4k1s17x4096d64", "cuda:launch stw_attn_bwd_sm90_128x128_hd64_f16_plain"},
        {"attn_bwd:bf16:b1h2s16x1023d128", "cuda:launch stw_attn_bwd_sm90_64x128_hd128_bf16_plain"}};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; ++i) {
        one("cuda", LIST(H200), "call", launches[i][0]);
        if (failures(NULL) || spawn_count(run.log, launches[i][1]) != 1) fail_msg("%s: %s", launches[i][0], run.log);
    }
    static const char *const named[][2] = {
        {"attn_bwd:bf16:b1h2s64d64:bias_bhqk", "stw_attn_bwd_sm90_128x128_hd64_bf16_bias "},
        {"attn_bwd:bf16:b1h2s64d64:biasf32_bhqk:det", "stw_attn_bwd_sm90_128x128_hd64_bf16_bias_more "},
        {"attn_bwd:bf16:b1h2s64d128:bias_bhqk:grads_qkvb", "stw_attn_bwd_sm90_64x128_hd128_bf16_bias_more "},
        {"attn_bwd:bf16:b1h2s64d256:biasf32_bhqk", "stw_attn_bwd_sm90_64x80_hd256_bf16_bias "},
        {"attn_bwd:f16:b1h2s64d96:dropout0.1:dk_f32:det", "stw_attn_bwd_sm90_64x128_hd96_f16_dropout_outputs "},
        {"attn_bwd:f16:b1h2s64d192x128:dropout0.1:grads_q", "stw_attn_bwd_sm90_64x96_hd192_f16_dropout_outputs "},
        {"attn_bwd:f16:b1h2s64d192:alibi:det", "stw_attn_bwd_sm90_64x96_hd192_f16_features "},
        {"attn_bwd:f16:b1h2s64d192x128:alibi:softcap9:det", "stw_attn_bwd_sm90_64x96_hd192_f16_all "},
        /* four names: the note ends within the last */
        {"attn_bwd:bf16:b1h2s64d256:intervals_from:grads_kv", "stw_attn_bwd_sm90_64x80_hd256_bf16_a"},
        {"attn_bwd:bf16:b1h2s64d128:softcap9:bias_bhqk:grads_qkvb", "stw_attn_bwd_sm90_64x128_hd128_bf16_all "},
        {"attn_bwd:bf16:b1h2s64d96:alibi:alibi_col", "stw_attn_bwd_sm90_64x128_hd96_bf16_alibi "},
        {"attn_bwd:bf16:b1h2s64d64:alibi:dk_f32:det", "stw_attn_bwd_sm90_128x128_hd64_bf16_alibi_outputs "},
        {"attn_bwd:f16:b1h2s64d128:softcap30:dv_f32", "stw_attn_bwd_sm90_64x128_hd128_f16_softcap_outputs "},
        {"attn_bwd:bf16:b1h2s64d96:bias_bhqk:dk_f32", "stw_attn_bwd_sm90_64x128_hd96_bf16_bias_outputs "},
        {"attn_bwd:f16:b1h2s64d64:softcap9:grads_q:det", "stw_attn_bwd_sm90_128x128_hd64_f16_softcap_outputs "},
        {"attn_bwd:bf16:b1h2s64d64:dropout0.1:alibi", "stw_attn_bwd_sm90_128x128_hd64_bf16_dropout_alibi "},
        {"attn_bwd:f16:b1h2s64d128:dropout0.1:alibi:det", "stw_attn_bwd_sm90_64x128_hd128_f16_dropout_alibi "},
        {"attn_bwd:bf16:b1h2s64d96:dropout0.1:bias_bhqk", "stw_attn_bwd_sm90_64x128_hd96_bf16_dropout_bias "},
        {"attn_bwd:f16:b1h2s64d64:dropout0.1:biasu8_b1qk:det", "stw_attn_bwd_sm90_128x128_hd64_f16_dropout_bias "},
        {"attn_bwd:bf16:b1h1s1000000x64d128:grads_kv:dk_f32", "stw_attn_bwd_sm90_64x128_hd192v128_bf16_outputs"},
        {"attn_bwd:bf16:b2h2s64d64:bias_1hqk:grads_qkvb", "stw_attn_dbias_reduce_plain_64x64_hd64_bf16 "},
        {"attn_bwd:f16:b1h2s64d128:biasu8_b1qk:det", "stw_attn_bwd_sm90_64x128_hd128_f16_bias "}};
    for (size_t i = 0; i < sizeof named / sizeof *named; ++i) {
        one("cuda", LIST(H200), "why", named[i][0]);
        if (!strstr(run.out, named[i][1])) fail_msg("%s: %s", named[i][0], run.out);
    }
}

/* A variant asked for by name is refused with the same words, and another one never takes its place. */
static void forced_variant(void **state) {
    (void)state;
    static const char sm90[] = "STERNWAY_VARIANT=sm90_64x128_hd128";
    one("cuda", LIST(H200, sm90), "plan", "attn_bwd:bf16:b1h2s64d64:biasf32_bhqk:grads_qkvb:softcap9");
    static const char *const refused[][2] = {
        {"plan STW_E_UNSUPPORTED ", " STERNWAY_VARIANT=sm90_64x128_hd128: "
                                    "it makes dBias of 16 bits: sums as good as f32 made it slower than this"}};
    expect(refused, 1);
    one("cuda", LIST(H200, sm90), "plan", "attn_bwd:bf16:b1h2s64d64");
    assert_true(variant_begins("sm90_64x128_hd128"));
    one("cuda", LIST(H200, "STERNWAY_VARIANT=sm80_64x128_hd128"), "call", "attn_bwd:bf16:b1h2s64d64");
    assert_true(variant_begins("sm80_64x128_hd128"));
    assert_string_equal(behind(run.out, "costs more: "), "nothing"); /* as asked for */
    assert_int_equal(lines_with(run.log, "cuda:map "), 0);
}

/* ---- tensors that start anywhere ---- */

static size_t workspace_of(const char *problem, const char *setting) {
    size_t bytes = 0;
    one("cuda", LIST(H200, setting), "plan", problem);
    assert_int_equal(sscanf(behind(run.out, "workspace: "), "%zu", &bytes), 1);
    return bytes;
}

/* The call of a tensor that starts `bytes` behind a vector's place: which main loop it launches. */
static void unaligned_call(const char *problem, const char *tensor, int bytes, const char *sm90, const char *shared) {
    char words[256];
    int loaded = strlen(tensor) == 1 || !strcmp(tensor, "dout"), unaligned = loaded && bytes % 16;
    snprintf(words, sizeof words, "%s %s %d", problem, tensor, bytes);
    one("cuda", LIST(H200), "call", words);
    if (failures(NULL)) fail_msg("%s: %s", words, run.out);
    assert_int_equal(spawn_count(run.out, "took 0 allocations, 0 locks; some before"), 1);
    if (spawn_count(run.log, unaligned ? shared : sm90) != 1) fail_msg("%s: %s", words, run.log);
    assert_int_equal(lines_with(run.log, "cuda:launch "), 3);
    assert_int_equal(lines_with(run.log, "cuda:cuTensorMapEncodeTiled"), unaligned ? 0 : 4);
}

static void unaligned_calls(void **state) {
    (void)state;
    static const char *const problems[] = {"attn_bwd:bf16:b2h4k2s100x200d128:causal_br", "attn_bwd:f16:b1h2s260d64",
                                           "attn_bwd:bf16:b3h2s200d96:thd:tq250:tk260"};
    static const char *const tensors[] = {"q", "k", "v", "dout", "out", "dq", "dk", "dv"};
    static const int bytes[] = {0, 2, 8, 14, 16, 32};
    for (int p = 0; p < 3; ++p) {
        char variant[64], other[160], sm90[256], shared[256], force[192];
        const char *type = strstr(problems[p], ":bf16:") ? "bf16" : "f16";
        one("cuda", LIST(H200), "plan", problems[p]);
        snprintf(variant, sizeof variant, "%s", behind(run.out, "variant: "));
        snprintf(other, sizeof other, "%s", behind(run.out, UNALIGNED));
        assert_memory_equal(variant, "sm90_", 5);
        assert_memory_equal(other, "sm80_", 5);
        snprintf(sm90, sizeof sm90, "cuda:launch stw_attn_bwd_%s_%s_plain", variant, type);
        snprintf(shared, sizeof shared, "cuda:launch stw_attn_bwd_%s_%s_plain", other, type);
        for (int t = 0; t < 8; ++t)
            for (int b = 0; b < 6; ++b) unaligned_call(problems[p], tensors[t], bytes[b], sm90, shared);
        unaligned_call(problems[p], "lse", 4, sm90, shared);
        /* one workspace for either */
        snprintf(force, sizeof force, "STERNWAY_VARIANT=%s", other);
        size_t mine = workspace_of(problems[p], "UNUSED=1"), theirs = workspace_of(problems[p], force);
        assert_true(mine >= theirs && theirs > 0);
    }
}

/* The trace has a line of the first call that its pointers send to the shared kernels, and of no other. */
static void unaligned_calls_are_traced(void **state) {
    (void)state;
    static const char *const words[][2] = {
        {"q 0 3", "trace"}, {"q 2 3", "trace"}, {"dout 8 1", "trace"}, {"lse 4 3", "trace"}, {"k 2 3", "info"}};
    static const int lines[] = {0, 1, 1, 0, 0};
    static const char line[] = "log call: attn_bwd:f16:b1h2s260d64: sm80_128x128_hd64, not sm90_128x128_hd64: ";
    for (int i = 0; i < 5; ++i) {
        char problem[128], level[64];
        snprintf(problem, sizeof problem, "attn_bwd:f16:b1h2s260d64 %s", words[i][0]);
        snprintf(level, sizeof level, "STERNWAY_LOG=%s", words[i][1]);
        one("cuda", LIST(H200, level), "call", problem);
        assert_int_equal(failures(NULL), 0);
        assert_int_equal(lines_with(run.out, "log call: "), lines[i]);
        assert_int_equal(lines_with(run.out, line), lines[i]);
        assert_int_equal(spawn_count(run.out, "took 0 allocations, 0 locks; some before"), 1);
    }
}

/* Rows off 16 bytes are copied first, and Hopper's loop runs; where there are few keys, the shared one does. */
static void unaligned_rows(void **state) {
    (void)state;
    one("cuda", LIST(H200), "call", "attn_bwd:bf16:b1h4k2s300d66");
    if (failures(NULL)) fail_msg("%s", run.out);
    assert_true(variant_begins("sm90_64x128_hd96"));
    assert_int_equal(lines_with(run.log, "cuda:launch "), 4);
    assert_int_equal(lines_with(run.log, "cuda:launch stw_attn_stage_2"), 1);
    one("cuda", LIST(H200), "call", "attn_bwd:bf16:b1h4k2s300d64:any_address k 2");
    if (failures(NULL)) fail_msg("%s", run.out);
    assert_true(variant_begins("sm90_128x128_hd64"));
    assert_int_equal(lines_with(run.log, "cuda:launch stw_attn_stage_2"), 1);
    assert_int_equal(lines_with(run.log, "cuda:cuTensorMapEncodeTiled"), 4);
    assert_string_equal(behind(run.out, "costs more: "), "nothing");
    one("cuda", LIST(H200), "plan", "attn_bwd:bf16:b1h4k2s30d66");
    assert_true(variant_begins("sm80_"));
}

/* A pack whose tensors are null has no rows in this call: its maps are of one row, somewhere. */
static void maps_of_null_packs(void **state) {
    (void)state;
    static const char *const sides[] = {"queries", "keys"}, *const names[] = {"q", "dout", "k", "v"};
    for (int side = 0; side < 2; ++side) {
        char words[80];
        snprintf(words, sizeof words, "attn_bwd:bf16:b5h4k2s100d64:tq250:tk280 %s 0", sides[side]);
        one("cuda", LIST(H200), "call", words);
        if (failures(NULL)) fail_msg("%s: %s", sides[side], run.out);
        assert_int_equal(lines_with(run.log, "cuda:map "), 4);
        for (int n = 0; n < 4; ++n) {
            char line[120];
            const char *of_rows = n / 2 == side ? "1,1" : side ? "250,1" : "280,1";
            snprintf(line, sizeof line, "cuda:map %s panels ", names[n]);
            const char *dims = strstr(behind(run.log, line), " dims 64,");
            assert_non_null(dims);
            assert_memory_equal(dims + strlen(" dims 64,"), of_rows, strlen(of_rows));
        }
    }
}

/* The workspace is enough for either main loop, also where a tuning file chooses the other one, whose shorter
 * key blocks are listed in more room: one query, 2^20 keys. */
static void one_workspace(void **state) {
    (void)state;
    static const char problem[] = "attn_bwd:bf16:b1h1s1x1048576d128";
    static const char rules[] = "STW_RULE(\"\", sm90_64x128_hd128)\nSTW_RULE(\"\", sm80_64x64_hd128)\n";
    char setting[] = "STERNWAY_TUNING=/tmp/stw_rules_XXXXXX", *path = strchr(setting, '/');
    int file = mkstemp(path);
    assert_int_equal(write(file, rules, strlen(rules)), strlen(rules));
    close(file);
    size_t both = workspace_of(problem, setting);
    assert_true(variant_begins("sm90_64x128_hd128"));
    assert_string_equal(behind(run.out, UNALIGNED), "sm80_64x64_hd128");
    unlink(path);
    size_t alone = workspace_of(problem, "STERNWAY_VARIANT=sm80_64x64_hd128");
    assert_true(alone > workspace_of(problem, "UNUSED=1"));
    assert_int_equal(both, alone);
}

/* ---- images, symbols, failures ---- */

/* Kernels come from the image that has them, and both images are loaded once and given back. */
static void two_images(void **state) {
    (void)state;
    static const char *const launches[] = {
        "stw_attn_fwd_sm80_fwd_64x64_hd128_bf16", "stw_attn_bwd_preprocess_sm90_hd128_bf16",
        "stw_attn_bwd_sm90_64x128_hd128_bf16_plain", "stw_attn_bwd_postprocess_sm90_hd128_bf16"};
    tool("cuda", LIST(H200), LIST("plain", "work"));
    assert_int_equal(failures(NULL), 0);
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleLoadDataEx"), 2);
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleUnload"), 2);
    assert_int_equal(lines_with(run.log, ":left "), 0);
    for (int i = 0; i < 4; ++i) {
        char line[128];
        snprintf(line, sizeof line, "cuda:launch %s", launches[i]);
        assert_int_equal(spawn_count(run.log, line), i ? 2 : 1);
    }
    tool("cuda", LIST(A100), LIST("plain", "work"));
    assert_int_equal(failures(NULL), 0);
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleLoadDataEx"), 1);
    assert_int_equal(lines_with(run.log, "sm90"), 0);
}

/* The loads: shared image, sm90's. What loaded stays; the next plan asks for the other again. */
static void module_load_fails(void **state) {
    (void)state;
    tool("cuda", LIST(H200, "FAKE_FAIL=cuModuleLoadDataEx:209:2"), LIST("plain", "work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_NO_IMAGE cuda: cuModuleLoadDataEx failed: error (209); image sm90 "
                        "cubin, driver of CUDA 13.0, a newer driver is needed");
    assert_string_equal(spawn_line(run.out, 2), "fwd_plan STW_OK ");
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleLoadDataEx"), 3);
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleUnload"), 2);
    assert_int_equal(lines_with(run.log, ":left "), 0);
    tool("cuda", LIST(H200, "FAKE_FAIL=cuModuleLoadDataEx:222:1"), LIST("plain", "work"));
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_NO_IMAGE cuda: cuModuleLoadDataEx failed: error (222); image sm80 "
                        "ptx, driver of CUDA 13.0, a newer driver is needed: ptxas says no");
    assert_int_equal(spawn_count(run.log, "cuda:cuModuleLoadDataEx"), 3);
    assert_int_equal(lines_with(run.log, ":left "), 0);
    tool("cuda", LIST(H200, "FAKE_FAIL=cuModuleGetFunction:500"), LIST("plain", "work")); /* in neither */
    assert_string_equal(spawn_line(run.out, 1),
                        "bwd_plan STW_E_INTERNAL cuda: cuModuleGetFunction failed: error (500); kernel "
                        "stw_attn_bwd_preprocess_sm90_hd128_bf16");
    assert_int_equal(lines_with(run.log, ":left "), 0);
}

/* Sequences of at most as many keys as a work tile has: one kernel, no workspace. Maps as in the main loop, of blocks
 * of the kernel's own size. */
static void short_sequences(void **state) {
    (void)state;
    static const char *const rows[][3] = {{"bf16:b3h2s49d32", "sm90_short_64x64_hd32", "64,64,"},
                                          {"f16:b3h2s100d32:det", "sm90_short_64x128_hd32", "64,128,"},
                                          {"bf16:b3h4k2s64d64", "sm90_short_64x64_hd64", "64,64,"},
                                          {"bf16:b70h2s65d64", "sm90_short_64x128_hd64", "64,128,"},
                                          {"bf16:b3h2s65d64", "sm90_short_128x128_hd64", "64,128,"},
                                          {"bf16:b70h2s200x128d64", "sm90_short_64x128_hd64", "64,128,"},
                                          {"bf16:b3h2s197d64", "sm90_short_128x256_hd64", "64,256,"},
                                          {"bf16:b8h16s4096x77d64", "sm90_short_128x128_hd64", "64,128,"},
                                          {"f16:b13h16s600x128d40:det", "sm90_short_64x128_hd64", "64,128,"},
                                          {"bf16:b8h16s4096x77d128", "sm90_short_128x128_hd128", "64,128,"},
                                          {"bf16:b3h2s64d128", "sm90_short_64x64_hd128", "64,64,"},
                                          {"f16:b3h2s128d96:causal_br", "sm90_short_128x128_hd128", "64,128,"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char problem[128], launch[128], box[32];
        snprintf(problem, sizeof problem, "attn_bwd:%s", rows[i][0]);
        snprintf(launch, sizeof launch, "cuda:launch stw_attn_bwd_%s_%s", rows[i][1],
                 rows[i][0][0] == 'b' ? "bf16" : "f16");
        snprintf(box, sizeof box, " box %s", rows[i][2]);
        one("cuda", LIST(H200), "call", problem);
        if (failures(NULL) || spawn_count(run.log, launch) != 1) fail_msg("%s: %s%s", problem, run.out, run.log);
        assert_string_equal(behind(run.out, "variant: "), rows[i][1]);
        assert_int_equal(lines_with(run.log, "cuda:launch "), 1);
        assert_int_equal(lines_with(run.log, box),
                         strstr(rows[i][1], "64x64") || strstr(rows[i][1], "128x128") ? 4 : 2);
    }
    static const char *const others[] = {"bf16:b3h2s257d64",       "bf16:b3h2s64d64:sink:grads_qkvs",
                                         "bf16:b3h2s64d64:dq_f32", "bf16:b3h2s64d64:grads_kv",
                                         "bf16:b3h2s64d64:alibi",  "f16:b3h2s64d64:dropout0.1",
                                         "bf16:b3h2s257x64d64",    "bf16:b3h4k1s64d64"};
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
        char problem[128];
        snprintf(problem, sizeof problem, "attn_bwd:%s", others[i]);
        one("cuda", LIST(H200), "plan", problem);
        if (!variant_begins("sm90_128x128_hd64")) fail_msg("%s: %s", problem, run.out);
    }
    one("cuda", LIST(H200, "STERNWAY_VARIANT=sm90_short_64x64_hd64"), "plan", "attn_bwd:bf16:b3h2s65d64");
    static const char *const refused[][2] = {
        {"plan STW_E_UNSUPPORTED ",
         " STERNWAY_VARIANT=sm90_short_64x64_hd64: its work tiles have all keys of a sequence, and these are more"}};
    expect(refused, 1);
}

/* A map that the driver refuses ends the call before anything is launched; the next call is as good as ever.
 */
static void map_fails(void **state) {
    (void)state;
    static const char problem[] = "call attn_bwd:bf16:b1h2s264d128";
    for (int nth = 0; nth <= 4; ++nth) {
        char plan[64] = "FAKE_FAIL=cuTensorMapEncodeTiled:999";
        if (nth) snprintf(plan, sizeof plan, "FAKE_FAIL=cuTensorMapEncodeTiled:999:%d", nth);
        tool("cuda", LIST(H200, plan), LIST(problem, problem));
        assert_string_equal(
            behind(run.out, "bwd "),
            "STW_E_DRIVER cuda: cuTensorMapEncodeTiled failed: CUDA_ERROR_UNKNOWN (999): unknown error");
        assert_int_equal(failures("cuTensorMapEncodeTiled"), nth ? 1 : 2);
        assert_int_equal(spawn_count(run.out, "bwd STW_OK "), nth ? 1 : 0);
        assert_int_equal(lines_with(run.log, "cuda:launch "), nth ? 3 : 0);
        assert_int_equal(lines_with(run.log, ":left "), 0);
    }
}

/* The kernels around the main loop stand in for it where the driver makes no tensor maps. */
static void drivers(void **state) {
    (void)state;
    static const char *const folders[] = {"cuda-12.0", "cuda-12.9", "cuda-13.0", NO_MAPS};
    for (int i = 0; i < 4; ++i)
        for (int without = 0; without < 2; ++without) {
            const char *setting = without ? "FAKE_NO_PROC_ADDRESS=1" : "UNUSED=1";
            tool(folders[i], LIST(H200, setting), LIST("plain", "work 2"));
            assert_int_equal(failures(NULL), 0);
            assert_int_equal(lines_with(run.log, ":left "), 0);
            assert_int_equal(lines_with(run.log, ":map "), i < 3 ? 16 : 0);
            assert_int_equal(lines_with(run.log, "_bwd_sm90_"), i < 3 ? 4 : 0);
            one(folders[i], LIST(H200, setting), "call", "attn_bwd:bf16:b1h2s64d128");
            assert_true(variant_begins(i < 3 ? "sm90_" : "sm80_"));
            assert_int_equal(lines_with(run.out, UNALIGNED), i < 3);
        }
}

/* The n-th line of the log that is a launch or a map of one; "" behind the last. */
static const char *launched(int n) {
    for (int i = 0; *spawn_line(run.log, i); ++i) {
        const char *line = spawn_line(run.log, i);
        if ((strstr(line, ":launch ") || strstr(line, ":map ")) && !n--) return line;
    }
    return "";
}

/* Without a plan, where the class was met as a larger problem: the same kernels and, of their own sizes, the
 * same maps; nothing is allocated and nothing locked. */
static void calls_without_a_plan(void **state) {
    (void)state;
    static const char *const problems[] = {
        "attn_bwd:bf16:b17h2s200d96:thd:tq1501:tk1601", "attn_bwd:f16:b34h4k2s1000d128:thd:tq17000:tk17001:causal_br",
        "attn_bwd:bf16:b17h2s300d64:thd:bhsd:tq1501:tk1601:det", "attn_bwd:bf16:b17h2s100d64:thd:tq1501:tk1601"};
    for (int p = 0; p < 4; ++p) {
        const int lines = p == 3 ? 5 : 7; /* the short one: one kernel */
        char first[7][512];
        one("cuda", LIST(H200), "once", problems[p]);
        if (failures(NULL)) fail_msg("%s: %s", problems[p], run.out);
        assert_true(variant_begins("sm90_"));
        assert_int_equal(lines_with(run.out, "once STW_OK "), 1);
        assert_int_equal(lines_with(run.out, "took 0 allocations, 0 locks"), 2);
        assert_int_equal(lines_with(run.log, "cuda:launch ") + lines_with(run.log, "cuda:map "), 2 * lines);
        for (int n = 0; n < lines; ++n) snprintf(first[n], sizeof first[n], "%s", launched(n));
        for (int n = 0; n < lines; ++n)
            if (strcmp(first[n], launched(lines + n)))
                fail_msg("%s: %s, with a plan %s", problems[p], launched(lines + n), first[n]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_say_the_layout),
        cmocka_unit_test(plans_refuse_by_name),
        cmocka_unit_test(kernels_of_modes),
        cmocka_unit_test(forced_variant),
        cmocka_unit_test(unaligned_calls),
        cmocka_unit_test(unaligned_calls_are_traced),
        cmocka_unit_test(unaligned_rows),
        cmocka_unit_test(one_workspace),
        cmocka_unit_test(maps_of_null_packs),
        cmocka_unit_test(two_images),
        cmocka_unit_test(module_load_fails),
        cmocka_unit_test(short_sequences),
        cmocka_unit_test(map_fails),
        cmocka_unit_test(drivers),
        cmocka_unit_test(calls_without_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
