/* SPDX-License-Identifier: MIT
 *
 * sm90's own main loop of the backward pass (Hopper), for 16-bit types. It makes dK and dV and adds dQ to
 * f32 sums, which the kernel before it clears and the kernel after it converts. One CTA of 256 threads (two
 * warpgroups) runs on a multiprocessor and takes work tiles, 128 keys of a KV head, until none is left. For each it
 * goes over the blocks of BM queries that meet these keys. All is held transposed, keys as rows; warpgroup c has keys
 * 64c.. of the work tile:
 *
 *              queries i0 .. i0+BM
 *     keys  +--------------------+      S^T  = K Q^T      both from shared memory
 *     c = 0 | 64 x BM            |      dP^T = V dO^T     both from shared memory
 *           +--------------------+      dV  += P^T dO     P^T from registers: accumulators have an operand's layout
 *     c = 1 | 64 x BM            |      dK  += dS^T Q     dS^T from registers
 *           +--------------------+      dQ   = dS K       dS through shared memory; warpgroup c makes columns 64c..
 *                                                         (BM 64) or rows 64c.. (BM 128)
 *
 * Step j. On entry P(j) is in registers, no product is under way, and `special` has the step's bits (SM90_MASKED and
 * its neighbours, attn_bwd_sm90_begin.h).
 *   1  begin dP(j); P to 16 bits; begin dV(j)
 *   2  wait for dP; dS = P (dP - delta) to 16 bits, into registers and dS[j % 2]; barrier of the CTA   (dV runs)
 *   3  one lane asks for the rows of step j + 2, into the stage of step j - 1
 *   4  wait for dV; begin S(j+1), dQ(j), dK(j)
 *   5  wait for S; P(j+1) = 2^(S c - LSE c); wait for dQ and add it to the sums; wait for dK           (dQ, dK run)
 * S(j+1) of a work tile's last step is the next one's first. Where there is no next one it multiplies whatever lies
 * there, and nobody looks at it: a condition would upset ptxas.
 *
 * Why stages need no "empty" barriers: the CTA's barrier of step j proves that both warpgroups have ended all
 * products of step j - 1, so its rows and statistics may be overwritten. dS has two places, since a warpgroup may
 * write dS(j+1) while the other multiplies dS(j). V is not read after the barrier of a work tile's last step (dP
 * awaited): there the next one's is asked for. K has two places; the next one's is asked for a step earlier. Loads
 * run two steps ahead, over the end of the work tile too, so a work tile has two steps at least: the missing ones
 * multiply rows of zeros, or nothing (SKIPS_IDLE).
 *
 * Rows that take part in nothing must not be multiplied, not even by 0. What TMA brings of them (a neighbour's in
 * packed tensors, rows past a used length) is overwritten with zeros, in the few blocks at edges.
 *
 * Deterministic mode (ORDERED, a kernel of its own or asked, SM90_ORDER_ASKED): key blocks add to a query block from
 * the last to the first; l.dq_semaphore, a word a query block, holds the key block that added last. Work tiles are
 * numbered in that order and drawn from l.tile_counter in the order of their numbers. A work tile waits for smaller
 * numbers alone, and a CTA releases its last semaphore before it waits as another work tile: so one of them always goes
 * on. (Under a causal mask the first query block that a key block meets is met by none before it.) Then the longest
 * work tiles come last, and those of the last heads would be waited for: key blocks of these add from the first to the
 * last (sm90_turn_iterator), so that the last work tiles are the shortest. One warp, KEEPER, has the semaphores: it
 * waits for that of step j in phase 1. In phase 4 it releases that of step j - 1, whose additions came before the
 * barrier, and looks at that of step j + 1; one fence serves both.
 *
 * A kernel knows one feature of single pairs (FEATURE, attn_bwd_sm90_features.h), dropout with ALiBi or a bias, or
 * none. ALiBi adds to the exponents of phase 5. Under softcap phase 5 ends with tanh instead of P. Phase 1 makes P of
 * it for dV, and P (1 - tanh^2), which is all that phase 2 needs. The bias of step j + 1 is asked for in phase 4, into
 * the place of dS(j - 1), and read in phase 5.
 *
 * Dropout (attn_bwd_sm90_dropout.h): a third warpgroup decides what is dropped, a word of bits for 32 values of P(j+1),
 * which is read in phase 5, applied to P in phase 1 and to dP in phase 2. P is P / (1 - p) there, and delta is
 * multiplied by 1 - p. The other two have 232 registers then, 208 of which were operands: so dS goes to shared memory
 * alone, from where dK takes it, too, and dV is made by parts of 32 queries, each begun after dS of the one before.
 * With a bias, which waits in the same place, the words come when all warps have read it.
 *
 * An f32 bias and a gradient of every pair (BIAS_MORE): threads load their own bias in phase 5, after a prefetch
 * in phase 4; dBias, of the operands' type, leaves from dS's place in phase 3. dK takes dS from shared memory, for
 * registers; additions of subnormal terms of dQ are a branch (ASKS_EXACT).
 *
 * Interval and block masks (attn_bwd_sm90_masks.h): a work tile's steps are the query blocks that hold a visible pair.
 * One lane finds that of step j + 3 in phase 4, and all threads read that of step j + 1 after the barrier of step j.
 * Pairs are tested only in those blocks where some are hidden. In deterministic mode the semaphore holds the key block
 * that adds next.
 *
 * All of these (SM90_ALL, attn_bwd_sm90_all.h): a kernel that asks for each, with f32 and few outputs, too, and with
 * dBias of every pair under softcap.
 *
 * f32 dK and dV (DRAINS): the matrix unit truncates its sums, which 16-bit outputs hide. Every maps.drain_rows rows
 * they go to the output, or are added to what this work tile has there already, and begin again from 0; each thread
 * reads only what it has written. With STW_FEAT_ROUNDED_SUMS 16-bit outputs follow, and sums stay in registers. With a
 * feature such a kernel makes any of dQ, dK and dV (ANY_OUTPUTS), and dK takes dS from shared memory: from registers
 * the kernels of head_dim 128 spilled 11 to 92 stores. Its work tiles may
 * be parts, where dK and dV are of 16 bits and the feature is no mask (PARTS).
 *
 * What ptxas makes of this decides over 10%:
 *   - no exponential may sink past the last wait of a step, where no product runs: the branch to mask_scores ahead
 *     of it holds them;
 *   - all that decides about loops and branches comes from dev_uniform and from arithmetic without branches
 *     (sm90_block_iterator::next), or the whole loop leaves the uniform registers, descriptors first; a dev_uniform
 *     in a conditional part of the loop has the same effect;
 *   - what a load brings must be wanted only after all products of a phase have begun, and loads come no earlier than
 *     they are written: marks in the middle of the products cost 4%;
 *   - registers of an address are held until additions have read them (sm90_hold): ptxas used them again at once, 9%;
 *   - `elect.sync` in a branch that all lanes of a warp take keeps loops away from TMA. */
#ifndef STW_CUDA_ATTN_BWD_SM90_H
#define STW_CUDA_ATTN_BWD_SM90_H

#include "attn_bwd_sm90_begin.h"

/* One function over the limit of 120 lines; its steps are lambdas. As methods of a struct the same text becomes another
 * kernel (64x128_hd128_f16_plain: 12,214 lines of PTX, not 12,209; 252 registers as before), whose speed nobody
 * knows; so does 128x128_hd64_bf16_ordered where the entry of the next work tile leaves the step. */
template <class C, int ORDERED, int FEATURE = SM90_PLAIN>
DEV_FN void attn_bwd_sm90(const stw_attn_launch &l, const stw_sm90_maps &maps, char *smem) {
    typedef typename C::T T;
    enum { BM = C::BM, HD = C::HD, SUBNORMAL = !dev_is_f16<T>::yes };
    enum { PIECES = BM / 8, VALUES = 4 * PIECES }; /* a thread's scores: 2 keys x 2 queries of each 8 queries */
    enum { LSE, DELTA };                           /* the statistics of a stage */
    typedef sm90_knows<FEATURE> knows;
    enum { DROPS = knows::DROPOUT, ALIBI = knows::ALIBI, BIAS = knows::BIAS, BIAS_MORE = knows::BIAS_MORE };
    enum { ALL = knows::ALL, MASKS = knows::MASKS };
    /* a bias or dropout's decisions wait where dS will be written; dV's rows would go where those of the next work
     * tile's first step are awaited */
    enum { WAITS_FOR_DS = BIAS || DROPS };
    /* ANY_OUTPUTS: a feature with f32 or few outputs. SUBSETS: dQ, dK and dV are made where they are wanted */
    enum { ANY_OUTPUTS = C::DRAINS && FEATURE != SM90_PLAIN, SUBSETS = C::GENERAL || ANY_OUTPUTS };
    enum { PARTS = ANY_OUTPUTS && !MASKS }; /* work tiles of 16-bit dK and dV may be parts, as those of GENERAL */
    enum { VALUES_EARLY = C::VALUES_EARLY && !WAITS_FOR_DS };
    /* SHARES_DS: registers lack, and dS goes to shared memory alone; with a third warpgroup dV is made by PART queries,
     * too */
    enum { THIRD = DROPS, SHARES_DS = THIRD || BIAS_MORE || ANY_OUTPUTS, PART = sm90_dropout<BM>::PART };
    enum {
        STATISTICS = FEATURE != SM90_SOFTCAP && !BIAS && !(DROPS && ALIBI) && !ALL
    }; /* LSE's are read ahead of exponentials */
    /* no step of their own for exact additions: half of the code */
    enum { ASKS_EXACT = SUBNORMAL && (BIAS_MORE || ANY_OUTPUTS) };
    /* a last step without pairs is a step of its own, without products: of 128 rows many work tiles have one step */
    enum { SKIPS_IDLE = ORDERED == 0 && FEATURE == SM90_PLAIN && !C::DRAINS && BM == 128 };
    const stw_attn_params &p = l.p;
    const bool ordered = SM90_IS_ORDERED(l);
    const int wave = (int)dev_wave(), thread = (int)dev_thread(), lane = (int)dev_lane();
    const uint32_t base = sm90_shared_address(smem);
    const sm90_barriers<C> barriers = {base + C::AT_BARRIERS};
    typedef sm90_way<C, FEATURE, ORDERED> way;
    typedef typename way::iterator block_iterator;
    const typename way::loads load = {l, maps, base};
    attn_work_tile *const tiles =
        (attn_work_tile *)(void *)(smem + C::AT_TILES); /* this work tile and the next, alternately */
    const sm90_scheduler<ORDERED, MASKS> scheduler = {l, (uint32_t *)(void *)(smem + C::AT_DRAWN), barriers.tile()};
    typename way::masking *const masking = (typename way::masking *)(void *)(smem + C::AT_MASKING);

    sm90_take_first_tile<C, ORDERED, FEATURE>(barriers, scheduler, tiles[0], wave);
    if (!dev_uniform(tiles[0].live)) return;
    sm90_load_first_tile(load, *masking, tiles[0], wave);
    [[maybe_unused]] const sm90_dropout_barriers<C> decided = {base};
    if constexpr (DROPS) {
        if (dev_uniform(wave) >= C::WARPS) {
            sm90_give_registers<SM90_DROPOUT_REST>();
            if constexpr (ALL) {
                if (!(p.features & STW_FEAT_DROPOUT)) return;
                int ahead = 0, parity = 0; /* the next step's stage */
                sm90_decide<C, false, block_iterator>(l, tiles, base, barriers.tile(), [&](block_iterator &it) {
                    barriers.q(ahead).wait(parity);
                    it.enter(sm90_load_shared_word(base + C::AT_MASKING + 4 * ahead), l);
                    parity ^= ahead == C::STAGES - 1;
                    ahead = ahead == C::STAGES - 1 ? 0 : ahead + 1;
                });
            } else sm90_decide<C, BIAS, block_iterator>(l, tiles, base, barriers.tile(), [](block_iterator &) {});
            return;
        }
        sm90_take_registers<SM90_DROPOUT_REGISTERS>();
    }

    const int group = wave / 4, warp = wave % 4;                 /* the warpgroup, and the warp in it */
    float dk[HD / 2], dv[HD / 2], s[VALUES], dp[VALUES], dq[32]; /* all transposed but dQ; s: S, then P */
    uint32_t p16[BM / 4], ds16[BM / 4];
    /* dS: row (lane / 16) * 8 + lane % 8 of 16 queries, keys of this warp in the panel of its warpgroup */
    const uint32_t ds_to = base + C::AT_DS + group * BM * 128 + ((lane / 16) * 8 + lane % 8) * 128 +
                           (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);

    /* S^T = K Q^T of a stage, begun. Addresses of operands count 16 bytes. */
    auto scores = [&](uint32_t at0, int tile, int stage) {
        const sm90_operand<T, C::BN, HD> k = {at0 + C::AT_K / 16 + group * 512 + tile * (C::KEYS_BYTES / 16)};
        const sm90_operand<T, BM, HD> q = {at0 + C::AT_Q / 16 + stage * (C::ROWS_BYTES / 16)};
        sm90_mma_fence();
        mma_ABt(s, k, q);
    };
    /* What is special about the next step, in one word that is the same for all threads. */
    auto marks = [&](int stage, bool plain, uint32_t of_tile) {
        uint2 m = sm90_load_shared_words(base + C::AT_STATS + (stage * C::STATS + 2 * BM) * 4);
        return (uint32_t)dev_uniform((int)((m.x ? (uint32_t)SM90_DEAD_ROWS : 0u) |
                                           (SUBNORMAL && m.y ? (uint32_t)SM90_EXACT_DQ : 0u) |
                                           (plain ? 0u : (uint32_t)SM90_MASKED) | of_tile));
    };
    auto between = [&](const block_iterator &it) {
        if constexpr (MASKS) return it.tests & sm90_visible_step::TESTS_BETWEEN ? (uint32_t)SM90_BETWEEN : 0u;
        else return 0u;
    };
    auto keys_are_subnormal = [&](int place) {
        const char *const keys = smem + C::AT_K + place * C::KEYS_BYTES, *const values = smem + C::AT_V;
        if constexpr (DROPS) return sm90_keys_are_subnormal_alone<C>(keys, values);
        else return sm90_keys_are_subnormal<C>(keys, values);
    };
    /* Zeros in rows of a stage that take part in nothing, when they have arrived, and no product is under way. */
    auto zero_rows = [&](const attn_work_tile &tile, const block_iterator &it, int stage, int phase) {
        barriers.dout(stage).wait(phase);
        sm90_mma_wait<0>();
        sm90_zero_queries<C>(tile, smem, stage, it.block, sm90_thread_anew());
        sm90_cta_sync();
    };
    /* dQ where every term may be subnormal (attn_bwd_subnormal.h), by way of dS's place, which saves registers
     * elsewhere. */
    auto add_exact = [&](float *to, int place) {
        float *mine = (float *)(void *)(smem + place) + sm90_thread_anew() * 16;
        sm90_cta_sync(); /* nobody multiplies that dS any more */
        DEV_UNROLL_FOR (int part = 0; part < 2; ++part) {
            DEV_UNROLL_FOR (int i = 0; i < 16; ++i) mine[i] = dq[16 * part + i];
            DEV_ROLLED_FOR (int i = 0; i < 16; ++i)
                sm90_add_exact(to + (4 * part + i / 4) * (C::THREADS * 4) + i % 4, mine[i]);
        }
    };
    auto drain_steps = [&]() { return maps.drain_rows / (int)BM; };
    /* With `left` steps left f32 sums of this work tile are in memory already, those of the last steps not counted. */
    auto drained = [&](const attn_work_tile &tile, int left) {
        return !(p.features & STW_FEAT_ROUNDED_SUMS) &&
               dev_uniform(block_iterator::steps_of(tile, l)) - left > drain_steps();
    };
    /* This warp's rows of dV or dK, by way of the place of dS that nobody multiplies: its warpgroup's panel there. */
    auto store = [&](const attn_work_tile &tile, const float(&x)[HD / 2], const stw_tensor_param &to, uint32_t vectors,
                     uint32_t cols, float scale, uint32_t place) {
        char *const mine = smem + C::AT_DS + place * C::DS_BYTES + group * BM * 128 + warp * 2048;
        const uint32_t output = vectors == STW_VECTOR_DV ? STW_OUT_DV : STW_OUT_DK;
        if (SUBSETS && !(p.outputs & output)) return;
        if constexpr (C::DRAINS) {
            if (PARTS && l.part_sums) sm90_store_part<C>(tile, x, l, output, mine, wave, sm90_lane_anew());
            else sm90_store_either<C>(tile, x, l, output, drained(tile, 0), mine, wave, sm90_lane_anew());
        } else if constexpr (C::GENERAL) sm90_store_general<C>(tile, x, l, output, mine, wave, sm90_lane_anew());
        else
            sm90_store_keys<C>(tile, x, to, p.dtype, (l.vectors & vectors) != 0, (int)cols, scale, mine, wave,
                               sm90_lane_anew());
    };

    int turn = 0, stage = 0, phase = 0; /* work tiles before this; the step's stage, its mbarriers' parity */
    uint32_t special;
    /* P = 0 (softcap, ALL: a mark) for pairs that a mask hides and for rows with an infinite LSE, whatever came out for
     * them. Rare: what is derived from the lane is not kept over the loop. */
    auto mask_scores = [&](const block_iterator &it, int stage) {
        const int here = sm90_lane_anew(), row = 16 * wave + here / 4, i0 = it.block * BM + here % 4 * 2;
        const float hidden = FEATURE == SM90_SOFTCAP ? SM90_CAP_HIDDEN : ALL ? -dev_infinity() : 0.0f;
        if (special & SM90_MASKED) {
            if constexpr (MASKS) {
                dev_copy_wait();
                __syncwarp();
            }
            const int *seen = (const int *)(const void *)(smem + C::AT_SEEN) + 2 * row;
            int2 a = *(const int2 *)(const void *)seen, b = *(const int2 *)(const void *)(seen + 16);
            a.x -= i0, a.y -= i0, b.x -= i0, b.y -= i0;
            if (it.is_idle(tiles[turn & 1], l)) a.y = b.y = -1;
            sm90_mask_hidden(s, a, b, hidden);
            if constexpr (MASKS)
                if (special & SM90_BETWEEN) sm90_mask_between(s, l, tiles[turn & 1], row, i0, hidden);
        }
        if (special & SM90_DEAD_ROWS) {
            const float *lse = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + here % 4 * 2;
            sm90_mask_dead_rows<(BIAS || ALL)>(s, lse, hidden);
        }
    };
    uint32_t flip = 0; /* which place of dS */
    block_iterator it = block_iterator::begin(tiles[0], l);
    [[maybe_unused]] int plain_first, plain_end; /* query blocks with nothing special */
    /* ORDERED. `due`: the query block that the step before added to, whose semaphore is not released yet. `last_there`:
     * the semaphore of the next step's, as KEEPER read it. */
    uint32_t due = SM90_NOTHING_DUE, last_there = SM90_NOTHING_DUE;
    [[maybe_unused]] uint32_t follower = 0, follower_of_due = 0; /* masks: which key block adds after this one */
    enum { KEEPER = 5 }; /* not of the first warpgroup, whose first warps have the loads and the work tiles */
    /* Releases the semaphore of `due`. All additions there came before the barrier that this warp has passed. */
    auto release_dq_semaphore = [&](const attn_work_tile &tile) {
        if (!sm90_elect()) return;
        sm90_fence_gpu();
        if (due != SM90_NOTHING_DUE)
            sm90_store_relaxed(l.dq_semaphore + due, MASKS ? follower_of_due : (uint32_t)tile.block);
    };
    /* What every thread takes from what one has found out of a work tile. */
    auto take_masking = [&](const attn_work_tile &tile) {
        if constexpr (MASKS) {
            sm90_ask_seen(l, tile, base + C::AT_SEEN, wave, sm90_lane_anew());
        } else {
            plain_first = dev_uniform(masking->first);
            plain_end = dev_uniform(masking->end);
            if (!dev_uniform(masking->plain))
                sm90_list_seen(tile, (int *)(void *)(smem + C::AT_SEEN), wave, sm90_lane_anew());
        }
    };
    auto zeroes_keys = [&]() { return dev_uniform(masking->zeroes_keys) != 0; };
    auto is_plain = [&]() {
        if constexpr (MASKS) return it.tests == 0;
        else return it.block >= plain_first && it.block < plain_end;
    };
    auto zeroes_rows = [&](const attn_work_tile &tile) {
        if constexpr (MASKS) return it.template zeroes_rows<C>(tile, p);
        else return sm90_tile_masking::zeroes_rows(tile, p, it);
    };
    /* Masks: which query block a stage has. */
    auto block_of = [&](int stage) {
        if constexpr (MASKS) return sm90_load_shared_word(load.word_of(stage));
        else return 0u;
    };
    auto enter = [&]([[maybe_unused]] uint32_t word) {
        if constexpr (MASKS) it.enter(word, l);
    };

    /* P of the first step */
    take_masking(tiles[0]);
    barriers.k().wait(0);
    barriers.v().wait(0);
    if (zeroes_keys()) {
        sm90_zero_keys<C>(tiles[0], smem + C::AT_K, thread);
        sm90_zero_keys<C>(tiles[0], smem + C::AT_V, thread);
        sm90_cta_sync();
    }
    uint32_t of_tile = SUBNORMAL && keys_are_subnormal(0) ? (uint32_t)SM90_EXACT_DQ : 0u;
    barriers.q(0).wait(0);
    barriers.dout(0).wait(0);
    enter(block_of(0));
    if (!is_plain() && zeroes_rows(tiles[0])) zero_rows(tiles[0], it, 0, 0);
    if constexpr (MASKS && ORDERED)
        if (ordered) follower = it.follower(tiles[0], l);
    scores(base >> 4, 0, 0);
    special = marks(0, is_plain(), of_tile | between(it));
    sm90_mma_wait<0>(s);
    float2 lse[PIECES];
    sm90_dropout<BM> dropped;
    if constexpr (ALL) dropped = {};
    sm90_alibi alibi;
    /* What features need of the next scores: ahead of products, which is rare, and while they run. */
    typedef sm90_bias<C, !BIAS_MORE> bias_of_type;
    const bool f32_bias = BIAS_MORE && p.bias_dtype == STW_F32;
    [[maybe_unused]] bool reads_bias = false; /* f32: of the next scores */
    [[maybe_unused]] const sm90_all<C> all = {l, maps};
    [[maybe_unused]] const bool drops = DROPS && (!ALL || (p.features & STW_FEAT_DROPOUT));
    auto features_ahead = [&](bool live) {
        if constexpr (ALL) {
            if (drops && live) { /* what the bias goes over */
                decided.full().wait(flip ^ 1);
                dropped.load(ds_to + (flip ^ 1) * C::DS_BYTES);
                __syncwarp();
            }
            if (all.has_tiled_bias() && !bias_of_type::fits(l)) {
                bias_of_type::load(l, tiles[turn & 1], it, live && it.left > it.idle, smem,
                                   C::AT_DS + (flip ^ 1) * C::DS_BYTES, wave, sm90_lane_anew());
                __syncwarp();
            }
        } else if constexpr (BIAS) {
            if (!f32_bias && !bias_of_type::fits(l))
                bias_of_type::load(l, tiles[turn & 1], it, live && it.left > it.idle, smem,
                                   C::AT_DS + (flip ^ 1) * C::DS_BYTES, wave, sm90_lane_anew());
        }
    };
    auto features = [&](bool live) {
        const sm90_place at = {16 * wave, lane};
        if constexpr (ALL) {
            if (all.has_f32_bias())
                sm90_bias_pairs<C>::prefetch(l, tiles[turn & 1], it, live && it.left > it.idle, sm90_thread_anew());
            else if (all.has_bias() && bias_of_type::fits(l))
                bias_of_type::fetch(l, tiles[turn & 1], it, live && it.left > it.idle,
                                    base + C::AT_DS + (flip ^ 1) * C::DS_BYTES, wave, sm90_lane_anew());
        } else if constexpr (BIAS) { /* into the place of dS(j - 1), whose products have ended */
            if (f32_bias) {
                reads_bias = live && it.left > it.idle;
                sm90_bias_pairs<C>::prefetch(l, tiles[turn & 1], it, reads_bias, sm90_thread_anew());
            } else if (bias_of_type::fits(l))
                bias_of_type::fetch(l, tiles[turn & 1], it, live && it.left > it.idle,
                                    base + C::AT_DS + (flip ^ 1) * C::DS_BYTES, wave, sm90_lane_anew());
        }
        if constexpr (ALIBI) alibi = sm90_alibi::of(l, tiles[turn & 1], it.head, it.block, BM, at);
    };
    /* S to P, with dropout to P / (1 - p); under softcap to its tanh. */
    auto exponentials = [&](float2(&lse)[PIECES], int stage) {
        if constexpr (DROPS && STATISTICS) {
            DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) lse[i].x -= maps.log_kept, lse[i].y -= maps.log_kept;
        }
        if constexpr (FEATURE == SM90_SOFTCAP) sm90_tanh(s, maps.factor);
        else if constexpr (ALL) {
            if (all.is_capped()) sm90_tanh(s, maps.factor);
        } else if constexpr (ALIBI && DROPS) {
            const float *first = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + lane % 4 * 2;
            sm90_exponentials_alibi_dropped(s, first, maps.factor, maps.log_kept, alibi);
        } else if constexpr (ALIBI)
            sm90_exponentials_alibi(s, lse, maps.factor, alibi, (p.features & STW_FEAT_ALIBI_COLUMN) != 0);
        else if constexpr (BIAS) {
            const uint32_t from = ds_to + (flip ^ 1) * C::DS_BYTES;
            const float *first = (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + lane % 4 * 2;
            if (f32_bias) {
                sm90_bias_pairs<C>::of(l, tiles[turn & 1], it, reads_bias, wave, sm90_lane_anew())
                    .add(s, p.bias, first, maps.factor);
            } else {
                bias_of_type::arrive(l, base + C::AT_DS + (flip ^ 1) * C::DS_BYTES, wave, sm90_lane_anew());
                bias_of_type::template add<DROPS>(s, first, maps.factor, maps.log_kept, from);
            }
            DEV_UNROLL_FOR (int i = 0; i < VALUES; ++i) s[i] = dev_exp2_fast(s[i]);
            if (!BIAS_MORE && p.bias_dtype == STW_U8) bias_of_type::hide(s, from);
            if constexpr (DROPS) { /* decisions go where this warp's part of the bias was */
                __syncwarp();
                if (sm90_elect()) decided.empty().arrive();
            }
        } else sm90_exponentials(s, lse, maps.factor);
    };
    if constexpr (ALL) flip = 1; /* step 0 reads its bias from its own place, as if a step came before it */
    features_ahead(true);
    features(true);
    if constexpr (ALL) flip = 0;
    if constexpr (DROPS && !BIAS && !ALL) {
        decided.full().wait(0);
        dropped.load(ds_to);
    }
    if (STATISTICS) sm90_statistics<C>(lse, smem, 0, LSE, lane, 0, PIECES);
    exponentials(lse, 0);
    if constexpr (DROPS && BIAS) { /* after the bias, which was there */
        decided.full().wait(0);
        dropped.load(ds_to);
    }
    if (special & (SM90_MASKED | SM90_DEAD_ROWS)) mask_scores(it, 0);

    /* This thread's 32 values of dQ, four at a time. Head_dim 96: the second warpgroup has half as many. */
    auto add_dq = [&](float *to, bool adds) {
        DEV_UNROLL_FOR (int i = 0; i < 8; ++i)
            if (HD != 96 || i < 4 || group == 0) {
                if (ORDERED != 0 || C::GENERAL) sm90_add_four_if(adds, to + i * (C::THREADS * 4), dq + 4 * i);
                else sm90_add_four(to + i * (C::THREADS * 4), dq + 4 * i);
            }
    };
    /* One step. LAST of its work tile: S(j+1) is the next one's, if there is one. EXACT: terms of dQ may all be
     * subnormal. IDLE: it has no pairs, and is the last. Says whether there is a next step. */
    auto step = [&](auto is_last, auto is_exact, auto is_idle) {
        /* ALL: P of a part */
        [[maybe_unused]] auto make = [&](auto part) {
            enum { FIRST = 2 * decltype(part)::part };
            const float *const lse =
                (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + lane % 4 * 2;
            DEV_UNROLL_FOR (int i = FIRST; i < FIRST + 2; ++i) {
                float bias[sm90_all<C>::TOGETHER];
                all.bias_of(bias, i, tiles[turn & 1], it, ds_to + flip * C::DS_BYTES, wave);
                all.make(p16, s, i, bias, lse, alibi, dropped);
            }
        };
        /* ALL: a step's dBias under softcap, which is not what goes to dS's place */
        [[maybe_unused]] auto store_gradients = [&]() {
            const float *const lse =
                (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + sm90_lane_anew() % 4 * 2;
            const auto to = all.gradients_of(tiles[turn & 1], it, wave, sm90_lane_anew());
            DEV_UNROLL_FOR (int i = 0; i < VALUES / 8; ++i) {
                float bias[sm90_all<C>::TOGETHER];
                all.bias_of(bias, i, tiles[turn & 1], it, ds_to + flip * C::DS_BYTES, wave);
                all.store_gradients(to, s, dp, i, bias, lse, lse + BM, alibi, dropped);
            }
        };
        enum { LAST = decltype(is_last)::yes, EXACT = decltype(is_exact)::yes, IDLE = decltype(is_idle)::yes };
        const bool exact = EXACT || (ASKS_EXACT && (special & SM90_EXACT_DQ));
        const int stage_next = stage == C::STAGES - 1 ? 0 : stage + 1;
        const int phase_next = stage == C::STAGES - 1 ? phase ^ 1 : phase;
        /* operands, in units of 16 bytes: computed anew in each step, or they would take registers */
        const uint32_t at0 = (uint32_t)dev_keep((int)(base >> 4));
        const sm90_operand<T, C::BN, HD> v = {at0 + C::AT_V / 16 + group * 512};
        const sm90_operand<T, BM, HD> q = {at0 + C::AT_Q / 16 + stage * (C::ROWS_BYTES / 16)};
        const sm90_operand<T, BM, HD> dout = {at0 + C::AT_DOUT / 16 + stage * (C::ROWS_BYTES / 16)};
        const sm90_operand<T, BM, C::BN> ds = {at0 + C::AT_DS / 16 + (BM == 128 ? group * 512 : 0) +
                                               flip * (C::DS_BYTES / 16)};
        [[maybe_unused]] const sm90_operand<T, BM, 64> ds_mine = {at0 + C::AT_DS / 16 + group * (BM * 8) +
                                                                  flip * (C::DS_BYTES / 16)};
        const sm90_operand<T, C::BN, 64, 1> k = {at0 + C::AT_K / 16 + (BM == 64 ? group * 1024 : 0) +
                                                 (turn & 1) * (C::KEYS_BYTES / 16)};
        const uint32_t at = it.at;
        const attn_work_tile &tile = tiles[turn & 1];
        attn_work_tile &next = tiles[(turn & 1) ^ 1];

        /* 1: dP and dV begin */
        sm90_mma_fence();
        if constexpr (!IDLE) mma_ABt(dp, v, dout); /* dP^T = V dO^T */
        if constexpr (IDLE) {                      /* nothing */
        } else if constexpr (FEATURE == SM90_SOFTCAP) {
            /* the first half is multiplied while the second is made */
            const bool masked = (special & (SM90_MASKED | SM90_DEAD_ROWS)) != 0;
            float2 lse[PIECES];
            sm90_statistics<C>(lse, smem, stage, LSE, lane, 0, PIECES);
            if (masked) sm90_capped_exponentials<T, true, 0, PIECES / 2>(p16, s, lse, maps.cap);
            else sm90_capped_exponentials<T, false, 0, PIECES / 2>(p16, s, lse, maps.cap);
            sm90_mma_fence();
            mma_AB_rows<0, BM / 2>(dv, p16, dout);
            if (masked) sm90_capped_exponentials<T, true, PIECES / 2, PIECES>(p16, s, lse, maps.cap);
            else sm90_capped_exponentials<T, false, PIECES / 2, PIECES>(p16, s, lse, maps.cap);
        } else if constexpr (ALL) {
            alibi = all.alibi(tiles[turn & 1], it, {16 * wave, lane});
            if (all.has_tiled_bias())
                bias_of_type::arrive(l, base + C::AT_DS + flip * C::DS_BYTES, wave, sm90_lane_anew());
            if (all.stores_gradient_apart() && it.left > it.idle) {
                sm90_mma_wait<0>(dp);
                store_gradients();
            }
            make(sm90_part<0>());
        } else if constexpr (DROPS) {
            dropped.template pack<T, 0>(p16, s);
        } else {
            DEV_UNROLL_FOR (int i = 0; i < BM / 4; ++i) p16[i] = dev_pack(T(), s[2 * i], s[2 * i + 1]);
        }
        sm90_mma_fence();
        if constexpr (IDLE) { /* nothing */
        } else if constexpr (FEATURE == SM90_SOFTCAP) mma_AB_rows<BM / 2, BM>(dv, p16, dout);
        else if constexpr (DROPS) mma_AB_rows<0, PART>(dv, p16, dout);
        else mma_AB(dv, p16, dout);              /* dV += P^T dO */
        if (LAST && wave == 1 && sm90_elect()) { /* while the products run: what the next work tile is */
            barriers.tile().wait((turn + 1) & 1);
            if (next.live) masking->find(next, p);
        }
        /* idle steps of parts: an addition of 0 flushes a subnormal sum */
        const bool adds =
            (!(ORDERED != 0 || C::GENERAL) || it.left > it.idle) && (!SUBSETS || (p.outputs & STW_OUT_DQ));
        if (ordered && wave == KEEPER && adds) {
            if constexpr (MASKS) {
                if (sm90_elect() && last_there != (uint32_t)tile.block) sm90_acquire_dq_turn(l, at, tile.block);
            } else if (sm90_elect() && last_there != it.before(tile.block))
                sm90_acquire_dq_semaphore(l, at, it.before(tile.block));
            __syncwarp(); /* or ptxas lets the other lanes go on to the warp's next shuffle or product alone */
        }
        float2 delta[PIECES];
        if (!THIRD && !IDLE) sm90_statistics<C>(delta, smem, stage, DELTA, lane, 0, C::DELTA_AHEAD);

        /* 2: dS */
        if constexpr (!IDLE) sm90_mma_wait<FEATURE == SM90_SOFTCAP ? 2 : 1>(dp);
        if (!THIRD && !IDLE) sm90_statistics<C>(delta, smem, stage, DELTA, lane, C::DELTA_AHEAD, PIECES);
        [[maybe_unused]] const bool masked = (special & (SM90_MASKED | SM90_DEAD_ROWS)) != 0;
        if constexpr (IDLE) { /* nothing */
        } else if constexpr (DROPS) {
            enum { SIGNED = BIAS || ALL };
            const float *const from =
                (const float *)(const void *)(smem + C::AT_STATS) + stage * C::STATS + BM + lane % 4 * 2;
            const uint32_t to = ds_to + flip * C::DS_BYTES;
            dropped.template gradients<T, 0, SIGNED>(to, dp, s, from, maps.kept, !SIGNED && masked);
            dropped.each_part([&](auto part) {
                enum { AT = decltype(part)::part };
                if constexpr (ALL) make(part);
                else dropped.template pack<T, AT>(p16, s);
                sm90_mma_fence();
                mma_AB_rows<AT * PART, AT * PART + PART>(dv, p16, dout);
                dropped.template gradients<T, AT, SIGNED>(to, dp, s, from, maps.kept, !SIGNED && masked);
            });
        } else if constexpr (BIAS_MORE) {
            sm90_select_gradients(dp, s, delta);
            DEV_UNROLL_FOR (int i = 0; i < VALUES / 8; ++i) {
                uint32_t w[4];
                DEV_UNROLL_FOR (int k = 0; k < 4; ++k) w[k] = dev_pack(T(), dp[8 * i + 2 * k], dp[8 * i + 2 * k + 1]);
                sm90_stmatrix_trans(ds_to + flip * C::DS_BYTES + i * 2048, w);
            }
        } else {
            if constexpr (BIAS) sm90_score_gradients_selected<T>(ds16, dp, s, delta);
            else sm90_score_gradients<T>(ds16, dp, s, delta, masked);
            DEV_UNROLL_FOR (int i = 0; i < BM / 16; ++i)
                sm90_stmatrix_trans(ds_to + flip * C::DS_BYTES + i * 2048, ds16 + 4 * i);
        }
        sm90_fence_async_shared();
        sm90_cta_sync();
        if (DROPS && !BIAS && wave == KEEPER && sm90_elect()) decided.empty().arrive();
        if constexpr (BIAS_MORE || ALL)
            if (l.bias_direct && (!ALL || !all.stores_gradient_apart()) && it.left > it.idle)
                sm90_bias_pairs<C>::store_tile(l, tile, it, base + C::AT_DS + flip * C::DS_BYTES, wave,
                                               sm90_lane_anew());

        /* 3: loads of step j + 2 */
        const int stage_before = stage == 0 ? C::STAGES - 1 : stage - 1;
        const uint32_t block_next = block_of(stage_next); /* wanted after the loads */
        [[maybe_unused]] sm90_visible_at words = {};      /* read here, wanted after the products */
        bool follows = true;
        if (LAST) {
            barriers.tile().wait((turn + 1) & 1);
            follows = dev_uniform(next.live) != 0;
            if (wave == 0 && follows) load.second_rows_and_v(next, stage_before);
        } else if (wave == 0) {
            if constexpr (MASKS) words = sm90_visible_at::of({tiles[turn & 1]});
            sm90_load_ahead(load, scheduler, tiles[turn & 1], next, it, turn, stage_before);
        }

        /* 4: S of step j + 1, dQ and dK begin */
        it.next();
        if (LAST) {
            ++turn;
            if (follows) {
                it = block_iterator::begin(next, l);
                take_masking(next);
                barriers.k().wait(turn & 1);
                if (zeroes_keys()) {
                    sm90_mma_wait<0>();
                    sm90_zero_keys<C>(next, smem + C::AT_K + (turn & 1) * C::KEYS_BYTES, sm90_thread_anew());
                    sm90_cta_sync();
                }
            }
        }
        if (follows) {
            barriers.q(stage_next).wait(phase_next);
            enter(block_next);
            if (!is_plain() && zeroes_rows(tiles[turn & 1])) zero_rows(tiles[turn & 1], it, stage_next, phase_next);
        }
        if constexpr (MASKS) it.tests = follows ? it.tests : 0u; /* of no work tile nothing is read */
        features_ahead(follows);
        sm90_mma_wait<0>();                /* dV */
        scores(at0, turn & 1, stage_next); /* S^T = K Q^T */
        if constexpr (!IDLE) {
            sm90_mma_fence();
            mma_AB(dq, ds, k); /* dQ = dS K */
            if constexpr (SHARES_DS) mma_AtB(dk, ds_mine, q);
            else mma_AB(dk, ds16, q); /* dK += dS^T Q */
        }
        features(follows);
        if constexpr (MASKS) {
            if (!LAST && wave == 0) load.look_ahead(tiles[turn & 1], words, stage, it.left);
        }
        if (ordered) {
            if (wave == KEEPER) {
                if (follows) last_there = sm90_load_relaxed(l.dq_semaphore + it.at);
                release_dq_semaphore(tile);
                if constexpr (MASKS) {
                    follower_of_due = follower;
                    if (follows) follower = it.follower(tiles[turn & 1], l);
                }
            }
            due = adds ? at : SM90_NOTHING_DUE;
        }
        if (LAST && VALUES_EARLY) {
            sm90_pin(dv); /* complete since the wait before S; stored while the products run */
            store(tile, dv, p.dv, STW_VECTOR_DV, p.head_dim_v, 1.0f, flip ^ 1);
        }

        /* 5: P of step j + 1; dQ to its sums */
        /* this thread's sums of dQ: the next kernel has BM / 16 warps over the rows, the columns change fastest */
        float *const to =
            l.dq + (int64_t)at * (BM * C::WIDTH) + ((BM == 64 ? warp * 2 + group : wave) * DEV_WAVE + lane) * 4;
        float2 lse[PIECES];
        const uint32_t of_step = LAST && ORDERED != 0 ? 0u : of_tile; /* the next one's keys are looked at later */
        if (STATISTICS) sm90_statistics<C>(lse, smem, stage_next, LSE, lane, 0, C::LSE_AHEAD);
        sm90_mma_wait<IDLE ? 0 : 2>(s);
        if (!C::MARKS_LATE) special = marks(stage_next, is_plain(), of_step | between(it));
        if (STATISTICS) sm90_statistics<C>(lse, smem, stage_next, LSE, lane, C::LSE_AHEAD, PIECES);
        exponentials(lse, stage_next);
        if (C::MARKS_LATE) special = marks(stage_next, is_plain(), of_step | between(it));
        if constexpr (!IDLE) sm90_mma_wait<1>(dq);
        if (!EXACT && !IDLE) add_dq(to, adds && !(ASKS_EXACT && exact));
        if (special & (SM90_MASKED | SM90_DEAD_ROWS))
            mask_scores(it, stage_next); /* and ptxas may not let the exponentials sink past this use of them */
        if (follows) barriers.dout(stage_next).wait(phase_next);
        if constexpr (DROPS && !ALL) {
            if (follows) decided.full().wait(flip ^ 1);
            dropped.load(ds_to + (flip ^ 1) * C::DS_BYTES);
        }
        sm90_mma_wait<0>(); /* dK */
        sm90_hold(to);
        if ((EXACT || ASKS_EXACT) && exact && adds) add_exact(to, C::AT_DS + flip * C::DS_BYTES);
        stage = stage_next;
        phase = phase_next;
        flip ^= 1;
        return follows;
    };
    const bool drains_dk = p.dk_dtype == STW_F32 && (!SUBSETS || (p.outputs & STW_OUT_DK)),
               drains_dv = p.dv_dtype == STW_F32 && (!SUBSETS || (p.outputs & STW_OUT_DV));
    /* Where rows of dK and dV go on their way: the place of the next step's dS, when this warpgroup's warps have read
     * what was there. ALL: a bias waits in that one, and all warps must have multiplied what is in the other. */
    auto rows_place = [&]() { return ALL ? flip ^ 1 : flip; };
    auto await_rows_place = [&]() {
        if (ALL) sm90_cta_sync();
        else if (WAITS_FOR_DS) sm90_warpgroup_sync(group);
    };
    /* F32 sums so far to memory. All of this warpgroup's products have ended. */
    auto drain = [&]() {
        const attn_work_tile &tile = tiles[turn & 1];
        char *const mine = smem + C::AT_DS + rows_place() * C::DS_BYTES + group * BM * 128 + warp * 2048;
        const bool later = drained(tile, it.left);
        await_rows_place();
        sm90_pin(dv);
        sm90_pin(dk);
        if (drains_dv) sm90_store_sums<C>(tile, dv, l, STW_OUT_DV, later, mine, wave, sm90_lane_anew());
        if (drains_dk) sm90_store_sums<C>(tile, dk, l, STW_OUT_DK, later, mine, wave, sm90_lane_anew());
        sm90_warpgroup_sync(group);
        DEV_UNROLL_FOR (int i = 0; i < HD / 2; ++i) {
            dv[i] = drains_dv ? 0.0f : dv[i];
            dk[i] = drains_dk ? 0.0f : dk[i];
        }
        sm90_pin(dv);
        sm90_pin(dk);
    };
    auto prefetch_sums = [&]() {
        if (p.accumulate & STW_OUT_DV) sm90_prefetch_sums<C>(tiles[turn & 1], p, STW_OUT_DV, wave, sm90_lane_anew());
        if (p.accumulate & STW_OUT_DK) sm90_prefetch_sums<C>(tiles[turn & 1], p, STW_OUT_DK, wave, sm90_lane_anew());
    };
    for (;;) {
        DEV_UNROLL_FOR (int i = 0; i < HD / 2; ++i) dk[i] = dv[i] = 0.0f;
        bool follows;
        int until = 0; /* the steps that are left when the sums are drained next, or less than 1 */
        if constexpr (C::DRAINS) {
            if (!(p.features & STW_FEAT_ROUNDED_SUMS)) until = it.left - drain_steps();
            prefetch_sums();
        }
        auto goes_on = [&]() { return it.left > 1 && (!C::DRAINS || it.left > until); };
        auto exact = [&]() { return SUBNORMAL && (special & SM90_EXACT_DQ); };
        while (it.left > 1) {
            DEV_ROLLED while (goes_on() && (ASKS_EXACT || !exact()))
                step(sm90_flag<false>(), sm90_flag<false>(), sm90_flag<false>());
            if constexpr (!ASKS_EXACT)
                DEV_ROLLED while (goes_on() && exact())
                    step(sm90_flag<false>(), sm90_flag<SUBNORMAL>(), sm90_flag<false>());
            if constexpr (C::DRAINS)
                if (it.left <= until) {
                    drain();
                    until -= drain_steps();
                }
        }
        if (SKIPS_IDLE && it.left <= it.idle)
            follows = step(sm90_flag<true>(), sm90_flag<false>(), sm90_flag<(bool)SKIPS_IDLE>());
        else if (!ASKS_EXACT && exact())
            follows = step(sm90_flag<true>(), sm90_flag<(SUBNORMAL && !ASKS_EXACT)>(), sm90_flag<false>());
        else follows = step(sm90_flag<true>(), sm90_flag<false>(), sm90_flag<false>());
        sm90_pin(dk);
        const attn_work_tile &tile = tiles[(turn & 1) ^ 1];
        if (ordered) { /* before another work tile's semaphore is awaited, or the two would wait for each other */
            sm90_cta_sync();
            if (wave == KEEPER) release_dq_semaphore(tile);
            due = SM90_NOTHING_DUE;
        }
        if (!ordered) await_rows_place();
        if (!VALUES_EARLY) {
            sm90_pin(dv);
            store(tile, dv, p.dv, STW_VECTOR_DV, p.head_dim_v, 1.0f, rows_place());
        }
        store(tile, dk, p.dk, STW_VECTOR_DK, p.head_dim_qk, p.scale, rows_place());
        sm90_warpgroup_sync(group); /* the warpgroup's next dS goes where its warps had their rows */
        if (!follows) {
            if constexpr (MASKS) dev_copy_wait(); /* nobody wants them */
            dev_let_next_begin();
            return;
        }
        attn_work_tile &next = tiles[turn & 1];
        barriers.v().wait(turn & 1);
        if (zeroes_keys()) {
            sm90_zero_keys<C>(next, smem + C::AT_V, sm90_thread_anew());
            sm90_cta_sync();
        }
        if (SUBNORMAL) {
            of_tile = keys_are_subnormal(turn & 1) ? (uint32_t)SM90_EXACT_DQ : 0u;
            special |= of_tile; /* what the former work tile left there is as right, and slower for a step */
        }
    }
}

#endif
