/* SPDX-License-Identifier: MIT
 *
 * Formatting a jagged descriptor as a PROBLEM line, and the tables of options, which its parser reads as well. */
#include "problem_jagged.h"

#include "dtype.h"

#include <stdio.h>
#include <string.h>

const char *const stw_jagged_op_names[STW_JAGGED_OPS] = {
#define STW_JAGGED_OP(ID, name, outputs, flags, fields, dims, any_dtype) [STW_JAGGED_##ID] = "jagged_" #name,
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype)                [STW_JAGGED_##ID] = "jagged_" #name,
#include "common/jagged_ops.def"
#undef STW_JAGGED_OP
#undef STW_JAGGED_POINTWISE
};

#define DESC(field) offsetof(stw_jagged_desc, field)

const stw_jagged_word stw_jagged_words[] = {
    {"outer", DESC(dim), STW_DIM_OUTER, 0},
    {"ragged", DESC(dim), STW_DIM_RAGGED, 0},
    {"inner", DESC(dim), STW_DIM_INNER, 0},
    {"component", DESC(dim), STW_DIM_COMPONENT, 0},
    {"i32", DESC(index_dtype), STW_I32, 0},
    {"i64", DESC(index_dtype), STW_I64, 0},
    {"jagged", DESC(storage), STW_STORAGE_JAGGED, 0},
    {"grad_jagged", DESC(grad_storage), STW_STORAGE_JAGGED, 0},
    {"other_jagged", DESC(other_storage), STW_STORAGE_JAGGED, 0},
    {"dx_f32", DESC(dx_dtype), STW_F32, 0},
    {"dother_f32", DESC(dother_dtype), STW_F32, 0},
    {"dweight_f32", DESC(dweight_dtype), STW_F32, 0},
    {"dbias_f32", DESC(dbias_dtype), STW_F32, 0},
    {"weight_f32", DESC(weight_dtype), STW_F32, 0},
    {"used", DESC(flags), STW_JAGGED_HAS_USED, 1},
    {"full", DESC(flags), STW_JAGGED_FULL, 1},
    {"gamma", DESC(flags), STW_JAGGED_HAS_GAMMA, 1},
    {"xt", DESC(flags), STW_JAGGED_X_TRANSPOSED, 1},
    {"ot", DESC(flags), STW_JAGGED_OTHER_TRANSPOSED, 1},
    {"gt", DESC(flags), STW_JAGGED_GRAD_TRANSPOSED, 1},
    {"out_x", DESC(outputs), STW_JAGGED_DX, 1},
    {"out_o", DESC(outputs), STW_JAGGED_DOTHER, 1},
    {"out_w", DESC(outputs), STW_JAGGED_DWEIGHT, 1},
    {"out_b", DESC(outputs), STW_JAGGED_DBIAS, 1},
    {"acc_x", DESC(accumulate), STW_JAGGED_DX, 1},
    {"acc_o", DESC(accumulate), STW_JAGGED_DOTHER, 1},
    {"acc_w", DESC(accumulate), STW_JAGGED_DWEIGHT, 1},
    {"acc_b", DESC(accumulate), STW_JAGGED_DBIAS, 1},
};
const size_t stw_jagged_word_count = sizeof stw_jagged_words / sizeof stw_jagged_words[0];

const stw_jagged_number stw_jagged_sizes[] = {
    {"c", DESC(components), 0, 0},    {"o", DESC(outer), 0, 0},        {"l", DESC(axis[0].size), 0, 0},
    {"t", DESC(axis[0].total), 0, 0}, {"i", DESC(inner), 0, 0},        {"f", DESC(out_features), 0, 0},
    {"p", DESC(padded), 0, 0},        {"m", DESC(axis[0].size), 0, 0}, {"k", DESC(axis[1].size), 0, 0},
    {"n", DESC(axis[2].size), 0, 0},
};
const size_t stw_jagged_size_count = sizeof stw_jagged_sizes / sizeof stw_jagged_sizes[0];

const stw_jagged_number stw_jagged_numbers[] = {
    {"tm", DESC(axis[0].total), 0, 1},
    {"tk", DESC(axis[1].total), 0, 2},
    {"tn", DESC(axis[2].total), 0, 4},
    {"ds", DESC(dim_size), 0, 0},
    {"da", DESC(dim_after), 0, 0},
    {"index", DESC(index), 0, 0},
    {"xb", DESC(x_elements), STW_JAGGED_X_BASES, 0},
    {"ob", DESC(other_elements), STW_JAGGED_OTHER_BASES, 0},
    {"gb", DESC(grad_elements), STW_JAGGED_GRAD_BASES, 0},
};
const size_t stw_jagged_number_count = sizeof stw_jagged_numbers / sizeof stw_jagged_numbers[0];

int stw_jagged_size_fits(char letter, stw_jagged_op op) {
    if (letter == 'c') return 1;
    if (letter == 'o') return op != STW_JAGGED_RESHAPE;
    if (letter == 'm' || letter == 'k' || letter == 'n') return op == STW_JAGGED_MATMUL;
    if (op == STW_JAGGED_MATMUL) return 0;
    if (letter == 'i') return op != STW_JAGGED_RESHAPE;
    if (letter == 'f') return op == STW_JAGGED_LINEAR;
    if (letter == 'p') return op == STW_JAGGED_TO_PADDED || op == STW_JAGGED_FROM_PADDED;
    return 1;
}

static int64_t value_at(const stw_jagged_desc *d, const stw_jagged_number *row) {
    return *(const int64_t *)(const void *)((const char *)d + row->offset);
}

/* A word of the descriptor that says what its absence does not. */
static int word_holds(const stw_jagged_desc *d, const stw_jagged_word *w) {
    const void *at = (const char *)d + w->offset;
    if (w->kind == 1) return (*(const uint32_t *)at & w->value) != 0;
    if (w->offset == DESC(index_dtype) && w->value == STW_I32) return 0;
    int is_type = w->offset >= DESC(dx_dtype) && w->offset <= DESC(weight_dtype);
    stw_dtype usual = w->offset == DESC(dweight_dtype) || w->offset == DESC(dbias_dtype) ? d->weight_dtype : d->dtype;
    if (is_type && (usual == STW_F32 || (usual == STW_DTYPE_NONE && d->dtype == STW_F32))) return 0;
    return *(const int *)at == (int)w->value;
}

static void add_shape(stw_text *text, const char *name, int32_t rank, const int64_t *shape) {
    for (int i = 0; i < rank && i < STW_JAGGED_RANK_MAX; ++i)
        stw_text_add(text, "%s%s%lld", i ? "," : ":", i ? "" : name, (long long)shape[i]);
}

/* With a point in every locale. */
static void add_threshold(stw_text *text, double threshold) {
    char digits[64];
    snprintf(digits, sizeof digits, "%.17g", threshold);
    for (char *c = digits; *c; ++c)
        if (!strchr("0123456789+-e", *c)) *c = '.';
    stw_text_add(text, ":thr%s", digits);
}

static void add_sizes(stw_text *text, const stw_jagged_desc *d) {
    for (size_t i = 0; i < stw_jagged_size_count; ++i) {
        const stw_jagged_number *row = &stw_jagged_sizes[i];
        int64_t value = value_at(d, row);
        int usual = strchr("oifp", row->name[0]) && (value == 0 || (value == 1 && strchr("oi", row->name[0])));
        if (stw_jagged_size_fits(row->name[0], d->op) && !usual)
            stw_text_add(text, "%s%lld", row->name, (long long)value);
    }
}

size_t stw_problem_jagged_format(const stw_jagged_desc *desc, const stw_attn_desc *attn, char *text, size_t capacity) {
    stw_text line = stw_text_in(text, capacity);
    stw_jagged_desc told = *desc;
    const char *name = (unsigned)desc->op < STW_JAGGED_OPS && desc->op ? stw_jagged_op_names[desc->op] : "jagged_?";
    if (desc->op == STW_JAGGED_ATTENTION) {
        char packed[512] = "";
        if (attn) stw_problem_format(attn, STW_PROBLEM_ATTN_BWD, packed, sizeof packed);
        stw_text_add(&line, "%s:%s:%s", name, stw_dtype_name(desc->index_dtype), packed);
        return line.length;
    }
    stw_text_add(&line, "%s:%s:", name, stw_dtype_name(desc->dtype));
    add_sizes(&line, desc);
    if (told.outputs == STW_JAGGED_DX && desc->op != STW_JAGGED_MATMUL && desc->op != STW_JAGGED_LINEAR)
        told.outputs = 0; /* what absence means */
    for (size_t i = 0; i < stw_jagged_word_count; ++i)
        if (word_holds(&told, &stw_jagged_words[i])) stw_text_add(&line, ":%s", stw_jagged_words[i].name);
    for (size_t i = 0; i < stw_jagged_number_count; ++i) {
        const stw_jagged_number *row = &stw_jagged_numbers[i];
        int comes = (desc->flags & row->flag) || (desc->ragged_axes & row->ragged);
        int alone = !row->flag && !row->ragged && value_at(desc, row);
        if (comes || alone) stw_text_add(&line, ":%s%lld", row->name, (long long)value_at(desc, row));
    }
    if (!(desc->threshold == 0.0)) add_threshold(&line, desc->threshold);
    add_shape(&line, "shape", desc->shape_rank, desc->shape);
    add_shape(&line, "gshape", desc->grad_rank, desc->grad_shape);
    return line.length;
}
