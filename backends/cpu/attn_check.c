/* SPDX-License-Identifier: MIT
 *
 * Checks the values of cu_seqlens, used lengths, offsets and intervals, which only the run call can see. A value out of
 * range is refused by name before anything is written. Called first by every attention call. */
#include "cpu.h"

#include "common/params/attn_hidden.h"

typedef struct check {
    const char *function;
    int32_t bits;
    stw_status status;
    int64_t sequence; /* the number of the first one */
} check;

#define REFUSE(c, bit, ...)                                                                                            \
    do {                                                                                                               \
        if (!(c)->bits) (c)->status = stw_fail(STW_E_INVALID, __VA_ARGS__);                                            \
        (c)->bits |= (bit);                                                                                            \
    } while (0)

static void check_cu_seqlens(check *c, const char *name, const int32_t *cu, int64_t batch, int64_t max_seq,
                             int64_t total, const char *side, int32_t bit) {
    if (!cu) return;
    if (cu[0] < 0 || cu[0] > total)
        REFUSE(c, bit, "%s: %s[0] is %d, accepted: 0..%lld (total_%s)", c->function, name, cu[0], (long long)total,
               side);
    for (int64_t b = 0; b < batch; ++b) {
        long long at = b + 1, length = (long long)cu[b + 1] - cu[b];
        if (length < 0) {
            REFUSE(c, bit, "%s: %s[%lld] is %d, below entry %lld, %d", c->function, name, at, cu[b + 1], at - 1, cu[b]);
        } else if (cu[b + 1] > total) {
            REFUSE(c, bit, "%s: %s[%lld] is %d, accepted: up to %lld (total_%s)", c->function, name, at, cu[b + 1],
                   (long long)total, side);
        } else if (length > max_seq) {
            REFUSE(c, bit, "%s: %s[%lld] is %d and makes a sequence of %lld rows, accepted: up to %lld (max_seq_%s)",
                   c->function, name, at, cu[b + 1], length, (long long)max_seq, side);
        }
    }
}

static void check_used(check *c, const char *name, const int32_t *used, const int32_t *cu, int64_t batch,
                       int64_t max_seq, int32_t bit) {
    if (!used) return;
    for (int64_t b = 0; b < batch; ++b) {
        int64_t rows = cu ? (int64_t)cu[b + 1] - cu[b] : max_seq;
        if (rows < 0) continue; /* cu_seqlens decrease: reported above */
        if (used[b] < 0 || used[b] > rows)
            REFUSE(c, bit, "%s: %s[%lld] is %d, accepted: 0..%lld (rows of sequence %lld)", c->function, name,
                   (long long)b, used[b], (long long)rows, (long long)b);
    }
}

static void check_offsets(check *c, const char *name, const int64_t *offsets, int64_t batch) {
    if (!offsets) return;
    for (int64_t b = 0; b < batch; ++b)
        if (offsets[b] < -STW_POSITION_MAX || offsets[b] > STW_POSITION_MAX)
            REFUSE(c, STW_DATA_OFFSETS, "%s: %s[%lld] is %lld, accepted: -2^40..2^40", c->function, name, (long long)b,
                   (long long)offsets[b]);
}

/* Bounds of the keys in use, once lengths and offsets are known to be good. */
static void check_intervals(check *c, const stw_attn_params *p) {
    int64_t heads = p->intervals.head ? p->heads_kv : 1;
    int bounds = p->intervals.data ? stw_interval_bounds(p->interval_form) : 0;
    for (int64_t n = 0; n < p->batch * heads && bounds; ++n) {
        stw_seq_span q = stw_seq_q(p, n / heads), kv = stw_seq_kv(p, n / heads);
        int64_t most = q.offset ? INT32_MAX : q.rows;
        for (int64_t j = 0; j < kv.used; ++j)
            for (int x = 0; x < bounds; ++x) {
                int32_t bound = stw_interval_at(p, &kv, n / heads, n % heads, j)[x * p->intervals.bound];
                if (bound < 0 || bound > most)
                    REFUSE(
                        c, STW_DATA_INTERVALS,
                        "%s: intervals: bound %d of key %lld of sequence %lld, head %lld, is %d, accepted: 0..%lld%s",
                        c->function, x, (long long)j, (long long)(c->sequence + n / heads), (long long)(n % heads),
                        bound, (long long)most, q.offset ? "" : " (rows of the sequence)");
            }
    }
}

stw_status stw_cpu_check_data(const char *function, const stw_attn_params *p) {
    check c = {function, 0, STW_OK, 0};
    check_cu_seqlens(&c, "cu_seqlens_q", p->cu_seqlens_q, p->batch, p->max_seq_q, p->total_q, "q",
                     STW_DATA_CU_SEQLENS_Q);
    check_cu_seqlens(&c, "cu_seqlens_kv", p->cu_seqlens_kv, p->batch, p->max_seq_kv, p->total_kv, "kv",
                     STW_DATA_CU_SEQLENS_KV);
    check_used(&c, "used_q", p->used_q, p->cu_seqlens_q, p->batch, p->max_seq_q, STW_DATA_USED_Q);
    check_used(&c, "used_kv", p->used_kv, p->cu_seqlens_kv, p->batch, p->max_seq_kv, STW_DATA_USED_KV);
    check_offsets(&c, "q_offsets", p->q_offsets, p->batch);
    check_offsets(&c, "k_offsets", p->k_offsets, p->batch);
    if (!c.bits && p->features & STW_FEAT_INTERVALS && !(p->features & STW_FEAT_CHECKED_INTERVALS))
        check_intervals(&c, p);
    if (p->status_out) *p->status_out = c.bits;
    return c.status;
}

stw_status stw_cpu_cp_intervals(const char *who, const stw_attn_params *params, int64_t sequence) {
    check c = {who, 0, STW_OK, sequence};
    check_intervals(&c, params);
    return c.status;
}
