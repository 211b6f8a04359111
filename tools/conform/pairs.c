/* SPDX-License-Identifier: MIT
 *
 * Pairwise problems: a list in which every two levels of any two factors (type, sizes, layout, mask, bias,
 * dropout, ...) meet, made by greedy choice among random candidates. Levels that contradict each other
 * are replaced by their factor's default. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEVEL_MAX   9
#define USUAL_LISTS 4

enum factor {
    DTYPE,
    HEADS,
    SEQ_Q,
    SEQ_K,
    DIM,
    ORDER,
    PACKED,
    LSE,
    USED,
    MASK,
    BIAS,
    ALIBI,
    SOFTCAP,
    SINK,
    DELTA,
    DROPOUT,
    DET,
    GRADS,
    TYPES,
    PLACE,
    DATA,
    SCALE,
    SKEW,
    FACTORS
};

static const char *const levels[FACTORS][LEVEL_MAX] = {
    [DTYPE] = {"bf16", "f16", "f32"},
    [HEADS] = {"b2h2", "b1h1", "b2h4k2", "b3h3k1", "b1h6k3"},
    [SEQ_Q] = {"s33", "s1", "s17", "s64", "s65", "s100"},
    [SEQ_K] = {"x67", "x1", "x16", "x31", "x64", "x130"},
    [DIM] = {"d64", "d8", "d16", "d33", "d96", "d128", "d40x24", "d192x128", "d256"},
    [ORDER] = {"", "bhsd", "gap3", "gap8", "qkv"},
    [PACKED] = {"", "thd", "thd:seqs_full", "thd:seqs_zeros", "thdq", "thdk"},
    [LSE] = {"", "lse_heads", "lse_local"},
    [USED] = {"", "used", "lens_q", "lens_kv"},
    [MASK] = {"", "causal_tl", "causal_br", "wl9", "wr5", "wl20:wr3", "causal_br:wl17", "causal_tl:shift-2"},
    [BIAS] = {"", "bias_bhqk", "bias_1hqk", "bias_b1qk", "bias_11qk", "bias_bh1k", "biasf32_bhq1", "biasf32_11qk"},
    [ALIBI] = {"", "alibi", "alibi:alibi_col", "alibi:alibi_st8"},
    [SOFTCAP] = {"", "softcap4", "softcap30"},
    [SINK] = {"", "sink"},
    [DELTA] = {"", "dlse", "delta_in", "delta_out", "dlse:delta_out"},
    [DROPOUT] = {"", "dropout0.1", "dropout0.5:map_mem_eff", "dropout0.2:map_flash2"},
    [DET] = {"", "det"},
    [GRADS] = {"", "all", "q", "kv", "b", "s"},
    [TYPES] = {"", "f32", "acc"},
    [PLACE] = {"", "qoff5:koff3", "pointer", "boff2:hoff1:htotal8"},
    [DATA] = {"", "data_sd3", "data_onehot", "data_low_keys", "data_inf_keys", "data_denormal", "data_inf_lse"},
    [SCALE] = {"", "scale0.3"},
    [SKEW] = {"", "skew1"},
};

typedef struct pairs {
    unsigned char met[FACTORS][LEVEL_MAX][FACTORS][LEVEL_MAX];
    uint64_t seed, drawn, made;
} pairs;

static int level_count(int factor) {
    int count = 0;
    while (count < LEVEL_MAX && levels[factor][count]) ++count;
    return count;
}

static int is_level(const int *chosen, int factor, const char *name) {
    return !strcmp(levels[factor][chosen[factor]], name);
}

/* Levels that contradict another factor's go back to the default. */
static void repair(int *chosen) {
    int keys = is_level(chosen, DATA, "data_low_keys") || is_level(chosen, DATA, "data_inf_keys");
    if (keys && (!chosen[BIAS] || is_level(chosen, BIAS, "biasf32_bhq1"))) chosen[DATA] = 0;
    if (is_level(chosen, DATA, "data_low_keys") && chosen[MASK] > 2) chosen[MASK] = 0; /* a row needs another key */
    if (is_level(chosen, GRADS, "b") && !chosen[BIAS]) chosen[GRADS] = 0;
    if (is_level(chosen, GRADS, "s") && !chosen[SINK]) chosen[GRADS] = 0;
    if (is_level(chosen, TYPES, "acc") && chosen[GRADS] >= 4) chosen[TYPES] = 0;
    if (is_level(chosen, LSE, "lse_local") && (!chosen[PACKED] || is_level(chosen, PACKED, "thdk"))) chosen[LSE] = 0;
}

static int count_new(const pairs *p, const int *chosen) {
    int count = 0;
    for (int a = 0; a < FACTORS; ++a)
        for (int b = a + 1; b < FACTORS; ++b) count += !p->met[a][chosen[a]][b][chosen[b]];
    return count;
}

static void draw(pairs *p, int *chosen) {
    for (int f = 0; f < FACTORS; ++f)
        chosen[f] = (int)(stw_verify_random(p->seed, 900, p->drawn++) % (uint64_t)level_count(f));
}

/* Further lists than the usual ones have 32 in the place of every other 33: both are in its range. */
static const char *dim_of(const pairs *p, const int *chosen) {
    const char *dim = levels[DIM][chosen[DIM]];
    return p->seed > USUAL_LISTS && p->made % 2 && !strcmp(dim, "d33") ? "d32" : dim;
}

static void compose(const pairs *p, const int *chosen, char *line) {
    static const char *const grads[] = {"q", "qkv", "q", "kv", "b", "s"};
    stw_text text = stw_text_in(line, CONFORM_LINE_MAX);
    char letters[8];
    int all = is_level(chosen, GRADS, "all");
    snprintf(letters, sizeof letters, "%s%s%s", chosen[GRADS] ? grads[chosen[GRADS]] : "qkv",
             all && chosen[BIAS] ? "b" : "", all && chosen[SINK] ? "s" : "");
    stw_text_add(&text, "attn_bwd:%s:%s%s%s%s", levels[DTYPE][chosen[DTYPE]], levels[HEADS][chosen[HEADS]],
                 levels[SEQ_Q][chosen[SEQ_Q]], levels[SEQ_K][chosen[SEQ_K]], dim_of(p, chosen));
    for (int f = ORDER; f < FACTORS; ++f) {
        if (!chosen[f]) continue;
        if (f == GRADS) stw_text_add(&text, ":grads_%s", letters);
        else if (f == TYPES) {
            stw_text_add(&text, ":dq_f32:dk_f32:dv_f32");
            if (is_level(chosen, TYPES, "acc")) stw_text_add(&text, ":acc_%.*s", (int)strcspn(letters, "bs"), letters);
        } else stw_text_add(&text, ":%s", levels[f][chosen[f]]);
    }
}

static int emit(pairs *p, conform_list *list, int row, const int *chosen) {
    char line[CONFORM_LINE_MAX], canonical[CONFORM_LINE_MAX];
    stw_problem problem;
    for (int a = 0; a < FACTORS; ++a)
        for (int b = a + 1; b < FACTORS; ++b) p->met[a][chosen[a]][b][chosen[b]] = 1;
    compose(p, chosen, line);
    p->made++;
    if (stw_problem_parse(line, &problem)) {
        stw_tool_error("conform", line, "%s", stw_tool_last_error());
        return 0;
    }
    stw_problem_print(&problem, canonical, sizeof canonical);
    return conform_list_add(list, row, canonical);
}

/* The best of some random candidates that hold levels x of a and y of b, or without these (a < 0). */
static int best_candidate(pairs *p, int a, int x, int b, int y, int *best) {
    int most = 0, chosen[FACTORS];
    for (int n = 0; n < 24; ++n) {
        draw(p, chosen);
        if (a >= 0) chosen[a] = x, chosen[b] = y;
        repair(chosen);
        if (a >= 0 && (chosen[a] != x || chosen[b] != y)) continue;
        int fresh = count_new(p, chosen);
        if (fresh <= most) continue;
        most = fresh;
        memcpy(best, chosen, sizeof chosen);
    }
    return most;
}

int conform_list_pairs(conform_list *list, int row, uint64_t seed) {
    pairs *p = calloc(1, sizeof *p);
    int best[FACTORS], good = p != NULL;
    if (p) p->seed = seed + 1;
    while (good && best_candidate(p, -1, 0, 0, 0, best) > FACTORS / 2) good = emit(p, list, row, best);
    for (int a = 0; good && a < FACTORS; ++a)
        for (int x = 0; x < level_count(a); ++x)
            for (int b = a + 1; b < FACTORS; ++b)
                for (int y = 0; good && y < level_count(b); ++y) /* pairs that contradict each other stay out */
                    if (!p->met[a][x][b][y] && best_candidate(p, a, x, b, y, best)) good = emit(p, list, row, best);
    free(p);
    return good;
}
