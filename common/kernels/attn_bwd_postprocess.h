/* SPDX-License-Identifier: MIT
 *
 * Last kernel of the backward pass: dQ sums, in the order of the main loop's registers, times scale into the output's
 * rows; rows of a sequence past its used length become zeros. Past the query blocks, one CTA a head sums the parts of
 * dSink in a fixed order. Any shape; one instance. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_POSTPROCESS_H
#define STW_COMMON_KERNELS_ATTN_BWD_POSTPROCESS_H

#include "common/device/reduce.h"
#include "common/kernels/attn_tiles.h"

DEV_FN void attn_postprocess_sink(const stw_attn_launch &l, int64_t h) {
    const stw_attn_params &p = l.p;
    if (h >= p.heads_q || dev_thread() >= DEV_WAVE) return;
    double sum = 0.0;
    for (int64_t b = 0; b < p.batch; ++b) {
        stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
        int64_t blocks = stw_blocks_of(seq.q.rows, l.bm);
        for (int64_t i = dev_lane(); i < blocks; i += DEV_WAVE) sum += l.sink[h * l.q_blocks + seq.q_block + i];
    }
    sum = dev_wave_sum(sum);
    if (dev_lane() == 0) p.dsink[h] = (float)(p.accumulate & STW_OUT_DSINK ? (double)p.dsink[h] + sum : sum);
}

/* Tiles of registers side by side: whole vectors of 16-bit rows. */
template <int G>
DEV_FN void attn_postprocess_gathered(const stw_attn_launch &l, const float x[][LEAF_ACC], int64_t base, int row0,
                                      int col0, int used, int end, int lane) {
    const stw_attn_params &p = l.p;
    int col = col0 + leaf_gathered_col<G>(lane);
    DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
        int row = row0 + leaf_slot_row(lane, slot), i = 2 * slot;
        uint32_t w[G];
        DEV_UNROLL_FOR (int g = 0; g < G; ++g) {
            float low = row < used ? x[g][i] * p.scale : 0.0f, high = row < used ? x[g][i + 1] * p.scale : 0.0f;
            w[g] = p.dq_dtype == STW_BF16 ? dev_pack_bf16(low, high) : dev_pack_f16(low, high);
        }
        leaf_gather<G>(w, lane);
        if (row < end && col < (int)p.head_dim_qk)
            dev_store_words<G>((uint16_t *)p.dq.data + base + row * p.dq.seq + col, w);
    }
}

/* The kernel. A CTA converts bm query rows of one head, or, past these CTAs, sums dSink of one head. */
DEV_FN void attn_bwd_postprocess(const stw_attn_launch &l, char *smem) {
    enum { AHEAD = 4 };
    const stw_attn_params &p = l.p;
    dev_await_previous();
    int64_t work_tile = dev_cta(), tiles = p.outputs & STW_OUT_DQ ? p.heads_q * stw_tiles_of_head(&p, l.bm) : 0;
    if (work_tile >= tiles) {
        if (p.outputs & STW_OUT_DSINK) attn_postprocess_sink(l, work_tile - tiles);
        return;
    }
    const attn_tile tile = attn_tile_of(p, l.bm, work_tile, (int32_t *)(void *)smem);
    if (!tile.live) return;
    const int64_t b = tile.b, h = tile.h, block = tile.block;
    stw_attn_seq seq = stw_attn_seq_of(&p, l.bm, b);
    int64_t i0 = block * l.bm;
    bool add = (p.accumulate & STW_OUT_DQ) != 0;
    int used = (int)stw_clamp_i64(seq.q.used - i0, 0, l.bm), end = (int)stw_clamp_i64(seq.q.rows - i0, 0, l.bm);
    const float *sums = l.dq + (h * l.q_blocks + seq.q_block + block) * (int64_t)(l.bm * l.width);
    int64_t base = dev_row(p.dq, b, h, seq.q.first + i0);
    int threads = (int)l.warps * DEV_WAVE, cols = (int)p.head_dim_qk, t = (int)dev_thread(), lane = (int)dev_lane();
    int waves_c = (int)(l.warps / l.dq_rows), wave_m = (int)(l.bm / l.dq_rows), wave_n = (int)l.width / waves_c;
    if (end <= 0) return; /* past the sequence: this block has no sums */
    /* Thread t converts what thread t of the main loop summed. Where the main loop had fewer threads, `turns` threads
     * share that, and `turn` says which share this one has. */
    int turn = t / threads, turns = (int)dev_threads() / threads;
    t %= threads;
    int row0 = t / DEV_WAVE / waves_c * wave_m, col0 = t / DEV_WAVE % waves_c * wave_n, across = wave_n / LEAF_MMA_N;
    int count = wave_m / LEAF_MMA_M * across, share = (count + turns * AHEAD - 1) / (turns * AHEAD) * AHEAD;
    int last = (int)stw_smaller(count, (turn + 1) * share);
    /* `pairs`: two neighbours of a row go in one store; `gathers`: whole vectors do. */
    bool pairs = LEAF_ACC_PAIRS && (l.vectors & STW_PAIRS_DQ) && !add;
    bool gathers = LEAF_GATHERS && (l.vectors & STW_VECTOR_DQ) && !add && p.dq_dtype != STW_F32 && across % AHEAD == 0;
    for (int first = turn * share; first < last; first += AHEAD) {
        float x[AHEAD][LEAF_ACC]; /* all loads first: the kernel is as fast as memory only with many bytes under way */
        DEV_UNROLL_FOR (int a = 0; a < AHEAD; ++a)
            if (first + a < last) dev_load_acc(x[a], sums, first + a, t, threads);
        if (gathers) {
            if constexpr (LEAF_GATHERS)
                attn_postprocess_gathered<AHEAD>(l, x, base, row0 + first / across * LEAF_MMA_M,
                                                 col0 + first % across * LEAF_MMA_N, used, end, lane);
            continue;
        }
        DEV_UNROLL_FOR (int a = 0; a < AHEAD; ++a) {
            int f = first + a, m = f / across * LEAF_MMA_M, n = f % across * LEAF_MMA_N;
            if (f >= last) break;
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int row = row0 + m + leaf_slot_row(lane, leaf_acc_slot(i)), col = col0 + n + leaf_acc_col(lane, i);
                if (row >= (add ? used : end) || col >= cols) continue;
                int64_t at = base + row * p.dq.seq + col;
                float y = row < used ? x[a][i] * p.scale : 0.0f;
                if (!pairs) dev_store_any(p.dq.data, at, p.dq_dtype, add ? ((const float *)p.dq.data)[at] + y : y);
                else if (!(i & 1))
                    dev_store_any_pair(p.dq.data, at, p.dq_dtype, y,
                                       row < used ? x[a][i ^ LEAF_ACC_PAIRS] * p.scale : 0.0f);
            }
        }
    }
}

#endif
