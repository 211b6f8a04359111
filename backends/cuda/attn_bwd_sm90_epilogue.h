/* SPDX-License-Identifier: MIT
 *
 * The end of a work tile in sm90's own main loop: a warp's 16 rows of dK or dV, from the accumulators to the caller's
 * tensor. Whole vectors go by way of 2 KB of shared memory of the warp, 64 columns at a time; everything else as in the
 * shared kernels (common/kernels/attn_bwd_epilogue.h). */
#ifndef STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H
#define STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H

#include "attn_bwd_sm90_config.h"

/* Sums for keys in use, zeros up to the sequence's end. `mine`: the warp's place. ANYWHERE: rows are not whole
 * vectors. */
template <class C, bool ANYWHERE = false>
DEV_FN void sm90_store_vectors(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                               int cols, float scale, char *mine, int wave, int lane) {
    typedef typename C::T T;
    enum { ROWS = 16, PANEL = 64, VECTOR = 8 };
    const int64_t j0 = tile.j0 + ROWS * wave;
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - j0, 0, ROWS);
    const int end = (int)stw_clamp_i64(tile.seq.kv.rows - j0, 0, ROWS);
    /* pieces of 16 bytes are exchanged by the row's number modulo 8: no two lanes meet in a bank */
    const uint32_t put = sm90_shared_address(mine) + lane % 16 * 128;
    const int row = lane / 8, piece = lane % 8;
    T *to = (T *)t.data + dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + j0 + row) + piece * VECTOR;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int panel = 0; panel < C::HD; panel += PANEL) {
        __syncwarp();
        DEV_UNROLL_FOR (int c = panel; c < panel + PANEL && c < C::HD; c += 16) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                w[i] = dev_pack(T(), x[c / 2 + 2 * i] * scale, x[c / 2 + 2 * i + 1] * scale);
            sm90_stmatrix(put + (((c - panel) / 8 + lane / 16) ^ lane % 8) * 16, w);
        }
        __syncwarp();
        if constexpr (ANYWHERE) {
            DEV_ROLLED_FOR (int i = 0; i < ROWS; i += 4) {
                const dev_vector v = dev_load_vector(mine + (row + i) * 128 + (piece ^ (row + i) % 8) * 16);
                uint16_t *at = (uint16_t *)(void *)(to + i * t.seq + panel);
                DEV_UNROLL_FOR (int e = 0; e < VECTOR; ++e)
                    if (row + i < end && panel + piece * VECTOR + e < cols)
                        at[e] = row + i < used ? (uint16_t)(v.word[e / 2] >> (e % 2 * 16)) : (uint16_t)0;
            }
        } else {
            DEV_UNROLL_FOR (int i = 0; i < ROWS; i += 4) {
                dev_vector v = dev_load_vector(mine + (row + i) * 128 + (piece ^ (row + i) % 8) * 16);
                if (row + i < end && panel + piece * VECTOR < cols)
                    dev_store_vector(to + i * t.seq + panel, row + i < used ? v : zero);
            }
        }
    }
}

template <class C>
DEV_FN void sm90_store_keys(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                            uint32_t dtype, bool vectors, int cols, float scale, char *mine, int wave, int lane) {
    typedef dev_acc<typename C::key_split> acc;
    static_assert(sizeof(acc) == sizeof x, "the accumulators of a warpgroup's product are tiles side by side");
    if (vectors) sm90_store_vectors<C>(tile, x, t, cols, scale, mine, wave, lane);
    else attn_epilogue_elements<C>(tile, (const acc &)x, t, dtype, false, false, cols, scale, wave, lane);
}

/* The same in f32, to any address and added to what is there if `adds`, 32 columns at a time. */
template <class C>
DEV_FN void sm90_store_f32(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                           bool vectors, bool adds, int cols, float scale, char *mine, int wave, int lane) {
    enum { ROWS = 16, PANEL = 32, VECTOR = 4, STEPS = ROWS / 4, PANELS = C::HD / PANEL, AHEAD = 2 };
    const int64_t j0 = tile.j0 + ROWS * wave;
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - j0, 0, ROWS);
    const int end = adds ? used : (int)stw_clamp_i64(tile.seq.kv.rows - j0, 0, ROWS);
    /* pieces of 16 bytes are exchanged by the row's number modulo 4: no two lanes of half a warp meet in a bank */
    char *const put = mine + lane / 4 * 128 + lane % 2 * 8;
    const char *const get = mine + lane / 8 * 128 + (lane % 8 ^ lane / 8 * 2) * 16;
    const int put_piece = lane % 4 / 2, put_swap = lane / 4 % 4 * 2;
    const int row = lane / 8, first = lane % 8 * VECTOR;
    float *const to = (float *)t.data + dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + j0 + row) + first;
    const dev_vector zero = {{0, 0, 0, 0}};
    dev_vector there[AHEAD][STEPS]; /* what is there: of this panel and the next */
    auto load = [&](int panel) {
        DEV_UNROLL_FOR (int i = 0; i < STEPS; ++i) {
            there[panel % AHEAD][i] = zero;
            if (adds && vectors && row + 4 * i < end && panel * PANEL + first < cols)
                there[panel % AHEAD][i] = dev_load_vector(to + 4 * i * t.seq + panel * PANEL);
        }
    };
    DEV_UNROLL_FOR (int panel = 0; panel < AHEAD && panel < PANELS; ++panel) load(panel);
    DEV_UNROLL_FOR (int panel = 0; panel < PANELS; ++panel) {
        __syncwarp();
        DEV_UNROLL_FOR (int n = 0; n < PANEL / 8; ++n)
            DEV_UNROLL_FOR (int a = 0; a < 2; ++a) {
                const float *from = x + panel * (PANEL / 2) + 4 * n + 2 * a;
                *(float2 *)(void *)(put + a * 1024 + ((2 * n + put_piece) ^ put_swap) * 16) =
                    make_float2(from[0] * scale, from[1] * scale);
            }
        __syncwarp();
        if (vectors) {
            DEV_UNROLL_FOR (int i = 0; i < STEPS; ++i) {
                dev_vector v = dev_load_vector(get + i * 512), &was = there[panel % AHEAD][i];
                if (row + 4 * i >= used) v = zero;
                if (adds)
                    DEV_UNROLL_FOR (int e = 0; e < VECTOR; ++e)
                        v.word[e] = dev_bits(dev_of_bits(was.word[e]) + dev_of_bits(v.word[e]));
                if (row + 4 * i < end && panel * PANEL + first < cols)
                    dev_store_vector(to + 4 * i * t.seq + panel * PANEL, v);
            }
            if (panel + AHEAD < PANELS) load(panel + AHEAD);
        } else {
            DEV_ROLLED_FOR (int i = 0; i < STEPS; ++i) {
                const dev_vector v = dev_load_vector(get + i * 512);
                float *at = to + 4 * i * t.seq + panel * PANEL;
                DEV_UNROLL_FOR (int e = 0; e < VECTOR; ++e) {
                    const float sum = row + 4 * i < used ? dev_of_bits(v.word[e]) : 0.0f;
                    if (row + 4 * i < end && panel * PANEL + first + e < cols) at[e] = adds ? at[e] + sum : sum;
                }
            }
        }
    }
}

/* dK or dV, `output` of STW_OUT_*, in f32. `drained`: sums of this work tile are there already. */
template <class C>
DEV_FN void sm90_store_sums(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_attn_launch &l,
                            uint32_t output, bool drained, char *mine, int wave, int lane) {
    const stw_attn_params &p = l.p;
    const bool of_dv = output == STW_OUT_DV;
    const bool vectors = (l.vectors & (of_dv ? STW_VECTOR_DV : STW_VECTOR_DK)) != 0;
    sm90_store_f32<C>(tile, x, of_dv ? p.dv : p.dk, vectors, drained || (p.accumulate & output),
                      (int)(of_dv ? p.head_dim_v : p.head_dim_qk), of_dv ? 1.0f : p.scale, mine, wave, lane);
}

/* The same in f32 or in the inputs' type, at the end of a work tile. */
template <class C>
DEV_FN void sm90_store_either(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_attn_launch &l,
                              uint32_t output, bool drained, char *mine, int wave, int lane) {
    const stw_attn_params &p = l.p;
    const bool of_dv = output == STW_OUT_DV;
    const stw_tensor_param &t = of_dv ? p.dv : p.dk;
    const int cols = (int)(of_dv ? p.head_dim_v : p.head_dim_qk);
    const float scale = of_dv ? 1.0f : p.scale;
    if ((of_dv ? p.dv_dtype : p.dk_dtype) == STW_F32) sm90_store_sums<C>(tile, x, l, output, drained, mine, wave, lane);
    else if (l.vectors & (of_dv ? STW_VECTOR_DV : STW_VECTOR_DK))
        sm90_store_vectors<C>(tile, x, t, cols, scale, mine, wave, lane);
    else sm90_store_vectors<C, true>(tile, x, t, cols, scale, mine, wave, lane);
}

/* Asks for what f32 sums of a work tile will be added to: every 128th byte of this warp's rows. */
template <class C>
DEV_FN void sm90_prefetch_sums(const attn_work_tile &tile, const stw_attn_params &p, uint32_t output, int wave,
                               int lane) {
    enum { ROWS = 16, LINE = 32 };
    const bool of_dv = output == STW_OUT_DV;
    const stw_tensor_param &t = of_dv ? p.dv : p.dk;
    const int cols = (int)(of_dv ? p.head_dim_v : p.head_dim_qk);
    const int64_t j0 = tile.j0 + ROWS * wave;
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - j0, 0, ROWS), row = lane % ROWS;
    const float *from = (const float *)t.data + dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + j0 + row);
    if (row < used)
        DEV_ROLLED_FOR (int col = lane / ROWS * LINE; col < cols; col += 2 * LINE) sm90_prefetch(from + col);
}

/* Adds a part's sums of dK or dV to those of the others, in the order of the registers: of four values two are of one
 * key, two of another. A key whose two values are 0 adds nothing. An addition flushes subnormal sums, so a warp of bf16
 * adds all of its values by compare-and-swap where one is below 2^-100, or 0 beside one that is not. What is flushed of
 * larger values is less than their rounding. f16's sums are multiples of 2^-48. `mine`: 2 KB of the warp. */
template <class C> DEV_FN void sm90_add_part(float *to, const float (&x)[C::HD / 2], char *mine, int lane) {
    enum { AT_ONCE = 16, SUBNORMAL = !dev_is_f16<typename C::T>::yes };
    const auto adds = [&](int i) { return x[i] != 0.0f || x[i + 1] != 0.0f; }; /* NaN does */
    bool exact = false;
    if (SUBNORMAL)
        DEV_UNROLL_FOR (int i = 0; i < C::HD / 2; i += 2)
            exact |= (fabsf(x[i]) < 0x1p-100f || fabsf(x[i + 1]) < 0x1p-100f) && adds(i);
    if (!SUBNORMAL || !__any_sync(0xFFFFFFFFu, exact)) {
        DEV_UNROLL_FOR (int i = 0; i < C::HD / 2; i += 4) {
            const bool first = adds(i), second = adds(i + 2);
            float *const at = to + i * C::THREADS;
            sm90_add_four_if(first && second, at, x + i);
            sm90_add_two_if(first && !second, at, x + i);
            sm90_add_two_if(second && !first, at + 2, x + i + 2);
        }
        return;
    }
    float *const kept = (float *)(void *)mine + lane * AT_ONCE;
    DEV_UNROLL_FOR (int first = 0; first < C::HD / 2; first += AT_ONCE) {
        DEV_UNROLL_FOR (int i = 0; i < AT_ONCE; ++i) kept[i] = x[first + i];
        DEV_ROLLED_FOR (int i = 0; i < AT_ONCE; ++i)
            sm90_add_exact(to + (first + i / 4 * 4) * C::THREADS + i % 4, kept[i]);
    }
}

/* Where the sums of dK or dV of a part begin in the workspace: `each` floats for either. */
DEV_FN float *sm90_part_place(const stw_attn_launch &l, const attn_work_tile &tile, int each, bool of_dv, bool adds) {
    const uint32_t head = adds ? (uint32_t)tile.kv_head / l.head_parts : (uint32_t)tile.kv_head,
                   entry = adds ? tile.index / l.row_parts : tile.index;
    return l.part_sums + (((int64_t)head * l.part_entries + entry) * 2 + of_dv) * each;
}

/* Stores the sums of a part there, as they lie in registers, for attn_bwd_postprocess_parts.h, or adds them there for
 * attn_bwd_sm90_rows.h (STW_SM90_PARTS_ADD). */
template <class C>
DEV_FN void sm90_store_part(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_attn_launch &l,
                            uint32_t output, char *mine, int wave, int lane) {
    const bool adds = (l.vectors & STW_SM90_PARTS_ADD) != 0;
    float *const to =
        sm90_part_place(l, tile, C::BN * C::HD, output == STW_OUT_DV, adds) + (wave * DEV_WAVE + lane) * 4;
    if (adds) sm90_add_part<C>(to, x, mine, lane);
    else
        DEV_UNROLL_FOR (int i = 0; i < C::HD / 2; i += 4) sm90_store_four(to + i * C::THREADS, x + i);
}

/* What kernels that are GENERAL make of dK or dV, `output` of STW_OUT_*, which is wanted. */
template <class C>
DEV_FN void sm90_store_general(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_attn_launch &l,
                               uint32_t output, char *mine, int wave, int lane) {
    typedef dev_acc<typename C::key_split> acc;
    const stw_attn_params &p = l.p;
    const bool of_dv = output == STW_OUT_DV;
    if (l.part_sums) {
        sm90_store_part<C>(tile, x, l, output, mine, wave, lane);
        return;
    }
    const stw_tensor_param &t = of_dv ? p.dv : p.dk;
    const uint32_t dtype = of_dv ? p.dv_dtype : p.dk_dtype, cols = of_dv ? p.head_dim_v : p.head_dim_qk;
    const bool vectors = (l.vectors & (of_dv ? STW_VECTOR_DV : STW_VECTOR_DK)) != 0,
               adds = (p.accumulate & output) != 0;
    const float scale = of_dv ? 1.0f : p.scale;
    if (vectors && dtype == p.dtype) sm90_store_vectors<C>(tile, x, t, (int)cols, scale, mine, wave, lane);
    else attn_epilogue_elements<C>(tile, (const acc &)x, t, dtype, adds, vectors, (int)cols, scale, wave, lane);
}

#endif
