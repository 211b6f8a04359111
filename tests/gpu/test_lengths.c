/* SPDX-License-Identifier: MIT
 *
 * Device data that contradicts the descriptor: lengths, starts and offsets out of range. Nothing is read
 * back, so the call is accepted; the kernels clamp, report in status_out, end, and write nothing outside the
 * gradients of the clamped problem, whose values are right. */
#include "gpu.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry of an array that is replaced after the data was made for the clamped value. */
typedef struct change {
    stw_verify_tensor tensor;
    int index;
    int64_t value;
} change;

/* The entry's place in an arena, and its bytes. */
static size_t entry_of(const stw_verify_case *c, const change *x, size_t *bytes_out) {
    *bytes_out = x->tensor == STW_VERIFY_Q_OFFSETS || x->tensor == STW_VERIFY_K_OFFSETS ? 8 : 4;
    return c->offset[x->tensor] + (size_t)x->index * *bytes_out;
}

static void put(unsigned char *arena, const stw_verify_case *c, const change *x) {
    int32_t narrow = (int32_t)x->value;
    size_t bytes, at = entry_of(c, x, &bytes);
    memcpy(arena + at, bytes == 8 ? (const void *)&x->value : &narrow, bytes);
}

/* Uploads the arena with the changes in it. */
static void load_changed(gpu_case *g, const change *changes, int count, int poison) {
    unsigned char *kept = malloc(g->c.bytes);
    assert_non_null(kept);
    memcpy(kept, g->c.host, g->c.bytes);
    for (int n = 0; n < count; ++n) put(g->c.host, &g->c, &changes[n]);
    gpu_case_load(g, &g->c, poison);
    memcpy(g->c.host, kept, g->c.bytes);
    free(kept);
}

/* status_out as it came back. The arena is then as if the data had been good, unless the call wrote more. */
static int32_t take_status(gpu_case *g, const change *changes, int count) {
    int32_t seen;
    for (int n = 0; n < count; ++n) {
        unsigned char was[8];
        size_t bytes, at = entry_of(&g->c, &changes[n], &bytes);
        memcpy(was, g->after + at, bytes);
        put(g->after, &g->c, &changes[n]);
        if (memcmp(was, g->after + at, bytes)) fail_msg("%s: an input array was written", g->line);
        memcpy(g->after + at, g->c.host + at, bytes);
    }
    memcpy(&seen, g->after + g->c.offset[STW_VERIFY_STATUS], sizeof seen);
    memset(g->after + g->c.offset[STW_VERIFY_STATUS], 0, sizeof seen);
    return seen;
}

/* `line` is the problem as clamped; with the changes in memory the call must give exactly that. */
static void clamped(const char *line, const change *changes, int count, int32_t bits) {
    gpu_case g;
    gpu_case_open(&g, gpu_context, line);
    assert_true(g.c.present[STW_VERIFY_STATUS]);
    gpu_case_round(&g, "good values");
    load_changed(&g, changes, count, 0x7F);
    GPU_OK(gpu_case_run(&g, g.device.stream));
    gpu_case_store(&g, g.device.stream);
    int32_t seen = take_status(&g, changes, count);
    if (seen != bits) fail_msg("%s: status_out 0x%x, expected 0x%x", line, (unsigned)seen, (unsigned)bits);
    gpu_case_judge(&g, &g.c, "clamped values");
    gpu_case_round(&g, "good values again");
    gpu_case_close(&g);
}

/* The forward: what it writes is what it writes of good values, bit for bit. */
static void clamped_forward(const char *line, const change *changes, int count, int32_t bits) {
    gpu_case g;
    gpu_case_open(&g, gpu_context, line);
    unsigned char *good = malloc(g.c.bytes);
    assert_non_null(good);
    for (int round = 0; round < 2; ++round) {
        load_changed(&g, changes, round ? count : 0, 0xFF);
        GPU_OK(gpu_case_run(&g, g.device.stream));
        gpu_case_store(&g, g.device.stream);
        int32_t seen = take_status(&g, changes, round ? count : 0), expected = round ? bits : 0;
        if (seen != expected) fail_msg("%s: status_out 0x%x, expected 0x%x", line, (unsigned)seen, (unsigned)expected);
        if (!round) memcpy(good, g.after, g.c.bytes);
    }
    if (memcmp(good, g.after, g.c.bytes)) fail_msg("%s: other results than of good values", line);
    free(good);
    gpu_case_close(&g);
}

#define CHANGES(...) (const change[]){__VA_ARGS__}, (int)(sizeof((const change[]){__VA_ARGS__}) / sizeof(change))
#define PACKED       "attn_bwd:bf16:b4h4k2s130x140d64:thd:tq400:tk420:causal_br:seed5"
/* A sequence has up to three key blocks of CDNA's own loop, which take turns. */
#define TURNS_F32 "attn_bwd:f32:b4h2k1s130x140d200:thd:tq400:tk420:causal_br:seed5:det"

static void starts_out_of_range(void **state) {
    (void)state;
    static const char *const modes[] = {"", ":det", ":dropout0.2", ":bias_11qk:grads_qkvb:det"};
    for (int m = 0; m < 4; ++m) {
        char line[256];
#define LINE(text) (snprintf(line, sizeof line, PACKED text "%s", modes[m]), line)
        /* above total: the last sequence ends with the buffer */
        clamped(LINE(":cuq0,65,195,300,400:cuk0,70,210,350,420"), CHANGES({STW_VERIFY_CU_Q, 4, 401}), 0x01);
        clamped(LINE(":cuq0,65,195,300,400:cuk0,70,210,350,420"),
                CHANGES({STW_VERIFY_CU_Q, 4, INT_MAX}, {STW_VERIFY_CU_KV, 4, INT_MAX}), 0x03);
        /* all of it behind the buffer: empty */
        clamped(LINE(":cuq100,165,270,400,400:cuk100,180,280,420,420"),
                CHANGES({STW_VERIFY_CU_Q, 3, 1000}, {STW_VERIFY_CU_Q, 4, 1100}, {STW_VERIFY_CU_KV, 3, INT_MAX},
                        {STW_VERIFY_CU_KV, 4, INT_MAX}),
                0x03);
        /* longer than max_seq */
        clamped(LINE(":cuq0,65,165,260,390:cuk0,70,210,350,420"), CHANGES({STW_VERIFY_CU_Q, 4, 400}), 0x01);
        clamped(LINE(":cuq0,65,195,300,400:cuk0,70,170,270,410"), CHANGES({STW_VERIFY_CU_KV, 4, 420}), 0x02);
        /* negative: begins with the buffer */
        clamped(LINE(":cuq0,65,195,300,400:cuk0,70,210,350,420"), CHANGES({STW_VERIFY_CU_Q, 0, -1}), 0x01);
        clamped(LINE(":cuq0,65,195,300,400:cuk0,70,210,350,420"),
                CHANGES({STW_VERIFY_CU_Q, 0, INT_MIN}, {STW_VERIFY_CU_KV, 0, -5}), 0x03);
#undef LINE
    }
}

static void starts_out_of_range_f32(void **state) {
    (void)state;
    clamped(TURNS_F32 ":cuq0,65,195,300,400:cuk0,70,210,350,420",
            CHANGES({STW_VERIFY_CU_Q, 4, INT_MAX}, {STW_VERIFY_CU_KV, 4, INT_MAX}), 0x03);
    clamped(TURNS_F32 ":cuq100,165,270,400,400:cuk100,180,280,420,420",
            CHANGES({STW_VERIFY_CU_Q, 3, 1000}, {STW_VERIFY_CU_Q, 4, 1100}, {STW_VERIFY_CU_KV, 3, INT_MAX},
                    {STW_VERIFY_CU_KV, 4, INT_MAX}),
            0x03);
    clamped(TURNS_F32 ":cuq0,65,195,300,400:cuk0,70,170,270,410", CHANGES({STW_VERIFY_CU_KV, 4, 420}), 0x02);
    clamped(TURNS_F32 ":cuq0,65,195,300,400:cuk0,70,210,350,420",
            CHANGES({STW_VERIFY_CU_Q, 0, INT_MIN}, {STW_VERIFY_CU_KV, 0, -5}), 0x03);
}

static void used_lengths_out_of_range(void **state) {
    (void)state;
#define USED PACKED ":used:cuq0,65,195,300,400:cuk0,70,210,350,420"
    clamped(USED ":usedq65,0,105,100:usedk70,140,0,9", CHANGES({STW_VERIFY_USED_Q, 0, 66}), 0x04);
    clamped(USED ":usedq65,0,105,100:usedk70,140,0,9",
            CHANGES({STW_VERIFY_USED_Q, 1, -1}, {STW_VERIFY_USED_KV, 1, INT_MAX}), 0x0C);
    clamped(USED ":usedq65,0,105,100:usedk70,140,0,9", CHANGES({STW_VERIFY_USED_KV, 2, INT_MIN}), 0x08);
    clamped("attn_bwd:f32:b3h2s65x97d40:used:usedq0,65,9:usedk97,3,97:seed5",
            CHANGES({STW_VERIFY_USED_Q, 0, -7}, {STW_VERIFY_USED_KV, 2, 98}), 0x0C);
    clamped("attn_bwd:f16:b3h2s65x97d64:used:det:causal_tl:usedq0,65,9:usedk97,3,97:seed5",
            CHANGES({STW_VERIFY_USED_Q, 1, INT_MAX}, {STW_VERIFY_USED_KV, 0, 1 << 30}), 0x0C);
}

/* |offset| <= 2^40: what is beyond has the bound's place, here far off every key or before all of them. */
static void offsets_out_of_range(void **state) {
    (void)state;
    clamped("attn_bwd:bf16:b2h2s65x97d64:causal_tl:qoffs1099511627776,3:koffs0,0:seed5",
            CHANGES({STW_VERIFY_Q_OFFSETS, 0, INT64_MAX}), 0x10);
    clamped("attn_bwd:bf16:b2h2s65x97d64:causal_tl:qoffs7,-1099511627776:koffs0,0:seed5",
            CHANGES({STW_VERIFY_Q_OFFSETS, 1, INT64_MIN}), 0x10);
    clamped("attn_bwd:bf16:b2h2s65x97d64:wl20:qoffs7,0:koffs0,1099511627776:seed5",
            CHANGES({STW_VERIFY_K_OFFSETS, 1, (INT64_C(1) << 40) + 1}), 0x10);
}

/* Bounds of intervals (rows, rows, 0, the key's own row) beyond the rows on either side. With a q offset only negative
 * ones are wrong. */
static void intervals_out_of_range(void **state) {
    (void)state;
    static const char *const modes[] = {"", ":det", ":mask_heads:softcap9", ":bias_11qk:grads_qkvb:det"};
    for (int m = 0; m < 4; ++m) {
        char line[256];
#define LINE(text) (snprintf(line, sizeof line, text "%s", modes[m]), line)
#define MASKED     "attn_bwd:bf16:b2h4k2s65x97d64:used:usedq65,65:usedk97,97:intervals_two:draw_causal:seed5"
        clamped(LINE(MASKED), CHANGES({STW_VERIFY_INTERVALS, 0, 66}), 0x20);
        clamped(LINE(MASKED), CHANGES({STW_VERIFY_INTERVALS, 4 * 96 + 1, INT_MAX}, {STW_VERIFY_INTERVALS, 4 * 9, 1000}),
                0x20);
        clamped(LINE(MASKED), CHANGES({STW_VERIFY_INTERVALS, 2, -1}, {STW_VERIFY_INTERVALS, 4 * 50 + 2, INT_MIN}),
                0x20);
        clamped(LINE(PACKED ":cuq0,65,195,300,400:cuk0,70,210,350,420:intervals_two:draw_causal"),
                CHANGES({STW_VERIFY_INTERVALS, 4 * 419, INT_MAX}, {STW_VERIFY_CU_Q, 4, 401}), 0x21);
#undef LINE
    }
    clamped("attn_bwd:bf16:b2h2s65x97d64:qoffs7,9:koffs0,0:intervals_two:draw_causal:seed5",
            CHANGES({STW_VERIFY_INTERVALS, 0, INT_MAX}), 0);
    clamped_forward("attn_fwd:bf16:b2h2s65x97d64:used:usedq65,65:usedk97,97:intervals_two:draw_causal:seed5",
                    CHANGES({STW_VERIFY_INTERVALS, 1, INT_MAX}, {STW_VERIFY_INTERVALS, 4 * 50 + 2, INT_MIN}), 0x20);
}

/* Starts that go back: sequences overlap, so their rows have no one right value. What must hold: the call
 * ends, nothing but rows of gradients is written, it is reported, and the next good call is right. */
static void overlapping(const char *line, const change *changes, int count, int32_t bits) {
    gpu_case g;
    gpu_case_open(&g, gpu_context, line);
    unsigned char *output = calloc(1, g.c.bytes);
    assert_non_null(output);
    for (int t = STW_VERIFY_DQ; t < STW_VERIFY_TENSOR_COUNT; ++t)
        if (g.c.present[t]) memset(output + g.c.offset[t], 1, g.c.size[t]);
    for (int n = 0; n < 20; ++n) { /* which block comes first is chance */
        load_changed(&g, changes, count, n & 1 ? 0x7F : 0xFF);
        GPU_OK(gpu_case_run(&g, g.device.stream));
        gpu_case_store(&g, g.device.stream);
        int32_t seen = take_status(&g, changes, count);
        if (seen != bits) fail_msg("%s: status_out 0x%x, expected 0x%x", line, (unsigned)seen, (unsigned)bits);
        for (size_t at = 0; at < g.c.bytes; ++at)
            if (!output[at] && g.after[at] != g.c.host[at]) fail_msg("%s: byte %zu was written", line, at);
    }
    free(output);
    gpu_case_round(&g, "good values again");
    gpu_case_close(&g);
}

#define LONG "attn_bwd:bf16:b4h2s700x900d64:thd:tq1400:tk1800:seed5:cuq0,700,700,1400,1400:cuk0,900,900,1800,1800"

static void decreasing_starts(void **state) {
    (void)state;
    overlapping(PACKED ":cuq0,100,150,200,300:cuk0,70,210,350,420", CHANGES({STW_VERIFY_CU_Q, 2, 50}), 0x01);
    overlapping(LONG, CHANGES({STW_VERIFY_CU_Q, 2, 0}, {STW_VERIFY_CU_Q, 3, 700}), 0x01);
    overlapping(LONG, CHANGES({STW_VERIFY_CU_KV, 2, 0}, {STW_VERIFY_CU_KV, 3, 900}), 0x02);
}

/* The last test: where the order of additions is kept by counters, two sequences that share rows must not
 * wait for each other for ever. */
static void decreasing_starts_in_order(void **state) {
    (void)state;
    overlapping(PACKED ":det:cuq0,100,150,200,300:cuk0,70,210,350,420", CHANGES({STW_VERIFY_CU_Q, 2, 50}), 0x01);
    overlapping(TURNS_F32 ":cuq0,100,150,200,300:cuk0,70,210,350,420", CHANGES({STW_VERIFY_CU_Q, 2, 50}), 0x01);
    overlapping(LONG ":det", CHANGES({STW_VERIFY_CU_Q, 2, 0}, {STW_VERIFY_CU_Q, 3, 700}), 0x01);
    overlapping(LONG ":det:causal_br",
                CHANGES({STW_VERIFY_CU_Q, 2, 0}, {STW_VERIFY_CU_Q, 3, 700}, {STW_VERIFY_CU_KV, 2, 0},
                        {STW_VERIFY_CU_KV, 3, 900}),
                0x03);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_out_of_range),        cmocka_unit_test(starts_out_of_range_f32),
        cmocka_unit_test(used_lengths_out_of_range),  cmocka_unit_test(offsets_out_of_range),
        cmocka_unit_test(intervals_out_of_range),     cmocka_unit_test(decreasing_starts),
        cmocka_unit_test(decreasing_starts_in_order),
    };
    return gpu_main(argc, argv, "gpu_lengths", tests, sizeof tests / sizeof *tests, 160);
}
