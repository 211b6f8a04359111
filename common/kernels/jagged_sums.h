/* SPDX-License-Identifier: MIT
 *
 * Column sums (linear's dbias, layer_norm's dGamma and dBeta), and softmax and log_softmax (LOG) along a ragged
 * dimension: parts of rows are added up by CTAs, each in its order, and the parts by a second kernel. No atomics: the
 * same bits always. */
#ifndef STW_COMMON_KERNELS_JAGGED_SUMS_H
#define STW_COMMON_KERNELS_JAGGED_SUMS_H

#include "common/device/reduce.h"
#include "common/kernels/jagged_lines.h"
#include "common/kernels/jagged_index.h"

/* How the threads of a CTA stand over vectors of columns and rows. */
struct jag_grid {
    int lanes, rows, lane, row; /* lanes * rows = threads */
    DEV_FN jag_grid of(const stw_jagged_launch &l) {
        jag_grid g;
        g.lanes = (int)l.column_lanes;
        g.rows = (int)STW_JAGGED_THREADS / g.lanes;
        g.lane = (int)dev_thread() & (g.lanes - 1);
        g.row = (int)stw_quotient(dev_thread(), g.lanes);
        return g;
    }
};

/* Numbers of the threads that stand over the same columns, added up into those of row 0. All threads. */
template <int COUNT> DEV_FN void jag_add_rows(const jag_grid &g, float x[COUNT], char *smem) {
    float *shared = (float *)(void *)smem;
    dev_barrier();
    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) shared[i * (int)STW_JAGGED_THREADS + (int)dev_thread()] = x[i];
    dev_barrier();
    /* Every thread adds up some columns, so that none waits long. */
    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
        if (g.row) continue;
        float sum = 0.0f;
        for (int k = 0; k < g.rows; ++k) sum += shared[i * (int)STW_JAGGED_THREADS + k * g.lanes + g.lane];
        x[i] = sum;
    }
}

/* Rows [first, end) of a column sum, for the columns from c on. PLAIN: every one takes part, so that all loads of a
 * round go out together. */
template <class T, bool NORM, bool MEAN, bool PLAIN>
DEV_FN void jag_columns_rows(const stw_jagged_launch &l, const jag_grid &grid, const jag_lines &all, int64_t first,
                             int64_t end, int64_t c, float *plain, float *dot) {
    enum { COUNT = jag_vector<T>::COUNT, AHEAD = PLAIN && !NORM ? 8 : 4 };
    const stw_jagged_params &p = l.p;
    int64_t size = l.columns, count = size - c;
    bool aligned = jag_aligned((const T *)p.grad) && (!NORM || jag_aligned((const T *)p.x)) && size % COUNT == 0;
    DEV_ROLLED_FOR (int64_t row = first + grid.row; row < end && count > 0; row += (int64_t)AHEAD * grid.rows) {
        dev_vector vg[AHEAD], vx[AHEAD];
        float mean[AHEAD], rstd[AHEAD];
        DEV_UNROLL_FOR (int k = 0; k < AHEAD; ++k) {
            int64_t line = row + (int64_t)k * grid.rows;
            vg[k] = vx[k] = dev_vector{{0, 0, 0, 0}};
            mean[k] = rstd[k] = 0.0f;
            if (line >= end || (!PLAIN && jag_lines::what(all, l, line) != JAG_LINE_LIVE)) continue;
            const T *g = (const T *)p.grad + line * size + c;
            vg[k] = PLAIN || aligned ? dev_load_vector(g) : jag_vector<T>::gather(g, (int)stw_smaller(count, COUNT));
            if (!NORM) continue;
            const T *x = (const T *)p.x + line * size + c;
            vx[k] = PLAIN || aligned ? dev_load_vector(x) : jag_vector<T>::gather(x, (int)stw_smaller(count, COUNT));
            mean[k] = MEAN ? p.mean[line] : 0.0f, rstd[k] = p.rstd[line];
        }
        DEV_UNROLL_FOR (int k = 0; k < AHEAD; ++k) {
            float g[COUNT], x[COUNT];
            jag_vector<T>::unpack(vg[k], g);
            if (!NORM || MEAN)
                DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) plain[i] += g[i];
            if (!NORM) continue;
            jag_vector<T>::unpack(vx[k], x);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) dot[i] = fmaf(g[i], (x[i] - mean[k]) * rstd[k], dot[i]);
        }
    }
}

/* A part of the column sums: of grad (dbias, dBeta) and, NORM, of grad * h (dGamma); MEAN false: rms_norm, of the
 * latter alone. */
template <class T, bool NORM, bool MEAN> DEV_FN void jag_columns(const stw_jagged_launch &l, char *smem) {
    enum { COUNT = jag_vector<T>::COUNT };
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    const jag_lines all = jag_lines::of(l);
    jag_grid grid = jag_grid::of(l);
    int64_t part = stw_quotient(dev_cta(), l.column_blocks), block = dev_cta() - part * l.column_blocks;
    int64_t c = (block * grid.lanes + grid.lane) * COUNT, size = l.columns, count = size - c;
    int64_t first = part * l.rows, end = stw_smaller(first + l.rows, p.slabs * l.lines);
    float plain[COUNT] = {}, dot[COUNT] = {};
    bool whole = !all.gaps && p.slabs == 1 && p.dim_before <= 1 && size % COUNT == 0 &&
                 jag_aligned((const T *)p.grad) && (!NORM || jag_aligned((const T *)p.x));
    if (whole)
        jag_columns_rows<T, NORM, MEAN, true>(l, grid, all, stw_larger(first, all.low), stw_smaller(end, all.high), c,
                                              plain, dot);
    else jag_columns_rows<T, NORM, MEAN, false>(l, grid, all, first, end, c, plain, dot);
    if (!NORM || MEAN) jag_add_rows<COUNT>(grid, plain, smem);
    if (NORM) jag_add_rows<COUNT>(grid, dot, smem);
    if (grid.row) return;
    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
        if (i < count) {
            if (!NORM || MEAN) l.sums[part * size + c + i] = plain[i];
            if (NORM) l.sums_too[part * size + c + i] = dot[i];
        }
}

/* The parts of a column: dbias or dBeta from `sums`, dGamma from `sums_too`. Threads: 32 columns, 8 shares of parts. */
DEV_FN void jag_columns_end(const stw_jagged_launch &l, char *smem) {
    enum { COLUMNS = 32, SHARES = (int)STW_JAGGED_THREADS / COLUMNS };
    const stw_jagged_params &p = l.p;
    float *shared = (float *)(void *)smem;
    int share = (int)dev_thread() / COLUMNS;
    int64_t c = dev_cta() * COLUMNS + (int)dev_thread() % COLUMNS;
    DEV_ROLLED_FOR (int which = 0; which < 2; ++which) {
        uint32_t bit = which ? STW_JAGGED_DWEIGHT : STW_JAGGED_DBIAS;
        const float *from = which ? l.sums_too : l.sums;
        if (!(p.outputs & bit) || !from) continue;
        float sum = 0.0f;
        if (c < l.columns)
            DEV_UNROLL_2_FOR (int64_t k = share; k < l.parts; k += SHARES) sum += from[k * l.columns + c];
        dev_barrier();
        shared[dev_thread()] = sum;
        dev_barrier();
        if (share || c >= l.columns) continue;
        for (int k = 1; k < SHARES; ++k) sum += shared[k * COLUMNS + (int)dev_thread()];
        void *to = which ? p.dweight : p.dbias;
        uint32_t dtype = which ? p.dweight_dtype : p.dbias_dtype;
        if (p.accumulate & bit) sum += ((const float *)to)[c];
        dev_store_any(to, c, dtype, sum);
    }
}

/* A part of a component along its ragged dimension. A CTA: outer index, part, block of columns. */
struct jag_segment {
    int64_t b, o, c, first, low, used, length, slot; /* `slot`: of the component's first part */
    bool any;
    DEV_FN jag_segment of(const stw_jagged_launch &l, const jag_grid &grid, int count) {
        const stw_jagged_params &p = l.p;
        jag_segment s;
        int64_t rest = stw_quotient(dev_cta(), l.column_blocks);
        s.c = ((dev_cta() - rest * l.column_blocks) * grid.lanes + grid.lane) * count;
        s.o = stw_quotient(rest, l.parts);
        int64_t part = rest - s.o * l.parts, low = 0, high = p.components - 1;
        const int64_t *starts = p.axis[0].starts;
        s.any = part >= stw_jagged_part_of(starts[0], 0);
        while (low < high) {
            int64_t middle = low + (high - low + 1) / 2;
            if (stw_jagged_part_of(starts[middle], middle) <= part) low = middle;
            else high = middle - 1;
        }
        s.b = low;
        s.first = starts[low];
        s.length = starts[low + 1] - s.first;
        s.used = p.axis[0].used_clean[low];
        s.slot = s.o * l.parts + stw_jagged_part_of(s.first, low);
        s.low = (part - stw_jagged_part_of(s.first, low)) * STW_JAGGED_SEGMENT_ROWS;
        s.any = s.any && s.low < s.length;
        return s;
    }
    /* Element of row r. */
    DEV_FN int64_t at(const stw_jagged_params &p, const jag_segment &s, int64_t r) {
        return stw_jagged_row_number(p.axis[0].total, p.rows_outer, s.first, s.length, s.o, r) * p.inner + s.c;
    }
};

/* sum(G*Y), LOG: sum(G), of a part; the second step adds up those of a component into its first one's place. */
template <class T, bool LOG> DEV_FN void jag_segment_part(const stw_jagged_launch &l, char *smem) {
    enum { COUNT = jag_vector<T>::COUNT };
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_grid grid = jag_grid::of(l);
    jag_segment s = jag_segment::of(l, grid, COUNT);
    if (!s.any || s.low >= s.used) return;
    float sum[COUNT] = {};
    int64_t end = stw_smaller(s.low + STW_JAGGED_SEGMENT_ROWS, s.used);
    int count = (int)stw_clamp_i64(p.inner - s.c, 0, COUNT);
    DEV_UNROLL_2_FOR (int64_t r = s.low + grid.row; r < end; r += grid.rows) {
        if (!count) break;
        const T *g = (const T *)p.grad + jag_segment::at(p, s, r), *y = (const T *)p.y + jag_segment::at(p, s, r);
        bool whole = count == COUNT && jag_aligned(g) && jag_aligned(y);
        float a[COUNT], b[COUNT] = {};
        jag_vector<T>::unpack(whole ? dev_load_vector(g) : jag_vector<T>::gather(g, count), a);
        if (!LOG) jag_vector<T>::unpack(whole ? dev_load_vector(y) : jag_vector<T>::gather(y, count), b);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) sum[i] = jag_softmax_add<LOG>(a[i], b[i], sum[i]);
    }
    jag_add_rows<COUNT>(grid, sum, smem);
    if (grid.row) return;
    float *to = l.sums + (s.slot + s.low / STW_JAGGED_SEGMENT_ROWS) * p.inner + s.c;
    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
        if (i < count) to[i] = sum[i];
}

/* A thread a column: components of one part are left alone. A CTA: outer index and component, block of columns. */
DEV_FN void jag_segment_sum(const stw_jagged_launch &l) {
    const stw_jagged_params &p = l.p;
    int64_t rest = stw_quotient(dev_cta(), l.column_blocks), o = stw_quotient(rest, p.components),
            b = rest - o * p.components;
    int64_t c = (dev_cta() - rest * l.column_blocks) * (int)STW_JAGGED_THREADS + dev_thread();
    if (dev_cta() >= l.work_tiles || c >= p.inner) return;
    int64_t parts = stw_blocks_of(p.axis[0].used_clean[b], STW_JAGGED_SEGMENT_ROWS);
    if (parts < 2) return;
    float *at = l.sums + (o * l.parts + stw_jagged_part_of(p.axis[0].starts[b], b)) * p.inner + c, sum[4] = {};
    int64_t k = 0;
    for (; k + 4 <= parts; k += 4)
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) sum[i] += at[(k + i) * p.inner];
    for (; k < parts; ++k) sum[0] += at[k * p.inner];
    *at = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* dX of a part. */
template <class T, bool LOG> DEV_FN void jag_segment_end(const stw_jagged_launch &l) {
    enum { COUNT = jag_vector<T>::COUNT };
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_grid grid = jag_grid::of(l);
    jag_segment s = jag_segment::of(l, grid, COUNT);
    int count = (int)stw_clamp_i64(p.inner - s.c, 0, COUNT);
    if (!s.any || !count) return;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    int64_t end = stw_smaller(s.low + STW_JAGGED_SEGMENT_ROWS, s.length);
    const float *sums = l.sums + s.slot * p.inner + s.c;
    float sum[COUNT];
    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) sum[i] = i < count && s.used > 0 ? sums[i] : 0.0f;
    DEV_UNROLL_2_FOR (int64_t r = s.low + grid.row; r < end; r += grid.rows) {
        int64_t at = jag_segment::at(p, s, r);
        const T *g = (const T *)p.grad + at, *y = (const T *)p.y + at;
        float a[COUNT] = {}, b[COUNT];
        if (r < s.used) {
            bool whole = count == COUNT && jag_aligned(g) && jag_aligned(y);
            jag_vector<T>::unpack(whole ? dev_load_vector(g) : jag_vector<T>::gather(g, count), a);
            jag_vector<T>::unpack(whole ? dev_load_vector(y) : jag_vector<T>::gather(y, count), b);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) a[i] = jag_softmax_of<LOG>(a[i], b[i], sum[i]);
        } else if (out.add) continue;
        if (count == COUNT && jag_out<T>::aligned(out, at)) jag_out<T>::vector(out, at, a);
        else jag_out<T>::part(out, at, a, 0, count);
    }
}

/* layer_norm and rms_norm over the ragged dimension and inner: what a component uses of an outer index is one line.
 * Sums of g and g*h of a part's elements, which follow each other. A CTA: outer index, part. */
template <class T> DEV_FN void jag_norm_ragged_part(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, (int)STW_JAGGED_THREADS, 2> line_of;
    enum { COUNT = line_of::COUNT, STEP = (int)STW_JAGGED_THREADS * 2 * COUNT };
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_segment s = jag_segment::of(l, jag_grid{1, (int)STW_JAGGED_THREADS, 0, 0}, COUNT);
    if (!s.any || s.low >= s.used) return;
    bool rms = p.op == STW_JAGGED_RMS_NORM;
    int64_t first = jag_segment::at(p, s, s.low), row = s.b * p.outer + s.o;
    int64_t size = (stw_smaller(s.low + STW_JAGGED_SEGMENT_ROWS, s.used) - s.low) * p.inner;
    float plain = 0.0f, dot = 0.0f, mean = rms ? 0.0f : p.mean[row], rstd = p.rstd[row];
    DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) {
        dev_vector vg[2], vx[2];
        line_of::load(vg, (const T *)p.grad + first + e, size - e, (int)dev_thread());
        line_of::load(vx, (const T *)p.x + first + e, size - e, (int)dev_thread());
        DEV_UNROLL_FOR (int v = 0; v < 2; ++v) {
            float g[COUNT], x[COUNT];
            jag_vector<T>::unpack(vg[v], g);
            jag_vector<T>::unpack(vx[v], x);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                plain += g[i]; /* past the part g is 0 */
                dot = fmaf(g[i], (x[i] - mean) * rstd, dot);
            }
        }
    }
    jag_line_sums<(int)STW_JAGGED_THREADS>(plain, dot, smem, 0);
    if (dev_thread()) return;
    int64_t slot = s.slot + s.low / STW_JAGGED_SEGMENT_ROWS;
    l.sums[slot] = rms ? 0.0f : plain;
    l.sums_too[slot] = dot;
}

/* dX of a part. Every CTA adds up the parts of its line, all in the same order. */
template <class T> DEV_FN void jag_norm_ragged_end(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, (int)STW_JAGGED_THREADS, 2> line_of;
    enum { COUNT = line_of::COUNT, STEP = (int)STW_JAGGED_THREADS * 2 * COUNT };
    const stw_jagged_params &p = l.p;
    if (dev_cta() >= l.work_tiles) return;
    jag_segment s = jag_segment::of(l, jag_grid{1, (int)STW_JAGGED_THREADS, 0, 0}, COUNT);
    if (!s.any) return;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    int lane = (int)dev_thread();
    int64_t first = jag_segment::at(p, s, s.low), row = s.b * p.outer + s.o;
    int64_t end = stw_smaller(s.low + STW_JAGGED_SEGMENT_ROWS, s.length);
    int64_t size = stw_clamp_i64(s.used - s.low, 0, end - s.low) * p.inner, whole = (end - s.low) * p.inner;
    DEV_ROLLED_FOR (int64_t e = size; e < whole; e += STEP) line_of::clear(out, first + e, whole - e, lane);
    if (!size) return;
    float plain = 0.0f, dot = 0.0f, mean = p.op == STW_JAGGED_RMS_NORM ? 0.0f : p.mean[row], rstd = p.rstd[row];
    int64_t parts = stw_blocks_of(s.used, STW_JAGGED_SEGMENT_ROWS);
    DEV_ROLLED_FOR (int64_t k = lane; k < parts; k += (int)STW_JAGGED_THREADS) {
        plain += l.sums[s.slot + k];
        dot += l.sums_too[s.slot + k];
    }
    jag_line_sums<(int)STW_JAGGED_THREADS>(plain, dot, smem, 0);
    float count = (float)(s.used * p.inner);
    plain /= count;
    dot /= count;
    DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) {
        dev_vector vg[2], vx[2];
        line_of::load(vg, (const T *)p.grad + first + e, size - e, lane);
        line_of::load(vx, (const T *)p.x + first + e, size - e, lane);
        DEV_UNROLL_FOR (int v = 0; v < 2; ++v) {
            float g[COUNT], x[COUNT];
            jag_vector<T>::unpack(vg[v], g);
            jag_vector<T>::unpack(vx[v], x);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) g[i] = rstd * (g[i] - plain - (x[i] - mean) * rstd * dot);
            line_of::store(out, first + e, v, g, size - e, lane);
        }
    }
}

/* softmax along a constant dimension whose elements do not follow each other: a thread a line. Lines are numbered as
 * the elements of the buffer without that dimension. */
template <class T, bool LOG> DEV_FN void jag_softmax_strided(const stw_jagged_launch &l) {
    const stw_jagged_params &p = l.p;
    const int64_t *starts = p.axis[0].starts;
    bool inner = p.dim == STW_DIM_INNER;
    int64_t left = inner ? p.dim_before * p.dim_after : p.inner, q = dev_cta() * (int)STW_JAGGED_THREADS + dev_thread();
    if (q >= l.lines) return;
    int64_t row = stw_quotient(q, left), i = q - row * left, outer = inner ? p.outer : p.dim_before * p.dim_after;
    /* the row of the smaller buffer */
    bool spread = p.slabs > 1;
    int64_t total = p.axis[0].total, o = spread ? stw_quotient(row, total) : 0, times = spread ? 1 : outer;
    int64_t within = row - o * total * (spread ? 1 : 0);
    if (within < starts[0] * times || within >= starts[p.components] * times) return;
    int64_t b = jag_find(starts, 0, p.components - 1, times, within), length = starts[b + 1] - starts[b];
    int64_t r = within - starts[b] * times;
    if (!spread && times > 1) {
        o = stw_quotient(r, length);
        r -= o * length;
    }
    int64_t step, first;
    if (inner) {
        int64_t before = stw_quotient(i, p.dim_after);
        first = stw_jagged_row_number(total, p.rows_outer, starts[b], length, o, r) * p.inner +
                before * p.dim_size * p.dim_after + (i - before * p.dim_after);
        step = p.dim_after;
    } else {
        int64_t before = stw_quotient(o, p.dim_after),
                at = before * p.dim_size * p.dim_after + (o - before * p.dim_after);
        first = stw_jagged_row_number(total, p.rows_outer, starts[b], length, at, r) * p.inner + i;
        step = p.dim_after * (spread ? total : length) * p.inner;
    }
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    const T *g = (const T *)p.grad + first, *y = (const T *)p.y + first;
    bool live = r < p.axis[0].used_clean[b];
    float sum[4] = {};
    int64_t d = 0;
    if (live) {
        for (; d + 4 <= p.dim_size; d += 4)
            DEV_UNROLL_FOR (int k = 0; k < 4; ++k)
                sum[k] = jag_softmax_add<LOG>(dev_float(g[(d + k) * step]), LOG ? 0.0f : dev_float(y[(d + k) * step]),
                                              sum[k]);
        for (; d < p.dim_size; ++d)
            sum[0] = jag_softmax_add<LOG>(dev_float(g[d * step]), LOG ? 0.0f : dev_float(y[d * step]), sum[0]);
        sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    for (d = 0; d < p.dim_size; ++d)
        jag_out<T>::one(out, first + d * step,
                        live ? jag_softmax_of<LOG>(dev_float(g[d * step]), dev_float(y[d * step]), sum[0]) : 0.0f);
}

#endif
