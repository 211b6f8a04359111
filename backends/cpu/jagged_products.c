/* SPDX-License-Identifier: MIT
 *
 * Matrix products of jagged operations on the f32 tiles of attention: matmul, a task being a tile of dA or dB
 * of one component (tasks are numbered through all components, so long ones are shared), and linear, a task
 * being a tile of dX's rows, a tile of dW over a share of the rows, or columns of dbias. Operands are widened
 * into a thread's scratch a chunk of k at a time. */
#include "jagged.h"

#define BM STW_CPU_JAGGED_BM /* rows and columns of a tile of the result */
#define BN STW_CPU_JAGGED_BN
#define KC 256 /* terms packed at a time */
/* Pitches are no powers of 2, since their rows would share a few sets of the cache. */
#define PM (BM + 16)
#define PN (BN + 16)
#define PK (KC + 16)
#define PW (KC / 2 + 16) /* words of pairs */

/* A matrix in memory: element (i, j) at data[first + i*row + j*col]; row or col is 1. */
typedef struct matrix {
    const void *data;
    int64_t first, row, col;
} matrix;

typedef struct scratch {
    float *a, *b, *turned, *c;
} scratch;

#define SIZE_A (BM * PK > KC * PM ? BM * PK : KC * PM) /* either way round */

size_t stw_cpu_jagged_product_scratch(void) { return sizeof(float) * (SIZE_A + KC * PN + BN * PK + BM * PN); }

static scratch scratch_of(const stw_cpu_jagged_job *job, uint32_t worker) {
    float *at = stw_cpu_jagged_scratch(job, worker);
    return (scratch){at, at + SIZE_A, at + SIZE_A + KC * PN, at + SIZE_A + KC * PN + BN * PK};
}

static uint32_t padded(uint32_t n, uint32_t lanes) { return (n + lanes - 1) / lanes * lanes; }

static matrix transposed(matrix m) { return (matrix){m.data, m.first, m.col, m.row}; }

/* rows x cols of a matrix from (i, j) into a row-major tile of pitch `pitch`, zeros up to the lanes. */
static void pack(const stw_cpu_jagged_job *job, float *to, size_t pitch, const matrix *m, int64_t i, int64_t j,
                 uint32_t rows, uint32_t cols, float *turned) {
    const stw_tile_ops *tile = job->tile;
    uint32_t dtype = job->p.dtype, lanes = tile->lanes;
    const void *from = stw_at(m->data, m->first + i * m->row + j * m->col, dtype);
    if (m->col == 1) {
        tile->load_rows(to, pitch, padded(cols, lanes), from, m->row, rows, cols, dtype);
        return;
    }
    uint32_t height = padded(rows, lanes), width = padded(cols, lanes);
    for (uint32_t n = cols; n < width; ++n) /* rows of `turned` that hold nothing */
        for (uint32_t r = 0; r < height; ++r) turned[(size_t)n * PK + r] = 0;
    tile->load_rows(turned, PK, height, from, m->col, cols, rows, dtype);
    tile->transpose(to, pitch, turned, PK, width, height);
}

/* rows x terms of the left operand as pairs of terms; `k_rows`: its terms are rows. 1: too small numbers. */
static int pack_left(const stw_cpu_jagged_job *job, uint32_t *to, const matrix *a, int64_t i0, int64_t k0, uint32_t mc,
                     uint32_t kc) {
    const void *from = stw_at(a->data, a->first + i0 * a->row + k0 * a->col, job->p.dtype);
    if (a->col == 1) return job->tile->pair_terms(to, PW, from, a->row, mc, kc);
    return job->tile->pair_rows(to, PM, from, a->col, kc, mc);
}

static int pack_right(const stw_cpu_jagged_job *job, const scratch *s, const matrix *b, int64_t k0, int64_t j0,
                      uint32_t kc, uint32_t nc) {
    const stw_tile_ops *tile = job->tile;
    const void *from = stw_at(b->data, b->first + k0 * b->row + j0 * b->col, job->p.dtype);
    uint32_t *to = (uint32_t *)(void *)s->b;
    if (b->col == 1) return tile->pair_rows(to, PN, from, b->row, kc, nc);
    uint32_t words = padded((kc + 1) / 2, tile->lanes), height = padded(nc, tile->lanes);
    int tiny = tile->pair_terms((uint32_t *)(void *)s->turned, PK, from, b->col, nc, kc);
    for (uint32_t n = nc; n < height; ++n)
        for (uint32_t i = 0; i < words; ++i) s->turned[(size_t)n * PK + i] = 0;
    tile->transpose(s->b, PN, s->turned, PK, height, words);
    return tiny;
}

/* The product below by pairs of bf16 (tile_scores.inl); 0: the type, the CPU or too small elements forbid it. */
static int multiply_pairs(const stw_cpu_jagged_job *job, const scratch *s, const matrix *a, const matrix *b, int64_t i0,
                          int64_t j0, int64_t k0, uint32_t mc, uint32_t nc, uint32_t kc, int add) {
    const stw_tile_ops *tile = job->tile;
    const uint32_t *left = (const uint32_t *)(const void *)s->a, *right = (const uint32_t *)(const void *)s->b;
    if (job->p.dtype != STW_BF16 || !tile->matmul_pairs) return 0;
    if (pack_left(job, (uint32_t *)(void *)s->a, a, i0, k0, mc, kc) || pack_right(job, s, b, k0, j0, kc, nc)) return 0;
    int rows = a->col == 1;
    tile->matmul_pairs(mc, nc, (kc + 1) / 2, left, rows ? PW : 1, rows ? 1 : PM, right, PN, s->c, PN, add);
    return 1;
}

/* c[mc][nc] (+)= A[i0.., k0..] B[k0.., j0..] over kc terms. */
static void multiply(const stw_cpu_jagged_job *job, const scratch *s, const matrix *a, const matrix *b, int64_t i0,
                     int64_t j0, int64_t k0, uint32_t mc, uint32_t nc, uint32_t kc, int add) {
    const stw_tile_ops *tile = job->tile;
    if (multiply_pairs(job, s, a, b, i0, j0, k0, mc, nc, kc, add)) return;
    pack(job, s->b, PN, b, k0, j0, kc, nc, s->turned);
    if (a->col == 1) {
        tile->load_rows(s->a, PK, padded(kc, tile->lanes), stw_at(a->data, a->first + i0 * a->row + k0, job->p.dtype),
                        a->row, mc, kc, job->p.dtype);
        tile->matmul(mc, nc, kc, s->a, PK, s->b, PN, s->c, PN, add);
    } else {
        tile->load_rows(s->a, PM, padded(mc, tile->lanes), stw_at(a->data, a->first + i0 + k0 * a->col, job->p.dtype),
                        a->col, kc, mc, job->p.dtype);
        tile->matmul_at(mc, nc, kc, s->a, PM, s->b, PN, s->c, PN, add);
    }
}

static void clear_tile(const scratch *s, uint32_t mc, uint32_t nc) {
    for (uint32_t r = 0; r < mc; ++r)
        for (uint32_t n = 0; n < nc; ++n) s->c[(size_t)r * PN + n] = 0;
}

/* The tile at (i0, j0) of A B over k terms, left in s->c. */
static void product(const stw_cpu_jagged_job *job, const scratch *s, const matrix *a, const matrix *b, int64_t i0,
                    int64_t j0, uint32_t mc, uint32_t nc, int64_t k) {
    for (int64_t k0 = 0; k0 < k; k0 += KC)
        multiply(job, s, a, b, i0, j0, k0, mc, nc, (uint32_t)stw_min_i64(KC, k - k0), k0 > 0);
    if (!k) clear_tile(s, mc, nc);
}

/* Zeros in a row-contiguous block of an output. */
static void zero_block(void *out, uint32_t dtype, int64_t first, int64_t stride, int64_t rows, int64_t cols) {
    if (cols <= 0) return;
    for (int64_t r = 0; r < rows; ++r) stw_cpu_jagged_zero_at(out, first + r * stride, cols, dtype);
}

/* ---- matmul ---- */

/* One gradient: C = L R, used x used of rows x cols; C's rows are contiguous (else it is done transposed). */
typedef struct gradient {
    matrix left, right;
    void *out;
    uint32_t dtype;
    int add;
    int64_t first, stride; /* of the output and its rows */
    int64_t rows, cols, used_rows, used_cols, terms;
} gradient;

static int64_t tiles_of(int64_t rows, int64_t cols) { return stw_ceil_div(rows, BM) * stw_ceil_div(cols, BN); }

static matrix operand(const void *data, stw_jagged_place place, int64_t o) {
    return (matrix){data, place.first + o * place.stride, place.row, place.col};
}

/* dA (which 0) or dB (1) of matrix o of component b. */
static gradient gradient_of(const stw_jagged_params *p, int64_t b, int64_t o, int which) {
    const stw_jagged_matrix_param *target = which ? &p->other_matrix : &p->x_matrix;
    stw_jagged_place place = stw_jagged_place_of(p, target, b);
    stw_jagged_span rows = stw_jagged_span_of(&p->axis[target->rows], b);
    stw_jagged_span cols = stw_jagged_span_of(&p->axis[target->cols], b);
    matrix g = operand(p->grad, stw_jagged_place_of(p, &p->grad_matrix, b), o);
    gradient c = {.dtype = which ? p->dother_dtype : p->dx_dtype,
                  .add = (p->accumulate & (which ? STW_JAGGED_DOTHER : STW_JAGGED_DX)) != 0,
                  .out = which ? p->dother : p->dx,
                  .first = place.first + o * place.stride,
                  .rows = rows.rows,
                  .cols = cols.rows,
                  .used_rows = rows.used,
                  .used_cols = cols.used};
    if (which) { /* dB = A^T G */
        c.left = transposed(operand(p->x, stw_jagged_place_of(p, &p->x_matrix, b), o));
        c.right = g;
        c.terms = stw_jagged_span_of(&p->axis[STW_AXIS_M], b).used;
    } else { /* dA = G B^T */
        c.left = g;
        c.right = transposed(operand(p->other, stw_jagged_place_of(p, &p->other_matrix, b), o));
        c.terms = stw_jagged_span_of(&p->axis[STW_AXIS_N], b).used;
    }
    c.stride = target->transposed ? place.col : place.row;
    if (!target->transposed) return c;
    gradient turned = c; /* C^T = R^T L^T */
    turned.left = transposed(c.right);
    turned.right = transposed(c.left);
    turned.rows = c.cols, turned.cols = c.rows;
    turned.used_rows = c.used_cols, turned.used_cols = c.used_rows;
    return turned;
}

static void gradient_tile(const stw_cpu_jagged_job *job, const scratch *s, const gradient *c, int64_t tile) {
    int64_t across = stw_ceil_div(c->cols, BN), i0 = tile / across * BM, j0 = tile % across * BN;
    int64_t rows = stw_min_i64(BM, c->rows - i0), cols = stw_min_i64(BN, c->cols - j0);
    int64_t mc = stw_clamp_i64(c->used_rows - i0, 0, rows), nc = stw_clamp_i64(c->used_cols - j0, 0, cols);
    int64_t at = c->first + i0 * c->stride + j0;
    if (mc && nc) {
        product(job, s, &c->left, &c->right, i0, j0, (uint32_t)mc, (uint32_t)nc, c->terms);
        job->tile->store_rows(stw_at_out(c->out, at, c->dtype), c->stride, c->dtype, c->add, s->c, PN, (uint32_t)mc,
                              (uint32_t)nc, 1.0f);
    } else {
        mc = 0;
    }
    if (c->add) return;
    zero_block(c->out, c->dtype, at + nc, c->stride, mc, cols - nc);
    zero_block(c->out, c->dtype, at + mc * c->stride, c->stride, rows - mc, cols);
}

/* Tiles of one matrix of a component: those of dA, then those of dB. */
static void matrix_tiles(const stw_jagged_params *p, int64_t b, int64_t tiles_out[2]) {
    int64_t m = stw_jagged_span_of(&p->axis[STW_AXIS_M], b).rows;
    int64_t k = stw_jagged_span_of(&p->axis[STW_AXIS_K], b).rows;
    int64_t n = stw_jagged_span_of(&p->axis[STW_AXIS_N], b).rows;
    tiles_out[0] = !(p->outputs & STW_JAGGED_DX) ? 0 : p->x_matrix.transposed ? tiles_of(k, m) : tiles_of(m, k);
    tiles_out[1] = !(p->outputs & STW_JAGGED_DOTHER) ? 0 : p->other_matrix.transposed ? tiles_of(n, k) : tiles_of(k, n);
}

void stw_cpu_jagged_number_tiles(stw_cpu_jagged_job *job) {
    int64_t *prefix = stw_cpu_jagged_part(job, job->layout.prefix), tiles[2];
    prefix[0] = 0;
    for (int64_t b = 0; b < job->p.components; ++b) {
        matrix_tiles(&job->p, b, tiles);
        prefix[b + 1] = prefix[b] + job->p.outer * (tiles[0] + tiles[1]);
    }
}

#define CLAIM 16 /* tasks at a time: finding a task's component costs as much as a small product */

void stw_cpu_jagged_matmul(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    const int64_t *prefix = stw_cpu_jagged_part(job, job->layout.prefix);
    scratch s = scratch_of(job, worker);
    int64_t tasks = prefix[p->components], claim = stw_clamp_i64(tasks / (CLAIM * job->threads), 1, CLAIM);
    for (;;) {
        int64_t task = stw_cpu_jagged_claim(job) * claim, end = stw_min_i64(task + claim, tasks), tiles[2];
        int64_t b = stw_jagged_find(prefix, p->components, task);
        if (b < 0) return;
        for (; task < end; ++task) {
            while (task >= prefix[b + 1]) ++b;
            matrix_tiles(p, b, tiles);
            int64_t each = tiles[0] + tiles[1], o = (task - prefix[b]) / each;
            int64_t tile = task - prefix[b] - o * each;
            gradient c = gradient_of(p, b, o, tile >= tiles[0]);
            gradient_tile(job, &s, &c, tile >= tiles[0] ? tile - tiles[0] : tile);
        }
    }
}

/* ---- linear ---- */

/* dX: a task is BM rows of one tile of columns. Rows that are not used enter as zeros and are not stored. */
static void linear_rows(const stw_cpu_jagged_job *job, const scratch *s, int64_t from, int64_t end, int64_t j0) {
    const stw_jagged_params *p = &job->p;
    int64_t n = p->out_features, k = p->inner;
    uint32_t nc = (uint32_t)stw_min_i64(BN, k - j0);
    matrix weight = {p->weight, 0, k, 1}, g = {p->grad, 0, n, 1};
    stw_cpu_stretch run;
    for (int64_t row = from; stw_cpu_jagged_run(p, row, end, 1, &run); row = run.row + run.count) {
        int64_t at = run.row * k + j0;
        if (run.valid) {
            product(job, s, &g, &weight, run.row, j0, (uint32_t)run.count, nc, n);
            job->tile->store_rows(stw_at_out(p->dx, at, p->dx_dtype), k, p->dx_dtype,
                                  (p->accumulate & STW_JAGGED_DX) != 0, s->c, PN, (uint32_t)run.count, nc, 1.0f);
        } else if (!(p->accumulate & STW_JAGGED_DX)) {
            zero_block(p->dx, p->dx_dtype, at, k, run.count, nc);
        }
    }
}

void stw_cpu_jagged_linear_dx(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    scratch s = scratch_of(job, worker);
    int64_t rows = stw_cpu_jagged_rows(p), across = stw_ceil_div(p->inner, BN);
    if (!(p->outputs & STW_JAGGED_DX)) return;
    for (;;) {
        int64_t task = stw_cpu_jagged_claim(job), from = task / across * BM;
        if (from >= rows) return;
        linear_rows(job, &s, from, stw_min_i64(from + BM, rows), task % across * BN);
    }
}

/* Packs up to KC used rows from `*row` on, columns j0.. of X or G, one below the other; returns how many. */
static uint32_t pack_rows(const stw_cpu_jagged_job *job, float *to, size_t pitch, const void *data, int64_t width,
                          int64_t j0, uint32_t cols, int64_t *row, int64_t end) {
    const stw_jagged_params *p = &job->p;
    uint32_t count = 0;
    stw_cpu_stretch run;
    while (count < KC && stw_cpu_jagged_run(p, *row, end, 1, &run)) {
        uint32_t taken = (uint32_t)stw_min_i64(KC - count, run.count);
        if (run.valid) {
            job->tile->load_rows(to + (size_t)count * pitch, pitch, padded(cols, job->tile->lanes),
                                 stw_at(data, run.row * width + j0, p->dtype), width, taken, cols, p->dtype);
            count += taken;
            *row = run.row + taken;
        } else {
            *row = run.row + run.count;
        }
    }
    return count;
}

/* The same where nothing is unused: no rows need be put together. */
static void linear_sums_whole(const stw_cpu_jagged_job *job, const scratch *s, int64_t i0, int64_t j0, uint32_t mc,
                              uint32_t nc, int64_t from, int64_t end) {
    const stw_jagged_params *p = &job->p;
    matrix g = {p->grad, 0, 1, p->out_features}, x = {p->x, 0, p->inner, 1};
    stw_cpu_stretch run;
    int add = 0;
    for (int64_t row = from; stw_cpu_jagged_run(p, row, end, 1, &run); row = run.row + run.count)
        for (int64_t k0 = 0; k0 < run.count; k0 += KC, add = 1)
            multiply(job, s, &g, &x, i0, j0, run.row + k0, mc, nc, (uint32_t)stw_min_i64(KC, run.count - k0), add);
    if (!add) clear_tile(s, mc, nc);
}

/* Tile (i0, j0) of G^T X over rows from..end, left in s->c. */
static void linear_sums(const stw_cpu_jagged_job *job, const scratch *s, int64_t i0, int64_t j0, uint32_t mc,
                        uint32_t nc, int64_t from, int64_t end) {
    const stw_jagged_params *p = &job->p;
    int64_t row_g = from, row_x = from;
    if (!(p->features & STW_JFEAT_ANY_GAPS)) {
        linear_sums_whole(job, s, i0, j0, mc, nc, from, end);
        return;
    }
    for (int add = 0;; add = 1) {
        uint32_t count = pack_rows(job, s->a, PM, p->grad, p->out_features, i0, mc, &row_g, end);
        if (!count && add) return;
        pack_rows(job, s->b, PN, p->x, p->inner, j0, nc, &row_x, end);
        job->tile->matmul_at(mc, nc, count, s->a, PM, s->b, PN, s->c, PN, add);
        if (!count) return;
    }
}

/* dW: a task is a tile over one share of the rows; with several shares the tile goes to the partials. */
void stw_cpu_jagged_linear_dw(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    const stw_cpu_jagged_layout *l = &job->layout;
    scratch s = scratch_of(job, worker);
    int64_t rows = stw_cpu_jagged_rows(p), n = p->out_features, k = p->inner;
    int64_t across = stw_ceil_div(k, BN), tiles = tiles_of(n, k);
    float *partials = stw_cpu_jagged_part(job, l->weight_partials);
    for (;;) {
        int64_t task = stw_cpu_jagged_claim(job), share = task / tiles, tile = task % tiles;
        if (share >= l->shares) return;
        int64_t i0 = tile / across * BM, j0 = tile % across * BN, from = share * l->share_rows;
        uint32_t mc = (uint32_t)stw_min_i64(BM, n - i0), nc = (uint32_t)stw_min_i64(BN, k - j0);
        linear_sums(job, &s, i0, j0, mc, nc, from, stw_min_i64(from + l->share_rows, rows));
        if (l->shares > 1) job->tile->add_rows(partials + share * n * k + i0 * k + j0, k, 0, s.c, PN, mc, nc);
        else
            job->tile->store_rows(stw_at_out(p->dweight, i0 * k + j0, p->dweight_dtype), k, p->dweight_dtype,
                                  (p->accumulate & STW_JAGGED_DWEIGHT) != 0, s.c, PN, mc, nc, 1.0f);
    }
}

/* Sums of G's columns over segments of rows; jagged_rows.c adds them up. */
void stw_cpu_jagged_linear_db(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    int64_t rows = stw_cpu_jagged_rows(p), width = job->layout.partial_width;
    (void)worker;
    for (;;) {
        int64_t segment = stw_cpu_jagged_claim(job), from = segment * job->layout.segment_rows;
        int64_t end = stw_min_i64(from + job->layout.segment_rows, rows);
        float *sums = (float *)stw_cpu_jagged_part(job, job->layout.partials) + segment * width;
        stw_cpu_stretch run;
        if (segment >= job->layout.segments) return;
        for (int64_t i = 0; i < width; ++i) sums[i] = 0;
        for (int64_t row = from; stw_cpu_jagged_run(p, row, end, 1, &run); row = run.row + run.count)
            for (int64_t i = 0; run.valid && i < run.count; ++i)
                job->tile->add_columns(sums, stw_at(p->grad, (run.row + i) * p->out_features, p->dtype), NULL,
                                       p->out_features, p->dtype);
    }
}

/* Shares of dW, in order. */
void stw_cpu_jagged_linear_finish(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    const float *partials = stw_cpu_jagged_part(job, job->layout.weight_partials);
    int64_t elements = p->out_features * p->inner;
    stw_tile_types types = {p->dweight_dtype, p->dweight_dtype, (p->accumulate & STW_JAGGED_DWEIGHT) != 0, 0};
    (void)worker;
    for (;;) {
        int64_t from = stw_cpu_jagged_claim(job) * 4096, end = stw_min_i64(from + 4096, elements);
        if (from >= elements) return;
        job->tile->sum_parts(stw_at_out(p->dweight, from, p->dweight_dtype), partials + from, job->layout.shares,
                             elements, end - from, types);
    }
}
