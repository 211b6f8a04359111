/* SPDX-License-Identifier: MIT
 *
 * Work tiles of CDNA's own main loop: what decides whether a work tile's products may lose something, the walk over the
 * query heads, dK and dV to their tensors, and the two kernels. Included by attn_bwd_cdna.h. */
#ifndef STW_HIP_ATTN_BWD_CDNA_SCHEDULER_H
#define STW_HIP_ATTN_BWD_CDNA_SCHEDULER_H

#include "attn_bwd_cdna.h"

template <class C> DEV_FN void attn_cdna_clear(C &w) {
    DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
        DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES; ++j) w.dk[i][j] = w.dv[i][j] = leaf_f4{0, 0, 0, 0};
}

/* dK and dV: sums for keys in use, zeros up to the sequence's end. Four tiles hold four neighbouring columns. */
template <class C, bool PART> DEV_FN void attn_cdna_store_rows(const C &w, const attn_work_tile &u, int used) {
    typedef typename C::T T;
    cdna_launch l = cdna_launch_again();
    int thread = cdna_opaque((int)dev_thread()), n = thread & 15, g = thread >> 4 & 3, wave = dev_uniform(thread >> 6);
    int64_t b = dev_uniform(u.b), j0 = dev_uniform(u.j0), row = dev_uniform(u.seq.kv.first) + j0;
    int h = dev_uniform(u.kv_head), end = (int)stw_smaller(C::BN, dev_uniform(u.seq.kv.rows) - j0);
    int k_cols = (int)l->p.head_dim_qk, v_cols = (int)l->p.head_dim_v, k_stride = (int)l->p.dk.seq,
        v_stride = (int)l->p.dv.seq;
    cdna_buffer kb = cdna_buffer_of((const char *)l->p.dk.data + cdna_row(l->p.dk, b, h, row) * 2,
                                    cdna_extent(end, k_stride, (uint32_t)k_cols));
    cdna_buffer vb = cdna_buffer_of((const char *)l->p.dv.data + cdna_row(l->p.dv, b, h, row) * 2,
                                    cdna_extent(end, v_stride, (uint32_t)v_cols));
    const leaf_f2 scale = (leaf_f2)l->p.scale;
    const int key0 = 48 * wave + 4 * g;
    DEV_UNROLL_FOR (int j = 0; j < C::PIECES; j += 2) {
        int col = 32 * j + 4 * n;
        const uint32_t k_at = col < k_cols ? (uint32_t)(key0 * k_stride + col) * 2 : CDNA_NOWHERE;
        const uint32_t v_at = col < v_cols ? (uint32_t)(key0 * v_stride + col) * 2 : CDNA_NOWHERE;
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
                const leaf_f4 *k = &w.dk[i][2 * j], *v = &w.dv[i][2 * j];
                leaf_u2 x = {cdna_operand(T(), leaf_f2{k[0][r], k[1][r]} * scale),
                             cdna_operand(T(), leaf_f2{k[2][r], k[3][r]} * scale)};
                leaf_u2 y = {cdna_operand(T(), leaf_f2{v[0][r], v[1][r]}),
                             cdna_operand(T(), leaf_f2{v[2][r], v[3][r]})};
                if (PART && key0 + 16 * i + r >= used) x = y = leaf_u2{0, 0};
                __builtin_amdgcn_raw_buffer_store_b64(x, kb, k_at + (uint32_t)((16 * i + r) * k_stride * 2), 0, 0);
                __builtin_amdgcn_raw_buffer_store_b64(y, vb, v_at + (uint32_t)((16 * i + r) * v_stride * 2), 0, 0);
            }
    }
}

template <class C> DEV_FN void attn_cdna_store(const C &w, const attn_work_tile &u) {
    int used = (int)stw_clamp_i64(dev_uniform(u.seq.kv.used) - dev_uniform(u.j0), 0, C::BN);
    if (used < C::BN) attn_cdna_store_rows<C, true>(w, u, used);
    else attn_cdna_store_rows<C, false>(w, u, used);
}

/* What a pair's visibility is made of; the walk over the query heads. */
template <bool EXACT, class C>
DEV_FN void attn_cdna_scheduler(C &w, const attn_work_tile &u, int first, int end, int wave, int lane) {
    cdna_launch l = cdna_launch_again();
    const int64_t far = INT64_C(1) << 28;
    int64_t j0 = dev_uniform(u.j0);
    int high = (int)stw_clamp_i64(dev_uniform(u.seq.band.high) - j0, -far, far),
        low = (int)stw_clamp_i64(dev_uniform(u.seq.band.low) - j0, -far, far);
    int key = 48 * wave + lane % 16;
    w.scale_log2 = l->p.scale * DEV_LOG2E;
    w.seen_from = 4 * (lane / 16) - key + high; /* seen: row + high >= key and row + low <= key */
    w.span = high - low;
    w.bounded = low > -far;
    w.keys_left = (int)stw_clamp_i64(dev_uniform(u.seq.kv.used) - j0, 0, C::BN) - key;
    int h = dev_uniform(u.kv_head) * (int)l->p.group, head_end = h + (int)l->p.group;
    do {
        attn_cdna_enter(w, u, h, first, end);
        int block = first;
        if constexpr (EXACT) {
            for (; block < end; ++block) attn_cdna_step<CDNA_EXACT>(w, block, 0);
            continue;
        }
        do {
            attn_cdna_run run = attn_cdna_run_of(w, u, block, end);
            for (int from = block; block < run.any; ++block) attn_cdna_step<CDNA_ANY>(w, block, block - from);
            for (; block < run.edge; ++block) attn_cdna_step<CDNA_EDGE>(w, block, 0);
            for (; block < run.inner; ++block) attn_cdna_step<CDNA_INNER>(w, block, 0);
        } while (block < end);
    } while (++h < head_end);
}

/* K or V is subnormal, or holds what products may lose: the same for all threads. */
template <class C> DEV_FN bool attn_cdna_look_at_keys(const C &w, attn_work_tile &u, int lane) {
    if constexpr (dev_is_f16<typename C::T>::yes) return false;
    if constexpr (dev_flushes<typename C::T>::yes) {
        int of_k = (attn_cdna_counts<C>(w.k) ? 1 : 0) | (attn_cdna_flushed<C>(w.k) ? 2 : 0);
        int of_v = (attn_cdna_counts<C>(w.v) ? 1 : 0) | (attn_cdna_flushed<C>(w.v) ? 2 : 0);
        if (lane == 0) {
            dev_or(&u.k_counts, of_k);
            dev_or(&u.v_counts, of_v);
        }
    } else {
        if (attn_cdna_counts<C>(w.k)) u.k_counts = 1;
        if (attn_cdna_counts<C>(w.v)) u.v_counts = 1;
    }
    dev_barrier();
    return dev_uniform(u.k_counts) != 1 || dev_uniform(u.v_counts) != 1;
}

/* One of the query blocks that a work tile meets is marked as subnormal or holding what products may lose. */
template <class C> DEV_FN bool attn_cdna_rows_marked(const attn_work_tile &u, int first, int end, int lane) {
    cdna_launch l = cdna_launch_again();
    int64_t head = dev_uniform(u.kv_head) * (int64_t)l->p.group, head_end = head + l->p.group;
    bool marked = false;
    for (; head < head_end; ++head) {
        const DEV_GLOBAL float *stats =
            (const DEV_GLOBAL float *)(l->stats + (head * l->q_blocks + dev_uniform(u.seq.q_block)) * C::STATS);
        for (int block = first + lane; block < end; block += 64)
            marked |= stats[block * C::STATS + 2 * C::BM + 1] != 0.0f;
    }
    return __builtin_amdgcn_ballot_w64(marked) != 0;
}

/* Keys that some query meets, of a work tile that this kernel does. */
template <bool EXACT, class C>
DEV_FN void attn_cdna_work_tile(C &w, const attn_work_tile &u, int first, int end, char *smem, int wave, int lane) {
    attn_cdna_places(w, (cdna_lds *)(DEV_SHARED void *)smem, (int)dev_thread(), wave, lane);
    attn_cdna_clear(w);
    attn_cdna_scheduler<EXACT>(w, u, first, end, wave, lane);
    attn_cdna_store(w, u);
}

template <class C> DEV_FN void attn_cdna_main(const stw_attn_launch &launch, char *smem) {
    attn_work_tile &u = *(attn_work_tile *)(void *)(smem + C::AT_WORK_TILE);
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_work_tile_take_now(u, launch, wave, lane);
    if (!u.live) return;
    C w;
    int first = dev_uniform(u.first), end = dev_uniform(u.end);
    if (first >= end) {
        attn_cdna_clear(w);
        attn_cdna_store(w, u);
        return;
    }
    attn_cdna_epilogue(w, u, wave, lane);
    w.exact = attn_cdna_look_at_keys<C>(w, u, lane);
    if constexpr (dev_flushes<typename C::T>::yes) {
        if (w.exact || attn_cdna_rows_marked<C>(u, first, end, lane)) { /* left to the exact kernel */
            cdna_launch l = cdna_launch_again();
            if (dev_thread() == 0)
                l->tile_counter[2 + dev_fetch_add(l->tile_counter + 1, 1)] =
                    (uint64_t)u.index << 32 | (uint64_t)u.kv_head;
            return;
        }
    }
    attn_cdna_work_tile<false>(w, u, first, end, smem, wave, lane);
}

/* The work tiles that the main loop has left alone: every product as f32, a quarter as fast. */
template <class C> DEV_FN void attn_cdna_exact(const stw_attn_launch &launch, char *smem) {
    attn_work_tile &u = *(attn_work_tile *)(void *)(smem + C::AT_WORK_TILE);
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    if (dev_cta() >= (int64_t)launch.tile_counter[1]) return;
    if (wave == 0) {
        const uint64_t work_tile = launch.tile_counter[2 + dev_cta()];
        const attn_place at = {(uint32_t)(work_tile >> 32), (int)(uint32_t)work_tile, true};
        attn_work_tile_fetch(u, launch, at, lane);
    }
    dev_copy_commit();
    dev_copy_wait();
    dev_barrier();
    C w;
    attn_cdna_epilogue(w, u, wave, lane);
    w.exact = true;
    attn_cdna_work_tile<true>(w, u, dev_uniform(u.first), dev_uniform(u.end), smem, wave, lane);
}

#endif
