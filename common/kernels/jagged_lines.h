/* SPDX-License-Identifier: MIT
 *
 * softmax, log_softmax (LOG), layer_norm and rms_norm (MEAN false) over lines, elements that follow each other: LANES
 * lanes a line, which stays in their registers between the sums and the result; long lines are read twice. The norms'
 * column sums come out of the same pass where a lane always has the same columns (jag_norm_sums): a fixed number of
 * CTAs add up their lines. */
#ifndef STW_COMMON_KERNELS_JAGGED_LINES_H
#define STW_COMMON_KERNELS_JAGGED_LINES_H

#include "common/device/reduce.h"
#include "common/kernels/jagged_index.h"

/* What is done with line `line` of all slabs: nothing, zeros, or the line. */
enum { JAG_LINE_NONE, JAG_LINE_ZERO, JAG_LINE_LIVE };
struct jag_lines {
    int64_t low, high; /* rows of a slab that lie in components */
    bool gaps;
    DEV_FN jag_lines of(const stw_jagged_launch &l) {
        const stw_jagged_params &p = l.p;
        return jag_lines{p.axis[0].starts[0] * p.rows_outer, p.axis[0].starts[p.components] * p.rows_outer,
                         *l.gaps != 0};
    }
    DEV_FN int what(const jag_lines &m, const stw_jagged_launch &l, int64_t line) {
        const stw_jagged_params &p = l.p;
        int64_t slab = p.slabs > 1 ? stw_quotient(line, l.lines) : 0;
        if (slab >= p.slabs) return JAG_LINE_NONE;
        int64_t row = line - slab * l.lines;
        if (p.dim_before > 1) row = stw_quotient(row, p.dim_before);
        if (row < m.low || row >= m.high) return JAG_LINE_NONE;
        if (!m.gaps) return JAG_LINE_LIVE;
        jag_place at = jag_place::of(p, jag_bracket{0, p.components - 1}, slab, row);
        return at.r < at.used ? JAG_LINE_LIVE : JAG_LINE_ZERO;
    }
};

/* Sums of two numbers over the lanes of a line; every lane gets them. `turn` is the line's number: two places of shared
 * memory take turns. */
template <int LANES> DEV_FN void jag_line_sums(float &a, float &b, char *smem, int turn) {
    enum { IN_WAVE = LANES < DEV_WAVE ? LANES : DEV_WAVE };
    DEV_UNROLL_FOR (int mask = IN_WAVE / 2; mask > 0; mask /= 2) {
        a += dev_shuffle_xor(a, mask);
        b += dev_shuffle_xor(b, mask);
    }
    if constexpr (LANES > DEV_WAVE) {
        enum { WAVES = LANES / DEV_WAVE };
        static_assert(LANES == STW_JAGGED_THREADS, "one line a CTA");
        float *parts = (float *)(void *)smem + (turn & 1) * 2 * WAVES;
        int wave = (int)(dev_thread() / DEV_WAVE);
        if (dev_lane() == 0) {
            parts[wave] = a;
            parts[WAVES + wave] = b;
        }
        dev_barrier();
        a = b = 0.0f;
        DEV_UNROLL_FOR (int w = 0; w < WAVES; ++w) {
            a += parts[w];
            b += parts[WAVES + w];
        }
    }
}

/* A line in the registers of its lanes. */
template <class T, int LANES, int VECTORS> struct jag_line {
    enum { COUNT = jag_vector<T>::COUNT, LINES = (int)STW_JAGGED_THREADS / LANES };
    DEV_FN int at(int v, int lane) { return (v * LANES + lane) * COUNT; }
    DEV_FN void load(dev_vector to[VECTORS], const T *from, int64_t size, int lane) {
        bool aligned = jag_aligned(from);
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
            int e = at(v, lane);
            to[v] = dev_vector{{0, 0, 0, 0}};
            if (aligned && e + COUNT <= size) to[v] = dev_load_vector(from + e);
            else if (e < size) to[v] = jag_vector<T>::gather(from + e, (int)(size - e));
        }
    }
    DEV_FN void store(const jag_out<T> &out, int64_t to, int v, const float x[COUNT], int64_t size, int lane) {
        int e = at(v, lane);
        if (jag_out<T>::aligned(out, to) && e + COUNT <= size) jag_out<T>::vector(out, to + e, x);
        else jag_out<T>::part(out, to + e, x, 0, (int)stw_clamp_i64(size - e, 0, COUNT));
    }
    DEV_FN void clear(const jag_out<T> &out, int64_t to, int64_t size, int lane) {
        const float zero[COUNT] = {};
        if (!out.add)
            DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) store(out, to, v, zero, size, lane);
    }
};

/* COUNT numbers of gamma (or ones) from column e on: by vectors where gamma is of T or f32 and whole. */
template <class T> DEV_FN void jag_gamma(const stw_jagged_params &p, int64_t e, float x[jag_vector<T>::COUNT]) {
    enum { COUNT = jag_vector<T>::COUNT };
    const char *from = (const char *)p.weight + e * (p.weight_dtype == STW_F32 ? 4 : 2);
    if (!p.weight || e + COUNT > p.dim_size || (uintptr_t)from % 16) {
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
            x[i] = p.weight && e + i < p.dim_size ? dev_load_any(p.weight, e + i, p.weight_dtype) : 1.0f;
    } else if (sizeof(T) == 4 || p.weight_dtype == STW_F32) {
        DEV_UNROLL_FOR (int k = 0; k < COUNT; k += 4) jag_vector<float>::unpack(dev_load_vector(from + k * 4), x + k);
    } else jag_vector<T>::unpack(dev_load_vector(from), x);
}

/* Another term of a line's sum, and an element of dX. */
template <bool LOG> DEV_FN float jag_softmax_add(float g, float y, float sum) {
    return LOG ? sum + g : fmaf(g, y, sum);
}
template <bool LOG> DEV_FN float jag_softmax_of(float g, float y, float sum) {
    return LOG ? fmaf(-dev_exp(y), sum, g) : y * (g - sum);
}

template <class T, bool LOG, int LANES, int VECTORS> DEV_FN void jag_softmax(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, LANES, VECTORS> line_of;
    enum { COUNT = line_of::COUNT };
    const stw_jagged_params &p = l.p;
    int lane = (int)dev_thread() % LANES;
    int64_t size = p.dim_size, line = dev_cta() * line_of::LINES + (int)dev_thread() / LANES, first = line * size;
    int what = jag_lines::what(jag_lines::of(l), l, line);
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    dev_vector vg[VECTORS], vy[VECTORS];
    float sum = 0.0f, none = 0.0f;
    if (what == JAG_LINE_LIVE) {
        line_of::load(vg, (const T *)p.grad + first, size, lane);
        line_of::load(vy, (const T *)p.y + first, size, lane);
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
            float g[COUNT], y[COUNT];
            jag_vector<T>::unpack(vg[v], g);
            jag_vector<T>::unpack(vy[v], y);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) sum = jag_softmax_add<LOG>(g[i], y[i], sum);
        }
    }
    jag_line_sums<LANES>(sum, none, smem, 0);
    if (what == JAG_LINE_ZERO) line_of::clear(out, first, size, lane);
    if (what != JAG_LINE_LIVE) return;
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        float g[COUNT], y[COUNT];
        jag_vector<T>::unpack(vg[v], g);
        jag_vector<T>::unpack(vy[v], y);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) g[i] = jag_softmax_of<LOG>(g[i], y[i], sum);
        line_of::store(out, first, v, g, size, lane);
    }
}

/* Any length: a CTA a line. */
template <class T, bool LOG> DEV_FN void jag_softmax_long(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, (int)STW_JAGGED_THREADS, 2> line_of;
    enum { COUNT = line_of::COUNT, STEP = (int)STW_JAGGED_THREADS * 2 * COUNT };
    const stw_jagged_params &p = l.p;
    int lane = (int)dev_thread();
    int64_t size = p.dim_size, line = dev_cta(), first = line * size;
    int what = jag_lines::what(jag_lines::of(l), l, line);
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    if (what == JAG_LINE_NONE) return;
    if (what == JAG_LINE_ZERO) {
        DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) line_of::clear(out, first + e, size - e, lane);
        return;
    }
    float sum = 0.0f, none = 0.0f;
    DEV_ROLLED_FOR (int pass = 0; pass < 2; ++pass) {
        DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) {
            dev_vector vg[2], vy[2];
            line_of::load(vg, (const T *)p.grad + first + e, size - e, lane);
            if (!LOG || pass) line_of::load(vy, (const T *)p.y + first + e, size - e, lane);
            DEV_UNROLL_FOR (int v = 0; v < 2; ++v) {
                float g[COUNT], y[COUNT];
                jag_vector<T>::unpack(vg[v], g);
                jag_vector<T>::unpack(vy[v], y);
                if (pass == 0) {
                    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) sum = jag_softmax_add<LOG>(g[i], y[i], sum);
                } else {
                    DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) g[i] = jag_softmax_of<LOG>(g[i], y[i], sum);
                    line_of::store(out, first + e, v, g, size - e, lane);
                }
            }
        }
        if (pass == 0) jag_line_sums<(int)STW_JAGGED_THREADS>(sum, none, smem, 0);
    }
}

/* dX of a norm alone where every line takes part, and is whole vectors: with few registers, so that many CTAs have
 * loads under way. */
template <class T, bool MEAN, int LANES, int VECTORS>
DEV_FN void jag_norm_whole(const stw_jagged_launch &l, const jag_lines &all, char *smem) {
    typedef jag_line<T, LANES, VECTORS> line_of;
    enum { COUNT = line_of::COUNT, LINES = line_of::LINES };
    const stw_jagged_params &p = l.p;
    int lane = (int)dev_thread() % LANES, size = (int)p.dim_size;
    int64_t line = all.low * p.dim_before + dev_cta() * LINES + (int)dev_thread() / LANES;
    bool live = line < all.high * p.dim_before;
    const T *g = (const T *)p.grad + line * size, *x = (const T *)p.x + line * size;
    T *to = (T *)p.dx + line * size;
    dev_vector vg[VECTORS], vx[VECTORS];
    float mean = 0.0f, rstd = 0.0f, plain = 0.0f, dot = 0.0f;
    auto load_gamma = [&](int v, float w[COUNT]) {
        int e = line_of::at(v, lane);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) w[i] = 1.0f;
        if (p.weight && e < size) jag_vector<T>::unpack(dev_load_vector((const T *)p.weight + e), w);
    };
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        int e = line_of::at(v, lane);
        vg[v] = vx[v] = dev_vector{{0, 0, 0, 0}};
        if (live && e < size) vg[v] = dev_load_vector(g + e), vx[v] = dev_load_vector(x + e);
    }
    if (live) mean = MEAN ? p.mean[line] : 0.0f, rstd = p.rstd[line];
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        float u[COUNT], h[COUNT], w[COUNT];
        load_gamma(v, w);
        jag_vector<T>::unpack(vg[v], u);
        jag_vector<T>::unpack(vx[v], h);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
            u[i] *= w[i]; /* past the line u is 0 */
            if (MEAN) plain += u[i];
            dot = fmaf(u[i], h[i] - mean, dot);
        }
    }
    jag_line_sums<LANES>(plain, dot, smem, 0);
    if (!live) return;
    plain /= l.line_size;
    dot = dot * rstd * rstd / l.line_size;
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        float u[COUNT], h[COUNT], w[COUNT];
        load_gamma(v, w);
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) { /* unpacked anew: fewer registers */
            vg[v].word[i] = (uint32_t)dev_keep((int)vg[v].word[i]);
            vx[v].word[i] = (uint32_t)dev_keep((int)vx[v].word[i]);
        }
        jag_vector<T>::unpack(vg[v], u);
        jag_vector<T>::unpack(vx[v], h);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) u[i] = fmaf(mean - h[i], dot, fmaf(u[i], w[i], -plain)) * rstd;
        int e = line_of::at(v, lane);
        if (e < size) dev_store_vector(to + e, jag_vector<T>::pack(u));
    }
}

/* dX of layer_norm or rms_norm alone. */
template <class T, bool MEAN, int LANES, int VECTORS> DEV_FN void jag_norm(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, LANES, VECTORS> line_of;
    enum { COUNT = line_of::COUNT };
    const stw_jagged_params &p = l.p;
    const jag_lines all = jag_lines::of(l);
    int lane = (int)dev_thread() % LANES;
    int64_t size = p.dim_size, line = dev_cta() * line_of::LINES + (int)dev_thread() / LANES, first = line * size;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    if constexpr (DEV_WAVE == 32) {
        bool plain = !all.gaps && p.slabs == 1 && size % COUNT == 0 && p.dx_dtype == p.dtype && !out.add &&
                     (!p.weight || p.weight_dtype == p.dtype);
        uintptr_t at = (uintptr_t)p.grad | (uintptr_t)p.x | (uintptr_t)p.dx | (uintptr_t)p.weight;
        if (plain && at % 16 == 0) {
            jag_norm_whole<T, MEAN, LANES, VECTORS>(l, all, smem);
            return;
        }
    }
    int what = jag_lines::what(all, l, line);
    dev_vector vg[VECTORS], vx[VECTORS];
    float plain = 0.0f, dot = 0.0f, mean = 0.0f, rstd = 0.0f;
    if (what == JAG_LINE_LIVE) {
        line_of::load(vg, (const T *)p.grad + first, size, lane);
        line_of::load(vx, (const T *)p.x + first, size, lane);
        mean = MEAN ? p.mean[line] : 0.0f, rstd = p.rstd[line];
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
            float g[COUNT], x[COUNT], gamma[COUNT];
            jag_gamma<T>(p, line_of::at(v, lane), gamma);
            jag_vector<T>::unpack(vg[v], g);
            jag_vector<T>::unpack(vx[v], x);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                g[i] *= gamma[i];
                if (MEAN) plain += g[i]; /* past the line g is 0 */
                dot = fmaf(g[i], (x[i] - mean) * rstd, dot);
            }
        }
    }
    jag_line_sums<LANES>(plain, dot, smem, 0);
    if (what == JAG_LINE_ZERO) line_of::clear(out, first, size, lane);
    if (what != JAG_LINE_LIVE) return;
    plain /= l.line_size;
    dot /= l.line_size;
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        float g[COUNT], x[COUNT], gamma[COUNT];
        jag_gamma<T>(p, line_of::at(v, lane), gamma);
        jag_vector<T>::unpack(vg[v], g);
        jag_vector<T>::unpack(vx[v], x);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) g[i] = rstd * (g[i] * gamma[i] - plain - (x[i] - mean) * rstd * dot);
        line_of::store(out, first, v, g, size, lane);
    }
}

template <class T, bool MEAN> DEV_FN void jag_norm_long(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, (int)STW_JAGGED_THREADS, 2> line_of;
    enum { COUNT = line_of::COUNT, STEP = (int)STW_JAGGED_THREADS * 2 * COUNT };
    const stw_jagged_params &p = l.p;
    int lane = (int)dev_thread();
    int64_t size = p.dim_size, line = dev_cta(), first = line * size;
    int what = jag_lines::what(jag_lines::of(l), l, line);
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    if (what == JAG_LINE_NONE) return;
    if (what == JAG_LINE_ZERO) {
        DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) line_of::clear(out, first + e, size - e, lane);
        return;
    }
    float plain = 0.0f, dot = 0.0f, mean = MEAN ? p.mean[line] : 0.0f, rstd = p.rstd[line];
    DEV_ROLLED_FOR (int pass = 0; pass < 2; ++pass) {
        DEV_ROLLED_FOR (int64_t e = 0; e < size; e += STEP) {
            dev_vector vg[2], vx[2];
            line_of::load(vg, (const T *)p.grad + first + e, size - e, lane);
            line_of::load(vx, (const T *)p.x + first + e, size - e, lane);
            DEV_UNROLL_FOR (int v = 0; v < 2; ++v) {
                float g[COUNT], x[COUNT], gamma[COUNT];
                jag_gamma<T>(p, e + line_of::at(v, lane), gamma);
                jag_vector<T>::unpack(vg[v], g);
                jag_vector<T>::unpack(vx[v], x);
                DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                    float h = (x[i] - mean) * rstd;
                    g[i] *= gamma[i];
                    if (pass == 0) {
                        if (MEAN) plain += g[i];
                        dot = fmaf(g[i], h, dot);
                    } else g[i] = rstd * (g[i] - plain - h * dot);
                }
                if (pass) line_of::store(out, first + e, v, g, size - e, lane);
            }
        }
        if (pass) continue;
        jag_line_sums<(int)STW_JAGGED_THREADS>(plain, dot, smem, 0);
        plain /= l.line_size;
        dot /= l.line_size;
    }
}

/* dX and the parts of dGamma and, of layer_norm, dBeta: CTA k of l.blocks has lines k*LINES.., (k + blocks)*LINES.. */
template <class T, bool MEAN, int LANES, int VECTORS>
DEV_FN void jag_norm_sums(const stw_jagged_launch &l, char *smem) {
    typedef jag_line<T, LANES, VECTORS> line_of;
    enum { COUNT = line_of::COUNT, LINES = line_of::LINES };
    const stw_jagged_params &p = l.p;
    const jag_lines all = jag_lines::of(l);
    int lane = (int)dev_thread() % LANES, group = (int)dev_thread() / LANES;
    int64_t size = p.dim_size, lines = p.slabs * l.lines, step = l.blocks * LINES;
    const T *grad = (const T *)p.grad, *values = (const T *)p.x;
    jag_out<T> out = jag_out<T>::of(p.dx, p.dx_dtype, (p.accumulate & STW_JAGGED_DX) != 0);
    float gamma[VECTORS][COUNT], dgamma[VECTORS][COUNT], dbeta[VECTORS][COUNT];
    DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
        jag_gamma<T>(p, line_of::at(v, lane), gamma[v]);
        DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) dgamma[v][i] = dbeta[v][i] = 0.0f;
    }
    bool wanted = (p.outputs & STW_JAGGED_DX) != 0;
    dev_vector vg[VECTORS], vx[VECTORS];
    float mean = 0.0f, rstd = 0.0f;
    int64_t line = dev_cta() * LINES + group;
    int what = line < lines ? jag_lines::what(all, l, line) : JAG_LINE_NONE;
    auto fetch = [&]() {
        if (what != JAG_LINE_LIVE) return;
        line_of::load(vg, grad + line * size, size, lane);
        line_of::load(vx, values + line * size, size, lane);
        mean = MEAN ? p.mean[line] : 0.0f, rstd = p.rstd[line];
    };
    fetch();
    int turn = 0;
    DEV_ROLLED_FOR (int64_t base = dev_cta() * LINES; base < lines; base += step, ++turn) {
        dev_vector cg[VECTORS], cx[VECTORS];
        float plain = 0.0f, dot = 0.0f, middle = mean, scale = rstd;
        int now = what;
        int64_t first = line * size;
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
            cg[v] = vg[v], cx[v] = vx[v];
            if (now != JAG_LINE_LIVE) continue;
            float g[COUNT], h[COUNT];
            jag_vector<T>::unpack(cg[v], g);
            jag_vector<T>::unpack(cx[v], h);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                h[i] = (h[i] - middle) * scale;
                if (MEAN) dbeta[v][i] += g[i];
                dgamma[v][i] = fmaf(g[i], h[i], dgamma[v][i]);
                g[i] *= gamma[v][i];
                if (MEAN) plain += g[i];
                dot = fmaf(g[i], h[i], dot);
            }
        }
        line += step; /* the next line is under way while the lanes of this one meet */
        what = line < lines ? jag_lines::what(all, l, line) : JAG_LINE_NONE;
        fetch();
        jag_line_sums<LANES>(plain, dot, smem, turn);
        if (!wanted) continue;
        if (now == JAG_LINE_ZERO) line_of::clear(out, first, size, lane);
        if (now != JAG_LINE_LIVE) continue;
        plain /= l.line_size;
        dot /= l.line_size;
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v) {
            float g[COUNT], h[COUNT];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) { /* unpacked anew: registers decide how many lines are under way */
                cg[v].word[i] = (uint32_t)dev_keep((int)cg[v].word[i]);
                cx[v].word[i] = (uint32_t)dev_keep((int)cx[v].word[i]);
            }
            jag_vector<T>::unpack(cg[v], g);
            jag_vector<T>::unpack(cx[v], h);
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i)
                g[i] = scale * (g[i] * gamma[v][i] - plain - (h[i] - middle) * scale * dot);
            line_of::store(out, first, v, g, size, lane);
        }
    }
    /* Lines of one CTA: through shared memory, group by group. */
    float *to_beta = l.sums + dev_cta() * size, *to_gamma = l.sums_too + dev_cta() * size;
    if constexpr (LINES > 1) {
        float *shared = (float *)(void *)smem;
        DEV_ROLLED_FOR (int which = MEAN ? 0 : 1; which < 2; ++which) {
            DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v)
                DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                    dev_barrier();
                    shared[dev_thread()] = which ? dgamma[v][i] : dbeta[v][i];
                    dev_barrier();
                    int64_t e = line_of::at(v, lane) + i;
                    if (group || e >= size) continue;
                    float sum = 0.0f;
                    for (int k = 0; k < LINES; ++k) sum += shared[k * LANES + lane];
                    (which ? to_gamma : to_beta)[e] = sum;
                }
        }
    } else {
        DEV_UNROLL_FOR (int v = 0; v < VECTORS; ++v)
            DEV_UNROLL_FOR (int i = 0; i < COUNT; ++i) {
                int64_t e = line_of::at(v, lane) + i;
                if (e >= size) continue;
                if (MEAN) to_beta[e] = dbeta[v][i];
                to_gamma[e] = dgamma[v][i];
            }
    }
}

#endif
