/* SPDX-License-Identifier: MIT
 *
 * Shapes of sm90's main loop for wide heads, what lies where in shared memory, its mbarriers, and which columns of a
 * result a warpgroup makes. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_CONFIG_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_CONFIG_H

#include "mma_sm90.h"

template <int COLS> struct sm90_wide_half;

/* HD columns of Q and K, HDV of V and dO, in panels of 64. */
template <class T_, int HD_, int HDV_, bool ORDERED> struct sm90_wide_config {
    typedef T_ T;
    enum {
        HD = HD_,
        HDV = HDV_,
        BM = 64,
        BN = 64,
        STAGES = 2, /* of Q */
        DQ_PARTS = STW_SM90_WIDE_DQ_PARTS(HD_), /* a step's dQ leaves in so many parts */
        DIRECT = DQ_PARTS > 1 && !ORDERED,      /* from registers, and dO has the place */
        DOUT_STAGES = DIRECT ? 2 : (int)STW_SM90_WIDE_DOUT_STAGES(HD_),
        WARPS = 8,                              /* that multiply; four more have loads and additions */
        THREADS = 256,
        REGISTERS = 232, /* a thread's of those that multiply */
        TALL = false,    /* the loop of attn_bwd_sm90_tall.h */
        PANELS = HD / 64,
        PANELS_V = HDV / 64,
        WIDTH = HD
    };
    enum {
        PANEL_BYTES = 64 * 128,
        K_BYTES = PANELS * PANEL_BYTES,
        V_BYTES = PANELS_V * PANEL_BYTES,
        Q_BYTES = K_BYTES, /* of a step */
        DOUT_BYTES = V_BYTES,
        SCORES_BYTES = PANEL_BYTES, /* P or dS of a step, in 16 bits */
        DQ_BYTES = DIRECT ? 0 : BM * HD * 4 / DQ_PARTS,
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    enum {
        AT_K = 0,
        AT_V = AT_K + K_BYTES,
        AT_Q = AT_V + V_BYTES,
        AT_DOUT = AT_Q + STAGES * Q_BYTES,
        AT_P = AT_DOUT + DOUT_STAGES * DOUT_BYTES, /* two places, used alternately, as of dS */
        AT_DS = AT_P + 2 * SCORES_BYTES,
        AT_DQ = AT_DS + 2 * SCORES_BYTES,
        AT_STATS = AT_DQ + DQ_BYTES,
        AT_BARRIERS = AT_STATS + STAGES * STATS * 4,
        AT_EXACT = AT_BARRIERS + 200,   /* dQ in its place: added one by one (add_exact) */
        AT_MASKING = AT_BARRIERS + 208, /* of this work tile and the next */
        AT_TILES = AT_MASKING + 32,
        BYTES = AT_TILES + 2 * (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES <= (int)STW_SM90_WIDE_SMEM(HD_, HDV_), "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0, "places that bulk copies write");
    template <int COLS, int ROWS> DEV_FN int panel_at(int place) { return sm90_wide_half<COLS>::panel_at(place); }
};

/* The mbarriers. A place is full when its bytes have come, empty when all warps that read it have arrived. `tile`: the
 * key block of a work tile has come; `ready`: all that is known of a work tile stands in its place. dQ's place is full
 * when all warps have written, empty when its additions have read it. `scores`: the place of dS in
 * attn_bwd_sm90_tall.h, when all warps have made dQ, or of P in attn_bwd_sm90_broad.h, when all have made dV. */
template <class C> struct sm90_wide_barriers {
    uint32_t base;

    DEV_METHOD sm90_mbarrier q_full(int stage) const { return sm90_mbarrier{base + 8 * stage}; }
    DEV_METHOD sm90_mbarrier q_empty(int stage) const { return sm90_mbarrier{base + 32 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier dout_full(int stage) const { return sm90_mbarrier{base + 64 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier dout_empty(int stage) const { return sm90_mbarrier{base + 96 + 8 * stage}; }
    DEV_METHOD sm90_mbarrier k_full() const { return sm90_mbarrier{base + 128}; }
    DEV_METHOD sm90_mbarrier k_empty() const { return sm90_mbarrier{base + 136}; }
    DEV_METHOD sm90_mbarrier v_full() const { return sm90_mbarrier{base + 144}; }
    DEV_METHOD sm90_mbarrier v_empty() const { return sm90_mbarrier{base + 152}; }
    DEV_METHOD sm90_mbarrier tile() const { return sm90_mbarrier{base + 160}; }
    DEV_METHOD sm90_mbarrier ready(int place) const { return sm90_mbarrier{base + 168 + 8 * place}; }
    DEV_METHOD sm90_mbarrier tile_empty(int place) const { return sm90_mbarrier{base + 184 + 8 * place}; }
    DEV_METHOD sm90_mbarrier dq_full() const { return sm90_mbarrier{base + 24}; }
    DEV_METHOD sm90_mbarrier dq_empty() const { return sm90_mbarrier{base + 56}; }
    DEV_METHOD sm90_mbarrier scores_empty() const { return sm90_mbarrier{base + 16}; }
    /* By one thread. */
    DEV_METHOD void init(int readers_of_tiles) const {
        static_assert(C::STAGES <= 2, "the third and fourth of each kind are others'");
        DEV_UNROLL_FOR (int i = 0; i < C::STAGES; ++i) {
            q_full(i).init(1);
            q_empty(i).init(C::WARPS);
        }
        DEV_UNROLL_FOR (int i = 0; i < C::DOUT_STAGES; ++i) {
            dout_full(i).init(1);
            dout_empty(i).init(C::WARPS);
        }
        k_full().init(1);
        v_full().init(1);
        k_empty().init(C::WARPS);
        v_empty().init(C::WARPS);
        tile().init(1);
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) {
            ready(i).init(1);
            tile_empty(i).init(readers_of_tiles);
        }
        dq_full().init(C::WARPS);
        dq_empty().init(1);
        scores_empty().init(C::WARPS);
        sm90_fence_mbarrier_init();
    }
};

/* Columns that warpgroup `group` makes of a result of COLS columns, as two runs, and where they lie in the operand that
 * has them: three panels stand in the order 0, 2, 1, so that the second warpgroup's half, columns 128 to 191 and then
 * 96 to 127, goes upwards too. Addresses count 16 bytes. */
template <int COLS> struct sm90_wide_half;
template <> struct sm90_wide_half<256> {
    enum { PIECES = 16 }; /* of 8 columns */
    DEV_FN int panel_at(int place) { return place; }
    DEV_FN uint32_t first(int group) { return (uint32_t)group * 1024; }
    DEV_FN uint32_t next_panel(int) { return 512; }
    DEV_FN int column(int group, int run) { return 128 * group + 64 * run; }
};
template <> struct sm90_wide_half<192> {
    enum { PIECES = 12 };
    DEV_FN int panel_at(int place) { return place == 0 ? 0 : 3 - place; }
    DEV_FN uint32_t first(int group) { return (uint32_t)group * 512; }
    DEV_FN uint32_t next_panel(int group) { return group ? 512 + 4 : 1024; }
    DEV_FN int column(int group, int run) { return run ? 64 + 32 * group : 128 * group; }
};
template <> struct sm90_wide_half<128> {
    enum { PIECES = 8 };
    DEV_FN int panel_at(int place) { return place; }
    DEV_FN uint32_t first(int group) { return (uint32_t)group * 512; }
    DEV_FN uint32_t next_panel(int) { return 1; }
    DEV_FN int column(int group, int) { return 64 * group; }
};

#endif
