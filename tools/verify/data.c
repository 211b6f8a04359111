/* SPDX-License-Identifier: MIT
 *
 * The sequences of a case and what its tensors hold. Everything comes from a counter-based generator in integer
 * arithmetic, so that a PROBLEM line is the same data on every machine. Only what the problem says may be read is
 * written: K and V rows that somebody sees, dout rows that see a key, bias entries of visible pairs; the rest of the
 * arena stays NaN and must not reach a result. */
#include "verify.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/dtype.h"
#include "common/attn_packed.h"

/* ---- sequences: where each begins and ends, how much of it is used, at which position of the whole problem it
 * lies, and which keys a row sees. Written from include/sternway/attn_bwd.h alone. */

static stw_status check_list(const stw_problem_list *list, const char *name, int64_t wanted) {
    if (!list->count || list->count == wanted) return STW_OK;
    return stw_fail(STW_E_INVALID, "problem: %s has %d values where %lld are needed", name, (int)list->count,
                    (long long)wanted);
}

static int64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t bound) {
    return bound <= 0 ? 0 : (int64_t)(stw_verify_random(seed, stream, index) % (uint64_t)bound);
}

/* Lengths of packed sequences by the problem's pattern; the first has the maximal length if it fits. */
static void make_packed(const stw_verify_case *c, int side, int64_t max_seq, int64_t total, stw_verify_span *spans) {
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

stw_status stw_verify_make_side(stw_verify_case *c, int side) {
    const stw_problem *p = &c->problem;
    const stw_attn_desc *d = &p->desc;
    const stw_problem_list *cu = side ? &p->cu_kv : &p->cu_q, *used = side ? &p->used_kv : &p->used_q;
    const stw_problem_list *offsets = side ? &p->k_offsets : &p->q_offsets;
    int64_t max_seq = side ? d->max_seq_kv : d->max_seq_q, total = side ? d->total_kv : d->total_q;
    int packed = stw_attn_is_packed(d, side);
    stw_verify_span *spans = side ? c->kv : c->q;
    int given = (d->flags & STW_ATTN_HAS_USED_LENGTHS) && p->used != (side ? STW_USED_Q_ONLY : STW_USED_KV_ONLY);
    stw_status status = check_list(cu, side ? "cuk" : "cuq", d->batch + 1);
    if (!status) status = check_list(used, side ? "usedk" : "usedq", d->batch);
    if (!status) status = check_list(offsets, side ? "koffs" : "qoffs", d->batch);
    if (status) return status;
    if (packed && !cu->count) make_packed(c, side, max_seq, total, spans);
    for (int64_t b = 0; b < d->batch; ++b) {
        stw_verify_span *s = &spans[b];
        if (!packed) s->rows = max_seq;
        else if (cu->count) s->first = cu->value[b], s->rows = cu->value[b + 1] - cu->value[b];
        if (s->first < 0 || s->rows < 0 || s->rows > max_seq || (packed && s->first + s->rows > total))
            return stw_fail(STW_E_INVALID, "problem: %s: sequence %lld is outside 0..%lld or longer than %lld",
                            side ? "cuk" : "cuq", (long long)b, (long long)total, (long long)max_seq);
        s->used = s->rows;
        if (given && used->count) s->used = used->value[b];
        else if (given && p->used == STW_USED_ZERO) s->used = 0;
        else if (given && b) s->used = random_below((uint64_t)p->seed, 110u + (unsigned)side, (uint64_t)b, s->rows + 1);
        else if (given && s->rows) s->used = s->rows - 1;
        if (s->used < 0 || s->used > s->rows)
            return stw_fail(STW_E_INVALID, "problem: used length %lld of sequence %lld is not in 0..%lld",
                            (long long)s->used, (long long)b, (long long)s->rows);
        s->offset = side ? p->k_offset : p->q_offset;
        if (offsets->count) s->offset = offsets->value[b];
        else if (p->by_pointer) s->offset += 2 * b;
    }
    return STW_OK;
}

void stw_verify_visible(const stw_verify_case *c, int64_t b, int64_t i, int64_t *low, int64_t *end) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_verify_span *q = &c->q[b], *kv = &c->kv[b];
    int64_t shift = kv->used - q->used;
    if (d->flags & STW_ATTN_HAS_SHIFT) shift = d->diagonal_shift;
    else if (d->mask == STW_MASK_CAUSAL_TOP_LEFT) shift = 0;
    int64_t diagonal = i + shift + q->offset - kv->offset, first = 0, last = kv->used - 1;
    if (d->flags & STW_ATTN_HAS_WINDOW_LEFT && diagonal - d->window_left > first) first = diagonal - d->window_left;
    if (d->flags & STW_ATTN_HAS_WINDOW_RIGHT && diagonal + d->window_right < last) last = diagonal + d->window_right;
    if (d->mask != STW_MASK_NONE && diagonal < last) last = diagonal;
    *low = first;
    *end = last < first ? first : last + 1;
}

/* ---- elements ---- */

int64_t stw_verify_row_index(const stw_verify_case *c, stw_verify_tensor tensor, int64_t b, int64_t h, int64_t row) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_attn_strides *const strides[] = {
        [STW_VERIFY_Q] = &d->q,       [STW_VERIFY_K] = &d->k,         [STW_VERIFY_V] = &d->v,
        [STW_VERIFY_OUT] = &d->out,   [STW_VERIFY_DOUT] = &d->dout,   [STW_VERIFY_LSE] = &d->lse,
        [STW_VERIFY_DLSE] = &d->dlse, [STW_VERIFY_DELTA] = &d->delta, [STW_VERIFY_DQ] = &d->dq,
        [STW_VERIFY_DK] = &d->dk,     [STW_VERIFY_DV] = &d->dv};
    const stw_attn_strides *s = strides[tensor];
    int key_side =
        tensor == STW_VERIFY_K || tensor == STW_VERIFY_V || tensor == STW_VERIFY_DK || tensor == STW_VERIFY_DV;
    int lse_like = tensor == STW_VERIFY_LSE || tensor == STW_VERIFY_DLSE || tensor == STW_VERIFY_DELTA;
    int packed = stw_attn_is_packed(d, key_side) && !(lse_like && s->batch != 0);
    int64_t first = packed ? (key_side ? c->kv : c->q)[b].first : 0;
    return (packed ? 0 : b * s->batch) + h * s->head + (first + row) * s->seq;
}

int64_t stw_verify_step(const stw_verify_case *c, stw_verify_tensor tensor) {
    const stw_attn_desc *d = &c->problem.desc;
    if (!(d->flags & STW_ATTN_HAS_DIM_STRIDES)) return 1;
    switch (tensor) {
    case STW_VERIFY_Q: return d->dim.q;
    case STW_VERIFY_K: return d->dim.k;
    case STW_VERIFY_V: return d->dim.v;
    case STW_VERIFY_OUT: return d->dim.out;
    case STW_VERIFY_DOUT: return d->dim.dout;
    default: return 1;
    }
}

#define LARGE_BYTES ((size_t)64 << 20) /* arenas from here on are filled by several threads */
#define SHARES_MAX  16

uint64_t stw_verify_random(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t x = seed * UINT64_C(0x9E3779B97F4A7C15) + stream * UINT64_C(0xD1B54A32D192ED03) + index;
    for (int round = 0; round < 2; ++round) { /* splitmix64 */
        x += UINT64_C(0x9E3779B97F4A7C15);
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        x ^= x >> 31;
    }
    return x;
}

/* Sum of twelve uniforms: mean 0, variance 1, exact in integers. */
double stw_verify_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    int64_t sum = 0;
    for (uint64_t part = 0; part < 3; ++part) {
        uint64_t bits = stw_verify_random(seed, stream, index * 3 + part);
        for (int i = 0; i < 4; ++i) sum += (int64_t)(bits >> (16 * i) & 0xFFFFu);
    }
    return (double)(sum - 6 * 65535) / 65536.0;
}

/* Of a bias of bytes: what lies below -1/2 hides its pair. */
static void put(stw_verify_case *c, stw_verify_tensor tensor, int64_t index, stw_dtype dtype, double value) {
    if (dtype == STW_U8)
        c->host[c->offset[tensor] + (size_t)index] = value < -0.5 ? 0 : (unsigned char)(1 + index % 255);
    else stw_store_f64(c->host + c->offset[tensor], index, dtype, value);
}

/* N(0,1) for an element of a tensor; f64 problems have digits below the 16 bits of the others. */
static double noise(const stw_verify_case *c, stw_verify_tensor tensor, int64_t index) {
    uint64_t seed = (uint64_t)c->problem.seed;
    double value = stw_verify_normal(seed, tensor, (uint64_t)index);
    if (c->problem.desc.dtype != STW_F64) return value;
    return value + ldexp((double)stw_verify_random(seed, STW_VERIFY_STATUS + 1 + tensor, (uint64_t)index), -80);
}

/* Of lse, dlse, delta, slopes, sink and what accumulates. */
static stw_dtype number_of(const stw_verify_case *c) { return stw_dtype_of_rows(c->problem.desc.dtype); }

static void allow(stw_verify_case *c, stw_verify_tensor tensor, int64_t index, int64_t count, size_t element) {
    if (c->rule)
        memset(c->rule + c->offset[tensor] + (size_t)index * element, STW_VERIFY_WRITE, (size_t)count * element);
}

/* The smallest subnormal of the type times 1 .. 2^bits - 1, either sign. */
static double subnormal(stw_dtype dtype, uint64_t bits) {
    double step = ldexp(1, dtype == STW_F16 ? -24 : dtype == STW_BF16 ? -133 : dtype == STW_F32 ? -149 : -1074);
    int64_t most = dtype == STW_F16    ? 1023
                   : dtype == STW_BF16 ? 127
                   : dtype == STW_F32  ? 8388607
                                       : (INT64_C(1) << 52) - 1;
    int64_t value = 1 + (int64_t)(bits >> 1) % most;
    return (bits & 1 ? -1.0 : 1.0) * step * (double)value;
}

/* About 2^-118 (f16: 2^-7, f32: 2^-100, f64: 2^-960), and at least 2^-6 of that. */
static double small(stw_dtype dtype, double value) {
    double least = 0x1p-6, size = fabs(value) < least ? least : fabs(value);
    return copysign(ldexp(size, dtype == STW_F16    ? -7
                                : dtype == STW_BF16 ? -118
                                : dtype == STW_F32  ? -100
                                                    : -960),
                    value);
}

int stw_verify_is_dead(const stw_verify_case *c, int64_t row) {
    return c->problem.data == STW_DATA_DEAD_ROWS && row % 2 == 1;
}

static double row_value(const stw_verify_case *c, stw_verify_tensor tensor, int64_t index, int64_t row, int64_t n) {
    const stw_problem *p = &c->problem;
    uint64_t seed = (uint64_t)p->seed;
    double value = noise(c, tensor, index);
    switch (p->data) {
    case STW_DATA_SD3: return 3 * value;
    case STW_DATA_HUGE: return 1000;
    case STW_DATA_ONEHOT: return tensor == STW_VERIFY_V ? (n == (row * 7) % p->desc.head_dim_v ? 1.0 : 0.0) : value;
    case STW_DATA_POSITIVE: return tensor == STW_VERIFY_DOUT ? fabs(value) : value;
    case STW_DATA_DENORMAL:
        if (tensor == STW_VERIFY_V || (tensor == STW_VERIFY_K && n % 4 == 0))
            return subnormal(p->desc.dtype, stw_verify_random(seed, tensor, (uint64_t)index));
        return value;
    case STW_DATA_DENORMAL_Q:
    case STW_DATA_DENORMAL_DOUT:
        if (p->data == STW_DATA_DENORMAL_Q ? tensor == STW_VERIFY_Q && row < 64 : tensor == STW_VERIFY_DOUT)
            return subnormal(p->desc.dtype, stw_verify_random(seed, tensor, (uint64_t)index));
        /* A large scale would leave one key a row, whose dS is 0: Q is divided by it. */
        return tensor == STW_VERIFY_Q ? value / fmax(1, fabs((double)p->desc.scale)) : value;
    case STW_DATA_SMALL: return tensor == STW_VERIFY_DOUT ? small(p->desc.dtype, value) : value;
    case STW_DATA_ZERO_LSE: return tensor == STW_VERIFY_Q && row % 2 == 0 ? 0 : value;
    case STW_DATA_DEAD_ROWS:
        if (tensor != STW_VERIFY_Q || !stw_verify_is_dead(c, row)) return value;
        return copysign(p->desc.dtype == STW_F16 ? 65504 : p->desc.dtype == STW_F64 ? 0x1.fep1023 : 0x1.fep127, value);
    default: return value;
    }
}

static void fill_row(stw_verify_case *c, stw_verify_tensor tensor, int64_t b, int64_t h, int64_t row, int64_t width) {
    int64_t at = stw_verify_row_index(c, tensor, b, h, row), step = stw_verify_step(c, tensor);
    for (int64_t n = 0; n < width; ++n, at += step)
        put(c, tensor, at, c->problem.desc.dtype, row_value(c, tensor, at, row, n));
}

/* Marks the keys of sequence b that some query sees; returns through seen[used]. */
static void mark_seen(const stw_verify_case *c, int64_t b, int64_t *first_out, int64_t *end_out) {
    int64_t first = c->kv[b].used, last = 0;
    for (int64_t i = 0; i < c->q[b].used; ++i) { /* the band moves with i: what is seen is contiguous */
        int64_t low, end;
        stw_verify_visible(c, b, i, &low, &end);
        if (low >= end) continue;
        first = low < first ? low : first;
        last = end > last ? end : last;
    }
    *first_out = first;
    *end_out = last;
}

/* A share of the heads of every sequence: what one thread fills. */
typedef struct share {
    stw_verify_case *c;
    int64_t first, step;
} share;

static int has(const share *s, int64_t b, int64_t heads, int64_t h) { return (b * heads + h) % s->step == s->first; }

static void fill_key_rows(const share *s, int64_t b) {
    const stw_attn_desc *d = &s->c->problem.desc;
    int64_t first, last;
    mark_seen(s->c, b, &first, &last);
    for (int64_t h = 0; h < d->heads_kv; ++h)
        for (int64_t j = first; j < last && has(s, b, d->heads_kv, h); ++j) {
            fill_row(s->c, STW_VERIFY_K, b, h, j, d->head_dim_qk);
            fill_row(s->c, STW_VERIFY_V, b, h, j, d->head_dim_v);
        }
}

static void fill_query_rows(const share *s, int64_t b) {
    stw_verify_case *c = s->c;
    const stw_attn_desc *d = &c->problem.desc;
    for (int64_t h = 0; h < d->heads_q; ++h)
        for (int64_t i = 0; i < c->q[b].used && has(s, b, d->heads_q, h); ++i) {
            int64_t low, end;
            stw_verify_visible(c, b, i, &low, &end);
            fill_row(c, STW_VERIFY_Q, b, h, i, d->head_dim_qk);
            if (low < end) fill_row(c, STW_VERIFY_DOUT, b, h, i, d->head_dim_v);
            if (!c->present[STW_VERIFY_DLSE]) continue;
            int64_t at = stw_verify_row_index(c, STW_VERIFY_DLSE, b, h, i);
            put(c, STW_VERIFY_DLSE, at, number_of(c),
                stw_verify_is_dead(c, i) ? (double)NAN : noise(c, STW_VERIFY_DLSE, at));
        }
}

static double bias_value(const stw_verify_case *c, int64_t index, int64_t i, int64_t j) {
    const stw_problem *p = &c->problem;
    int key = p->desc.bias.key != 0, query = p->desc.bias.query != 0;
    double value = noise(c, STW_VERIFY_BIAS, index);
    switch (p->data) {
    case STW_DATA_HUGE: return 1000;
    case STW_DATA_LOW_KEYS: return key && j % 3 == 1 ? -65504 : value;
    case STW_DATA_INF_KEYS: return (key && j % 3 == 1) || (query && i % 4 == 2) ? -INFINITY : value;
    case STW_DATA_ROW_65504: return query && i % 3 == 1 ? -65504 : value;
    case STW_DATA_ROW_1E9: return query && i % 3 == 1 ? -1e9 : value;
    default: return value;
    }
}

/* Entries of visible pairs only: masked ones may hold anything. */
static void fill_bias(const share *part, int64_t b) {
    stw_verify_case *c = part->c;
    const stw_attn_desc *d = &c->problem.desc;
    const stw_bias_strides *s = &d->bias;
    for (int64_t h = 0; h < d->heads_q; ++h)
        for (int64_t i = 0; i < c->q[b].used && has(part, b, d->heads_q, h); ++i) {
            int64_t low, end;
            stw_verify_visible(c, b, i, &low, &end);
            for (int64_t j = low; j < end; ++j) {
                int64_t at = b * s->batch + h * s->head + i * s->query + j * s->key;
                put(c, STW_VERIFY_BIAS, at, d->bias_dtype, bias_value(c, at, i, j));
            }
        }
}

static void fill_per_head(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    int64_t batches = d->alibi_stride_batch ? d->batch : 1;
    for (int64_t h = 0; h < d->heads_q; ++h) {
        for (int64_t b = 0; c->present[STW_VERIFY_ALIBI] && b < batches; ++b)
            put(c, STW_VERIFY_ALIBI, b * d->alibi_stride_batch + h, number_of(c),
                0.25 / (double)(1 + h) + 0.01 * (double)b);
        if (!c->present[STW_VERIFY_SINK]) continue;
        double sink = noise(c, STW_VERIFY_SINK, h);
        put(c, STW_VERIFY_SINK, h, number_of(c), h == 2 ? -INFINITY : sink); /* -inf: this head has none */
    }
}

static void fill_arrays(stw_verify_case *c) {
    const stw_problem *p = &c->problem;
    int64_t batch = p->desc.batch;
    int32_t *narrow[4];
    int64_t *wide[2];
    for (int i = 0; i < 4; ++i) narrow[i] = (int32_t *)(void *)(c->host + c->offset[STW_VERIFY_CU_Q + i]);
    for (int i = 0; i < 2; ++i) wide[i] = (int64_t *)(void *)(c->host + c->offset[STW_VERIFY_Q_OFFSETS + i]);
    for (int side = 0; side < 2; ++side) {
        const stw_verify_span *spans = side ? c->kv : c->q;
        for (int64_t b = 0; b < batch; ++b) {
            if (c->present[STW_VERIFY_CU_Q + side]) narrow[side][b] = (int32_t)spans[b].first;
            if (c->present[STW_VERIFY_USED_Q + side]) narrow[2 + side][b] = (int32_t)spans[b].used;
            if (c->present[STW_VERIFY_Q_OFFSETS + side]) wide[side][b] = spans[b].offset;
        }
        if (c->present[STW_VERIFY_CU_Q + side])
            narrow[side][batch] = batch ? (int32_t)(spans[batch - 1].first + spans[batch - 1].rows) : 0;
    }
    if (!p->by_pointer) return;
    memcpy(c->host + c->offset[STW_VERIFY_SEED], &p->dropout_seed, 8);
    memcpy(c->host + c->offset[STW_VERIFY_OFFSET], &p->dropout_offset, 8);
}

/* Gradient rows of every sequence may be written; what is added to starts as random numbers. Sums of 16 bits, which the
 * library refuses, have no room for them. */
static void fill_gradient(stw_verify_case *c, stw_verify_tensor tensor, stw_dtype dtype, int64_t width, uint32_t bit) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_dtype type = dtype ? dtype : d->dtype;
    int key_side = tensor != STW_VERIFY_DQ, adds = (d->accumulate & bit) && type == number_of(c);
    int64_t heads = key_side ? d->heads_kv : d->heads_q;
    size_t element = stw_dtype_size(type);
    for (int64_t b = 0; c->present[tensor] && b < d->batch; ++b) {
        const stw_verify_span *span = &(key_side ? c->kv : c->q)[b];
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t r = 0; r < span->rows; ++r) {
                int64_t at = stw_verify_row_index(c, tensor, b, h, r);
                for (int64_t n = 0; adds && n < width; ++n)
                    put(c, tensor, at + n, number_of(c), noise(c, tensor, at + n));
                if (!adds || r < span->used) allow(c, tensor, at, width, element);
            }
    }
}

static void fill_bias_gradient(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_bias_strides *s = &d->dbias;
    const stw_dtype type = d->dbias_dtype ? d->dbias_dtype : d->bias_dtype;
    int adds = (d->accumulate & STW_OUT_DBIAS) && type == number_of(c);
    size_t element = stw_dtype_size(type);
    if (!adds && !c->rule) return;
    for (int64_t b = 0; b < (s->batch ? d->batch : d->batch > 0); ++b)
        for (int64_t h = 0; h < (s->head ? d->heads_q : 1); ++h)
            for (int64_t i = 0; i < (s->query ? d->max_seq_q : d->max_seq_q > 0); ++i)
                for (int64_t j = 0; j < (s->key ? d->max_seq_kv : d->max_seq_kv > 0); ++j) {
                    int64_t at = b * s->batch + h * s->head + i * s->query + j * s->key;
                    allow(c, STW_VERIFY_DBIAS, at, 1, element);
                    if (adds) put(c, STW_VERIFY_DBIAS, at, number_of(c), noise(c, STW_VERIFY_DBIAS, at));
                }
}

static void fill_outputs(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    fill_gradient(c, STW_VERIFY_DQ, d->dq_dtype, d->head_dim_qk, STW_OUT_DQ);
    fill_gradient(c, STW_VERIFY_DK, d->dk_dtype, d->head_dim_qk, STW_OUT_DK);
    fill_gradient(c, STW_VERIFY_DV, d->dv_dtype, d->head_dim_v, STW_OUT_DV);
    if (c->present[STW_VERIFY_DBIAS]) fill_bias_gradient(c);
    if (c->present[STW_VERIFY_STATUS]) allow(c, STW_VERIFY_STATUS, 0, 1, 4);
    for (int64_t h = 0; c->present[STW_VERIFY_DSINK] && h < d->heads_q; ++h) {
        allow(c, STW_VERIFY_DSINK, h, 1, stw_dtype_size(number_of(c)));
        if (d->accumulate & STW_OUT_DSINK) put(c, STW_VERIFY_DSINK, h, number_of(c), noise(c, STW_VERIFY_DSINK, h));
    }
    for (int64_t b = 0; (d->flags & STW_ATTN_WRITE_DELTA) && b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t r = 0; r < c->q[b].rows; ++r)
                allow(c, STW_VERIFY_DELTA, stw_verify_row_index(c, STW_VERIFY_DELTA, b, h, r), 1,
                      stw_dtype_size(number_of(c)));
}

static void *fill_share(void *user) {
    const share *s = user;
    for (int64_t b = 0; b < s->c->problem.desc.batch; ++b) {
        fill_key_rows(s, b);
        fill_query_rows(s, b);
        if (s->c->present[STW_VERIFY_BIAS]) fill_bias(s, b);
    }
    return NULL;
}

/* The generator counts, so that the numbers do not depend on who writes them. A bias that is broadcast over
 * heads or batch is written by several threads: the same bytes, but a race all the same, so by one then. */
static int64_t share_count(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int shared_bias = c->present[STW_VERIFY_BIAS] && ((!d->bias.batch && d->batch > 1) || !d->bias.head);
    if (c->bytes < LARGE_BYTES || shared_bias || cores < 2) return 1;
    return cores < SHARES_MAX ? cores : SHARES_MAX;
}

static void fill_all_shares(stw_verify_case *c) {
    pthread_t threads[SHARES_MAX];
    share shares[SHARES_MAX];
    int64_t count = share_count(c), started = 1;
    for (int64_t i = 0; i < count; ++i) shares[i] = (share){c, i, count};
    while (started < count && !pthread_create(&threads[started], NULL, fill_share, &shares[started])) ++started;
    fill_share(&shares[0]);
    for (int64_t i = started; i < count; ++i) fill_share(&shares[i]);
    for (int64_t i = 1; i < started; ++i) pthread_join(threads[i], NULL);
}

void stw_verify_fill(stw_verify_case *c) {
    fill_all_shares(c);
    fill_per_head(c);
    fill_arrays(c);
    stw_verify_fill_masks(c);
    fill_outputs(c);
}

void stw_verify_fill_delta(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].used; ++i) {
                int64_t low, end, out = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                int64_t dout = stw_verify_row_index(c, STW_VERIFY_DOUT, b, h, i);
                double sum = 0;
                stw_verify_visible(c, b, i, &low, &end);
                for (int64_t n = 0; low < end && n < d->head_dim_v; ++n)
                    sum += stw_load_f64(c->host + c->offset[STW_VERIFY_OUT],
                                        out + n * stw_verify_step(c, STW_VERIFY_OUT), d->dtype) *
                           stw_load_f64(c->host + c->offset[STW_VERIFY_DOUT],
                                        dout + n * stw_verify_step(c, STW_VERIFY_DOUT), d->dtype);
                put(c, STW_VERIFY_DELTA, stw_verify_row_index(c, STW_VERIFY_DELTA, b, h, i), number_of(c), sum);
            }
}
