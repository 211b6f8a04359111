/* SPDX-License-Identifier: MIT
 *
 * The kernels of attention over ranks beside attention itself, the same for both vendors. The including file defines
 * CP_KERNEL(name, threads, parameter, call). All of them are bound by memory: a thread moves STW_CP_VECTOR elements at
 * a time where their rows allow it, else one, and of plain copies STW_CP_AHEAD such vectors. */
#ifndef STW_COMMON_KERNELS_CP_H
#define STW_COMMON_KERNELS_CP_H

#include "common/params/cp.h"

DEV_FN uint64_t cp_words(const void *from, int64_t at) { return ((const uint64_t *)from)[at]; }

/* Elements [at, at + V) as they are. */
template <int V> DEV_FN void cp_copy(void *to, int64_t to_at, const void *from, int64_t from_at, uint32_t dtype) {
    if (dtype == STW_F32) {
        if constexpr (V == 4) dev_store_vector((float *)to + to_at, dev_load_vector((const float *)from + from_at));
        else ((uint32_t *)to)[to_at] = ((const uint32_t *)from)[from_at];
    } else if (dtype == STW_F64) {
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) ((uint64_t *)to)[to_at + i] = cp_words(from, from_at + i);
    } else if constexpr (V == 4) {
        ((uint64_t *)to)[to_at / 4] = cp_words(from, from_at / 4);
    } else {
        ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[from_at];
    }
}

template <int V> DEV_FN void cp_load(float x[V], const void *from, int64_t at, uint32_t dtype) {
    if (dtype == STW_F64) {
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) x[i] = (float)((const double *)from)[at + i];
    } else if constexpr (V == 1) {
        x[0] = dev_load_any(from, at, dtype);
    } else if (dtype == STW_F32) {
        const dev_vector v = dev_load_vector((const float *)from + at);
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) x[i] = dev_of_bits(v.word[i]);
    } else {
        const uint64_t words = cp_words(from, at / 4);
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) {
            const uint16_t bits = (uint16_t)(words >> 16 * i);
            x[i] = dtype == STW_BF16 ? dev_from_bf16(bits) : dev_from_f16(bits);
        }
    }
}

template <int V> DEV_FN void cp_store(void *to, int64_t at, uint32_t dtype, const float x[V]) {
    if constexpr (V == 1) {
        dev_store_any(to, at, dtype, x[0]);
    } else if (dtype == STW_F32) {
        dev_store_vector((float *)to + at,
                         dev_vector{{dev_bits(x[0]), dev_bits(x[1]), dev_bits(x[2]), dev_bits(x[3])}});
    } else {
        const int bf16 = dtype == STW_BF16;
        dev_store_half((uint16_t *)to + at, bf16 ? dev_pack_bf16(x[0], x[1]) : dev_pack_f16(x[0], x[1]),
                       bf16 ? dev_pack_bf16(x[2], x[3]) : dev_pack_f16(x[2], x[3]));
    }
}

template <int V> DEV_FN void cp_cast_step(const stw_cp_cast &p, int64_t to, int64_t from) {
    float x[V];
    if (!p.from) {
        if (p.to_dtype == STW_F64) {
            DEV_UNROLL_FOR (int i = 0; i < V; ++i) ((double *)p.to)[to + i] = p.value;
            return;
        }
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) x[i] = (float)p.value;
    } else if (p.to_dtype == p.from_dtype && !p.adds && !p.more[0]) {
        cp_copy<V>(p.to, to, p.from, from, p.to_dtype);
        return;
    } else {
        cp_load<V>(x, p.from, from, p.from_dtype);
        DEV_UNROLL_FOR (int n = 0; n < 2; ++n)
            if (p.more[n]) {
                float other[V];
                cp_load<V>(other, p.more[n], from, p.from_dtype);
                DEV_UNROLL_FOR (int i = 0; i < V; ++i) x[i] += other[i];
            }
    }
    if (p.adds) {
        float before[V];
        cp_load<V>(before, p.to, to, p.to_dtype);
        DEV_UNROLL_FOR (int i = 0; i < V; ++i) x[i] += before[i];
    }
    cp_store<V>(p.to, to, p.to_dtype, x);
}

typedef struct cp_place {
    int64_t to, from;
} cp_place;

/* The elements of vector n. `index` is as narrow as their count allows: a division of 64 bits takes a hundred
 * instructions. */
template <int V, class index> DEV_FN cp_place cp_place_of(const stw_cp_cast &p, index n, index inner) {
    const index line = n / inner;
    const int64_t at = (int64_t)(n - line * inner) * V; /* elements may be more than `index` holds */
    const index i = line / (index)p.extent[2], h = line - i * (index)p.extent[2];
    const index b = i / (index)p.extent[1], row = i - b * (index)p.extent[1];
    return {(int64_t)b * p.to_stride[0] + (int64_t)row * p.to_stride[1] + (int64_t)h * p.to_stride[2] +
                at * p.to_stride[3],
            (int64_t)b * p.from_stride[0] + (int64_t)row * p.from_stride[1] + (int64_t)h * p.from_stride[2] +
                at * p.from_stride[3]};
}

/* Vectors of 16 bytes as they are: STW_CP_AHEAD loads of a thread are under way at once. */
template <class index> DEV_FN void cp_copy_steps(const stw_cp_cast &p, index count, index inner) {
    const index step = (index)(p.blocks * dev_threads());
    for (index first = (index)(dev_cta() * dev_threads() + dev_thread()); first < count; first += STW_CP_AHEAD * step) {
        dev_vector x[STW_CP_AHEAD];
        int64_t to[STW_CP_AHEAD];
        DEV_UNROLL_FOR (int i = 0; i < STW_CP_AHEAD; ++i) {
            const index n = first + (index)i * step;
            const cp_place place = cp_place_of<STW_CP_VECTOR, index>(p, n < count ? n : first, inner);
            to[i] = place.to;
            x[i] = dev_load_vector((const float *)p.from + place.from);
        }
        DEV_UNROLL_FOR (int i = 0; i < STW_CP_AHEAD; ++i)
            if (first + (index)i * step < count) dev_store_vector((float *)p.to + to[i], x[i]);
    }
}

template <int V, class index> DEV_FN void cp_cast_steps(const stw_cp_cast &p, index count, index inner) {
    const index step = (index)(p.blocks * dev_threads());
    for (index n = (index)(dev_cta() * dev_threads() + dev_thread()); n < count; n += step) {
        const cp_place place = cp_place_of<V, index>(p, n, inner);
        cp_cast_step<V>(p, place.to, place.from);
    }
}

template <class index> DEV_FN void cp_cast_all(const stw_cp_cast &p, index count) {
    const int copies = p.from && p.from_dtype == STW_F32 && p.to_dtype == STW_F32 && !p.adds && !p.more[0];
    if (p.vector != STW_CP_VECTOR) cp_cast_steps<1, index>(p, count, (index)p.extent[3]);
    else if (copies) cp_copy_steps<index>(p, count, (index)(p.extent[3] / STW_CP_VECTOR));
    else cp_cast_steps<STW_CP_VECTOR, index>(p, count, (index)(p.extent[3] / STW_CP_VECTOR));
}

/* A thread counts STW_CP_AHEAD steps of all threads beyond `count`. */
DEV_FN void cp_cast(const stw_cp_cast &p) {
    const int64_t count = p.extent[0] * p.extent[1] * p.extent[2] * (p.extent[3] / p.vector);
    if (count + STW_CP_AHEAD * p.blocks * dev_threads() < INT64_C(1) << 32) cp_cast_all<uint32_t>(p, (uint32_t)count);
    else cp_cast_all<int64_t>(p, count);
}

/* exp(a - b), 0 where a is -inf. */
DEV_FN double cp_weight(double a, double b) { return a == -__builtin_huge_val() ? 0.0 : dev_exp(a - b); }

/* A wave a line, all of whose lanes compute the weights. */
DEV_FN void cp_merge_lines(const stw_cp_merge &p) {
    const int64_t lines = p.batches * p.rows * p.heads, waves = dev_threads() / DEV_WAVE;
    const double none = -__builtin_huge_val();
    for (int64_t line = dev_cta() * waves + dev_wave(); line < lines; line += p.blocks * waves) {
        const int64_t i = line / p.heads, h = line - i * p.heads, b = i / p.rows, row = i - b * p.rows;
        const int64_t at = b * p.to_batch + row * p.heads + h;
        double *lse = (double *)p.lse_sum + at, *out = (double *)p.out_sum + at * p.width;
        const double a = *lse, c = (double)((const float *)p.lse)[b * p.lse_batch + row * p.lse_row + h * p.lse_head];
        dev_wave_sync();         /* lane 0 writes *lse */
        if (c == none) continue; /* the part's keys are all hidden from this row */
        const double most = a > c || a != a ? a : c;
        const double sum = most == -none ? most : most + dev_log(cp_weight(a, most) + cp_weight(c, most));
        const double keep = cp_weight(a, sum), add = cp_weight(c, sum);
        for (int64_t n = dev_lane(); n < p.width; n += DEV_WAVE) {
            double x = keep != 0.0 ? keep * out[n] : 0.0;
            if (p.out) x += add * (double)((const float *)p.out)[line * p.width + n];
            out[n] = x;
        }
        if (dev_lane() == 0) *lse = sum;
    }
}

CP_KERNEL(stw_cp_cast_elements, STW_CP_THREADS, stw_cp_cast, cp_cast(argument))
CP_KERNEL(stw_cp_merge_part, STW_CP_THREADS, stw_cp_merge, cp_merge_lines(argument))

#endif
