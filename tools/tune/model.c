/* SPDX-License-Identifier: MIT
 *
 * The static model of `sternway tune`: which variants need not be timed, by the columns of the tuning table
 * and the device alone. The work of a variant is rows and keys rounded up to its tile, times its head dim (on
 * the CPU over its lanes); a processor does it in whole blocks (the last ones leave others idle) and only so
 * fast as shared memory and registers let blocks fill its four schedulers. What masks and features leave out
 * is the same for all and left out here. The model knows nothing of latencies: only more than twice the least
 * work of a variant with the same main loop, or a head dim above the two smallest that fit, rules a variant
 * out. */
#include "tune.h"

#include <stdio.h>
#include <string.h>

#define WORK_LIMIT 2.0
#define SCHEDULERS 4
#define WORDS_MAX  120

double tune_model_fill(const stw_tool_variant *v, uint32_t smem_kb, int is_cpu) {
    if (is_cpu || !v->warps) return 1;
    /* At most: 255 registers a thread on NVIDIA, 512 a lane on CDNA. */
    uint32_t by_registers = (!strncmp(v->id, "gfx", 3) ? 4 : 8) / v->warps;
    uint32_t by_memory = v->smem_kb ? smem_kb / v->smem_kb : by_registers;
    uint32_t blocks = by_registers < by_memory ? by_registers : by_memory;
    double fill = (double)(blocks ? blocks : 1) * v->warps / SCHEDULERS;
    return fill < 1 ? fill : 1;
}

static double round_up(int64_t n, uint32_t tile) { return tile ? (double)((n + tile - 1) / tile) * tile : (double)n; }

typedef struct model {
    double work;  /* everything counted */
    double waves; /* CTAs that a multiprocessor has one after the other; 0: not known */
    double fill;
} model;

static model model_of(const tune_target *target, const stw_attn_desc *d, const stw_tool_variant *v, uint32_t smem_kb) {
    int is_cpu = !strcmp(target->table->arch, "cpu");
    model m = {.fill = tune_model_fill(v, smem_kb, is_cpu)};
    double blocks = (double)d->batch * (double)d->heads_q * round_up(d->max_seq_kv, v->bn) / v->bn, tail = 1;
    if (target->units && blocks > 0) {
        m.waves = (double)(int64_t)((blocks + target->units - 1) / target->units);
        tail = m.waves * target->units / blocks;
        if (tail < 1) tail = 1;
    }
    m.work = round_up(d->max_seq_q, v->bm) * round_up(d->max_seq_kv, v->bn) * v->head_dim * tail / m.fill;
    if (is_cpu) m.work /= v->warps ? v->warps : 1;
    return m;
}

/* The smallest head dim that two variants have between them: wider ones pad more and cannot win. */
static uint32_t head_dim_limit(const tune_point *point) {
    uint32_t limit = UINT32_MAX;
    for (size_t i = 0; i < point->count; ++i) {
        uint32_t hd = point->timings[i].variant->head_dim;
        size_t within = 0;
        for (size_t n = 0; n < point->count; ++n) within += point->timings[n].variant->head_dim <= hd;
        if (within >= 2 && hd < limit) limit = hd;
    }
    return limit;
}

/* "64x128, head dim 128, fills 0.5, 3 in turn" */
static const char *words_of(const model *m, const stw_tool_variant *v, char words[WORDS_MAX]) {
    int n = snprintf(words, WORDS_MAX, "tile %ux%u, head dim %u", v->bm, v->bn, v->head_dim);
    if (m->fill < 1) n += snprintf(words + n, WORDS_MAX - (size_t)n, ", fills %g of a processor", m->fill);
    if (m->waves > 0) snprintf(words + n, WORDS_MAX - (size_t)n, ", %g blocks in turn", m->waves);
    return words;
}

static int comparable(const tune_target *target, const stw_tool_variant *a, const stw_tool_variant *b) {
    return !strcmp(a->loop, b->loop) || !strcmp(target->table->arch, "cpu");
}

void tune_model_prune(const tune_target *target, tune_point *point) {
    char words[2][WORDS_MAX];
    uint32_t limit = head_dim_limit(point), smem_kb = 0;
    for (size_t i = 0; i < point->count; ++i)
        if (point->timings[i].variant->smem_kb > smem_kb) smem_kb = point->timings[i].variant->smem_kb;
    for (size_t i = 1; i < point->count; ++i) {
        tune_timing *t = &point->timings[i];
        const stw_tool_variant *least = t->variant;
        model own = model_of(target, &point->desc, t->variant, smem_kb), best = own;
        for (size_t n = 0; n < point->count; ++n) {
            const stw_tool_variant *v = point->timings[n].variant;
            model other = model_of(target, &point->desc, v, smem_kb);
            if (comparable(target, v, t->variant) && other.work < best.work) best = other, least = v;
        }
        if (t->variant->head_dim > limit)
            snprintf(t->text, sizeof t->text, "pruned: head dim %u, two variants of up to %u take the problem",
                     t->variant->head_dim, limit);
        else if (own.work > WORK_LIMIT * best.work)
            snprintf(t->text, sizeof t->text, "pruned: %.1f times the work of %s by the static model (%s; %s)",
                     own.work / best.work, least->id, words_of(&own, t->variant, words[0]),
                     words_of(&best, least, words[1]));
        t->pruned = t->text[0] != 0;
    }
}
