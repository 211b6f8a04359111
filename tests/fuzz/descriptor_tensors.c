/* SPDX-License-Identifier: MIT
 *
 * The memory of descriptor_tensors.h: sizes from extents and strides as the header documents them. */
#include "descriptor_tensors.h"

#include "common/attn_packed.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONED 1
#endif
#endif
#ifdef POISONED
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { GUARD = 512, PATTERN = 0xA5 };

void *regions_add(regions *all, double bytes, unsigned skew_bytes, int output) {
    /* bytes below 0: a negative stride of ALiBi's slopes, whose memory would end at the pointer */
    if (bytes < 0 || all->total > MEMORY_CAP || all->total + bytes > MEMORY_CAP || all->count == REGION_MAX) {
        all->total = MEMORY_CAP + 1;
        return NULL;
    }
    region *r = &all->list[all->count++];
    r->bytes = (size_t)bytes;
    r->output = output;
    r->block_bytes = (GUARD + skew_bytes + r->bytes + GUARD + 255) / 256 * 256;
    r->block = aligned_alloc(256, r->block_bytes);
    r->kept = malloc(r->bytes ? r->bytes : 1);
    if (!r->block || !r->kept) abort();
    memset(r->block, PATTERN, r->block_bytes);
    r->data = r->block + GUARD + skew_bytes;
    all->total += r->bytes + 2 * GUARD;
    ASAN_POISON_MEMORY_REGION(r->block, (size_t)(r->data - r->block));
    ASAN_POISON_MEMORY_REGION(r->data + r->bytes, r->block_bytes - (size_t)(r->data - r->block) - r->bytes);
    return r->data;
}

void regions_keep(regions *all) {
    for (int n = 0; n < all->count; ++n) memcpy(all->list[n].kept, all->list[n].data, all->list[n].bytes);
}

void regions_check(regions *all, int refused) {
    for (int n = 0; n < all->count; ++n) {
        region *r = &all->list[n];
        ASAN_UNPOISON_MEMORY_REGION(r->block, r->block_bytes);
        const size_t front = (size_t)(r->data - r->block);
        for (size_t i = 0; i < front; ++i)
            FUZZ_CHECK(r->block[i] == PATTERN, "tensor %d: byte %zu before it was written", n, front - i);
        for (size_t i = front + r->bytes; i < r->block_bytes; ++i)
            FUZZ_CHECK(r->block[i] == PATTERN, "tensor %d: byte %zu behind it was written", n, i - front - r->bytes);
        if (!r->output || (refused && r->output == 1))
            FUZZ_CHECK(!memcmp(r->data, r->kept, r->bytes), "tensor %d was written", n);
        ASAN_POISON_MEMORY_REGION(r->block, front);
        ASAN_POISON_MEMORY_REGION(r->data + r->bytes, r->block_bytes - front - r->bytes);
    }
}

void regions_free(regions *all) {
    for (int n = 0; n < all->count; ++n) {
        ASAN_UNPOISON_MEMORY_REGION(all->list[n].block, all->list[n].block_bytes);
        free(all->list[n].block);
        free(all->list[n].kept);
    }
    memset(all, 0, sizeof *all);
}

static size_t size_of(stw_dtype dtype) { return dtype == STW_F64 ? 8 : dtype == STW_F32 ? 4 : 2; }

/* Elements from the first to the last, both included. */
static double span(const double *extents, const int64_t *strides, int count) {
    double last = 0;
    for (int i = 0; i < count; ++i) {
        if (extents[i] <= 0) return 0;
        last += (extents[i] - 1) * (double)strides[i];
    }
    return last + 1;
}

/* Of lse, dlse, delta, slopes, sink and dsink, and of gradients wider than their input. */
static stw_dtype number_of(const stw_attn_desc *d) { return d->dtype == STW_F64 ? STW_F64 : STW_F32; }

typedef struct binder {
    regions *all;
    const stw_attn_desc *d;
    reader content;
    unsigned skew;
} binder;

static void fill(binder *b, void *at) {
    if (!at) return;
    region *r = &b->all->list[b->all->count - 1];
    const reader start = b->content;
    for (size_t i = 0; i < r->bytes; ++i) {
        if (b->content.at == b->content.end) b->content = start;
        r->data[i] = b->content.at < b->content.end ? *b->content.at++ : 0x3C;
    }
    b->content = start;
}

static void *tensor(binder *b, stw_attn_strides s, int kv, int64_t dim, stw_dtype dtype, int output) {
    const stw_attn_desc *d = b->d;
    const int64_t total = kv ? d->total_kv : d->total_q;
    const int through =
        stw_attn_is_packed(d, kv) && (dim != 0 || s.batch == 0); /* dim 0: the lse family, which has none */
    const double extents[4] = {through ? 1 : (double)d->batch, (double)(kv ? d->heads_kv : d->heads_q),
                               (double)(through ? total
                                        : kv    ? d->max_seq_kv
                                                : d->max_seq_q),
                               (double)(dim ? dim : 1)};
    const int64_t strides[4] = {through ? 0 : s.batch, s.head, s.seq, 1};
    const double bytes = span(extents, strides, 4) * (double)size_of(dtype);
    void *at = regions_add(b->all, bytes, b->skew * (unsigned)size_of(dtype), output);
    fill(b, at);
    return at;
}

static void *bias(binder *b, stw_bias_strides s, stw_dtype dtype, int output) {
    const double extents[4] = {(double)b->d->batch, (double)b->d->heads_q, (double)b->d->max_seq_q,
                               (double)b->d->max_seq_kv};
    const int64_t strides[4] = {s.batch, s.head, s.query, s.key};
    double bytes = span(extents, strides, 4);
    if (output) { /* exists, in its own shape, even when another extent is 0 */
        double own[4];
        for (int i = 0; i < 4; ++i) own[i] = strides[i] ? extents[i] : 1;
        bytes = span(own, strides, 4);
    }
    void *at = regions_add(b->all, bytes * (double)size_of(dtype), b->skew * (unsigned)size_of(dtype), output);
    fill(b, at);
    return at;
}

/* Any bounds: those that are out of range are refused. */
static void *intervals(binder *b) {
    const stw_attn_desc *d = b->d;
    static const double bounds[] = {0, 1, 2, 2, 3, 4};
    const int through = stw_attn_is_packed(d, 1) && d->intervals.batch == 0;
    const double extents[4] = {through ? 1 : (double)d->batch, (double)d->heads_kv,
                               (double)(through ? d->total_kv : d->max_seq_kv), bounds[d->interval_form]};
    const int64_t strides[4] = {d->intervals.batch, d->intervals.head, d->intervals.key, d->intervals.bound};
    int32_t *at = regions_add(b->all, span(extents, strides, 4) * sizeof *at, b->skew * sizeof *at, 0);
    const reader start = b->content;
    for (size_t n = 0; at && n < b->all->list[b->all->count - 1].bytes / sizeof *at; ++n) {
        if (b->content.at == b->content.end) b->content = start;
        at[n] = b->content.at < b->content.end ? *b->content.at++ % (1 + (int32_t)d->max_seq_q) : 0;
    }
    b->content = start;
    return at;
}

static void *block_mask(binder *b) {
    const stw_attn_desc *d = b->d;
    const double extents[4] = {(double)d->batch, (double)d->heads_q, (double)((d->max_seq_q + 127) / 128),
                               (double)((d->max_seq_kv + 127) / 128)};
    const int64_t strides[4] = {d->block_mask.batch, d->block_mask.head, d->block_mask.query, d->block_mask.key};
    void *at = regions_add(b->all, span(extents, strides, 4), b->skew, 0);
    fill(b, at);
    return at;
}

static void *numbers(binder *b, double count, int output) {
    const size_t size = size_of(number_of(b->d));
    return regions_add(b->all, count * (double)size, b->skew * (unsigned)size, output);
}

static stw_dtype or_input(stw_dtype dtype, stw_dtype input) { return dtype ? dtype : input; }

static void bind_gradients(binder *b, stw_attn_args *a) {
    const stw_attn_desc *d = b->d;
    const uint32_t want = d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (want & STW_OUT_DQ) a->dq = tensor(b, d->dq, 0, d->head_dim_qk, or_input(d->dq_dtype, d->dtype), 1);
    if (want & STW_OUT_DK) a->dk = tensor(b, d->dk, 1, d->head_dim_qk, or_input(d->dk_dtype, d->dtype), 1);
    if (want & STW_OUT_DV) a->dv = tensor(b, d->dv, 1, d->head_dim_v, or_input(d->dv_dtype, d->dtype), 1);
    if (want & STW_OUT_DBIAS) a->dbias = bias(b, d->dbias, or_input(d->dbias_dtype, d->bias_dtype), 1);
    if (want & STW_OUT_DSINK) a->dsink = numbers(b, (double)d->heads_q, 1);
    a->dout = tensor(b, d->dout, 0, d->head_dim_v, d->dtype, 0);
    if (d->flags & STW_ATTN_DLSE) a->dlse = tensor(b, d->dlse, 0, 0, number_of(d), 0);
    if (d->flags & (STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA))
        a->delta = tensor(b, d->delta, 0, 0, number_of(d), d->flags & STW_ATTN_WRITE_DELTA ? 1 : 0);
}

/* Legal starts and lengths: full sequences as long as the total lasts, then empty ones. */
static void bind_lengths(binder *b, stw_attn_args *a) {
    const stw_attn_desc *d = b->d;
    for (int kv = 0; kv < 2; ++kv) {
        const int64_t total = kv ? d->total_kv : d->total_q, longest = kv ? d->max_seq_kv : d->max_seq_q;
        int32_t *cu =
            stw_attn_is_packed(d, kv) ? regions_add(b->all, ((double)d->batch + 1) * 4, b->skew * 4, 0) : NULL;
        int32_t *used =
            d->flags & STW_ATTN_HAS_USED_LENGTHS ? regions_add(b->all, (double)d->batch * 4, b->skew * 4, 0) : NULL;
        if (b->all->total > MEMORY_CAP) return;
        if (cu) cu[0] = 0;
        for (int64_t n = 0; n < d->batch; ++n) {
            const int64_t left = cu ? total - cu[n] : longest, length = left < longest ? left : longest;
            if (cu) cu[n + 1] = (int32_t)(cu[n] + length);
            if (used)
                used[n] =
                    (int32_t)(length * ((n + b->skew) % 3) / 2 < length ? length * ((n + b->skew) % 3) / 2 : length);
        }
        *(kv ? &a->cu_seqlens_kv : &a->cu_seqlens_q) = cu;
        *(kv ? &a->used_kv : &a->used_q) = used;
    }
}

int regions_bind(regions *all, const stw_attn_desc *d, int forward, reader content, unsigned skew, stw_attn_args *a) {
    binder b = {all, d, content, skew};
    *a = STW_INIT(stw_attn_args);
    a->q = tensor(&b, d->q, 0, d->head_dim_qk, d->dtype, 0);
    a->k = tensor(&b, d->k, 1, d->head_dim_qk, d->dtype, 0);
    a->v = tensor(&b, d->v, 1, d->head_dim_v, d->dtype, 0);
    a->out = tensor(&b, d->out, 0, d->head_dim_v, d->dtype, forward);
    a->lse = tensor(&b, d->lse, 0, 0, number_of(d), forward);
    if (!forward) bind_gradients(&b, a);
    if (d->bias_dtype) a->bias = bias(&b, d->bias, d->bias_dtype, 0);
    if (d->flags & STW_ATTN_ALIBI) {
        const double rows = d->batch > 0 ? (double)(d->batch - 1) : 0;
        a->alibi_slopes = numbers(&b, rows * (double)d->alibi_stride_batch + (double)d->heads_q, 0);
        fill(&b, (void *)(uintptr_t)a->alibi_slopes);
    }
    if (d->flags & STW_ATTN_SINK) {
        a->sink = numbers(&b, (double)d->heads_q, 0);
        fill(&b, (void *)(uintptr_t)a->sink);
    }
    if (d->interval_form) a->intervals = intervals(&b);
    if (d->flags & STW_ATTN_BLOCK_MASK) a->block_mask = block_mask(&b);
    bind_lengths(&b, a);
    a->status_out = regions_add(all, 4, skew * 4, 2);
    return all->total <= MEMORY_CAP;
}
