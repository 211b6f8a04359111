/* SPDX-License-Identifier: MIT
 *
 * `conform --large`, filled problems: every element of tensors of more than 2^31 elements has data. The host
 * holds none of them: inputs repeat a random block (of a prime number of elements, so that an index that lost
 * its high bits finds other data), copied from buffer to buffer, and only rows that are verified come back
 * (conform_part.c). Called by conform_large.c. */
#include "filled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attn_packed.h"
#include "common/dtype.h"

#define GUARD_BYTES ((size_t)4096)
#define GUARD_VALUE 0xA5

int filled_is_input(int t) {
    return t == STW_CASE_Q || t == STW_CASE_K || t == STW_CASE_V || t == STW_CASE_DOUT || t == STW_CASE_BIAS;
}

uint32_t filled_outputs_of(const stw_attn_desc *d) {
    return d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
}

stw_dtype filled_dtype_of(const stw_attn_desc *d, int t) {
    if (t == STW_CASE_DQ) return d->dq_dtype ? d->dq_dtype : d->dtype;
    if (t == STW_CASE_DK) return d->dk_dtype ? d->dk_dtype : d->dtype;
    if (t == STW_CASE_DV) return d->dv_dtype ? d->dv_dtype : d->dtype;
    if (t == STW_CASE_BIAS) return d->bias_dtype;
    return t <= STW_CASE_DOUT ? d->dtype : stw_dtype_of_rows(d->dtype);
}

stw_status filled_no_memory(const filled *f, size_t bytes) {
    stw_case_fail(f->result, "no memory for %zu bytes on the host", bytes);
    return STW_E_NO_MEMORY;
}

static int is_present(const stw_attn_desc *d, int t) {
    switch (t) {
    case STW_CASE_DQ: return (filled_outputs_of(d) & STW_OUT_DQ) != 0;
    case STW_CASE_DK: return (filled_outputs_of(d) & STW_OUT_DK) != 0;
    case STW_CASE_DV: return (filled_outputs_of(d) & STW_OUT_DV) != 0;
    case STW_CASE_BIAS: return d->bias_dtype != STW_DTYPE_NONE;
    case STW_CASE_CU_Q: return stw_attn_is_packed(d, 0);
    case STW_CASE_CU_KV: return stw_attn_is_packed(d, 1);
    default: return t <= STW_CASE_LSE;
    }
}

/* Features whose arrays or judgement the sampling does not have. */
static int is_sampled(const stw_problem *p) {
    uint32_t flags = STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA |
                     STW_ATTN_ALIBI | STW_ATTN_SINK | STW_ATTN_DLSE;
    return p->op == STW_PROBLEM_ATTN_BWD && !(p->desc.flags & flags) && !p->desc.accumulate &&
           !(filled_outputs_of(&p->desc) & (STW_OUT_DBIAS | STW_OUT_DSINK)) && !p->by_pointer &&
           !p->q_offsets.count && !p->k_offsets.count && p->desc.bias_dtype != STW_U8 &&
           !(p->desc.dropout_p > 0 && p->desc.dropout_map != STW_DROPOUT_PHILOX);
}

/* ---- buffers --------------------------------------------------------------------------------------------
 */

stw_status filled_repeat(stw_context *context, unsigned char *to, const void *block, size_t block_bytes,
                         size_t bytes) {
    size_t have = block_bytes < bytes ? block_bytes : bytes;
    stw_status status = stw_copy(context, to, block, have, NULL);
    while (!status && have < bytes) { /* by doubling what is there */
        size_t more = have < bytes - have ? have : bytes - have;
        status = stw_copy(context, to + have, to, more, NULL);
        have += more;
    }
    return status ? status : stw_stream_synchronize(context, NULL);
}

static void *make_block(const filled *f, int t, stw_dtype dtype) {
    unsigned char *block = malloc((size_t)FILLED_BLOCK * stw_dtype_size(dtype));
    if (!block) return NULL;
    if (!filled_is_input(t)) return memset(block, 0xFF, (size_t)FILLED_BLOCK * stw_dtype_size(dtype));
    for (int64_t i = 0; i < FILLED_BLOCK; ++i)
        stw_store_f64(block, i, dtype,
                      stw_case_normal((uint64_t)f->c.problem.seed, (uint64_t)t, (uint64_t)i));
    return block;
}

static stw_status place_starts(filled *f, int t) {
    const stw_case_span *spans = t == STW_CASE_CU_Q ? f->c.q : f->c.kv;
    int64_t batch = f->c.problem.desc.batch;
    int32_t *starts = malloc(((size_t)batch + 1) * sizeof *starts);
    if (!starts) return filled_no_memory(f, 0);
    for (int64_t b = 0; b < batch; ++b) starts[b] = (int32_t)spans[b].first;
    starts[batch] = (int32_t)(batch ? spans[batch - 1].first + spans[batch - 1].rows : 0);
    stw_status status = stw_copy(f->context, f->device[t], starts, f->bytes[t], NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    free(starts);
    return status;
}

static stw_status place(filled *f, int t) {
    static unsigned char guard[GUARD_BYTES];
    const stw_attn_desc *d = &f->c.problem.desc;
    stw_dtype dtype = filled_dtype_of(d, t);
    void *buffer = NULL;
    f->bytes[t] = stw_case_reach(d, (stw_case_tensor)t);
    if (f->bytes[t] > SIZE_MAX / 2) return filled_no_memory(f, f->bytes[t]);
    stw_status status = stw_buffer_alloc(f->context, f->bytes[t] + GUARD_BYTES, &buffer);
    if (status) return status;
    f->device[t] = buffer;
    memset(guard, GUARD_VALUE, sizeof guard);
    status = stw_copy(f->context, f->device[t] + f->bytes[t], guard, GUARD_BYTES, NULL);
    if (status) return status;
    if (t == STW_CASE_CU_Q || t == STW_CASE_CU_KV) return place_starts(f, t);
    unsigned char *block = make_block(f, t, dtype);
    if (!block) return filled_no_memory(f, 0);
    f->block[t] = block;
    return filled_repeat(f->context, f->device[t], block, (size_t)FILLED_BLOCK * stw_dtype_size(dtype),
                         f->bytes[t]);
}

static stw_status check_guards(const filled *f) {
    unsigned char guard[GUARD_BYTES];
    for (int t = 0; t < STW_CASE_TENSOR_COUNT; ++t) {
        if (!f->device[t]) continue;
        stw_status status = stw_copy(f->context, guard, f->device[t] + f->bytes[t], sizeof guard, NULL);
        if (!status) status = stw_stream_synchronize(f->context, NULL);
        if (status) return status;
        for (size_t i = 0; i < sizeof guard; ++i)
            if (guard[i] != GUARD_VALUE)
                stw_case_fail(f->result, "byte %zu behind %s was written", i, stw_case_tensor_names[t]);
    }
    return STW_OK;
}

/* ---- running --------------------------------------------------------------------------------------------
 */

static stw_status run(filled *f) {
    stw_plan *forward = NULL, *backward = NULL;
    stw_attn_args args = STW_INIT(stw_attn_args);
    stw_status status = stw_attn_fwd_plan(f->context, &f->c.problem.desc, &forward);
    if (!status) status = stw_attn_bwd_plan(f->context, &f->c.problem.desc, &backward);
    size_t bytes = 0;
    if (!status) {
        size_t more = stw_plan_workspace_size(forward);
        bytes = stw_plan_workspace_size(backward);
        bytes = more > bytes ? more : bytes;
        stw_case_note_variant(backward, f->result);
        status = stw_buffer_alloc(f->context, bytes, &f->workspace);
    }
    for (int t = 0; !status && t < STW_CASE_TENSOR_COUNT; ++t)
        if (is_present(&f->c.problem.desc, t)) status = place(f, t);
#define FILLED_POINTER(id, field) args.field = (void *)f->device[STW_CASE_##id];
    STW_CASE_TENSORS(FILLED_POINTER)
#undef FILLED_POINTER
    args.q_offset = f->c.problem.q_offset, args.k_offset = f->c.problem.k_offset;
    args.dropout_seed = (uint64_t)f->c.problem.dropout_seed;
    args.dropout_offset = (uint64_t)f->c.problem.dropout_offset;
    if (!status) status = stw_attn_fwd(forward, &args, f->workspace, bytes, NULL);
    if (!status) status = stw_attn_bwd(backward, &args, f->workspace, bytes, NULL);
    if (!status) status = stw_stream_synchronize(f->context, NULL);
    stw_plan_destroy(forward);
    stw_plan_destroy(backward);
    if (!status) status = check_guards(f);
    return status ? status : filled_verify(f);
}

/* The system ends a process that touches more memory than there is; a GPU's allocation just fails. */
static int fits_host(const filled *f) {
    return strcmp(stw_context_arch(f->context), "cpu") ||
           1.6 * (double)conform_tensor_bytes(&f->c.problem.desc) < conform_memory();
}

stw_status conform_filled_check(const stw_problem *problem, stw_context *context, stw_case_result *result) {
    filled f = {.c = {.problem = *problem}, .context = context, .result = result};
    size_t batch = (size_t)problem->desc.batch;
    if (!is_sampled(problem)) {
        stw_case_fail(result, "--large samples dq, dk, dv of plain, masked, biased and philox problems only");
        result->outcome = STW_CASE_SKIP;
        return STW_OK;
    }
    if (!fits_host(&f))
        return stw_case_fail(result, "needs more memory than there is: %.1f GiB and the workspace",
                             (double)conform_tensor_bytes(&problem->desc) * 0x1p-30),
               STW_E_NO_MEMORY;
    f.c.q = calloc(batch + 1, sizeof *f.c.q);
    f.c.kv = calloc(batch + 1, sizeof *f.c.kv);
    stw_status status = f.c.q && f.c.kv ? STW_OK : filled_no_memory(&f, batch);
    if (!status) status = stw_case_make_side(&f.c, 0);
    if (!status) status = stw_case_make_side(&f.c, 1);
    if (!status) status = run(&f);
    for (int t = 0; t < STW_CASE_TENSOR_COUNT; ++t) {
        if (f.device[t]) stw_buffer_free(context, f.device[t]);
        free(f.block[t]);
    }
    if (f.workspace) stw_buffer_free(context, f.workspace);
    free(f.c.q);
    free(f.c.kv);
    return status;
}
