/* SPDX-License-Identifier: MIT
 *
 * Shapes of sm90's own main loop, what lies where in shared memory, and its mbarriers. The image includes the shared
 * kernels before this: work tiles (attn_work_tile), the epilogue and the bounds of subnormal sums are theirs. */
#ifndef STW_CUDA_ATTN_BWD_SM90_CONFIG_H
#define STW_CUDA_ATTN_BWD_SM90_CONFIG_H

#include "mma_sm90.h"

/* What a kernel makes. PLAIN: dQ, and dK and dV in the inputs' type. F32: dQ, and dK or dV or both in f32, also added
 * to what is there, in sums of any length; with a feature of single pairs any of the three, and but for masks work
 * tiles may be parts. GENERAL: any of the three, and parts; f32 sums are short. */
enum { SM90_OUT_PLAIN, SM90_OUT_F32, SM90_OUT_GENERAL };

/* One kernel's shapes: BM queries x BN keys a step, head_dim HD in panels of 64 columns; OUT of SM90_OUT_*. */
template <class T_, int HD_, int OUT_ = SM90_OUT_PLAIN> struct sm90_config {
    typedef T_ T;
    enum {
        HD = HD_,
        OUT = OUT_,
        DRAINS = OUT == SM90_OUT_F32,
        GENERAL = OUT == SM90_OUT_GENERAL,
        BM = STW_SM90_BM(HD_),
        BN = 128,
        STAGES = 3,
        WARPS = 8,
        THREADS = 256,
        PANELS = (HD + 63) / 64,
        WIDTH = PANELS * 64
    };
    enum {
        ROWS_BYTES = PANELS * BM * 128, /* Q or dO of a step */
        KEYS_BYTES = PANELS * BN * 128, /* K or V of a work tile */
        DS_BYTES = BM * BN * 2,
        STATS = 2 * BM + (int)STW_STATS_PAD /* floats: LSE, delta, marks */
    };
    /* The best of twenty choices measured on an H200; the worst was 6% slower at head_dim 64, 3 to 5% at 128.
     * VALUES_EARLY: dV is stored under the last products of a work tile, where what f32 sums are added to would be
     * spilled. LSE_AHEAD, DELTA_AHEAD: pairs of statistics that are read before the wait for the product they meet; the
     * others come after it. MARKS_LATE: a block's marks are read after the exponentials, not before them. */
    enum {
        VALUES_EARLY = BM == 64 && !DRAINS,
        LSE_AHEAD = BM == 64 ? 0 : 4,
        DELTA_AHEAD = BM == 64 ? 0 : 4,
        MARKS_LATE = BM == 64
    };
    enum {
        AT_K = 0, /* two places, for this work tile and the next */
        AT_V = AT_K + 2 * KEYS_BYTES,
        AT_Q = AT_V + KEYS_BYTES,
        AT_DOUT = AT_Q + STAGES * ROWS_BYTES,
        AT_DS = AT_DOUT + STAGES * ROWS_BYTES, /* two places, used alternately */
        AT_STATS = AT_DS + 2 * DS_BYTES,
        AT_SEEN = AT_STATS + STAGES * STATS * 4, /* a key: the first and last query that see it */
        AT_BARRIERS = AT_SEEN + BN * 8,
        AT_DRAWN = AT_BARRIERS + 72,
        AT_MASKING = AT_BARRIERS + 80,
        AT_TILES = AT_MASKING + 16,                            /* this work tile and the next */
        AT_AHEAD = AT_TILES + 2 * (int)sizeof(attn_work_tile), /* kernels of masks: an sm90_visible_word */
        BYTES = AT_AHEAD + 16
    };
    static_assert(BYTES <= (int)STW_SM90_SMEM(HD_), "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0, "places that bulk copies write");
    /* For the epilogue of the shared kernels: a warp has 16 keys, all columns. */
    struct key_split {
        enum { MT = 1, NT = HD / LEAF_MMA_N };
        DEV_FN int row0(int wave) { return 16 * wave; }
        DEV_FN int col0(int) { return 0; }
    };
    typedef dev_tile<T, BN, HD> keys;
};

/* The mbarriers: a stage's Q (with its statistics) and dO; K, V and the description of a work tile. */
template <class C> struct sm90_barriers {
    enum { Q = 0, DOUT = 24, K = 48, V = 56, TILE = 64, COUNT = 9 };
    uint32_t base;

    DEV_METHOD sm90_mbarrier all(int i) const { return sm90_mbarrier{base + 8 * i}; }
    DEV_METHOD sm90_mbarrier q(int stage) const { return sm90_mbarrier{base + Q + 8 * stage}; }
    DEV_METHOD sm90_mbarrier dout(int stage) const { return sm90_mbarrier{base + DOUT + 8 * stage}; }
    DEV_METHOD sm90_mbarrier k() const { return sm90_mbarrier{base + K}; }
    DEV_METHOD sm90_mbarrier v() const { return sm90_mbarrier{base + V}; }
    DEV_METHOD sm90_mbarrier tile() const { return sm90_mbarrier{base + TILE}; }
};

#endif
