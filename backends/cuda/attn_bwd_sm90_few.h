/* SPDX-License-Identifier: MIT
 *
 * Main loop for few query rows and many keys (loops `few16` and `few64`). A work tile is a slice of the keys of a kv
 * head; all query rows of all heads of its group are the rows of one block, so that each key is met once:
 *
 *     keys  +----+     S^T = K Q^T, P^T = exp(S^T - LSE)      registers; a warp has 16 keys
 *      j    |####|     dP^T = V dO^T, dS^T = P^T (dP^T - D)   registers, and shared memory for dQ
 *           +----+     dV = P^T dO, dK = dS^T Q               registers, straight to the tensors
 *     rows 0..         dQ += dS K                             registers, to the end of the slice
 *
 * K and V pass through once while dK and dV are written: the loop is to be as fast as memory. Row r is query
 * r mod n of head r / n of the group, n the sequence's queries in use. At the end of a slice its dQ is added to the f32
 * sums that the last kernel converts; in deterministic mode slices add in ascending order, as in attn_bwd.h. */
#ifndef STW_CUDA_ATTN_BWD_SM90_FEW_H
#define STW_CUDA_ATTN_BWD_SM90_FEW_H

#include "attn_bwd_sm90_few_sizes.h"
#include "common/kernels/attn_bwd_scheduler.h"
#include "mma_sm90.h"

/* A row: -LSE*log2(e) and -D, and the keys of the slice that it sees: `low` and `span` after it. */
struct alignas(16) few_row {
    float stat, delta;
    int low;
    uint32_t span;
};
/* Of the slice, keys that all rows see. */
struct few_common {
    int low, high;
};

template <class T_, int HD_, int ROWS_> struct few_config {
    typedef T_ T;
    enum {
        HD = HD_,
        ROWS = ROWS_,
        BN = (int)STW_SM90_FEW_KEYS,
        WARPS = (int)STW_SM90_FEW_WARPS,
        THREADS = WARPS * DEV_WAVE,
        STAGES = (int)STW_SM90_FEW_STAGES((unsigned)ROWS_)
    };
    typedef dev_tile<T, BN, HD> keys;
    typedef dev_tile<T, ROWS, HD> rows;
    typedef dev_tile<T, BN, ROWS> scores; /* transposed */
    typedef dev_split<T, ROWS, HD, WARPS> row_split;
    struct score_split {
        enum { R = WARPS, C = 1, M = 16, N = ROWS, MT = 1, NT = ROWS / LEAF_MMA_N };
        DEV_FN int row0(int wave) { return wave * M; }
        DEV_FN int col0(int) { return 0; }
    };
    enum {
        AT_K = 0,
        AT_V = AT_K + STAGES * keys::BYTES,
        AT_Q = AT_V + STAGES * keys::BYTES,
        AT_DOUT = AT_Q + rows::BYTES,
        AT_DS = AT_DOUT + rows::BYTES,
        AT_ROWS = AT_DS + scores::BYTES,
        AT_COMMON = AT_ROWS + ROWS * (int)sizeof(few_row),
        AT_TILE = AT_COMMON + 16
    };
    static_assert(AT_TILE + STW_WORK_TILE_BYTES == STW_SM90_FEW_SMEM((unsigned)HD_, (unsigned)ROWS_),
                  "host and device agree on shared memory");
};

/* This thread's part of K or V, step by step. */
template <class C> struct few_loads {
    typedef typename C::T T;
    typedef dev_row_copy<typename C::keys, C::THREADS> copy;
    const T *from;
    int64_t stride;
    int low; /* of the slice: the first key that is not zeros, and how many there are */
    uint32_t span;
    DEV_FN few_loads of(const stw_tensor_param &t, const T *keys, int low, int end, int cols) {
        const int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
        return {keys + row * t.seq + col, t.seq, low - row, col < cols && low < end ? (uint32_t)(end - low) : 0u};
    }
    DEV_METHOD void step(T *tile) {
        const int t = (int)dev_thread();
        const T *at = from;
        DEV_UNROLL_FOR (int i = 0; i < copy::COUNT; ++i, at += copy::STEP * stride)
            dev_copy_vector(tile + C::keys::at(copy::row(t) + i * copy::STEP, copy::col(t)), at,
                            (uint32_t)(i * copy::STEP - low) < span);
        from = at;
        low -= C::BN;
    }
};

/* A slice, in registers. */
template <class C> struct few_slice {
    typedef typename C::T T;
    int64_t b, j0, at; /* at: statistics of its first row: (head, query block) */
    int64_t kv_first;
    int low, end; /* keys that some row sees, of the slice */
    int h0, kv_head;
    int queries, rows; /* of a head, of all heads       */
    int keys;          /* of the slice, with those past the used length */

    DEV_FN few_slice of(const attn_work_tile &u, const stw_attn_launch &l) {
        const stw_attn_params &p = l.p;
        few_slice s;
        s.b = dev_uniform(u.b);
        s.j0 = dev_uniform(u.j0);
        s.kv_head = dev_uniform(u.kv_head);
        s.h0 = s.kv_head * (int)p.group;
        s.queries = dev_uniform((int)u.seq.q.used);
        s.rows = s.queries * (int)p.group;
        s.keys = (int)stw_clamp_i64(dev_uniform(u.seq.kv.rows) - s.j0, 0, l.bn);
        s.at = s.h0 * l.q_blocks + dev_uniform(u.seq.q_block);
        const stw_range seen = stw_visible_keys(&u.seq);
        s.low = (int)stw_clamp_i64(seen.first - s.j0, 0, l.bn);
        s.end = (int)stw_clamp_i64(seen.end - s.j0, 0, l.bn);
        s.kv_first = dev_uniform(u.seq.kv.first);
        return s;
    }
    DEV_METHOD few_loads<C> loads(const stw_tensor_param &t, int cols) const {
        return few_loads<C>::of(t, (const T *)t.data + dev_row(t, b, kv_head, kv_first + j0), low, end, cols);
    }
    /* Q or dO: rows of several heads. Those that see no key become zeros. */
    DEV_METHOD void load_rows(T *tile, const stw_tensor_param &t, const attn_work_tile &u, int cols) const {
        typedef typename C::rows R;
        enum { VECTORS = R::COLS / R::VECTOR };
        DEV_ROLLED_FOR (int at = (int)dev_thread(); at < R::ROWS * VECTORS; at += C::THREADS) {
            const int r = at / VECTORS, c = at % VECTORS * R::VECTOR, h = r / max(queries, 1), i = r - h * queries;
            const bool live = r < rows && c < cols && i >= u.seq.q_low && i < u.seq.q_end;
            const T *from = (const T *)t.data + (live ? dev_row(t, b, h0 + h, u.seq.q.first + i) + c : 0);
            dev_copy_vector(tile + R::at(r, c), from, live);
        }
    }
    /* What rows see; a thread a row, and then the first warp for all. */
    DEV_METHOD void list_rows(const stw_attn_launch &l, const attn_work_tile &u, char *smem) const {
        few_row *const list = (few_row *)(void *)(smem + C::AT_ROWS);
        const int r = (int)dev_thread(), far = 1 << 30;
        if (r < C::ROWS) {
            few_row row = {-dev_infinity(), 0.0f, far, 0};
            const int h = r / max(queries, 1), i = r - h * queries;
            if (r < rows) {
                const float *stats = l.stats + (at + h * l.q_blocks) * (2 * C::ROWS + (int)STW_STATS_PAD) + i;
                row.stat = stats[0];
                row.delta = stats[C::ROWS];
                const int64_t low = stw_larger(i + u.seq.band.low, 0),
                              high = stw_smaller(i + u.seq.band.high, u.seq.kv.used - 1);
                if (row.stat != -dev_infinity() && low <= high) {
                    row.low = (int)stw_clamp_i64(low - j0, 0, far);
                    const int last = (int)stw_clamp_i64(high - j0, -1, far - 1);
                    row.span = (uint32_t)(last - row.low);
                    if (last < row.low) row.low = far, row.span = 0;
                }
            }
            list[r] = row;
        }
        dev_barrier();
        if (dev_wave() == 0) {
            uint32_t low = 0, hidden = 0; /* keys past the last that all see: as many as `far` says */
            DEV_UNROLL_FOR (int r = (int)dev_lane(); r < C::ROWS; r += DEV_WAVE) {
                low = max(low, (uint32_t)list[r].low);
                hidden = max(hidden, (uint32_t)far - (uint32_t)list[r].low - list[r].span);
            }
            DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) {
                low = max(low, dev_shuffle_xor(low, mask));
                hidden = max(hidden, dev_shuffle_xor(hidden, mask));
            }
            if (dev_lane() == 0) *(few_common *)(void *)(smem + C::AT_COMMON) = {(int)low, far - (int)hidden};
        }
    }
};

/* S^T and dP^T of a warp's 16 keys -> P^T and dS^T. SOME: not all rows see all keys; pairs that are hidden, and those
 * whose P is 0, give 0 whatever dP is. `key`: this lane's first, of the slice. */
template <class C, bool SOME>
DEV_FN void few_scores(dev_acc<typename C::score_split> &s, dev_acc<typename C::score_split> &dp, const char *smem,
                       float factor, int key, int lane) {
    const few_row *const list = (const few_row *)(const void *)(smem + C::AT_ROWS);
    DEV_UNROLL_FOR (int n = 0; n < C::score_split::NT; ++n)
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
            const few_row row = list[n * LEAF_MMA_N + leaf_acc_col(lane, half)];
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
                const int i = 2 * slot + half;
                const float x = dev_exp2_fast(fmaf(s.v[0][n][i], factor, row.stat)),
                            y = x * (dp.v[0][n][i] + row.delta);
                const bool seen = !SOME || ((uint32_t)(key + 8 * slot - row.low) <= row.span && x != 0.0f);
                s.v[0][n][i] = seen ? x : 0.0f;
                dp.v[0][n][i] = seen ? y : 0.0f;
            }
        }
}

/* Accumulators of 16 keys as the first operand of a product over the rows. */
template <class C> struct few_operand {
    typedef leaf_mma<typename C::T> mma;
    typename mma::a_frag k[C::ROWS / 16];
    DEV_METHOD void pack(const dev_acc<typename C::score_split> &x) {
        DEV_UNROLL_FOR (int i = 0; i < C::ROWS / 16; ++i)
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
                const float *pair = x.v[0][2 * i + e / 2] + 2 * (e % 2);
                k[i].r[e] = dev_pack(typename C::T(), pair[0], pair[1]);
            }
    }
};

/* dV = P^T dO or dK = dS^T Q of a warp's 16 keys, some columns at a time, to the tensor. `first`: the warp's first key,
 * of the slice. */
template <class C>
DEV_FN void few_key_gradient(const few_operand<C> &a, const typename C::T *rows, const few_slice<C> &slice,
                             const stw_tensor_param &to, int first, int cols, float scale, bool vectors, int lane) {
    typedef typename C::T T;
    typedef leaf_mma<T> mma;
    enum { TILES = 8, G = 4 };
    T *const at = (T *)to.data + dev_row(to, slice.b, slice.kv_head, slice.kv_first + slice.j0 + first);
    DEV_ROLLED_FOR (int c = 0; c < cols; c += TILES * LEAF_MMA_N) {
        float acc[TILES][LEAF_ACC];
        DEV_UNROLL_FOR (int n = 0; n < TILES; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) acc[n][i] = 0.0f;
        DEV_UNROLL_FOR (int k = 0; k < C::ROWS / 16; ++k) {
            typename mma::b_frag b[TILES / 2];
            DEV_UNROLL_FOR (int g = 0; g < TILES / 2; ++g)
                mma::template load_b<true, typename C::rows>(b[g], rows, c + g * 16, k * 16, lane);
            DEV_UNROLL_FOR (int n = 0; n < TILES; ++n) mma::product(acc[n], a.k[k], b[n / 2], n % 2);
        }
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            const int row = leaf_slot_row(lane, slot);
            const bool counts = first + row >= slice.low && first + row < slice.end;
            T *const line = at + row * to.seq;
            DEV_UNROLL_FOR (int n = 0; n < TILES; n += G) {
                uint32_t w[G];
                DEV_UNROLL_FOR (int g = 0; g < G; ++g) {
                    const float *x = acc[n + g] + 2 * slot;
                    w[g] = counts ? dev_pack(T(), x[0] * scale, x[1] * scale) : 0u;
                }
                leaf_gather<G>(w, lane);
                const int col = c + n * LEAF_MMA_N + leaf_gathered_col<G>(lane);
                if (first + row < slice.keys && col < cols) {
                    if (vectors) sm90_store_result(line + col, dev_vector{{w[0], w[1], w[2], w[3]}});
                    else
                        DEV_ROLLED_FOR (int e = 0; e < 2 * G; ++e) {
                            const uint32_t two = e < 4 ? (e < 2 ? w[0] : w[1]) : (e < 6 ? w[2] : w[3]);
                            line[col + e].bits = (uint16_t)(e & 1 ? two >> 16 : two);
                        }
                }
            }
        }
    }
}

/* dQ of a slice to the f32 sums, which lie as if each head had a block of its own (dev_sum_at): by way of the places of
 * K and V, which nobody reads any more. Additions to memory take subnormal numbers for zero: values so small that one
 * may be in the sum go by compare-and-swap. */
template <class C>
DEV_FN void few_add_dq(const dev_acc<typename C::row_split> &dq, const few_slice<C> &slice, const stw_attn_launch &l,
                       char *smem, int wave, int lane) {
    typedef typename C::row_split S;
    enum { STRIDE = C::HD + 8 };
    static_assert(C::ROWS * STRIDE * 4 <= C::AT_Q, "room for the sums");
    float *const sums = (float *)(void *)(smem + C::AT_K);
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot)
                dev_set_pair(sums + (S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot)) * STRIDE +
                                 S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, 0),
                             dq.v[m][n][2 * slot], dq.v[m][n][2 * slot + 1]);
    dev_barrier();
    DEV_ROLLED_FOR (int h = 0; h * slice.queries < slice.rows; ++h) {
        float *const to = l.dq + (slice.at + h * l.q_blocks) * (C::ROWS * C::HD);
        DEV_ROLLED_FOR (int f = 0; f < S::MT * S::NT; ++f) {
            const int row = S::row0(wave) + f / S::NT * LEAF_MMA_M + lane / 4,
                      col = S::col0(wave) + f % S::NT * LEAF_MMA_N + leaf_acc_col(lane, 0);
            const float *const from = sums + (h * slice.queries + row) * STRIDE + col;
            float x[LEAF_ACC] = {0, 0, 0, 0};
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                if (row + 8 * leaf_acc_slot(i) < slice.queries) x[i] = from[8 * leaf_acc_slot(i) * STRIDE + i % 2];
            const float least = fminf(fminf(fabsf(x[0]), fabsf(x[1])), fminf(fabsf(x[2]), fabsf(x[3])));
            if (!(least < 0x1p-100f)) dev_add_acc<C::THREADS>(to, f, x);
            else
                DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                    if (fabsf(x[i]) < 0x1p-100f)
                        dev_add_exact(to + dev_sum_at(f, i, (int)dev_thread(), C::THREADS), x[i]);
                    else dev_add(to + dev_sum_at(f, i, (int)dev_thread(), C::THREADS), x[i]);
        }
    }
}

/* The keys of a slice, step by step. */
template <class C>
DEV_FN void few_walk(const attn_work_tile &u, const stw_attn_launch &l, const few_slice<C> &slice,
                     dev_acc<typename C::row_split> &dq, char *smem, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::keys keys;
    typedef typename C::rows rows;
    const stw_attn_params &p = l.p;
    const int tiles = (slice.keys + C::BN - 1) / C::BN;
    const float factor = p.scale * DEV_LOG2E;
    const dev_smem_tile<rows> q = {(T *)(smem + C::AT_Q)}, dout = {(T *)(smem + C::AT_DOUT)};
    const dev_smem_tile<typename C::scores> ds = {(T *)(smem + C::AT_DS)};
    const few_common *const common = (const few_common *)(const void *)(smem + C::AT_COMMON);
    few_loads<C> of_k = slice.loads(p.k, (int)p.head_dim_qk), of_v = slice.loads(p.v, (int)p.head_dim_v);
    auto load = [&](int stage) {
        of_k.step((T *)(smem + C::AT_K + stage * keys::BYTES));
        of_v.step((T *)(smem + C::AT_V + stage * keys::BYTES));
    };
    slice.load_rows(q.data, p.q, u, (int)p.head_dim_qk);
    slice.load_rows(dout.data, p.dout, u, (int)p.head_dim_v);
    DEV_ROLLED_FOR (int t = 0; t < C::STAGES - 1; ++t) {
        if (t < tiles) load(t);
        dev_copy_commit();
    }
    slice.list_rows(l, u, smem);
    int stage = 0;
    DEV_ROLLED_FOR (int t = 0; t < tiles; ++t, stage = stage + 1 == C::STAGES ? 0 : stage + 1) {
        dev_copy_wait_but<C::STAGES - 2>();
        dev_barrier(); /* and all have ended the step before */
        if (t + C::STAGES - 1 < tiles) load(stage == 0 ? C::STAGES - 1 : stage - 1);
        dev_copy_commit();
        const dev_smem_tile<keys> k = {(T *)(smem + C::AT_K + stage * keys::BYTES)},
                                  v = {(T *)(smem + C::AT_V + stage * keys::BYTES)};
        const int first = t * C::BN + wave * 16; /* this warp's first key */
        few_operand<C> weights, flow;
        {
            dev_acc<typename C::score_split> s, dp;
            s.clear();
            dp.clear();
            mma_ABt(s, k, q, wave, lane);
            mma_ABt(dp, v, dout, wave, lane);
            if (C::ROWS > 16 && common->low <= t * C::BN && common->high >= t * C::BN + C::BN - 1)
                few_scores<C, false>(s, dp, smem, factor, first + lane / 4, lane);
            else few_scores<C, true>(s, dp, smem, factor, first + lane / 4, lane);
            weights.pack(s);
            flow.pack(dp);
            DEV_UNROLL_FOR (int n = 0; n < C::score_split::NT; ++n)
                leaf_store_acc<typename C::scores>(ds.data, wave * 16, n * LEAF_MMA_N, dp.v[0][n], lane);
        }
        if (p.outputs & STW_OUT_DV)
            few_key_gradient<C>(weights, dout.data, slice, p.dv, first, (int)p.head_dim_v, 1.0f,
                                (l.vectors & STW_VECTOR_DV) != 0, lane);
        dev_barrier(); /* dS of all keys is there */
        if (p.outputs & STW_OUT_DQ) {
            dev_nothing nothing;
            mma_AtB(dq, ds, k, nothing, wave, lane);
        }
        if (p.outputs & STW_OUT_DK)
            few_key_gradient<C>(flow, q.data, slice, p.dk, first, (int)p.head_dim_qk, p.scale,
                                (l.vectors & STW_VECTOR_DK) != 0, lane);
    }
}

/* The kernel. */
template <class C> DEV_FN void attn_bwd_sm90_few(const stw_attn_launch &l, char *smem) {
    const int wave = (int)dev_wave(), lane = (int)dev_lane();
    attn_work_tile &u = *(attn_work_tile *)(void *)(smem + C::AT_TILE);
    dev_await_previous();
    dev_let_next_begin(); /* all CTAs run at a time: the last kernel takes no room from them */
    for (;;) {
        attn_work_tile_take_now(u, l, wave, lane);
        if (!u.live) return;
        const few_slice<C> slice = few_slice<C>::of(u, l);
        dev_acc<typename C::row_split> dq;
        dq.clear();
        few_walk<C>(u, l, slice, dq, smem, wave, lane);
        if ((l.p.outputs & STW_OUT_DQ) && u.first < u.end) { /* some row sees a key */
            uint32_t mine = 0;
            if (l.dq_semaphore && dev_thread() == 0) {
                mine = (uint32_t)(u.block - stw_key_blocks(&u.seq, C::ROWS, l.bn, 0).first);
                while (dev_load_acquire(l.dq_semaphore + slice.at) != mine && !*l.unordered) {
                }
            }
            dev_barrier(); /* and nobody reads K any more */
            few_add_dq<C>(dq, slice, l, smem, wave, lane);
            if (l.dq_semaphore) {
                dev_fence();
                dev_barrier();
                if (dev_thread() == 0) dev_store_release(l.dq_semaphore + slice.at, mine + 1);
            }
        }
        dev_barrier(); /* all have ended this work tile */
    }
}

#endif
