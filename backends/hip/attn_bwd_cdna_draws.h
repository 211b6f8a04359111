/* SPDX-License-Identifier: MIT
 *
 * Dropout's calls of Philox beside the products of CDNA's own main loop (attn_bwd_cdna.h), a round or a few decisions
 * at a time. After a product three instructions cost nothing, and no phase of a step has room for all calls, so these
 * begin early: our own map's and mem_eff's beside dK and dQ of the half before, those of flash2 for the next step in
 * all phases of a step (AHEAD). C: attn_cdna, the shapes. Lane l is (n, g) = (l % 16, l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_DRAWS_H
#define STW_HIP_ATTN_BWD_CDNA_DRAWS_H

#include "attn_bwd_cdna_hidden.h"

/* No map's calls; those of flash2 or mem_eff, before the step. */
enum { CDNA_DRAWS_NOTHING = -1, CDNA_DRAWS_BEFORE = -2 };
/* Products of a half (16 queries). */
enum { CDNA_BESIDE_S, CDNA_BESIDE_DK, CDNA_BESIDE_DQ };

/* Calls under way and what they decide. */
template <class C, int MODE = C::MODE> struct attn_cdna_calls {};
template <class C> struct attn_cdna_calls<C, CDNA_DROPOUT> {
    stw_philox_words x[C::TILES];
    uint32_t made;          /* flash2: decisions of this lane's calls, of a step                       */
    uint32_t given[8];      /* the same of lanes that decide this one's pairs                           */
    uint32_t number;        /* mem_eff: of tile 0's call of a half, the one under way or the next       */
    uint32_t uniform[2];    /* what the high word of numbers makes of the second and third round's keys */
    uint32_t least, key;    /* mem_eff, before the step: the limit, the key of four of this lane          */
    int row_0;              /* and the lane of four that has row 0, times 4                               */
    cdna_lds *put, *get[2]; /* of a lane's words; of its own pairs': rows 0 and 2, 1 and 3             */

    /* A round. Numbers of the first ones are the same in all steps, or for all tiles: left to the compiler. Others are
     * made here and not where they are used, perhaps past a branch. */
    DEV_METHOD void round(const attn_cdna_feature<C> &dropout, int i, int number) {
        stw_philox_words &w = x[i];
        w = stw_philox4x32(1, w.word[0], w.word[1], w.word[2], w.word[3],
                           dropout.key[0] + (uint32_t)number * 0x9E3779B9u,
                           dropout.key[1] + (uint32_t)number * 0xBB67AE85u);
        if (number >= 3) asm volatile("" : "+v"(w.word[0]), "+v"(w.word[1]), "+v"(w.word[2]), "+v"(w.word[3]));
    }
};

/* Four decisions, from the last to the first, become the low bits of `made`. No vector instruction may read a scalar
 * register that one of the two before it wrote. clang 19 takes all results of one asm as shared by the lanes, or
 * none. */
struct cdna_four {
    uint64_t keeps[4];
};
DEV_FN void cdna_shift_in(uint32_t &made, const cdna_four &x) {
    asm volatile("v_addc_co_u32_e64 %0, vcc, %0, %0, %1\n\tv_addc_co_u32_e64 %0, vcc, %0, %0, %2\n\t"
                 "v_addc_co_u32_e64 %0, vcc, %0, %0, %3\n\tv_addc_co_u32_e64 %0, vcc, %0, %0, %4"
                 : "+v"(made)
                 : "s"(x.keeps[3]), "s"(x.keeps[2]), "s"(x.keeps[1]), "s"(x.keeps[0])
                 : "vcc");
}
DEV_FN cdna_four cdna_decide_words(const stw_philox_words &x, uint32_t least) {
    cdna_four f;
    asm volatile("v_cmp_ge_u32_e64 %3, %7, %8\n\tv_cmp_ge_u32_e64 %2, %6, %8\n\tv_cmp_ge_u32_e64 %1, %5, %8\n\t"
                 "v_cmp_ge_u32_e64 %0, %4, %8"
                 : "=&s"(f.keeps[0]), "=&s"(f.keeps[1]), "=&s"(f.keeps[2]), "=&s"(f.keeps[3])
                 : "v"(x.word[0]), "v"(x.word[1]), "v"(x.word[2]), "v"(x.word[3]), "v"(least));
    return f;
}
DEV_FN void cdna_decide_bytes(uint32_t &made, uint32_t word, uint32_t largest) {
    cdna_four f;
    asm volatile("v_cmp_ge_u32_sdwa %3, %5, %4 src0_sel:DWORD src1_sel:BYTE_3\n\t"
                 "v_cmp_ge_u32_sdwa %2, %5, %4 src0_sel:DWORD src1_sel:BYTE_2\n\t"
                 "v_cmp_ge_u32_sdwa %1, %5, %4 src0_sel:DWORD src1_sel:BYTE_1\n\t"
                 "v_cmp_ge_u32_sdwa %0, %5, %4 src0_sel:DWORD src1_sel:BYTE_0"
                 : "=&s"(f.keeps[0]), "=&s"(f.keeps[1]), "=&s"(f.keeps[2]), "=&s"(f.keeps[3])
                 : "v"(word), "v"(largest));
    cdna_shift_in(made, f);
}
/* x turned right, its bits in `mask`. */
DEV_FN uint32_t cdna_turned(uint32_t x, int right, uint32_t mask) {
    return __builtin_amdgcn_alignbit(x, x, (uint32_t)right) & mask;
}

/* How calls of a map are cut into parts, and which of these run beside which products. begin(): what is to have run
 * before the step of `block`; beside(): piece `i` of `pieces`, at most MOST parts; enter_step(): the first thing in
 * a step. */
template <int MAP, class C> struct attn_cdna_drawing {
    template <int MOST>
    DEV_FN void beside(attn_cdna_calls<C> &, const attn_cdna_feature<C> &, int, int, int, int, int) {}
};

/* Calls of a half: EARLY of its PARTS run beside dK and dQ of the half before, and up to two of the others after each
 * product of S. */
template <class Map, class C> struct attn_cdna_drawing_half {
    template <int MOST>
    DEV_FN void run(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int half, int from,
                    int to) {
        DEV_UNROLL_FOR (int e = 0; e < MOST; ++e)
            if (from + e < to) Map::part(calls, dropout, block, half, from + e);
    }
    DEV_FN void begin(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, const attn_cdna_lds<C> &lds,
                      int block) {
        Map::enter(calls, dropout, lds, block);
        run<(int)Map::EARLY>(calls, dropout, block, 0, 0, Map::EARLY);
    }
    DEV_FN void enter_step(attn_cdna_calls<C> &, attn_cdna_feature<C> &, int) {}
    template <int MOST>
    DEV_FN void beside(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int half, int phase,
                       int i, int pieces) {
        constexpr int EARLY = Map::EARLY, LAST_DK = Map::BESIDE_LAST_DK;
        const bool splits = half == 1 || C::PARTS == 2; /* dQ follows dK */
        const int first = phase == CDNA_BESIDE_S ? EARLY : phase == CDNA_BESIDE_DK ? 0 : LAST_DK;
        const int end = phase == CDNA_BESIDE_S ? (int)Map::PARTS : phase == CDNA_BESIDE_DK && splits ? LAST_DK : EARLY;
        const int of = phase == CDNA_BESIDE_S ? half : half + 1;
        run<MOST>(calls, dropout, block + of / 2, of % 2, first + (end - first) * i / pieces,
                  first + (end - first) * (i + 1) / pieces);
    }
};

/* Our own map: a call decides four rows of a key, which are a lane's own. A part is a round. */
template <class C>
struct attn_cdna_drawing<STW_DROPOUT_PHILOX, C> : attn_cdna_drawing_half<attn_cdna_drawing<STW_DROPOUT_PHILOX, C>, C> {
    enum {
        ROUNDS = 10,
        PARTS = ROUNDS * C::TILES,
        EARLY = attn_lifts<typename C::T>::yes ? 0 : PARTS * 9 / 20, /* else it spills */
        BESIDE_LAST_DK = C::WIDTH < 128 ? EARLY / 4 : EARLY
    };

    DEV_FN void enter(attn_cdna_calls<C> &, const attn_cdna_feature<C> &, const attn_cdna_lds<C> &, int) {}
    DEV_FN void part(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int half, int part) {
        const int i = part % C::TILES, round = part / C::TILES;
        if (round == 0)
            calls.x[i] = {{dropout.row + (uint32_t)(8 * block + 4 * half), dropout.col + (uint32_t)(16 * i),
                           dropout.third[0], dropout.third[1]}};
        calls.round(dropout, i, round);
    }
};

/* mem_eff: a call decides four keys of a row. The 16 lanes of four rows make the calls of these, a lane those of row
 * n % 4, every fourth one. A part is half a round or the exchange of a tile's words: through the half's rows of the
 * wave's own dS, which nobody reads then. In these, four lanes have 64 bytes of a row, rows in an order without
 * conflicts. */
template <class C>
struct attn_cdna_drawing<STW_DROPOUT_MEM_EFF, C>
    : attn_cdna_drawing_half<attn_cdna_drawing<STW_DROPOUT_MEM_EFF, C>, C> {
    /* Of a call: the first two rounds whole, halves of the others, the exchange. */
    enum {
        OF_CALL = 19,
        EARLY_OF_CALL = 8,
        EARLY = EARLY_OF_CALL * C::TILES,
        BESIDE_LAST_DK = 0,
        PARTS = OF_CALL * C::TILES
    };

    /* The lane's call of tile 0 and the block's first half. */
    DEV_FN uint32_t first_number(const attn_cdna_feature<C> &dropout, int block) {
        const uint32_t n = (uint32_t)dropout.lane & 15, g = (uint32_t)dropout.lane >> 4;
        return (dropout.third[0] >> 2 | dropout.third[1] << 30) + (n >> 2) +
               ((uint32_t)(C::BM * block) + 4 * g + (n & 3)) * (dropout.stride >> 2);
    }
    DEV_FN void enter(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, const attn_cdna_lds<C> &lds,
                      int block) {
        const int n = dropout.lane & 15, g = dropout.lane >> 4, row = (n >> 2 & 1) * 2 + (n >> 3), odd = g & 1;
        cdna_lds *const rows = lds.to_zipped + (row * C::SCORE_ROW - 4 * n);
        calls.put = cdna_opaque(rows + 16 * ((n & 3) ^ odd));
        calls.get[0] = cdna_opaque(rows + (4 * ((n & 3) ^ 1) + 16 * odd));
        calls.get[1] = cdna_opaque(rows + (4 * ((n & 3) ^ 1) + 16 - 16 * odd));
        calls.number = first_number(dropout, block);
        const stw_philox_words x =
            stw_philox4x32(1, dropout.third[1] >> 2 ^ dropout.key[0], 0, 0, 0, 0, dropout.key[1] + 0xBB67AE85u);
        calls.uniform[0] = cdna_opaque(x.word[2]);
        calls.uniform[1] = cdna_opaque(x.word[3] ^ (dropout.key[1] + 2 * 0xBB67AE85u));
    }
    DEV_FN void part(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int, int half, int part) {
        enum { LATE = OF_CALL - EARLY_OF_CALL };
        const bool early = part < EARLY;
        const int i = early ? part % C::TILES : (part - EARLY) / LATE;
        const int k = early ? part / C::TILES : EARLY_OF_CALL + (part - EARLY) % LATE;
        stw_philox_words &w = calls.x[i], x;
        const uint32_t number = (uint32_t)k / 2 + 1;
        const uint32_t key[2] = {dropout.key[0] + number * 0x9E3779B9u, dropout.key[1] + number * 0xBB67AE85u};
        if (k == 0) {
            w = stw_philox4x32(1, calls.number + (uint32_t)(4 * i), 0, 0, 0, 0, dropout.key[1]);
            if (i == C::TILES - 1) calls.number += dropout.stride << 2; /* 16 rows */
        } else if (k == 1) {
            w = stw_philox4x32(1, 0, 0, w.word[2], w.word[3], key[0], calls.uniform[0]);
        } else if (k == OF_CALL - 1) {
            const int at = half * 4 * C::SCORE_FOUR;
            cdna_put(calls.put + at, leaf_u4{w.word[1], w.word[0], w.word[3], w.word[2]}); /* as products lie */
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                w.word[r] = *(DEV_SHARED uint32_t *)(calls.get[r & 1] + (at + 16 * (r & 2)));
        } else if (k % 2 == 0) { /* words 2 and 1 to words 0 and 1; the old word 0 is wanted still */
            x = stw_philox4x32(1, 0, w.word[1], w.word[2], 0, key[0], 0);
            w.word[1] = x.word[1], w.word[2] = x.word[0];
            asm volatile("" : "+v"(w.word[1]), "+v"(w.word[2]));
        } else { /* words 0 and 3 to words 2 and 3 */
            x = stw_philox4x32(1, w.word[0], 0, 0, k == 3 ? 0 : w.word[3], 0, k == 3 ? calls.uniform[1] : key[1]);
            w = {{w.word[2], w.word[1], x.word[2], x.word[3]}};
            if (k < OF_CALL - 2) asm volatile("" : "+v"(w.word[2]), "+v"(w.word[3]));
        }
    }
};

/* flash2: a call decides 16 pairs of eight rows apart and eight keys apart, of eight lanes and two tiles: a lane makes
 * one call of a half, and its 64 lanes have all of the wave's two blocks of 32 keys. `made`: 16 half + 4 (tile % 2) + 8
 * (column / 8) + byte of a word. Parts are of both halves' calls, of the next step, and the exchange follows. */
template <class C> struct attn_cdna_drawing<STW_DROPOUT_FLASH2, C> {
    enum { ROUNDS = 7, PARTS = ROUNDS + 4 };

    DEV_FN void part(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int half, int k) {
        if (k == 0) {
            const uint64_t first =
                ((uint64_t)dropout.third[1] << 32 | dropout.third[0]) + (uint32_t)(dropout.lane & 31);
            calls.x[0] = {{(uint32_t)first, (uint32_t)(first >> 32), (uint32_t)(2 * block + half),
                           dropout.col + (uint32_t)(dropout.lane >> 5)}};
        }
        if (k < ROUNDS) calls.round(dropout, 0, k);
        else {
            const int nibble = PARTS - 1 - k, word = nibble % 2 * 2 + nibble / 2;
            cdna_decide_bytes(calls.made, calls.x[0].word[word], dropout.limit);
        }
    }
    DEV_FN void exchange(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout) {
        const int n = dropout.lane & 15, g = dropout.lane >> 4;
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
            const int from = (4 * (g & 1) + r) * 4 + ((n & 7) >> 1);
            calls.given[r] = dev_shuffle(calls.made, from);
            calls.given[4 + r] = dev_shuffle(calls.made, from + 32);
        }
    }
    /* Hundredths of the parts that have run before and after these products. */
    DEV_FN constexpr int share(int half, int phase, int behind) {
        constexpr int narrow[] = {0, 27, 45, 45, 70, 79, 100}, wide[] = {0, 28, 55, 55, 83, 100, 100};
        constexpr int parts[] = {0, 30, 50, 50, 80, 100, 100};
        return (C::PARTS == 2 ? parts : C::WIDTH < 128 ? narrow : wide)[3 * half + phase + behind];
    }
    template <int MOST>
    DEV_FN void run(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int from, int to) {
        DEV_UNROLL_FOR (int e = 0; e < MOST; ++e) /* the second half's decisions are the high bits */
            if (from + e < to) part(calls, dropout, block, 1 - (from + e) / PARTS, (from + e) % PARTS);
        if (to == 2 * PARTS && from < to) exchange(calls, dropout);
    }
    DEV_FN void make(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block) {
        calls.made = 0;
        run<2 * PARTS>(calls, dropout, block, 0, 2 * PARTS);
    }
    DEV_FN void begin(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, const attn_cdna_lds<C> &,
                      int block) {
        make(calls, dropout, block);
    }
    DEV_FN uint32_t turned(const attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout) {
        const int n = dropout.lane & 15, g = dropout.lane >> 4, right = (g >> 1) * 2 + (n & 1) + 8 * (n >> 3);
        uint32_t all = 0;
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
            all |= cdna_turned(calls.given[r], right - r, 0x00110011u << r);
            all |= cdna_turned(calls.given[4 + r], right - r - 8, 0x11001100u << r);
        }
        return all >> 4 * dropout.odd;
    }
    DEV_FN void enter_step(attn_cdna_calls<C> &calls, attn_cdna_feature<C> &dropout, int) {
        dropout.bits = turned(calls, dropout);
    }
    template <int MOST>
    DEV_FN void beside(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, int block, int half, int phase,
                       int i, int pieces) {
        const int first = 2 * PARTS * share(half, phase, 0) / 100, end = 2 * PARTS * share(half, phase, 1) / 100;
        run<MOST>(calls, dropout, block + 1, first + (end - first) * i / pieces,
                  first + (end - first) * (i + 1) / pieces);
    }
};

/* Either map's calls of a step, before it. What follows from the lane and the key is made anew in each, since registers
 * are few. `made` of mem_eff: 16 half + 4 i + key, turned left by the row of four, so that a lane turns all of them
 * right by its key. */
template <class C> struct attn_cdna_drawing<CDNA_DRAWS_BEFORE, C> : attn_cdna_drawing<CDNA_DRAWS_NOTHING, C> {
    typedef attn_cdna_drawing<STW_DROPOUT_FLASH2, C> flash2;

    DEV_FN void make_anew(attn_cdna_feature<C> &dropout) {
        asm volatile("v_mbcnt_lo_u32_b32 %0, -1, 0\n\tv_mbcnt_hi_u32_b32 %0, -1, %0" : "=v"(dropout.lane));
    }
    DEV_FN void begin(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout, const attn_cdna_lds<C> &,
                      int block) {
        attn_cdna_feature<C> anew = dropout;
        make_anew(anew);
        calls.number = attn_cdna_drawing<STW_DROPOUT_MEM_EFF, C>::first_number(anew, block);
        calls.least = cdna_opaque(dropout.limit);
        calls.key = cdna_opaque((uint32_t)anew.lane & 3);
        calls.row_0 = cdna_opaque((anew.lane & ~3) << 2);
    }
    DEV_FN uint32_t mem_eff(attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout) {
        uint32_t made = 0, all = 0;
        DEV_UNROLL_FOR (int half = 1; half >= 0; --half) {
            const uint32_t number = calls.number + (uint32_t)half * (dropout.stride << 2); /* 16 rows */
            DEV_UNROLL_FOR (int k = 0; k < 10 * C::TILES; ++k) {
                const int i = k % C::TILES, round = k / C::TILES;
                if (round == 0) calls.x[i] = {{number + (uint32_t)(4 * i), dropout.third[1] >> 2, 0, 0}};
                calls.round(dropout, i, round);
            }
            DEV_UNROLL_FOR (int i = C::TILES - 1; i >= 0; --i)
                cdna_shift_in(made, cdna_decide_words(calls.x[i], calls.least));
            if (half) made <<= 16 - 4 * C::TILES;
        }
        calls.number += dropout.stride << 3;
        made = __builtin_amdgcn_alignbit(made, made, 0 - calls.key);
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
            calls.given[r] = (uint32_t)__builtin_amdgcn_ds_bpermute(calls.row_0 + 4 * r, (int)made);
        constexpr uint32_t TILES = 0x1111u & ((1u << 4 * C::TILES) - 1);
        DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
            all |= cdna_turned(calls.given[r], (int)calls.key, (TILES | TILES << 16) << r);
        return all;
    }
    DEV_FN void enter_step(attn_cdna_calls<C> &calls, attn_cdna_feature<C> &dropout, int block) {
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) dropout.key[i] = cdna_opaque_scalar(dropout.key[i]);
        if (dropout.map == STW_DROPOUT_FLASH2) {
            attn_cdna_feature<C> anew = dropout;
            make_anew(anew);
            flash2::make(calls, anew, block);
            dropout.bits = flash2::turned(calls, anew);
        } else dropout.bits = mem_eff(calls, dropout);
    }
};

/* Decisions of 16 queries and the wave's keys. decide(): all words are there; compare(): a tile's are wanted soon. */
template <int MAP, class C, int MODE = C::MODE> struct attn_cdna_decisions {
    DEV_METHOD void enter(const attn_cdna_feature<C> &, int) {}
    DEV_METHOD void decide(const attn_cdna_calls<C> &, const attn_cdna_feature<C> &) {}
    DEV_METHOD void compare(const attn_cdna_feature<C> &, int) {}
};
/* Bits of the step. */
template <class C> struct attn_cdna_decisions<CDNA_DRAWS_BEFORE, C, CDNA_DROPOUT> {
    uint32_t bits;
    int half;

    DEV_METHOD void enter(const attn_cdna_feature<C> &dropout, int h) { bits = dropout.bits, half = h % 2; }
    DEV_METHOD void decide(const attn_cdna_calls<C> &, const attn_cdna_feature<C> &) {}
    DEV_METHOD void compare(const attn_cdna_feature<C> &, int) {}
    DEV_METHOD float kept(float x, int i, int r) const {
        const int all = __builtin_amdgcn_sbfe((int)bits, (uint32_t)(16 * half + 4 * i + r), 1);
        return __builtin_bit_cast(float, __builtin_bit_cast(int, x) & all);
    }
};
template <class C>
struct attn_cdna_decisions<STW_DROPOUT_FLASH2, C, CDNA_DROPOUT>
    : attn_cdna_decisions<CDNA_DRAWS_BEFORE, C, CDNA_DROPOUT> {};
template <class C> struct attn_cdna_decisions<CDNA_DRAWS_NOTHING, C, CDNA_DROPOUT> {
    bool keeps[C::TILES][4];

    DEV_METHOD void enter(const attn_cdna_feature<C> &dropout, int half) {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
            DEV_UNROLL_FOR (int r = 0; r < 4; ++r)
                keeps[i][r] = (dropout.bits & 1u << (half % 2 * 16 + 4 * i + r)) != 0;
    }
    DEV_METHOD void decide(const attn_cdna_calls<C> &, const attn_cdna_feature<C> &) {}
    DEV_METHOD void compare(const attn_cdna_feature<C> &, int) {}
    DEV_METHOD float kept(float x, float y, int i, int r) const { return keeps[i][r] ? x : y; }
    DEV_METHOD float kept(float x, int i, int r) const { return keeps[i][r] ? x : 0.0f; }
};
/* Four words a tile. */
template <class C> struct attn_cdna_decisions_of_words {
    cdna_four tiles[C::TILES];

    DEV_METHOD void enter(const attn_cdna_feature<C> &, int) {}
    /* Else clang 19 would compare here, and wait for what it compares. */
    DEV_METHOD float kept(float x, float y, int i, int r) const {
        float z;
        asm("v_cndmask_b32_e64 %0, %1, %2, %3" : "=v"(z) : "v"(y), "v"(x), "s"(tiles[i].keeps[r]));
        return z;
    }
    DEV_METHOD float kept(float x, int i, int r) const {
        float z;
        /* gfx942 wants a wait state after a power. At other head dims clang 19 puts an instruction there
         * (emu_image_gfx942). */
        if constexpr (C::HD == 32)
            asm("s_nop 0\n\tv_cndmask_b32_e64 %0, 0, %1, %2" : "=v"(z) : "v"(x), "s"(tiles[i].keeps[r]));
        else asm("v_cndmask_b32_e64 %0, 0, %1, %2" : "=v"(z) : "v"(x), "s"(tiles[i].keeps[r]));
        return z;
    }
};
template <class C> struct attn_cdna_decisions<STW_DROPOUT_PHILOX, C, CDNA_DROPOUT> : attn_cdna_decisions_of_words<C> {
    DEV_METHOD void decide(const attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &dropout) {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) this->tiles[i] = cdna_decide_words(calls.x[i], dropout.limit);
    }
    DEV_METHOD void compare(const attn_cdna_feature<C> &, int) {}
};
/* mem_eff: words are on their way from LDS. */
template <class C> struct attn_cdna_decisions<STW_DROPOUT_MEM_EFF, C, CDNA_DROPOUT> : attn_cdna_decisions_of_words<C> {
    stw_philox_words x[C::TILES];

    DEV_METHOD void decide(const attn_cdna_calls<C> &calls, const attn_cdna_feature<C> &) {
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) x[i] = calls.x[i];
    }
    DEV_METHOD void compare(const attn_cdna_feature<C> &dropout, int i) {
        this->tiles[i] = cdna_decide_words(x[i], dropout.limit);
    }
};

#endif
