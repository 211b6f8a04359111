/* SPDX-License-Identifier: MIT
 *
 * Products: matmul's dA and dB of all components, linear's dX and dW. A work tile is a tile of one component's result
 * over a part of what is summed: a huge component is many work tiles, a tiny one is one. The first step counts them
 * (jag_prepare_products); CTA i takes numbers i, i + l.blocks and so on. Sums of several parts go to the workspace, and
 * jag_product_end adds them up in their order. */
#ifndef STW_COMMON_KERNELS_JAGGED_PRODUCT_H
#define STW_COMMON_KERNELS_JAGGED_PRODUCT_H

#include "common/device/copy.h"
#include "common/device/mma.h"
#include "common/kernels/jagged_lines.h"
#include "common/kernels/jagged_scan.h"
#include "common/kernels/jagged_index.h"

/* One work tile: C[M,N] += A B^T over a range. Operands are as they are stored; the kernel knows which of them has the
 * summed index as its rows. */
struct jag_work_tile {
    const char *a, *b;
    char *c; /* null: the sums go to `slot` of the parts            */
    int64_t a_stride, b_stride, c_stride;
    int64_t m0, n0;         /* of the tile                                         */
    int64_t m_used, n_used; /* rows and columns that have values                   */
    int64_t m_end, n_end;   /* that are written                                    */
    int64_t k0, k_end;      /* summed                                              */
    int64_t slot;
    int32_t live; /* 0: nothing to do                                    */
};

struct jag_product {
    uint32_t kind, out_dtype, accumulate, swapped;
    void *out;
    const void *a, *b;
    int m_axis, n_axis, k_axis;
    const stw_jagged_matrix_param *am, *bm, *cm;
    /* Of matmul: C as it is stored, [M,N]. */
    DEV_FN jag_product of(const stw_jagged_params &p, uint32_t kind) {
        jag_product t;
        t.kind = kind;
        if (kind == STW_JPRODUCT_DA) {
            t.out = p.dx, t.out_dtype = p.dx_dtype, t.accumulate = p.accumulate & STW_JAGGED_DX;
            t.a = p.grad, t.b = p.other, t.am = &p.grad_matrix, t.bm = &p.other_matrix, t.cm = &p.x_matrix;
            t.m_axis = STW_AXIS_M, t.n_axis = STW_AXIS_K, t.k_axis = STW_AXIS_N;
        } else {
            t.out = p.dother, t.out_dtype = p.dother_dtype, t.accumulate = p.accumulate & STW_JAGGED_DOTHER;
            t.a = p.x, t.b = p.grad, t.am = &p.x_matrix, t.bm = &p.grad_matrix, t.cm = &p.other_matrix;
            t.m_axis = STW_AXIS_K, t.n_axis = STW_AXIS_N, t.k_axis = STW_AXIS_M;
        }
        t.swapped = t.cm->transposed;
        if (t.swapped) {
            const void *left = t.a;
            t.a = t.b, t.b = left;
            const stw_jagged_matrix_param *matrix = t.am;
            t.am = t.bm, t.bm = matrix;
            int axis = t.m_axis;
            t.m_axis = t.n_axis, t.n_axis = axis;
        }
        if (kind == STW_JPRODUCT_DX)
            t.out = p.dx, t.out_dtype = p.dx_dtype, t.accumulate = p.accumulate & STW_JAGGED_DX;
        if (kind == STW_JPRODUCT_DW)
            t.out = p.dweight, t.out_dtype = p.dweight_dtype, t.accumulate = p.accumulate & STW_JAGGED_DWEIGHT;
        return t;
    }
};

DEV_FN const stw_jagged_matrix_param &jag_matrix(const stw_jagged_params &p, int i) {
    return i == 0 ? p.x_matrix : i == 1 ? p.other_matrix : p.grad_matrix;
}

/* Place of a component's matrices, by its clean base. */
DEV_FN stw_jagged_place jag_matrix_place(const stw_jagged_launch &l, const stw_jagged_matrix_param *m, int64_t b) {
    stw_jagged_matrix_param clean = *m;
    if (clean.has_bases) clean.bases = l.bases[m == &l.p.x_matrix ? 0 : m == &l.p.other_matrix ? 1 : 2];
    return stw_jagged_place_of(&l.p, &clean, b);
}

/* How a component's result is cut: tiles and parts. */
struct jag_cut {
    int64_t tiles_m, tiles_n, parts;
    DEV_FN jag_cut of(const stw_jagged_launch &l, const jag_product &t, int64_t b, int64_t part_k) {
        const stw_jagged_params &p = l.p;
        jag_cut c = {0, 0, 0};
        bool present = jag_matrix_place(l, &p.grad_matrix, b).present != 0;
        if (t.kind == STW_JPRODUCT_DA || p.x_matrix.has_bases)
            present = present && jag_matrix_place(l, &p.x_matrix, b).present;
        if (t.kind == STW_JPRODUCT_DB || p.other_matrix.has_bases)
            present = present && jag_matrix_place(l, &p.other_matrix, b).present;
        if (!present) return c;
        stw_jagged_span m = stw_jagged_span_of(&p.axis[t.m_axis], b), n = stw_jagged_span_of(&p.axis[t.n_axis], b);
        c.tiles_m = stw_blocks_of(m.rows, l.tile_m);
        c.tiles_n = stw_blocks_of(n.rows, l.tile_n);
        c.parts = stw_larger(1, stw_blocks_of(stw_jagged_span_of(&p.axis[t.k_axis], b).used, part_k));
        /* Longer than promised: it has more tiles than the workspace has room for parts of. */
        if (m.rows > p.axis[t.m_axis].size || n.rows > p.axis[t.n_axis].size) c.parts = 1;
        return c;
    }
};

/* First step of matmul: makes clean bases, and counts the work tiles and slots before each component. Returns status
 * bits. */
DEV_FN int32_t jag_prepare_products(const stw_jagged_launch &l, jag_scan &s) {
    const stw_jagged_params &p = l.p;
    int32_t bits = 0;
    for (int i = 0; i < 3; ++i) {
        const stw_jagged_matrix_param &m = jag_matrix(p, i);
        if (!m.has_bases) continue;
        jag_start(s, 0);
        for (int64_t at = 0; at < p.components; at += JAG_SCAN) {
            int64_t b = at + dev_thread(), end = 0;
            bool live = b < p.components, good = false;
            stw_jagged_place place = {};
            if (live) {
                place = stw_jagged_place_of(&p, &m, b);
                good = place.present;
                if (good) end = place.first + place.stride * p.outer;
            }
            int64_t before = jag_exclusive_scan<jag_larger>(s, end);
            if (good && m.ordered && end > place.first && place.first < before) good = false;
            if (live) l.bases[i][b] = good ? place.first : -1;
            if (live && !good) bits |= STW_JAGGED_DATA_BASES;
        }
        dev_barrier();
    }
    for (int d = 0; d < 2; ++d) {
        uint32_t kind = d ? STW_JPRODUCT_DB : STW_JPRODUCT_DA;
        if (!(p.outputs & (d ? STW_JAGGED_DOTHER : STW_JAGGED_DX))) continue;
        jag_product t = jag_product::of(p, kind);
        DEV_ROLLED_FOR (int slots = 0; slots < 2; ++slots) {
            int64_t *to = slots ? l.slots[d] : l.tiles[d];
            jag_start(s, 0);
            for (int64_t at = 0; at <= p.components; at += JAG_SCAN) {
                int64_t b = at + dev_thread(), work_tiles = 0;
                if (b < p.components) {
                    jag_cut c = jag_cut::of(l, t, b, l.part_of[d]);
                    work_tiles = p.outer * c.tiles_m * c.tiles_n * c.parts;
                    if (slots && c.parts < 2) work_tiles = 0;
                }
                int64_t before = jag_exclusive_scan<jag_plus>(s, work_tiles);
                if (b <= p.components) to[b] = before;
            }
            dev_barrier();
        }
    }
    return bits;
}

/* What work tile `work_tile` of matmul is. */
DEV_FN void jag_matmul_work_tile(const stw_jagged_launch &l, const jag_product &t, int64_t work_tile, int size,
                                 jag_work_tile *u) {
    const stw_jagged_params &p = l.p;
    const int64_t *tiles = l.tiles[t.kind == STW_JPRODUCT_DB];
    int64_t b = jag_find(tiles, 0, p.components - 1, 1, work_tile);
    jag_cut c = jag_cut::of(l, t, b, l.part_k);
    int64_t local = work_tile - tiles[b], rest = stw_quotient(local, c.tiles_n), tn = local - rest * c.tiles_n;
    int64_t tm_rest = stw_quotient(rest, c.tiles_m), tm = rest - tm_rest * c.tiles_m;
    int64_t o = stw_quotient(tm_rest, c.parts), part = tm_rest - o * c.parts;
    stw_jagged_span m = stw_jagged_span_of(&p.axis[t.m_axis], b), n = stw_jagged_span_of(&p.axis[t.n_axis], b),
                    k = stw_jagged_span_of(&p.axis[t.k_axis], b);
    stw_jagged_place pa = jag_matrix_place(l, t.am, b), pb = jag_matrix_place(l, t.bm, b),
                     pc = jag_matrix_place(l, t.cm, b);
    u->a = (const char *)t.a + (pa.first + o * pa.stride) * size;
    u->b = (const char *)t.b + (pb.first + o * pb.stride) * size;
    u->a_stride = t.am->transposed ? pa.col : pa.row;
    u->b_stride = t.bm->transposed ? pb.col : pb.row;
    u->c = (char *)t.out + (pc.first + o * pc.stride) * (t.out_dtype == STW_F32 ? 4 : size);
    u->c_stride = t.cm->transposed ? pc.col : pc.row;
    u->m0 = tm * l.tile_m;
    u->n0 = tn * l.tile_n;
    u->m_used = m.used, u->n_used = n.used;
    u->m_end = m.rows, u->n_end = n.rows;
    u->k0 = part * l.part_k;
    u->k_end = c.parts > 1 ? stw_smaller(u->k0 + l.part_k, k.used) : k.used;
    u->slot = -1;
    if (c.parts > 1) {
        u->c = nullptr;
        u->slot = l.slots[t.kind == STW_JPRODUCT_DB][b] + local;
    }
}

/* The same of linear: rows are those of the buffer. */
DEV_FN void jag_linear_work_tile(const stw_jagged_launch &l, const jag_product &t, int64_t work_tile, int size,
                                 jag_work_tile *u) {
    const stw_jagged_params &p = l.p;
    int64_t rows = p.slabs * l.lines, inner = p.inner, features = p.out_features;
    bool dx = t.kind == STW_JPRODUCT_DX;
    int64_t m = dx ? rows : features, tiles_n = stw_blocks_of(inner, l.tile_n), tiles_m = stw_blocks_of(m, l.tile_m);
    int64_t rest = stw_quotient(work_tile, tiles_n), part = stw_quotient(rest, tiles_m);
    u->n0 = (work_tile - rest * tiles_n) * l.tile_n;
    u->m0 = (rest - part * tiles_m) * l.tile_m;
    u->m_used = u->m_end = m;
    u->n_used = u->n_end = inner;
    u->a = (const char *)p.grad;
    u->b = (const char *)(dx ? p.weight : p.x);
    u->c = (char *)t.out;
    u->a_stride = features;
    u->b_stride = u->c_stride = inner;
    u->k0 = part * l.part_k;
    u->k_end = stw_smaller(u->k0 + l.part_k, dx ? features : rows);
    u->slot = -1;
    if (l.parts > 1) {
        u->c = nullptr;
        u->slot = work_tile;
    }
    (void)size;
}

/* The ranges that are summed, cut into steps of STEP: all of k0..k_end, or of linear's dW the rows that take part. */
template <int STEP> struct jag_steps {
    int64_t at, end, last; /* next step; of the range; of all */
    bool rows;
    DEV_FN jag_steps of(const jag_work_tile &u, bool rows) {
        return jag_steps{u.k0, rows ? u.k0 : u.k_end, u.k_end, rows};
    }
    /* The next step [*from, *to), or false. */
    DEV_FN bool next(jag_steps &s, const stw_jagged_launch &l, int64_t *from, int64_t *to) {
        const stw_jagged_params &p = l.p;
        if (s.at + STEP <= s.end) {
            *from = s.at;
            *to = s.at += STEP;
            return true;
        }
        while (s.rows && s.at >= s.end && s.at < s.last) { /* the next rows that take part */
            const jag_lines all = jag_lines::of(l);
            int64_t slab = p.slabs > 1 ? stw_quotient(s.at, l.lines) : 0, first = slab * l.lines, row = s.at - first;
            if (row < all.low) s.at = s.end = first + stw_smaller(all.low, l.lines);
            else if (row >= all.high) s.at = s.end = first + l.lines;
            else if (!all.gaps) s.end = stw_smaller(first + all.high, s.last);
            else {
                jag_place at = jag_place::of(p, jag_bracket{0, p.components - 1}, slab, row);
                if (at.r < at.used) s.end = stw_smaller(s.at + at.used - at.r, s.last);
                else s.at = s.end = s.at + at.length - at.r;
            }
        }
        if (s.at >= s.end) return false;
        *from = s.at;
        *to = stw_smaller(s.at + STEP, s.end);
        s.at = *to;
        return true;
    }
};

template <class T_, bool A_BY_K_, bool B_BY_K_, int BM_, int BN_, int BK_, int STAGES_, int WAVES_>
struct jag_product_config {
    typedef T_ T;
    enum {
        A_BY_K = A_BY_K_,
        B_BY_K = B_BY_K_,
        BM = BM_,
        BN = BN_,
        BK = BK_,
        STAGES = STAGES_,
        WAVES = WAVES_,
        THREADS = WAVES_ * DEV_WAVE
    };
    typedef dev_tile<T, A_BY_K_ ? BK_ : BM_, A_BY_K_ ? BM_ : BK_> tile_a;
    typedef dev_tile<T, B_BY_K_ ? BK_ : BN_, B_BY_K_ ? BN_ : BK_> tile_b;
    typedef dev_split<T, BM_, BN_, WAVES_> split;
    enum { BYTES_A = tile_a::BYTES, BYTES_B = tile_b::BYTES, STAGE = BYTES_A + BYTES_B, SMEM = STAGES_ * STAGE + 256 };
};

/* One operand's tile: `m0` of `m_used` along, [from, to) of what is summed. */
template <class Tile, bool BY_K, int THREADS>
DEV_FN void jag_fetch(char *smem, const char *data, int64_t stride, int64_t m0, int64_t m_used, int64_t from,
                      int64_t to) {
    typedef typename Tile::type T;
    enum { VECTOR = 16 / (int)sizeof(T) };
    T *tile = (T *)(void *)smem;
    int t = (int)dev_thread();
    int64_t column = BY_K ? m0 : from, cols = (BY_K ? m_used : to) - column;
    const T *at = (const T *)(const void *)data + column;
    cols = stw_clamp_i64(cols, 0, Tile::COLS);
    bool vectors = cols > 0 && jag_aligned(at) && (stride | cols) % VECTOR == 0; /* without columns nothing is read */
    if (BY_K) dev_row_copy<Tile, THREADS>::part(tile, at, stride, from, from, to, (int)cols, vectors, t);
    else dev_row_copy<Tile, THREADS>::part(tile, at, stride, m0, 0, m_used, (int)cols, vectors, t);
}

/* The same for whole steps of an operand that is whole vectors along m: a thread's addresses are an addition away, and
 * little stands between the barrier of a step and its products. */
template <class Tile, bool BY_K, int THREADS> struct jag_stream {
    typedef typename Tile::type T;
    typedef dev_row_copy<Tile, THREADS> copy;
    const char *lane;     /* this thread's first vector of step 0 */
    int64_t stride, step; /* bytes from a vector to this thread's next one; to the next index that is summed */
    bool plain;
    DEV_FN jag_stream of(const char *data, int64_t stride, int64_t m0, int64_t m_used, int64_t k0) {
        enum {
            SIZE = (int)sizeof(T),
            EACH = copy::ASYNC && copy::LANES * Tile::VECTOR == Tile::COLS && copy::STEP <= Tile::ROWS
        };
        int t = (int)dev_thread();
        int64_t r = copy::row(t), c = copy::col(t);
        jag_stream s;
        s.lane = data + (BY_K ? r * stride + m0 + c : (m0 + r) * stride + c) * SIZE;
        s.stride = copy::STEP * stride * SIZE;
        s.step = (BY_K ? stride : 1) * SIZE;
        s.plain = EACH && m_used - m0 >= (BY_K ? Tile::COLS : Tile::ROWS) && stride % (16 / SIZE) == 0 &&
                  jag_aligned((const T *)(const void *)data + (BY_K ? m0 : k0));
        return s;
    }
    DEV_FN void fetch(const jag_stream &s, char *smem, int64_t from) {
        T *tile = (T *)(void *)smem;
        int t = (int)dev_thread(), r = copy::row(t), c = copy::col(t);
        const char *at = s.lane + from * s.step;
        DEV_UNROLL_FOR (int i = 0; i < copy::COUNT; ++i, at += s.stride)
            dev_copy_vector(tile + Tile::at(r + i * copy::STEP, c), at, true);
    }
};

/* The sums of a work tile. */
template <class C>
DEV_FN void jag_accumulate(const stw_jagged_launch &l, const jag_work_tile *u, bool rows,
                           dev_acc<typename C::split> &acc, char *smem) {
    typedef typename C::T T;
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    jag_steps<C::BK> steps = jag_steps<C::BK>::of(*u, rows);
    typedef jag_stream<typename C::tile_a, C::A_BY_K, C::THREADS> stream_a;
    typedef jag_stream<typename C::tile_b, C::B_BY_K, C::THREADS> stream_b;
    const stream_a all_a = stream_a::of(u->a, u->a_stride, u->m0, u->m_used, u->k0);
    const stream_b all_b = stream_b::of(u->b, u->b_stride, u->n0, u->n_used, u->k0);
    bool plain = all_a.plain && all_b.plain;
    auto fetch = [&](int stage, int64_t from, int64_t to) {
        char *at = smem + stage * C::STAGE;
        if constexpr (stream_a::copy::ASYNC) {
            if (plain && to - from == C::BK) {
                stream_a::fetch(all_a, at, from);
                stream_b::fetch(all_b, at + C::BYTES_A, from);
                return;
            }
        }
        jag_fetch<typename C::tile_a, C::A_BY_K, C::THREADS>(at, u->a, u->a_stride, u->m0, u->m_used, from, to);
        jag_fetch<typename C::tile_b, C::B_BY_K, C::THREADS>(at + C::BYTES_A, u->b, u->b_stride, u->n0, u->n_used, from,
                                                             to);
    };
    auto multiply = [&](int stage) {
        const T *a = (const T *)(const void *)(smem + stage * C::STAGE),
                *b = (const T *)(const void *)(smem + stage * C::STAGE + C::BYTES_A);
        if constexpr (LEAF_F32_BF16X3 && sizeof(T) == 2) {
            dev_multiply_added<C::A_BY_K, C::B_BY_K, C::BK, typename C::split, typename C::tile_a, typename C::tile_b>(
                acc, a, b, wave, lane);
        } else if constexpr (dev_flushes<T>::yes) {
            dev_unflushed side;
            dev_multiply_overlap<C::A_BY_K, C::B_BY_K, C::BK, typename C::split, typename C::tile_a,
                                 typename C::tile_b>(acc, a, b, side, wave, lane);
        } else
            dev_multiply<C::A_BY_K, C::B_BY_K, C::BK, typename C::split, typename C::tile_a, typename C::tile_b>(
                acc, a, b, wave, lane);
    };
    int64_t from = 0, to = 0;
    bool more = jag_steps<C::BK>::next(steps, l, &from, &to);
    if constexpr (C::STAGES == 1) {
        DEV_ROLLED_FOR (; more; more = jag_steps<C::BK>::next(steps, l, &from, &to)) {
            dev_barrier();
            fetch(0, from, to);
            dev_copy_commit();
            dev_copy_wait();
            dev_barrier();
            multiply(0);
        }
    } else { /* STAGES - 1 steps are under way; a group of copies a step, empty ones after the last */
        int ahead = 0, stage = 0, free = C::STAGES - 1;
        auto ask = [&](int at) {
            if (more) {
                fetch(at, from, to);
                ++ahead;
                more = jag_steps<C::BK>::next(steps, l, &from, &to);
            }
            dev_copy_commit();
        };
        dev_barrier();
        DEV_UNROLL_FOR (int s = 0; s < C::STAGES - 1; ++s) ask(s);
        DEV_ROLLED_FOR (; ahead > 0; --ahead) {
            dev_copy_wait_but<C::STAGES - 2>();
            dev_barrier();
            ask(free);
            multiply(stage);
            stage = stage + 1 == C::STAGES ? 0 : stage + 1;
            free = free + 1 == C::STAGES ? 0 : free + 1;
        }
    }
}

/* What becomes of row `row` of linear's dX. */
DEV_FN int jag_row_what(const stw_jagged_launch &l, const jag_lines &all, bool rows, int64_t row) {
    return rows ? jag_lines::what(all, l, row) : JAG_LINE_LIVE;
}

/* An element of a result. */
template <class T>
DEV_FN void jag_result(const jag_work_tile &u, const jag_out<T> &out, int64_t row, int64_t col, int what, float x) {
    if (row >= u.m_end || col >= u.n_end || what == JAG_LINE_NONE) return;
    if (row >= u.m_used || col >= u.n_used || what == JAG_LINE_ZERO) x = 0.0f;
    jag_out<T>::one(out, row * u.c_stride + col, x);
}

template <class C> DEV_FN void jag_multiply(const stw_jagged_launch &l, char *smem) {
    typedef typename C::T T;
    typedef typename C::split split;
    const stw_jagged_params &p = l.p;
    jag_work_tile *shared = (jag_work_tile *)(void *)(smem + C::STAGES * C::STAGE);
    static_assert(sizeof(jag_work_tile) <= 256, "room for the work tile");
    jag_product t = jag_product::of(p, l.product);
    bool linear = l.product == STW_JPRODUCT_DX || l.product == STW_JPRODUCT_DW;
    int64_t work_tiles = linear ? l.work_tiles : l.tiles[l.product == STW_JPRODUCT_DB][p.components];
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    DEV_ROLLED_FOR (int64_t work_tile = dev_cta(); work_tile < work_tiles; work_tile += l.blocks) {
        dev_barrier();
        if (dev_thread() == 0) {
            if (linear) jag_linear_work_tile(l, t, work_tile, (int)sizeof(T), shared);
            else jag_matmul_work_tile(l, t, work_tile, (int)sizeof(T), shared);
        }
        dev_barrier();
        dev_acc<split> acc;
        dev_acc<split>::clear(acc);
        jag_accumulate<C>(l, shared, l.product == STW_JPRODUCT_DW, acc, smem);
        const jag_work_tile u = *shared; /* read again: registers are the products' before */
        int64_t row0 = split::row0(wave), col0 = split::col0(wave);
        if (!u.c) {
            float *to = l.product_sums + u.slot * (C::BM * C::BN);
            DEV_UNROLL_FOR (int m = 0; m < split::MT; ++m)
                DEV_UNROLL_FOR (int n = 0; n < split::NT; ++n)
                    DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i)
                        to[(row0 + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i))) * C::BN + col0 +
                           n * LEAF_MMA_N + leaf_acc_col(lane, i)] = acc.v[m][n][i];
            continue;
        }
        jag_out<T> out = jag_out<T>::of(u.c, t.out_dtype, t.accumulate != 0);
        bool rows = l.product == STW_JPRODUCT_DX;
        const jag_lines all = rows ? jag_lines::of(l) : jag_lines{0, 0, false};
        bool pairs = LEAF_ACC_PAIRS && !out.add && u.c_stride % 2 == 0 && (uintptr_t)u.c % (out.wide ? 8 : 4) == 0;
        DEV_UNROLL_FOR (int m = 0; m < split::MT; ++m)
            DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
                int64_t row = u.m0 + row0 + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
                int what = row < u.m_end ? jag_row_what(l, all, rows, row) : JAG_LINE_NONE;
                DEV_UNROLL_FOR (int n = 0; n < split::NT; ++n)
                    DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                        if (leaf_acc_slot(i) != slot) continue;
                        int64_t col = u.n0 + col0 + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                        if (LEAF_ACC_PAIRS && pairs && what == JAG_LINE_LIVE && row < u.m_used &&
                            col - (i & 1) + 1 < u.n_used) {
                            if (i & 1) continue;
                            int64_t at = row * u.c_stride + col;
                            float x = acc.v[m][n][i], y = acc.v[m][n][(i + 1) % LEAF_ACC];
                            if (sizeof(T) == 4 || out.wide) dev_set_pair((float *)out.data + at, x, y);
                            else dev_set_pair((T *)out.data + at, x, y);
                        } else jag_result(u, out, row, col, what, acc.v[m][n][i]);
                    }
            }
    }
}

/* Adds up the parts of tiles that have several. A CTA takes a work tile of part 0. */
template <class T> DEV_FN void jag_product_end(const stw_jagged_launch &l, char *smem) {
    const stw_jagged_params &p = l.p;
    jag_work_tile *shared = (jag_work_tile *)(void *)smem;
    jag_product t = jag_product::of(p, l.product);
    bool linear = l.product == STW_JPRODUCT_DW, other = l.product == STW_JPRODUCT_DB;
    int64_t work_tiles = linear ? l.work_tiles : l.tiles[other][p.components];
    int64_t area = (int64_t)l.tile_m * l.tile_n;
    DEV_ROLLED_FOR (int64_t work_tile = dev_cta(); work_tile < work_tiles; work_tile += l.blocks) {
        int64_t parts = l.parts, step = linear ? stw_quotient(l.work_tiles, l.parts) : 0, b = 0;
        if (!linear) {
            b = jag_find(l.tiles[other], 0, p.components - 1, 1, work_tile);
            jag_cut c = jag_cut::of(l, t, b, l.part_k);
            parts = c.parts;
            step = c.tiles_m * c.tiles_n;
            int64_t local = work_tile - l.tiles[other][b];
            if (parts < 2 || stw_quotient(local, step) % parts) continue;
        } else if (work_tile >= step) break;
        dev_barrier();
        if (dev_thread() == 0) {
            if (linear) jag_linear_work_tile(l, t, work_tile, (int)sizeof(T), shared);
            else jag_matmul_work_tile(l, t, work_tile, (int)sizeof(T), shared);
        }
        dev_barrier();
        const jag_work_tile u = *shared;
        char *to = (char *)t.out;
        if (!linear) {
            stw_jagged_place pc = jag_matrix_place(l, t.cm, b);
            int64_t o = stw_quotient(work_tile - l.tiles[other][b], step * parts);
            to += (pc.first + o * pc.stride) * (t.out_dtype == STW_F32 ? 4 : (int)sizeof(T));
        }
        jag_out<T> out = jag_out<T>::of(to, t.out_dtype, t.accumulate != 0);
        const float *from = l.product_sums + u.slot * area;
        for (int64_t e = dev_thread(); e < area; e += dev_threads()) {
            float sum = 0.0f;
            DEV_UNROLL_2_FOR (int64_t k = 0; k < parts; ++k) sum += from[k * step * area + e];
            int64_t row = stw_quotient(e, l.tile_n);
            jag_result(u, out, u.m0 + row, u.n0 + e - row * l.tile_n, JAG_LINE_LIVE, sum);
        }
    }
}

#endif
