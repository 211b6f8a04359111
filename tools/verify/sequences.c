/* SPDX-License-Identifier: MIT
 *
 * Sequences of a case (case.h): where each begins and ends, how much of it is used, at which position of the
 * whole problem it lies, and which keys a row sees. Written from include/sternway/attn_bwd.h alone. */
#include "case.h"

#include "common/attn_packed.h"

static stw_status check_list(const stw_problem_list *list, const char *name, int64_t wanted) {
    if (!list->count || list->count == wanted) return STW_OK;
    return stw_fail(STW_E_INVALID, "problem: %s has %d values where %lld are needed", name, (int)list->count,
                    (long long)wanted);
}

static int64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t bound) {
    return bound <= 0 ? 0 : (int64_t)(stw_case_random(seed, stream, index) % (uint64_t)bound);
}

/* Lengths of packed sequences by the problem's pattern; the first has the maximal length if it fits. */
static void make_packed(const stw_case *c, int side, int64_t max_seq, int64_t total, stw_case_span *spans) {
    const stw_problem *p = &c->problem;
    uint64_t seed = (uint64_t)p->seed, stream = 100u + (unsigned)side;
    int64_t batch = p->desc.batch, left = total, at = 0;
    for (int64_t b = 0; b < batch; ++b) {
        int64_t most = left < max_seq ? left : max_seq, rows = most;
        if (b && p->seqs == STW_SEQS_RAGGED) rows = random_below(seed, stream, (uint64_t)b, most + 1);
        if (p->seqs == STW_SEQS_ZEROS && b % 3 != 1) rows = 0;
        spans[b].rows = rows;
        left -= rows;
    }
    if (p->seqs != STW_SEQS_FULL) at = left < 3 ? left : 3; /* rows of nobody in front, the rest behind */
    for (int64_t b = 0; b < batch; ++b) {
        spans[b].first = at;
        at += spans[b].rows;
    }
}

stw_status stw_case_make_side(stw_case *c, int side) {
    const stw_problem *p = &c->problem;
    const stw_attn_desc *d = &p->desc;
    const stw_problem_list *cu = side ? &p->cu_kv : &p->cu_q, *used = side ? &p->used_kv : &p->used_q;
    const stw_problem_list *offsets = side ? &p->k_offsets : &p->q_offsets;
    int64_t max_seq = side ? d->max_seq_kv : d->max_seq_q, total = side ? d->total_kv : d->total_q;
    int packed = stw_attn_is_packed(d, side);
    stw_case_span *spans = side ? c->kv : c->q;
    int given =
        (d->flags & STW_ATTN_HAS_USED_LENGTHS) && p->used != (side ? STW_USED_Q_ONLY : STW_USED_KV_ONLY);
    stw_status status = check_list(cu, side ? "cuk" : "cuq", d->batch + 1);
    if (!status) status = check_list(used, side ? "usedk" : "usedq", d->batch);
    if (!status) status = check_list(offsets, side ? "koffs" : "qoffs", d->batch);
    if (status) return status;
    if (packed && !cu->count) make_packed(c, side, max_seq, total, spans);
    for (int64_t b = 0; b < d->batch; ++b) {
        stw_case_span *s = &spans[b];
        if (!packed)
            s->rows = max_seq;
        else if (cu->count)
            s->first = cu->value[b], s->rows = cu->value[b + 1] - cu->value[b];
        if (s->first < 0 || s->rows < 0 || s->rows > max_seq || (packed && s->first + s->rows > total))
            return stw_fail(STW_E_INVALID,
                            "problem: %s: sequence %lld is outside 0..%lld or longer than %lld",
                            side ? "cuk" : "cuq", (long long)b, (long long)total, (long long)max_seq);
        s->used = s->rows;
        if (given && used->count)
            s->used = used->value[b];
        else if (given && p->used == STW_USED_ZERO)
            s->used = 0;
        else if (given && b)
            s->used = random_below((uint64_t)p->seed, 110u + (unsigned)side, (uint64_t)b, s->rows + 1);
        else if (given && s->rows)
            s->used = s->rows - 1;
        if (s->used < 0 || s->used > s->rows)
            return stw_fail(STW_E_INVALID, "problem: used length %lld of sequence %lld is not in 0..%lld",
                            (long long)s->used, (long long)b, (long long)s->rows);
        s->offset = side ? p->k_offset : p->q_offset;
        if (offsets->count)
            s->offset = offsets->value[b];
        else if (p->by_pointer)
            s->offset += 2 * b;
    }
    return STW_OK;
}

void stw_case_visible(const stw_case *c, int64_t b, int64_t i, int64_t *low, int64_t *end) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_case_span *q = &c->q[b], *kv = &c->kv[b];
    int64_t shift = kv->used - q->used;
    if (d->flags & STW_ATTN_HAS_SHIFT)
        shift = d->diagonal_shift;
    else if (d->mask == STW_MASK_CAUSAL_TOP_LEFT)
        shift = 0;
    int64_t diagonal = i + shift + q->offset - kv->offset, first = 0, last = kv->used - 1;
    if (d->flags & STW_ATTN_HAS_WINDOW_LEFT && diagonal - d->window_left > first)
        first = diagonal - d->window_left;
    if (d->flags & STW_ATTN_HAS_WINDOW_RIGHT && diagonal + d->window_right < last)
        last = diagonal + d->window_right;
    if (d->mask != STW_MASK_NONE && diagonal < last) last = diagonal;
    *low = first;
    *end = last < first ? first : last + 1;
}
