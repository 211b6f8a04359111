/* SPDX-License-Identifier: MIT
 *
 * Shapes of sm90's main loop for wide Q and K and narrower V (attn_bwd_sm90_tall.h), and what lies where in shared
 * memory. Its mbarriers are those of attn_bwd_sm90_wide_config.h. */
#ifndef STW_CUDA_ATTN_BWD_SM90_TALL_CONFIG_H
#define STW_CUDA_ATTN_BWD_SM90_TALL_CONFIG_H

#include "attn_bwd_sm90_config.h"
#include "attn_bwd_sm90_wide_config.h"

template <class T_, int KIND = SM90_WIDE_PLAIN> struct sm90_tall_config {
    typedef T_ T;
    enum {
        FEATURES = KIND == SM90_WIDE_FEATURES,
        ALL = false,
        OUTPUTS = KIND == SM90_WIDE_OUTPUTS,
        DROPS = false,
        MASKS = false,
        PARTS = OUTPUTS || FEATURES,
        HD = 192,
        HDV = 128,
        BM = 64,
        BN = 128,
        STAGES = 2,
        DOUT_STAGES = 1,
        DQ_PARTS = 1,
        DIRECT = false,
        WARPS = 8, /* that multiply; four more have loads and additions */
        THREADS = 256,
        REGISTERS = 240, /* a thread's of those that multiply */
        LOADER_REGISTERS = 24,
        TALL = true, /* the loop of attn_bwd_sm90_tall.h */
        PANELS = HD / 64,
        PANELS_V = HDV / 64,
        WIDTH = HD
    };
    enum {
        PANEL_BYTES = 64 * 128,
        KEY_PANEL_BYTES = BN * 128,
        K_BYTES = PANELS * KEY_PANEL_BYTES,
        V_BYTES = PANELS_V * KEY_PANEL_BYTES,
        Q_BYTES = PANELS * PANEL_BYTES, /* of a step */
        DOUT_BYTES = PANELS_V * PANEL_BYTES,
        SCORES_BYTES = BM * BN * 2, /* P or dS of a step, in 16 bits */
        DQ_BYTES = BM * HD * 4,
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
        AT_SEEN = AT_STATS + STAGES * STATS * 4, /* a key: the first and last query that see it */
        AT_BARRIERS = AT_SEEN + BN * 8,
        AT_EXACT = AT_BARRIERS + 200,   /* dQ in its place: added one by one (add_exact) */
        AT_MASKING = AT_BARRIERS + 208, /* of this work tile and the next */
        AT_TILES = AT_MASKING + 32,
        BYTES = AT_TILES + 2 * (int)sizeof(attn_work_tile)
    };
    static_assert(BYTES <= (int)STW_SM90_TALL_SMEM, "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0, "places that bulk copies write");
    /* K's panels stand in the order 0, 2, 1, so that the second warpgroup's half of the columns, 128 to 191 and then
     * 96 to 127, goes upwards too. */
    template <int COLS, int ROWS> DEV_FN int panel_at(int place) {
        return COLS != HD || ROWS != BN || place == 0 ? place : 3 - place;
    }
    /* For the end of a work tile: a warp has 16 keys, all COLS columns of dK or dV. */
    template <int COLS> struct rows {
        typedef T_ T;
        enum { HD = COLS, BN = 128 };
        struct key_split {
            enum { MT = 1, NT = COLS / LEAF_MMA_N };
            DEV_FN int row0(int wave) { return 16 * wave; }
            DEV_FN int col0(int) { return 0; }
        };
        typedef dev_tile<T, BN, HD> keys;
    };
};

#endif
