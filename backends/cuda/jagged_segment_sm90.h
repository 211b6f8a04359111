/* SPDX-License-Identifier: MIT
 *
 * softmax along the ragged dimension with each input read once. A CTA has 128 rows of a component in a block of
 * columns, a part. It keeps one in registers while the sums of the other parts come, and the next one is in
 * shared memory. All CTAs run at the same time (a cooperative launch) and take the parts in order. A CTA waits for
 * parts of its own component alone, which has at most as many of them in a block of columns as there are CTAs
 * (backends/gpu/jagged.c): the component that comes first is always finished. What is added in which order depends on
 * the component alone. */
#ifndef STW_CUDA_JAGGED_SEGMENT_SM90_H
#define STW_CUDA_JAGGED_SEGMENT_SM90_H

#include "common/device/copy.h"
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
static_assert(JAG_HOLD_ROWS * JAG_HOLD_LANES == (int)STW_JAGGED_THREADS, "a thread a vector");

/* A part in a block of columns. */
struct jag_hold_item {
    int64_t number; /* below 0: none is left            */
    int64_t from;   /* element of its first row and column */
    float *sums;    /* of the component's first part    */
    int32_t *counter;
    int32_t part, joined; /* parts of the component that have rows that take part */
    int32_t used, length; /* rows, from its first one on */
    int32_t columns;      /* from its first one on */
};

/* The first item from `number` on, by steps of the CTAs. One thread. */
template <int COLUMNS> DEV_FN void jag_hold_find(const stw_jagged_launch &l, int64_t number, jag_hold_item *item) {
    const stw_jagged_params &p = l.p;
    const int64_t *starts = p.axis[0].starts;
    int64_t blocks = l.column_blocks, per_outer = l.parts * blocks;
    DEV_ROLLED_FOR (; number < l.work_tiles; number += l.blocks) {
        int64_t o = p.outer > 1 ? stw_quotient(number, per_outer) : 0, at = number - o * per_outer;
        int64_t low = 0, high = p.components - 1;
        while (low < high) {
            int64_t middle = low + (high - low + 1) / 2;
            if (stw_jagged_part_of(starts[middle], middle) * blocks <= at) low = middle;
            else high = middle - 1;
        }
        int64_t first = starts[low], length = starts[low + 1] - first, used = p.axis[0].used_clean[low];
        int64_t part0 = stw_jagged_part_of(first, low), parts = stw_blocks_of(length, STW_JAGGED_SEGMENT_ROWS);
        at -= part0 * blocks;
        if (at < 0 || at >= parts * blocks) continue; /* a number of no part */
        int64_t block = parts > 1 ? stw_quotient(at, parts) : at, part = at - block * parts;
        int64_t row = part * STW_JAGGED_SEGMENT_ROWS, column = block * COLUMNS;
        item->from = stw_jagged_row_number(p.axis[0].total, p.rows_outer, first, length, o, row) * p.inner + column;
        item->sums = l.sums + (o * l.parts + part0) * p.inner + column;
        item->counter = l.counters + (o * p.components + low) * blocks + block;
        item->part = (int32_t)part;
        item->joined = (int32_t)stw_blocks_of(used, STW_JAGGED_SEGMENT_ROWS);
        item->used = (int32_t)stw_clamp_i64(used - row, 0, STW_JAGGED_SEGMENT_ROWS);
        item->length = (int32_t)stw_smaller(length - row, STW_JAGGED_SEGMENT_ROWS);
        item->columns = (int32_t)stw_smaller(p.inner - column, COLUMNS);
        item->number = number;
        return;
    }
    item->number = -1;
}

/* The total of one column of a component with many parts, by several threads. */
template <int COLUMNS>
DEV_FN float jag_hold_add(const float *from, int64_t stride, int parts, bool live, float *shared, int thread) {
    enum { SHARES = (int)STW_JAGGED_THREADS / COLUMNS };
    float sum[4] = {};
    int k = thread / COLUMNS;
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

template <class T> struct jag_hold {
    enum {
        COUNT = jag_vector<T>::COUNT,
        COLUMNS = JAG_HOLD_LANES * COUNT,
        WARPS = (int)STW_JAGGED_THREADS / 32,
        NEXT = 2 * JAG_HOLD_VECTORS * (int)STW_JAGGED_THREADS * 16
    };
    static_assert(NEXT + (WARPS + 2) * COLUMNS * 4 + 16 + 4 * (int)sizeof(jag_hold_item) <= (int)STW_JAGGED_HOLD_SMEM,
                  "shared memory");

    /* Whether this thread's vectors of the item are whole, and stand at multiples of 16 bytes. */
    DEV_FN bool whole(const stw_jagged_params &p, const jag_hold_item &item, int count) {
        return count == COUNT && p.inner % COUNT == 0 && jag_aligned((const T *)p.grad + item.from) &&
               jag_aligned((const T *)p.y + item.from);
    }
    /* Asks for the vectors of an item: each thread for its own. */
    DEV_FN void fetch(const stw_jagged_params &p, const jag_hold_item &item, char *smem) {
        int thread = (int)dev_thread(), lane = thread % JAG_HOLD_LANES, row0 = thread / JAG_HOLD_LANES;
        int count = item.columns - lane * COUNT;
        if (item.number >= 0 && whole(p, item, count < COUNT ? count : COUNT)) {
            int64_t at = item.from + row0 * p.inner + lane * COUNT;
            DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
                if (row0 + i * JAG_HOLD_ROWS >= item.used) continue;
                char *to = smem + (2 * i * (int)STW_JAGGED_THREADS + thread) * 16;
                dev_copy_vector(to, (const T *)p.grad + at + i * JAG_HOLD_ROWS * p.inner, true);
                dev_copy_vector(to + STW_JAGGED_THREADS * 16, (const T *)p.y + at + i * JAG_HOLD_ROWS * p.inner, true);
            }
        }
        dev_copy_commit();
    }

    /* Vector i of both inputs of an item: from where fetch() has put it, or element by element. */
    DEV_FN void vectors(const stw_jagged_params &p, const jag_hold_item &item, const char *smem, int i, int row0,
                        int lane, int count, bool fast, dev_vector *g, dev_vector *y) {
        int r = row0 + i * JAG_HOLD_ROWS;
        *g = *y = dev_vector{{0, 0, 0, 0}};
        if (r >= item.used || !count) return;
        if (fast) {
            const char *from = smem + (2 * i * (int)STW_JAGGED_THREADS + (int)dev_thread()) * 16;
            *g = dev_load_vector(from);
            *y = dev_load_vector(from + STW_JAGGED_THREADS * 16);
        } else {
            int64_t at = item.from + r * p.inner + lane * COUNT;
            *g = jag_vector<T>::gather((const T *)p.grad + at, count);
            *y = jag_vector<T>::gather((const T *)p.y + at, count);
        }
    }
    /* Whether the sums of other parts belong to this one's too. */
    DEV_FN bool meets(const jag_hold_item &item) { return item.joined > 1 && item.part < item.joined; }
    DEV_FN int columns_of(const jag_hold_item &item, int lane) {
        int count = item.columns - lane * COUNT;
        return count < 0 ? 0 : count > COUNT ? COUNT : count;
    }

    DEV_FN void run(const stw_jagged_launch &l, char *smem) {
        const stw_jagged_params &p = l.p;
        int thread = (int)dev_thread(), lane = thread % JAG_HOLD_LANES, row0 = thread / JAG_HOLD_LANES;
        int column = thread % COLUMNS;
        float *parts_of = (float *)(void *)(smem + NEXT), *totals = parts_of + WARPS * COLUMNS; /* two take turns */
        int *shared_order = (int *)(void *)(totals + 2 * COLUMNS);
        jag_hold_item *items = (jag_hold_item *)(void *)(shared_order + 4); /* four take turns */
        jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
        bool finds = thread == (int)STW_JAGGED_THREADS - 1;
        if (finds) {
            jag_hold_find<COLUMNS>(l, dev_cta(), items);
            jag_hold_find<COLUMNS>(l, items[0].number < 0 ? l.work_tiles : items[0].number + l.blocks, items + 1);
            items[3].number = -1;
        }
        dev_barrier();
        fetch(p, items[0], smem);
        dev_vector vg[JAG_HOLD_VECTORS], vy[JAG_HOLD_VECTORS]; /* of the item before */
        DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) vg[i] = vy[i] = dev_vector{{0, 0, 0, 0}};
        DEV_ROLLED_FOR (int turn = 0;; ++turn) {
            const jag_hold_item &item = items[turn & 3], &next = items[turn + 1 & 3], &before = items[turn + 3 & 3];
            bool some = item.number >= 0, held = before.number >= 0;
            if (!some && !held) break;
            int count = some ? columns_of(item, lane) : 0;
            bool fast = some && whole(p, item, count);
            float *total_of = totals + (turn & 1) * COLUMNS, *total_before = totals + (turn + 1 & 1) * COLUMNS;
            dev_copy_wait();
            {
                float sum[COUNT] = {};
                DEV_UNROLL_2_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
                    dev_vector g, y;
                    float u[COUNT], v[COUNT];
                    if (!some) break;
                    vectors(p, item, smem, i, row0, lane, count, fast, &g, &y);
                    jag_vector<T>::unpack(g, u);
                    jag_vector<T>::unpack(y, v);
                    DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) sum[k] = fmaf(u[k], v[k], sum[k]);
                }
                DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) {
                    sum[k] += dev_shuffle_xor(sum[k], JAG_HOLD_LANES);
                    if (thread % 32 < JAG_HOLD_LANES) parts_of[thread / 32 * COLUMNS + lane * COUNT + k] = sum[k];
                }
            }
            dev_barrier();
            if (thread < COLUMNS && some) {
                float total = 0.0f;
                DEV_UNROLL_FOR (int w = 0; w < WARPS; ++w) total += parts_of[w * COLUMNS + thread];
                total_of[thread] = total;
                if (meets(item)) {
                    if (column < item.columns) item.sums[item.part * p.inner + column] = total;
                    __threadfence();
                }
            }
            if (finds) {
                bool more = next.number >= 0 && some;
                jag_hold_find<COLUMNS>(l, more ? next.number + l.blocks : l.work_tiles, items + (turn + 2 & 3));
            }
            dev_barrier();
            if (some && meets(item)) {
                if (thread == 0) *shared_order = sm90_arrive_gpu(item.counter);
                if (item.joined > JAG_HOLD_FEW) { /* the last part to come adds all of them up */
                    dev_barrier();
                    if (*shared_order == item.joined - 1) {
                        bool live = column < item.columns;
                        float total =
                            jag_hold_add<COLUMNS>(item.sums + column, p.inner, item.joined, live, parts_of, thread);
                        if (thread < COLUMNS) {
                            if (live) item.sums[column] = total;
                            __threadfence();
                        }
                        dev_barrier();
                        if (thread == 0) sm90_arrive_gpu(item.counter);
                    }
                }
            }
            if (held) {
                if (meets(before)) {
                    bool few = before.joined <= JAG_HOLD_FEW;
                    if (thread == 0) sm90_await_gpu(before.counter, before.joined + (few ? 0 : 1));
                    dev_barrier();
                    if (thread < COLUMNS && column < before.columns) {
                        float total = 0.0f;
                        for (int k = 0; k < (few ? before.joined : 1); ++k)
                            total += sm90_load_shared_float(before.sums + k * p.inner + column);
                        total_before[thread] = total;
                    }
                    dev_barrier();
                }
                int columns = columns_of(before, lane);
                float sum[COUNT];
                DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) sum[k] = total_before[lane * COUNT + k];
                DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i) {
                    int r = row0 + i * JAG_HOLD_ROWS;
                    int64_t to = before.from + r * p.inner + lane * COUNT;
                    if (r >= before.length || !columns || (r >= before.used && out.add)) continue;
                    float u[COUNT], v[COUNT];
                    jag_vector<T>::unpack(vg[i], u);
                    jag_vector<T>::unpack(vy[i], v);
                    DEV_UNROLL_FOR (int k = 0; k < COUNT; ++k) u[k] = r < before.used ? v[k] * (u[k] - sum[k]) : 0.0f;
                    if (columns == COUNT && jag_out<T>::aligned(out, to)) jag_out<T>::vector(out, to, u);
                    else jag_out<T>::part(out, to, u, 0, columns);
                }
            }
            if (!some) break;
            DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i)
                vectors(p, item, smem, i, row0, lane, count, fast, &vg[i], &vy[i]);
            DEV_UNROLL_FOR (int i = 0; i < JAG_HOLD_VECTORS; ++i)
                DEV_UNROLL_FOR (int k = 0; k < 4; ++k) { /* in registers before the next ones come */
                    vg[i].word[k] = (uint32_t)dev_keep((int)vg[i].word[k]);
                    vy[i].word[k] = (uint32_t)dev_keep((int)vy[i].word[k]);
                }
            fetch(p, next, smem);
        }
        dev_copy_wait();
    }
};

#endif
