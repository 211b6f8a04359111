/* SPDX-License-Identifier: MIT
 *
 * Golden problems of matmul: three axes, any of them ragged; matrices in either storage, transposed or not,
 * found by offsets or by base offsets of their own. */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct matrix {
    const char *key, *result; /* of the golden tensors */
    int rows, cols;           /* axes                  */
    int bit;                  /* of variant.transposed and .bases */
    int transposed, bases, jagged;
    int64_t elements;
    int64_t start[COMPONENTS_MAX]; /* with bases */
} matrix;

/* Storage order of the extents: what lies outside comes first. */
static int first_axis(const matrix *m) { return m->transposed ? m->cols : m->rows; }

static int second_axis(const matrix *m) { return m->transposed ? m->rows : m->cols; }

static int is_ragged(const problem *p, int axis) { return (p->desc.ragged_axes >> axis & 1u) != 0; }

static int64_t extent(const problem *p, int axis, int b) {
    return is_ragged(p, axis) ? p->l[axis].size[b] : p->desc.axis[axis].size;
}

static int64_t used_extent(const problem *p, int axis, int b) {
    return is_ragged(p, axis) ? p->l[axis].used[b] : p->desc.axis[axis].size;
}

/* Where element (f, s) of the o-th stored matrix of component b lies. */
static int64_t matrix_at(const problem *p, const matrix *m, int b, int64_t o, int64_t f, int64_t s) {
    const int first = first_axis(m), second = second_axis(m);
    const int64_t rows = extent(p, first, b), cols = extent(p, second, b), outer = p->desc.outer;
    if (m->jagged && is_ragged(p, first)) return (o * p->l[first].total + p->l[first].start[b] + f) * cols + s;
    if (m->jagged) return (o * rows + f) * p->l[second].total + p->l[second].start[b] + s;
    int64_t base = (int64_t)b * outer * rows * cols; /* a dense stack */
    if (m->bases) base = m->start[b];
    else if (is_ragged(p, first)) base = p->l[first].start[b] * outer * cols;
    else if (is_ragged(p, second)) base = p->l[second].start[b] * outer * rows;
    return base + (o * rows + f) * cols + s;
}

/* Chooses the storage; 0 when the variant's wishes do not fit the matrix. */
static int place(problem *p, matrix *m) {
    const int ragged = is_ragged(p, m->rows) + is_ragged(p, m->cols);
    const int64_t outer = p->desc.outer;
    m->transposed = (p->v->transposed & m->bit) != 0;
    m->bases = ragged == 2 || (p->v->bases & m->bit);
    m->jagged = p->v->jagged && ragged == 1 && !m->bases;
    int64_t at = m->bases ? 3 : 0;
    for (int b = 0; b < p->l[0].count; ++b) {
        m->start[b] = at;
        at += outer * extent(p, m->rows, b) * extent(p, m->cols, b);
    }
    m->elements = at;
    if (m->bases) {
        m->elements = at + 2;
    } else if (ragged == 1) {
        const int axis = is_ragged(p, m->rows) ? m->rows : m->cols;
        const int other = axis == m->rows ? m->cols : m->rows;
        m->elements = outer * p->l[axis].total * p->desc.axis[other].size;
    }
    return 1;
}

/* Golden order: component, outer, row, column, of what is used. */
static int64_t *matrix_index(const problem *p, const matrix *m, unsigned char *cleared) {
    int64_t count = 0, at = 0;
    for (int b = 0; b < p->l[0].count; ++b)
        count += p->desc.outer * used_extent(p, m->rows, b) * used_extent(p, m->cols, b);
    assert_int_equal(count, golden_tensor(p->c, m->key, 1)->elements);
    int64_t *index = malloc(sizeof *index * (size_t)(count + 1));
    assert_non_null(index);
    for (int b = 0; b < p->l[0].count; ++b)
        for (int64_t o = 0; o < p->desc.outer; ++o)
            for (int64_t r = 0; r < extent(p, m->rows, b); ++r)
                for (int64_t s = 0; s < extent(p, m->cols, b); ++s) {
                    const int64_t place_of = m->transposed ? matrix_at(p, m, b, o, s, r) : matrix_at(p, m, b, o, r, s);
                    if (r < used_extent(p, m->rows, b) && s < used_extent(p, m->cols, b)) index[at++] = place_of;
                    else if (cleared) cleared[place_of] = 1;
                }
    return index;
}

static void *matrix_input(problem *p, const matrix *m) {
    int64_t *index = matrix_index(p, m, NULL);
    void *data = problem_input(p, m->key, m->key, index, (double)m->elements);
    free(index);
    return data;
}

static void *matrix_result(problem *p, const matrix *m) {
    unsigned char *cleared = calloc((size_t)m->elements + 1, 1);
    assert_non_null(cleared);
    int64_t *index = matrix_index(p, m, cleared);
    return problem_result(p, m->result, p->c->dtype, (double)m->elements, index, cleared);
}

static const int64_t *bases_of(problem *p, const matrix *m, uint32_t flag, int64_t *elements) {
    if (m->transposed) /* the flags of transposition lie four bits below */
        p->desc.flags |= flag >> 4;
    if (!m->bases) return NULL;
    p->desc.flags |= flag;
    *elements = m->elements;
    int64_t *bases = arena_add(&p->memory, "bases", p->l[0].count, 8, ARENA_INPUT);
    memcpy(bases, m->start, sizeof *bases * (size_t)p->l[0].count);
    return bases;
}

/* The three axes; ragged where the lengths differ. Their number. */
static int bind_axes(problem *p) {
    static const char *const names[3] = {"m", "k", "n"};
    int64_t sizes[COMPONENTS_MAX];
    int ragged = 0;
    for (int axis = 0; axis < 3; ++axis) {
        const int count = golden_integers(p->c, names[axis], sizes);
        int same = 1;
        for (int b = 1; b < count; ++b) same &= sizes[b] == sizes[0];
        p->desc.components = count;
        lengths_place(&p->l[axis], sizes, count, p->v->gaps && !same, p->v->spaced && !same);
        p->desc.axis[axis].size = same ? sizes[0] : p->l[axis].longest;
        if (same) continue;
        ragged += 1;
        p->desc.ragged_axes |= 1u << axis;
        p->desc.axis[axis].total = p->l[axis].total;
        problem_offsets(p, axis);
    }
    return ragged;
}

int problem_matmul(problem *p) {
    stw_jagged_desc *d = &p->desc;
    matrix a = {.key = "a", .result = "da", .rows = STW_AXIS_M, .cols = STW_AXIS_K, .bit = 1};
    matrix b = {.key = "b", .result = "db", .rows = STW_AXIS_K, .cols = STW_AXIS_N, .bit = 2};
    matrix g = {.key = "grad", .rows = STW_AXIS_M, .cols = STW_AXIS_N, .bit = 4};
    d->op = STW_JAGGED_MATMUL;
    d->outer = golden_number(p->c, "outer", 1);
    if (p->v->full) return 0;
    assert_true(bind_axes(p) > 0);
    place(p, &a);
    place(p, &b);
    place(p, &g);
    d->storage = a.jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    d->other_storage = b.jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    d->grad_storage = g.jagged ? STW_STORAGE_JAGGED : STW_STORAGE_COMPONENTS;
    p->args.x_bases = bases_of(p, &a, STW_JAGGED_X_BASES, &d->x_elements);
    p->args.other_bases = bases_of(p, &b, STW_JAGGED_OTHER_BASES, &d->other_elements);
    p->args.grad_bases = bases_of(p, &g, STW_JAGGED_GRAD_BASES, &d->grad_elements);
    const uint32_t want = p->v->outputs ? p->v->outputs : STW_JAGGED_DX | STW_JAGGED_DOTHER;
    p->args.grad = matrix_input(p, &g);
    if (want & STW_JAGGED_DOTHER) p->args.x = matrix_input(p, &a);
    if (want & STW_JAGGED_DX) p->args.other = matrix_input(p, &b);
    if (want & STW_JAGGED_DX) p->args.dx = matrix_result(p, &a);
    if (want & STW_JAGGED_DOTHER) p->args.dother = matrix_result(p, &b);
    return 1;
}
