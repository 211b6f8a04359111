/* SPDX-License-Identifier: MIT
 *
 * One small problem for each feature: see setups.h. */
#include "tests/reference/setups.h"

static const int32_t starts_q[] = {1, 6, 10}, starts_kv[] = {2, 5, 12};
static const int32_t used_q[] = {3, 4}, used_kv[] = {2, 7};
static const int32_t used_q_dense[] = {5, 3}, used_kv_dense[] = {4, 7};
static const int32_t starts_q_empty[] = {0, 4, 4, 7}, starts_kv_empty[] = {0, 0, 5, 8};
static const int64_t offsets_q[] = {3, -2}, offsets_kv[] = {1, 4};
static const uint64_t dropout_seed = UINT64_C(0x123456789ABCDEF0), dropout_offset = UINT64_C(0x300000007);

static void set_plain(fixture *f) { (void)f; }

static void set_bhsd(fixture *f) {
    f->layout = FIXTURE_BHSD;
    f->lse_by_head_last = 1;
    f->desc.head_dim_qk = 5;
    f->desc.head_dim_v = 1;
}

static void set_head_dim_one(fixture *f) {
    f->desc.head_dim_qk = 1;
    f->desc.head_dim_v = 3;
}

static void set_scale(fixture *f) {
    f->desc.flags |= STW_ATTN_HAS_SCALE;
    f->desc.scale = -0.375f;
}

static void set_scale_zero(fixture *f) { f->desc.flags |= STW_ATTN_HAS_SCALE; }

static void set_mqa(fixture *f) { f->desc.heads_kv = 1; }

static void set_top_left(fixture *f) { f->desc.mask = STW_MASK_CAUSAL_TOP_LEFT; }

static void set_bottom_right(fixture *f) { f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT; }

/* more queries than keys: the first rows see nothing */
static void set_bottom_right_short(fixture *f) {
    f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f->desc.max_seq_q = 6;
    f->desc.max_seq_kv = 3;
    f->desc.flags |= STW_ATTN_DLSE;
}

static void set_window(fixture *f) {
    f->desc.flags |= STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT;
    f->desc.window_left = 2;
    f->desc.window_right = 1;
}

static void set_window_right(fixture *f) { f->desc.flags |= STW_ATTN_HAS_WINDOW_RIGHT; /* of 0 */ }

static void set_window_causal(fixture *f) {
    f->desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    f->desc.flags |= STW_ATTN_HAS_WINDOW_LEFT;
    f->desc.window_left = 1;
}

static void set_shift(fixture *f) {
    f->desc.mask = STW_MASK_CAUSAL_TOP_LEFT;
    f->desc.flags |= STW_ATTN_HAS_SHIFT;
    f->desc.diagonal_shift = -2;
}

static void set_bias(fixture *f) { f->desc.bias_dtype = STW_F32; }

static void set_bias_batch(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 1; }

static void set_bias_head(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 2; }

static void set_bias_query(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 4; }

static void set_bias_key(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 8; }

static void set_bias_alibi_like(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 5; }

static void set_bias_scalar(fixture *f) { f->desc.bias_dtype = STW_F32, f->bias_broadcast = 15; }

static void set_bytes(fixture *f) { f->desc.bias_dtype = STW_U8; }

static void set_bytes_keys(fixture *f) {
    f->desc.bias_dtype = STW_U8, f->bias_broadcast = 6;
    f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
}

static void set_alibi(fixture *f) { f->desc.flags |= STW_ATTN_ALIBI; }

static void set_alibi_column(fixture *f) {
    f->desc.flags |= STW_ATTN_ALIBI | STW_ATTN_ALIBI_COLUMN;
    f->desc.alibi_stride_batch = 5;
    f->args.k_offset = 2; /* counts in the slope's column */
}

static void set_softcap(fixture *f) { f->desc.softcap = 0.75f; }

static void set_sink(fixture *f) { f->desc.flags |= STW_ATTN_SINK; }

static void set_sink_empty_rows(fixture *f) {
    set_bottom_right_short(f);
    set_sink(f);
}

static void set_dlse(fixture *f) { f->desc.flags |= STW_ATTN_DLSE; }

static void set_dropout(fixture *f, stw_dropout_map map) {
    f->desc.dropout_p = 0.3;
    f->desc.dropout_map = map;
    f->args.dropout_seed = dropout_seed;
    f->args.dropout_offset_ptr = &dropout_offset;
}

static void set_dropout_philox(fixture *f) { set_dropout(f, STW_DROPOUT_PHILOX); }

static void set_dropout_mem_eff(fixture *f) { set_dropout(f, STW_DROPOUT_MEM_EFF); }

static void set_dropout_flash2(fixture *f) { set_dropout(f, STW_DROPOUT_FLASH2); }

void setup_packed(fixture *f) {
    f->desc.total_q = 12;
    f->desc.total_kv = 13;
    f->args.cu_seqlens_q = starts_q;
    f->args.cu_seqlens_kv = starts_kv;
}

static void set_packed_used(fixture *f) {
    setup_packed(f);
    f->desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    f->args.used_q = used_q;
    f->args.used_kv = used_kv;
    f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
}

static void set_packed_local_lse(fixture *f) {
    setup_packed(f);
    f->lse_local = 1;
    f->layout = FIXTURE_BHSD;
    f->desc.flags |= STW_ATTN_DLSE;
}

static void set_packed_head_last(fixture *f) {
    setup_packed(f);
    f->lse_by_head_last = 1;
}

static void set_packed_empty(fixture *f) {
    f->desc.batch = 3;
    f->desc.total_q = 7;
    f->desc.total_kv = 8;
    f->args.cu_seqlens_q = starts_q_empty;
    f->args.cu_seqlens_kv = starts_kv_empty;
}

static void set_packed_q_only(fixture *f) {
    f->desc.total_q = 12;
    f->args.cu_seqlens_q = starts_q;
}

static void set_packed_kv_only(fixture *f) {
    f->desc.total_kv = 13;
    f->args.cu_seqlens_kv = starts_kv;
    set_dropout(f, STW_DROPOUT_MEM_EFF);
}

void setup_used_lengths(fixture *f) {
    f->desc.flags |= STW_ATTN_HAS_USED_LENGTHS;
    f->args.used_q = used_q_dense;
    f->args.used_kv = used_kv_dense;
    f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
}

static void set_offsets(fixture *f) {
    set_window(f);
    set_alibi(f);
    f->args.q_offset = 4;
    f->args.k_offset = 3;
}

static void set_offsets_by_pointer(fixture *f) {
    set_top_left(f);
    set_dropout(f, STW_DROPOUT_PHILOX);
    set_alibi(f);
    f->args.q_offsets = offsets_q;
    f->args.k_offsets = offsets_kv;
    f->args.q_offset = 1000; /* ignored */
}

static void set_shard(fixture *f) {
    set_dropout(f, STW_DROPOUT_FLASH2);
    f->desc.batch_offset = 3;
    f->desc.head_offset = 5;
    f->desc.heads_total = 16;
}

static void set_everything(fixture *f) {
    set_packed_used(f);
    set_dropout(f, STW_DROPOUT_PHILOX);
    set_offsets(f);
    f->desc.flags |= STW_ATTN_SINK | STW_ATTN_DLSE;
    f->desc.softcap = 1.25f;
    f->desc.bias_dtype = STW_F32;
    f->bias_broadcast = 1;
    f->desc.head_offset = 2;
    f->desc.heads_total = 8;
}

/* Bounds of 2 x 2 x KEYS keys at rows 0..5, which every problem made of a setup has; some keys nobody sees. */
enum { KEYS = 512, BOUNDS = 4 };
static int32_t interval_bounds[2 * 2 * KEYS * BOUNDS];

static void set_intervals(fixture *f, stw_attn_intervals form, int64_t head, int64_t offset) {
    static const int counts[] = {0, 1, 2, 2, 3, 4};
    for (int n = 0; n < 2 * 2 * KEYS * BOUNDS; ++n) interval_bounds[n] = (int32_t)((n * 7 + n / 5) % 6 + offset);
    for (int n = 0; n < 3 * BOUNDS; ++n) interval_bounds[n] = n % 2 ? (int32_t)offset + 5 : 0;
    const int64_t key = counts[form];
    f->desc.interval_form = form;
    f->desc.intervals = (stw_interval_strides){2 * KEYS * key, head ? KEYS * key : 0, key, 1};
    f->args.intervals = interval_bounds;
}

static void set_intervals_from(fixture *f) { set_intervals(f, STW_INTERVALS_FROM, 0, 0); }

static void set_intervals_range(fixture *f) { set_intervals(f, STW_INTERVALS_RANGE, 1, 0); }

static void set_intervals_from_below(fixture *f) { set_intervals(f, STW_INTERVALS_FROM_BELOW, 1, 0); }

static void set_intervals_range_below(fixture *f) {
    set_intervals(f, STW_INTERVALS_RANGE_BELOW, 0, 0);
    f->desc.flags |= STW_ATTN_SINK | STW_ATTN_DLSE;
    f->desc.bias_dtype = STW_F32;
}

static void set_intervals_two(fixture *f) {
    set_intervals(f, STW_INTERVALS_TWO_RANGES, 1, 0);
    f->desc.mask = STW_MASK_CAUSAL_BOTTOM_RIGHT;
    f->desc.dropout_p = 0.3;
}

static void set_intervals_offset(fixture *f) {
    set_intervals(f, STW_INTERVALS_TWO_RANGES, 1, 100);
    f->args.q_offset = 100;
}

static void set_block_mask(fixture *f) {
    static const uint8_t blocks[8] = {0, 7, 255, 0, 1, 1, 0, 2}; /* of 2 batches and 4 heads */
    f->desc.flags |= STW_ATTN_BLOCK_MASK;
    f->desc.block_mask = (stw_block_mask_strides){4, 1, 0, 0};
    f->args.block_mask = blocks;
}

const setup setups[] = {
    {"plain", set_plain},
    {"bhsd, odd head dims, LSE [B,S,H]", set_bhsd},
    {"head dim 1", set_head_dim_one},
    {"negative scale", set_scale},
    {"scale 0", set_scale_zero},
    {"mqa", set_mqa},
    {"causal top-left", set_top_left},
    {"causal bottom-right", set_bottom_right},
    {"causal bottom-right, more queries than keys", set_bottom_right_short},
    {"window", set_window},
    {"window right 0", set_window_right},
    {"window left with causal", set_window_causal},
    {"diagonal shift", set_shift},
    {"bias", set_bias},
    {"bias over batch", set_bias_batch},
    {"bias over heads", set_bias_head},
    {"bias over queries", set_bias_query},
    {"bias over keys", set_bias_key},
    {"bias over batch and queries", set_bias_alibi_like},
    {"bias scalar", set_bias_scalar},
    {"bias of bytes", set_bytes},
    {"bias of bytes over heads and queries, causal", set_bytes_keys},
    {"alibi", set_alibi},
    {"alibi column, slopes by batch", set_alibi_column},
    {"softcap", set_softcap},
    {"sink", set_sink},
    {"sink, rows that see no key, dLSE", set_sink_empty_rows},
    {"dLSE", set_dlse},
    {"dropout philox", set_dropout_philox},
    {"dropout mem_eff", set_dropout_mem_eff},
    {"dropout flash2", set_dropout_flash2},
    {"packed", setup_packed},
    {"packed, used lengths", set_packed_used},
    {"packed, LSE by local rows", set_packed_local_lse},
    {"packed, LSE [T,H]", set_packed_head_last},
    {"packed, empty sequences", set_packed_empty},
    {"packed q, dense kv", set_packed_q_only},
    {"dense q, packed kv, mem_eff", set_packed_kv_only},
    {"dense, used lengths", setup_used_lengths},
    {"offsets by value", set_offsets},
    {"offsets by pointer", set_offsets_by_pointer},
    {"shard numbers", set_shard},
    {"intervals, one bound", set_intervals_from},
    {"intervals, a range, each head's own", set_intervals_range},
    {"intervals, from and below, each head's own", set_intervals_from_below},
    {"intervals, three bounds, sink, dLSE, bias", set_intervals_range_below},
    {"intervals, two ranges, causal, dropout", set_intervals_two},
    {"intervals, two ranges, q offset", set_intervals_offset},
    {"block mask of each head", set_block_mask},
    {"everything", set_everything},
};
const int setups_count = (int)(sizeof setups / sizeof *setups);
