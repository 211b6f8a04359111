/* SPDX-License-Identifier: MIT
 *
 * linear's dX and dW of 16-bit types by Hopper's own instructions. Two CTAs, a cluster, have two work tiles of 128 x
 * 256 above each other: each loads its own rows of A and half of B, which the other one gets too. One warp loads, two
 * warpgroups multiply 64 rows each. What a stage holds stands beside it in shared memory: only the loading warp knows
 * gaps. dX skips work tiles that no row takes part in, dW skips blocks of 64 rows none of which takes part, and puts
 * zeros in place of single ones that do not. What is added in which order depends on the problem alone. */
#ifndef STW_CUDA_JAGGED_PRODUCT_SM90_H
#define STW_CUDA_JAGGED_PRODUCT_SM90_H

#include "backends/cuda/jagged_maps.h"
#include "backends/cuda/mma_sm90.h"
#include "common/kernels/jagged_index.h"
#include "common/kernels/jagged_lines.h"

/* ---- a cluster of two CTAs ---- */

DEV_FN void sm90_cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Arrives at the barrier of that place in shared memory of CTA `rank` of the cluster. */
DEV_FN void sm90_arrive_at(sm90_mbarrier barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier.at),
                 "r"(rank)
                 : "memory");
}
/* A box of a matrix, from (row, col) on; zeros outside the matrix. */
DEV_FN void sm90_load_box(uint32_t to, const stw_tensor_map *map, int col, int row, sm90_mbarrier barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier.at), "r"(col), "r"(row)
                 : "memory");
}
/* The same to both CTAs of the cluster, and to their barriers. */
DEV_FN void sm90_load_box_to_both(uint32_t to, const stw_tensor_map *map, int col, int row, sm90_mbarrier barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier.at), "r"(col), "r"(row), "h"((uint16_t)3)
                 : "memory");
}
/* What lies within the matrix. */
DEV_FN void sm90_store_box(const stw_tensor_map *map, int col, int row, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(col), "r"(row), "r"(from)
                 : "memory");
}
/* What this thread stored since the last group is a group, also where it stored nothing. */
DEV_FN void sm90_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until all but LEFT groups of this thread have been read. */
template <int LEFT> DEV_FN void sm90_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* ---- a product of 64 x 256 ---- */

#define SM90_NAMES_128                                                                                                 \
    SM90_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"      \
                  "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,"  \
                  "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SM90_128(x)    SM90_64(x), SM90_32X(x, 64), SM90_32X(x, 96)
#define SM90_32X(x, i) SM90_EIGHT(x, i), SM90_EIGHT(x, i + 8), SM90_EIGHT(x, i + 16), SM90_EIGHT(x, i + 24)

/* x += A B over 16 of K; ROWS_A, ROWS_B: these are the rows of that operand. */
template <class T> struct sm90_wide_mma;
#define SM90_WIDE_MMA(T, type)                                                                                         \
    template <> struct sm90_wide_mma<T> {                                                                              \
        template <int ROWS_A, int ROWS_B> DEV_FN void add(float (&x)[128], uint64_t from_a, uint64_t from_b) {         \
            asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" SM90_NAMES_128              \
                         "}, %128, %129, 1, 1, 1, %130, %131;"                                                         \
                         : SM90_128(x)                                                                                 \
                         : "l"(from_a), "l"(from_b), "n"(ROWS_A), "n"(ROWS_B));                                        \
        }                                                                                                              \
    };
SM90_WIDE_MMA(dev_bf16, "bf16")
SM90_WIDE_MMA(dev_f16, "f16")

/* ---- the kernel ---- */

/* What a stage holds. */
enum { JAG_STAGE_LAST = 1, JAG_STAGE_EMPTY = 2, JAG_STAGE_GAPS = 4 };
struct jag_stage {
    uint64_t rows; /* bits: rows of the block that take part */
    uint32_t what, reserved;
};

enum {
    JAG90_BM = STW_JAGGED_OWN_BM,
    JAG90_BN = STW_JAGGED_OWN_BN,
    JAG90_BK = STW_JAGGED_OWN_BK,
    JAG90_STAGES = STW_JAGGED_OWN_STAGES,
    JAG90_A = JAG90_BM * JAG90_BK * 2,
    JAG90_PANEL = JAG90_BK * 64 * 2,
    JAG90_STAGE = JAG90_A + JAG90_BK * JAG90_BN * 2,
    JAG90_OUT = 64 * 64 * 2, /* a panel of results; two a warpgroup take turns */
    JAG90_AT_OUT = JAG90_STAGES * JAG90_STAGE,
    JAG90_AT_INFO = JAG90_AT_OUT + 4 * JAG90_OUT,
    JAG90_AT_BARRIERS = JAG90_AT_INFO + JAG90_STAGES * 16,
    JAG90_GROUP = 8 /* work tiles above each other that follow each other: their operands stay in L2 */
};
static_assert(JAG90_AT_BARRIERS + JAG90_STAGES * 16 <= STW_JAGGED_OWN_SMEM, "shared memory");

/* Two work tiles above each other. */
struct jag_pair {
    int64_t m0, n0, k0, k_end, part;
    /* Pair `number`; m0 is that of the cluster's first CTA. */
    DEV_FN jag_pair of(const stw_jagged_launch &l, bool dx, int64_t number) {
        const stw_jagged_params &p = l.p;
        int64_t rows = p.slabs * l.lines, m = dx ? rows : p.out_features, k = dx ? p.out_features : rows;
        int64_t pairs = stw_blocks_of(m, 2 * JAG90_BM), across = stw_blocks_of(p.inner, JAG90_BN);
        jag_pair t;
        t.part = stw_quotient(number, pairs * across);
        number -= t.part * pairs * across;
        int64_t group = stw_quotient(number, JAG90_GROUP * across), first = group * JAG90_GROUP,
                high = stw_smaller(JAG90_GROUP, pairs - first);
        number -= first * across;
        int64_t column = stw_quotient(number, high);
        t.n0 = column * JAG90_BN;
        t.m0 = (first + number - column * high) * 2 * JAG90_BM;
        t.k0 = t.part * l.part_k;
        t.k_end = stw_smaller(t.k0 + l.part_k, k);
        return t;
    }
    DEV_FN int64_t count(const stw_jagged_launch &l, bool dx) {
        int64_t m = dx ? l.p.slabs * l.lines : l.p.out_features;
        return stw_blocks_of(m, 2 * JAG90_BM) * stw_blocks_of(l.p.inner, JAG90_BN) * l.parts;
    }
};

/* Whether rows [first, end) all take part; all lanes of a warp. Where it is not known from the bounds, `mask` asks. */
DEV_FN bool jag_all_live(const stw_jagged_launch &l, const jag_lines &all, int64_t first, int64_t end) {
    return !all.gaps && l.p.slabs == 1 && first >= all.low && end <= all.high;
}
/* Which of 64 rows take part. All lanes of a warp. */
DEV_FN uint64_t jag_live_rows(const stw_jagged_launch &l, const jag_lines &all, int64_t first, int64_t end) {
    int64_t row = first + dev_lane();
    uint32_t low = __ballot_sync(~0u, row < end && jag_lines::what(all, l, row) == JAG_LINE_LIVE);
    uint32_t high = __ballot_sync(~0u, row + 32 < end && jag_lines::what(all, l, row + 32) == JAG_LINE_LIVE);
    return low | (uint64_t)high << 32;
}

template <class T_, bool A_BY_K_> struct jag_product_sm90 {
    typedef T_ T;
    enum { A_BY_K = A_BY_K_ };
    typedef jag_product_sm90 self;
    const stw_jagged_launch &l;
    const stw_jagged_maps &maps;
    uint32_t smem;
    char *shared;
    int rank; /* of this CTA in its cluster */

    DEV_FN sm90_mbarrier full(const self &m, int stage) { return {m.smem + JAG90_AT_BARRIERS + stage * 16}; }
    DEV_FN sm90_mbarrier empty(const self &m, int stage) { return {m.smem + JAG90_AT_BARRIERS + stage * 16 + 8}; }
    DEV_FN jag_stage *info(const self &m, int stage) { return (jag_stage *)(void *)(m.shared + JAG90_AT_INFO) + stage; }

    /* The next block of what is summed with anything in it, from k on; all lanes of a warp. */
    DEV_FN int64_t next_block(const self &m, const jag_lines &all, int64_t k, int64_t k_end, uint64_t *rows) {
        *rows = ~UINT64_C(0);
        DEV_ROLLED_FOR (; A_BY_K && k < k_end; k += JAG90_BK) {
            *rows = ~UINT64_C(0);
            if (jag_all_live(m.l, all, k, k + JAG90_BK)) break;
            *rows = jag_live_rows(m.l, all, k, k_end);
            if (*rows) break;
        }
        return k;
    }

    /* The loading warp. */
    DEV_FN void load(const self &m, int64_t clusters) {
        const stw_jagged_launch &l = m.l;
        const jag_lines all = jag_lines::of(l);
        int64_t pairs = jag_pair::count(l, !A_BY_K);
        int stage = 0;
        uint32_t parity = 1;
        DEV_ROLLED_FOR (int64_t pair = dev_cta() / 2; pair < pairs; pair += clusters) {
            const jag_pair t = jag_pair::of(l, !A_BY_K, pair);
            int64_t m0 = t.m0 + m.rank * JAG90_BM, k = t.k0;
            uint64_t rows = ~UINT64_C(0);
            bool any = true;
            if (A_BY_K) {
                k = next_block(m, all, k, t.k_end, &rows);
                any = k < t.k_end;
            } else if (!jag_all_live(l, all, t.m0, t.m0 + 2 * JAG90_BM)) {
                any = false;
                DEV_ROLLED_FOR (int i = 0; i < 2 * JAG90_BM && !any; i += 64)
                    any = jag_live_rows(l, all, t.m0 + i, l.p.slabs * l.lines) != 0;
            }
            bool last = false;
            while (!last) {
                uint64_t rows_after = ~UINT64_C(0);
                int64_t after = any ? next_block(m, all, k + JAG90_BK, t.k_end, &rows_after) : t.k_end;
                last = after >= t.k_end;
                empty(m, stage).wait(parity);
                if (sm90_elect()) {
                    uint32_t what =
                        (last ? JAG_STAGE_LAST : 0) | (any ? 0 : JAG_STAGE_EMPTY) | (~rows ? JAG_STAGE_GAPS : 0);
                    jag_stage *to = info(m, stage);
                    to->rows = rows;
                    to->what = what;
                    sm90_mbarrier barrier = full(m, stage);
                    uint32_t a = m.smem + stage * JAG90_STAGE, b = a + JAG90_A + m.rank * 2 * JAG90_PANEL;
                    barrier.expect(any ? JAG90_STAGE : 0);
                    if (any) {
                        if (A_BY_K) {
                            sm90_load_box(a, &m.maps.a, (int)m0, (int)k, barrier);
                            sm90_load_box(a + JAG90_PANEL, &m.maps.a, (int)m0 + 64, (int)k, barrier);
                        } else sm90_load_box(a, &m.maps.a, (int)k, (int)m0, barrier);
                        int n0 = (int)t.n0 + m.rank * 128;
                        sm90_load_box_to_both(b, &m.maps.b, n0, (int)k, barrier);
                        sm90_load_box_to_both(b + JAG90_PANEL, &m.maps.b, n0 + 64, (int)k, barrier);
                    }
                }
                __syncwarp();
                k = after;
                rows = rows_after;
                if (++stage == JAG90_STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }

    /* Zeros for rows of a block that do not take part: all threads that multiply. */
    DEV_FN void clear_rows(const self &m, int stage, int thread) {
        uint64_t rows = info(m, stage)->rows;
        char *at = m.shared + stage * JAG90_STAGE;
        DEV_ROLLED_FOR (int i = thread; i < JAG90_STAGE / 16; i += 256)
            if (!(rows >> (i / 8 % 64) & 1)) *(uint4 *)(void *)(at + i * 16) = make_uint4(0, 0, 0, 0);
        sm90_fence_async_shared();
        sm90_cta_sync();
    }

    /* Results that no box has: of rows some of which do not take part, and sums to add up later. */
    DEV_FN void store_single(const self &m, const jag_lines &all, const jag_pair &t, int64_t m0, int group,
                             const float (&acc)[128]) {
        const stw_jagged_launch &l = m.l;
        const stw_jagged_params &p = l.p;
        int lane = (int)dev_lane(), local = group * 64 + (int)(dev_thread() / 32 % 4) * 16 + lane / 4;
        int64_t rows = p.slabs * l.lines, m_end = A_BY_K ? p.out_features : rows, n_end = p.inner;
        if (l.parts > 1) {
            int64_t high = stw_blocks_of(m_end, JAG90_BM), across = stw_blocks_of(n_end, JAG90_BN);
            int64_t tile_m = m0 / JAG90_BM, slot = (t.part * high + tile_m) * across + t.n0 / JAG90_BN;
            if (tile_m >= high) return;
            float *to = l.product_sums + slot * (JAG90_BM * JAG90_BN) + local * JAG90_BN + lane % 4 * 2;
            DEV_UNROLL_FOR (int i = 0; i < 32; ++i) {
                *(float2 *)(void *)(to + i * 8) = make_float2(acc[4 * i], acc[4 * i + 1]);
                *(float2 *)(void *)(to + 8 * JAG90_BN + i * 8) = make_float2(acc[4 * i + 2], acc[4 * i + 3]);
            }
            return;
        }
        T *out = (T *)(A_BY_K ? p.dweight : p.dx);
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
            int64_t row = m0 + local + half * 8;
            int what = row >= m_end ? JAG_LINE_NONE : A_BY_K ? JAG_LINE_LIVE : jag_lines::what(all, l, row);
            if (what == JAG_LINE_NONE) continue;
            bool live = what == JAG_LINE_LIVE;
            DEV_UNROLL_FOR (int i = 0; i < 32; ++i) {
                int64_t col = t.n0 + i * 8 + lane % 4 * 2;
                float x = live ? acc[4 * i + 2 * half] : 0.0f, y = live ? acc[4 * i + 2 * half + 1] : 0.0f;
                if (col < n_end) dev_set_pair(out + row * n_end + col, x, y); /* extents are multiples of 8 */
            }
        }
    }

    /* The 64 rows of a warpgroup, by panels of 64 columns through shared memory. A panel past the last column is a
     * group of stores too: so the wait for all but one group covers the panel before the last. */
    DEV_FN void store_boxes(const self &m, const jag_pair &t, int64_t m0, int group, const float (&acc)[128]) {
        int lane = (int)dev_lane(), warp = (int)(dev_thread() / 32 % 4);
        bool first = dev_thread() % 128 == 0;
        int row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
        DEV_UNROLL_FOR (int panel = 0; panel < JAG90_BN / 64; ++panel) {
            uint32_t to = m.smem + JAG90_AT_OUT + (group * 2 + panel % 2) * JAG90_OUT;
            if (first) sm90_store_wait<1>();
            sm90_warpgroup_sync(group);
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) {
                const float *x = acc + panel * 32 + i * 8;
                uint32_t w[4];
                DEV_UNROLL_FOR (int k = 0; k < 4; ++k) w[k] = dev_pack(T(), x[2 * k], x[2 * k + 1]);
                int piece = (2 * i + lane / 16) ^ (row % 8);
                sm90_stmatrix(to + row * 128 + piece * 16, w);
            }
            sm90_fence_async_shared();
            sm90_warpgroup_sync(group);
            if (first) {
                if (t.n0 + panel * 64 < m.l.p.inner)
                    sm90_store_box(&m.maps.c, (int)t.n0 + panel * 64, (int)m0 + group * 64, to);
                sm90_store_commit();
            }
        }
    }

    /* A multiplying warpgroup. */
    DEV_FN void multiply(const self &m, int64_t clusters, int group) {
        const stw_jagged_launch &l = m.l;
        const stw_jagged_params &p = l.p;
        const jag_lines all = jag_lines::of(l);
        int64_t pairs = jag_pair::count(l, !A_BY_K);
        int thread = (int)dev_thread() % 256, stage = 0;
        bool signals = dev_thread() % 128 == 0;
        uint32_t parity = 0;
        bool boxed = l.parts < 2;
        DEV_ROLLED_FOR (int64_t pair = dev_cta() / 2; pair < pairs; pair += clusters) {
            float acc[128];
            DEV_UNROLL_FOR (int i = 0; i < 128; ++i) acc[i] = 0.0f;
            uint32_t what = 0;
            int before = -1; /* the stage whose products may be under way */
            do {
                full(m, stage).wait(parity);
                what = info(m, stage)->what;
                if (what & JAG_STAGE_GAPS) clear_rows(m, stage, thread);
                /* Without the CTA's number in its cluster, which bits 24 and more are. */
                uint32_t at = (m.smem + stage * JAG90_STAGE & 0x3FFFF) / 16;
                sm90_operand<T, JAG90_BK, JAG90_BN> b = {at + JAG90_A / 16};
                if (!(what & JAG_STAGE_EMPTY)) {
                    sm90_mma_fence();
                    DEV_UNROLL_FOR (int k = 0; k < JAG90_BK; k += 16) {
                        if constexpr (A_BY_K) {
                            sm90_operand<T, JAG90_BK, 64> a = {at + group * (JAG90_PANEL / 16)};
                            sm90_wide_mma<T>::template add<1, 1>(acc, a.rows(k), b.rows(k));
                        } else {
                            sm90_operand<T, JAG90_BM, JAG90_BK> a = {at + group * (64 * 128 / 16)};
                            sm90_wide_mma<T>::template add<0, 1>(acc, a.columns(k), b.rows(k));
                        }
                    }
                    sm90_mma_commit();
                }
                if (what & JAG_STAGE_EMPTY)
                    sm90_warpgroup_sync(group); /* no product makes its warps wait for each other */
                sm90_mma_wait<1>();
                if (before >= 0 && signals) {
                    sm90_arrive_at(empty(m, before), 0);
                    sm90_arrive_at(empty(m, before), 1);
                }
                before = stage;
                if (++stage == JAG90_STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            } while (!(what & JAG_STAGE_LAST));
            sm90_mma_wait<0>(acc);
            if (signals) {
                sm90_arrive_at(empty(m, before), 0);
                sm90_arrive_at(empty(m, before), 1);
            }
            const jag_pair t = jag_pair::of(l, !A_BY_K, pair);
            int64_t m0 = t.m0 + m.rank * JAG90_BM, first = m0 + group * 64;
            bool whole = boxed;
            if (!A_BY_K && boxed && !jag_all_live(l, all, first, first + 64))
                whole = ~jag_live_rows(l, all, first, p.slabs * l.lines) == 0;
            if (whole) store_boxes(m, t, m0, group, acc);
            else store_single(m, all, t, m0, group, acc);
        }
        if (signals) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
};

template <class T, bool A_BY_K>
DEV_FN void jag_multiply_sm90(const stw_jagged_launch &l, const stw_jagged_maps &maps, char *smem) {
    typedef jag_product_sm90<T, A_BY_K> product;
    const product m = {l, maps, sm90_shared_address(smem), smem, (int)(dev_cta() & 1)};
    int64_t clusters = l.blocks / 2;
    int group = (int)dev_thread() / 128;
    if (dev_thread() == 0) {
        for (int i = 0; i < JAG90_STAGES; ++i) {
            product::full(m, i).init(1);
            product::empty(m, i).init(4);
        }
        sm90_fence_mbarrier_init();
    }
    sm90_cluster_sync();
    if (group == 2) {
        sm90_give_registers<40>();
        if (dev_thread() < 288) product::load(m, clusters);
    } else {
        sm90_take_registers<232>();
        product::multiply(m, clusters, group);
    }
    sm90_cluster_sync();
}

#endif
