/* SPDX-License-Identifier: MIT
 *
 * Shapes of sm90's main loop for wide heads, what lies where in shared memory, and its mbarriers. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_CONFIG_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_CONFIG_H

#include "attn_bwd_sm90_wide_sizes.h"
#include "mma_sm90.h"

/* What a kernel knows: ALiBi or a softcap; f32 dK and dV, and gradients that nobody wants; dropout, without and
 * with these; a bias; interval and block masks; all of this at once, of which a problem may have any part; it with
 * dBias of every pair under a softcap, which is not dS'. */
enum {
    SM90_WIDE_PLAIN,
    SM90_WIDE_FEATURES,
    SM90_WIDE_OUTPUTS,
    SM90_WIDE_DROPOUT,
    SM90_WIDE_DROPOUT_OUTPUTS,
    SM90_WIDE_BIAS,
    SM90_WIDE_MASKS,
    SM90_WIDE_ALL,
    SM90_WIDE_ALL_DBIAS
};

/* HD columns of Q, K, V and dO, in panels of 64. */
template <class T_, int HD_, int KIND = SM90_WIDE_PLAIN> struct sm90_wide_config {
    typedef T_ T;
    enum {
        APART = KIND == SM90_WIDE_ALL_DBIAS,  /* stores another dS than it multiplies */
        ALL = KIND == SM90_WIDE_ALL || APART, /* FEATURES and BIASED have attn_bwd_sm90_wide_terms.h instead */
        FEATURES = KIND == SM90_WIDE_FEATURES,
        OUTPUTS = KIND == SM90_WIDE_OUTPUTS || KIND == SM90_WIDE_DROPOUT_OUTPUTS || ALL,
        DROPS = KIND == SM90_WIDE_DROPOUT || KIND == SM90_WIDE_DROPOUT_OUTPUTS || ALL,
        BIASED = KIND == SM90_WIDE_BIAS,
        MASKS = KIND == SM90_WIDE_MASKS || ALL,
        PARTS = (OUTPUTS && !ALL) || FEATURES || BIASED, /* work tiles may be parts */
        HD = HD_,
        HDV = HD_,
        BM = 64,
        BN = STW_SM90_WIDE_KEYS(HD_),
        PANELS = HD / 64,
        PANELS_V = PANELS,
        GROUPS = HD > 192 ? 2 : 3, /* warpgroups that multiply; one more has loads and additions */
        EACH = PANELS / GROUPS,    /* panels of dK, dV and dQ that a warpgroup makes */
        GROUP_KEYS = BN / GROUPS,  /* and keys of S and dP */
        STAGES = 2,
        DOUT_STAGES = 1,
        DIRECT = EACH > 1, /* dQ leaves from registers, */
        DQ_PARTS = EACH,   /* in so many parts */
        WARPS = 4 * GROUPS,
        THREADS = 32 * WARPS,
        SUM_THREADS = 256, /* that dQ's sums are laid out for */
        REGISTERS = GROUPS == 3 ? 160
                    : MASKS     ? 232
                                : 240,
        LOADER_REGISTERS = GROUPS == 3 ? 32
                           : MASKS     ? 40
                                       : 24,
        TALL = false, /* the loop of attn_bwd_sm90_tall.h */
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
        DQ_BYTES =
            DIRECT ? SUM_THREADS * 32 : BM * HD * 4 / DQ_PARTS, /* DIRECT: eight values a thread, for exact additions */
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
        AT_STEP = AT_EXACT + 4,         /* MASKS: and which query block it is of, sm90_visible_step */
        AT_SPECIAL = AT_BARRIERS + 112, /* MASKS: what is special about the work tile */
        AT_MASKING = AT_BARRIERS + 208, /* of this work tile and the next */
        AT_TILES = AT_MASKING + 32,
        AT_DROPPED = AT_TILES + 2 * (int)sizeof(attn_work_tile), /* sm90_wide_dropped */
        DROPPED_BYTES = DROPS ? (int)STW_SM90_WIDE_DROPPED_BYTES(HD_) : 0,
        AT_SEEN = AT_DROPPED + DROPPED_BYTES, /* MASKS: of each key of the work tile, sm90_seen, */
        AT_HIDDEN = AT_SEEN + BN * 8,         /* and stw_hidden_rows */
        SEEN_BYTES = MASKS ? (int)STW_SM90_WIDE_SEEN_BYTES(HD_) : 0,
        MORE = DROPPED_BYTES + SEEN_BYTES,
        BYTES = AT_DROPPED + MORE
    };
    static_assert(BYTES <= (int)STW_SM90_WIDE_SMEM(HD_) + MORE, "host and device agree on shared memory");
    static_assert(AT_STATS % 16 == 0 && AT_TILES % 16 == 0, "places that bulk copies write");
    static_assert(AT_DROPPED % 16 == 0 && AT_HIDDEN % 16 == 0, "places of an mbarrier and of bulk copies");
    static_assert(EACH * GROUPS == PANELS && GROUP_KEYS % 8 == 0 && BN % 16 == 0, "whole matrices");
    template <int COLS, int ROWS> DEV_FN int panel_at(int place) { return place; }
};

/* The mbarriers. A place is full when its bytes have come, empty when all warps that read it have arrived. `tile`: the
 * key block of a work tile has come; `ready`: all that is known of a work tile stands in its place. dQ's place is full
 * when all warps have written, empty when its additions have read it. `scores`: the place of dS in
 * attn_bwd_sm90_tall.h, when all warps have made dQ, or of P in attn_bwd_sm90_wide.h, when all have made dV. */
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

#endif
