/* SPDX-License-Identifier: MIT
 *
 * Shapes of sm90's main loop with more than 64 keys a work tile for wide heads (attn_bwd_sm90_broad.h), and what lies
 * where in shared memory. Its mbarriers are those of attn_bwd_sm90_wide_config.h. */
#ifndef STW_CUDA_ATTN_BWD_SM90_BROAD_CONFIG_H
#define STW_CUDA_ATTN_BWD_SM90_BROAD_CONFIG_H

#include "attn_bwd_sm90_wide_config.h"

#ifndef SM90_PARTS
#define SM90_PARTS 4
#endif
template <class T_, int HD_> struct sm90_broad_config {
    typedef T_ T;
    enum {
        HD = HD_,
        HDV = HD_,
        BM = 64,
        BN = STW_SM90_BROAD_KEYS(HD_),
        PANELS = HD / 64,
        PANELS_V = PANELS,
        GROUPS = HD > 192 ? 2 : 3, /* warpgroups that multiply; one more has loads and additions */
        EACH = PANELS / GROUPS,    /* panels of dK, dV and dQ that a warpgroup makes */
        GROUP_KEYS = BN / GROUPS,  /* and keys of S and dP */
        STAGES = 2,
        DOUT_STAGES = 1,
        DIRECT = EACH > 1,         /* dQ leaves from registers, */
        DQ_PARTS = DIRECT ? SM90_PARTS : 1, /* in so many parts */
        WARPS = 4 * GROUPS,
        THREADS = 32 * WARPS,
        SUM_THREADS = 256, /* that dQ's sums are laid out for */
        REGISTERS = GROUPS == 2 ? 240 : 160,
        LOADER_REGISTERS = GROUPS == 2 ? 24 : 32,
        WIDTH = HD
    };
    enum {
        PANEL_BYTES = 64 * 128,
        KEY_PANEL_BYTES = BN * 128,
        K_BYTES = PANELS * KEY_PANEL_BYTES,
        V_BYTES = K_BYTES,
        Q_BYTES = PANELS * PANEL_BYTES, /* of a step */
        DOUT_BYTES = Q_BYTES,
        SCORES_BYTES = BN * 128, /* P or dS of a step, in 16 bits */
        DQ_BYTES = DIRECT ? SUM_THREADS * 32 : BM * HD * 4, /* DIRECT: eight values a thread, for exact additions */
        STATS = 2 * BM + (int)STW_STATS_PAD
    };
    enum {
        AT_K = 0,
        AT_V = AT_K + K_BYTES,
        AT_Q = AT_V + V_BYTES,
        AT_DOUT = AT_Q + STAGES * Q_BYTES,
        AT_P = AT_DOUT + DOUT_STAGES * DOUT_BYTES,
        AT_DS = AT_P + SCORES_BYTES,
        AT_DQ = AT_DS + SCORES_BYTES,
        AT_STATS = AT_DQ + DQ_BYTES,
        AT_BARRIERS = AT_STATS + STAGES * STATS * 4,
        AT_EXACT = AT_BARRIERS + 200,   /* dQ in its place: added one by one (add_exact) */
        AT_MASKING = AT_BARRIERS + 208, /* of this work tile and the next */
        AT_TILES = AT_MASKING + 32,
        BYTES = AT_TILES + 2 * (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES <= (int)STW_SM90_BROAD_SMEM(HD_), "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0, "places that bulk copies write");
    static_assert(EACH * GROUPS == PANELS && GROUP_KEYS % 8 == 0 && BN % 16 == 0, "whole matrices");
    template <int COLS, int ROWS> DEV_FN int panel_at(int place) { return place; }
};

#endif
