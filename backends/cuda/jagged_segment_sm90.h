/* SPDX-License-Identifier: MIT
 *
 * softmax along the ragged dimension with each input read once: a CTA keeps a part of a component, 128 rows of a block
 * of columns, in registers until the sums of all parts of that component are there. All CTAs run at the same time
 * (a cooperative launch), and take the parts in order. A CTA waits for parts of its own component alone, which has at
 * most as many of them in a block of columns as there are CTAs (backends/gpu/jagged.c): the component that comes first
 * is always finished. What is added in which order depends on the component alone. */
#ifndef STW_CUDA_JAGGED_SEGMENT_SM90_H
#define STW_CUDA_JAGGED_SEGMENT_SM90_H

#include "common/kernels/jagged_index.h"

DEV_FN int sm90_arrive_gpu(int32_t *counter) {
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
/* Until the counter has come to `target`. */
DEV_FN void sm90_await_gpu(const int32_t *counter, int target) {
    int now;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    while (now < target);
}
/* From L2: other CTAs have written it. */
DEV_FN float sm90_load_shared_float(const float *from) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

enum { JAG_HOLD_LANES = STW_JAGGED_HOLD_LANES, JAG_HOLD_ROWS = 16, JAG_HOLD_VECTORS = 8, JAG_HOLD_FEW = 8 };
static_assert(JAG_HOLD_ROWS * JAG_HOLD_VECTORS == STW_JAGGED_SEGMENT_ROWS, "rows of a part");

/* The total of one column of a component with many parts, by several threads. */
template <int COLUMNS>
DEV_FN float jag_hold_add(const float *from, int64_t stride, int64_t parts, bool live, float *shared, int thread) {
    enum { SHARES = (int)STW_JAGGED_THREADS / COLUMNS };
    int share = thread / COLUMNS;
    float sum[4] = {};
    int64_t k = share;
    if (live) {
        DEV_ROLLED_FOR (; k + 3 * SHARES < parts; k += 4 * SHARES)
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) sum[i] += sm90_load_shared_float(from + (k + i * SHARES) * stride);
        DEV_ROLLED_FOR (; k < parts; k += SHARES) sum[0] += sm90_load_shared_float(from + k * stride);
    }
    shared[thread] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    dev_barrier();
    float total = 0.0f;
    DEV_UNROLL_FOR (int i = 0; i < SHARES; ++i) total += shared[i * COLUMNS + thread % COLUMNS];
    return total;
}

template <class T> DEV_FN void jag_segment_hold(const stw_jagged_launch &l, char *smem) {
    enum { COUNT = jag_vector<T>::COUNT, COLUMNS = JAG_HOLD_LANES * COUNT, WARPS = (int)STW_JAGGED_THREADS / 32 };
    const stw_jagged_params &p = l.p;
    const int64_t *starts = p.axis[0].starts;
    int thread = (int)dev_thread(), lane = thread % JAG_HOLD_LANES, row0 = thread / JAG_HOLD_LANES,
        column = thread % COLUMNS;
    float *parts_of = (float *)(void *)smem, *totals = parts_of + WARPS * COLUMNS;
    int64_t blocks = l.column_blocks, per_outer = l.parts * blocks, inner = p.inner;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    DEV_ROLLED_FOR (int64_t item = dev_cta(); item < l.work_tiles; item += l.blocks) {
        int64_t o = p.outer > 1 ? stw_quotient(item, per_outer) : 0, at = item - o * per_outer;
        int64_t low = 0, high = p.components - 1;
        while (low < high) {
            int64_t middle = low + (high - low + 1) / 2;
            if (stw_jagged_part_of(starts[middle], middle) * blocks <= at) low = middle;
            else high = middle - 1;
        }
        int64_t b = low, first = starts[b], length = starts[b + 1] - first, used = p.axis[0].used_clean[b];
        int64_t part0 = stw_jagged_part_of(first, b), parts = stw_blocks_of(length, STW_JAGGED_SEGMENT_ROWS);
        at -= part0 * blocks;
        if (at < 0 || at >= parts * blocks) continue; /* a number of no part */
        int64_t block = parts > 1 ? stw_quotient(at, parts) : at, part = at - block * parts;
        int64_t c0 = block * COLUMNS, c = c0 + lane * COUNT, r = part * STW_JAGGED_SEGMENT_ROWS + row0;
        int count = (int)stw_clamp_i64(inner - c, 0, COUNT);
        int64_t from = stw_jagged_row_number(p.axis[0].total, p.rows_outer, first, length, o, r) * inner + c;
        const T *g = (const T *)p.grad + from, *y = (const T *)p.y + from;
        bool whole = count == COUNT && inner % COUNT == 0 && jag_aligned(g) && jag_aligned(y);
        dev_vector vg[JAG_HOLD_VECTORS], vy[JAG_HOLD_VECTORS];
        DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
            vg[i] = vy[i] = dev_vector{{0, 0, 0, 0}};
            if (r + i * JAG_HOLD_ROWS >= used || !count) continue;
            const T *next_g = g + i * JAG_HOLD_ROWS * inner, *next_y = y + i * JAG_HOLD_ROWS * inner;
            vg[i] = whole ? dev_load_vector(next_g) : jag_vector<T>::gather(next_g, count);
            vy[i] = whole ? dev_load_vector(next_y) : jag_vector<T>::gather(next_y, count);
        }
        float sum[COUNT] = {};
        DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
            float u[COUNT], v[COUNT];
            jag_vector<T>::unpack(vg[i], u);
            jag_vector<T>::unpack(vy[i], v);
            DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) sum[k] = fmaf(u[k], v[k], sum[k]);
        }
        DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) {
            sum[k] += dev_shuffle_xor(sum[k], JAG_HOLD_LANES);
            if (thread % 32 < JAG_HOLD_LANES) parts_of[thread / 32 * COLUMNS + lane * COUNT + k] = sum[k];
        }
        dev_barrier();
        float total = 0.0f;
        if (thread < COLUMNS)
            DEV_UNROLL_FOR (int w = 0; w < WARPS; ++w) total += parts_of[w * COLUMNS + thread];
        int64_t joined = stw_blocks_of(used, STW_JAGGED_SEGMENT_ROWS); /* parts with rows that take part */
        if (joined > 1 && part < joined) {                             /* all threads agree */
            float *sums = l.sums + (o * l.parts + part0) * inner + c0;
            int32_t *counter = l.counters + (o * p.components + b) * blocks + block;
            bool live = c0 + column < inner;
            if (thread < COLUMNS && live) sums[part * inner + column] = total;
            __threadfence();
            dev_barrier();
            int *shared_order = (int *)(void *)(totals + COLUMNS);
            if (thread == 0) {
                int order = sm90_arrive_gpu(counter);
                if (joined <= JAG_HOLD_FEW) sm90_await_gpu(counter, (int)joined);
                *shared_order = order;
            }
            dev_barrier();
            if (joined <= JAG_HOLD_FEW) {
                total = 0.0f;
                if (thread < COLUMNS && live)
                    for (int k = 0; k < joined; ++k) total += sm90_load_shared_float(sums + k * inner + column);
            } else {
                if (*shared_order == (int)joined - 1) {
                    total = jag_hold_add<COLUMNS>(sums + column, inner, joined, live, parts_of, thread);
                    if (thread < COLUMNS && live) sums[column] = total;
                    __threadfence();
                    dev_barrier();
                    if (thread == 0) sm90_arrive_gpu(counter);
                } else {
                    if (thread == 0) sm90_await_gpu(counter, (int)joined + 1);
                    dev_barrier();
                    total = 0.0f;
                    if (thread < COLUMNS && live) total = sm90_load_shared_float(sums + column);
                }
            }
        }
        if (thread < COLUMNS) totals[thread] = total;
        dev_barrier();
        DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) sum[k] = totals[lane * COUNT + k];
        DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
            int64_t row = r + i * JAG_HOLD_ROWS, to = from + i * JAG_HOLD_ROWS * inner;
            if (row >= length || !count || (row >= used && out.add)) continue;
            float u[COUNT], v[COUNT];
            DEV_UNROLL_FOR (int k = 0; k < 4; ++k) { /* unpacked anew: fewer registers */
                vg[i].word[k] = (uint32_t)dev_keep((int)vg[i].word[k]);
                vy[i].word[k] = (uint32_t)dev_keep((int)vy[i].word[k]);
            }
            jag_vector<T>::unpack(vg[i], u);
            jag_vector<T>::unpack(vy[i], v);
            DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) u[k] = row < used ? v[k] * (u[k] - sum[k]) : 0.0f;
            if (count == COUNT && jag_out<T>::aligned(out, to)) jag_out<T>::vector(out, to, u);
            else jag_out<T>::part(out, to, u, 0, count);
        }
    }
}

#endif
