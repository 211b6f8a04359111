/* SPDX-License-Identifier: MIT
 *
 * Problems for the oracle's tests: see fixture.h. */
#include "tests/reference/fixture.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void *fixture_buffer(fixture *f, int64_t elements, size_t size) {
    size_t bytes = (size_t)(elements > 0 ? elements : 1) * size;
    assert_true(f->count < FIXTURE_BUFFERS);
    unsigned char *data = malloc(bytes);
    assert_non_null(data);
    memset(data, 0xFF, bytes); /* a NaN in every element type */
    f->buffers[f->count] = data;
    f->bytes[f->count++] = bytes;
    return data;
}

void *fixture_copy(fixture *f, const void *buffer) {
    for (int n = 0; n < f->count; ++n) {
        if (f->buffers[n] != buffer) continue;
        void *copy = fixture_buffer(f, (int64_t)f->bytes[n], 1);
        memcpy(copy, buffer, f->bytes[n]);
        return copy;
    }
    fail_msg("not a buffer of this fixture");
    return NULL;
}

fixture fixture_start(void) {
    fixture f = {.desc = STW_INIT(stw_attn_desc), .args = STW_INIT(stw_attn_args), .state = 1};
    f.desc.dtype = STW_F32;
    f.desc.batch = 2;
    f.desc.heads_q = 4;
    f.desc.heads_kv = 2;
    f.desc.max_seq_q = 5;
    f.desc.max_seq_kv = 7;
    f.desc.head_dim_qk = 3;
    f.desc.head_dim_v = 4;
    return f;
}

void fixture_free(fixture *f) {
    for (int n = 0; n < f->count; ++n) free(f->buffers[n]);
    f->count = 0;
}

float fixture_random(fixture *f) {
    int sum = 0;
    for (int n = 0; n < 4; ++n) {
        f->state = f->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (int)(f->state >> 54); /* 0..1023 */
    }
    return (float)(sum - 2046) / 512.0f;
}

int64_t fixture_rows_q(const fixture *f, int64_t b) {
    return stw_attn_is_packed(&f->desc, 0) ? f->args.cu_seqlens_q[b + 1] - f->args.cu_seqlens_q[b] : f->desc.max_seq_q;
}

int64_t fixture_rows_kv(const fixture *f, int64_t b) {
    return stw_attn_is_packed(&f->desc, 1) ? f->args.cu_seqlens_kv[b + 1] - f->args.cu_seqlens_kv[b]
                                           : f->desc.max_seq_kv;
}

int64_t fixture_used_q(const fixture *f, int64_t b) {
    return f->args.used_q ? f->args.used_q[b] : fixture_rows_q(f, b);
}

int64_t fixture_used_kv(const fixture *f, int64_t b) {
    return f->args.used_kv ? f->args.used_kv[b] : fixture_rows_kv(f, b);
}

int64_t fixture_result_row_q(const fixture *f, int64_t b, int64_t i) {
    return i + (stw_attn_is_packed(&f->desc, 0) ? f->args.cu_seqlens_q[b] : b * f->desc.max_seq_q);
}

int64_t fixture_result_row_kv(const fixture *f, int64_t b, int64_t j) {
    return j + (stw_attn_is_packed(&f->desc, 1) ? f->args.cu_seqlens_kv[b] : b * f->desc.max_seq_kv);
}

int64_t fixture_index(const fixture *f, fixture_tensor tensor, int64_t b, int64_t h, int64_t i, int64_t d) {
    const stw_attn_desc *x = &f->desc;
    const stw_attn_strides *strides[] = {&x->q, &x->k, &x->v, &x->out, &x->dout, &x->dq, &x->dk, &x->dv};
    const stw_attn_strides *s = strides[tensor];
    int kv = tensor == FIXTURE_K || tensor == FIXTURE_V || tensor == FIXTURE_DK || tensor == FIXTURE_DV;
    const int32_t *starts = kv ? f->args.cu_seqlens_kv : f->args.cu_seqlens_q;
    if (stw_attn_is_packed(x, kv)) return (starts[b] + i) * s->seq + h * s->head + d;
    return b * s->batch + h * s->head + i * s->seq + d;
}

int64_t fixture_row_index(const fixture *f, const stw_attn_strides *s, int64_t b, int64_t h, int64_t i) {
    if (stw_attn_is_packed(&f->desc, 0) && s->batch == 0) return (f->args.cu_seqlens_q[b] + i) * s->seq + h * s->head;
    return b * s->batch + h * s->head + i * s->seq;
}

int64_t fixture_bias_index(const fixture *f, int64_t b, int64_t h, int64_t i, int64_t j) {
    const stw_bias_strides *s = &f->desc.bias;
    return b * s->batch + h * s->head + i * s->query + j * s->key;
}

/* Strides with a gap behind every row, and one behind every outer dimension; returns the span. */
static int64_t fixture_strides(const fixture *f, stw_attn_strides *s, int64_t heads, int64_t seq, int64_t total,
                               int64_t dim) {
    int64_t rows = total ? total : seq, batches = total ? 1 : f->desc.batch;
    if (f->layout == FIXTURE_BSHD) {
        s->head = dim + 1;
        s->seq = heads * s->head + 2;
        s->batch = rows * s->seq + 3;
    } else {
        s->seq = dim + 1;
        s->head = rows * s->seq + 2;
        s->batch = heads * s->head + 3;
    }
    if (total) s->batch = 12345; /* ignored on a packed side */
    return batches * (total ? (f->layout == FIXTURE_BSHD ? rows * s->seq : heads * s->head) : s->batch) + 3;
}

/* `gap` differs between lse, dlse and delta, so that none is read with another's strides. */
static int64_t fixture_lse_strides(const fixture *f, stw_attn_strides *s, int64_t gap) {
    const stw_attn_desc *d = &f->desc;
    int through_pack = stw_attn_is_packed(d, 0) && !f->lse_local;
    int64_t rows = through_pack ? d->total_q : d->max_seq_q;
    s->head = f->lse_by_head_last ? 1 : rows + gap;
    s->seq = f->lse_by_head_last ? d->heads_q + gap : 1;
    int64_t span = f->lse_by_head_last ? rows * s->seq : d->heads_q * s->head;
    s->batch = through_pack ? 0 : span + 2;
    return through_pack ? span : d->batch * s->batch;
}

static int64_t fixture_bias_strides(const fixture *f, stw_bias_strides *s) {
    const stw_attn_desc *d = &f->desc;
    int64_t extent[4] = {d->batch, d->heads_q, d->max_seq_q, d->max_seq_kv}, stride[4], span = 1;
    for (int n = 3; n >= 0; --n) {
        int broadcast = (f->bias_broadcast >> n) & 1;
        stride[n] = broadcast ? 0 : span;
        if (!broadcast) span = span * extent[n] + (n < 3); /* a gap, but keys are contiguous */
    }
    *s = (stw_bias_strides){stride[0], stride[1], stride[2], stride[3]};
    return span + 1;
}

static void fixture_allocate(fixture *f) {
    stw_attn_desc *d = &f->desc;
    stw_attn_args *a = &f->args;
    size_t size = stw_dtype_size(d->dtype), number = stw_dtype_size(stw_dtype_of_rows(d->dtype));
    int64_t hq = d->heads_q, hk = d->heads_kv, sq = d->max_seq_q, sk = d->max_seq_kv, tq = d->total_q, tk = d->total_kv;
    int64_t dim = d->head_dim_qk, dim_v = d->head_dim_v;
    a->q = fixture_buffer(f, fixture_strides(f, &d->q, hq, sq, tq, dim), size);
    a->k = fixture_buffer(f, fixture_strides(f, &d->k, hk, sk, tk, dim), size);
    a->v = fixture_buffer(f, fixture_strides(f, &d->v, hk, sk, tk, dim_v), size);
    a->out = fixture_buffer(f, fixture_strides(f, &d->out, hq, sq, tq, dim_v), size);
    a->dout = fixture_buffer(f, fixture_strides(f, &d->dout, hq, sq, tq, dim_v), size);
    size_t size_dq = stw_dtype_size(d->dq_dtype ? d->dq_dtype : d->dtype);
    size_t size_dk = stw_dtype_size(d->dk_dtype ? d->dk_dtype : d->dtype);
    size_t size_dv = stw_dtype_size(d->dv_dtype ? d->dv_dtype : d->dtype);
    a->dq = fixture_buffer(f, fixture_strides(f, &d->dq, hq, sq, tq, dim), size_dq);
    a->dk = fixture_buffer(f, fixture_strides(f, &d->dk, hk, sk, tk, dim), size_dk);
    a->dv = fixture_buffer(f, fixture_strides(f, &d->dv, hk, sk, tk, dim_v), size_dv);
    a->lse = fixture_buffer(f, fixture_lse_strides(f, &d->lse, 1), number);
    a->dlse = fixture_buffer(f, fixture_lse_strides(f, &d->dlse, 3), number);
    a->delta = fixture_buffer(f, fixture_lse_strides(f, &d->delta, 2), number);
    a->alibi_slopes = fixture_buffer(f, d->batch * d->heads_q + d->alibi_stride_batch * d->batch, number);
    a->sink = fixture_buffer(f, hq, number);
    a->dsink = fixture_buffer(f, hq, number);
    if (!d->bias_dtype) return;
    a->bias = fixture_buffer(f, fixture_bias_strides(f, &d->bias), stw_dtype_size(d->bias_dtype));
    stw_dtype dbias = d->dbias_dtype ? d->dbias_dtype : d->bias_dtype;
    a->dbias = fixture_buffer(f, fixture_bias_strides(f, &d->dbias), stw_dtype_size(dbias));
}

/* The generator's number; in f64 problems with digits that no other type holds. */
static void fixture_put(fixture *f, const void *data, int64_t index, stw_dtype dtype) {
    double value = (double)fixture_random(f);
    if (dtype == STW_F64) value += 0x1p-40 * (double)fixture_random(f);
    stw_store_f64((void *)(uintptr_t)data, index, dtype, value);
}

static void fixture_fill(fixture *f, fixture_tensor tensor, const void *data, int64_t heads, int64_t dim, int kv) {
    for (int64_t b = 0; b < f->desc.batch; ++b) {
        int64_t rows = kv ? fixture_used_kv(f, b) : fixture_used_q(f, b);
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t n = 0; n < heads * dim; ++n) {
                int64_t index = fixture_index(f, tensor, b, n / dim, i, n % dim);
                fixture_put(f, data, index, f->desc.dtype);
            }
        }
    }
}

void fixture_run_forward(fixture *f) {
    const stw_attn_desc *d = &f->desc;
    stw_ref_result r;
    assert_int_equal(stw_ref_attn_fwd(d, &f->args, &r), STW_OK);
    for (int64_t b = 0; b < d->batch; ++b) {
        for (int64_t n = 0; n < fixture_used_q(f, b) * d->heads_q; ++n) {
            int64_t i = n / d->heads_q, h = n % d->heads_q, row = fixture_result_row_q(f, b, i);
            stw_store_f64(f->args.lse, fixture_row_index(f, &d->lse, b, h, i), stw_dtype_of_rows(d->dtype),
                          r.lse[h * r.rows_q + row]);
            for (int64_t e = 0; e < d->head_dim_v; ++e) {
                double value = r.out[(row * d->heads_q + h) * d->head_dim_v + e];
                stw_store_f64(f->args.out, fixture_index(f, FIXTURE_OUT, b, h, i, e), d->dtype, value);
            }
        }
    }
    stw_ref_free(&r);
}

static void fixture_fill_features(fixture *f) {
    const stw_attn_desc *d = &f->desc;
    void *slopes = (void *)(uintptr_t)f->args.alibi_slopes, *sink = (void *)(uintptr_t)f->args.sink;
    const stw_dtype number = stw_dtype_of_rows(d->dtype);
    for (int64_t b = 0; b < d->batch; ++b) {
        for (int64_t h = 0; h < d->heads_q; ++h) {
            stw_store_f64(slopes, b * d->alibi_stride_batch + h, number,
                          0.0625 * (double)(1 + h + 3 * (d->alibi_stride_batch ? b : 0)));
            stw_store_f64(sink, h, number, 0.25 * (double)h - 0.5);
            for (int64_t i = 0; i < fixture_used_q(f, b); ++i) {
                fixture_put(f, f->args.dlse, fixture_row_index(f, &d->dlse, b, h, i), number);
                for (int64_t j = 0; d->bias_dtype && j < fixture_used_kv(f, b); ++j) {
                    int64_t at = fixture_bias_index(f, b, h, i, j);
                    if (d->bias_dtype == STW_U8)
                        ((unsigned char *)(uintptr_t)f->args.bias)[at] =
                            fixture_random(f) < 0 ? 0 : (unsigned char)(1 + at);
                    else fixture_put(f, f->args.bias, at, d->bias_dtype);
                }
            }
        }
    }
}

void fixture_build(fixture *f) {
    const stw_attn_desc *d = &f->desc;
    fixture_allocate(f);
    fixture_fill(f, FIXTURE_Q, f->args.q, d->heads_q, d->head_dim_qk, 0);
    fixture_fill(f, FIXTURE_K, f->args.k, d->heads_kv, d->head_dim_qk, 1);
    fixture_fill(f, FIXTURE_V, f->args.v, d->heads_kv, d->head_dim_v, 1);
    fixture_fill(f, FIXTURE_DOUT, f->args.dout, d->heads_q, d->head_dim_v, 0);
    fixture_fill_features(f);
    fixture_run_forward(f);
}

static void fixture_store_rows(const fixture *f, fixture_tensor tensor, void *data, stw_dtype dtype,
                               const double *from) {
    const stw_attn_desc *d = &f->desc;
    int kv = tensor != FIXTURE_DQ;
    int64_t heads = kv ? d->heads_kv : d->heads_q, dim = tensor == FIXTURE_DV ? d->head_dim_v : d->head_dim_qk;
    for (int64_t b = 0; from && b < d->batch; ++b) {
        for (int64_t i = 0; i < (kv ? fixture_rows_kv(f, b) : fixture_rows_q(f, b)); ++i) {
            int64_t row = kv ? fixture_result_row_kv(f, b, i) : fixture_result_row_q(f, b, i);
            for (int64_t n = 0; n < heads * dim; ++n) {
                int64_t index = fixture_index(f, tensor, b, n / dim, i, n % dim);
                stw_store_f64(data, index, dtype ? dtype : d->dtype, from[row * heads * dim + n]);
            }
        }
    }
}

void fixture_store(fixture *f, const stw_ref_result *r) {
    const stw_attn_desc *d = &f->desc;
    fixture_store_rows(f, FIXTURE_DQ, f->args.dq, d->dq_dtype, r->dq);
    fixture_store_rows(f, FIXTURE_DK, f->args.dk, d->dk_dtype, r->dk);
    fixture_store_rows(f, FIXTURE_DV, f->args.dv, d->dv_dtype, r->dv);
    for (int64_t h = 0; r->dsink && h < d->heads_q; ++h)
        stw_store_f64(f->args.dsink, h, stw_dtype_of_rows(d->dtype), r->dsink[h]);
    if (!r->dbias) return;
    const int64_t *e = r->bias_extent;
    stw_dtype dtype = d->dbias_dtype ? d->dbias_dtype : d->bias_dtype;
    for (int64_t n = 0; n < e[0] * e[1] * e[2] * e[3]; ++n) {
        int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
        const stw_bias_strides *s = &d->dbias;
        int64_t index = b * s->batch + h * s->head + i * s->query + j * s->key;
        stw_store_f64(f->args.dbias, index, dtype, r->dbias[n]);
    }
}
