/* SPDX-License-Identifier: MIT
 *
 * jagged_map.h's usual case: the output has the gradient's type and is not accumulated; its rows are whole vectors with
 * one source each; a slab has fewer than 2^31 rows, a row fewer than 2^31 elements (backends/gpu/jagged_map.c decides).
 * Each wave writes one long run of the output. A lane's next vector is a wave further, so rows, columns and components
 * are stepped through and not found by division. */
#ifndef STW_COMMON_KERNELS_JAGGED_ROWS_H
#define STW_COMMON_KERNELS_JAGGED_ROWS_H

#include "common/kernels/jagged_index.h"

/* Which row of the gradient a row comes from. */
enum { JAG_FROM_NESTED, JAG_FROM_PADDED, JAG_FROM_SUMS, JAG_FROM_COMPONENT };

/* Where a lane is: a row of the slab, its component, its source. */
template <class T> struct jag_rows {
    enum { COUNT = jag_vector<T>::COUNT, V = STW_JAGGED_LANE_VECTORS, STEP = DEV_WAVE * COUNT };
    uint32_t row, col, step_rows, step_cols; /* of the next vector; to the one after it            */
    uint32_t known;                          /* the row that `source` is of                        */
    uint32_t b, start, end;                  /* the component, its first and end row of the slab   */
    uint32_t first, length, used, slab, inner;
    int form;
    const T *source; /* null: zeros */
    bool dense;

    DEV_FN jag_rows of(const stw_jagged_params &p, int64_t slab, int64_t at, bool dense) {
        jag_rows m;
        int64_t row = stw_quotient(at, p.inner);
        m.row = (uint32_t)row;
        m.col = (uint32_t)(at - row * p.inner);
        m.inner = (uint32_t)p.inner;
        m.step_rows = STEP / m.inner;
        m.step_cols = STEP - m.step_rows * m.inner;
        m.known = m.b = UINT32_MAX;
        m.first = m.start = m.end = m.length = m.used = 0;
        m.slab = (uint32_t)slab;
        m.source = nullptr;
        m.dense = dense;
        m.form = JAG_FROM_NESTED;
        if (p.op == STW_JAGGED_TO_PADDED) m.form = JAG_FROM_PADDED;
        else if (p.op == STW_JAGGED_SUM || p.op == STW_JAGGED_SELECT) {
            if (p.dim == STW_DIM_RAGGED) m.form = JAG_FROM_SUMS;
            else if (p.dim == STW_DIM_COMPONENT) m.form = JAG_FROM_COMPONENT;
        }
        return m;
    }
    DEV_FN void next(jag_rows &m) {
        m.row += m.step_rows;
        m.col += m.step_cols;
        if (m.col >= m.inner) {
            m.col -= m.inner;
            ++m.row;
        }
    }
    /* The component of a row of the nested output: rows only grow; a few steps, then a search. */
    DEV_FN void follow(jag_rows &m, const stw_jagged_params &p) {
        const int64_t *starts = p.axis[0].starts;
        uint32_t b = m.b, times = (uint32_t)p.rows_outer, end = m.end;
        DEV_ROLLED_FOR (int i = 0; i < 4 && b != UINT32_MAX && m.row >= end; ++i)
            end = (uint32_t)starts[++b + 1] * times;
        if (m.row >= end) b = (uint32_t)jag_find(starts, b == UINT32_MAX ? 0 : b, p.components - 1, times, m.row);
        enter(m, p, b, times);
    }
    DEV_FN void enter(jag_rows &m, const stw_jagged_params &p, uint32_t b, uint32_t times) {
        m.b = b;
        m.first = (uint32_t)p.axis[0].starts[b];
        m.length = (uint32_t)p.axis[0].starts[b + 1] - m.first;
        m.used = (uint32_t)p.axis[0].used_clean[b];
        m.start = m.first * times;
        m.end = m.start + m.length * times;
    }
    /* `width`: elements of a row of the gradient. */
    DEV_FN void look(jag_rows &m, const stw_jagged_params &p, int64_t width) {
        uint32_t o = m.slab, r, padded = (uint32_t)p.padded;
        int64_t from, outer = p.outer;
        m.known = m.row;
        m.source = nullptr;
        if (m.dense) {
            uint32_t at = m.row / padded, b = outer > 1 ? at / (uint32_t)outer : at;
            r = m.row - at * padded;
            o = at - b * (uint32_t)outer;
            if (b != m.b) enter(m, p, b, 1);
        } else {
            if (m.row >= m.end) follow(m, p);
            r = m.row - m.start;
            if (p.rows_outer > 1) {
                o = r / m.length;
                r -= o * m.length;
            }
        }
        if (r >= m.used) return;
        if (m.form == JAG_FROM_PADDED) {
            from = (m.b * outer + o) * padded + r;
            if (r >= padded) return;
        } else if (m.form == JAG_FROM_SUMS) {
            int64_t index = p.index < 0 ? p.index + m.used : p.index;
            from = m.b * outer + o;
            if (p.op == STW_JAGGED_SELECT && index != r) return;
        } else if (m.form == JAG_FROM_COMPONENT) {
            from = (int64_t)o * m.used + r;
            if (m.b != (p.index < 0 ? p.index + p.components : p.index)) return;
        } else {
            bool spread = (p.op == STW_JAGGED_RESHAPE ? p.grad_slabs : p.slabs) > 1;
            from = spread ? o * p.axis[0].total + m.first + r : m.first * outer + (int64_t)o * m.length + r;
        }
        m.source = (const T *)p.grad + from * width;
    }
    /* Vector of a row with one source element, for the place `only` alone unless that is below 0. */
    DEV_FN dev_vector spread_one(T one, int only) {
        float x[COUNT], y = dev_float(one);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) x[i] = only < 0 || only == i ? y : 0.0f;
        return jag_vector<T>::pack(x);
    }

    /* SINGLE: a row's source is one element, for the row or (select) for its place `only`; else a row of elements. */
    template <bool SINGLE> DEV_FN void scheduler(const stw_jagged_params &p, jag_rows &m, T *dx, int64_t count) {
        const dev_vector zero = {{0, 0, 0, 0}};
        uint32_t only = (uint32_t)(p.index < 0 ? p.index + p.inner : p.index);
        bool select = p.op == STW_JAGGED_SELECT;
        int64_t width = SINGLE ? 1 : p.inner;
        DEV_ROLLED_FOR (; count > 0; count -= (int64_t)V * STEP, dx += (int64_t)V * STEP) {
            dev_vector v[SINGLE ? 1 : V];
            T one[SINGLE ? V : 1];
            int place[SINGLE ? V : 1]; /* the element of the vector that is not 0: -1 all, COUNT none */
            DEV_UNROLL_FOR (int k = 0; k < V; ++k) {
                bool inside = k * (int)STEP < count;
                if (inside && m.row != m.known) look(m, p, width);
                inside = inside && m.source;
                if constexpr (SINGLE) {
                    uint32_t ahead = only - m.col;
                    place[k] = !inside ? COUNT : !select ? -1 : ahead < (uint32_t)COUNT ? (int)ahead : COUNT;
                    one[k] = T();
                    if (place[k] < COUNT) one[k] = *m.source;
                } else {
                    v[k] = zero;
                    if (inside) v[k] = dev_load_vector(m.source + m.col);
                }
                next(m);
            }
            DEV_UNROLL_FOR (int k = 0; k < V; ++k) {
                if (k * (int)STEP >= count) continue;
                if constexpr (SINGLE) dev_store_vector(dx + k * (int)STEP, spread_one(one[k], place[k]));
                else dev_store_vector(dx + k * (int)STEP, v[k]);
            }
        }
    }
    /* The same, element by element: buffers that are not aligned. */
    DEV_FN void move_unaligned(const stw_jagged_params &p, jag_rows &m, bool single, T *dx, int64_t count) {
        int64_t only = p.op != STW_JAGGED_SELECT ? -1 : p.index < 0 ? p.index + p.inner : p.index;
        DEV_ROLLED_FOR (; count > 0; count -= STEP, dx += STEP) {
            if (m.row != m.known) look(m, p, single ? 1 : p.inner);
            DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i) {
                bool live = m.source && !(single && only >= 0 && only != m.col + i);
                dev_set(dx + i, live ? dev_float(m.source[single ? 0 : m.col + i]) : 0.0f);
            }
            next(m);
        }
    }
};

template <class T> DEV_FN void jag_map_rows(const stw_jagged_launch &l) {
    const stw_jagged_params &p = l.p;
    int64_t work_tile = dev_cta();
    if (work_tile >= l.work_tiles) return;
    bool dense = p.op == STW_JAGGED_FROM_PADDED;
    int64_t slab = !dense && p.slabs > 1 ? stw_quotient(work_tile, l.chunks) : 0;
    int64_t each = l.span / (STW_JAGGED_THREADS / DEV_WAVE); /* of a wave: a multiple of the lanes' vectors */
    int64_t low = (work_tile - slab * l.chunks) * l.span + dev_thread() / DEV_WAVE * each,
            high = stw_smaller(low + each, l.slab);
    if (!dense) {
        low = stw_larger(low, p.axis[0].starts[0] * p.rows_outer * p.inner);
        high = stw_smaller(high, p.axis[0].starts[p.components] * p.rows_outer * p.inner);
    }
    low += (int64_t)(dev_thread() % DEV_WAVE) * jag_vector<T>::COUNT;
    if (low >= high) return;
    jag_rows<T> m = jag_rows<T>::of(p, slab, low, dense);
    T *dx = (T *)p.dx + slab * l.slab + low;
    bool single = (p.op == STW_JAGGED_SUM || p.op == STW_JAGGED_SELECT) && p.dim == STW_DIM_INNER;
    if (!jag_aligned(dx) || (!single && !jag_aligned((const T *)p.grad)))
        jag_rows<T>::move_unaligned(p, m, single, dx, high - low);
    else if (single) jag_rows<T>::template scheduler<true>(p, m, dx, high - low);
    else jag_rows<T>::template scheduler<false>(p, m, dx, high - low);
}

#endif
