/* SPDX-License-Identifier: MIT
 *
 * P and dS of CDNA's own main loop (attn_bwd_cdna.h), in registers, and the mask. The work is cut into pieces of few
 * instructions that the loop puts between matrix products. C: attn_cdna, the shapes. Lane l is (n, g) = (l % 16,
 * l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_SCORES_H
#define STW_HIP_ATTN_BWD_CDNA_SCORES_H

#include "attn_bwd_cdna_draws.h"

/* What a wave must mind in a step, from the least to the most: nothing, since it sees none of its pairs (UNSEEN) or all
 * of them (INNER); pairs right of a bound (EDGE); pairs left of one too, rows of infinite LSE, and sums of dQ that may
 * be subnormal (ANY); all that, and what kernels for a bias know besides (EVERY, with a softcap CAPPED); all that, and
 * products that may lose subnormal operands (EXACT, with a softcap beside other features EXACT_CAPPED). INNER and EDGE
 * make decisions of dropout by our own map, more kinds do as INNER by the others: each, or both (OTHERS). */
enum {
    CDNA_UNSEEN,
    CDNA_INNER,
    CDNA_INNER_FLASH2,
    CDNA_INNER_MEM_EFF,
    CDNA_INNER_OTHERS,
    CDNA_EDGE,
    CDNA_ANY,
    CDNA_EVERY,
    CDNA_CAPPED,
    CDNA_EXACT,
    CDNA_EXACT_CAPPED
};
DEV_FN constexpr bool cdna_is_exact(int kind) { return kind >= CDNA_EXACT; }
DEV_FN constexpr bool cdna_is_capped(int kind) { return kind == CDNA_CAPPED || kind == CDNA_EXACT_CAPPED; }
DEV_FN constexpr bool cdna_sees_all(int kind) { return kind >= CDNA_INNER && kind <= CDNA_INNER_OTHERS; }
DEV_FN constexpr bool cdna_minds_every(int mode, int kind) { return cdna_knows_bias(mode) && kind >= CDNA_EVERY; }
/* The map whose calls run beside a step's products, or before it. */
DEV_FN constexpr int cdna_draws_by(int mode, int kind) {
    if (mode != CDNA_DROPOUT || kind == CDNA_UNSEEN || kind >= CDNA_ANY) return CDNA_DRAWS_NOTHING;
    if (kind == CDNA_INNER_OTHERS) return CDNA_DRAWS_BEFORE;
    if (kind == CDNA_INNER_FLASH2) return STW_DROPOUT_FLASH2;
    return kind == CDNA_INNER_MEM_EFF ? (int)STW_DROPOUT_MEM_EFF : (int)STW_DROPOUT_PHILOX;
}

/* How S becomes P: the scale, and the mask. A pair is in sight if its distance, row + high - key, lies in [0, span] and
 * its key is in use. */
struct attn_cdna_scoring {
    float scale_log2; /* scale log2(e) */
    int distance;     /* of the lane's first row of block 0 and its key of tile 0 */
    int span;
    int keys_left;        /* in use, from the lane's key of tile 0 on */
    int used;             /* of the wave's keys */
    int high;             /* right bound of the row at distance 0, from the first key on */
    uint64_t halves;      /* CDNA_HALVES                                                 */
    bool bounded;         /* the mask has a left bound                                   */
    float to_ds, to_sums; /* f16 of gfx90a (attn_bwd_cdna_lift.h): P (dP - delta) to dS, dS K to what is added to dQ */

    DEV_METHOD void set(const attn_work_tile &u, cdna_launch l, int keys, int wave, int lane) {
        const int64_t far = INT64_C(1) << 28;
        int64_t j0 = dev_uniform(u.j0);
        high = (int)stw_clamp_i64(dev_uniform(u.seq.band.high) - j0, -far, far);
        int low = (int)stw_clamp_i64(dev_uniform(u.seq.band.low) - j0, -far, far);
        int key = keys / 4 * wave + lane % 16;
        scale_log2 = l->p.scale * DEV_LOG2E;
        halves = cdna_opaque_scalar(CDNA_HALVES); /* else one of the two registers is made anew at every step */
        distance = 4 * (lane / 16) - key + high;
        span = high - low;
        bounded = low > -far;
        used = (int)stw_clamp_i64(dev_uniform(u.seq.kv.used) - j0, 0, keys) - keys / 4 * wave;
        keys_left = used - lane % 16;
    }
    /* Of the pairs of so many rows from `row` on and the wave's keys: one may be in sight, all are (of rows in use). */
    DEV_METHOD void look(int row, int rows, int keys, bool &some, bool &all) const {
        const int farthest = dev_uniform(distance) + (row + rows - 1), nearest = farthest - (rows + keys - 2);
        some = used > 0 && farthest >= 0 && nearest <= span;
        all = used >= keys && nearest >= 0 && farthest <= span;
    }
    /* dS is at most `bound`. Factors: 2^10 of P and of each tensor, 2^e of dS. */
    DEV_METHOD void lift(float bound) {
        const int above = dev_uniform((int)__builtin_amdgcn_frexp_expf(bound)), e = 15 - (above > -60 ? above : -60);
        scale_log2 *= 0x1p-20f;
        to_ds = __builtin_bit_cast(float, (127 + e - 30) << 23); /* made so, they stay in scalar registers */
        to_sums = __builtin_bit_cast(float, (127 - 10 - e) << 23);
    }
};

/* Scores of 16 queries and the wave's keys: TILES tiles, of which the lane has key n and queries 4 g .. 4 g + 3.
 * 2 TILES pairs e = TILES k + i of scores: queries 2 k and 2 k + 1 of tile i. Each takes four pieces to P and four to
 * dS. */
template <int KIND, class C> struct attn_cdna_scores {
    typedef typename C::T T;
    enum { LIFTED = attn_lifts<T>::yes && !cdna_is_exact(KIND), DROPS = C::MODE == CDNA_DROPOUT };
    enum { EVERY = cdna_minds_every(C::MODE, KIND), CAPPED = cdna_is_capped(KIND) };
    enum { TILES = C::TILES, MASKED = !cdna_sees_all(KIND), FUSED = DROPS && !MASKED };
    enum { HERE = C::SCORES_HERE && !cdna_is_exact(KIND) && (FUSED || !DROPS), ANY = KIND >= CDNA_ANY };
    enum { SCALES = LIFTED || (DROPS && !C::P_SCALED) || EVERY }; /* dS has a factor */
    leaf_f4 s[TILES], dp[TILES];
    leaf_u2 p16[TILES], ds16[TILES]; /* P and dS in T: the operands P^T and dS^T */
    leaf_f2 p[2 * TILES], ds[2 * TILES];
    float to_ds;               /* attn_cdna_scoring           */
    uint64_t halves;           /* the same                    */
    int half, distance[TILES]; /* of queries 16 half + 4 g .. */
    bool sees[2 * TILES][2];
    attn_cdna_distances<C> distances;                           /* CDNA_ALIBI                                 */
    leaf_f2 slopes[2 * TILES];                                  /* softcap: on the way to the derivative      */
    attn_cdna_decisions<cdna_draws_by(C::MODE, KIND), C> draws; /* CDNA_DROPOUT     */
    leaf_f4 start;                                              /* CDNA_DROPOUT, EVERY: of dP                 */
    leaf_f2 pz[2 * TILES];                                      /* FUSED: P.Z; CAPPED: P                      */
    attn_cdna_places<C, EVERY> places;                          /* EVERY: of ALiBi                            */
    uint32_t keeps;                                             /* EVERY: bits of pairs that are kept         */
    float scale_log2, to_log2;                                  /* EVERY                                      */

    /* Half `h` of query block `block`. */
    DEV_METHOD void enter(const attn_cdna_scoring &how, const attn_cdna_feature<C> &feature, int block, int h) {
        half = h;
        distances.enter(feature, how.distance, block, h);
        draws.enter(feature, h);
        places.enter(feature, how.distance, block, h);
        if constexpr (EVERY) {
            keeps = feature.more.bits >> 16 * (h % 2);
            scale_log2 = how.scale_log2 * DEV_LOG2E;
            to_log2 = feature.to_log2;
        }
        if constexpr (SCALES) to_ds = how.to_ds;
        halves = C::IN_AGPRS || C::MODE != CDNA_PLAIN ? CDNA_HALVES : how.halves;
        if constexpr (MASKED) {
            int first = cdna_opaque_scalar(block * C::BM);
            DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                distance[i] = 16 * i < how.keys_left ? how.distance + (first - 16 * i) : -(1 << 30);
                if (!ANY) distance[i] = -distance[i];
            }
        }
    }
    /* Piece q of 8 TILES is stage 0 to 3 of pair e. Two pairs take turns where two pieces follow a product, or beside
     * products that clang does not see: it would put an s_nop between two stages (masks of two pairs would spill). */
    enum { TURNS = C::PIECES_V < 4 || (HERE && !MASKED) };
    DEV_FN constexpr int pair_of(int q) { return TURNS ? q / 8 * 2 + q % 2 : q / 4; }
    DEV_FN constexpr int stage_of(int q) { return TURNS ? q / 2 % 4 : q % 4; }

    /* Whether the mask lets pair e of scores be seen. */
    DEV_METHOD void look(const attn_cdna_scoring &how, const attn_cdna_feature<C> &feature, const leaf_f4 &lse, int e) {
        const int k = e / TILES, i = e % TILES;
        if constexpr (MASKED)
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
                const int row = half * 16 + 2 * k + r;
                sees[e][r] =
                    ANY ? (uint32_t)(distance[i] + row) <= (uint32_t)how.span && lse[2 * k + r] != -dev_infinity()
                        : distance[i] <= row;
                if constexpr (ANY && (cdna_hides(C::MODE) || cdna_knows_bias(C::MODE)))
                    sees[e][r] &= !feature.hides(half, i, 2 * k + r);
            }
    }
    DEV_METHOD leaf_f2 scores_of(int e) {
        const int k = e / TILES, i = e % TILES;
        if (e == 0) cdna_settle_scores<HERE>();
        if (k == 0) cdna_keep<C::IN_AGPRS && !HERE>(s[i]);
        return k ? s[i].zw : s[i].xy;
    }
    /* The exponents of pair e with a bias. */
    DEV_METHOD leaf_f2 biased(const attn_cdna_scoring &how, const attn_cdna_feature<C> &feature, leaf_f2 lse, int e) {
        const int k = e / TILES, i = e % TILES, h = half % 2;
        leaf_f2 x = scores_of(e) * (leaf_f2)how.scale_log2;
        if constexpr (cdna_knows_bias(C::MODE))
            x += leaf_f2{feature.template added<ANY>(h, i, 2 * k), feature.template added<ANY>(h, i, 2 * k + 1)};
        x = __builtin_elementwise_fma(x + lse, (leaf_f2)DEV_LOG2E, (leaf_f2)(LIFTED ? 10.0f : 0.0f));
        if constexpr (C::MODE == CDNA_BYTES)
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) x[r] = feature.shows(h, i, 2 * k + r) ? x[r] : -dev_infinity();
        return x;
    }
    /* EVERY: what is added to S of pair e, times log2(e). The difference of a bias and LSE comes first, as above. */
    DEV_METHOD leaf_f2 added(const attn_cdna_feature<C> &feature, leaf_f2 lse, int e) const {
        const int k = e / TILES, i = e % TILES, h = half % 2;
        leaf_f2 x = leaf_f2{feature.template added<ANY>(h, i, 2 * k), feature.template added<ANY>(h, i, 2 * k + 1)};
        x = places.add_to(x + lse, k, i);
        return __builtin_elementwise_fma(x, (leaf_f2)to_log2, (leaf_f2)(LIFTED ? 10.0f : 0.0f));
    }
    /* P = exp(scale S - LSE): the exponent, one power, the other, rounding. */
    template <bool CAPS>
    DEV_METHOD void softmax(const attn_cdna_scoring &how, const attn_cdna_feature<C> &feature, const leaf_f4 &lse,
                            int q) {
        const int e = pair_of(q), stage = stage_of(q), k = e / TILES, i = e % TILES;
        if constexpr (CAPS) {
            softmax_capped(how, feature, lse, e, stage);
        } else if (stage == 0) {
            if (k == 0) draws.compare(feature, i);
            if constexpr (EVERY)
                p[e] = __builtin_elementwise_fma(scores_of(e), (leaf_f2)scale_log2,
                                                 added(feature, k ? lse.zw : lse.xy, e));
            else if constexpr (cdna_biased(C::MODE)) p[e] = biased(how, feature, k ? lse.zw : lse.xy, e);
            else p[e] = __builtin_elementwise_fma(scores_of(e), (leaf_f2)how.scale_log2, k ? lse.zw : lse.xy);
            if constexpr (C::MODE == CDNA_ALIBI || (DROPS && ANY)) p[e] = distances.subtract_from(p[e], feature, k, i);
            look(how, feature, lse, e);
        } else if (stage < 3) {
            const int r = stage - 1;
            if constexpr (MASKED) p[e][r] = sees[e][r] ? p[e][r] : -dev_infinity();
            p[e][r] = dev_exp2_fast(p[e][r]);
        } else if constexpr (FUSED) {
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) pz[e][r] = draws.kept(p[e][r], i, 2 * k + r);
            p16[i][k] = cdna_operand(T(), pz[e], halves);
        } else p16[i][k] = cdna_operand(T(), kept(p[e], leaf_f2{0.0f, 0.0f}, i, k), halves);
    }
    /* x of pairs that are kept, y of others. */
    DEV_METHOD leaf_f2 kept(leaf_f2 x, leaf_f2 y, int i, int k) const {
        if constexpr (DROPS && !FUSED)
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) x[r] = draws.kept(x[r], y[r], i, 2 * k + r);
        if constexpr (EVERY)
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) x[r] = keeps & 1u << (4 * i + 2 * k + r) ? x[r] : y[r];
        return x;
    }
    /* The same with a softcap: powers, u, the tangent and powers again, P and P times the derivative. What a power or a
     * reciprocal is for comes a piece later: right after it nothing would be issued. */
    DEV_METHOD void softmax_capped(const attn_cdna_scoring &how, const attn_cdna_feature<C> &feature,
                                   const leaf_f4 &lse, int e, int stage) {
        if (stage == 0) {
            const leaf_f2 doubled = (leaf_f2)cdna_alone<C>(cdna_cap_of(feature).doubled);
            const leaf_f2 halved = __builtin_elementwise_fma(scores_of(e), doubled, (leaf_f2)-1.0f);
            look(how, feature, lse, e);
            slopes[e] = leaf_f2{dev_exp2_fast(halved.x), dev_exp2_fast(halved.y)};
        } else if (stage == 1) {
            slopes[e] += 0.5f;
            slopes[e] = leaf_f2{__builtin_amdgcn_rcpf(slopes[e].x), __builtin_amdgcn_rcpf(slopes[e].y)};
        } else if (stage == 2) {
            const leaf_f2 tangent = 1.0f - slopes[e];
            leaf_f2 others = e < TILES ? lse.xy : lse.zw;
            if constexpr (EVERY) others = added(feature, others, e);
            p[e] = __builtin_elementwise_fma(tangent, (leaf_f2)cdna_alone<C>(cdna_cap_of(feature).cap), others);
            slopes[e] = __builtin_elementwise_fma(slopes[e], tangent, slopes[e]);
            DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
                if constexpr (MASKED) p[e][r] = sees[e][r] ? p[e][r] : -dev_infinity();
                p[e][r] = dev_exp2_fast(p[e][r]);
            }
        } else {
            p16[e % TILES][e / TILES] = cdna_operand(T(), kept(p[e], leaf_f2{0.0f, 0.0f}, e % TILES, e / TILES));
            if constexpr (CAPPED) pz[e] = p[e];
            if constexpr (MASKED) p[e] = leaf_f2{cdna_times(p[e].x, slopes[e].x), cdna_times(p[e].y, slopes[e].y)};
            else p[e] *= slopes[e];
        }
    }
    /* x (dP - delta) of pair e, after the first stage of its gradient. */
    DEV_METHOD leaf_f2 flow_into(leaf_f2 x, int e) const {
        const int k = e / TILES, i = e % TILES;
        const leaf_f2 flow = kept(k ? dp[i].zw : dp[i].xy, k ? start.zw : start.xy, i, k);
        x = MASKED || cdna_biased(C::MODE) ? leaf_f2{cdna_times(x.x, flow.x), cdna_times(x.y, flow.y)} : x * flow;
        return SCALES ? x * (leaf_f2)to_ds : x;
    }
    /* dS = P (dP - delta): the product, rounding, to LDS; no fourth. */
    DEV_METHOD void gradient(const attn_cdna_lds<C> &lds, int q) {
        const int e = pair_of(q), stage = stage_of(q), k = e / TILES, i = e % TILES;
        if (stage == 0) {
            if (k == 0) cdna_keep<C::IN_AGPRS && !HERE>(dp[i]);
            if constexpr (FUSED)
                ds[e] = __builtin_elementwise_fma(pz[e], k ? dp[i].zw : dp[i].xy, p[e] * (k ? start.zw : start.xy));
            if constexpr (!FUSED) ds[e] = flow_into(p[e], e);
            else if constexpr (SCALES) ds[e] *= (leaf_f2)to_ds;
        } else if (stage == 1) ds16[i][k] = cdna_operand(T(), ds[e], halves);
        else if (stage == 2 && i % 2) lds.put_zipped(half % (C::HELD / 16), k, ds16[i - 1][k], ds16[i][k]);
        else if (stage == 2 && i == TILES - 1) lds.put_single(half % (C::HELD / 16), k, ds16[i][k]);
    }
};

#endif
