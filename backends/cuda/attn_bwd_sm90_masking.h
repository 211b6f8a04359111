/* SPDX-License-Identifier: MIT
 *
 * What is not as usual in a work tile of sm90's own main loop: blocks with hidden pairs, rows that take part in
 * nothing and must not be multiplied, keys so small that terms of dQ are subnormal. */
#ifndef STW_CUDA_ATTN_BWD_SM90_MASKING_H
#define STW_CUDA_ATTN_BWD_SM90_MASKING_H

#include "attn_bwd_sm90_scheduler.h"

/* What one thread finds out of a work tile for all. first, end: query blocks with nothing special, of which all rows
 * take part and see all keys. */
struct sm90_tile_masking {
    int first, end;
    int zeroes_keys; /* some keys take part in nothing */
    int plain;       /* no query block is special */

    /* Rows past a dense tensor's end have come as zeros. */
    DEV_FN bool ends_with_tensor(const attn_work_tile &tile, const stw_attn_params &p) {
        return !(p.features & STW_FEAT_PACKED_Q) && tile.seq.q_low == 0 && tile.seq.q_end == p.max_seq_q;
    }
    template <int BN = 128> DEV_METHOD void find(const attn_work_tile &tile, const stw_attn_params &p) {
        first = tile.inner_first;
        end = tile.inner_end;
        if (!ends_with_tensor(tile, p)) {
            first = max(first, tile.whole_first);
            end = min(end, tile.whole_end);
        }
        int blocks = tile.end - tile.first;
        if (blocks * (int)p.group < 2) end = 0; /* there is an idle step */
        plain = first <= tile.first && end >= tile.end && blocks > 0;
        stw_range keys = stw_visible_keys(&tile.seq);
        bool dense_end = !(p.features & STW_FEAT_PACKED_KV) && keys.end == p.max_seq_kv;
        zeroes_keys = keys.first > tile.j0 || (keys.end < tile.j0 + BN && !dense_end);
    }
    /* Of a special block: some rows take part in nothing. */
    DEV_FN bool zeroes_rows(const attn_work_tile &tile, const stw_attn_params &p, const sm90_block_iterator &it) {
        int some = !ends_with_tensor(tile, p) && (it.block < tile.whole_first || it.block >= tile.whole_end);
        return dev_uniform(some) != 0;
    }
};

/* The same without branches, for narrow heads, all of whose warps wait for the thread that finds it: after each branch
 * a load from shared memory takes 30 cycles. The warps that load for wide heads would spill 1 to 11 registers. */
struct sm90_tile_masking_at_once : sm90_tile_masking {
    DEV_METHOD void find(const attn_work_tile &tile, const stw_attn_params &p) {
        const stw_attn_seq s = tile.seq;
        const int from = tile.first, to = tile.end, blocks = to - from;
        const bool ends = !(p.features & STW_FEAT_PACKED_Q) & (s.q_low == 0) & (s.q_end == p.max_seq_q);
        const int whole_first = max(tile.inner_first, tile.whole_first),
                  whole_end = min(tile.inner_end, tile.whole_end);
        const int plain_first = ends ? tile.inner_first : whole_first, plain_end = ends ? tile.inner_end : whole_end;
        const int last = blocks * (int)p.group < 2 ? 0 : plain_end; /* there is an idle step */
        first = plain_first;
        end = last;
        plain = (plain_first <= from) & (last >= to) & (blocks > 0);
        const bool sees = s.q_low < s.q_end; /* stw_visible_keys */
        const int64_t keys_first = sees ? stw_larger(0, s.band.low) : 0;
        const int64_t keys_end = sees ? stw_smaller(s.kv.used, s.q.used + s.band.high) : 0;
        const bool dense_end = !(p.features & STW_FEAT_PACKED_KV) & (keys_end == p.max_seq_kv);
        zeroes_keys = (keys_first > tile.j0) | ((keys_end < tile.j0 + 128) & !dense_end);
    }
};

/* Each warp for its own 16 keys: the first and the last query that see a key. */
DEV_FN void sm90_list_seen(const attn_work_tile &tile, int *seen, int wave, int lane) {
    __syncwarp();
    if (lane < 16) {
        int key = 16 * wave + lane;
        int64_t j = tile.j0 + key, far = INT64_C(1) << 30;
        int64_t first = stw_larger(j - tile.seq.band.high, tile.seq.q_low);
        int64_t last = stw_smaller(j - tile.seq.band.low, tile.seq.q_end - 1);
        if (j >= tile.seq.kv.used) first = far;
        seen[2 * key] = (int)stw_clamp_i64(first, -far, far);
        seen[2 * key + 1] = (int)stw_clamp_i64(last, -far, far);
    }
    __syncwarp();
}

/* Zeros in the tile's rows outside [low, end). */
template <int PANELS, int ROWS> DEV_FN void sm90_zero_rows(char *smem, int64_t low, int64_t end, int thread) {
    const int first = (int)stw_clamp_i64(low, 0, ROWS), last = (int)stw_clamp_i64(end, 0, ROWS);
    uint32_t to = sm90_shared_address(smem) + thread * 16;
    DEV_ROLLED_FOR (int row = 0; row < PANELS * ROWS; row += 32, to += 4096) {
        int r = (row + thread / 8) % ROWS;
        sm90_zero_vector_if(r < first || r >= last, to);
    }
}
/* All threads, when K or V has arrived: zeros in keys that no query sees, for products after the next barrier. */
template <class C> DEV_FN void sm90_zero_keys(const attn_work_tile &tile, char *keys, int thread) {
    stw_range seen = stw_visible_keys(&tile.seq);
    sm90_zero_rows<C::PANELS, C::BN>(keys, seen.first - tile.j0, seen.end - tile.j0, thread);
    sm90_fence_async_shared();
}
/* The same in a stage's Q and dO. */
template <class C>
DEV_FN void sm90_zero_queries(const attn_work_tile &tile, char *smem, int stage, int block, int thread) {
    const int64_t i0 = (int64_t)block * C::BM;
    char *const q = smem + C::AT_Q + stage * C::ROWS_BYTES, *const dout = smem + C::AT_DOUT + stage * C::ROWS_BYTES;
    sm90_zero_rows<C::PANELS, C::BM>(q, tile.seq.q_low - i0, tile.seq.q_end - i0, thread);
    sm90_zero_rows<C::PANELS, C::BM>(dout, tile.seq.q_low - i0, tile.seq.q_end - i0, thread);
    sm90_fence_async_shared();
}

/* ---- keys so small that terms of dQ are subnormal: see attn_bwd_subnormal.h ---- */

/* One of eight elements is not that small. */
template <class C> DEV_FN bool sm90_vector_counts(const char *at) {
    const dev_vector v = dev_load_vector(at);
    const typename C::T *x = (const typename C::T *)(const void *)&v;
    bool counts = false;
    DEV_UNROLL_FOR (int i = 0; i < 8; ++i) counts |= !(fabsf(dev_float(x[i])) < ATTN_SUBNORMAL_KEYS);
    return counts;
}
/* A warp looks at the first elements of K or V, which answer for ordinary data. */
template <class C> DEV_FN bool sm90_first_count(const char *keys, int lane) {
    return dev_uniform(__any_sync(0xFFFFFFFFu, sm90_vector_counts<C>(keys + lane * 16))) != 0;
}
/* A warp looks at its part of K or V, until an element is found; true for the lane that has it. */
template <class C> DEV_FN bool sm90_keys_count(const char *keys, int thread) {
    bool counts = false;
    for (int at = thread * 16; !__any_sync(0xFFFFFFFFu, counts) && at < C::KEYS_BYTES; at += C::THREADS * 16)
        counts |= sm90_vector_counts<C>(keys + at);
    return counts;
}
/* All threads: all of K or all of V is that small. Ordinary data: the first look shows that they are not. */
template <class C> DEV_FN bool sm90_keys_are_subnormal(const char *keys, const char *values) {
    if (sm90_first_count<C>(keys, sm90_lane_anew()) && sm90_first_count<C>(values, sm90_lane_anew()))
        return false; /* the same answer for every warp */
    bool k = sm90_keys_count<C>(keys, sm90_thread_anew()), v = sm90_keys_count<C>(values, sm90_thread_anew());
    k = dev_uniform(__syncthreads_or(k)) != 0;
    v = dev_uniform(__syncthreads_or(v)) != 0;
    return !k || !v;
}
/* The same where a warpgroup of the CTA does something else: each warp looks at all of it. */
template <class C> DEV_FN bool sm90_keys_count_alone(const char *keys) {
    const int lane = sm90_lane_anew();
    bool counts = false;
    DEV_ROLLED for (int at = 0; !counts && at < C::KEYS_BYTES; at += DEV_WAVE * 16) counts =
        dev_uniform(__any_sync(0xFFFFFFFFu, sm90_vector_counts<C>(keys + at + lane * 16))) != 0;
    return counts;
}
template <class C> DEV_FN bool sm90_keys_are_subnormal_alone(const char *keys, const char *values) {
    return !sm90_keys_count_alone<C>(keys) || !sm90_keys_count_alone<C>(values);
}

#endif
