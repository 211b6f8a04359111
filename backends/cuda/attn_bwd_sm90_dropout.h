/* SPDX-License-Identifier: MIT
 *
 * Dropout in sm90's own main loop. A third warpgroup does nothing but decide which scores of the next step are dropped,
 * while the other two multiply: its warp c decides for the warps 2c and 2c + 1 of those, a bit a value, in the order of
 * a thread's values. The words of step j lie where dS(j) will be written, each lane's where its own warp will write:
 * there is no other place, and they are read before. So they may come after the CTA's barrier of step j - 1 (`empty`),
 * and are read in its phase 5 (`full`). The warpgroup is a step ahead in its registers. With a bias, which waits there,
 * too, they come when all warps have read it in phase 5. */
#ifndef STW_CUDA_ATTN_BWD_SM90_DROPOUT_H
#define STW_CUDA_ATTN_BWD_SM90_DROPOUT_H

#include "attn_bwd_sm90_scheduler.h"
#include "common/philox.h"

/* Registers of a thread: of the warpgroups that multiply, and of the third. */
enum { SM90_DROPOUT_REGISTERS = 232, SM90_DROPOUT_REST = 504 - 2 * SM90_DROPOUT_REGISTERS };

/* The mbarriers of decisions, behind the work tiles. */
template <class C> struct sm90_dropout_barriers {
    enum { AT = C::AT_TILES + 2 * (int)sizeof(attn_work_tile), END = AT + 16, WARPS = 4 };
    static_assert(AT % 8 == 0 && END <= (int)STW_SM90_SMEM(C::HD), "room behind the work tiles");
    uint32_t base;

    DEV_METHOD sm90_mbarrier full() const { return sm90_mbarrier{base + AT}; }
    DEV_METHOD sm90_mbarrier empty() const { return sm90_mbarrier{base + AT + 8}; }
    /* `readers`: what says that decisions may come. */
    DEV_METHOD void init(int readers) const {
        full().init(WARPS);
        empty().init(readers);
    }
};

/* Where lane `lane` of warp `wave` finds its words in a place of dS: what it gives sm90_stmatrix_trans. */
template <class C> DEV_FN uint32_t sm90_place_of_lane(int wave, int lane) {
    return (uint32_t)(wave / 4 * C::BM * 128 + ((lane / 16) * 8 + lane % 8) * 128 +
                      (((wave % 4 * 2 + lane / 8 % 2) ^ (lane % 8)) * 16));
}

/* The number of a part of the block, as a type. */
template <int N> struct sm90_part {
    enum { part = N };
};
/* Which of a thread's values are dropped, 32 in a word. Value 4 i + k is bit i of byte k: of two values that are packed
 * the bits are those of two neighbouring bytes. */
template <int BM> struct sm90_dropout {
    enum { WORDS = BM / 64, PART = 32 }; /* queries of a part: 16 values */
    uint32_t word[WORDS];

    /* Parts of the block past the first, one after the other. */
    template <int N = 1, class F> DEV_METHOD void each_part(F &&f) {
        f(sm90_part<N>());
        if constexpr (N + 1 < BM / PART) each_part<N + 1>(f);
    }

    DEV_METHOD void load(uint32_t from) {
        if constexpr (WORDS == 2) {
            const uint2 x = sm90_load_shared_words(from);
            word[0] = x.x, word[WORDS - 1] = x.y;
        } else word[0] = sm90_load_shared_word(from);
    }
    /* x, or 0 where value e is dropped. */
    DEV_METHOD float kept(int e, float x) const { return word[e / 32] & 1u << (e % 32 / 4 + e % 4 * 8) ? 0.0f : x; }
    /* In each half of the word ones if that of two values is dropped: 2 j and 2 j + 1. */
    DEV_METHOD uint32_t dropped(int j) const {
        return sm90_signs(word[j / 16] << (7 - j % 16 / 2), j % 2 ? 0xBBAAu : 0x9988u);
    }
    /* P Z to 16 bits, of P / (1 - p), for the queries of a part. */
    template <class T, int AT, int WORDS_16, int VALUES>
    DEV_METHOD void pack(uint32_t (&to)[WORDS_16], const float (&p)[VALUES]) const {
        DEV_UNROLL_FOR (int i = 8 * AT; i < 8 * AT + 8; ++i)
            to[i] = dev_pack(T(), p[2 * i], p[2 * i + 1]) & ~dropped(i);
    }
    /* dS = P (dP Z (1 - p) - delta (1 - p)) of these queries to 16 bits in shared memory; P and the statistics as
     * above, `delta` this thread's first. SIGNED: delta is not negated, and dS is 0 where P is. `masked`: dP may be
     * infinite or no number where P is 0. */
    template <class T, int AT, bool SIGNED, int VALUES>
    DEV_METHOD void gradients(uint32_t to, float (&dp)[VALUES], const float (&p)[VALUES], const float *delta,
                              const float &kept_part, bool masked) {
        if (masked) {
            DEV_UNROLL_FOR (int e = 16 * AT; e < 16 * AT + 16; ++e) dp[e] = p[e] != 0.0f ? dp[e] : 0.0f;
        }
        DEV_UNROLL_FOR (int i = 2 * AT; i < 2 * AT + 2; ++i) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int k = 0; k < 2; ++k) {
                float2 d = *(const float2 *)(const void *)(delta + 16 * i + 8 * k);
                d.x *= kept_part, d.y *= kept_part;
                if (SIGNED) d.x = -d.x, d.y = -d.y;
                DEV_UNROLL_FOR (int a = 0; a < 2; ++a) {
                    const int e = 8 * i + 4 * k + 2 * a;
                    float x = p[e] * (kept(e, dp[e]) + d.x), y = p[e + 1] * (kept(e + 1, dp[e + 1]) + d.y);
                    if (SIGNED) x = p[e] != 0.0f ? x : 0.0f, y = p[e + 1] != 0.0f ? y : 0.0f;
                    w[2 * k + a] = dev_pack(T(), x, y);
                }
            }
            sm90_stmatrix_trans(to + i * 2048, w);
        }
    }
};

/* Returns 2 x + 1 where `word` is not below the threshold whose negative is given, else 2 x: two instructions, since
 * the carry of an addition is the decision. */
DEV_FN uint32_t sm90_append_kept(uint32_t x, uint32_t word, uint32_t negative) {
    uint32_t y;
    asm("{\n.reg .b32 t;\nadd.cc.u32 t, %2, %3;\naddc.u32 %0, %1, %1;\n}" : "=r"(y) : "r"(x), "r"(word), "r"(negative));
    return y;
}

/* Philox4x32's multipliers, and what is added to the key from round to round (common/philox.h). */
enum : uint32_t {
    SM90_PHILOX_M0 = 0xD2511F53u,
    SM90_PHILOX_M1 = 0xCD9E8D57u,
    SM90_PHILOX_W0 = 0x9E3779B9u,
    SM90_PHILOX_W1 = 0xBB67AE85u
};
/* N Philox calls of common/philox.h side by side. */
template <int N> struct sm90_philox {
    uint32_t c[N][4]; /* counters, then words */

    template <int ROUNDS, int FIRST = 0> DEV_METHOD void rounds(uint64_t key) {
        const uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
        DEV_UNROLL_FOR (int round = FIRST; round < ROUNDS; ++round) {
            DEV_UNROLL_FOR (int n = 0; n < N; ++n) {
                uint32_t high0, low0, high1, low1;
                product(SM90_PHILOX_M0, c[n][0], high0, low0);
                product(SM90_PHILOX_M1, c[n][2], high1, low1);
                c[n][0] = high1 ^ c[n][1] ^ (key0 + round * SM90_PHILOX_W0);
                c[n][2] = high0 ^ c[n][3] ^ (key1 + round * SM90_PHILOX_W1);
                c[n][1] = low1;
                c[n][3] = low0;
            }
        }
    }
    DEV_FN void product(uint32_t a, uint32_t b, uint32_t &high, uint32_t &low) {
        asm("{\n.reg .b64 x;\nmul.wide.u32 x, %2, %3;\nmov.b64 {%1, %0}, x;\n}"
            : "=r"(high), "=r"(low)
            : "r"(b), "r"(a));
    }
    /* Shifts the decisions about the words of call n into x, the last one first, so that bit k of the four is word k's.
     * A threshold of 0 keeps every word, but its negative is 0, to which nothing carries: callers treat it apart. */
    DEV_METHOD uint32_t append_kept(uint32_t x, int n, uint32_t threshold) const {
        DEV_UNROLL_FOR (int k = 3; k >= 0; --k) x = sm90_append_kept(x, c[n][k], 0u - threshold);
        return x;
    }
    /* Bit 4 n + k: word k of call n is below the threshold. */
    DEV_METHOD uint32_t below(uint32_t threshold) const {
        uint32_t bits = 0;
        DEV_UNROLL_FOR (int i = 0; i < 4 * N; ++i) bits |= c[i / 4][i % 4] < threshold ? 1u << i : 0u;
        return bits;
    }
};

/* Holds what the first two rounds of our own map's calls multiply for a head and a key alone: once for all rows. */
struct sm90_philox_of_key {
    uint32_t low_of_head, high, low; /* of the head in round 0, of the key in round 1 */

    DEV_FN sm90_philox_of_key make(uint32_t head, uint32_t col, uint64_t key) {
        sm90_philox_of_key of;
        uint32_t high_of_head;
        sm90_philox<1>::product(SM90_PHILOX_M1, head, high_of_head, of.low_of_head);
        sm90_philox<1>::product(SM90_PHILOX_M0, high_of_head ^ col ^ (uint32_t)key, of.high, of.low);
        return of;
    }
};

/* Rows start where a call of the map decides several values. Always so in FlashAttention-2's map. */
DEV_FN bool sm90_dropout_fits(const stw_attn_params &p, const attn_work_tile &tile, uint64_t offset) {
    if (p.dropout_map == STW_DROPOUT_FLASH2) return true;
    if (p.dropout_map == STW_DROPOUT_PHILOX) return (dev_uniform((int)tile.seq.q.offset) & 3) == 0;
    return (dev_uniform((int)((uint32_t)offset | (uint32_t)tile.seq.kv.rows)) & 3) == 0;
}

/* What a warp of the third warpgroup decides in a step: the words of its lanes in two warps that multiply. A lane there
 * has keys lane / 4 and 8 more, queries lane % 4 * 2 and one more of each eight. */
template <class C> struct sm90_decisions {
    enum { WORDS = C::BM / 64, PIECES = 8, CALLS = 2 }; /* pieces of a word; calls side by side of other maps */
    uint32_t word[2][WORDS];                            /* bit e: value e, until by_bytes */
    uint64_t key;                                       /* of the calls */

    /* The order of sm90_dropout: bits are exchanged by pairs of bits of their numbers. */
    DEV_FN uint32_t by_bytes(uint32_t x) {
        uint32_t y = (x >> 3 ^ x) & 0x0A0A0A0Au;
        x ^= y ^ y << 3;
        y = (x >> 6 ^ x) & 0x00CC00CCu;
        x ^= y ^ y << 6;
        y = (x >> 12 ^ x) & 0x0000F0F0u;
        x ^= y ^ y << 12;
        y = (x >> 8 ^ x) & 0x0000FF00u;
        return x ^ y ^ y << 8;
    }

    /* Sternway's own map where blocks start at multiples of four rows of it: a call decides four rows, which two
     * neighbouring lanes hold. Each makes the calls of one of its two keys, of both halves (16 keys apart) together,
     * which share what the first three rounds make of the row: 16.5 wide multiplications a call, not 19. Rows go down,
     * since words are shifted in from below. */
    DEV_METHOD void philox(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0, int lane) {
        typedef sm90_philox<2> calls_of;
        const uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
        const int odd = lane & 1;
        const uint32_t col = (uint32_t)(j0 + s.kv_offset) + (uint32_t)(lane / 4 + 8 * odd);
        uint32_t row = (uint32_t)((uint64_t)(i0 + s.q_offset) >> 2) + (uint32_t)(lane >> 1 & 1) + 2 * PIECES * WORDS;
        const sm90_philox_of_key of_key[2] = {sm90_philox_of_key::make((uint32_t)s.head, col, key),
                                              sm90_philox_of_key::make((uint32_t)s.head, col + 16, key)};
        DEV_UNROLL_FOR (int w = WORDS - 1; w >= 0; --w) {
            uint32_t kept[2] = {0, 0};
            DEV_ROLLED_FOR (int i = 0; i < PIECES; ++i) {
                row -= 2;
                uint32_t high0, low0, high1, low1, high2, low2; /* of the row, in rounds 0 to 2 */
                calls_of::product(SM90_PHILOX_M0, row, high0, low0);
                calls_of::product(SM90_PHILOX_M1, high0 ^ (uint32_t)s.offset ^ key1, high1, low1);
                calls_of::product(SM90_PHILOX_M0, high1 ^ of_key[0].low_of_head ^ (key0 + SM90_PHILOX_W0), high2, low2);
                calls_of calls;
                DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
                    uint32_t high, low;
                    calls_of::product(SM90_PHILOX_M1, of_key[half].high ^ low0 ^ (key1 + SM90_PHILOX_W1), high, low);
                    calls.c[half][0] = high ^ low1 ^ (key0 + 2 * SM90_PHILOX_W0);
                    calls.c[half][1] = low;
                    calls.c[half][2] = high2 ^ of_key[half].low ^ (key1 + 2 * SM90_PHILOX_W1);
                    calls.c[half][3] = low2;
                }
                calls.template rounds<10, 3>(key);
                DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                    kept[half] = calls.append_kept(kept[half], half, p.dropout_threshold);
            }
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
                const uint32_t own = p.dropout_threshold ? ~kept[half] : 0u;
                const uint32_t other = dev_shuffle_xor(own, 1), low = odd ? other : own, high = odd ? own : other;
                word[half][w] = (low >> (2 * odd) & 0x33333333u) | (high >> (2 * odd) & 0x33333333u) << 2;
            }
        }
    }
    /* FlashAttention-2's map: a call's sixteen bytes are eight keys of two queries, and the calls of a warp sixteen
     * queries of its 32 keys: the first two words are those of the first warp that multiplies. */
    DEV_METHOD void flash2(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0, int lane) {
        const uint64_t subsequence = s.offset + s.head * 32u + (uint32_t)lane;
        const uint32_t row = (uint32_t)((uint64_t)i0 >> 4), col = (uint32_t)((uint64_t)j0 >> 5);
        /* added to a byte in 9 bits, its carry says that the byte is larger than dropout_byte */
        const uint32_t carry = (255u - p.dropout_byte) * 0x00010001u;
        const int from = lane % 4 * 8 + lane / 8, odd = lane >> 2 & 1;
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) {
            uint32_t own[2] = {0, 0};
            DEV_ROLLED_FOR (int m = 0; m < PIECES / 2; m += CALLS) {
                sm90_philox<CALLS> calls;
                DEV_UNROLL_FOR (int n = 0; n < CALLS; ++n) {
                    calls.c[n][0] = (uint32_t)subsequence;
                    calls.c[n][1] = (uint32_t)(subsequence >> 32);
                    calls.c[n][2] = row + 4 * w + m + n;
                    calls.c[n][3] = col;
                }
                calls.template rounds<7>(key);
                DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                    DEV_UNROLL_FOR (int n = 0; n < CALLS; ++n) {
                        uint32_t bits = 0; /* query and 8 more in bits 0 and 16, then by key */
                        DEV_UNROLL_FOR (int t = 0; t < 2; ++t) {
                            const uint32_t x = calls.c[n][2 * half + t];
                            bits |= (((x & 0x00FF00FFu) + carry) >> 8 & 0x00010001u) << 2 * t;
                            bits |= (((x >> 8 & 0x00FF00FFu) + carry) >> 8 & 0x00010001u) << (2 * t + 1);
                        }
                        own[half] |= ((bits | bits >> 12) & 0xFFu) << 8 * (m + n);
                    }
            }
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
                word[half][w] = dev_shuffle(own[half], from) >> odd & 0x55555555u;
                word[half][w] |= (dev_shuffle(own[half], from + 4) >> odd & 0x55555555u) << 1;
            }
        }
    }
    /* The memory-efficient kernels' map where rows begin at multiples of four: a call decides four keys of a query,
     * which four lanes hold. Each makes the calls of one of its two queries of one of its two keys. */
    DEV_METHOD void mem_eff(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0, int lane) {
        const int turn = lane >> 2 & 3;
        const uint64_t first = (s.base + (uint64_t)(i0 + lane % 4 * 2 + (turn & 1)) * s.row_stride +
                                (uint64_t)(j0 + 8 * (turn >> 1) + lane / 16 * 4)) >>
                               2;
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
            uint64_t counter = first + 4 * half + 2 * PIECES * WORDS * s.row_stride; /* rows go down, as above */
            DEV_UNROLL_FOR (int w = WORDS - 1; w >= 0; --w) {
                uint32_t kept = 0;
                DEV_ROLLED_FOR (int i = 0; i < PIECES; i += CALLS) {
                    sm90_philox<CALLS> calls;
                    DEV_UNROLL_FOR (int n = 0; n < CALLS; ++n) {
                        counter -= 2 * s.row_stride;
                        calls.c[n][0] = (uint32_t)counter;
                        calls.c[n][1] = (uint32_t)(counter >> 32);
                        calls.c[n][2] = calls.c[n][3] = 0;
                    }
                    calls.template rounds<10>(key);
                    DEV_UNROLL_FOR (int n = 0; n < CALLS; ++n) kept = calls.append_kept(kept, n, p.dropout_threshold);
                }
                const uint32_t own = p.dropout_threshold ? ~kept : 0u;
                word[half][w] = 0;
                DEV_UNROLL_FOR (int k = 0; k < 4; ++k)
                    word[half][w] |= (dev_shuffle(own, (lane & ~12) | k << 2) >> turn & 0x11111111u) << k;
            }
        }
    }
    /* Sternway's own and the memory-efficient kernels' map at any position: a call a value. */
    DEV_METHOD void each(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0, int lane) {
        const bool own = p.dropout_map == STW_DROPOUT_PHILOX;
        const int64_t i = i0 + lane % 4 * 2 + (own ? s.q_offset : 0), j = j0 + lane / 4 + (own ? s.kv_offset : 0);
        DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
            DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) {
                uint32_t bits = 0;
                DEV_ROLLED_FOR (int e = 0; e < 32; e += 2) { /* two queries of a key */
                    const uint64_t row = (uint64_t)(i + 8 * (8 * w + e / 4)),
                                   col = (uint64_t)(j + 16 * half + 8 * (e / 2 % 2));
                    sm90_philox<2> calls;
                    uint32_t which[2];
                    DEV_UNROLL_FOR (int n = 0; n < 2; ++n) {
                        const uint64_t number = own ? row + n : s.base + (row + n) * s.row_stride + col;
                        which[n] = (uint32_t)number & 3u;
                        calls.c[n][0] = (uint32_t)(number >> 2);
                        calls.c[n][1] = own ? (uint32_t)col : (uint32_t)(number >> 34);
                        calls.c[n][2] = own ? (uint32_t)s.head : 0u;
                        calls.c[n][3] = own ? (uint32_t)s.offset : 0u;
                    }
                    calls.template rounds<10>(key);
                    const uint32_t below = calls.below(p.dropout_threshold);
                    bits |= ((below >> which[0] & 1u) | (below >> (4 + which[1]) & 1u) << 1) << e;
                }
                word[half][w] = bits;
            }
    }
    /* Query block `block` of head `head`; keys from `first` of the work tile. */
    DEV_METHOD void make(const stw_attn_params &p, uint64_t offset, const attn_work_tile &tile, int head, int block,
                         int first, bool fits, int lane) {
        stw_dropout_stream s = stw_dropout_stream_of(&p, tile.b, head, tile.seq.q, tile.seq.kv);
        s.base += offset - s.offset;
        s.offset = offset; /* known to be the same for all threads */
        const int64_t i0 = (int64_t)block * C::BM, j0 = tile.j0 + first;
        if (!fits) each(p, s, i0, j0, lane);
        else if (p.dropout_map == STW_DROPOUT_PHILOX) philox(p, s, i0, j0, lane);
        else if (p.dropout_map == STW_DROPOUT_FLASH2) flash2(p, s, i0, j0, lane);
        else mem_eff(p, s, i0, j0, lane);
    }
};

/* The third warpgroup: the same work tiles and steps as the others. BEHIND_BIAS: the bias of the step has been read.
 * `enter`: waits until it is known what the next step is, where work tiles alone do not tell. */
template <class C, bool BEHIND_BIAS, class Iterator, class Enter>
DEV_FN void sm90_decide(const stw_attn_launch &l, attn_work_tile *tiles, uint32_t base, sm90_mbarrier arrived,
                        Enter &&enter) {
    typedef sm90_decisions<C> decisions;
    const stw_attn_params &p = l.p;
    const sm90_dropout_barriers<C> barriers = {base};
    const int wave = 2 * ((int)dev_wave() - C::WARPS);
    const uint64_t seed = (uint64_t)dev_uniform((int64_t)(p.dropout_seed_ptr ? *p.dropout_seed_ptr : p.dropout_seed)),
                   offset = (uint64_t)dev_uniform(
                       (int64_t)(p.dropout_offset_ptr ? *p.dropout_offset_ptr : p.dropout_offset));
    const uint64_t key = p.dropout_map == STW_DROPOUT_PHILOX ? seed ^ (offset & UINT64_C(0xFFFFFFFF00000000)) : seed;
    uint32_t flip = 0; /* which place of dS, and the mbarriers' parity */
    DEV_ROLLED_FOR (int turn = 0;; ++turn) {
        attn_work_tile &tile = tiles[turn & 1];
        arrived.wait(turn & 1);
        if (!dev_uniform(tile.live)) return;
        const bool fits = sm90_dropout_fits(p, tile, offset);
        Iterator it = Iterator::begin(tile, l);
        DEV_ROLLED for (;;) {
            enter(it);
            decisions of;
            of.key = key;
            of.make(p, offset, tile, it.query_head(tile, l), it.block, 16 * wave, fits, sm90_lane_anew());
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                DEV_UNROLL_FOR (int w = 0; w < decisions::WORDS; ++w)
                    of.word[half][w] = decisions::by_bytes(of.word[half][w]);
            barriers.empty().wait(BEHIND_BIAS ? flip : flip ^ 1);
            const uint32_t to = base + C::AT_DS + flip * C::DS_BYTES + sm90_place_of_lane<C>(wave, sm90_lane_anew());
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half)
                DEV_UNROLL_FOR (int w = 0; w < decisions::WORDS; ++w) /* the second warp's: two pieces further */
                    sm90_store_shared_word((to ^ 32 * half) + 4 * w, of.word[half][w]);
            __syncwarp();
            if (sm90_elect()) barriers.full().arrive();
            flip ^= 1;
            if (it.left == 1) break;
            it.next();
        }
    }
}

#endif
