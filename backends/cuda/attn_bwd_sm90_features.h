/* SPDX-License-Identifier: MIT
 *
 * What features of single scores do in sm90's own main loops, in the registers of a thread: ALiBi, softcap and a bias
 * (dropout: attn_bwd_sm90_dropout.h). A main loop says by sm90_place which queries and keys a thread holds; value
 * 4 i + 2 a + b is key `key` + 8 a of the work tile and query 8 i + `query` + b of the block, as wgmma lays out S^T. */
#ifndef STW_CUDA_ATTN_BWD_SM90_FEATURES_H
#define STW_CUDA_ATTN_BWD_SM90_FEATURES_H

#include "attn_bwd_sm90_scheduler.h"

/* What a kernel knows besides masks. SM90_PLAIN kernels have no code of the others. */
enum { SM90_PLAIN, SM90_ALIBI, SM90_SOFTCAP, SM90_DROPOUT, SM90_BIAS };

/* The first of a thread's queries and keys; `row_of_keys`: the first of the warp's sixteen keys. */
struct sm90_place {
    int row_of_keys, lane;
    DEV_METHOD int key() const { return row_of_keys + lane / 4; }
    DEV_METHOD int query() const { return lane % 4 * 2; }
};

/* ---- ALiBi ---- */

/* What ALiBi subtracts is |origin - step * (8 i + b - 8 a)| for value 4 i + 2 a + b, times log2(e). */
struct sm90_alibi {
    float origin, step;

    /* Query block `block` of head `head`. A work tile that does not exist may be anything: nothing is read by it. */
    DEV_FN sm90_alibi of(const stw_attn_launch &l, const attn_work_tile &tile, int head, int block, int bm,
                         sm90_place at) {
        const stw_attn_params &p = l.p;
        const uint32_t b = min((uint32_t)tile.b, (uint32_t)p.batch - 1),
                       h = min((uint32_t)head, (uint32_t)p.heads_q - 1);
        const float slope = __ldg(p.alibi_slopes + ((int64_t)b * p.alibi_stride_batch + h)) * DEV_LOG2E;
        const int64_t corner = tile.j0 - tile.seq.band.shift - (int64_t)block * bm;
        return {(float)(corner + (at.key() - at.query())) * slope, slope};
    }
};

/* P = 2^(S c - LSE c - |distance| slope c) in place; the statistics are negative. */
template <int VALUES, int PIECES>
DEV_FN void sm90_exponentials_alibi(float (&s)[VALUES], const float2 (&lse)[PIECES], const float &factor,
                                    const sm90_alibi &alibi) {
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i)
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) {
            const float distance = fmaf((float)(8 * (e / 2) - 8 * i - e % 2), alibi.step, alibi.origin);
            float &x = s[4 * i + e];
            x = dev_exp2_fast(fmaf(x, factor, e % 2 ? lse[i].y : lse[i].x) - fabsf(distance));
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

/* A step's tile of the bias, of the operands' type or bytes. It waits where dS of that step will be written, and lies
 * as dS does: a warp loads what it will overwrite, so its own lanes are all that meet. A lane has eight keys of each
 * sixteenth query; of bytes sixteen keys lie in the first of a query's two vectors.
 * The statistics are LSE and delta themselves, since the difference to the bias comes first: a bias may put S anywhere
 * (-1e9 in every column of a masked row), and only rounding would be left of either times log2(e). */
template <class C> struct sm90_bias {
    typedef typename C::T T;
    enum { COUNT = C::BM / 16, NEXT = 16 * 128 }; /* vectors of a lane, bytes between them */

    DEV_FN uint32_t vector_at(uint32_t place, int row, int wave, int half) {
        return place + wave / 4 * (C::BM * 128) + row * 128 + ((wave % 4 * 2 + half) ^ (row % 8)) * 16;
    }
    /* One lane asks for a step's tile by the tensor map: zeros outside the tensor, and where the work tile or the step
     * is none (`live`). */
    DEV_FN void ask(const stw_attn_launch &l, const stw_sm90_maps &maps, const attn_work_tile &tile,
                    const sm90_block_iterator &it, bool live, uint32_t place, sm90_mbarrier barrier) {
        const int row = live ? it.block * C::BM : (int)l.p.max_seq_q, key = (int)tile.j0, b = (int)tile.b;
        barrier.expect(C::DS_BYTES);
        sm90_tma_load_panel(place, &maps.bias, key, row, it.head, b, barrier);
        sm90_tma_load_panel(place + C::BM * 128, &maps.bias, key + 64, row, it.head, b, barrier);
    }
    /* Rows of 16 bytes, asynchronously. Zeros outside the rows and keys in use, and where the work tile or the step is
     * none: nothing is read there. */
    DEV_FN void copy(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_block_iterator &it, bool live,
                     uint32_t place, int wave, int lane) {
        const stw_bias_param &t = l.p.bias;
        const int row = it.block * C::BM + lane, key = (int)tile.j0 + 16 * wave; /* positions have 30 bits */
        const int rows = live ? (int)tile.seq.q.used - row : 0, keys = min(max((int)tile.seq.kv.used - key, 0), 16);
        const char *from = (const char *)t.data + ((int)tile.b * t.batch + it.head * t.head + row * t.query + key);
        const uint32_t to = vector_at(place, lane, wave, 0);
        DEV_UNROLL_FOR (int i = 0; i < C::BM; i += 32)
            sm90_copy_bytes(to + i * 128, from + i * t.query, i < rows ? keys : 0);
    }
    /* At once, element by element, any strides. */
    DEV_FN void load(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_block_iterator &it, bool live,
                     char *smem, uint32_t place, int wave, int lane) {
        const stw_bias_param &t = l.p.bias;
        const bool bytes = l.p.bias_dtype == STW_U8;
        const int size = bytes ? 1 : (int)sizeof(T), half = lane % 2;
        const int row = it.block * C::BM + lane / 2, key = (int)tile.j0 + 16 * wave + 8 * half;
        const int rows = live ? (int)tile.seq.q.used - row : 0, keys = (int)tile.seq.kv.used - key;
        const char *from =
            (const char *)t.data + ((int)tile.b * t.batch + it.head * t.head + row * t.query + key * t.key) * size;
        char *one = smem + vector_at(place, lane / 2, wave, bytes ? 0 : half) + (bytes ? 8 * half : 0);
        DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i, one += NEXT, from += 16 * t.query * size)
            DEV_ROLLED_FOR (int e = 0; e < 8; ++e) {
                const bool there = i * 16 < rows && e < keys;
                const char *element = from + e * t.key * size;
                if (bytes) one[e] = there ? *element : 0;
                else ((uint16_t *)(void *)one)[e] = there ? *(const uint16_t *)(const void *)element : 0;
            }
    }
    /* The tile has arrived. */
    DEV_FN void arrive() {
        dev_copy_wait();
        __syncwarp();
    }
    /* One lane has dS of a step written to dBias by its tensor map, but for what lies outside the tensor. */
    DEV_FN void give(const stw_sm90_maps &maps, const attn_work_tile &tile, const sm90_block_iterator &it,
                     uint32_t place) {
        const int row = it.block * C::BM, key = (int)tile.j0, b = (int)tile.b;
        sm90_tma_store_panel(&maps.dbias, place, key, row, it.head, b);
        sm90_tma_store_panel(&maps.dbias, place + C::BM * 128, key + 64, row, it.head, b);
        sm90_bulk_commit();
    }
    /* The same of a warp's own keys, element by element. */
    DEV_FN void store(const stw_attn_launch &l, const attn_work_tile &tile, const sm90_block_iterator &it,
                      const char *smem, uint32_t place, int wave, int lane) {
        const stw_bias_param &t = l.p.dbias;
        const int row = it.block * C::BM + lane / 2, key = (int)tile.j0 + 16 * wave + 8 * (lane % 2);
        const int rows = (int)l.p.max_seq_q - row, keys = (int)l.p.max_seq_kv - key;
        const char *from = smem + vector_at(place, lane / 2, wave, lane % 2);
        uint16_t *to = (uint16_t *)t.data + (tile.b * t.batch + it.head * t.head + row * t.query + key * t.key);
        __syncwarp();
        DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i, from += NEXT, to += 16 * t.query)
            DEV_ROLLED_FOR (int e = 0; e < 8; ++e)
                if (i * 16 < rows && e < keys) to[e * t.key] = ((const uint16_t *)(const void *)from)[e];
    }
    /* S -> S c + (bias - LSE) log2(e) in place. `lse`: of this thread's first query; `from`: as sm90_stmatrix_trans. */
    template <int VALUES> DEV_FN void add(float (&s)[VALUES], const float *lse, const float &factor, uint32_t from) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            uint32_t w[4];
            sm90_ldmatrix_trans(w, from + i * NEXT);
            const float2 first = *(const float2 *)(const void *)(lse + 16 * i),
                         second = *(const float2 *)(const void *)(lse + 16 * i + 8);
            DEV_UNROLL_FOR (int e = 0; e < 8; ++e) {
                const float2 both = e < 4 ? first : second;
                const float bias = dev_half_of(T(), w[e / 2], e % 2);
                s[8 * i + e] = fmaf(s[8 * i + e], factor, (bias - (e % 2 ? both.y : both.x)) * DEV_LOG2E);
            }
        }
    }
    /* S -> S c - LSE log2(e) in place: bytes add nothing. */
    template <int VALUES> DEV_FN void add_none(float (&s)[VALUES], const float *lse, const float &factor) {
        DEV_UNROLL_FOR (int i = 0; i < VALUES; i += 4) {
            const float2 x = *(const float2 *)(const void *)(lse + 2 * i);
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e) s[i + e] = fmaf(s[i + e], factor, (e % 2 ? x.y : x.x) * -DEV_LOG2E);
        }
    }
    /* Bit 7 of a byte is set where the byte is 0. */
    DEV_FN uint32_t zero_bytes(uint32_t x) { return ~(((x & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | x) & 0x80808080u; }
    /* P = 0 where bytes hide the pair, whatever S was. Of a matrix a lane has two keys beside each other of two
     * queries, a bit each in a word for 64 queries; it wants two keys eight apart, which two other lanes have. */
    template <int VALUES> DEV_FN void hide(float (&s)[VALUES], uint32_t place, int wave, int lane) {
        DEV_UNROLL_FOR (int w = 0; w < C::BM / 64; ++w) {
            uint32_t bits = 0;
            DEV_UNROLL_FOR (int half = 0; half < 2; ++half) {
                uint32_t x[4];
                sm90_ldmatrix_trans(x, vector_at(place, w * 64 + half * 32 + lane, wave, 0));
                DEV_UNROLL_FOR (int m = 0; m < 4; ++m) bits |= zero_bytes(x[m]) >> (7 - 4 * half - m);
            }
            const int from = lane / 8 * 4 + lane % 4, odd = lane / 4 % 2 * 8;
            const uint32_t first = dev_shuffle(bits, from) >> odd, second = dev_shuffle(bits, from + 16) >> odd;
            DEV_UNROLL_FOR (int i = 0; i < 8; ++i)
                DEV_UNROLL_FOR (int b = 0; b < 2; ++b) {
                    float &x = s[32 * w + 4 * i + b], &y = s[32 * w + 4 * i + 2 + b];
                    x = first & 1u << (16 * b + i) ? 0.0f : x;
                    y = second & 1u << (16 * b + i) ? 0.0f : y;
                }
        }
    }
};

/* Some number of some lane is infinite or none. */
template <int VALUES> DEV_FN bool sm90_any_unusual(const float (&x)[VALUES]) {
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    DEV_UNROLL_FOR (int i = 0; i < VALUES; i += 4) {
        a = fmaf(x[i], 0.0f, a);
        b = fmaf(x[i + 1], 0.0f, b);
        c = fmaf(x[i + 2], 0.0f, c);
        d = fmaf(x[i + 3], 0.0f, d);
    }
    return dev_uniform(__any_sync(0xFFFFFFFFu, !((a + b) + (c + d) == 0.0f))) != 0;
}
/* dS = P (dP - delta) to 16 bits, 0 where P is 0, whatever dP and delta are there: rare, so it is looked for. */
template <class T, int VALUES, int PIECES>
DEV_FN void sm90_score_gradients_selected(uint32_t (&ds)[2 * PIECES], float (&dp)[VALUES], const float (&p)[VALUES],
                                          const float2 (&delta)[PIECES]) {
    DEV_UNROLL_FOR (int i = 0; i < PIECES; ++i)
        DEV_UNROLL_FOR (int e = 0; e < 4; ++e) dp[4 * i + e] -= e % 2 ? delta[i].y : delta[i].x;
    if (sm90_any_unusual(dp)) {
        DEV_UNROLL_FOR (int i = 0; i < VALUES; ++i) dp[i] = p[i] != 0.0f ? dp[i] : 0.0f;
    }
    DEV_UNROLL_FOR (int i = 0; i < VALUES / 2; ++i)
        ds[i] = dev_pack(T(), p[2 * i] * dp[2 * i], p[2 * i + 1] * dp[2 * i + 1]);
}

#endif
