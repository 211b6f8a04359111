/* SPDX-License-Identifier: MIT
 *
 * What the jagged kernels share: outputs of two types, vectors in registers, which component a row belongs to when a
 * CTA has looked for its first and last one, and the chunk of a buffer that a CTA works on. */
#ifndef STW_COMMON_KERNELS_JAGGED_INDEX_H
#define STW_COMMON_KERNELS_JAGGED_INDEX_H

#include "common/device/device.h"
#include "common/params/jagged_launch.h"

/* Elements of T in a vector of 16 bytes. */
template <class T> struct jag_vector {
    enum { COUNT = 16 / (int)sizeof(T) };
    DEV_FN void unpack(const dev_vector &v, float x[COUNT]) {
        if constexpr (sizeof(T) == 4) {
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = dev_of_bits(v.word[i]);
        } else {
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = dev_half_of(T(), v.word[i / 2], i & 1);
        }
    }
    DEV_FN dev_vector pack(const float x[COUNT]) {
        dev_vector v;
        if constexpr (sizeof(T) == 4) {
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) v.word[i] = dev_bits(x[i]);
        } else {
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) v.word[i] = dev_pack(T(), x[2 * i], x[2 * i + 1]);
        }
        return v;
    }
    /* Elements `from`[0..count), others 0; any alignment. */
    DEV_FN dev_vector gather(const T *from, int count) {
        float x[COUNT];
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = i < count ? dev_float(from[i]) : 0.0f;
        return pack(x);
    }
};

/* How many elements past a multiple of 16 bytes this is. */
template <class T> DEV_FN int jag_lead(const T *at) { return (int)(((uintptr_t)at / sizeof(T)) % (16 / sizeof(T))); }
template <class T> DEV_FN bool jag_aligned(const T *at) { return (uintptr_t)at % 16 == 0; }

/* An output of T, or of f32 from T. */
template <class T> struct jag_out {
    enum { COUNT = jag_vector<T>::COUNT };
    void *data;
    bool wide, add; /* f32; added to what is there (then wide) */
    DEV_FN jag_out of(void *data, uint32_t dtype, bool add) { return jag_out{data, dtype == STW_F32, add}; }
    DEV_FN void one(const jag_out &o, int64_t at, float x) {
        if (sizeof(T) == 4 || o.wide) {
            float *to = (float *)o.data + at;
            *to = o.add ? *to + x : x;
        } else dev_set((T *)o.data + at, x);
    }
    /* Whether vectors of elements that start at multiples of COUNT less `lead` may be stored whole. */
    DEV_FN bool aligned(const jag_out &o, int64_t at) {
        return ((uintptr_t)o.data + (uintptr_t)at * (o.wide ? 4 : sizeof(T))) % 16 == 0;
    }
    DEV_FN void vector(const jag_out &o, int64_t at, const float x[COUNT]) {
        if (sizeof(T) == 2 && !o.wide) {
            dev_store_vector((T *)o.data + at, jag_vector<T>::pack(x));
            return;
        }
        float *to = (float *)o.data + at;
        DEV_UNROLL_FOR (int k = 0; k < COUNT; k += 4) {
            float y[4] = {0, 0, 0, 0};
            if (o.add) jag_vector<float>::unpack(dev_load_vector(to + k), y);
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) y[i] = o.add ? y[i] + x[k + i] : x[k + i];
            dev_store_vector(to + k, jag_vector<float>::pack(y));
        }
    }
    /* Elements [low, high) of a vector, one by one. */
    DEV_FN void part(const jag_out &o, int64_t at, const float x[COUNT], int low, int high) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            if (i >= low && i < high) one(o, at + i, x[i]);
    }
};

/* n / d of n < 2^32, with m = 2^64 / d rounded up, 0 for d = 1. */
DEV_FN uint32_t jag_divide(uint32_t n, uint64_t m) {
    uint64_t high = (uint64_t)n * (uint32_t)(m >> 32), low = (uint64_t)n * (uint32_t)m;
    return m ? (uint32_t)((high + (low >> 32)) >> 32) : n;
}

/* Components [low, high] between which the rows of a CTA lie. */
struct jag_bracket {
    int64_t low, high;
};

/* Of component starts times `times`: the last one of low..high that is not after `row`. */
DEV_FN int64_t jag_find(const int64_t *starts, int64_t low, int64_t high, int64_t times, int64_t row) {
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (starts[middle] * times <= row) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* All threads; rows first and last lie in components. */
DEV_FN jag_bracket jag_bracket_of(const stw_jagged_params &p, int64_t first, int64_t last, char *smem) {
    jag_bracket *shared = (jag_bracket *)(void *)smem;
    if (dev_thread() == 0) {
        shared->low = jag_find(p.axis[0].starts, 0, p.components - 1, p.rows_outer, first);
        shared->high = jag_find(p.axis[0].starts, shared->low, p.components - 1, p.rows_outer, last);
    }
    dev_barrier();
    jag_bracket found = *shared;
    dev_barrier();
    return found;
}

/* A row within a slab that lies in a component of the bracket; o is added to that of the slab. */
struct jag_place {
    int64_t b, o, r, length, used;
    DEV_FN jag_place of(const stw_jagged_params &p, const jag_bracket &in, int64_t slab, int64_t row) {
        jag_place at;
        const int64_t *starts = p.axis[0].starts;
        at.b = jag_find(starts, in.low, in.high, p.rows_outer, row);
        int64_t first = starts[at.b];
        at.length = starts[at.b + 1] - first;
        at.used = p.axis[0].used_clean[at.b];
        at.r = row - first * p.rows_outer;
        at.o = slab;
        if (p.rows_outer > 1) {
            at.o = stw_quotient(at.r, at.length);
            at.r -= at.o * at.length;
        }
        return at;
    }
};

/* What a work tile covers of a slab: positions [from, from + chunk), of which [low, high) lie in components. Positions
 * are elements from the slab's first one; `from` is where vectors of the tensor at `aligned` start, so it may be below
 * 0. */
struct jag_chunk {
    int64_t slab, base, from, low, high;
    template <class T> DEV_FN jag_chunk of(const stw_jagged_launch &l, const T *tensor, int64_t width) {
        enum { CHUNK = STW_JAGGED_CHUNK(sizeof(T)) };
        const stw_jagged_params &p = l.p;
        int64_t work_tile = dev_cta();
        jag_chunk c;
        c.slab = p.slabs > 1 ? stw_quotient(work_tile, l.chunks) : 0;
        c.base = c.slab * l.slab;
        c.from = (work_tile - c.slab * l.chunks) * CHUNK - jag_lead(tensor + c.base);
        c.low = stw_larger(p.axis[0].starts[0] * p.rows_outer * width, c.from);
        c.high = stw_smaller(p.axis[0].starts[p.components] * p.rows_outer * width, c.from + CHUNK);
        return c;
    }
};

#endif
