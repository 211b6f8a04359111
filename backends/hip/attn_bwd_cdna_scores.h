/* SPDX-License-Identifier: MIT
 *
 * P and dS of CDNA's own main loop (attn_bwd_cdna.h), in registers, and the mask. The work is cut into pieces of few
 * instructions that the loop puts between matrix products. C: attn_cdna, the shapes. Lane l is (n, g) = (l % 16,
 * l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_SCORES_H
#define STW_HIP_ATTN_BWD_CDNA_SCORES_H

#include "attn_bwd_cdna_loads.h"

/* What a step must mind, from the least to the most: nothing, all its pairs are in sight; pairs right of a bound; pairs
 * left of one too, rows of infinite LSE, and sums of dQ that may be subnormal; all that, and products that may lose
 * subnormal operands. */
enum { CDNA_INNER, CDNA_EDGE, CDNA_ANY, CDNA_EXACT };

/* How S becomes P: the scale, and the mask. A pair is in sight if its distance, row + high - key, lies in [0, span] and
 * its key is in use. */
struct attn_cdna_scoring {
    float scale_log2; /* scale log2(e) */
    int distance;     /* of the lane's first row of block 0 and its key of tile 0 */
    int span;
    int keys_left; /* in use, from the lane's key of tile 0 on */
    bool bounded;  /* the mask has a left bound                */

    DEV_METHOD void set(const attn_work_tile &u, cdna_launch l, int keys, int wave, int lane) {
        const int64_t far = INT64_C(1) << 28;
        int64_t j0 = dev_uniform(u.j0);
        int high = (int)stw_clamp_i64(dev_uniform(u.seq.band.high) - j0, -far, far);
        int low = (int)stw_clamp_i64(dev_uniform(u.seq.band.low) - j0, -far, far);
        int key = keys / 4 * wave + lane % 16;
        scale_log2 = l->p.scale * DEV_LOG2E;
        distance = 4 * (lane / 16) - key + high;
        span = high - low;
        bounded = low > -far;
        keys_left = (int)stw_clamp_i64(dev_uniform(u.seq.kv.used) - j0, 0, keys) - key;
    }
};

/* Scores of 16 queries and the wave's keys: TILES tiles, of which the lane has key n and queries 4 g .. 4 g + 3.
 * 2 TILES pairs e = TILES k + i of scores: queries 2 k and 2 k + 1 of tile i. Each takes four pieces to P and four to
 * dS. */
template <int KIND, class C> struct attn_cdna_scores {
    typedef typename C::T T;
    enum { TILES = C::TILES, MASKED = KIND != CDNA_INNER, ANY = KIND == CDNA_ANY || KIND == CDNA_EXACT };
    leaf_f4 s[TILES], dp[TILES];
    leaf_u2 p16[TILES], ds16[TILES]; /* P and dS in T: the operands P^T and dS^T */
    leaf_f2 p[2 * TILES], ds[2 * TILES];
    int half, distance[TILES]; /* of queries 16 half + 4 g .. */
    bool sees[2 * TILES][2];

    /* Half `h` of query block `block`. */
    DEV_METHOD void enter(const attn_cdna_scoring &how, int block, int h) {
        half = h;
        if constexpr (MASKED) {
            int first = cdna_opaque_scalar(block * C::BM);
            DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                distance[i] = 16 * i < how.keys_left ? how.distance + (first - 16 * i) : -(1 << 30);
                if (!ANY) distance[i] = -distance[i];
            }
        }
    }
    /* Piece q of 8 TILES is stage 0 to 3 of pair e. Where two pieces follow a product, two pairs take turns. */
    DEV_FN constexpr int pair_of(int q) { return C::PIECES_V >= 4 ? q / 4 : q / 8 * 2 + q % 2; }
    DEV_FN constexpr int stage_of(int q) { return C::PIECES_V >= 4 ? q % 4 : q / 2 % 4; }

    /* P = exp(scale S - LSE): the exponent, one power, the other, rounding. */
    DEV_METHOD void softmax(const attn_cdna_scoring &how, const leaf_f4 &lse, int q) {
        const int e = pair_of(q), stage = stage_of(q), k = e / TILES, i = e % TILES;
        if (stage == 0) {
            if (k == 0) cdna_keep<C::IN_AGPRS>(s[i]);
            leaf_f2 pair = k ? s[i].zw : s[i].xy;
            p[e] = __builtin_elementwise_fma(pair, (leaf_f2)how.scale_log2, k ? lse.zw : lse.xy);
            if constexpr (MASKED)
                DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
                    const int row = half * 16 + 2 * k + r;
                    sees[e][r] =
                        ANY ? (uint32_t)(distance[i] + row) <= (uint32_t)how.span && lse[2 * k + r] != -dev_infinity()
                            : distance[i] <= row;
                }
        } else if (stage < 3) {
            const int r = stage - 1;
            if constexpr (MASKED) p[e][r] = sees[e][r] ? p[e][r] : -dev_infinity();
            p[e][r] = dev_exp2_fast(p[e][r]);
        } else p16[i][k] = cdna_operand(T(), p[e]);
    }
    /* dS = P (dP - delta): the product, rounding, to LDS; no fourth. */
    DEV_METHOD void gradient(const attn_cdna_lds<C> &lds, int q) {
        const int e = pair_of(q), stage = stage_of(q), k = e / TILES, i = e % TILES;
        if (stage == 0) {
            if (k == 0) cdna_keep<C::IN_AGPRS>(dp[i]);
            leaf_f2 flow = k ? dp[i].zw : dp[i].xy;
            if constexpr (MASKED) ds[e] = leaf_f2{cdna_times(p[e].x, flow.x), cdna_times(p[e].y, flow.y)};
            else ds[e] = p[e] * flow;
        } else if (stage == 1) ds16[i][k] = cdna_operand(T(), ds[e]);
        else if (stage == 2 && i % 2) lds.put_zipped(half % (C::HELD / 16), k, ds16[i - 1][k], ds16[i][k]);
        else if (stage == 2 && i == TILES - 1) lds.put_single(half % (C::HELD / 16), k, ds16[i][k]);
    }
};

#endif
