/* SPDX-License-Identifier: MIT
 *
 * What CDNA's own main loop (attn_bwd_cdna.h) does for deterministic mode, ALiBi, softcap, dropout and a bias, each in
 * kernels of its own, which know deterministic mode besides where they have one wave a SIMD; for masks in memory:
 * attn_bwd_cdna_hidden.h. C: attn_cdna, the shapes, with the mode. Lane l is (n, g) = (l % 16, l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_FEATURES_H
#define STW_HIP_ATTN_BWD_CDNA_FEATURES_H

#include "attn_bwd_cdna_loads.h"

/* What a kernel knows besides causal masks and windows; CDNA_PLAIN ones have no code of the others. */
enum {
    CDNA_PLAIN,
    CDNA_ORDERED,
    CDNA_ALIBI,
    CDNA_SOFTCAP,
    CDNA_HIDDEN,
    CDNA_DROPOUT,
    CDNA_BIAS,
    CDNA_BYTES,
    CDNA_HIDDEN_ORDERED,
    CDNA_EVERYTHING,
    CDNA_EVERYTHING_ORDERED /* f32, and gfx90a */
};
DEV_FN constexpr bool cdna_is_everything(int mode) { return mode >= CDNA_EVERYTHING; }
/* The one of them whose feature it has. */
DEV_FN constexpr int cdna_feature_of(int mode) {
    return mode == CDNA_HIDDEN_ORDERED ? CDNA_HIDDEN : cdna_is_everything(mode) ? CDNA_BIAS : mode;
}
DEV_FN constexpr bool cdna_knows_bias(int mode) { return cdna_feature_of(mode) == CDNA_BIAS; }
DEV_FN constexpr bool cdna_hides(int mode) { return cdna_feature_of(mode) == CDNA_HIDDEN; }
/* Masks in memory are known: in kernels of their own, and in those for a bias where the call asks for it. */
DEV_FN constexpr bool cdna_may_hide(int mode) { return cdna_hides(mode) || cdna_knows_bias(mode); }
DEV_FN bool cdna_has_masks(cdna_launch l) { return (l->p.features & (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)) != 0; }
/* Deterministic mode in a kernel: never, where the call asks for it, always. Kernels of two waves a SIMD have no
 * registers left for what one call asks for and another does not. `apart`: `every` has a kernel of deterministic
 * mode beside it, for the same reason. */
enum { CDNA_NO_TURNS, CDNA_TURNS_ASKED, CDNA_TURNS };
DEV_FN constexpr int cdna_turns(int mode, bool one_wave, bool apart) {
    if (mode == CDNA_EVERYTHING && apart) return CDNA_NO_TURNS;
    if (mode == CDNA_ORDERED || mode == CDNA_HIDDEN_ORDERED || mode == CDNA_EVERYTHING_ORDERED) return CDNA_TURNS;
    return mode != CDNA_PLAIN && one_wave ? CDNA_TURNS_ASKED : CDNA_NO_TURNS;
}
/* ALiBi: in kernels of its own, and in those for dropout where the call asks for it. */
DEV_FN constexpr bool cdna_slopes(int mode) { return mode == CDNA_ALIBI || mode == CDNA_DROPOUT; }
/* The problem has a bias. */
DEV_FN constexpr bool cdna_biased(int mode) { return cdna_knows_bias(mode) || mode == CDNA_BYTES; }
/* ---- deterministic mode ---- */

/* Key blocks add to a query block in descending order (STW_KEYS_DESCEND), so that under a causal mask none waits at
 * the diagonal; a semaphore of the query block holds the one that added last. Additions are made where every XCD sees
 * them (device scope), and so are the accesses to semaphores: once all waves have their additions acknowledged, one
 * wave may pass the turn on, and no cache is written back. The acknowledgement is awaited in the next step after most
 * of its products. A key block awaits the next one, or under masks in memory the next that they do not hide:
 * a lane of `awaited` has it of one of 64 query blocks. No turns: nothing. */
template <class C, int TURNS = (int)C::TURNS> struct attn_cdna_turn {
    enum { ASKED = TURNS == CDNA_TURNS_ASKED, CHOOSES = cdna_may_hide(C::MODE), UNSEEN = sizeof(typename C::T) == 4 };
    typedef DEV_GLOBAL uint32_t semaphore;
    semaphore *at; /* of this step's query block */
    uint32_t mine, seen;
    uint32_t awaited; /* CHOOSES: of query block `from` + lane */
    int from;
    bool keeps, due; /* wave 0 has the semaphores; it is to pass on the turn of the step before */
    bool asked;      /* ASKED: it is deterministic mode                                         */

    DEV_METHOD bool is_asked() const { return !ASKED || asked; }
    DEV_METHOD void enter_work_tile(const attn_work_tile &u, int wave) {
        mine = (uint32_t)dev_uniform(u.block);
        keeps = wave == 0;
        if (ASKED) asked = cdna_launch_again()->dq_semaphore != nullptr;
        if (CHOOSES && !cdna_hides(C::MODE)) awaited = mine + 1, from = 0; /* without masks */
    }
    DEV_METHOD void enter_head(uint32_t *first) {
        at = cdna_opaque_scalar((semaphore *)first);
        due = false;
    }
    /* All additions of this wave have been made. */
    DEV_METHOD void acknowledge() const {
        if (!is_asked()) return;
        cdna_wait_memory();
        asm volatile("" ::: "memory");
    }
    /* After the barrier that follows acknowledge(): the whole workgroup's additions are made. */
    DEV_METHOD void pass_on() const {
        if constexpr (UNSEEN) cdna_store_unseen(at - 1, mine, due);
        else if (is_asked() && due) __hip_atomic_store(at - 1, mine, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    DEV_METHOD void look() {
        if (is_asked()) seen = __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    /* Until it is this key block's turn. With wrong cu_seqlens there may be no order: status_out tells. */
    DEV_METHOD void wait(int block) const {
        if (!is_asked()) return;
        const uint32_t before =
            CHOOSES ? (uint32_t)__builtin_amdgcn_readlane((int)awaited, (block - from) & 63) : mine + 1;
        uint32_t last = (uint32_t)dev_uniform((int)seen);
        if constexpr (UNSEEN) {
            cdna_wait_unseen(at, last, before);
            return;
        }
        if (__builtin_expect(last != before, 0)) do {
                if (*cdna_launch_again()->unordered) break;
                __builtin_amdgcn_s_sleep(4);
                last = (uint32_t)dev_uniform((int)__hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));
            } while (last != before);
        asm volatile("" ::: "memory");
    }
    DEV_METHOD void next() {
        due = keeps;
        ++at;
    }
    /* After the last step of a head. */
    DEV_METHOD void leave_head() const {
        if (!is_asked()) return;
        acknowledge();
        cdna_barrier();
        pass_on();
    }
};
template <class C> struct attn_cdna_turn<C, CDNA_NO_TURNS> {
    DEV_METHOD void enter_work_tile(const attn_work_tile &, int) {}
    DEV_METHOD void enter_head(uint32_t *) {}
    DEV_METHOD void acknowledge() const {}
    DEV_METHOD void pass_on() const {}
    DEV_METHOD void look() {}
    DEV_METHOD void wait(int) const {}
    DEV_METHOD void next() {}
    DEV_METHOD void leave_head() const {}
};

/* ---- features of single pairs ---- */

/* An f32 of the caller's: bf16's scores need a usual NaN, other types convert any. */
template <class C> DEV_FN float cdna_usual_nan(float x) {
    return sizeof(typename C::T) == 2 && !dev_is_f16<typename C::T>::yes ? dev_usual_nan(x) : x;
}

/* A number that all lanes share, in a scalar register where vector registers are few. */
DEV_FN float cdna_scalar(float x) { return __builtin_bit_cast(float, dev_uniform(__builtin_bit_cast(int, x))); }
template <class C> DEV_FN float cdna_shared(float x) {
    if constexpr (C::IN_AGPRS && sizeof(typename C::T) == 2) return x;
    else return cdna_scalar(x);
}

/* A member of a feature with dropout for all elements of a vector: clang 19 would load its neighbours with it, and keep
 * them in memory. */
template <class C> DEV_FN float cdna_alone(float x) {
    return C::MODE == CDNA_DROPOUT || cdna_knows_bias(C::MODE) ? cdna_opaque(x) : x;
}

/* The contrary, where scalar registers are. */
template <class C> DEV_FN uint32_t cdna_spread(uint32_t x) {
    return C::WIDTH < 128 && sizeof(typename C::T) == 2 ? cdna_opaque(x) : x;
}

/* What a feature knows of the problem: set() of a work tile, then lift() where Q and K are multiplied by powers of two,
 * enter_head() of a query head. */
template <class C, int FEATURE = cdna_feature_of(C::MODE)> struct attn_cdna_feature {
    DEV_METHOD void set(const attn_work_tile &, cdna_launch, int) {}
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(const attn_work_tile &, cdna_launch, int, int, int) {}
};

/* ALiBi subtracts |key - query| slope log2(e) from the exponent. */
template <class C> struct attn_cdna_alibi {
    int corner;  /* less the lane's distance in the mask: its key of tile 0 less its first row of block 0 */
    float slope; /* times log2(e) */

    DEV_METHOD void set(const attn_work_tile &u, cdna_launch, int high) {
        corner = (int)(dev_uniform(u.j0) - dev_uniform(u.seq.band.shift)) + high;
    }
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h, int, int) {
        slope = cdna_usual_nan<C>(l->p.alibi_slopes[dev_uniform(u.b) * l->p.alibi_stride_batch + h]) * DEV_LOG2E;
    }
};
template <class C> struct attn_cdna_feature<C, CDNA_ALIBI> : attn_cdna_alibi<C> {
    float two, sixteen; /* slopes of so many keys */

    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h, int first, int thread) {
        attn_cdna_alibi<C>::enter_head(u, l, h, first, thread);
        two = cdna_shared<C>(2.0f * this->slope);
        sixteen = cdna_shared<C>(16.0f * this->slope);
        this->slope = cdna_shared<C>(this->slope);
    }
};

/* What ALiBi subtracts, less its sign, of 16 queries and the wave's keys. */
template <class C, bool SLOPES = cdna_slopes(C::MODE)> struct attn_cdna_distances {
    DEV_METHOD void enter(const attn_cdna_feature<C> &, int, int, int) {}
};
template <class C> struct attn_cdna_distances<C, true> {
    leaf_f2 of_tile_0[2]; /* queries 2 k and 2 k + 1 */

    DEV_FN float two(const attn_cdna_feature<C> &alibi) {
        if constexpr (C::MODE == CDNA_ALIBI) return alibi.two;
        else return 2.0f * alibi.slope;
    }
    DEV_FN float sixteen(const attn_cdna_feature<C> &alibi) {
        if constexpr (C::MODE == CDNA_ALIBI) return alibi.sixteen;
        else return 16.0f * alibi.slope;
    }

    /* `distance`: the lane's in the mask (attn_cdna_scoring). */
    DEV_METHOD void enter(const attn_cdna_feature<C> &alibi, int distance, int block, int half) {
        const float x = (float)(alibi.corner - (block * C::BM + 16 * half) - distance) * alibi.slope;
        of_tile_0[0] = leaf_f2{x, x - alibi.slope};
        of_tile_0[1] = of_tile_0[0] - two(alibi);
    }
    DEV_METHOD leaf_f2 subtract_from(leaf_f2 exponents, const attn_cdna_feature<C> &alibi, int k, int i) const {
        leaf_f2 x = of_tile_0[k];
        DEV_UNROLL_FOR (int tile = 0; tile < i; ++tile) x += sixteen(alibi);
        return leaf_f2{exponents.x - __builtin_fabsf(x.x), exponents.y - __builtin_fabsf(x.y)};
    }
};

/* Softcap: P = exp(cap tanh(x) - LSE) with x = scale S / cap, dS = P (1 - tanh(x)^2) (dP - delta). With u =
 * 2 / (1 + e^(2 x)) the tangent is 1 - u, and the derivative u (1 + tangent): it keeps its digits where u is small. */
template <class C> struct attn_cdna_softcap {
    float doubled, cap; /* S to 2 x (f32: S to x), tanh to a score; both times log2(e), but not S to x */

    DEV_METHOD void set(const attn_work_tile &, cdna_launch l, int) {
        doubled = cdna_shared<C>(l->p.scale / l->p.softcap * (sizeof(typename C::T) == 4 ? 1.0f : 2.0f * DEV_LOG2E));
        cap = cdna_shared<C>(l->p.softcap * DEV_LOG2E);
    }
    /* S has the factors of Q and K (attn_bwd_cdna_lift.h). */
    DEV_METHOD void lift() { doubled = cdna_shared<C>(doubled * 0x1p-20f); }
    DEV_METHOD void enter_head(const attn_work_tile &, cdna_launch, int, int, int) {}
};
template <class C> struct attn_cdna_feature<C, CDNA_SOFTCAP> : attn_cdna_softcap<C> {};

/* ---- dropout ---- */

/* P.Z of a pair is P / (1 - p) or 0. The factor is in the exponent, but in f16 (P_SCALED), where P would overflow:
 * there dS and dV are multiplied. dS = P (dP.Z - delta) is P / (1 - p) times the sum of dP, which starts at -(1 - p)
 * delta, or times this start alone. Steps that see all pairs (CDNA_INNER) make it P.Z dP + P / (1 - p) start with dP
 * from 0.
 *
 * Decisions of a step are bits of a lane: 16 half + 4 i + r of its query 4 g + r and tile i. Sternway's own map
 * (common/philox.h) decides four rows of a key in a call, a lane's own ones where the sequence's position is a multiple
 * of four: a call a tile and half. By the two other maps each lane makes calls of its wave's pairs, and lanes exchange
 * bits. Calls run beside products (attn_bwd_cdna_draws.h), or before the step where it is CDNA_ANY.
 *
 * The same kernels know ALiBi or a softcap besides or alone, in steps CDNA_ANY, which all are then. */
template <class C> struct attn_cdna_feature<C, CDNA_DROPOUT> : attn_cdna_alibi<C>, attn_cdna_softcap<C> {
    typedef attn_cdna_alibi<C> alibi;
    typedef attn_cdna_softcap<C> softcap;
    bool slopes, caps, drops;  /* there is ALiBi; a softcap; dropout */
    uint32_t row, col;         /* own map: the lane's four rows of block 0, its key of tile 0                   */
    uint32_t key[2], third[2]; /* own map: of the counter, head and offset; others: the first number, 64 bits  */
    uint32_t limit;            /* own map, mem_eff: the least word that is kept; flash2: the largest byte      */
    uint32_t stride;           /* mem_eff: numbers a row                                                        */
    int map, shift;            /* stw_dropout_map; own map: rows from a multiple of four to the sequence's first */
    uint32_t bits;             /* of a step                                                                     */
    int lane, odd;             /* of the wave; flash2: its first key is in an odd tile of 16                    */
    bool calm;                 /* mem_eff: rows begin with a call, and all counters have one high word          */
    float log_scale;           /* log2(1 / (1 - p)), which P has (P_SCALED)                                     */
    float scale, start;        /* 1 / (1 - p); delta to the start of dP                                         */

    DEV_METHOD void set(const attn_work_tile &u, cdna_launch l, int high) {
        this->doubled = this->cap = 0.0f;
        scale = cdna_shared<C>(l->p.dropout_scale);
        start = cdna_shared<C>((float)(1.0 - l->p.dropout_p));
        log_scale = cdna_scalar(__builtin_amdgcn_logf(scale));
        slopes = (l->p.features & STW_FEAT_ALIBI) != 0;
        caps = (l->p.features & STW_FEAT_SOFTCAP) != 0;
        drops = (l->p.features & STW_FEAT_DROPOUT) != 0;
        alibi::set(u, l, high);
        if (caps) softcap::set(u, l, high);
        this->doubled = cdna_scalar(this->doubled);
        this->cap = cdna_scalar(this->cap);
    }
    DEV_METHOD void lift() {
        start = cdna_shared<C>(start * 0x1p20f);
        if (caps) softcap::lift();
        this->doubled = cdna_scalar(this->doubled);
    }
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h, int, int thread) {
        this->slope = 0.0f;
        if (slopes) alibi::enter_head(u, l, h, 0, thread);
        this->slope = cdna_scalar(this->slope);
        const stw_attn_params &p = *(const stw_attn_params *)&l->p;
        const stw_dropout_stream s = stw_dropout_stream_of(&p, dev_uniform(u.b), h, u.seq.q, u.seq.kv);
        const int lane = thread & 63, first_key = C::KEYS * dev_uniform(thread >> 6);
        const int64_t j0 = dev_uniform(u.j0) + first_key;
        this->lane = lane;
        odd = C::TILES * dev_uniform(thread >> 6) & 1;
        map = (int)p.dropout_map;
        shift = dev_uniform((int)s.q_offset & 3);
        row = (uint32_t)((uint64_t)s.q_offset >> 2) + (uint32_t)(lane >> 4);
        col = (uint32_t)(j0 + s.kv_offset) + (uint32_t)(lane & 15);
        key[0] = (uint32_t)dev_uniform((int)s.seed);
        key[1] = (uint32_t)(s.seed >> 32);
        uint64_t first = s.head << 32 >> 32 | s.offset << 32;
        limit = p.dropout_threshold;
        if (map == STW_DROPOUT_PHILOX) key[1] ^= (uint32_t)(s.offset >> 32);
        else if (map == STW_DROPOUT_MEM_EFF) first = s.base + (uint64_t)j0;
        else {
            first = s.offset + s.head * 32u;
            col = (uint32_t)((uint64_t)j0 >> 5);
            limit = p.dropout_byte;
        }
        const uint64_t numbers = (first & ~UINT64_C(0) >> 30) + (uint64_t)dev_uniform(u.seq.q.used) * s.row_stride;
        calm =
            dev_uniform(!((first | s.row_stride) & 3) && !(s.row_stride >> 32) && numbers < (UINT64_C(1) << 34) - 256);
        key[1] = (uint32_t)dev_uniform((int)key[1]);
        key[0] = cdna_spread<C>(key[0]), key[1] = cdna_spread<C>(key[1]);
        third[0] = cdna_spread<C>((uint32_t)dev_uniform((int)first));
        third[1] = cdna_spread<C>((uint32_t)dev_uniform((int)(first >> 32)));
        stride = cdna_spread<C>((uint32_t)dev_uniform((int)s.row_stride));
        limit = cdna_spread<C>(limit);
    }
    /* Calls are made as in attn_bwd_cdna_draws.h: there is nothing besides; of our own map a lane's are its own
     * rows', of mem_eff they are as many for each row. */
    DEV_METHOD bool draws() const {
        const bool fits = map == STW_DROPOUT_PHILOX ? shift == 0 : (C::OTHERS && (map == STW_DROPOUT_FLASH2 || calm));
        return fits && drops && !slopes && !caps;
    }

    DEV_METHOD uint32_t kept_words(stw_philox_words x) const {
        uint32_t kept = 0;
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) kept |= x.word[r] >= limit ? 1u << r : 0u;
        return kept;
    }
    DEV_METHOD uint32_t own_map(int block) const {
        uint32_t all = 0;
        DEV_ROLLED_FOR (int half = 0; half < C::BM / 16; ++half)
            DEV_ROLLED_FOR (int i = 0; i < C::TILES; ++i) {
                uint32_t kept = 0;
                DEV_ROLLED_FOR (int next = 0; next <= (shift ? 1 : 0); ++next)
                    kept |= kept_words(stw_philox4x32(10, row + (uint32_t)(C::BM / 4 * block + 4 * half + next),
                                                      col + (uint32_t)(16 * i), third[0], third[1], key[0], key[1]))
                            << (4 * next);
                all |= (kept >> shift & 15u) << (16 * half + 4 * i);
            }
        return all;
    }
    /* A call decides 16 pairs of eight rows apart and eight keys apart, of eight lanes and two tiles: a lane makes one
     * call of a half, and its 64 lanes have all of the wave's two blocks of 32 keys. */
    DEV_METHOD uint32_t flash2(int block, int thread) const {
        const int lane = thread & 63, n = lane & 15, g = lane >> 4, odd = C::TILES * (thread >> 6) & 1;
        const uint64_t first = ((uint64_t)third[1] << 32 | third[0]) + (uint32_t)(lane & 31);
        uint32_t made = 0, all = 0;
        DEV_ROLLED_FOR (int half = 0; half < C::BM / 16; ++half) {
            const stw_philox_words x =
                stw_philox4x32(7, (uint32_t)first, (uint32_t)(first >> 32), (uint32_t)(C::BM / 16 * block + half),
                               col + (uint32_t)(lane >> 5), key[0], key[1]);
            DEV_UNROLL_FOR (int i = 0; i < 16; ++i)
                made |= (x.word[i / 4] >> (8 * (i % 4)) & 0xFFu) <= limit ? 1u << (16 * half) << i : 0u;
        }
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
            const int from = (4 * (g & 1) + r) * 4 + ((n & 7) >> 1);
            const uint32_t low = dev_shuffle(made, from), high = dev_shuffle(made, from + 32);
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
                const int tile = odd + i, bit = (tile & 1) * 8 + (n >> 3) * 4 + (g >> 1) * 2 + (n & 1);
                all |= ((tile & 2 ? high : low) >> bit & 0x10001u) << (4 * i + r);
            }
        }
        return all;
    }
    /* A call decides four numbers in order, keys of a row. The 16 lanes of four rows make the calls of these, a lane
     * those of row n % 4, every fourth one; one more where rows do not begin with a call. */
    DEV_METHOD uint32_t mem_eff(int block, int thread) const {
        const int lane = thread & 63, n = lane & 15, g = lane >> 4;
        const uint64_t base = (uint64_t)third[1] << 32 | third[0];
        const int calls = dev_uniform((int)(third[0] | stride)) & 3 ? C::TILES + 1 : (int)C::TILES;
        uint32_t made = 0, all = 0;
        DEV_ROLLED_FOR (int half = 0; half < C::BM / 16; ++half) {
            const uint64_t number = base + (uint64_t)(uint32_t)(block * C::BM + 16 * half + 4 * g + (n & 3)) * stride;
            DEV_ROLLED_FOR (int i = 0; i < calls; ++i) {
                const uint64_t counter = (number >> 2) + (uint32_t)((n >> 2) + 4 * i);
                made |=
                    kept_words(stw_philox4x32(10, (uint32_t)counter, (uint32_t)(counter >> 32), 0u, 0u, key[0], key[1]))
                    << (16 * half + 4 * i);
            }
        }
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
            const int at = (int)((third[0] + (uint32_t)r * stride) & 3u) + n; /* from the row's first call on */
            const uint32_t x = dev_shuffle(made, 16 * g + r + (at & 12));
            all |= (x >> (at >> 4) * 4 >> (at & 3) & 0x11111111u) << r;
        }
        return all;
    }
    DEV_METHOD void enter_step(int block, int thread) {
        if (!drops) bits = ~0u;
        else if (map == STW_DROPOUT_PHILOX) bits = own_map(block);
        else bits = map == STW_DROPOUT_FLASH2 ? flash2(block, thread) : mem_eff(block, thread);
    }
};

/* ---- a bias of the operands' type, of f32 or of bytes ---- */

/* A lane loads what belongs to its own scores, an element at a time, a step ahead: strides may be anything. A bias may
 * put S anywhere (-1e9 in all of a row), so LSE comes without log2(e), and the difference S - LSE first. */
template <class C> struct attn_cdna_bias {
    cdna_buffer from;
    uint32_t at;     /* of the lane's first query of the next block and its key of tile 0  */
    int query, keys; /* bytes: a row, 16 keys                                              */
    uint32_t next[C::BIAS_ROWS / 16][C::TILES][4]; /* of query 4 g + r: as loaded, an element in the low bits */

    DEV_METHOD void set(int element, cdna_launch l) {
        query = (int)l->p.bias.query * element;
        keys = 16 * (int)l->p.bias.key * element;
    }
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(int element, const attn_work_tile &u, cdna_launch l, int h, int first, int thread) {
        const int64_t j0 = dev_uniform(u.j0);
        const int rows = (int)dev_uniform(u.seq.q.used), cols = (int)(dev_uniform(u.seq.kv.used) - j0);
        const int key = (int)l->p.bias.key * element;
        const char *base = (const char *)l->p.bias.data +
                           (dev_uniform(u.b) * l->p.bias.batch + h * l->p.bias.head + j0 * l->p.bias.key) * element;
        const bool any = rows > 0 && cols > 0 && (l->p.features & STW_FEAT_BIAS);
        from = cdna_buffer_of(base, any ? (rows - 1) * query + (cols - 1) * key + element : 0);
        at = (uint32_t)((first * C::BM + 4 * (thread >> 4 & 3)) * query +
                        (C::KEYS * dev_uniform(thread >> 6) + (thread & 15)) * key);
    }
    /* load(offset): an element. */
    template <class Load> DEV_METHOD void fetch_by(Load load) {
        DEV_UNROLL_FOR (int half = 0; half < C::BIAS_ROWS / 16; ++half)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
                const uint32_t row = at + (uint32_t)((16 * half + r) * query);
                DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) next[half][i][r] = load(row + (uint32_t)(i * keys));
            }
    }
    DEV_METHOD void fetch_bytes() {
        fetch_by([&](uint32_t to) -> uint32_t { return __builtin_amdgcn_raw_buffer_load_b8(from, to, 0, 0); });
    }
    DEV_METHOD void fetch_halves() {
        fetch_by([&](uint32_t to) -> uint32_t { return __builtin_amdgcn_raw_buffer_load_b16(from, to, 0, 0); });
    }
    DEV_METHOD void fetch_words() {
        fetch_by([&](uint32_t to) -> uint32_t { return __builtin_amdgcn_raw_buffer_load_b32(from, to, 0, 0); });
    }
};

/* Any of the three, asked at run time. Only steps CDNA_ANY know f32 and bytes, which all steps are then: one begins by
 * making f32 of what has come, and bytes become bits of pairs that are hidden, as masks' are (attn_cdna_feature<C,
 * CDNA_HIDDEN>). Branches in other steps made clang 19 wait for the next rows. So it is with dBias of the operands'
 * type, where every pair has its own: a lane stores dS of its own scores.
 *
 * Steps CDNA_EVERY know dropout, ALiBi by distance or by key, masks in memory and f32 dBias besides: they run what no
 * other kernels do, with a bias or without one, which is zeros then. ALiBi adds `slope` times a number of the pair
 * to (bias - LSE), minus the distance or the key's own; with a bias before log2(e) is multiplied by (to_log2).
 *
 * Kernels CDNA_EVERYTHING have these steps alone, and CDNA_CAPPED for a softcap; they add f32 dBias to what is there
 * where the call asks for it. dBias is dS before the softcap's derivative. f32 loads the bias in the step itself. */
template <class C> struct attn_cdna_feature<C, CDNA_BIAS> : attn_cdna_bias<C> {
    attn_cdna_feature<C, CDNA_DROPOUT> more; /* of it dropout, and a softcap */
    attn_cdna_feature<C, CDNA_HIDDEN> masks;
    bool hidden; /* there are masks */
    int element;
    uint32_t bits;
    char *gradient; /* dBias of the head, from the work tile's first key on; null: not wanted */
    int rows, cols; /* of it: queries and keys in use                                         */
    bool columns;   /* ALiBi by key                                                           */
    int corner;     /* less the lane's distance in the mask: as attn_cdna_alibi's, or its key less 4 g */
    float slope, to_log2;

    DEV_FN bool is_every(cdna_launch l) {
        const uint32_t others = STW_FEAT_ALIBI | STW_FEAT_DROPOUT | STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK;
        return cdna_is_everything(C::MODE) || !(l->p.features & STW_FEAT_BIAS) || (l->p.features & others) ||
               (l->bias_direct && l->p.dbias_dtype == STW_F32);
    }
    DEV_METHOD void set(const attn_work_tile &, cdna_launch l, int) {
        element = l->p.bias_dtype == STW_U8 ? 1 : l->p.bias_dtype == STW_F32 ? 4 : 2;
        attn_cdna_bias<C>::set(element, l);
    }
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h, int first, int thread) {
        attn_cdna_bias<C>::enter_head(element, u, l, h, first, thread);
        const int64_t j0 = dev_uniform(u.j0);
        rows = (int)dev_uniform(u.seq.q.used);
        cols = (int)(dev_uniform(u.seq.kv.used) - j0);
        const int bytes = l->p.dbias_dtype == STW_F32 ? 4 : 2;
        gradient = l->bias_direct ? (char *)l->p.dbias.data + bytes * (dev_uniform(u.b) * l->p.dbias.batch +
                                                                       h * l->p.dbias.head + j0 * l->p.dbias.key)
                                  : nullptr;
    }
    /* Before steps CDNA_EVERY of head h: what they alone need takes no registers of others. `high`:
     * attn_cdna_scoring's; LIFTED: Q and K are multiplied by powers of two. */
    template <bool LIFTED> DEV_METHOD void enter_every(const attn_work_tile &u, int h, int high, int thread) {
        cdna_launch l = cdna_launch_again();
        const bool biased = (l->p.features & STW_FEAT_BIAS) != 0;
        hidden = cdna_has_masks(l);
        columns = (l->p.features & STW_FEAT_ALIBI_COLUMN) != 0;
        corner =
            (int)(dev_uniform(u.j0) + (columns ? dev_uniform(u.seq.kv.offset) : -dev_uniform(u.seq.band.shift))) + high;
        to_log2 = biased ? DEV_LOG2E : 1.0f;
        slope = 0.0f;
        if (l->p.features & STW_FEAT_ALIBI)
            slope = cdna_usual_nan<C>(l->p.alibi_slopes[dev_uniform(u.b) * l->p.alibi_stride_batch + h]) *
                    ((columns ? 1.0f : -1.0f) * (biased ? 1.0f : DEV_LOG2E));
        slope = cdna_shared<C>(slope);
        more.set(u, l, high);
        if (LIFTED) more.lift();
        more.enter_head(u, l, h, 0, thread);
        masks.enter_head(u, l, h, 0, thread);
    }
    /* dS of 16 queries: Scores, attn_cdna_scores; LIFTED: times to_sums 2^10 it is without its factor. */
    template <bool LIFTED, class Scores>
    DEV_METHOD void store_gradient(Scores &t, float to_sums, int block, int half, int thread) const {
        if (!gradient) return;
        if constexpr (Scores::CAPPED && sizeof(typename C::T) == 2)
            DEV_UNROLL_FOR (int e = 0; e < 2 * C::TILES; ++e) t.ds[e] = t.flow_into(t.pz[e], e);
        cdna_launch l = cdna_launch_again();
        const int row0 = block * C::BM + 16 * half + 4 * (thread >> 4 & 3);
        const int key0 = C::KEYS * dev_uniform(thread >> 6) + (thread & 15);
        const int element = Scores::EVERY && l->p.dbias_dtype == STW_F32 ? 4 : 2;
        const int query = element * (int)l->p.dbias.query, key = element * (int)l->p.dbias.key;
        const cdna_buffer to = cdna_buffer_of(gradient, 0x7fffffff);
        auto place = [&](int i, int r) {
            const int row = row0 + r, col = key0 + 16 * i;
            return row < rows && col < cols ? (uint32_t)(row * query + col * key) : CDNA_NOWHERE;
        };
        float there[C::TILES][4] = {};
        if (cdna_is_everything(C::MODE) && (l->p.accumulate & STW_OUT_DBIAS)) /* all loads come before the stores */
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
                DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                    there[i][r] =
                        __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(to, place(i, r), 0, 0));
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
                const leaf_f2 ds = t.ds[C::TILES * (r / 2) + i] * (leaf_f2)(LIFTED ? to_sums * 0x1p10f : 1.0f);
                if (element == 4) {
                    __builtin_amdgcn_raw_buffer_store_b32(
                        __builtin_bit_cast(uint32_t, cdna_is_everything(C::MODE) ? there[i][r] + ds[r % 2] : ds[r % 2]),
                        to, place(i, r), 0, 0);
                } else if constexpr (sizeof(typename C::T) == 2) {
                    const uint32_t two =
                        LIFTED || Scores::CAPPED ? cdna_operand(typename C::T(), ds) : t.ds16[i][r / 2];
                    __builtin_amdgcn_raw_buffer_store_b16((uint16_t)(r % 2 ? two >> 16 : two), to, place(i, r), 0, 0);
                }
            }
    }
    template <bool ANY> DEV_METHOD void fetch() {
        if (!ANY || element == 2) this->fetch_halves();
        else if (element == 4) this->fetch_words();
        else this->fetch_bytes();
        this->at += (uint32_t)(C::BIAS_ROWS * this->query);
    }
    DEV_FN uint32_t half_as_float(uint32_t x) {
        if constexpr (sizeof(typename C::T) == 4) return x; /* there are none */
        else return __builtin_bit_cast(uint32_t, cdna_pair(typename C::T(), x).x);
    }
    /* EVERY, after prepare(). */
    DEV_METHOD void enter_step(int block, int thread) {
        more.enter_step(block, thread);
        if (!hidden) return;
        masks.enter_step(block, thread);
        bits |= masks.bits;
    }
    template <class Work> DEV_METHOD void of_each(Work work) {
        DEV_UNROLL_FOR (int half = 0; half < C::BIAS_ROWS / 16; ++half)
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
                DEV_UNROLL_FOR (int r = 0; r < 4; ++r) work(this->next[half][i][r], 16 * half + 4 * i + r);
    }
    /* `part`: f32's of a step, 16 queries each. */
    DEV_METHOD void prepare(int part = 0) {
        if (part == 0) bits = 0;
        if (element == 2) of_each([&](uint32_t &x, int) { x = half_as_float(x); });
        else if (element == 1)
            of_each([&](uint32_t &x, int bit) {
                bits |= x ? 0u : 1u << 16 * part << bit;
                x = 0;
            });
        else of_each([&](uint32_t &x, int) { x = dev_bits(cdna_usual_nan<C>(dev_of_bits(x))); });
    }
    /* Of query 4 g + r and tile i. */
    template <bool ANY> DEV_METHOD float added(int half, int i, int r) const {
        const uint32_t x = this->next[half % (C::BIAS_ROWS / 16)][i][r];
        return __builtin_bit_cast(float, ANY ? x : half_as_float(x));
    }
    DEV_METHOD bool hides(int half, int i, int r) const { return (bits & 1u << (half % 2 * 16 + 4 * i + r)) != 0; }
};

/* What knows of a softcap. */
template <class C, int FEATURE>
DEV_FN const attn_cdna_feature<C, FEATURE> &cdna_cap_of(const attn_cdna_feature<C, FEATURE> &feature) {
    return feature;
}
template <class C>
DEV_FN const attn_cdna_feature<C, CDNA_DROPOUT> &cdna_cap_of(const attn_cdna_feature<C, CDNA_BIAS> &feature) {
    return feature.more;
}

/* What ALiBi adds in steps CDNA_EVERY to 16 queries and the wave's keys: numbers of pairs times a slope. */
template <class C, bool EVERY> struct attn_cdna_places {
    DEV_METHOD void enter(const attn_cdna_feature<C> &, int, int, int) {}
};
template <class C> struct attn_cdna_places<C, true> {
    enum { WHOLE = sizeof(typename C::T) == 4 }; /* beyond 2^24 a number and the next one may round apart */
    leaf_f2 of_tile_0[2];                        /* queries 2 k and 2 k + 1                 */
    int first, step;                             /* WHOLE: of query 0, less of the next one */
    uint32_t digits;                             /* of a number that count: not its sign, but by key */
    float slope;

    /* `distance`: the lane's in the mask (attn_cdna_scoring). */
    DEV_METHOD void enter(const attn_cdna_feature<C> &feature, int distance, int block, int half) {
        const int at =
            feature.corner - distance + (feature.columns ? 4 * (feature.more.lane >> 4) : -(block * C::BM + 16 * half));
        const float x = (float)at, row = feature.columns ? 0.0f : 1.0f;
        if (WHOLE) first = at, step = feature.columns ? 0 : 1;
        of_tile_0[0] = leaf_f2{x, x - row};
        of_tile_0[1] = of_tile_0[0] - 2.0f * row;
        digits = feature.columns ? ~0u : 0x7fffffffu;
        slope = feature.slope;
    }
    DEV_METHOD leaf_f2 add_to(leaf_f2 x, int k, int i) const {
        const leaf_f2 at = of_tile_0[k] + 16.0f * i;
        DEV_UNROLL_FOR (int r = 0; r < 2; ++r) {
            /* clang 19 casts the first element of `at`, whichever is named */
            const float number = WHOLE ? (float)(first - step * (2 * k + r) + 16 * i) : at[r];
            x[r] = fmaf(__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, number) & digits), slope, x[r]);
        }
        return x;
    }
};

/* Bytes alone, where they have kernels of their own. */
template <class C> struct attn_cdna_feature<C, CDNA_BYTES> : attn_cdna_bias<C> {
    DEV_METHOD void set(const attn_work_tile &, cdna_launch l, int) { attn_cdna_bias<C>::set(1, l); }
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h, int first, int thread) {
        attn_cdna_bias<C>::enter_head(1, u, l, h, first, thread);
    }
    template <bool> DEV_METHOD void fetch() {
        this->fetch_bytes();
        this->at += (uint32_t)(C::BIAS_ROWS * this->query);
    }
    DEV_METHOD bool shows(int half, int i, int r) const { return this->next[half][i][r] != 0; }
};

#endif
