/* SPDX-License-Identifier: MIT
 *
 * What both calls over ranks do: checks, rows between the caller's layout and ours, blocks and their moves. Nothing
 * here allocates. */
#include "cp.h"

#include "common/attn_packed.h"
#include "common/extend.h"

/* ---- tensors ---- */

static stw_cp_tensor callers(const stw_cp_plan *p, size_t row_index, const void *data, stw_dtype dtype) {
    const stw_tensor_row *row = &stw_tensor_rows[row_index];
    const stw_attn_strides *s = stw_tensor_strides(row, &p->attn);
    return (stw_cp_tensor){
        .data = (char *)(uintptr_t)data,
        .whose = STW_CP_CALLERS,
        .dtype = dtype,
        .kv = row->kv,
        .packed = stw_tensor_through_pack(row, &p->attn),
        .batch = s->batch,
        .head = s->head,
        .seq = s->seq,
        .dim = stw_tensor_dim_stride(row, &p->attn),
        .heads = row->kv ? p->attn.heads_kv : p->attn.heads_q,
        .width = row->dim == '1'   ? 1
                 : row->dim == 'd' ? p->attn.head_dim_qk
                                   : p->attn.head_dim_v,
    };
}

stw_cp_tensor stw_cp_ours(char *data, stw_cp_rows_of_whom whose, int kv, int64_t heads, int64_t width,
                          stw_dtype dtype) {
    return (stw_cp_tensor){.data = data,
                           .whose = whose,
                           .dtype = dtype,
                           .kv = kv,
                           .head = width,
                           .seq = heads * width,
                           .dim = 1,
                           .heads = heads,
                           .width = width};
}

char *stw_cp_at(const stw_cp_tensor *t, const stw_cp_seq *seq, int64_t b, int64_t row) {
    int64_t at = row;
    if (t->whose == STW_CP_SHARDS) at += seq->base[t->kv] + b * seq->own[t->kv];
    else if (t->whose == STW_CP_RANKS || t->packed) at += seq->first[t->kv] + b * seq->held[t->kv];
    at *= t->seq;
    if (t->whose == STW_CP_CALLERS && !t->packed) at += (seq->index + b) * t->batch;
    return t->data + at * (int64_t)stw_dtype_size(t->dtype);
}

/* ---- the call ---- */

static stw_status check_offsets(const char *call, const stw_attn_args *args) {
    if (args->q_offsets || args->k_offsets)
        return stw_fail(STW_E_INVALID, "%s: args.%s is given: over ranks offsets are those of stw_cp_desc", call,
                        args->q_offsets ? "q_offsets" : "k_offsets");
    if (args->q_offset || args->k_offset)
        return stw_fail(STW_E_INVALID, "%s: args.%s is %lld, accepted 0: over ranks offsets are those of stw_cp_desc",
                        call, args->q_offset ? "q_offset" : "k_offset",
                        (long long)(args->q_offset ? args->q_offset : args->k_offset));
    return STW_OK;
}

static void find_tensors(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_attn_args *a = &run->args;
    run->q = callers(p, STW_TENSOR_AT_q, a->q, d->dtype);
    run->k = callers(p, STW_TENSOR_AT_k, a->k, d->dtype);
    run->v = callers(p, STW_TENSOR_AT_v, a->v, d->dtype);
    run->out = callers(p, STW_TENSOR_AT_out, a->out, d->dtype);
    run->lse = callers(p, STW_TENSOR_AT_lse, a->lse, p->number);
    run->dlse = callers(p, STW_TENSOR_AT_dlse, a->dlse, p->number);
    run->dout = callers(p, STW_TENSOR_AT_dout, a->dout, d->dtype);
    run->delta = callers(p, STW_TENSOR_AT_delta, a->delta, p->number);
    run->dq = callers(p, STW_TENSOR_AT_dq, a->dq, d->dq_dtype);
    run->dk = callers(p, STW_TENSOR_AT_dk, a->dk, d->dk_dtype);
    run->dv = callers(p, STW_TENSOR_AT_dv, a->dv, d->dv_dtype);
    if (!(d->flags & (STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA)))
        run->delta = stw_cp_ours(run->workspace + p->at.delta, STW_CP_RANKS, 0, d->heads_q, 1, p->number);
    run->shard_q = run->q;
    run->shard_k = run->k;
    run->shard_v = run->v;
    run->shard_dout = run->dout;
    run->shard_lse = run->lse;
    run->shard_delta = run->delta;
    run->group = 0;
    if (p->split == 1 || stw_cp_goes_by_heads(p)) return; /* by heads each group has its own */
    char *ws = run->workspace;
    run->shard_q = stw_cp_ours(ws + p->at.q, STW_CP_SHARDS, 0, p->heads_q, d->head_dim_qk, d->dtype);
    run->shard_k = stw_cp_ours(ws + p->at.k, STW_CP_SHARDS, 1, p->heads_kv, d->head_dim_qk, d->dtype);
    run->shard_v = stw_cp_ours(ws + p->at.v, STW_CP_SHARDS, 1, p->heads_kv, d->head_dim_v, d->dtype);
    run->shard_dout = stw_cp_ours(ws + p->at.dout, STW_CP_SHARDS, 0, p->heads_q, d->head_dim_v, d->dtype);
    run->shard_lse = stw_cp_ours(ws + p->at.lse, STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
    run->shard_delta = stw_cp_ours(ws + p->at.shard_delta, STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
}

stw_status stw_cp_run_begin(const stw_cp_plan *p, stw_plan_kind kind, const char *call, const stw_attn_args *args,
                            void *workspace, size_t size, stw_stream stream, stw_cp_run *run) {
    stw_attn_params params;
    if (!p) return stw_fail(STW_E_INVALID, "%s: plan is null", call);
    if (p->kind != kind)
        return stw_fail(STW_E_INVALID, "%s: the plan was made by stw_cp_%s_plan", call, stw_plan_kind_name(p->kind));
    run->plan = p;
    run->wire = (stw_cp_calling){.cp = p->cp, .who = call, .context = p->context, .side = &p->side, .stream = stream};
    stw_status status = stw_cp_usable(&run->wire);
    if (!status)
        status = stw_extend(kind == STW_PLAN_ATTN_FWD ? "cp_attn_fwd: args" : "cp_attn_bwd: args", args, &run->args,
                            sizeof run->args, STW_SIZE_ATTN_ARGS_0_1);
    if (status) return status;
    run->args.cu_seqlens_q = run->args.cu_seqlens_kv = run->args.used_q = run->args.used_kv = NULL;
    status = check_offsets(call, &run->args);
    if (!status) status = stw_attn_params_bind(&p->bound, kind, &run->args, &params);
    if (!status) status = stw_cp_masks_bind(run);
    if (status) return status;
    size_t needed = p->at.total + p->engine_workspace;
    size_t skipped = -(uintptr_t)workspace % STW_WORKSPACE_ALIGNMENT;
    if (needed && (!workspace || size < skipped || size - skipped < needed))
        return stw_fail(STW_E_WORKSPACE,
                        "%s: workspace_size %zu at %p: the plan needs %zu bytes of "
                        "stw_cp_plan_workspace_size",
                        call, size, workspace, stw_cp_plan_workspace_size(p));
    run->workspace = (char *)workspace + skipped;
    run->engine_workspace = run->workspace + p->at.total;
    status = stw_attn_check_workspace(call, &params, kind, run->workspace, needed);
    if (!status)
        status =
            p->context->ops->cp_check(&p->context->device, call, kind, &params, needed ? run->workspace : NULL, stream);
    if (!status) find_tensors(run);
    return status;
}

void stw_cp_positions(const stw_cp_run *run, const stw_cp_part *part, stw_attn_args *a) {
    a->q_offset = part->q_at + run->plan->desc.q_offset;
    a->k_offset = part->k_at + run->plan->desc.k_offset;
    stw_cp_masks_at(run, part, a);
    a->dropout_seed_ptr = run->args.dropout_seed_ptr;
    a->dropout_offset_ptr = run->args.dropout_offset_ptr;
    a->dropout_seed = run->args.dropout_seed;
    a->dropout_offset = run->args.dropout_offset;
    a->cpu_threads = run->args.cpu_threads;
}

const float *stw_cp_slopes(const stw_cp_run *run, const stw_cp_seq *seq) {
    const stw_cp_plan *p = run->plan;
    const int64_t at = seq->index * p->attn.alibi_stride_batch + stw_cp_first_head(run, 0);
    if (!(p->attn.flags & STW_ATTN_ALIBI)) return NULL;
    return (const float *)(const void *)((const char *)run->args.alibi_slopes +
                                         at * (int64_t)stw_dtype_size(p->number));
}

/* ---- blocks ---- */

static size_t rounded(size_t bytes) { return stw_cp_slot_size(bytes); }

char *stw_cp_slot(const stw_cp_run *run, int32_t slot) {
    const stw_cp_plan *p = run->plan;
    if (slot == STW_CP_OWN) return run->workspace + p->at.own;
    return run->workspace + p->at.slots + (size_t)slot * rounded(stw_cp_block_bytes(p, p->block_max));
}

char *stw_cp_sum_slot(const stw_cp_run *run, int32_t slot) {
    const stw_cp_plan *p = run->plan;
    if (slot == STW_CP_OWN) return run->workspace + p->at.own_sums;
    return run->workspace + p->at.sum_slots + (size_t)slot * rounded(stw_cp_sum_bytes(p, p->block_max));
}

static stw_status pack_block(const stw_cp_run *run, char *block) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor *from[] = {&run->shard_k, &run->shard_v};
    stw_status status = STW_OK;
    for (int i = 0; i < 2 && !status; ++i) {
        stw_cp_tensor to = stw_cp_ours(block, STW_CP_SHARDS, 1, p->heads_kv, from[i]->width, p->attn.dtype);
        status = stw_cp_copy(run, &to, from[i], 0);
        block += p->shard_rows[1] * to.seq * (int64_t)stw_dtype_size(to.dtype);
    }
    return status;
}

/* Each rank sends its block to those that see something of it. */
static stw_status gather_blocks(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const char *own = stw_cp_slot(run, p->shard);
    run->wire.what = "K and V";
    if (p->all_see_all && p->equal_blocks && p->cp->wire.all_gather)
        return stw_cp_gather(&run->wire, stw_cp_slot(run, STW_CP_OWN), stw_cp_slot(run, 0),
                             rounded(stw_cp_block_bytes(p, p->block_max)));
    stw_status status = stw_cp_begin(&run->wire, 0);
    for (int32_t n = 0; n < p->shards && !status; ++n) {
        if (n == p->shard) continue;
        if (stw_cp_needs(p, n, p->shard))
            status = stw_cp_send(&run->wire, own, stw_cp_block_bytes(p, stw_cp_block_rows(p, p->shard)), n);
        if (!status && stw_cp_needs(p, p->shard, n))
            status = stw_cp_recv(&run->wire, stw_cp_slot(run, n), stw_cp_block_bytes(p, stw_cp_block_rows(p, n)), n);
    }
    if (!status) status = stw_cp_end(&run->wire);
    return status ? status : stw_cp_wait(&run->wire);
}

stw_status stw_cp_blocks(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    stw_status status = pack_block(run, stw_cp_slot(run, STW_CP_OWN));
    if (p->schedule != STW_CP_ALL_GATHER || status) return status;
    status = pack_block(run, stw_cp_slot(run, p->shard));
    return p->shards > 1 && !status ? gather_blocks(run) : status;
}

/* ---- ticks ---- */

static stw_status start_moves(stw_cp_run *run, const stw_cp_tick *tick) {
    const stw_cp_move *moves = run->plan->moves + tick->move;
    stw_status status = stw_cp_begin(&run->wire, 1);
    for (int64_t i = 0; i < tick->moves && !status; ++i) {
        char *data = moves[i].sums ? stw_cp_sum_slot(run, moves[i].slot) : stw_cp_slot(run, moves[i].slot);
        for (int n = 0; n < 2 && !status; ++n) {
            const stw_cp_piece *piece = &moves[i].piece[n];
            if (n && !piece->bytes) continue;
            status = moves[i].sends ? stw_cp_send(&run->wire, data + piece->at, piece->bytes, moves[i].peer)
                                    : stw_cp_recv(&run->wire, data + piece->at, piece->bytes, moves[i].peer);
        }
    }
    return status ? status : stw_cp_end(&run->wire);
}

stw_status stw_cp_ticks(stw_cp_run *run, stw_cp_start_fn start, stw_cp_part_fn part) {
    const stw_cp_plan *p = run->plan;
    stw_status status = p->tick_count ? STW_OK : start(run);
    for (int64_t t = 0; t < p->tick_count && !status; ++t) {
        const stw_cp_tick *tick = &p->ticks[t];
        run->wire.what = "moves";
        run->wire.step = tick->step + 1;
        if (tick->moves) status = start_moves(run, tick);
        if (!t && !status) status = start(run);
        if (p->kind == STW_PLAN_ATTN_BWD && tick->starts_sums && !status)
            status = stw_cp_zero_sums(run, tick->sum_slot, tick->block_rows, tick->sums);
        for (int64_t i = 0; i < tick->parts && !status; ++i) status = part(run, tick, &p->parts[tick->part + i]);
        if (tick->moves) { /* also after a failure: the transport holds our memory */
            stw_status waited = p->cp->broken[0] ? STW_OK : stw_cp_wait(&run->wire);
            if (!status) status = waited;
        }
    }
    run->wire.step = 0;
    return status;
}

/* ---- sums over ranks ---- */

stw_status stw_cp_zero_sums(const stw_cp_run *run, int32_t slot, int64_t block, stw_cp_chunk rows) {
    const stw_cp_plan *p = run->plan;
    const int64_t width[2] = {p->heads_kv * p->attn.head_dim_qk, p->heads_kv * p->attn.head_dim_v};
    const uint32_t number = (uint32_t)p->number;
    char *sums = stw_cp_sum_slot(run, slot);
    if (rows.count == block) return stw_cp_set(run, sums, block * (width[0] + width[1]), number, 0);
    stw_status status = STW_OK;
    for (int i = 0; i < 2 && !status; ++i) {
        const int64_t element = (int64_t)stw_dtype_size(p->number);
        status = stw_cp_set(run, sums + rows.first * width[i] * element, rows.count * width[i], number, 0);
        sums += block * width[i] * element;
    }
    return status;
}

stw_status stw_cp_sum_over_ranks(stw_cp_run *run, char *data, char *all, int64_t count) {
    const stw_cp_plan *p = run->plan;
    size_t bytes = (size_t)count * stw_dtype_size(p->number);
    stw_status status = stw_cp_gather(&run->wire, data, all, bytes);
    if (!status) status = stw_cp_set(run, data, count, (uint32_t)p->number, 0);
    for (int32_t rank = 0; rank < p->cp->size && !status; ++rank)
        status = stw_cp_add(run, data, all + (size_t)rank * bytes, count, (uint32_t)p->number);
    return status;
}

stw_status stw_cp_scatter_sums(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_transport *wire = &p->cp->wire;
    char *own = stw_cp_sum_slot(run, STW_CP_OWN);
    size_t bytes = stw_cp_sum_bytes(p, stw_cp_block_rows(p, p->shard)),
           place = rounded(stw_cp_sum_bytes(p, p->block_max));
    size_t number = stw_dtype_size(p->number);
    run->wire.what = "sums of dK and dV";
    if (p->all_see_all && p->equal_blocks && wire->reduce_scatter)
        return stw_cp_reduce(&run->wire, stw_cp_sum_slot(run, 0), own, place / number, p->number);
    stw_status status = stw_cp_begin(&run->wire, 0);
    for (int32_t n = 0; n < p->shards && !status; ++n) {
        if (n == p->shard) continue;
        if (stw_cp_needs(p, p->shard, n))
            status = stw_cp_send(&run->wire, stw_cp_sum_slot(run, n), stw_cp_sum_bytes(p, stw_cp_block_rows(p, n)), n);
        if (!status && stw_cp_needs(p, n, p->shard))
            status = stw_cp_recv(&run->wire, run->workspace + p->at.other_sums + (size_t)n * place, bytes, n);
    }
    if (!status) status = stw_cp_end(&run->wire);
    if (!status) status = stw_cp_wait(&run->wire);
    if (status) return status;
    status = stw_cp_zero_sums(run, STW_CP_OWN, p->shard_rows[1], (stw_cp_chunk){0, p->shard_rows[1]});
    for (int32_t n = 0; n < p->shards && !status; ++n) {
        if (!stw_cp_needs(p, n, p->shard)) continue;
        const char *from =
            n == p->shard ? stw_cp_sum_slot(run, n) : run->workspace + p->at.other_sums + (size_t)n * place;
        status = stw_cp_add(run, own, from, (int64_t)(bytes / number), (uint32_t)p->number);
    }
    return status;
}
