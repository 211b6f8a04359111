/* SPDX-License-Identifier: MIT
 *
 * Reading the PROBLEM line of a jagged operation, for the command and the tests: the tables of
 * common/problem_jagged.c and the options of a call, token by token. */
#include "jagged.h"

#include "common/dtype.h"
#include "reader.h"

#include <string.h>

/* The options that only a call has. */
static const struct {
    const char *name;
    size_t offset;
    int64_t value;
} call_words[] = {
    {"lens_ragged", offsetof(stw_jagged_problem, lens), STW_LENS_RAGGED},
    {"lens_full", offsetof(stw_jagged_problem, lens), STW_LENS_FULL},
    {"lens_zeros", offsetof(stw_jagged_problem, lens), STW_LENS_ZEROS},
    {"lens_huge", offsetof(stw_jagged_problem, lens), STW_LENS_HUGE},
    {"data_normal", offsetof(stw_jagged_problem, data), STW_JDATA_NORMAL},
    {"data_sd3", offsetof(stw_jagged_problem, data), STW_JDATA_SD3},
    {"data_tiny", offsetof(stw_jagged_problem, data), STW_JDATA_TINY},
};

static const struct {
    const char *name;
    size_t offset;
} call_numbers[] = {
    {"seed", offsetof(stw_jagged_problem, seed)},
    {"skew", offsetof(stw_jagged_problem, skew)},
};

typedef struct reader {
    const char *text, *token;
    size_t length;
    stw_jagged_problem *out;
} reader;

static stw_status refuse(const reader *r, const char *what) {
    return stw_fail(STW_E_INVALID, "problem: at %d: '%.*s' %s", (int)(r->token - r->text) + 1,
                    (int)(r->length < 60 ? r->length : 60), r->token, what);
}

static int next(reader *r) {
    if (r->token[r->length] != ':') return 0;
    r->token += r->length + 1;
    r->length = strcspn(r->token, ":");
    return 1;
}

static int is(const reader *r, const char *word) {
    return strlen(word) == r->length && !memcmp(r->token, word, r->length);
}

/* What follows a name, when that begins as a number does. */
static const char *after(const reader *r, const char *name) {
    size_t length = strlen(name);
    if (r->length <= length || memcmp(r->token, name, length)) return NULL;
    char c = r->token[length];
    return (c >= '0' && c <= '9') || c == '-' ? r->token + length : NULL;
}

/* Of the descriptor; the second: of the call. */
static int64_t *field(const reader *r, size_t offset) { return (int64_t *)(void *)((char *)&r->out->desc + offset); }

static int64_t *call_field(const reader *r, size_t offset) { return (int64_t *)(void *)((char *)r->out + offset); }

static stw_status read_op(reader *r) {
    for (int op = 1; op < STW_JAGGED_OPS; ++op)
        if (is(r, stw_jagged_op_names[op])) {
            r->out->desc.op = (stw_jagged_op)op;
            return STW_OK;
        }
    static const char names[] =
#define STW_JAGGED_OP(ID, name, outputs, flags, fields, dims, any_dtype) ", _" #name
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype)                ", _" #name
#include "common/jagged_ops.def"
#undef STW_JAGGED_OP
#undef STW_JAGGED_POINTWISE
        ;
    char what[sizeof names + 64];
    stw_text text = stw_text_in(what, sizeof what);
    stw_text_add(&text, "is not a jagged operation; accepted: jagged%s", names + 2);
    return refuse(r, what);
}

static stw_status read_dtype(const reader *r, stw_dtype first, stw_dtype last, stw_dtype *dtype_out) {
    for (int d = first; d <= (int)last; ++d)
        if (is(r, stw_dtype_name((stw_dtype)d))) {
            *dtype_out = (stw_dtype)d;
            return STW_OK;
        }
    return refuse(r, first == STW_F16 ? "is not an element type; accepted: f16, bf16, f32, f64, i8, u8, i16, i32, i64"
                                      : "is not a type of offsets; accepted: i32, i64");
}

static stw_status read_sizes(const reader *r) {
    const char *at = r->token, *end = r->token + r->length;
    uint32_t seen = 0;
    while (at < end) {
        size_t i = 0;
        while (i < stw_jagged_size_count && stw_jagged_sizes[i].name[0] != *at) ++i;
        if (i == stw_jagged_size_count || !stw_jagged_size_fits(*at, r->out->desc.op) || seen & 1u << i)
            return refuse(r, "are not sizes of this operation, like c8l400t1000i64 or c8m64k128n96");
        seen |= 1u << i;
        ++at;
        if (!stw_reader_integer(&at, end, field(r, stw_jagged_sizes[i].offset)))
            return refuse(r, "has a letter without a number");
    }
    if (seen && r->out->desc.op != STW_JAGGED_MATMUL && !(seen & 4u)) /* no l: any length */
        r->out->desc.axis[0].size = r->out->desc.axis[0].total;
    return seen & 1u ? STW_OK : refuse(r, "has no number of components, like c8");
}

static stw_status read_shape(const reader *r, const char *at, int32_t *rank, int64_t *shape) {
    const char *end = r->token + r->length;
    *rank = 0;
    while (*rank < STW_JAGGED_RANK_MAX) {
        if (!stw_reader_integer(&at, end, &shape[*rank])) break;
        ++*rank;
        if (at == end) return STW_OK;
        if (*at++ != ',') break;
    }
    return refuse(r, "is not a list of at most 8 extents, like shape2,-1,3");
}

static int apply_word(const reader *r) {
    for (size_t i = 0; i < stw_jagged_word_count; ++i) {
        const stw_jagged_word *w = &stw_jagged_words[i];
        if (!is(r, w->name)) continue;
        char *at = (char *)&r->out->desc + w->offset;
        if (w->kind == 1) *(uint32_t *)(void *)at |= w->value;
        else *(int *)(void *)at = (int)w->value;
        return 1;
    }
    for (size_t i = 0; i < sizeof call_words / sizeof *call_words; ++i)
        if (is(r, call_words[i].name)) {
            *call_field(r, call_words[i].offset) = call_words[i].value;
            return 1;
        }
    return 0;
}

static stw_status read_option(const reader *r) {
    stw_jagged_desc *d = &r->out->desc;
    const char *at, *end = r->token + r->length;
    if (apply_word(r)) return STW_OK;
    if ((at = after(r, "shape"))) return read_shape(r, at, &d->shape_rank, d->shape);
    if ((at = after(r, "gshape"))) return read_shape(r, at, &d->grad_rank, d->grad_shape);
    if ((at = after(r, "thr"))) {
        float single;
        return stw_reader_decimal(at, end, &d->threshold, &single) ? STW_OK : refuse(r, "is not a number");
    }
    for (size_t i = 0; i < stw_jagged_number_count; ++i) {
        const stw_jagged_number *row = &stw_jagged_numbers[i];
        if (!(at = after(r, row->name))) continue;
        if (!stw_reader_integer(&at, end, field(r, row->offset)) || at != end)
            return refuse(r, "is not a whole number");
        d->flags |= row->flag;
        d->ragged_axes |= row->ragged;
        return STW_OK;
    }
    for (size_t i = 0; i < sizeof call_numbers / sizeof *call_numbers; ++i) {
        if (!(at = after(r, call_numbers[i].name))) continue;
        if (!stw_reader_integer(&at, end, call_field(r, call_numbers[i].offset)) || at != end)
            return refuse(r, "is not a whole number");
        return STW_OK;
    }
    return refuse(r, "is not an option of jagged operations (tests/problem/README.md lists them)");
}

int stw_problem_is_jagged(const char *text) { return !strncmp(text, "jagged_", 7); }

stw_status stw_problem_jagged_parse(const char *text, stw_jagged_problem *problem_out) {
    reader r = {text, text, strcspn(text, ":"), problem_out};
    memset(problem_out, 0, sizeof *problem_out);
    problem_out->desc.struct_size = sizeof problem_out->desc;
    problem_out->desc.index_dtype = STW_I32;
    stw_status status = read_op(&r);
    if (status) return status;
    if (!next(&r)) return refuse(&r, "ends after the operation; a type follows");
    if (problem_out->desc.op == STW_JAGGED_ATTENTION) {
        status = read_dtype(&r, STW_I32, STW_I64, &problem_out->desc.index_dtype);
        if (!status && !next(&r)) status = refuse(&r, "ends early; a packed attn_bwd problem follows");
        if (!status) status = stw_problem_parse(r.token, &problem_out->attn);
        if (!status && problem_out->attn.op != STW_PROBLEM_ATTN_BWD) status = refuse(&r, "is not an attn_bwd problem");
        problem_out->desc.components = problem_out->attn.desc.batch;
        problem_out->seed = problem_out->attn.seed;
        return status;
    }
    status = read_dtype(&r, STW_F16, STW_I64, &problem_out->desc.dtype);
    if (!status) status = next(&r) ? read_sizes(&r) : refuse(&r, "ends after the type; sizes follow");
    while (!status && next(&r)) status = read_option(&r);
    return status;
}
