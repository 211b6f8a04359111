/* SPDX-License-Identifier: MIT
 *
 * Gradients that are moved and not computed: sum (spread), select, reshape, padded to jagged and back. A CTA
 * takes a chunk of the output, which is cut into runs: elements whose sources follow each other, or are one. Where a
 * vector lies in one run its source is looked for once, else for each element. */
#ifndef STW_COMMON_KERNELS_JAGGED_MAP_H
#define STW_COMMON_KERNELS_JAGGED_MAP_H

#include "common/kernels/jagged_index.h"

/* Where a run of the output comes from: the source of its first element, or nowhere (zeros). */
struct jag_source {
    int64_t first;
    int step;     /* 1, or 0: one source for all            */
    int64_t only; /* -1, or the only element of the run that has one */
};

/* Where an element of the output lies: component b, outer index o, position r. */
struct jag_target {
    int64_t b, o, r, length, used;
};

/* Element k as an index before, at and after a dimension of `size`, which `after` elements follow. */
struct jag_split_index {
    int64_t before, at, after;
    DEV_FN jag_split_index of(int64_t k, int64_t size, int64_t after) {
        jag_split_index s;
        int64_t left = stw_quotient(k, after);
        s.after = k - left * after;
        s.before = stw_quotient(left, size);
        s.at = left - s.before * size;
        return s;
    }
};

/* Row (o, r) of a nested tensor of `outer` times `inner` in storage like that of p. */
DEV_FN int64_t jag_row(const stw_jagged_params &p, bool spread, int64_t outer, const jag_target &t, int64_t o,
                       int64_t r) {
    int64_t first = p.axis[0].starts[t.b];
    return spread ? o * p.axis[0].total + first + r : first * outer + o * t.length + r;
}

/* The run's source; `segment`: number of the run within its row. */
DEV_FN bool jag_source_of(const stw_jagged_params &p, const jag_target &t, int64_t run, int64_t segment,
                          jag_source *s) {
    bool spread = p.slabs > 1;
    if (p.op == STW_JAGGED_FROM_PADDED) {
        if (t.r >= t.used) return false;
        s->first = jag_row(p, spread, p.outer, t, t.o, t.r) * p.inner;
        return true;
    }
    if (t.r >= t.used) return false;
    if (p.op == STW_JAGGED_TO_PADDED) {
        s->first = ((t.b * p.outer + t.o) * p.padded + t.r) * p.inner;
        return t.r < p.padded;
    }
    if (p.op == STW_JAGGED_RESHAPE) { /* runs of both shapes */
        bool grad_spread = p.grad_slabs > 1;
        int64_t i = segment * run, k = (t.o * t.used + t.r) * p.inner + i, o = t.o, r = t.r;
        if (p.grad_inner != p.inner) {
            int64_t row = stw_quotient(k, p.grad_inner);
            i = k - row * p.grad_inner;
            o = stw_quotient(row, t.used);
            r = row - o * t.used;
        }
        s->first = jag_row(p, grad_spread, p.grad_outer, t, o, r) * p.grad_inner + i;
        return true;
    }
    int64_t index = p.index;
    bool select = p.op == STW_JAGGED_SELECT;
    if (p.dim == STW_DIM_COMPONENT) {
        s->first = (t.o * t.used + t.r) * p.inner;
        return t.b == (index < 0 ? index + p.components : index);
    }
    if (p.dim == STW_DIM_RAGGED) {
        if (index < 0) index += t.used;
        s->first = (t.b * p.outer + t.o) * p.inner;
        return !select || t.r == index;
    }
    if (index < 0) index += p.dim_size;
    if (p.dim == STW_DIM_OUTER) {
        jag_split_index k = jag_split_index::of(t.o, p.dim_size, p.dim_after);
        int64_t outer = p.outer / p.dim_size;
        s->first = jag_row(p, spread, outer, t, k.before * p.dim_after + k.after, t.r) * p.inner;
        return !select || k.at == index;
    }
    int64_t row = jag_row(p, spread, p.outer, t, t.o, t.r) * p.dim_before;
    if (p.dim_after == 1) { /* a run is a line */
        s->first = row + segment;
        s->step = 0;
        if (select) s->only = index;
        return true;
    }
    int64_t before = stw_quotient(segment, p.dim_size);
    s->first = (row + before) * p.dim_after;
    return !select || segment - before * p.dim_size == index;
}

template <class T> struct jag_mapper {
    enum { COUNT = jag_vector<T>::COUNT, V = STW_JAGGED_LANE_VECTORS };
    const stw_jagged_launch &l;
    const stw_jagged_params &p;
    jag_chunk c;
    jag_bracket in;
    int64_t per_row, first_run; /* runs of a row; run of the chunk's first element */
    int64_t first_at;           /* ... and that element's place in it              */
    int64_t run;
    uint64_t divide;
    bool dense, plain, flat; /* the output is padded; the row alone tells the source; it is the same element */

    /* Run of position q (not below the chunk's low), and the place in it. */
    DEV_FN int64_t run_of(const jag_mapper &m, int64_t q, int64_t *at) {
        int64_t ahead = q - m.c.low + m.first_at;
        int64_t run = (ahead >> 32) ? ahead / m.run : (int64_t)jag_divide((uint32_t)ahead, m.divide);
        *at = ahead - run * m.run;
        return m.first_run + run;
    }
    DEV_FN bool source(const jag_mapper &m, int64_t run, jag_source *s) {
        const stw_jagged_params &p = m.p;
        jag_target t;
        int64_t row = m.per_row == 1 ? run : stw_quotient(run, m.per_row), segment = run - row * m.per_row;
        s->step = 1;
        s->only = -1;
        if (m.flat) {
            s->first = m.c.base;
            return true;
        }
        if (m.plain) {
            row = (m.c.slab * p.axis[0].total + row) * p.dim_before;
            s->first = p.dim_after == 1 ? row + segment : (row + stw_quotient(segment, p.dim_size)) * p.dim_after;
            s->step = p.dim_after == 1 ? 0 : 1;
            return true;
        }
        if (m.dense) {
            int64_t at = stw_quotient(row, p.padded);
            t.r = row - at * p.padded;
            t.b = stw_quotient(at, p.outer);
            t.o = at - t.b * p.outer;
            t.length = p.axis[0].starts[t.b + 1] - p.axis[0].starts[t.b];
            t.used = p.axis[0].used_clean[t.b];
        } else {
            jag_place at = jag_place::of(p, m.in, m.c.slab, row);
            t = {at.b, at.o, at.r, at.length, at.used};
        }
        return jag_source_of(p, t, m.run, segment, s);
    }
    DEV_FN float element(const jag_mapper &m, int64_t q) {
        int64_t at, run = run_of(m, q, &at);
        jag_source s;
        if (!source(m, run, &s) || (s.only >= 0 && s.only != at)) return 0.0f;
        return dev_float(((const T *)m.p.grad)[s.first + (s.step ? at : 0)]);
    }
    DEV_FN void scheduler(const jag_mapper &m) {
        jag_out<T> out = jag_out<T>::of(m.p.dx, m.p.dx_dtype, (m.p.accumulate & STW_JAGGED_DX) != 0);
        int64_t from = m.c.from + (int64_t)dev_thread() * COUNT;
        bool vectors = jag_out<T>::aligned(out, m.c.base + m.c.from);
        dev_vector v[V];
        bool whole[V];
        DEV_UNROLL_FOR (int k = 0; k < V; ++k) {
            int64_t q = from + k * (int)STW_JAGGED_THREADS * COUNT, at = 0;
            whole[k] = q >= m.c.low && q + COUNT <= m.c.high;
            v[k] = dev_vector{{0, 0, 0, 0}};
            if (!whole[k]) continue;
            int64_t run = run_of(m, q, &at);
            jag_source s;
            if (at + COUNT > m.run) {
                whole[k] = false;
                continue;
            }
            if (!source(m, run, &s)) continue;
            const T *src = (const T *)m.p.grad + s.first + (s.step ? at : 0);
            if (s.only >= 0 && (s.only < at || s.only >= at + COUNT)) continue;
            if (s.step && jag_aligned(src)) v[k] = dev_load_vector(src);
            else if (s.step) v[k] = jag_vector<T>::gather(src, COUNT);
            else {
                float one = dev_float(*src), x[COUNT];
                DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = s.only < 0 || s.only == at + i ? one : 0.0f;
                v[k] = jag_vector<T>::pack(x);
            }
        }
        DEV_UNROLL_FOR (int k = 0; k < V; ++k) {
            int64_t q = from + k * (int)STW_JAGGED_THREADS * COUNT;
            if (whole[k]) {
                float x[COUNT];
                jag_vector<T>::unpack(v[k], x);
                if (vectors) jag_out<T>::vector(out, m.c.base + q, x);
                else jag_out<T>::part(out, m.c.base + q, x, 0, COUNT);
                continue;
            }
            DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i)
                if (q + i >= m.c.low && q + i < m.c.high) jag_out<T>::one(out, m.c.base + q + i, element(m, q + i));
        }
    }
};

template <class T> DEV_FN void jag_map(const stw_jagged_launch &l, char *smem) {
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_mapper<T> m = {l, p, {}, {0, 0}, 1, 0, 0, l.run, l.divide, p.op == STW_JAGGED_FROM_PADDED, false, false};
    if (m.dense) { /* the whole output */
        enum { CHUNK = STW_JAGGED_CHUNK(sizeof(T)) };
        m.c.slab = m.c.base = 0;
        m.c.from = dev_cta() * CHUNK - (p.dx_dtype == STW_F32 ? 0 : jag_lead((const T *)p.dx));
        m.c.low = stw_larger(0, m.c.from);
        m.c.high = stw_smaller(l.slab, m.c.from + CHUNK);
    } else if (p.dx_dtype == STW_F32) m.c = jag_chunk::of(l, (const T *)nullptr, p.inner);
    else m.c = jag_chunk::of(l, (const T *)p.dx, p.inner);
    if (m.c.low >= m.c.high) return;
    bool gaps = *l.gaps != 0;
    m.plain = !gaps && p.op == STW_JAGGED_SUM && p.dim == STW_DIM_INNER;
    m.flat = !gaps && p.op == STW_JAGGED_RESHAPE && ((p.slabs == 1 && p.grad_slabs == 1) || p.grad_inner == p.inner) &&
             p.slabs == p.grad_slabs;
    if (m.flat) {
        m.run = INT64_C(1) << 62;
        m.divide = 1;
    }
    m.per_row = m.flat ? 1 : stw_quotient(p.inner, m.run);
    m.first_run = stw_quotient(m.c.low, m.run);
    m.first_at = m.c.low - m.first_run * m.run;
    if (!m.dense && !m.plain && !m.flat)
        m.in = jag_bracket_of(p, stw_quotient(m.c.low, p.inner), stw_quotient(m.c.high - 1, p.inner), smem);
    jag_mapper<T>::scheduler(m);
}

#endif
