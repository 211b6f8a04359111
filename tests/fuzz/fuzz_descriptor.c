/* SPDX-License-Identifier: MIT
 *
 * Descriptors: bytes become a descriptor, mostly small and near what is legal. A plan that is refused says
 * why and leaves plan_out alone; what a plan accepts, the run calls accept, with it and without, inside the
 * memory the descriptor implies; values in memory that are out of range are refused with nothing written.
 * CPU, one thread. */
#include "descriptor_tensors.h"

#include <math.h>

static stw_context *context;

static void open_context(void) {
    if (context) return;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    FUZZ_CHECK(!stw_context_create(&opts, &context), "%s", stw_last_error());
}

static double read_real(reader *r) {
    static const double typical[] = {0, 0.1, 0.5, 1, 2, 1e-30, 1e30, -1, INFINITY, NAN, 0.999, 50, 0, 0, 0, 0};
    const uint8_t byte = read_byte(r);
    if (byte < 240) return typical[byte % 16];
    const uint64_t word = read_word(r);
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static uint32_t read_mask(reader *r, uint32_t legal) {
    const uint32_t low = read_byte(r), word = low | (uint32_t)read_byte(r) << 8;
    return read_byte(r) < 250 ? word & legal : word << 7;
}

static void read_sizes(reader *r, stw_attn_desc *d) {
    static const int dims[] = {1, 2, 3, 5, 8, 16, 17, 24, 32, 33, 40, 64, 80, 96, 128, 256};
    d->dtype = (stw_dtype)read_number(r, 1, 4);
    d->batch = read_number(r, 0, 4);
    d->heads_kv = read_number(r, 1, 3);
    d->heads_q = (int64_t)((uint64_t)d->heads_kv * (1 + read_byte(r) % 3u));
    if (read_byte(r) > 250) d->heads_q = read_number(r, 0, 20);
    d->head_dim_qk = dims[read_byte(r) % 16];
    d->head_dim_v = dims[read_byte(r) % 16];
    if (read_byte(r) > 250) d->head_dim_v = read_number(r, 0, 256);
    d->max_seq_q = read_number(r, 0, 80);
    d->max_seq_kv = read_number(r, 0, 140);
    const uint8_t packed = read_byte(r);
    if (packed & 1) d->total_q = read_number(r, 1, 200);
    if (packed & 2) d->total_kv = read_number(r, 1, 200);
}

static void read_features(reader *r, stw_attn_desc *d) {
    d->bias_dtype = (stw_dtype)(read_byte(r) % 3 ? 0 : read_number(r, 0, 6));
    const stw_dtype wide = d->dtype == STW_F64 ? STW_F64 : STW_F32;
    if (d->bias_dtype && d->bias_dtype != d->dtype && d->bias_dtype != STW_U8 && read_byte(r) < 250)
        d->bias_dtype = wide;
    d->flags = read_mask(r, 0x1fff);
    d->outputs = read_mask(r, 0x1f);
    d->accumulate = read_mask(r, 0x0f) & (read_byte(r) % 2 ? 0 : d->outputs);
    const uint8_t grads = read_byte(r);
    if (grads & 1) d->dq_dtype = wide;
    if (grads & 2) d->dk_dtype = wide;
    if (grads & 4) d->dv_dtype = wide;
    if (grads & 8 && d->bias_dtype) d->dbias_dtype = (stw_dtype)read_number(r, 0, 4);
    d->mask = (stw_attn_mask)read_number(r, 0, 3);
    if (d->flags & STW_ATTN_HAS_WINDOW_LEFT) d->window_left = read_number(r, 0, 40);
    if (d->flags & STW_ATTN_HAS_WINDOW_RIGHT) d->window_right = read_number(r, 0, 40);
    if (d->flags & STW_ATTN_HAS_SHIFT) d->diagonal_shift = read_number(r, -60, 120);
    if (d->flags & STW_ATTN_HAS_SCALE) d->scale = (float)read_real(r);
    d->softcap = (float)read_real(r);
    d->dropout_p = read_byte(r) % 3 ? 0 : read_real(r);
    d->dropout_map = (stw_dropout_map)read_number(r, 0, 3);
    d->deterministic = (stw_deterministic)read_number(r, 0, 3);
    if (read_byte(r) % 4 == 0) (void)read_number(r, 0, 65); /* was a field: the seeds keep their meaning */
    if (read_byte(r) % 8 == 0) d->alibi_stride_batch = read_number(r, 0, 20);
    if (read_byte(r) % 8 == 0) {
        d->batch_offset = read_number(r, 0, 5);
        d->head_offset = read_number(r, 0, 5);
        d->heads_total = read_number(r, 0, 30);
    }
}

/* A layout, then up to seven strides changed. */
static void read_strides(reader *r, stw_attn_desc *d) {
    const uint8_t layout = read_byte(r);
    if (layout % 4 == 0) (void)stw_layout_bshd(d);
    if (layout % 4 == 1) (void)stw_layout_bhsd(d);
    if (layout % 4 == 2) (void)stw_layout_thd(d);
    if (layout & 8) d->bias.head = d->dbias.head = 0;
    if (layout & 16) d->bias.query = d->dbias.query = 0;
    if (layout & 32) d->bias.batch = d->dbias.batch = 0;
    if (layout & 64) d->bias.key = d->dbias.key = 0;
    int64_t *strides = &d->q.batch; /* q .. delta, bias, dbias: 41 in a row */
    const size_t count = (offsetof(stw_attn_desc, alibi_stride_batch) - offsetof(stw_attn_desc, q)) / 8;
    for (int n = read_byte(r) % 8; n > 0; --n) {
        int64_t *stride = strides + read_byte(r) % count;
        const uint8_t how = read_byte(r);
        if (how < 100) *stride = (int64_t)((uint64_t)*stride + how % 16);
        else if (how < 180) *stride = (int64_t)((uint64_t)*stride * (how % 4));
        else *stride = read_number(r, 0, 64);
    }
}

/* Intervals and a block mask, broadcast or not. */
static void read_masks(reader *r, stw_attn_desc *d) {
    d->interval_form = (stw_attn_intervals)read_number(r, 0, 7);
    const uint8_t how = read_byte(r);
    if (how & 1) d->flags |= STW_ATTN_BLOCK_MASK;
    stw_attn_desc filled = *d;
    if (stw_layout_bshd(&filled)) return; /* sizes that a plan refuses too */
    d->intervals = filled.intervals;
    d->block_mask = filled.block_mask;
    if (how & 2) d->intervals.head = d->intervals.batch;
    if (how & 4) d->block_mask.head = read_number(r, 0, 9);
    if (how & 8) d->intervals.batch = 0;
    if (how & 16) d->intervals.bound = read_number(r, 0, 3);
    if (how & 32) d->intervals.key = read_number(r, 0, 6);
}

/* Rows times keys times dims of everything: what a call may cost. */
static int too_large(const stw_attn_desc *d) {
    const double pairs =
        ((double)d->batch + 1) * ((double)d->heads_q + 1) * ((double)d->max_seq_q + 1) * ((double)d->max_seq_kv + 1);
    return pairs * (double)(d->head_dim_qk + d->head_dim_v) > 2e7;
}

static void read_values(reader *r, stw_attn_args *a, const stw_attn_desc *d, int *wild) {
    a->dropout_seed = read_word(r);
    a->dropout_offset = read_word(r);
    a->q_offset = read_number(r, -20, 40);
    a->k_offset = read_number(r, -20, 40);
    const int64_t limit = INT64_C(1) << 40;
    *wild = a->q_offset > limit || a->q_offset < -limit || a->k_offset > limit || a->k_offset < -limit;
    *wild |= d->interval_form != STW_INTERVALS_NONE; /* bounds may lie beyond a short sequence */
    const int32_t *const lists[4] = {a->cu_seqlens_q, a->cu_seqlens_kv, a->used_q, a->used_kv};
    for (int n = 0; n < 4; ++n) {
        if (!lists[n] || !d->batch || read_byte(r) % 8) continue;
        int32_t *entry = (int32_t *)(uintptr_t)lists[n] + read_byte(r) % d->batch;
        *entry = (int32_t)read_number(r, -2, 200);
        *wild = 1;
    }
}

typedef stw_status (*run_fn)(const stw_plan *, const stw_attn_args *, void *, size_t, stw_stream);
typedef stw_status (*once_fn)(stw_context *, const stw_attn_desc *, const stw_attn_args *, void *, size_t, stw_stream);

/* What stw_attn_*_once asks for: no less than the plan. */
static size_t once_workspace(const stw_attn_desc *d, int forward, size_t plans) {
    size_t size = 0;
    const stw_status status = (forward ? stw_attn_fwd_once_workspace : stw_attn_bwd_once_workspace)(context, d, &size);
    FUZZ_CHECK(!status, "the plan was accepted: %s", stw_last_error());
    FUZZ_CHECK(size >= plans, "a workspace of %zu bytes without a plan, %zu with one", size, plans);
    return size;
}

static void run(const stw_plan *plan, const stw_attn_desc *d, int forward, reader r) {
    regions all = {{{0}}, 0, 0};
    stw_attn_args args;
    int wild = 0;
    const reader content = r;
    const unsigned skew = read_byte(&r) % 5;
    const size_t workspace_size = stw_plan_workspace_size(plan), once_size = once_workspace(d, forward, workspace_size);
    if (!too_large(d) && regions_bind(&all, d, forward, content, skew, &args)) {
        read_values(&r, &args, d, &wild);
        void *workspace = regions_add(&all, (double)workspace_size, 1, 2);
        void *larger = regions_add(&all, (double)once_size, 1, 2);
        void *mask = regions_add(
            &all, (double)d->batch * (double)d->heads_q * (double)d->max_seq_q * (double)d->max_seq_kv, 0, 1);
        if (workspace && larger && mask) {
            regions_keep(&all);
            const run_fn call = forward ? stw_attn_fwd : stw_attn_bwd;
            stw_status status = call(plan, &args, workspace, workspace_size, NULL);
            FUZZ_CHECK(!status || (wild && status == STW_E_INVALID), "the plan was accepted: %s", stw_last_error());
            regions_check(&all, status != STW_OK);
            const once_fn once = forward ? stw_attn_fwd_once : stw_attn_bwd_once;
            FUZZ_CHECK(once(context, d, &args, larger, once_size, NULL) == status, "once: %s", stw_last_error());
            regions_check(&all, status != STW_OK);
            const stw_status masked = stw_dropout_mask(plan, &args, mask, NULL);
            if (d->interval_form == STW_INTERVALS_NONE) FUZZ_CHECK(masked == status, "mask: %s", stw_last_error());
            regions_check(&all, 0);
        }
    }
    regions_free(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    open_context();
    reader r = {data, data + size};
    struct {
        stw_attn_desc desc;
        uint8_t tail[16];
    } given;
    memset(&given, 0, sizeof given);
    stw_attn_desc *d = &given.desc;
    *d = STW_INIT(stw_attn_desc);
    read_sizes(&r, d);
    read_features(&r, d);
    read_strides(&r, d);
    const uint8_t version = read_byte(&r);
    if (version % 8 == 5) read_masks(&r, d);
    if (version > 250) d->struct_size = sizeof given - version % 17;
    if (version == 253) given.tail[0] = 1;
    for (int forward = 0; forward < 2; ++forward) {
        stw_plan *const untouched = (stw_plan *)(uintptr_t)0xA5A5;
        stw_plan *plan = untouched;
        stw_status status = forward ? stw_attn_fwd_plan(context, d, &plan) : stw_attn_bwd_plan(context, d, &plan);
        if (status) {
            FUZZ_CHECK(plan == untouched, "plan_out was written");
            FUZZ_CHECK(strstr(stw_last_error(), forward ? "attn_fwd" : "attn_bwd"), "%s", stw_last_error());
            FUZZ_CHECK(status == STW_E_INVALID || status == STW_E_UNSUPPORTED, "%s", stw_last_error());
            continue;
        }
        char text[512];
        FUZZ_CHECK(!stw_plan_describe(plan, text, sizeof text, NULL), "%s", stw_last_error());
        run(plan, d, forward, r);
        stw_plan_destroy(plan);
    }
    return 0;
}
