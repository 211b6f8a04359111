/* SPDX-License-Identifier: MIT
 *
 * What calls a step of CDNA's own main loop (attn_bwd_cdna.h): the look for subnormal operands, the scheduler that
 * goes over query heads and blocks, the epilogue (dK and dV to memory), and the two kernels, attn_cdna_main and
 * attn_cdna_exact. A work tile is BN keys of one kv head. C: attn_cdna, the shapes. */
#ifndef STW_HIP_ATTN_BWD_CDNA_SCHEDULER_H
#define STW_HIP_ATTN_BWD_CDNA_SCHEDULER_H

#include "attn_bwd_cdna_f32.h"
#include "attn_bwd_cdna_lift.h"

/* Work tiles with subnormal operands are left to the exact kernel, or done at once as it does them, where products
 * would lose these. Elsewhere bf16 adds sums of dQ that may be subnormal exactly, in steps CDNA_ANY; f16 has none, and
 * f32 may lose them. */
template <class C> DEV_FN constexpr bool attn_cdna_leaves() { return dev_flushes<typename C::T>::yes; }
template <class C> DEV_FN constexpr bool attn_cdna_adds_exactly() {
    return !attn_cdna_leaves<C>() && sizeof(typename C::T) == 2 && !dev_is_f16<typename C::T>::yes;
}

/* K or V holds an element that counts (attn_bwd_subnormal.h): ordinary data has one in the first word of some lane. */
template <int TILES, int PIECES> DEV_FN bool attn_cdna_counts(const leaf_u2 (&x)[TILES][PIECES][2]) {
    const uint32_t least = 0x35800000u; /* 2^-20 */
    if (__builtin_amdgcn_ballot_w64((x[0][0][0].x & 0x7fff0000u) >= least)) return true;
    bool counts = false;
    DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
        DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                uint32_t word = x[i][j][e / 2][e % 2];
                counts |= (word & 0x7fff0000u) >= least || (word << 16 & 0x7fff0000u) >= least;
            }
        if (__builtin_amdgcn_ballot_w64(counts)) return true;
    }
    return false;
}

/* Where products may lose what is subnormal: K or V holds such elements. */
template <int TILES, int PIECES> DEV_FN bool attn_cdna_flushed(const leaf_u2 (&x)[TILES][PIECES][2]) {
    cdna_least least = {(leaf_us2)0xffff};
    DEV_UNROLL_FOR (int i = 0; i < TILES; ++i)
        DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) least.add(x[i][j][e / 2][e % 2]);
    return least.flushed();
}

/* The same work tile. Its address is made anew here, so that it occupies no register in the loops before. */
DEV_FN const attn_work_tile &attn_cdna_again(const attn_work_tile &u) {
    typedef DEV_SHARED const attn_work_tile shared;
    return *(const attn_work_tile *)cdna_opaque_scalar((shared *)&u);
}

/* Query head h, from block `first` on: its first rows are in LDS and the next ones on their way. */
template <bool LIFTED, class C>
DEV_FN void attn_cdna_enter(attn_cdna_loop<C> &w, const attn_work_tile &tile, int h, int first, int end) {
    cdna_launch l = cdna_launch_again();
    const attn_work_tile &u = attn_cdna_again(tile);
    int thread = w.thread(), lane = thread & 63;
    int64_t b = dev_uniform(u.b), row = dev_uniform(u.seq.q.first), at = h * l->q_blocks + dev_uniform(u.seq.q_block);
    w.queries.enter_head(l, u, b, row, h, first, thread);
    w.stats.from = cdna_buffer_of(l->stats + at * C::STATS, end * C::STATS * 4);
    w.stats.enter_head(first, lane);
    w.dq.enter_head(l->dq + at * (C::BM * C::HD), first, thread);
    w.feature.enter_head(u, l, h, first, thread);
    if constexpr (cdna_biased(C::MODE) && sizeof(typename C::T) == 2) w.feature.template fetch<true>();
    w.turn.enter_head(l->dq_semaphore + at + first);
    w.queries.fetch(w.ahead);
    w.stats.fetch(w.ahead, w.dq.at);
    const int low = (int)dev_uniform(u.seq.q_low) - first * C::BM;
    if (dev_uniform(u.seq.q_low) > first * C::BM) w.queries.clear_before(w.ahead, low, thread);
    if constexpr (LIFTED) w.queries.lift(w.ahead);
    DEV_UNROLL_FOR (int i = 0; i < 2 * C::UNITS; ++i) w.queries.put(w.ahead, i);
    w.stats.put(w.ahead, w.lds, w.dq.at);
    w.queries.fetch(w.ahead);
    if (C::PARTS == 2 && dev_uniform(u.seq.q_low) > first * C::BM + C::HELD)
        w.queries.clear_before(w.ahead, low - C::HELD, thread);
    w.stats.fetch(w.ahead, w.dq.at);
    cdna_barrier();
}

/* Steps of a wave from a block on, by their ends: `unseen`, then `any`, then `edge`, then `inner` ones. */
struct attn_cdna_run {
    int unseen, any, edge, inner;
};
DEV_FN int cdna_ones(uint64_t x) { return ~x ? __builtin_ctzll(~x) : 64; }
DEV_FN uint64_t cdna_drop(uint64_t x, int bits) { return bits < 64 ? x >> bits : 0; }

/* Which key block adds before this one, for each of 64 query blocks from `block` on and before `end`: a lane of
 * turn.awaited each. */
template <class C>
DEV_FN void attn_cdna_await(attn_cdna_loop<C> &w, const attn_work_tile &u, int h, int block, int end) {
    if constexpr (cdna_may_hide(C::MODE) && (int)C::TURNS != CDNA_NO_TURNS) {
        if (!w.turn.is_asked()) return;
        if constexpr (!cdna_hides(C::MODE)) {
            if (!cdna_has_masks(cdna_launch_again())) return;
            w.feature.masks.enter_head(u, cdna_launch_again(), h, 0, 0);
        }
        w.turn.from = block;
        const int mine = block + (w.thread() & 63);
        if (mine < end) w.turn.awaited = attn_cdna_awaited<C>(cdna_masks_of<C>(w.feature), u, mine);
    }
}

/* `any` are query blocks with a row whose LSE is infinite, with subnormal numbers, or at an edge of a mask that has a
 * left bound. Each wave has its own kinds of steps; all kinds have the same barriers. */
template <class C>
DEV_FN attn_cdna_run attn_cdna_run_of(attn_cdna_loop<C> &w, const attn_work_tile &u, int h, int block, int end) {
    int thread = w.thread();
    int mine = block + (thread & 63);
    uint32_t marks_at = (uint32_t)(mine * (C::STATS * 4) + 2 * C::BM * 4);
    leaf_u2 marks = __builtin_amdgcn_raw_buffer_load_b64(w.stats.from, marks_at, 0, 0);
    w.subnormal_steps = attn_cdna_adds_exactly<C>() ? __builtin_amdgcn_ballot_w64(marks.y != 0 || w.subnormal_keys) : 0;
    uint64_t edge, unseen = 0;
    if constexpr (C::SKIPS) {
        bool some, all;
        w.scoring.look(mine * C::BM, C::BM, C::KEYS, some, all);
        edge = __builtin_amdgcn_ballot_w64(!all);
        unseen = __builtin_amdgcn_ballot_w64(!some) & ~w.subnormal_steps; /* whose sums take exact additions */
    } else edge = __builtin_amdgcn_ballot_w64(mine < dev_uniform(u.inner_first) || mine >= dev_uniform(u.inner_end));
    uint64_t any = __builtin_amdgcn_ballot_w64(marks.x != 0) | w.subnormal_steps | (w.scoring.bounded ? edge : 0);
    if constexpr (C::MODE == CDNA_DROPOUT)
        any |= w.feature.draws() ? w.feature.map == STW_DROPOUT_PHILOX ? 0 : edge : ~UINT64_C(0);
    if constexpr (cdna_knows_bias(C::MODE))
        any |= w.feature.element == 2 && !w.feature.gradient && !w.feature.is_every(cdna_launch_again()) ? 0
                                                                                                         : ~UINT64_C(0);
    if constexpr (cdna_hides(C::MODE))
        any |= __builtin_amdgcn_ballot_w64(attn_cdna_hidden_of<C>(w.feature, u, mine).some);
    attn_cdna_await(w, u, h, block, end);
    any &= ~unseen;
    edge &= ~(unseen | any);
    int most = end - block < 64 ? end - block : 64, none = cdna_ones(unseen),
        n = none + cdna_ones(cdna_drop(any, none));
    int m = n + cdna_ones(cdna_drop(edge, n)), k = m + cdna_ones(cdna_drop(~(unseen | any | edge), m));
    auto before_end = [&](int steps) { return block + (steps < most ? steps : most); };
    return {before_end(none), before_end(n), before_end(m), before_end(k)};
}

/* Where dK or dV goes, from the work tile's first key on. What nobody wants has no rows: its stores are dropped. */
struct attn_cdna_output {
    cdna_buffer to, sum; /* `sum`: f32 that is added to; else nothing, which reads as zeros */
    int stride, cols, used;
    leaf_f2 scale;
};

/* The rows of dK and dV that a work tile has: from which on, and as many keys as there are, and in use. */
struct attn_cdna_place {
    uint32_t b, kv_head;
    int64_t row;
    int end, used;
};

/* Rows up to the sequence's end; where sums are added to what is there, keys in use alone. T: of the tensor; `drained`:
 * it has earlier sums. */
template <class T>
DEV_FN attn_cdna_output attn_cdna_output_of(const attn_cdna_place &at, cdna_tensor &t, uint32_t output, uint32_t cols,
                                            float scale, bool drained) {
    cdna_launch l = cdna_launch_again();
    const bool adds = sizeof(T) == 4 && (drained || (l->p.accumulate & output));
    const int end = adds ? at.used : at.end, stride = (int)t.seq;
    const int bytes = l->p.outputs & output ? cdna_extent(end, stride, cols) * (int)(sizeof(T) / 2) : 0;
    const char *first = (const char *)t.data + cdna_row(t, at.b, at.kv_head, at.row) * (int)sizeof(T);
    return {cdna_buffer_of(first, bytes),
            cdna_buffer_of(first, adds ? bytes : 0),
            stride,
            (int)cols,
            at.used,
            (leaf_f2)scale};
}

/* Sums of a part, in the workspace: f32 without their factor, by rows of HD. */
template <class C>
DEV_FN attn_cdna_output attn_cdna_part_output(const attn_work_tile &u, uint32_t output, uint32_t cols, int used,
                                              bool drained) {
    cdna_launch l = cdna_launch_again();
    const int64_t place = dev_uniform(u.kv_head) * l->part_entries + (int64_t)(uint32_t)dev_uniform((int)u.index);
    const float *first = l->part_sums + (2 * place + (output == STW_OUT_DV)) * (C::BN * C::HD);
    const int bytes = l->p.outputs & output ? C::BN * C::HD * 4 : 0;
    return {cdna_buffer_of(first, bytes),
            cdna_buffer_of(first, drained ? bytes : 0),
            C::HD,
            (int)cols,
            used,
            (leaf_f2)1.0f};
}

/* Neighbouring columns of a row, two or four; 16 bits: rounded, or as f32. */
template <class T> DEV_FN void attn_cdna_put(T, const attn_cdna_output &o, uint32_t at, uint32_t x) {
    __builtin_amdgcn_raw_buffer_store_b32(x, o.to, at, 0, 0);
}
template <class T> DEV_FN void attn_cdna_put(T, const attn_cdna_output &o, uint32_t at, leaf_u2 x) {
    __builtin_amdgcn_raw_buffer_store_b64(x, o.to, at, 0, 0);
}
DEV_FN void attn_cdna_put(float, const attn_cdna_output &o, uint32_t at, leaf_f2 x) {
    x += __builtin_bit_cast(leaf_f2, __builtin_amdgcn_raw_buffer_load_b64(o.sum, at, 0, 0));
    __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(leaf_u2, x), o.to, at, 0, 0);
}
template <class T> DEV_FN void attn_cdna_put(T, const attn_cdna_output &o, uint32_t at, leaf_f4 x) {
    const leaf_u2 row = {cdna_operand(T(), x.xy), cdna_operand(T(), x.zw)};
    __builtin_amdgcn_raw_buffer_store_b64(row, o.to, at, 0, 0);
}
DEV_FN void attn_cdna_put(float, const attn_cdna_output &o, uint32_t at, leaf_f4 x) {
    x += __builtin_bit_cast(leaf_f4, __builtin_amdgcn_raw_buffer_load_b128(o.sum, at, 0, 0));
    __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(leaf_u4, x), o.to, at, 0, 0);
}

/* Values of two or four neighbouring columns, each rounded in a pair of rows, become those of row r. */
template <int COUNT_> struct attn_cdna_columns {
    enum { COUNT = COUNT_ };
};
template <class T> DEV_FN leaf_f2 attn_cdna_rounded(T, leaf_f2 x) { return cdna_rounded(T(), x); }
DEV_FN leaf_f2 attn_cdna_rounded(float, leaf_f2 x) { return x; }
template <class T> DEV_FN uint32_t attn_cdna_joined(T, const leaf_f4 (&x)[2], int r) {
    return cdna_joined(T(), x[0][r], x[1][r]);
}
template <class T> DEV_FN leaf_u2 attn_cdna_joined(T, const leaf_f4 (&x)[4], int r) {
    return leaf_u2{cdna_joined(T(), x[0][r], x[1][r]), cdna_joined(T(), x[2][r], x[3][r])};
}
DEV_FN leaf_f2 attn_cdna_joined(float, const leaf_f4 (&x)[2], int r) { return leaf_f2{x[0][r], x[1][r]}; }
DEV_FN leaf_f4 attn_cdna_joined(float, const leaf_f4 (&x)[4], int r) {
    return leaf_f4{x[0][r], x[1][r], x[2][r], x[3][r]};
}

/* dK or dV: of whole pieces of 64 columns four tiles hold four neighbouring columns; of the last 32, where these are
 * half of 64, two tiles hold two. PART: some keys are not in use, and get zeros. */
template <class T, bool PART, int TILES, int COLUMNS>
DEV_FN void attn_cdna_store_sums(const leaf_f4 (&sums)[TILES][COLUMNS], const attn_cdna_output &o, int n, int key0) {
    /* the tiles j to j + COUNT - 1: sums are scaled and rounded by pairs as they lie in registers */
    auto store = [&](int col, int j, auto count) {
        enum { COUNT = decltype(count)::COUNT };
        const uint32_t at = col < o.cols ? (uint32_t)(key0 * o.stride + col) * (uint32_t)sizeof(T) : CDNA_NOWHERE;
        DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
            leaf_f4 x[COUNT];
            DEV_UNROLL_FOR (int c = 0; c < COUNT; ++c) {
                const leaf_f2 low = attn_cdna_rounded(T(), sums[i][j + c].xy * o.scale);
                const leaf_f2 high = attn_cdna_rounded(T(), sums[i][j + c].zw * o.scale);
                x[c] = leaf_f4{low.x, low.y, high.x, high.y};
            }
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
                auto row = attn_cdna_joined(T(), x, r);
                if (PART && key0 + 16 * i + r >= o.used) row = decltype(row)(0);
                attn_cdna_put(T(), o, at + (uint32_t)((16 * i + r) * o.stride * (int)sizeof(T)), row);
            }
        }
    };
    enum { LAST = COLUMNS - 2 };
    if constexpr (COLUMNS % 4) store(16 * LAST + 4 * (n & 7) + 2 * (n >> 3), LAST, attn_cdna_columns<2>());
    DEV_UNROLL_FOR (int j = 0; j + 3 < COLUMNS; j += 4) store(16 * j + 4 * n, j, attn_cdna_columns<4>());
}

/* dK and dV, of T or f32: sums for keys in use, zeros up to the sequence's end. Of a part, to the workspace. `drained`:
 * f32 sums of earlier rows are there already. */
template <class C> DEV_FN void attn_cdna_store(const attn_cdna_loop<C> &w, const attn_work_tile &u, bool drained) {
    typedef typename C::T T;
    cdna_launch l = cdna_launch_again();
    const int thread = w.thread(), n = thread & 15, key0 = C::KEYS * dev_uniform(thread >> 6) + 4 * (thread >> 4 & 3);
    const int64_t j0 = dev_uniform(u.j0);
    const int used = (int)stw_clamp_i64(dev_uniform(u.seq.kv.used) - j0, 0, C::BN);
    const int end = (int)stw_smaller(C::BN, dev_uniform(u.seq.kv.rows) - j0);
    const attn_cdna_place at = {(uint32_t)dev_uniform(u.b), (uint32_t)dev_uniform(u.kv_head),
                                dev_uniform(u.seq.kv.first) + j0, end, used};
    auto store = [&](auto &sums, cdna_tensor &t, uint32_t output, uint32_t dtype, uint32_t cols, float scale) {
        if (l->part_sums || sizeof(T) == 4 || dtype == STW_F32)
            attn_cdna_store_sums<float, true>(sums,
                                              l->part_sums
                                                  ? attn_cdna_part_output<C>(u, output, cols, used, drained)
                                                  : attn_cdna_output_of<float>(at, t, output, cols, scale, drained),
                                              n, key0);
        else if (used < C::BN)
            attn_cdna_store_sums<T, true>(sums, attn_cdna_output_of<T>(at, t, output, cols, scale, false), n, key0);
        else attn_cdna_store_sums<T, false>(sums, attn_cdna_output_of<T>(at, t, output, cols, scale, false), n, key0);
    };
    store(w.dk, l->p.dk, STW_OUT_DK, l->p.dk_dtype, l->p.head_dim_qk, l->p.scale);
    store(w.dv, l->p.dv, STW_OUT_DV, l->p.dv_dtype, l->p.head_dim_v, 1.0f);
}

/* Steps from `block` on, before `end`, with the calls of each beside the products of the one before. */
template <int KIND, class C> DEV_FN void attn_cdna_draw_run(attn_cdna_loop<C> &w, int &block, int end) {
    if (block >= end) return;
    attn_cdna_drawing<cdna_draws_by(C::MODE, KIND), C>::begin(w.calls, w.feature, w.lds, block);
    for (; block < end; ++block) attn_cdna_step<KIND>(w, block, 0);
}

/* All steps of query blocks first .. end - 1 of head h. */
template <bool EXACT, class C>
DEV_FN void attn_cdna_stretch(attn_cdna_loop<C> &w, const attn_work_tile &u, int h, int first, int end) {
    attn_cdna_enter<attn_lifts<typename C::T>::yes && !EXACT>(w, u, h, first, end);
    int block = first;
    if constexpr (EXACT) {
        auto enter = [&] {
            if constexpr (cdna_knows_bias(C::MODE))
                w.feature.template enter_every<false>(attn_cdna_again(u), h, w.scoring.high, w.thread());
        };
        auto prepare = [&] {
            if constexpr (cdna_may_hide(C::MODE) && (int)C::TURNS != CDNA_NO_TURNS)
                if ((block - first) % 64 == 0) attn_cdna_await(w, u, h, block, end);
            if (C::ENTERS) enter();
        };
        enter();
        if constexpr (cdna_is_everything(C::MODE))
            if (w.feature.more.caps)
                for (; block < end; ++block) {
                    prepare();
                    attn_cdna_step<CDNA_EXACT_CAPPED>(w, block, 0);
                }
        for (; block < end; ++block) {
            prepare();
            attn_cdna_step<CDNA_EXACT>(w, block, 0);
        }
        w.turn.leave_head();
        return;
    }
    do {
        attn_cdna_run run = attn_cdna_run_of(w, u, h, block, end);
        const int from = block;
        if constexpr (C::SKIPS)
            if (block < run.unseen) {
                w.lds.clear_ds();
                for (; block < run.unseen; ++block) attn_cdna_step<CDNA_UNSEEN>(w, block, 0);
            }
        if constexpr (cdna_knows_bias(C::MODE))
            if (w.feature.is_every(cdna_launch_again())) {
                constexpr bool LIFTED = attn_lifts<typename C::T>::yes;
                auto enter = [&] {
                    w.feature.template enter_every<LIFTED>(attn_cdna_again(u), h, w.scoring.high, w.thread());
                };
                enter();
                if constexpr (cdna_is_everything(C::MODE))
                    if (w.feature.more.caps)
                        for (; block < run.any; ++block) {
                            if (C::ENTERS) enter();
                            attn_cdna_step<CDNA_CAPPED>(w, block, block - from);
                        }
                for (; block < run.any; ++block) {
                    if (C::ENTERS) enter();
                    attn_cdna_step<CDNA_EVERY>(w, block, block - from);
                }
            }
        if constexpr (cdna_is_everything(C::MODE)) continue; /* all steps are of these kinds */
        for (; block < run.any; ++block) attn_cdna_step<CDNA_ANY>(w, block, block - from);
        cdna_wait_memory(); /* the compiler cannot count exact additions: steps after them would wait for all */
        if constexpr (C::MODE == CDNA_DROPOUT)
            if (block < run.inner && w.feature.map == STW_DROPOUT_PHILOX)
                attn_cdna_drawing<STW_DROPOUT_PHILOX, C>::begin(w.calls, w.feature, w.lds, block);
        for (; block < run.edge; ++block) attn_cdna_step<CDNA_EDGE>(w, block, 0);
        if constexpr (C::AHEAD) {
            if (w.feature.map == STW_DROPOUT_FLASH2) attn_cdna_draw_run<CDNA_INNER_FLASH2>(w, block, run.inner);
            else if (w.feature.map == STW_DROPOUT_MEM_EFF) attn_cdna_draw_run<CDNA_INNER_MEM_EFF>(w, block, run.inner);
        } else if constexpr (C::OTHERS) {
            if (w.feature.map != STW_DROPOUT_PHILOX) attn_cdna_draw_run<CDNA_INNER_OTHERS>(w, block, run.inner);
        }
        for (; block < run.inner; ++block) attn_cdna_step<CDNA_INNER>(w, block, 0);
    } while (block < end);
    w.turn.leave_head();
}

/* Query blocks of head h, one after another, that no mask hides: from `block` on, before `stop`. */
struct attn_cdna_span {
    int h, block, stop;
};

/* To the first such blocks from at.block of head at.h on; false: none are left. Only kernels for masks look. */
template <class C>
DEV_FN bool attn_cdna_settle(attn_cdna_loop<C> &w, const attn_work_tile &u, attn_cdna_span &at, int first, int end,
                             int head_end) {
    if constexpr (cdna_may_hide(C::MODE)) {
        if (!cdna_hides(C::MODE) && !cdna_has_masks(cdna_launch_again())) {
            at.stop = end;
            return true;
        }
        const int lane = w.thread() & 63;
        attn_cdna_feature<C, CDNA_HIDDEN> &masks = cdna_masks_of<C>(w.feature);
        DEV_ROLLED for (;; at.block = first) {
            masks.enter_head(u, cdna_launch_again(), at.h, first, 0);
            at.block = attn_cdna_next<false, C>(masks, u, at.block, end, lane);
            if (at.block < end) break;
            if (++at.h >= head_end) return false;
        }
        at.stop = attn_cdna_next<true, C>(masks, u, at.block, end, lane);
    }
    return true;
}

/* To the blocks after those of `at`. */
template <class C>
DEV_FN bool attn_cdna_follow(attn_cdna_loop<C> &w, const attn_work_tile &u, attn_cdna_span &at, int first, int end,
                             int head_end) {
    if (cdna_may_hide(C::MODE) && at.stop < end) {
        at.block = at.stop;
        return attn_cdna_settle(w, u, at, first, end, head_end);
    }
    at.block = first;
    return ++at.h < head_end && attn_cdna_settle(w, u, at, first, end, head_end);
}

/* Query blocks whose f32 dK and dV are summed in registers (host: CDNA_SUM_ROWS). Whether the matrix unit rounds its
 * sums is not known, so longer ones are drained: added to memory, and begun anew. Kernels of two waves a SIMD have no
 * registers for that; without masks the host makes parts. f32 has ordinary additions. */
enum { CDNA_SUM_BLOCKS = 64 };
template <class C> DEV_FN constexpr bool attn_cdna_drains() {
    return cdna_may_hide(C::MODE) && C::IN_AGPRS && sizeof(typename C::T) == 2;
}
template <class C> DEV_FN int attn_cdna_undrained() {
    cdna_launch l = cdna_launch_again();
    const uint32_t halves = (l->p.dk_dtype == STW_F32 ? 0 : STW_OUT_DK) | (l->p.dv_dtype == STW_F32 ? 0 : STW_OUT_DV);
    const bool drains = !(l->p.outputs & halves) && !(l->p.features & STW_FEAT_ROUNDED_SUMS);
    if (!cdna_hides(C::MODE) && !cdna_has_masks(l)) return 1 << 30;
    return drains ? (int)CDNA_SUM_BLOCKS : 1 << 30;
}

/* What steps of a work tile need of the problem. `bound`: of dS (attn_bwd_cdna_lift.h). */
template <bool EXACT, class C>
DEV_FN void attn_cdna_prepare(attn_cdna_loop<C> &w, const attn_work_tile &u, float bound, int wave, int lane) {
    constexpr bool LIFTED = attn_lifts<typename C::T>::yes && !EXACT;
    cdna_launch l = cdna_launch_again();
    w.scoring.set(u, l, C::BN, wave, lane);
    w.feature.set(u, l, w.scoring.high);
    if constexpr (LIFTED) {
        w.scoring.lift(bound);
        w.feature.lift();
    }
    if constexpr (C::MODE == CDNA_DROPOUT)
        w.scoring.to_ds = cdna_shared<C>(LIFTED ? w.scoring.to_ds * w.feature.scale : w.feature.scale);
    if constexpr (cdna_knows_bias(C::MODE))
        w.scoring.to_ds = LIFTED ? w.scoring.to_ds * l->p.dropout_scale : l->p.dropout_scale;
    if constexpr (cdna_biased(C::MODE)) w.scoring.scale_log2 = l->p.scale * (LIFTED ? 0x1p-20f : 1.0f);
    if constexpr (C::MODE == CDNA_ALIBI) w.scoring.scale_log2 = cdna_shared<C>(w.scoring.scale_log2);
    w.turn.enter_work_tile(u, wave);
}

/* The scheduler: the query heads of the group from at.h on, and of each the query blocks first .. end - 1 that masks
 * leave, all or those whose sums are drained together. False: none are left. */
template <bool EXACT, class C>
DEV_FN bool attn_cdna_schedule(attn_cdna_loop<C> &w, const attn_work_tile &u, attn_cdna_span &at, int first, int end,
                               int head_end) {
    if constexpr (!attn_cdna_drains<C>()) {
        do attn_cdna_stretch<EXACT>(w, u, at.h, at.block, at.stop);
        while (attn_cdna_follow(w, u, at, first, end, head_end));
        return false;
    }
    int left = attn_cdna_undrained<C>();
    bool more;
    do {
        if (at.stop - at.block > left) at.stop = at.block + left;
        left -= at.stop - at.block;
        attn_cdna_stretch<EXACT>(w, u, at.h, at.block, at.stop);
        more = attn_cdna_follow(w, u, at, first, end, head_end);
    } while (more && left);
    return more;
}

/* All of K or V is close to subnormal, or products may lose some of it: the same for all threads. */
template <class C> DEV_FN bool attn_cdna_look_at_keys(const attn_cdna_loop<C> &w, attn_work_tile &u, int lane) {
    if constexpr (!attn_cdna_leaves<C>() && !attn_cdna_adds_exactly<C>()) return false;
    else if constexpr (dev_flushes<typename C::T>::yes) {
        int of_k = (attn_cdna_counts(w.keys.k) ? 1 : 0) | (attn_cdna_flushed(w.keys.k) ? 2 : 0);
        int of_v = (attn_cdna_counts(w.keys.v) ? 1 : 0) | (attn_cdna_flushed(w.keys.v) ? 2 : 0);
        if (lane == 0) {
            dev_or(&u.k_counts, of_k);
            dev_or(&u.v_counts, of_v);
        }
    } else {
        if (attn_cdna_counts(w.keys.k)) u.k_counts = 1;
        if (attn_cdna_counts(w.keys.v)) u.v_counts = 1;
    }
    dev_barrier();
    return dev_uniform(u.k_counts) != 1 || dev_uniform(u.v_counts) != 1;
}

/* A query block that the work tile meets is marked: all it holds is close to subnormal, or products may lose some. */
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

/* A work tile that some query meets: all its steps, and its dK and dV. `bound`: of dS (attn_bwd_cdna_lift.h). */
template <bool EXACT, class C>
DEV_FN void attn_cdna_work_tile(attn_cdna_loop<C> &w, const attn_work_tile &u, float bound, int first, int end,
                                char *smem, int wave, int lane) {
    cdna_lds *lds = (cdna_lds *)(DEV_SHARED void *)smem;
    w.lds.set(lds, wave, lane);
    w.queries.set_places(lds, (int)dev_thread(), wave);
    attn_cdna_prepare<EXACT>(w, u, bound, wave, lane);
    cdna_launch l = cdna_launch_again();
    attn_cdna_span at = {dev_uniform(u.kv_head) * (int)l->p.group, first, end};
    const int head_end = at.h + (int)l->p.group;
    bool more = attn_cdna_settle(w, u, at, first, end, head_end), drained = false;
    do {
        w.clear();
        if (more) more = attn_cdna_schedule<EXACT>(w, u, at, first, end, head_end);
        if constexpr (attn_lifts<typename C::T>::yes && !EXACT)
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
                DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES; ++j) w.dk[i][j] *= (leaf_f4)w.to_sums();
                DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES_V; ++j) w.dv[i][j] *= (leaf_f4)0x1p-20f;
            }
        if constexpr ((C::MODE == CDNA_DROPOUT && !C::P_SCALED) || cdna_knows_bias(C::MODE)) {
            const leaf_f4 scale = (leaf_f4)cdna_launch_again()->p.dropout_scale;
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
                DEV_UNROLL_FOR (int j = 0; j < 2 * C::PIECES_V; ++j) w.dv[i][j] *= scale;
        }
        attn_cdna_store(w, u, drained);
        drained = true;
        if (attn_cdna_drains<C>() && more) cdna_wait_memory();
    } while (attn_cdna_drains<C>() && more);
}

/* One thread lists a work tile for the exact kernel. A kernel with TURNS multiplies it exactly at once: other work
 * tiles may wait for its additions. */
template <class C>
DEV_FN void attn_cdna_leave(attn_cdna_loop<C> &w, const attn_work_tile &u, int first, int end, char *smem, int wave,
                            int lane) {
    if constexpr ((int)C::TURNS != CDNA_NO_TURNS) {
        attn_cdna_work_tile<true>(w, u, 0.0f, first, end, smem, wave, lane);
        return;
    }
    cdna_launch l = cdna_launch_again();
    const uint64_t tile = (uint64_t)u.index << 32 | (uint64_t)u.kv_head;
    if (dev_thread() == 0) l->tile_counter[2 + dev_fetch_add(l->tile_counter + 1, 1)] = tile;
}

/* The work tile of this workgroup, where the device's XCDs share all heads evenly (STW_XCDS_SHIFT). The hardware deals
 * workgroups out to the XCDs in turn; each XCD gets whole heads, whose key blocks then share its L2. An XCD goes
 * through its work tiles in the order of attn_place_of, here in 32 bits. */
DEV_FN attn_place attn_cdna_place_of(const stw_attn_launch &l, uint32_t xcds, uint32_t cta) {
    const uint32_t blocks = (uint32_t)l.k_blocks, beside = (uint32_t)l.heads_in_l2, heads_kv = (uint32_t)l.p.heads_kv;
    const uint32_t turn = cta / xcds, number = (cta - turn * xcds) * ((uint32_t)l.work_tiles / xcds) + turn;
    const uint32_t group = number / (beside * blocks), rest = number - group * (beside * blocks), block = rest / beside;
    const uint32_t head = group * beside + rest - block * beside, b = head / heads_kv;
    return {b * blocks + block, (int)(head - b * heads_kv), true};
}

template <class C> DEV_FN void attn_cdna_take(attn_work_tile &u, const stw_attn_launch &l, int wave, int lane) {
    enum { TURNS = (int)C::TURNS };
    const uint32_t xcds = TURNS == CDNA_TURNS ? 0 : l.vectors >> STW_XCDS_SHIFT;
    if (TURNS == CDNA_TURNS || (TURNS == CDNA_TURNS_ASKED && l.vectors & STW_KEYS_DESCEND)) {
        attn_work_tile_take_now<true>(u, l, wave, lane);
        return;
    }
    if (!xcds) {
        attn_work_tile_take_now<false>(u, l, wave, lane);
        return;
    }
    if (wave == 0) attn_work_tile_fetch(u, l, attn_cdna_place_of(l, xcds, (uint32_t)dev_cta()), lane);
    dev_copy_commit();
    dev_copy_wait();
    dev_barrier();
}

/* The main kernel: a workgroup takes one work tile. */
template <class C> DEV_FN void attn_cdna_main(const stw_attn_launch &launch, char *smem) {
    attn_work_tile &u = *(attn_work_tile *)(void *)(smem + C::AT_WORK_TILE);
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_cdna_take<C>(u, launch, wave, lane);
    if (!u.live) return;
    attn_cdna_loop<C> w;
    w.wave = wave;
    int first = dev_uniform(u.first), end = dev_uniform(u.end);
    if (first >= end) {
        w.clear();
        attn_cdna_store(w, u, false);
        return;
    }
    w.keys.load(u, wave, lane);
    w.subnormal_keys = attn_cdna_look_at_keys<C>(w, u, lane);
    if constexpr (attn_cdna_leaves<C>()) {
        if (w.subnormal_keys || attn_cdna_rows_marked<C>(u, first, end, lane)) {
            attn_cdna_leave(w, u, first, end, smem, wave, lane);
            return;
        }
    }
    float bound = 0.0f;
    if constexpr (attn_lifts<typename C::T>::yes) {
        bound = attn_cdna_ds_bound<C>(u, attn_cdna_values_norm<C>(w.keys, u, lane), first, end, lane);
        if (!(bound < 0x1p15f)) {
            attn_cdna_leave(w, u, first, end, smem, wave, lane);
            return;
        }
        attn_cdna_lift_keys<C>(w.keys);
    }
    attn_cdna_work_tile<false>(w, u, bound, first, end, smem, wave, lane);
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
    attn_cdna_loop<C> w;
    w.wave = wave;
    w.keys.load(u, wave, lane);
    w.subnormal_keys = true;
    attn_cdna_work_tile<true>(w, u, 0.0f, dev_uniform(u.first), dev_uniform(u.end), smem, wave, lane);
}

#endif
