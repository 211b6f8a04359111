/* SPDX-License-Identifier: MIT
 *
 * The rows of cp-conform: each feature over ranks, in both orders and all schedules. Sizes are small and odd: chunks of
 * unequal lengths, sequences shorter than the ranks, heads that are divisible by 2, 4 and 7 in the rows of Ulysses. */
#include "cp.h"

#include <stdio.h>

#define BOTH(problem, schedule)                                                                                        \
    {problem, STW_CP_CONTIGUOUS, STW_CP_##schedule, 0, 0}, {problem, STW_CP_ZIGZAG, STW_CP_##schedule, 0, 0}
#define ZIGZAG(problem, schedule)     {problem, STW_CP_ZIGZAG, STW_CP_##schedule, 0, 0}
#define CONTIGUOUS(problem, schedule) {problem, STW_CP_CONTIGUOUS, STW_CP_##schedule, 0, 0}
#define GROUPS(problem, count)        {problem, STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, count}
#define TWO_D(problem, order)         {problem, STW_CP_##order, STW_CP_2D, 4, 0}
#define NODES(problem)                TWO_D(problem, ZIGZAG), TWO_D(problem, CONTIGUOUS)

const cp_row cp_rows[] = {
    BOTH("attn_bwd:bf16:b2h4k2s93d32", RING),
    BOTH("attn_bwd:bf16:b1h4k2s128d64:causal_br", RING),
    /* chunks of whole query blocks, with 2 and 4 ranks: on GPUs parts share sums of dQ */
    BOTH("attn_bwd:bf16:b1h4k2s512d64:causal_br", RING),
    ZIGZAG("attn_bwd:f16:b1h4k2s512d128:causal_br:dropout0.2:dq_f32:acc_q", RING),
    /* and statistics, which take dLSE in, but not where rows see nothing or main loops want them in another form */
    ZIGZAG("attn_bwd:bf16:b1h4k2s512d64:causal_br:dlse", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s512x300d64:causal_br", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s512d64:causal_br:bias_b1qk", RING),
    ZIGZAG("attn_bwd:bf16:b1h1s512x256d64:wr300", RING), /* the first rows see none of the shard's own keys */
    ZIGZAG("attn_bwd:bf16:b1h2s128d32:bias_b1qk", RING), /* whole blocks of 32 rows */
    ZIGZAG("attn_bwd:f16:b1h2s128d32:causal_br", RING),
    ZIGZAG("attn_bwd:f16:b2h4k2s512d64:thd:seqs_full:causal_br:softcap20", ALL_GATHER),
    ZIGZAG("attn_bwd:bf16:b3h2k1s512d64:thd:seqs_full:causal_br:det", RING),
    ZIGZAG("attn_bwd:f32:b1h2s512d32:wl150:alibi", ALL_GATHER),
    {"attn_bwd:bf16:b1h4k2s512d192x128:causal_br", STW_CP_ZIGZAG, STW_CP_2D, 2, 0},
    ZIGZAG("attn_bwd:bf16:b1h2k1s1100d64:causal_br:dropout0.1", RING), /* chunks of several tiles */
    CONTIGUOUS("attn_bwd:f16:b1h8k1s1100x260d128", RING),              /* sums of more than 2048 rows on each rank */
    ZIGZAG("attn_bwd:bf16:b1h2k1s1100d64:causal_br:det", RING),
    CONTIGUOUS("attn_bwd:f16:b1h2s700d40:causal_br:det", ALL_GATHER),
    ZIGZAG("attn_bwd:bf16:b1h84s40d16:causal_br:sink:grads_qkvs:det", ULYSSES),
    ZIGZAG("attn_bwd:f32:b1h2s900d32:causal_br:wl300", ALL_GATHER),
    BOTH("attn_bwd:f32:b2h4k2s97x121d24x40:causal_br", RING),
    BOTH("attn_bwd:f16:b2h2s96d64:causal_tl", ALL_GATHER),
    BOTH("attn_bwd:f64:b1h4k1s67d20:causal_br", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s140d32:causal_br:wl20", RING),
    CONTIGUOUS("attn_bwd:bf16:b1h2s140d32:causal_br:wl20", RING),
    BOTH("attn_bwd:f32:b2h2s140d16:wl9:wr13", RING),
    ZIGZAG("attn_bwd:f32:b2h2s140d16:wl9:wr13", ALL_GATHER),
    BOTH("attn_bwd:bf16:b1h4s90d32:sink:grads_qkvs", RING),
    ZIGZAG("attn_bwd:f32:b2h4k2s90d32:causal_br:sink:dlse:grads_qkvs", RING),
    BOTH("attn_bwd:f32:b2h4k2s75d32:dlse", ALL_GATHER),
    BOTH("attn_bwd:bf16:b2h4k2s88d32:causal_br:dropout0.2", RING),
    ZIGZAG("attn_bwd:f32:b2h4s70d32:alibi:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b2h4s70d32:alibi:alibi_col", RING),
    ZIGZAG("attn_bwd:f32:b2h4s70d32:softcap5:causal_br", ALL_GATHER),
    BOTH("attn_bwd:bf16:b2h4k2s61x83d32:bias_1hqk", RING),
    ZIGZAG("attn_bwd:f32:b2h2s60d32:bias_bhqk:grads_qkvb:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b2h2s60d32:bias_1hq1:grads_qkvb", RING),
    CONTIGUOUS("attn_bwd:f32:b2h2s60d32:bias_bh1k:grads_qkvb", ALL_GATHER),
    BOTH("attn_bwd:bf16:b5h4k2s60d32:thd:seqs_full:causal_br", RING),
    BOTH("attn_bwd:f32:b6h2s50x64d32:thd", RING),
    ZIGZAG("attn_bwd:f32:b6h2s50d32:thd:causal_br:dropout0.3", ALL_GATHER),
    ZIGZAG("attn_bwd:bf16:b2h2s80d32:biasu8_b1qk", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s70d32:bias_b11k:grads_qkvb:acc_b:dbias_f32", RING),
    ZIGZAG("attn_bwd:f32:b4h2s80d32:used", RING),
    ZIGZAG("attn_bwd:f32:b1h2s90d32:qoff40:koff33:causal_tl:alibi", RING),
    ZIGZAG("attn_bwd:f32:b2h2s90d32:delta_in:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b2h2s90d32:delta_out:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b3h2s60d16:used:delta_out:causal_br", RING),
    ZIGZAG("attn_bwd:f64:b2h2s40d16:sink:grads_qkvs:causal_br", ALL_GATHER),
    ZIGZAG("attn_bwd:bf16:b1h2s90d32:dq_f32:dk_f32:dv_f32:acc_qkv:causal_br", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s90d32:grads_k:causal_br", RING),
    BOTH("attn_bwd:f32:b2h4k2s90x50d16:causal_br:sink:dlse:grads_qkvs", RING),
    ZIGZAG("attn_bwd:bf16:b2h2s80x30d16:causal_br:delta_out", ALL_GATHER),
    ZIGZAG("attn_bwd:f32:b2h2s64d16:data_inf_lse:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b2h2s64d16:data_dead_rows:causal_br", RING),
    CONTIGUOUS("attn_bwd:f32:b3h2s40x0d16:sink:dlse:grads_qkvs", RING),
    ZIGZAG("attn_bwd:f32:b3h2s0x40d16", RING),
    ZIGZAG("attn_bwd:f32:b0h2s40d16:causal_br", RING),
    ZIGZAG("attn_bwd:bf16:b5h2s40d16:thd:seqs_zeros:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b4h84s40x50d8:used:bhsd:causal_br:delta_in", ULYSSES),
    ZIGZAG("attn_bwd:f32:b1h2s5d32:causal_br", RING),
    CONTIGUOUS("attn_bwd:f32:b1h2s3x1d32", ALL_GATHER),
    BOTH("attn_bwd:bf16:b2h84s40d16:causal_br", ULYSSES),
    ZIGZAG("attn_bwd:f32:b1h168k84s40d16:dropout0.2:alibi:sink:dlse:grads_qkvs", ULYSSES),
    ZIGZAG("attn_bwd:f32:b5h84s30d8:thd:causal_br", ULYSSES),
    /* in groups of heads: two, more than two, each head alone */
    GROUPS("attn_bwd:bf16:b2h84s40d16:causal_br", 3),
    GROUPS("attn_bwd:f32:b1h168k84s61x40d16:dropout0.2:alibi:sink:dlse:grads_qkvs", 2),
    GROUPS("attn_bwd:f32:b5h84s30d8:thd:seqs_zeros:causal_br:dropout0.2", 4),
    GROUPS("attn_bwd:f32:b4h84s40x50d8:used:bhsd:causal_br:delta_in", 7),
    GROUPS("attn_bwd:bf16:b1h84s90d16:causal_br:sink:grads_s", 2), /* delta's call alone */
    GROUPS("attn_bwd:bf16:b1h84s90d16:dq_f32:dk_f32:dv_f32:acc_qkv:causal_br:wl20", 6),
    GROUPS("attn_bwd:bf16:b1h84s40d16:grads_kv:qoff9:causal_tl", 42),
    GROUPS("attn_bwd:f64:b20h84s9d8:causal_br:softcap5:grads_q", 3), /* messages packed on both sides */
    GROUPS("attn_bwd:bf16:b1h168k84s70d8:causal_br:intervals_from:mask_heads", 3),
    GROUPS("attn_bwd:f16:b1h84s150x130d8:blockmask:mask_heads:causal_br", 2),
    NODES("attn_bwd:bf16:b2h8k4s90d16:causal_br"),
    NODES("attn_bwd:f32:b4h8k4s60d16:thd:causal_br:dropout0.2"),
    ZIGZAG("attn_bwd:bf16:b1h4s96d32:causal_br", AUTO),
    /* masks in memory: bounds are positions of the whole, so no chunk has those of another */
    BOTH("attn_bwd:bf16:b2h4k2s300d32:causal_br:intervals_from:draw_documents", RING),
    BOTH("attn_bwd:f32:b2h4k2s150x190d16:intervals_two:mask_heads", RING),
    BOTH("attn_bwd:f16:b1h2s260d32:intervals_from_below:draw_prefix", ALL_GATHER),
    ZIGZAG("attn_bwd:f32:b1h4k2s170d16:intervals_range_below:causal_br:wl60:alibi:dropout0.2", RING),
    ZIGZAG("attn_bwd:bf16:b1h2k1s600d64:causal_br:intervals_from:draw_tree", RING),
    ZIGZAG("attn_bwd:bf16:b1h2s600d32:causal_br:intervals_from:draw_sliding:det", RING),
    ZIGZAG("attn_bwd:f32:b3h2s120d16:used:intervals_range:draw_padding", RING),
    ZIGZAG("attn_bwd:f32:b1h2s90d16:qoff40:koff33:causal_tl:intervals_two", RING),
    ZIGZAG("attn_bwd:f32:b5h4k2s90x70d16:thd:intervals_two:mask_heads", RING),
    ZIGZAG("attn_bwd:f64:b2h2s80d16:intervals_range:sink:dlse:grads_qkvs", ALL_GATHER),
    ZIGZAG("attn_bwd:f32:b2h2s90d16:intervals_two:bias_1h1k:grads_qkvb", RING),
    CONTIGUOUS("attn_bwd:f32:b1h2s3x1d16:intervals_two", ALL_GATHER),
    ZIGZAG("attn_bwd:f32:b1h2s5d16:intervals_two", RING),
    ZIGZAG("attn_bwd:bf16:b1h168k84s70d8:causal_br:intervals_from:mask_heads", ULYSSES),
    ZIGZAG("attn_bwd:f32:b4h84s40d8:thd:intervals_two:mask_heads", ULYSSES),
    NODES("attn_bwd:f32:b2h8k4s190d16:intervals_two:mask_heads"),
    /* chunks of whole blocks: 2 and 4, 3, 7 ranks; Ulysses has all rows */
    BOTH("attn_bwd:bf16:b1h2k1s1024d16:blockmask:mask_heads:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b1h2s768d16:blockmask:mask_heads", RING),
    ZIGZAG("attn_bwd:bf16:b1h1s1792d16:blockmask:causal_br", RING),
    ZIGZAG("attn_bwd:f32:b1h2s1024x2048d16:blockmask:intervals_two:mask_heads", ALL_GATHER),
    ZIGZAG("attn_bwd:f16:b1h84s150x130d8:blockmask:mask_heads:causal_br", ULYSSES),
    NODES("attn_bwd:bf16:b1h4k2s1024d16:blockmask:mask_heads:causal_br"),
};
const int cp_row_count = sizeof cp_rows / sizeof cp_rows[0];

void cp_row_name(const cp_row *row, char *text, size_t capacity) {
    static const char *const schedules[] = {"auto", "ring", "all-gather", "ulysses", "2-D"};
    snprintf(text, capacity, "%s %s %s", row->order == STW_CP_ZIGZAG ? "zigzag" : "contiguous",
             schedules[row->schedule], row->problem);
}
