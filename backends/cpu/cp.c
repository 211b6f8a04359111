/* SPDX-License-Identifier: MIT
 *
 * Attention over ranks on the CPU, beside its calls of attention: elements that are copied, converted, added or set,
 * and the merge of a part of the forward, in double (of f64 problems in long double). A call is complete when it
 * returns, so that streams need no order. */
#include "cpu.h"

#include "common/dtype.h"

#include <math.h>
#include <string.h>

typedef long double real;

static real load(const void *data, int64_t at, uint32_t dtype) {
    return dtype == STW_CP_LONG_DOUBLE ? ((const real *)data)[at] : (real)stw_load_f64(data, at, (stw_dtype)dtype);
}
static void store(void *data, int64_t at, uint32_t dtype, real value) {
    if (dtype == STW_CP_LONG_DOUBLE) ((real *)data)[at] = value;
    else stw_store_f64(data, at, (stw_dtype)dtype, (double)value);
}

static int64_t size_of(uint32_t dtype) {
    return dtype == STW_CP_LONG_DOUBLE ? (int64_t)sizeof(real) : (int64_t)stw_dtype_size((stw_dtype)dtype);
}

/* from[n] + more[0][n] + more[1][n], as the sum's own type rounds it. `at`: the first element of the row. */
static real sum_of(const stw_cp_cast *c, int64_t at) {
    real sum = load(c->from, at, c->from_dtype);
    for (int i = 0; i < 2; ++i) {
        if (!c->more[i]) continue;
        const real other = load(c->more[i], at, c->from_dtype);
        sum = c->from_dtype == STW_F64 ? (real)((double)sum + (double)other) : (real)((float)sum + (float)other);
    }
    return sum;
}

/* The last index of a cast; `at`: its first element in `from`. */
static void cast_row(const stw_cp_cast *c, char *to, int64_t at) {
    const char *from = c->from ? (const char *)c->from + at * size_of(c->from_dtype) : NULL;
    const int is_sum = c->more[0] || c->more[1];
    int64_t count = c->extent[3], to_step = c->to_stride[3], from_step = c->from_stride[3];
    int packed = to_step == 1 && (!from || from_step == 1);
    if (!from) {
        if (packed && c->value == 0) memset(to, 0, (size_t)(count * size_of(c->to_dtype)));
        else
            for (int64_t n = 0; n < count; ++n) store(to, n * to_step, c->to_dtype, (real)c->value);
    } else if (packed && c->to_dtype == c->from_dtype && !c->adds && !is_sum) {
        memcpy(to, from, (size_t)(count * size_of(c->to_dtype)));
    } else if (packed && c->to_dtype == STW_F32 && c->from_dtype == STW_F32 && !is_sum) {
        for (int64_t n = 0; n < count; ++n) ((float *)(void *)to)[n] += ((const float *)(const void *)from)[n];
    } else {
        for (int64_t n = 0; n < count; ++n) {
            real value = is_sum ? sum_of(c, at + n * from_step) : load(from, n * from_step, c->from_dtype);
            if (c->adds && c->to_dtype == STW_F32) ((float *)(void *)to)[n * to_step] += (float)value;
            else if (c->adds) /* of doubles the sum is a double's */
                stw_store_f64(to, n * to_step, (stw_dtype)c->to_dtype,
                              stw_load_f64(to, n * to_step, (stw_dtype)c->to_dtype) + (double)value);
            else store(to, n * to_step, c->to_dtype, value);
        }
    }
}

stw_status stw_cpu_cp_cast(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *c, stw_stream stream) {
    (void)device, (void)side, (void)stream;
    int64_t to_size = size_of(c->to_dtype);
    for (int64_t i = 0; i < c->extent[0]; ++i)
        for (int64_t j = 0; j < c->extent[1]; ++j)
            for (int64_t k = 0; k < c->extent[2]; ++k) {
                int64_t to = i * c->to_stride[0] + j * c->to_stride[1] + k * c->to_stride[2];
                int64_t from = i * c->from_stride[0] + j * c->from_stride[1] + k * c->from_stride[2];
                cast_row(c, (char *)c->to + to * to_size, from);
            }
    return STW_OK;
}

/* exp(a - b), 0 where a is -inf. */
static real weight(real a, real b) { return a == -(real)INFINITY ? 0 : expl(a - b); }

/* log(exp(a) + exp(b)); one of them is not -inf. */
static real log_sum(real a, real b) {
    real most = a > b || isnan(a) ? a : b;
    return isinf(most) ? most : most + logl(weight(a, most) + weight(b, most));
}

/* Line `at` of the sums, and line `line` of the part. */
static void merge_line(const stw_cp_merge *m, int64_t at, int64_t line, real part) {
    real before = load(m->lse_sum, at, m->sum_dtype);
    if (part == -(real)INFINITY) return; /* the part's keys are all hidden from this row */
    real sum = log_sum(before, part), keep = weight(before, sum), add = weight(part, sum);
    for (int64_t n = at * m->width, from = line * m->width; n < (at + 1) * m->width; ++n, ++from) {
        real x = keep != 0 ? keep * load(m->out_sum, n, m->sum_dtype) : 0;
        if (m->out) x += add * load(m->out, from, m->dtype);
        store(m->out_sum, n, m->sum_dtype, x);
    }
    store(m->lse_sum, at, m->sum_dtype, sum);
}

stw_status stw_cpu_cp_merge(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *m,
                            stw_stream stream) {
    (void)device, (void)side, (void)stream;
    for (int64_t b = 0; b < m->batches; ++b)
        for (int64_t row = 0; row < m->rows; ++row)
            for (int64_t h = 0; h < m->heads; ++h)
                merge_line(m, b * m->to_batch + row * m->heads + h, (b * m->rows + row) * m->heads + h,
                           load(m->lse, b * m->lse_batch + row * m->lse_row + h * m->lse_head, m->dtype));
    return STW_OK;
}

stw_status stw_cpu_cp_open(const stw_device *device, stw_cp_side *side_out) {
    (void)device;
    memset(side_out, 0, sizeof *side_out);
    return STW_OK;
}

void stw_cpu_cp_close(const stw_device *device, stw_cp_side *side) { (void)device, (void)side; }

stw_status stw_cpu_cp_check(const stw_device *device, const char *who, stw_plan_kind kind,
                            const stw_attn_params *params, const void *workspace, stw_stream stream) {
    (void)device, (void)who, (void)kind, (void)params, (void)workspace, (void)stream;
    return STW_OK;
}

stw_status stw_cpu_cp_order(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before,
                            stw_stream after) {
    (void)device, (void)side, (void)joins, (void)before, (void)after;
    return STW_OK;
}
