/* SPDX-License-Identifier: MIT
 *
 * What a measured call has to do at least (measure.h): arithmetic, and bytes to and from memory. */
#include "measure.h"

#include "common/dtype.h"

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

static double attention_flop(const stw_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    double pairs = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t i = 0; i < c->q[b].used; ++i) {
            int64_t low, end;
            stw_case_visible(c, b, i, &low, &end);
            pairs += (double)(end - low);
        }
    return pairs * (double)d->heads_q * 2 * (double)(3 * d->head_dim_qk + 2 * d->head_dim_v);
}

static int64_t index_of(const jagged_case *c, int tensor, int64_t b) {
    const unsigned char *at = c->host + c->offset[tensor];
    return c->problem.desc.index_dtype == STW_I64 ? ((const int64_t *)(const void *)at)[b]
                                                  : ((const int32_t *)(const void *)at)[b];
}

/* Positions of component b along an axis: with data (used), or that exist. */
static double extent(const jagged_case *c, int axis, int64_t b, int used) {
    if (!c->size[JCASE_OFFSETS + axis]) return (double)c->problem.desc.axis[axis].size;
    if (used && c->size[JCASE_USED + axis]) return (double)index_of(c, JCASE_USED + axis, b);
    return (double)(index_of(c, JCASE_OFFSETS + axis, b + 1) - index_of(c, JCASE_OFFSETS + axis, b));
}

static double at_least_one(int64_t n) {
    return n > 0 ? (double)n : 1;
}

static double jagged_flop(const jagged_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    uint32_t outputs = stw_jref_outputs(d);
    double products = 0;
    if (d->op != STW_JAGGED_LINEAR && d->op != STW_JAGGED_MATMUL) return 0;
    for (int64_t b = 0; b < d->components; ++b)
        products += d->op == STW_JAGGED_LINEAR
                        ? extent(c, 0, b, 1) * at_least_one(d->inner) * (double)d->out_features
                        : extent(c, 0, b, 1) * extent(c, 1, b, 1) * extent(c, 2, b, 1);
    int both = !!(outputs & STW_JAGGED_DX) + !!(outputs & (STW_JAGGED_DOTHER | STW_JAGGED_DWEIGHT));
    return 2 * products * at_least_one(d->outer) * both;
}

double stw_measure_flop(const stw_measure *m) {
    return m->kind == STW_MEASURE_JAGGED ? jagged_flop(&m->j) : attention_flop(&m->c);
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static double attention_bytes(const stw_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    double rows = 0, keys = 0, element = (double)stw_dtype_size(d->dtype), bytes = 0;
    for (int64_t b = 0; b < d->batch; ++b) {
        rows += (double)(c->q[b].used * d->heads_q);
        keys += (double)(c->kv[b].used * d->heads_kv);
    }
    const double qk = (double)d->head_dim_qk, v = (double)d->head_dim_v;
    const struct {
        stw_case_tensor tensor;
        double elements;
        stw_dtype dtype; /* STW_DTYPE_NONE: that of q */
        uint32_t output;
    } rules[] = {
        {STW_CASE_Q, rows * qk, STW_DTYPE_NONE, 0},
        {STW_CASE_K, keys * qk, STW_DTYPE_NONE, 0},
        {STW_CASE_V, keys * v, STW_DTYPE_NONE, 0},
        {STW_CASE_OUT, rows * v, STW_DTYPE_NONE, 0},
        {STW_CASE_DOUT, rows * v, STW_DTYPE_NONE, 0},
        {STW_CASE_LSE, rows, stw_dtype_of_rows(d->dtype), 0},
        {STW_CASE_DLSE, rows, stw_dtype_of_rows(d->dtype), 0},
        {STW_CASE_DELTA, rows, stw_dtype_of_rows(d->dtype), 0},
        {STW_CASE_DQ, rows * qk, d->dq_dtype, STW_OUT_DQ},
        {STW_CASE_DK, keys * qk, d->dk_dtype, STW_OUT_DK},
        {STW_CASE_DV, keys * v, d->dv_dtype, STW_OUT_DV},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; ++i) {
        if (!c->present[rules[i].tensor]) continue;
        double size = rules[i].dtype ? (double)stw_dtype_size(rules[i].dtype) : element;
        bytes += rules[i].elements * size * (d->accumulate & rules[i].output ? 2 : 1);
    }
    if (c->present[STW_CASE_BIAS]) bytes += (double)c->size[STW_CASE_BIAS];
    if (c->present[STW_CASE_DBIAS])
        bytes += (double)c->size[STW_CASE_DBIAS] * (d->accumulate & STW_OUT_DBIAS ? 2 : 1);
    return bytes;
}

/* Elements that output `which` gets: what lies in no component is left alone. */
static double written(const jagged_case *c, int which) {
    static const int matrix[2][2] = {{STW_AXIS_M, STW_AXIS_K}, {STW_AXIS_K, STW_AXIS_N}};
    const stw_jagged_desc *d = &c->problem.desc;
    double whole = (double)c->size[JCASE_DX + which] / (double)stw_dtype_size(stw_jref_dtype(d, which)),
           sum = 0;
    if (which >= 2 || d->op == STW_JAGGED_FROM_PADDED) return whole;
    for (int64_t b = 0; b < d->components; ++b)
        sum += d->op == STW_JAGGED_MATMUL ? at_least_one(d->outer) * extent(c, matrix[which][0], b, 0) *
                                                extent(c, matrix[which][1], b, 0)
                                          : extent(c, 0, b, 0);
    return d->op == STW_JAGGED_MATMUL ? sum
           : d->axis[0].total > 0     ? sum * (whole / (double)d->axis[0].total)
                                      : 0;
}

static double jagged_bytes(const jagged_case *c) {
    const stw_jagged_desc *d = &c->problem.desc;
    double bytes = 0;
    for (int i = 0; i < STW_JREF_INPUTS; ++i) {
        stw_dtype dtype = i >= STW_JREF_MEAN                        ? STW_F32
                          : i == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype
                                                                    : d->dtype;
        bytes += (double)c->readable[i] * (double)stw_dtype_size(dtype);
    }
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        if (c->size[JCASE_DX + i])
            bytes += written(c, i) * (double)stw_dtype_size(stw_jref_dtype(d, i)) *
                     (d->accumulate >> i & 1u ? 2 : 1);
    return bytes;
}

double stw_measure_bytes(const stw_measure *m) {
    return m->kind == STW_MEASURE_JAGGED ? jagged_bytes(&m->j) : attention_bytes(&m->c);
}
