/* SPDX-License-Identifier: MIT
 *
 * What features of single pairs do in sm90's own main loops, in the registers of a thread: ALiBi, softcap and a bias
 * (dropout: attn_bwd_sm90_dropout.h). A main loop says by sm90_place which queries and keys a thread holds; value
 * 4 i + 2 a + b is key `key` + 8 a of the work tile and query 8 i + `query` + b of the block, as wgmma lays out S^T. */
#ifndef STW_CUDA_ATTN_BWD_SM90_FEATURES_H
#define STW_CUDA_ATTN_BWD_SM90_FEATURES_H

#include "attn_bwd_sm90_scheduler.h"

/* What a kernel knows besides bands of the mask. SM90_PLAIN kernels have no code of the others. */
enum {
    SM90_PLAIN,
    SM90_ALIBI,
    SM90_SOFTCAP,
    SM90_DROPOUT,
    SM90_BIAS,
    SM90_MASKS,
    SM90_DROPOUT_ALIBI,
    SM90_DROPOUT_BIAS,
    SM90_BIAS_MORE,
    SM90_ALL /* all of these, asked of the call: attn_bwd_sm90_all.h */
};
template <int FEATURE> struct sm90_knows {
    enum {
        ALL = FEATURE == SM90_ALL,
        DROPOUT = FEATURE == SM90_DROPOUT || FEATURE == SM90_DROPOUT_ALIBI || FEATURE == SM90_DROPOUT_BIAS || ALL,
        MASKS = FEATURE == SM90_MASKS || ALL,
        ALIBI = FEATURE == SM90_ALIBI || FEATURE == SM90_DROPOUT_ALIBI,
        BIAS_MORE = FEATURE == SM90_BIAS_MORE, /* also of f32, and a gradient of every pair */
        BIAS = FEATURE == SM90_BIAS || FEATURE == SM90_DROPOUT_BIAS || BIAS_MORE
    };
};

/* The first of a thread's queries and keys; `row_of_keys`: the first of the warp's sixteen keys. */
struct sm90_place {
    int row_of_keys, lane;
    DEV_METHOD int key() const { return row_of_keys + lane / 4; }
    DEV_METHOD int query() const { return lane % 4 * 2; }
};

/* ---- ALiBi ---- */

/* What ALiBi adds to exponent 4 i + 2 a + b, times log2(e): base - |origin[a] + (8 i + b) step|. By distance base is 0.
 * By key the slope's multiple of a key is that of a key at the end of the work tile, base, and of the distance between
 * the two, whose sign is that of the slope; the query does not count. */
struct sm90_alibi {
    float origin[2], step, base;

    /* Query block `block` of head `head`. A work tile that does not exist may be anything: nothing is read by it. */
    DEV_FN sm90_alibi of(const stw_attn_launch &l, const attn_work_tile &tile, int head, int block, int bm,
                         sm90_place at) {
        const stw_attn_params &p = l.p;
        const uint32_t b = min((uint32_t)tile.b, (uint32_t)p.batch - 1),
                       h = min((uint32_t)head, (uint32_t)p.heads_q - 1);
        const float slope = __ldg(p.alibi_slopes + ((int64_t)b * p.alibi_stride_batch + h)) * DEV_LOG2E;
        const bool by_key = (p.features & STW_FEAT_ALIBI_COLUMN) != 0;
        const int end = slope < 0.0f ? 0 : 128; /* keys of a work tile */
        const int64_t corner = tile.j0 - tile.seq.band.shift - (int64_t)block * bm;
        const float first = by_key ? (float)(at.key() - end) : (float)(corner + (at.key() - at.query()));
        return {{first * slope, (first + 8.0f) * slope},
                by_key ? 0.0f : -slope,
                by_key ? (float)(tile.j0 + tile.seq.kv.offset + end) * slope : 0.0f};
    }
};

/* P = 2^(S c - LSE c + what ALiBi adds) in place; the statistics are negative. */
template <int VALUES, int PIECES>
DEV_FN void sm90_exponentials_alibi(float (&s)[VALUES], float2 (&lse)[PIECES], const float &factor,
                                    const sm90_alibi &alibi, bool by_key) {
    if (by_key) {
        DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) lse[i].x += alibi.base, lse[i].y += alibi.base;
    }
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i)
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
            const float distance = fmaf((float)(8 * i + e % 2), alibi.step, alibi.origin[e / 2]);
            float &x = s[4 * i + e];
            x = dev_exp2_fast(fmaf(x, factor, e % 2 ? lse[i].y : lse[i].x) - fabsf(distance));
        }
}

/* The same with dropout, P / (1 - p). The statistics are read as they are wanted: registers lack. */
template <int VALUES>
DEV_FN void sm90_exponentials_alibi_dropped(float (&s)[VALUES], const float *lse, const float &factor,
                                            const float &log_kept, const sm90_alibi &alibi) {
    const float all = alibi.base - log_kept;
    DEV_UNROLL_FOR (int i = 0; i < VALUES / 4; ++i) {
        const float2 both = *(const float2 *)(const void *)(lse + 8 * i);
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
            const float distance = fmaf((float)(8 * i + e % 2), alibi.step, alibi.origin[e / 2]);
            float &x = s[4 * i + e];
            x = dev_exp2_fast(fmaf(x, factor, (e % 2 ? both.y : both.x) + all) - fabsf(distance));
        }
    }
}

/* ---- softcap ---- */

/* tanh of a hidden pair, which no score has. */
#define SM90_CAP_HIDDEN -2.0f

DEV_FN float sm90_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* S -> tanh(S scale / cap) = 1 - 2 / (1 + 2^(S factor)) in place; one reciprocal for four values, of which one that is
 * no number (a hidden pair's, perhaps) must not reach the others. */
template <int VALUES> DEV_FN void sm90_tanh(float (&s)[VALUES], const float &factor) {
    DEV_UNROLL_FOR (int i = 0; i < VALUES; i += 4) {
        float e[4];
        DEV_UNROLL_FOR (int k = 0; k < 4; ++k) e[k] = dev_exp2_fast(fminf(s[i + k] * factor, 25.0f)) + 1.0f;
        const float ab = e[0] * e[1], cd = e[2] * e[3], r = -2.0f * sm90_reciprocal(ab * cd), r_ab = r * cd,
                    r_cd = r * ab;
        DEV_UNROLL_FOR (int k = 0; k < 4; ++k) {
            const float tangent = fmaf(k < 2 ? r_ab : r_cd, e[k ^ 1], 1.0f);
            s[i + k] = s[i + k] == s[i + k] ? tangent : s[i + k];
        }
    }
}

/* tanh -> P to 16 bits, and P times the softcap's derivative in place, all that dS' = P (1 - tanh^2) (dP - delta)
 * wants of it. Pieces of 8 queries from FIRST to END. `cap` times log2(e); the statistics are negative. */
template <class T, bool MASKED, int FIRST, int END, int VALUES, int PIECES>
DEV_FN void sm90_capped_exponentials(uint32_t (&p)[2 * PIECES], float (&s)[VALUES], const float2 (&lse)[PIECES],
                                     const float &cap) {
    DEV_UNROLL_FOR (int i = FIRST; i < END; ++i)
        DEV_UNROLL_FOR (int a = 0; a < 2; ++a) {
            float &t = s[4 * i + 2 * a], &u = s[4 * i + 2 * a + 1];
            float x = dev_exp2_fast(fmaf(t, cap, lse[i].x)), y = dev_exp2_fast(fmaf(u, cap, lse[i].y));
            if (MASKED) x = t == SM90_CAP_HIDDEN ? 0.0f : x, y = u == SM90_CAP_HIDDEN ? 0.0f : y;
            p[2 * i + a] = dev_pack(T(), x, y);
            t = x * fmaf(-t, t, 1.0f);
            u = y * fmaf(-u, u, 1.0f);
        }
}

/* ---- bias ---- */

/* A step's tile of the bias, of the operands' type or BYTES. It waits where dS of that step will be written, and lies
 * as dS does: a warp loads what it will overwrite, so its own lanes are all that meet. A lane has eight keys of each
 * sixteenth query; bytes wait as sixteen in the first of a query's two vectors and become 0 and -infinity there.
 * The statistics are LSE and delta themselves, since the difference to the bias comes first: a bias may put S anywhere
 * (-1e9 in every column of a masked row), and only rounding would be left of either times log2(e). */
template <class C, bool BYTES = true> struct sm90_bias {
    typedef typename C::T T;
    enum { COUNT = C::BM / 16, NEXT = 16 * 128 }; /* vectors of a lane, bytes between them */

    DEV_FN uint32_t vector_at(uint32_t place, int row, int wave, int half) {
        return place + wave / 4 * (C::BM * 128) + row * 128 + ((wave % 4 * 2 + half) ^ (row % 8)) * 16;
    }
    /* What a lane copies of a step's tile. */
    struct part {
        const char *from;
        int rows, keys, size; /* of its first vector on: rows and keys in use; bytes of an element */
        int row, half;
    };
    template <class Iterator>
    DEV_FN part part_of(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, bool live, int wave,
                        int lane) {
        const stw_bias_param &t = l.p.bias;
        const bool bytes = BYTES && l.p.bias_dtype == STW_U8;
        part x;
        x.size = bytes ? 1 : (int)sizeof(T), x.row = lane / 2, x.half = lane % 2;
        /* positions have 30 bits */
        const int row = it.block * C::BM + x.row, key = (int)tile.j0 + 16 * wave + 8 * x.half;
        x.rows = live ? (int)tile.seq.q.used - row : 0;
        x.keys = max(min((int)tile.seq.kv.used - key, bytes ? 16 : 8), 0);
        x.from = (const char *)t.data +
                 ((int)tile.b * t.batch + it.query_head(tile, l) * t.head + row * t.query + key * t.key) * x.size;
        return x;
    }
    /* Rows of the bias are whole vectors. */
    DEV_FN bool fits(const stw_attn_launch &l) {
        const stw_bias_param &t = l.p.bias;
        const uint32_t strides = (uint32_t)t.batch | (uint32_t)t.head | (uint32_t)t.query;
        const uint32_t size = BYTES && l.p.bias_dtype == STW_U8 ? 1 : (uint32_t)sizeof(T);
        return t.key == 1 && (((uint32_t)(uintptr_t)t.data | strides * size) & 15) == 0;
    }
    /* Asynchronously, where it fits. Zeros outside the rows and keys in use, and where the work tile or the step is
     * none (`live`): nothing is read there. */
    template <class Iterator>
    DEV_FN void fetch(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, bool live,
                      uint32_t place, int wave, int lane) {
        const part x = part_of(l, tile, it, live, wave, lane);
        const int64_t next = 16 * l.p.bias.query * x.size;
        const uint32_t to = vector_at(place, x.row, wave, x.half);
        if (BYTES && x.size == 1 && x.half) return;
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            sm90_copy_bytes(to + i * NEXT, x.from + i * next, i * 16 < x.rows ? x.keys * x.size : 0);
    }
    /* At once, element by element. */
    template <class Iterator>
    DEV_FN void load(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, bool live, char *smem,
                     uint32_t place, int wave, int lane) {
        part x = part_of(l, tile, it, live, wave, lane);
        const bool bytes = BYTES && x.size == 1;
        char *one =
            smem + (bytes ? vector_at(place, x.row, wave, 0) + 8 * x.half : vector_at(place, x.row, wave, x.half));
        DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i, one += NEXT, x.from += 16 * l.p.bias.query * x.size)
            DEV_ROLLED_FOR (int e = 0; e < 8; ++e) {
                const bool there = i * 16 < x.rows && e < x.keys;
                const char *element = x.from + e * l.p.bias.key * x.size;
                if (bytes) one[e] = there ? *element : 0;
                else ((uint16_t *)(void *)one)[e] = there ? *(const uint16_t *)(const void *)element : 0;
            }
    }
    /* The tile has arrived. Bytes become 16-bit numbers: 0, or -infinity where they hide. */
    DEV_FN void arrive(const stw_attn_launch &l, uint32_t place, int wave, int lane) {
        const uint32_t hides = dev_is_f16<T>::yes ? 0xFC00FC00u : 0xFF80FF80u;
        dev_copy_wait();
        __syncwarp();
        if (!BYTES || l.p.bias_dtype != STW_U8) return;
        const int row = lane / 2, half = lane % 2;
        const uint32_t from = vector_at(place, row, wave, 0) + 8 * half, to = vector_at(place, row, wave, half);
        uint2 x[COUNT];
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = sm90_load_shared_words(from + i * NEXT);
        __syncwarp();
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            const uint32_t a = zero_bytes(x[i].x), b = zero_bytes(x[i].y);
            sm90_store_shared_vector(to + i * NEXT,
                                     make_uint4(__byte_perm(a, 0, 0x1100) & hides, __byte_perm(a, 0, 0x3322) & hides,
                                                __byte_perm(b, 0, 0x1100) & hides, __byte_perm(b, 0, 0x3322) & hides));
        }
        __syncwarp();
    }
    /* 255 where a byte is 0, else 0. */
    DEV_FN uint32_t zero_bytes(uint32_t x) {
        const uint32_t high = ~(((x & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | x) & 0x80808080u;
        return (high >> 7) * 255u;
    }
    /* S -> S c + (bias - LSE) log2(e) in place, DROPS: less log2(1 - p), `log_kept`. `lse`: of this thread's first
     * query; `from`: as sm90_stmatrix_trans. */
    template <bool DROPS, int VALUES>
    DEV_FN void add(float (&s)[VALUES], const float *lse, const float &factor, const float &log_kept, uint32_t from) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            uint32_t w[4];
            sm90_ldmatrix_trans(w, from + i * NEXT);
            const float2 first = *(const float2 *)(const void *)(lse + 16 * i),
                         second = *(const float2 *)(const void *)(lse + 16 * i + 8);
            DEV_UNROLL_FOR (int e = 0; e < 8; ++e) {
                const float2 both = e < 4 ? first : second;
                const float bias = dev_half_of(T(), w[e / 2], e % 2), x = bias - (e % 2 ? both.y : both.x);
                s[8 * i + e] = fmaf(s[8 * i + e], factor, DROPS ? fmaf(x, DEV_LOG2E, -log_kept) : x * DEV_LOG2E);
            }
        }
    }
    /* P = 0 where bytes hide the pair, whatever S was. */
    template <int VALUES> DEV_FN void hide(float (&s)[VALUES], uint32_t from) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            uint32_t w[4];
            sm90_ldmatrix_trans(w, from + i * NEXT);
            DEV_UNROLL_FOR (int e = 0; e < 8; ++e)
                s[8 * i + e] = w[e / 2] & (e % 2 ? 0xFFFF0000u : 0xFFFFu) ? 0.0f : s[8 * i + e];
        }
    }
};

/* A bias of f32, and a gradient of every pair: a thread reads what belongs to its own scores, since shared memory has
 * no place for f32. Eight lanes meet a sector of a query. dBias of the operands' type leaves from dS's place. */
template <class C> struct sm90_bias_pairs {
    typedef typename C::T T;
    enum { TOGETHER = 16 }; /* loads under way of a thread */
    /* Of this thread's first and second key of its first query; bytes to the next query; queries in use from it on. */
    char *first, *second;
    int next, rows;

    /* Of f32. `live`: the step is one. Else nothing is in use. */
    template <class Iterator>
    DEV_FN sm90_bias_pairs of(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, bool live,
                              int wave, int lane) {
        const stw_bias_param &t = l.p.bias;
        const int row = it.block * C::BM + lane % 4 * 2, col = (int)tile.j0 + 16 * wave + lane / 4; /* 30 bits */
        const int used = (int)tile.seq.kv.used, most = max(used - 1, 0);
        char *const from =
            (char *)t.data + ((int)tile.b * t.batch + it.query_head(tile, l) * t.head + row * t.query) * 4;
        const int rows = live ? (int)tile.seq.q.used - row : 0;
        return {from + min(col, most) * t.key * 4, from + min(col + 8, most) * t.key * 4, (int)t.query * 4, rows};
    }
    /* Of value e = 4 i + 2 a + b: query 8 i + b, key a. */
    DEV_FN int row_of(int e) { return e / 4 * 8 + e % 2; }
    DEV_METHOD char *at(int e, int row) const { return (e & 2 ? second : first) + (int64_t)next * row; }

    /* Asks L2 for the rows of a step: a thread for 32 keys of one. */
    template <class Iterator>
    DEV_FN void prefetch(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, bool live,
                         int thread) {
        const stw_bias_param &t = l.p.bias;
        const int col = (int)tile.j0 + thread % 4 * 32;
        DEV_UNROLL_FOR (int i = 0; i < C::BM; i += C::THREADS / 4) {
            const int row = it.block * C::BM + i + thread / 4;
            if (live && row < (int)tile.seq.q.used && col < (int)tile.seq.kv.used)
                sm90_prefetch((const float *)t.data +
                              ((int)tile.b * t.batch + it.query_head(tile, l) * t.head + row * t.query + col * t.key));
        }
    }
    /* Which query the others read, of values from `begin` on: what is not in use reads what is, its last query, the
     * sequence's last key, of no step the tensor's first number. */
    DEV_METHOD int last_row(const stw_bias_param &t) {
        if (rows < 1) first = second = (char *)t.data, next = 0;
        return rows - 1;
    }
    template <int COUNT> DEV_METHOD void load(float (&bias)[COUNT], int begin, int last) const {
        DEV_UNROLL_FOR (int e = 0; e < COUNT; ++e)
            bias[e] = *(const float *)(const void *)at(e, min(row_of(begin + e), last));
    }
    /* S -> S c + (bias - LSE) log2(e) in place. `lse`: of this thread's first query. */
    template <int VALUES>
    DEV_METHOD void add(float (&s)[VALUES], const stw_bias_param &t, const float *lse, const float &factor) {
        const int last = last_row(t);
        DEV_UNROLL_FOR (int begin = 0; begin < VALUES; begin += TOGETHER) {
            float bias[TOGETHER];
            load(bias, begin, last);
            DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) {
                const float2 both = *(const float2 *)(const void *)(lse + (begin + e) / 4 * 8);
                s[begin + e] = fmaf(s[begin + e], factor, (bias[e] - (e % 2 ? both.y : both.x)) * DEV_LOG2E);
            }
        }
    }
    /* This warp's part of dS, in `place`, to dBias of the operands' type: a lane has eight keys of every 16th row. */
    template <class Iterator>
    DEV_FN void store_tile(const stw_attn_launch &l, const attn_work_tile &tile, const Iterator &it, uint32_t place,
                           int wave, int lane) {
        const stw_bias_param &t = l.p.dbias;
        const int row = lane / 2, half = lane % 2, col = (int)tile.j0 + 16 * wave + 8 * half;
        const int first = it.block * C::BM + row, keys = (int)tile.seq.kv.used - col;
        const bool vectors =
            t.key == 1 && keys >= 8 && (((t.batch | t.head | t.query) * 2 | (int64_t)(uintptr_t)t.data) & 15) == 0;
        uint16_t *to = (uint16_t *)t.data +
                       ((int)tile.b * t.batch + it.query_head(tile, l) * t.head + first * t.query + col * t.key);
        DEV_ROLLED_FOR (int i = 0; i < C::BM; i += 16, to += 16 * t.query) {
            if (first + i >= (int)tile.seq.q.used) break;
            const uint4 x = sm90_load_shared_vector(sm90_bias<C>::vector_at(place, row + i, wave, half));
            if (vectors) {
                *(uint4 *)(void *)to = x;
                continue;
            }
            const uint32_t w[4] = {x.x, x.y, x.z, x.w};
            DEV_UNROLL_FOR (int e = 0; e < 8; ++e)
                if (e < keys) to[e * t.key] = (uint16_t)(w[e / 2] >> (e % 2 * 16));
        }
    }
};

/* dP -> dS = P (dP - delta) in place, 0 where P is 0. */
template <int VALUES, int PIECES>
DEV_FN void sm90_select_gradients(float (&dp)[VALUES], const float (&p)[VALUES], const float2 (&delta)[PIECES]) {
    DEV_UNROLL_FOR (int e = 0; e < VALUES; ++e)
        dp[e] = p[e] != 0.0f ? p[e] * (dp[e] - (e % 2 ? delta[e / 4].y : delta[e / 4].x)) : 0.0f;
}

/* dS = P (dP - delta) to 16 bits, 0 where P is 0. */
template <class T, int VALUES, int PIECES>
DEV_FN void sm90_score_gradients_selected(uint32_t (&ds)[2 * PIECES], const float (&dp)[VALUES],
                                          const float (&p)[VALUES], const float2 (&delta)[PIECES]) {
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i) {
        float x[4];
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
            const float y = p[4 * i + e];
            x[e] = y != 0.0f ? y * (dp[4 * i + e] - (e % 2 ? delta[i].y : delta[i].x)) : 0.0f;
        }
        ds[2 * i] = dev_pack(T(), x[0], x[1]);
        ds[2 * i + 1] = dev_pack(T(), x[2], x[3]);
    }
}

#endif
