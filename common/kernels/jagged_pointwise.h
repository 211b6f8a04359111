/* SPDX-License-Identifier: MIT
 *
 * The pointwise operations, dX = G f'(X), are all alike in memory. A CTA has a chunk of the buffer, and
 * each thread loads four vectors of each input at a time. Where there are gaps, vectors look for their row. */
#ifndef STW_COMMON_KERNELS_JAGGED_POINTWISE_H
#define STW_COMMON_KERNELS_JAGGED_POINTWISE_H

#include "common/kernels/jagged_index.h"

enum { JAG_NONE, JAG_WHOLE, JAG_ZERO, JAG_SINGLE }; /* what is done with a vector */

/* Vector at position q of a chunk. */
template <int COUNT>
DEV_FN int jag_what(const stw_jagged_launch &l, const jag_chunk &c, const jag_bracket &in, bool gaps, bool vectors,
                    int64_t q) {
    if (q >= c.high || q + COUNT <= c.low) return JAG_NONE;
    if (!vectors || q < c.low || q + COUNT > c.high) return JAG_SINGLE;
    if (!gaps) return JAG_WHOLE;
    int64_t row = stw_quotient(q, l.p.inner);
    if (q + COUNT - 1 >= (row + 1) * l.p.inner) return JAG_SINGLE;
    jag_place at = jag_place::of(l.p, in, c.slab, row);
    return at.r < at.used ? JAG_WHOLE : JAG_ZERO;
}

template <class T, class Op, bool FAST>
DEV_FN void jag_pointwise_chunk(const stw_jagged_launch &l, const jag_chunk &c, const jag_bracket &in, bool gaps) {
    enum { COUNT = jag_vector<T>::COUNT, V = STW_JAGGED_LANE_VECTORS };
    const stw_jagged_params &p = l.p;
    const T *g = (const T *)p.grad + c.base, *x = (const T *)p.x + c.base;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    float threshold = (float)p.threshold;
    int64_t from = c.from + (int64_t)dev_thread() * COUNT;
    bool vectors = jag_lead(g) == jag_lead(x) && jag_out<T>::aligned(out, c.base + c.from);
    dev_vector vg[V], vx[V];
    int what[V];
    DEV_UNROLL_FOR (int v = 0; v < V; ++v) {
        int64_t q = from + v * (int)STW_JAGGED_THREADS * COUNT;
        what[v] = jag_what<COUNT>(l, c, in, gaps, vectors, q);
        vg[v] = vx[v] = dev_vector{{0, 0, 0, 0}};
        if (what[v] == JAG_WHOLE) {
            vg[v] = dev_load_vector(g + q);
            vx[v] = dev_load_vector(x + q);
        }
    }
    DEV_UNROLL_FOR (int v = 0; v < V; ++v) {
        int64_t q = from + v * (int)STW_JAGGED_THREADS * COUNT;
        if (what[v] == JAG_WHOLE || what[v] == JAG_ZERO) {
            float a[COUNT], b[COUNT];
            jag_vector<T>::unpack(vg[v], a);
            jag_vector<T>::unpack(vx[v], b);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) a[i] = Op::template of<FAST>(a[i], b[i], threshold);
            jag_out<T>::vector(out, c.base + q, a);
        } else if (what[v] == JAG_SINGLE) {
            DEV_ROLLED_FOR (int i = 0; i < COUNT; ++i) {
                if (q + i < c.low || q + i >= c.high) continue;
                bool live = true;
                if (gaps) {
                    jag_place at = jag_place::of(p, in, c.slab, stw_quotient(q + i, p.inner));
                    live = at.r < at.used;
                }
                jag_out<T>::one(out, c.base + q + i,
                                live ? Op::template of<FAST>(dev_float(g[q + i]), dev_float(x[q + i]), threshold)
                                     : 0.0f);
            }
        }
    }
}

template <class T, class Op> DEV_FN void jag_pointwise(const stw_jagged_launch &l, char *smem) {
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_chunk c = jag_chunk::of(l, (const T *)p.grad, p.inner);
    if (c.low >= c.high) return;
    bool gaps = *l.gaps != 0;
    jag_bracket in = {0, 0};
    if (gaps) in = jag_bracket_of(p, stw_quotient(c.low, p.inner), stw_quotient(c.high - 1, p.inner), smem);
    if (sizeof(T) == 4 || p.dx_dtype == STW_F32) jag_pointwise_chunk<T, Op, false>(l, c, in, gaps);
    else jag_pointwise_chunk<T, Op, true>(l, c, in, gaps);
}

#endif
