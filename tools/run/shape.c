/* SPDX-License-Identifier: MIT
 *
 * Types and shapes of a problem of `sternway run`: against each other, into the descriptor, and the arrays
 * of the call in the file's own layout (run.h). What a descriptor may hold is left to the library. */
#include "run.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the two sides: dense or packed, the batch, the longest sequence. cu_seqlens is checked here, since the
 * sizes of the problem come from it. */

static int32_t int32_at(const stw_st_tensor *tensor, int64_t index) {
    int32_t value;
    memcpy(&value, (const char *)tensor->data + 4 * index, 4);
    return value;
}

/* Starts of sequences: not decreasing, inside the rows. Finds the longest one. */
static int read_starts(run_problem *p, run_slot slot, int64_t rows, int64_t *batch_out, int64_t *longest_out) {
    const stw_st_tensor *cu = p->inputs[slot];
    const char *name = run_slot_rows[slot].name;
    if (cu->type != STW_ST_I32 || cu->rank != 1 || cu->elements < 1)
        return run_refuse(p, STW_EXIT_USAGE, "%s: int32 [B+1] is accepted", name);
    int32_t before = 0;
    *batch_out = cu->shape[0] - 1;
    *longest_out = 0;
    for (int64_t b = 0; b <= *batch_out; ++b) {
        int32_t start = int32_at(cu, b);
        if (start < before || start > rows)
            return run_refuse(p, STW_EXIT_USAGE,
                              "%s[%lld] = %d: %d..%lld is accepted (not decreasing, within the rows)", name,
                              (long long)b, start, before, (long long)rows);
        if (b > 0 && start - before > *longest_out) *longest_out = start - before;
        before = start;
    }
    return 0;
}

/* One side: `of` is q or k. */
static int read_side(run_problem *p, run_slot of, run_slot cu, int64_t *batch_out, int64_t *max_seq_out,
                     int64_t *total_out) {
    const stw_st_tensor *tensor = p->inputs[of];
    int side = of == RUN_K, packed = p->inputs[cu] != NULL;
    if (tensor->rank != (packed ? 3 : 4))
        return run_refuse(p, STW_EXIT_USAGE, "%s: %d dimensions; %s", run_slot_rows[of].name, tensor->rank,
                          packed ? "[T,H,D] is accepted with cu_seqlens" : "[B,S,H,D] is accepted without cu_seqlens");
    if (packed) {
        int64_t rows = tensor->shape[0];
        int status = read_starts(p, cu, rows, batch_out, max_seq_out);
        if (status) return status;
        *total_out = rows;
        p->desc.flags |= side ? STW_ATTN_PACKED_KV : STW_ATTN_PACKED_Q;
        p->first_row[side] = int32_at(p->inputs[cu], 0);
        p->end_row[side] = int32_at(p->inputs[cu], *batch_out);
        return 0;
    }
    *batch_out = tensor->shape[0];
    *max_seq_out = tensor->shape[1];
    *total_out = 0;
    p->first_row[side] = 0;
    if (__builtin_mul_overflow(*batch_out, *max_seq_out, &p->end_row[side]))
        return run_refuse(p, STW_EXIT_USAGE, "%s: batch * sequence overflows", run_slot_rows[of].name);
    return 0;
}

static int run_shape_lengths(run_problem *p) {
    stw_attn_desc *d = &p->desc;
    int64_t batch_kv = 0;
    int status = read_side(p, RUN_Q, RUN_CU_Q, &d->batch, &d->max_seq_q, &d->total_q);
    if (!status) status = read_side(p, RUN_K, RUN_CU_K, &batch_kv, &d->max_seq_kv, &d->total_kv);
    if (!status && batch_kv != d->batch)
        return run_refuse(p, STW_EXIT_USAGE, "batch is %lld by %s and %lld by %s", (long long)d->batch,
                          p->inputs[RUN_CU_Q] ? "cu_seqlens_q" : "q", (long long)batch_kv,
                          p->inputs[RUN_CU_K] ? "cu_seqlens_k" : "k");
    return status;
}

const char *run_accepts_float(void) { return "F64, F32, F16, BF16"; }

static stw_st_type type_of(stw_dtype dtype) {
    return dtype == STW_F16 ? STW_ST_F16 : dtype == STW_BF16 ? STW_ST_BF16 : dtype == STW_F64 ? STW_ST_F64 : STW_ST_F32;
}

static void shape_text(const int64_t *shape, int rank, char out[160]) {
    stw_text text = stw_text_in(out, 160);
    for (int d = 0; d < rank; ++d) stw_text_add(&text, "%s%lld", d ? "," : "[", (long long)shape[d]);
    stw_text_add(&text, rank ? "]" : "[]");
}

/* Of lse, dlse, delta, slopes, sink and dsink. */
static stw_st_type number_type(const run_problem *p) {
    return type_of(stw_dtype_of_rows(run_dtype_of(p->inputs[RUN_Q]->type)));
}

/* A tensor's shape must be `expected`; `letters` says what that is in words. */
static int expect_shape(run_problem *p, const char *name, const stw_st_tensor *tensor, const char *letters, int rank,
                        const int64_t *expected) {
    if (tensor->rank == rank && !memcmp(tensor->shape, expected, (size_t)rank * sizeof *expected)) return 0;
    char seen[160], wanted[160];
    shape_text(tensor->shape, tensor->rank, seen);
    shape_text(expected, rank, wanted);
    return run_refuse(p, STW_EXIT_USAGE, "%s: shape %s, expected %s = %s", name, seen, letters, wanted);
}

static int expect_type(run_problem *p, run_slot slot) {
    const stw_st_tensor *tensor = p->inputs[slot];
    const char *types = run_slot_rows[slot].types;
    char name[16];
    snprintf(name, sizeof name, " %s ", stw_st_type_name(tensor->type));
    if (!strstr(types, name))
        return run_refuse(p, STW_EXIT_USAGE, "%s: dtype %s;%sis accepted", run_slot_rows[slot].name,
                          stw_st_type_name(tensor->type), types);
    int follows_q = slot == RUN_K || slot == RUN_V || slot == RUN_OUT || slot == RUN_DOUT;
    stw_st_type q = p->inputs[RUN_Q]->type;
    if ((follows_q && tensor->type != q) ||
        (slot == RUN_BIAS && tensor->type != q && tensor->type != STW_ST_F32 && run_dtype_of(tensor->type) != STW_U8) ||
        (slot >= RUN_LSE && slot <= RUN_SINK && slot != RUN_BIAS && tensor->type != number_type(p)))
        return run_refuse(p, STW_EXIT_USAGE, "%s: dtype %s, but q is %s", run_slot_rows[slot].name,
                          stw_st_type_name(tensor->type), stw_st_type_name(q));
    return 0;
}

/* ---- the shape that each array has in the file ------------------------------------------------- */

static void set_shape(run_problem *p, run_slot slot, stw_st_type type, int rank, const int64_t *shape) {
    run_array *array = &p->arrays[slot];
    array->used = 1;
    array->type = type;
    array->rank = rank;
    memcpy(array->shape, shape, (size_t)rank * sizeof *shape);
}

/* Rows of the q or k side, heads and a head dim, dense or packed. */
static int side_shape(const run_problem *p, int kv, int64_t heads, int64_t head_dim, int64_t shape[4]) {
    const stw_attn_desc *d = &p->desc;
    int packed = p->inputs[kv ? RUN_CU_K : RUN_CU_Q] != NULL, rank = 0;
    if (packed) {
        shape[rank++] = p->inputs[kv ? RUN_K : RUN_Q]->shape[0];
    } else {
        shape[rank++] = d->batch;
        shape[rank++] = kv ? d->max_seq_kv : d->max_seq_q;
    }
    shape[rank++] = heads;
    shape[rank++] = head_dim;
    return rank;
}

static int lse_shape(const run_problem *p, int64_t shape[4]) {
    const stw_attn_desc *d = &p->desc;
    int packed = p->inputs[RUN_CU_Q] != NULL, rank = 0;
    if (!packed) shape[rank++] = d->batch;
    shape[rank++] = d->heads_q;
    shape[rank++] = packed ? p->inputs[RUN_Q]->shape[0] : d->max_seq_q;
    return rank;
}

/* Inputs like q, k, v, out, lse; out and lse also when they are to be computed. */
static int main_shapes(run_problem *p) {
    const stw_attn_desc *d = &p->desc;
    int packed_q = p->inputs[RUN_CU_Q] != NULL, packed_k = p->inputs[RUN_CU_K] != NULL, status = 0;
    const struct {
        run_slot slot;
        int kind; /* 0, 1: rows of q, of k; 2: lse */
        int64_t heads, head_dim;
        const char *letters;
    } rows[] = {
        {RUN_Q, 0, d->heads_q, d->head_dim_qk, packed_q ? "[T,Hq,D]" : "[B,Sq,Hq,D]"},
        {RUN_K, 1, d->heads_kv, d->head_dim_qk, packed_k ? "[Tk,Hk,D]" : "[B,Sk,Hk,D]"},
        {RUN_V, 1, d->heads_kv, d->head_dim_v, packed_k ? "[Tk,Hk,Dv]" : "[B,Sk,Hk,Dv]"},
        {RUN_OUT, 0, d->heads_q, d->head_dim_v, packed_q ? "[T,Hq,Dv]" : "[B,Sq,Hq,Dv]"},
        {RUN_DOUT, 0, d->heads_q, d->head_dim_v, packed_q ? "[T,Hq,Dv]" : "[B,Sq,Hq,Dv]"},
        {RUN_LSE, 2, 0, 0, packed_q ? "[Hq,T]" : "[B,Hq,Sq]"},
        {RUN_DLSE, 2, 0, 0, packed_q ? "[Hq,T]" : "[B,Hq,Sq]"},
        {RUN_DELTA, 2, 0, 0, packed_q ? "[Hq,T]" : "[B,Hq,Sq]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !status; ++i) {
        run_slot slot = rows[i].slot;
        const stw_st_tensor *tensor = p->inputs[slot];
        int computed = p->compute_forward && (slot == RUN_OUT || slot == RUN_LSE);
        if (!tensor && !computed) continue;
        int64_t shape[4];
        int rank = rows[i].kind == 2 ? lse_shape(p, shape)
                                     : side_shape(p, rows[i].kind, rows[i].heads, rows[i].head_dim, shape);
        if (tensor) status = expect_shape(p, run_slot_rows[slot].name, tensor, rows[i].letters, rank, shape);
        set_shape(p, slot, rows[i].kind == 2 ? number_type(p) : p->inputs[RUN_Q]->type, rank, shape);
    }
    return status;
}

/* One vector an input: expected [B], [Hq], or also [B,Hq]. */
static int vector_shape(run_problem *p, run_slot slot, const char *letters, int64_t size) {
    const stw_st_tensor *tensor = p->inputs[slot];
    if (!tensor) return 0;
    const int64_t both[2] = {p->desc.batch, size};
    int of_batch = slot == RUN_ALIBI && tensor->rank == 2;
    int rank = of_batch ? 2 : 1;
    if (of_batch) p->desc.alibi_stride_batch = size;
    set_shape(p, slot, tensor->type, rank, of_batch ? both : &size);
    return expect_shape(p, run_slot_rows[slot].name, tensor, of_batch ? "[B,Hq]" : letters, rank,
                        of_batch ? both : &size);
}

static int vector_shapes(run_problem *p) {
    const stw_attn_desc *d = &p->desc;
    int status = vector_shape(p, RUN_ALIBI, "[Hq] (or [B,Hq])", d->heads_q);
    if (!status) status = vector_shape(p, RUN_SINK, "[Hq]", d->heads_q);
    if (!status) status = vector_shape(p, RUN_CU_Q, "[B+1]", d->batch + 1);
    if (!status) status = vector_shape(p, RUN_CU_K, "[B+1]", d->batch + 1);
    if (!status) status = vector_shape(p, RUN_USED_Q, "[B]", d->batch);
    if (!status) status = vector_shape(p, RUN_USED_K, "[B]", d->batch);
    if (!status) status = vector_shape(p, RUN_Q_OFFSETS, "[B]", d->batch);
    if (!status) status = vector_shape(p, RUN_K_OFFSETS, "[B]", d->batch);
    return status;
}

/* Extents of 1 are broadcast: stride 0. */
static int bias_shape(run_problem *p) {
    const stw_st_tensor *bias = p->inputs[RUN_BIAS];
    stw_attn_desc *d = &p->desc;
    if (!bias) return 0;
    const int64_t full[4] = {d->batch, d->heads_q, d->max_seq_q, d->max_seq_kv};
    int64_t strides[4], next = 1;
    int fits = bias->rank == 4;
    for (int i = 0; i < 4 && fits; ++i) fits = bias->shape[i] == 1 || bias->shape[i] == full[i];
    if (!fits) return expect_shape(p, "bias", bias, "[1|B,1|Hq,1|Sq,1|Sk], at most", 4, full);
    for (int i = 3; i >= 0; --i) {
        strides[i] = bias->shape[i] == 1 ? 0 : next;
        next *= bias->shape[i] > 0 ? bias->shape[i] : 1;
    }
    d->bias = (stw_bias_strides){strides[0], strides[1], strides[2], strides[3]};
    d->dbias = d->bias;
    d->bias_dtype = run_dtype_of(bias->type);
    set_shape(p, RUN_BIAS, bias->type, 4, bias->shape);
    return 0;
}

/* Heads of 1: one mask for all. Packed keys are numbered through the pack. */
static int intervals_shape(run_problem *p) {
    static const int64_t bounds[] = {0, 1, 2, 2, 3, 4};
    const stw_st_tensor *tensor = p->inputs[RUN_INTERVALS];
    stw_attn_desc *d = &p->desc;
    if (!tensor != !d->interval_form)
        return run_refuse(p, STW_EXIT_USAGE, "intervals and metadata interval_form: one is given without the other");
    if (!tensor) return 0;
    int packed = p->inputs[RUN_CU_K] != NULL, heads = tensor->rank == 4 && tensor->shape[1] == 1 ? 1 : (int)d->heads_kv;
    const int64_t shape[4] = {packed ? 1 : d->batch, heads, packed ? p->inputs[RUN_K]->shape[0] : d->max_seq_kv,
                              bounds[d->interval_form]};
    int status = expect_shape(p, "intervals", tensor, packed ? "[1,1|Hk,T,bounds]" : "[B,1|Hk,Sk,bounds]", 4, shape);
    if (status) return status;
    d->intervals = (stw_interval_strides){packed ? 0 : heads * shape[2] * shape[3], heads > 1 ? shape[2] * shape[3] : 0,
                                          shape[3], 1};
    set_shape(p, RUN_INTERVALS, tensor->type, 4, shape);
    return 0;
}

static int block_mask_shape(run_problem *p) {
    const stw_st_tensor *tensor = p->inputs[RUN_BLOCK_MASK];
    stw_attn_desc *d = &p->desc;
    if (!tensor) return 0;
    int64_t heads = tensor->rank == 4 && tensor->shape[1] == 1 ? 1 : d->heads_q;
    const int64_t shape[4] = {d->batch, heads, (d->max_seq_q + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK,
                              (d->max_seq_kv + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK};
    int status = expect_shape(p, "block_mask", tensor, "[B,1|Hq,Sq/128,Sk/128]", 4, shape);
    if (status) return status;
    d->flags |= STW_ATTN_BLOCK_MASK;
    d->block_mask =
        (stw_block_mask_strides){heads * shape[2] * shape[3], heads > 1 ? shape[2] * shape[3] : 0, shape[3], 1};
    set_shape(p, RUN_BLOCK_MASK, tensor->type, 4, shape);
    return 0;
}

/* Gradients have the shapes of their inputs. */
static int output_shapes(run_problem *p) {
    const run_slot source[STW_GRAD_COUNT] = {RUN_Q, RUN_K, RUN_V, RUN_BIAS, RUN_SINK};
    const stw_attn_desc *d = &p->desc;
    const stw_dtype asked[STW_GRAD_COUNT] = {d->dq_dtype, d->dk_dtype, d->dv_dtype, d->dbias_dtype,
                                             stw_dtype_of_rows(d->dtype)};
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        const run_array *from = &p->arrays[source[g]];
        if (!from->used || (g == STW_GRAD_DBIAS && d->bias_dtype == STW_U8)) continue;
        set_shape(p, (run_slot)(RUN_DQ + g), asked[g] ? type_of(asked[g]) : from->type, from->rank, from->shape);
        const stw_st_tensor *reference = p->references[g];
        if (!reference) continue;
        char name[16];
        snprintf(name, sizeof name, "%s_ref", stw_grad_names[g]);
        if (!strstr(run_accepts_float(), stw_st_type_name(reference->type)))
            return run_refuse(p, STW_EXIT_USAGE, "%s: dtype %s; %s is accepted", name,
                              stw_st_type_name(reference->type), run_accepts_float());
        if (expect_shape(p, name, reference, "the shape of its input", from->rank, from->shape)) return p->exit_status;
    }
    return 0;
}

static void set_flags(run_problem *p) {
    stw_attn_desc *d = &p->desc;
    d->outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (p->inputs[RUN_BIAS] && run_dtype_of(p->inputs[RUN_BIAS]->type) != STW_U8) d->outputs |= STW_OUT_DBIAS;
    else d->dbias_dtype = STW_DTYPE_NONE;
    if (p->inputs[RUN_SINK]) {
        d->outputs |= STW_OUT_DSINK;
        d->flags |= STW_ATTN_SINK;
    }
    if (p->inputs[RUN_ALIBI]) d->flags |= STW_ATTN_ALIBI;
    if (p->inputs[RUN_DLSE]) d->flags |= STW_ATTN_DLSE;
    if (p->inputs[RUN_DELTA]) d->flags |= STW_ATTN_GIVEN_DELTA;
    if (p->inputs[RUN_USED_Q] || p->inputs[RUN_USED_K]) d->flags |= STW_ATTN_HAS_USED_LENGTHS;
}

/* The mask as FlashAttention reads its own pair of windows. */
static int read_flash(run_problem *p) {
    if (!p->flash.given) return 0;
    if (p->desc.mask || p->desc.flags & (STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SHIFT |
                                         STW_ATTN_ALIBI_COLUMN))
        return run_refuse(p, STW_EXIT_USAGE,
                          "metadata flash_*: they say the whole mask; mask, window_*, diagonal_shift and "
                          "alibi_column are not accepted beside them");
    if (stw_attn_mask_from_flash(&p->desc, p->flash.causal, p->flash.left, p->flash.right))
        return run_refuse(p, STW_EXIT_USAGE, "%s", stw_last_error());
    return 0;
}

int run_shape(run_problem *p) {
    stw_attn_desc *d = &p->desc;
    int status = 0;
    for (int slot = 0; slot < RUN_INPUTS && !status; ++slot)
        if (p->inputs[slot]) status = expect_type(p, (run_slot)slot);
    if (!status) status = run_shape_lengths(p);
    if (status) return status;
    const stw_st_tensor *q = p->inputs[RUN_Q], *k = p->inputs[RUN_K], *v = p->inputs[RUN_V];
    d->dtype = run_dtype_of(q->type);
    if (d->dtype != STW_F64) d->scale_f64 = d->softcap_f64 = 0;
    d->heads_q = q->shape[q->rank - 2];
    d->head_dim_qk = q->shape[q->rank - 1];
    d->heads_kv = k->shape[k->rank - 2];
    d->head_dim_v = v->rank == k->rank ? v->shape[v->rank - 1] : d->head_dim_qk;
    set_flags(p);
    status = read_flash(p);
    if (status) return status;
    status = stw_attn_is_packed(d, 0) || stw_attn_is_packed(d, 1) ? stw_layout_thd(d) : stw_layout_bshd(d);
    if (status) return run_refuse(p, STW_EXIT_USAGE, "%s", stw_last_error());
    status = main_shapes(p);
    if (!status) status = vector_shapes(p);
    if (!status) status = bias_shape(p);
    if (!status) status = intervals_shape(p);
    if (!status) status = block_mask_shape(p);
    if (!status) status = output_shapes(p);
    return status;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static int fill_array(run_problem *p, run_slot slot, size_t spare) {
    run_array *array = &p->arrays[slot];
    size_t bytes = stw_st_type_bits(array->type) / 8;
    for (int d = 0; d < array->rank; ++d)
        if (__builtin_mul_overflow(bytes, (size_t)array->shape[d], &bytes)) bytes = SIZE_MAX / 2;
    array->bytes = bytes;
    if (bytes >= SIZE_MAX / 2 - spare || posix_memalign(&array->host, 256, bytes + spare)) {
        array->host = NULL;
        return run_refuse(p, STW_EXIT_FAILED, "%s: no memory for %zu bytes", run_slot_rows[slot].name, bytes);
    }
    array->capacity = bytes + spare;
    /* what the call writes is poisoned, so that rows it forgets do not look like zeros */
    memset(array->host, slot < RUN_INPUTS ? 0 : 0xFF, array->capacity);
    const stw_st_tensor *tensor = slot < RUN_INPUTS ? p->inputs[slot] : NULL;
    if (tensor) memcpy(array->host, tensor->data, bytes);
    return 0;
}

int run_fill(run_problem *p) {
    const stw_attn_desc *d = &p->desc;
    /* a packed side without rows is described as one row (read_side) */
    int64_t heads = d->heads_q > d->heads_kv ? d->heads_q : d->heads_kv;
    int64_t dim = d->head_dim_qk > d->head_dim_v ? d->head_dim_qk : d->head_dim_v;
    size_t spare = (size_t)(heads * dim) * stw_dtype_size(STW_F64) + 64;
    int status = 0;
    for (int slot = 0; slot < RUN_SLOTS && !status; ++slot)
        if (p->arrays[slot].used) status = fill_array(p, (run_slot)slot, spare);
    return status;
}
