/* SPDX-License-Identifier: MIT
 *
 * A bias in sm90's main loop for wide heads, of the operands' type, f32 or bytes, and its gradient for every pair, of
 * the operands' type. Shared memory is full: a thread asks for what its own scores want while S is multiplied, pairs of
 * keys where a bias has them in one word, and writes what its own dS is. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_BIAS_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_BIAS_H

#include "attn_bwd_sm90_wide_loads.h"

/* Score 4 i + 2 n + b of a thread is that of its row n of two, eight apart, and of key 8 i + b from its first one. */
template <class C> struct sm90_wide_bias {
    typedef typename C::T T;
    enum { SCORES = C::GROUP_KEYS / 2, WORDS = (SCORES + 4) / 8 * 4 };
    uint32_t
        word[WORDS]; /* pairs of 16 bits or bytes; of f32 the first WORDS scores, then the others: registers lack */

    /* Where the scores of a thread lie in a tensor of biases, in bytes. */
    struct place {
        char *row[2];   /* the first score of its two rows */
        int64_t key;    /* to the next key */
        int rows, keys; /* in use, from this thread's first on */
        bool pairs;     /* all are in use, and two keys begin at a multiple of their bytes */

        template <class Step>
        DEV_FN place of(const stw_bias_param &t, int size, const attn_work_tile &tile, const Step &it) {
            const int thread = sm90_thread_anew(), row0 = it.block * C::BM, j0 = (int)tile.j0; /* 30 bits */
            const int row = row0 + thread / 32 % 4 * 16 + thread % 32 / 4,
                      key = j0 + thread / 128 * C::GROUP_KEYS + thread % 4 * 2;
            place x;
            x.row[0] = (char *)t.data + ((int)tile.b * t.batch + it.head * t.head + row * t.query + key * t.key) * size;
            x.row[1] = x.row[0] + 8 * t.query * size;
            x.key = t.key * size;
            x.rows = (int)tile.seq.q.used - row;
            x.keys = (int)tile.seq.kv.used - key;
            x.pairs = t.key == 1 &&
                      (((t.batch | t.head | t.query) * size | (int64_t)(uintptr_t)t.data) & (2 * size - 1)) == 0 &&
                      row0 + C::BM <= (int)tile.seq.q.used && j0 + C::BN <= (int)tile.seq.kv.used;
            return x;
        }
        /* Of scores FIRST to END: f(i, where score i is), row by row, of those in use; the others: none(i). */
        template <int FIRST, int END, class F, class G> DEV_METHOD void each(F &&f, G &&none) const {
            DEV_UNROLL_FOR (int n = 0; n < 2; ++n) {
                char *at = row[n] + FIRST / 4 * 8 * key;
                DEV_UNROLL_FOR (int i = FIRST + 2 * n; i < END; i += 4) {
                    const int left = 8 * n < rows ? keys - i / 4 * 8 : 0;
                    if (left > 0) f(i, at);
                    else none(i);
                    if (left > 1) f(i + 1, at + key);
                    else none(i + 1);
                    at += key * dev_keep(8); /* made anew: ptxas would spill where all of them are */
                }
            }
        }
        /* f(i, where scores i and i + 1 are), of SIZE bytes each. */
        template <int SIZE, int FIRST, int END, class F> DEV_METHOD void each_pair(F &&f) const {
            DEV_UNROLL_FOR (int i = FIRST; i < END; i += 2) f(i, row[i / 2 % 2] + i / 4 * 8 * SIZE);
        }
    };

    /* Asks for the bias of a step, of f32 its scores FIRST to END; zeros outside of the rows and keys in use. */
    template <int FIRST, int END>
    DEV_METHOD void fetch_f32(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_wide_iterator &it) {
        const place x = place::of(l.p.bias, 4, tile, it);
        if (x.pairs)
            x.template each_pair<4, FIRST, END>([&](int i, const char *at) {
                const uint2 both = *(const uint2 *)(const void *)at;
                word[i - FIRST] = both.x, word[i + 1 - FIRST] = both.y;
            });
        else
            x.template each<FIRST, END>(
                [&](int i, const char *at) { word[i - FIRST] = *(const uint32_t *)(const void *)at; },
                [&](int i) { word[i - FIRST] = 0; });
    }
    DEV_METHOD void fetch(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_wide_iterator &it) {
        if (l.p.bias_dtype == STW_F32) return fetch_f32<0, WORDS>(l, tile, it);
        const bool bytes = l.p.bias_dtype == STW_U8;
        const place x = place::of(l.p.bias, bytes ? 1 : 2, tile, it);
        if (!x.pairs) {
            x.template each<0, SCORES>(
                [&](int i, const char *at) {
                    const uint32_t w = bytes ? *(const uint8_t *)(const void *)at : *(const uint16_t *)(const void *)at;
                    word[i / 2] = i % 2 ? word[i / 2] | w << 16 : w;
                },
                [&](int i) {
                    if (i % 2 == 0) word[i / 2] = 0;
                });
        } else if (bytes) {
            x.template each_pair<1, 0, SCORES>([&](int i, const char *at) {
                word[i / 2] = __byte_perm(*(const uint16_t *)(const void *)at, 0, 0x4140);
            });
        } else {
            x.template each_pair<2, 0, SCORES>(
                [&](int i, const char *at) { word[i / 2] = *(const uint32_t *)(const void *)at; });
        }
    }
    /* S -> (S scale + bias - LSE) log2(e), -infinity where bytes hide the pair. The difference comes first: a bias may
     * put S anywhere, -1e9 in all of a row, and only rounding would be left of either times log2(e). */
    DEV_METHOD void add(float (&s)[SCORES], const stw_attn_launch &l, const attn_work_tile &tile,
                        const sm90_wide_iterator &it, float factor, float2 lse) {
        if (l.p.bias_dtype == STW_F32) {
            add_each<0, WORDS>(s, factor, lse, [&](int i) { return dev_of_bits(word[i]); });
            fetch_f32<WORDS, SCORES>(l, tile, it);
            add_each<WORDS, SCORES>(s, factor, lse, [&](int i) { return dev_of_bits(word[i - WORDS]); });
        } else if (l.p.bias_dtype == STW_U8) {
            add_each<0, SCORES>(s, factor, lse, [&](int) { return 0.0f; });
            DEV_UNROLL_FOR (int i = 0; i < SCORES; ++i)
                s[i] = word[i / 2] & (i % 2 ? 0xFFFF0000u : 0xFFFFu) ? s[i] : -dev_infinity();
        } else {
            add_each<0, SCORES>(s, factor, lse, [&](int i) { return dev_half_of(T(), word[i / 2], i % 2); });
        }
    }
    template <int FIRST, int END, class F>
    DEV_FN void add_each(float (&s)[SCORES], float factor, float2 lse, F &&bias) {
        DEV_UNROLL_FOR (int i = FIRST; i < END; ++i)
            s[i] = fmaf(s[i], factor, (bias(i) - (i & 2 ? lse.y : lse.x)) * DEV_LOG2E);
    }
    /* dBias, where every pair has its own. */
    template <class Step>
    DEV_FN void store_gradient(const stw_attn_launch &l, const attn_work_tile &tile, const Step &it,
                               const float (&ds)[SCORES]) {
        if (!l.bias_direct) return;
        const place x = place::of(l.p.dbias, 2, tile, it);
        if (x.pairs)
            x.template each_pair<2, 0, SCORES>(
                [&](int i, char *at) { *(uint32_t *)(void *)at = dev_pack(T(), ds[i], ds[i + 1]); });
        else
            x.template each<0, SCORES>(
                [&](int i, char *at) { *(uint16_t *)(void *)at = (uint16_t)dev_pack(T(), ds[i], ds[i]); }, [](int) {});
    }
};

#endif
