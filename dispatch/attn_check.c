/* SPDX-License-Identifier: MIT
 *
 * The check of an attention descriptor at plan time: every rule of attn_bwd.h that needs no pointer, each
 * with a text that names the field, the value seen and what would be accepted. Strides: attn_strides.c. */
#include "attn_problem.h"
#include "refusal.h"

#include "common/dtype.h"
#include "common/extend.h"

#include <math.h>

/* The descriptor being checked and the name of the call that opens every text. */
typedef struct check {
    stw_attn_desc *d;
    const char *who;
    stw_plan_kind kind;
} check;

static stw_status check_range(const check *c, const char *field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return STW_OK;
    return stw_fail(stw_range_status(value, low), "%s: %s %lld is not in %lld..%lld", c->who, field, (long long)value,
                    (long long)low, (long long)high);
}

stw_status stw_attn_check_sizes(const char *who, const stw_attn_desc *d) {
    const check called = {.who = who}, *c = &called;
    stw_status status;
    if ((status = check_range(c, "batch", d->batch, 0, INT32_MAX)) ||
        (status = check_range(c, "heads_q", d->heads_q, 1, 1 << 20)) ||
        (status = check_range(c, "heads_kv", d->heads_kv, 1, 1 << 20)) ||
        (status = check_range(c, "head_dim_qk", d->head_dim_qk, 1, 256)) ||
        (status = check_range(c, "head_dim_v", d->head_dim_v, 1, 256)) ||
        (status = check_range(c, "max_seq_q", d->max_seq_q, 0, INT32_MAX)) ||
        (status = check_range(c, "max_seq_kv", d->max_seq_kv, 0, INT32_MAX)) ||
        (status = check_range(c, "total_q", d->total_q, 0, INT32_MAX)) ||
        (status = check_range(c, "total_kv", d->total_kv, 0, INT32_MAX)))
        return status;
    if (d->heads_q % d->heads_kv)
        return stw_fail(STW_E_INVALID, "%s: heads_q %lld is not a multiple of heads_kv %lld", c->who,
                        (long long)d->heads_q, (long long)d->heads_kv);
    return STW_OK;
}

stw_status stw_attn_check_given(const char *who, const stw_attn_desc *desc) {
    if (!desc) return stw_fail(STW_E_INVALID, "%s: desc is null", who);
    if (desc->struct_size < STW_SIZE_ATTN_DESC_0_1)
        return stw_fail(STW_E_INVALID, "%s: desc.struct_size %zu is too small: set it with STW_INIT", who,
                        desc->struct_size);
    return stw_attn_check_sizes(who, desc);
}

/* Resolves a gradient's type: NONE = `input`; else `input` or f32, which f64 inputs do not have. */
static stw_status resolve_grad_dtype(const check *c, const char *field, stw_dtype *dtype, stw_dtype input) {
    if (*dtype == STW_DTYPE_NONE) *dtype = input;
    if (c->d->dtype == STW_F64 && *dtype == STW_F32)
        return stw_fail(STW_E_UNSUPPORTED, "%s: %s f32 3 of an f64 problem, accepted: none 0 or f64 4", c->who, field);
    if (*dtype == input || *dtype == STW_F32) return STW_OK;
    return stw_fail(stw_dtype_status(*dtype), "%s: %s %d is neither the input's type %s %d nor f32 3", c->who, field,
                    (int)*dtype, stw_dtype_name(input), (int)input);
}

static stw_status check_dtypes(const check *c) {
    stw_attn_desc *d = c->d;
    if (!stw_dtype_of_attn(d->dtype))
        return stw_fail(stw_dtype_status(d->dtype), "%s: dtype %d is none of f16 1, bf16 2, f32 3, f64 4", c->who,
                        (int)d->dtype);
    if (d->dtype == STW_F64 && d->bias_dtype == STW_F32)
        return stw_fail(STW_E_UNSUPPORTED, "%s: bias_dtype f32 3 of an f64 problem, accepted: none 0, f64 4 or u8 6",
                        c->who);
    if (d->bias_dtype != STW_DTYPE_NONE && d->bias_dtype != d->dtype && d->bias_dtype != STW_F32 &&
        d->bias_dtype != STW_U8)
        return stw_fail(stw_dtype_status(d->bias_dtype),
                        "%s: bias_dtype %d is neither none 0, dtype %s %d, f32 3 nor u8 6", c->who, (int)d->bias_dtype,
                        stw_dtype_name(d->dtype), (int)d->dtype);
    if (c->kind == STW_PLAN_ATTN_FWD) return STW_OK;
    stw_status status;
    if ((status = resolve_grad_dtype(c, "dq_dtype", &d->dq_dtype, d->dtype)) ||
        (status = resolve_grad_dtype(c, "dk_dtype", &d->dk_dtype, d->dtype)) ||
        (status = resolve_grad_dtype(c, "dv_dtype", &d->dv_dtype, d->dtype)))
        return status;
    if (d->bias_dtype == STW_DTYPE_NONE && d->dbias_dtype != STW_DTYPE_NONE)
        return stw_fail(STW_E_INVALID, "%s: dbias_dtype %d is set, but there is no bias (bias_dtype is 0)", c->who,
                        (int)d->dbias_dtype);
    if (d->bias_dtype == STW_U8 && d->dbias_dtype != STW_DTYPE_NONE)
        return stw_fail(STW_E_INVALID, "%s: dbias_dtype %d is set, but a bias of u8 has no gradient (bias_dtype is 6)",
                        c->who, (int)d->dbias_dtype);
    return d->bias_dtype && d->bias_dtype != STW_U8
               ? resolve_grad_dtype(c, "dbias_dtype", &d->dbias_dtype, d->bias_dtype)
               : STW_OK;
}

static stw_status check_outputs(const check *c) {
    stw_attn_desc *d = c->d;
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {
#define STW_ATTN_GRADIENT(name, BIT) {STW_OUT_##BIT, #name},
#include "common/attn_tensors.def"
    };
    const uint32_t all = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS | STW_OUT_DSINK;
    if (c->kind == STW_PLAN_ATTN_FWD) {
        d->outputs = d->accumulate = 0;
        return STW_OK;
    }
    if (d->outputs & ~all)
        return stw_fail(STW_E_INVALID, "%s: outputs 0x%x has unknown bits: STW_OUT_* are 0x%x", c->who, d->outputs,
                        all);
    if (!d->outputs) d->outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (d->accumulate & ~d->outputs)
        return stw_fail(STW_E_INVALID, "%s: accumulate 0x%x names outputs that are not asked for (outputs 0x%x)",
                        c->who, d->accumulate, d->outputs);
    const stw_dtype dtypes[] = {
#define STW_ATTN_GRADIENT(name, BIT) d->name##_dtype,
#include "common/attn_tensors.def"
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (d->accumulate & names[i].bit && dtypes[i] != stw_dtype_of_rows(d->dtype))
            return stw_fail(dtypes[i] ? STW_E_UNSUPPORTED : STW_E_INVALID, /* none: there is no such output */
                            "%s: accumulate into %s of type %s: only %s outputs accumulate (%s_dtype)", c->who,
                            names[i].name, stw_dtype_name(dtypes[i]), stw_dtype_name(stw_dtype_of_rows(d->dtype)),
                            names[i].name);
    if (d->outputs & STW_OUT_DBIAS && (!stw_desc_has_bias(d) || d->bias_dtype == STW_U8))
        return stw_fail(STW_E_INVALID, "%s: outputs asks for dbias, but %s (bias_dtype is %d)", c->who,
                        stw_desc_has_bias(d) ? "a bias of u8 has no gradient" : "there is no bias", (int)d->bias_dtype);
    if (d->outputs & STW_OUT_DSINK && !(d->flags & STW_ATTN_SINK))
        return stw_fail(STW_E_INVALID, "%s: outputs asks for dsink, but flags lacks STW_ATTN_SINK", c->who);
    return STW_OK;
}

/* A value that only counts with its flag. */
static stw_status check_flagged(const check *c, const char *field, const char *flag_name, uint32_t flag, int64_t value,
                                int64_t low) {
    if (c->d->flags & flag) {
        if (low >= 0 && value < 0)
            return stw_fail(STW_E_INVALID, "%s: %s %lld is negative: leave %s out for a side without bound", c->who,
                            field, (long long)value, flag_name);
        return check_range(c, field, value, low, STW_POSITION_MAX);
    }
    if (!value) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: %s %lld is set without %s in flags", c->who, field, (long long)value,
                    flag_name);
}

static stw_status check_mask(const check *c) {
    const stw_attn_desc *d = c->d;
    const uint32_t known = 2u * STW_ATTN_BLOCK_MASK - 1u; /* the flags are dense, this is the last */
    if ((unsigned)d->mask > STW_MASK_CAUSAL_BOTTOM_RIGHT)
        return stw_fail(STW_E_INVALID, "%s: mask %d is none of none 0, causal top-left 1, causal bottom-right 2",
                        c->who, (int)d->mask);
    if ((unsigned)d->interval_form > STW_INTERVALS_TWO_RANGES)
        return stw_fail(STW_E_INVALID,
                        "%s: interval_form %d is none of none 0, from 1, range 2, from below 3, range below 4, two "
                        "ranges 5",
                        c->who, (int)d->interval_form);
    if (d->flags & ~known)
        return stw_fail(STW_E_INVALID, "%s: flags 0x%x has unknown bits: STW_ATTN_* are 0x%x", c->who, d->flags, known);
    stw_status status;
    if ((status = check_flagged(c, "window_left", "STW_ATTN_HAS_WINDOW_LEFT", STW_ATTN_HAS_WINDOW_LEFT, d->window_left,
                                0)) ||
        (status = check_flagged(c, "window_right", "STW_ATTN_HAS_WINDOW_RIGHT", STW_ATTN_HAS_WINDOW_RIGHT,
                                d->window_right, 0)) ||
        (status = check_flagged(c, "diagonal_shift", "STW_ATTN_HAS_SHIFT", STW_ATTN_HAS_SHIFT, d->diagonal_shift,
                                -STW_POSITION_MAX)))
        return status;
    if (d->flags & STW_ATTN_ALIBI_COLUMN && !(d->flags & STW_ATTN_ALIBI))
        return stw_fail(STW_E_INVALID, "%s: flags has STW_ATTN_ALIBI_COLUMN without STW_ATTN_ALIBI", c->who);
    if (d->flags & STW_ATTN_ALIBI && d->alibi_stride_batch && d->alibi_stride_batch < d->heads_q)
        return stw_fail(d->alibi_stride_batch < 0 ? STW_E_UNSUPPORTED : STW_E_INVALID,
                        "%s: alibi_stride_batch %lld is neither 0 (slopes [Hq]) nor at least heads_q %lld", c->who,
                        (long long)d->alibi_stride_batch, (long long)d->heads_q);
    if (d->flags & STW_ATTN_ALIBI && d->batch > 1 &&
        d->alibi_stride_batch > (INT64_MAX / 8 - d->heads_q) / (d->batch - 1))
        return stw_fail(STW_E_INVALID, "%s: alibi_stride_batch %lld over batch %lld spans more than 2^63 bytes", c->who,
                        (long long)d->alibi_stride_batch, (long long)d->batch);
    return STW_OK;
}

/* What only the backward uses: the forward ignores it. */
static stw_status check_backward(const check *c) {
    const stw_attn_desc *d = c->d;
    if (c->kind == STW_PLAN_ATTN_FWD) return STW_OK;
    if (d->flags & STW_ATTN_GIVEN_DELTA && d->flags & STW_ATTN_DLSE)
        return stw_fail(STW_E_INVALID,
                        "%s: flags has both STW_ATTN_GIVEN_DELTA and STW_ATTN_DLSE: a given delta is "
                        "already minus dLSE",
                        c->who);
    if (d->flags & STW_ATTN_GIVEN_DELTA && d->flags & STW_ATTN_WRITE_DELTA)
        return stw_fail(STW_E_INVALID,
                        "%s: flags has both STW_ATTN_GIVEN_DELTA and STW_ATTN_WRITE_DELTA: delta is "
                        "either an input or an output",
                        c->who);
    return STW_OK;
}

/* What f64 problems have beside scale and softcap; afterwards the two hold what the problem uses. */
static stw_status resolve_f64(const check *c) {
    stw_attn_desc *d = c->d;
    const struct {
        const char *name;
        double value;
    } fields[] = {{"scale_f64", d->scale_f64}, {"softcap_f64", d->softcap_f64}};
    for (int i = 0; i < 2; ++i) {
        if (!isfinite(fields[i].value) || (i && fields[i].value < 0))
            return stw_fail(STW_E_INVALID, "%s: %s %g is neither 0 nor finite%s", c->who, fields[i].name,
                            fields[i].value, i ? " and positive" : "");
        if (d->dtype != STW_F64 && fields[i].value != 0)
            return stw_fail(STW_E_INVALID, "%s: %s %g is set, but dtype is %s: only f64 problems take it", c->who,
                            fields[i].name, fields[i].value, stw_dtype_name(d->dtype));
    }
    if (d->dtype != STW_F64) return STW_OK;
    if (d->softcap_f64 == 0) d->softcap_f64 = (double)d->softcap;
    if (d->scale_f64 == 0)
        d->scale_f64 = d->flags & STW_ATTN_HAS_SCALE ? (double)d->scale : 1.0 / sqrt((double)d->head_dim_qk);
    return STW_OK;
}

static stw_status check_numbers(const check *c) {
    stw_attn_desc *d = c->d;
    stw_status status = resolve_f64(c);
    if (status) return status;
    if (!(d->flags & STW_ATTN_HAS_SCALE)) {
        if (d->scale != 0.0f)
            return stw_fail(STW_E_INVALID, "%s: scale %g is set without STW_ATTN_HAS_SCALE in flags", c->who,
                            (double)d->scale);
        d->scale = (float)(1.0 / sqrt((double)d->head_dim_qk));
        d->flags |= STW_ATTN_HAS_SCALE;
    }
    if (!isfinite(d->scale)) return stw_fail(STW_E_INVALID, "%s: scale %g is not finite", c->who, (double)d->scale);
    if (!isfinite(d->softcap) || d->softcap < 0.0f)
        return stw_fail(STW_E_INVALID, "%s: softcap %g is neither 0 (off) nor finite and positive", c->who,
                        (double)d->softcap);
    if (!(d->dropout_p >= 0.0 && d->dropout_p < 1.0))
        return stw_fail(STW_E_INVALID, "%s: dropout_p %g is not in [0, 1)", c->who, d->dropout_p);
    if ((unsigned)d->dropout_map > STW_DROPOUT_FLASH2)
        return stw_fail(STW_E_INVALID, "%s: dropout_map %d is none of philox 0, mem_eff 1, flash2 2", c->who,
                        (int)d->dropout_map);
    if ((unsigned)d->deterministic > STW_DETERMINISTIC_OFF)
        return stw_fail(STW_E_INVALID, "%s: deterministic %d is none of environment 0, on 1, off 2", c->who,
                        (int)d->deterministic);
    return STW_OK;
}

static stw_status check_shard(const check *c) {
    stw_attn_desc *d = c->d;
    stw_status status;
    if ((status = check_range(c, "batch_offset", d->batch_offset, 0, INT32_MAX)) ||
        (status = check_range(c, "head_offset", d->head_offset, 0, INT32_MAX)) ||
        (status = check_range(c, "heads_total", d->heads_total, 0, INT32_MAX)))
        return status;
    if (!d->heads_total) d->heads_total = d->heads_q;
    if (d->head_offset + d->heads_q > d->heads_total)
        return stw_fail(STW_E_INVALID, "%s: head_offset %lld + heads_q %lld is above heads_total %lld", c->who,
                        (long long)d->head_offset, (long long)d->heads_q, (long long)d->heads_total);
    int64_t heads = (d->batch_offset + d->batch) * d->heads_total;
    if (d->dropout_p > 0.0 && d->dropout_map == STW_DROPOUT_PHILOX && heads > INT64_C(1) << 32)
        return stw_fail(STW_E_UNSUPPORTED,
                        "%s: (batch_offset + batch) * heads_total is %lld, above the 2^32 heads that the "
                        "philox map tells apart",
                        c->who, (long long)heads);
    return STW_OK;
}

stw_status stw_attn_check(stw_attn_desc *desc, stw_plan_kind kind) {
    check c = {desc, stw_plan_kind_name(kind), kind};
    stw_status status;
    if ((status = check_dtypes(&c)) || (status = stw_attn_check_sizes(c.who, desc)) || (status = check_mask(&c)) ||
        (status = check_outputs(&c)) || (status = check_backward(&c)) || (status = check_numbers(&c)) ||
        (status = check_shard(&c)))
        return status;
    return stw_attn_check_strides(desc, kind);
}
