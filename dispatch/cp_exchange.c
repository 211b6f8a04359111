/* SPDX-License-Identifier: MIT
 *
 * Rows against heads, among the `split` ranks of a shard. A rank's tensor has its own rows and all heads; the shard's
 * has the rows of all these ranks and this rank's heads, or those of one group. A message has the rows of one rank and
 * the heads of another, tensor after tensor. It is packed and unpacked: sends of each run of rows in place took NCCL
 * 13 us apiece. What is for the rank itself is one copy, under the messages. */
#include "cp.h"

static int64_t rows_of_lane(const stw_cp_plan *p, int32_t lane, int kv) {
    int64_t rows = 0;
    for (int64_t s = 0; s < p->seq_count; ++s)
        rows += p->seqs[s].batch *
                stw_cp_rows_of(p->desc.order, p->seqs[s].rows[kv], p->shard * p->split + lane, p->cp->size);
    return rows;
}

/* By the transport's own function: blocks of one size, packed on both sides. */
static int goes_at_once(const stw_cp_plan *p) { return p->equal_messages && p->cp->wire.all_to_all; }

/* ---- messages ---- */

static const stw_cp_tensor *shards_side(const stw_cp_exchange *x, int i) { return x->in ? x->to[i] : x->from[i]; }

/* Of a message with the rows of this lane. */
static size_t message_bytes(const stw_cp_plan *p, const stw_cp_exchange *x, int32_t lane) {
    size_t bytes = 0;
    for (int i = 0; i < x->count; ++i) {
        const stw_cp_tensor *shard = shards_side(x, i);
        bytes += (size_t)(rows_of_lane(p, lane, shard->kv) * shard->heads * shard->width) *
                 stw_dtype_size(x->from[i]->dtype);
    }
    return bytes;
}

/* What goes to a lane and comes from it: bytes, and where they lie, behind those of the lanes before it. */
typedef struct messages {
    char *sent, *got;
    size_t out, back;
} messages;

static messages messages_of(const stw_cp_run *run, const stw_cp_exchange *x, int32_t lane, size_t at[2]) {
    const stw_cp_plan *p = run->plan;
    const size_t own = message_bytes(p, x, p->lane), others = message_bytes(p, x, lane);
    messages m = {.out = x->in ? own : others, .back = x->in ? others : own};
    m.sent = run->workspace + p->at.sent + x->sent + at[0];
    m.got = run->workspace + p->at.received + x->received + at[1];
    at[0] += stw_cp_message_size(m.out);
    at[1] += stw_cp_message_size(m.back);
    return m;
}

/* ---- copies ---- */

/* The row of the shard at which it has the first one of a lane's chunk, whose rows follow each other there. */
static int64_t shard_row(const stw_cp_plan *p, const stw_cp_seq *seq, stw_cp_chunk chunk, int kv) {
    stw_cp_chunk first = stw_cp_chunk_of(p->desc.order, seq->rows[kv], p->shard, p->shards, 0);
    int64_t at = chunk.first - first.first;
    if (at >= 0 && at < first.count) return at;
    return first.count + chunk.first - stw_cp_chunk_of(p->desc.order, seq->rows[kv], p->shard, p->shards, 1).first;
}

/* A lane's chunk in a tensor: the rank's own, with the heads of `to_lane`, or the shard's. `before`: rows of the
 * rank's before the chunk. */
static stw_cp_lines lines_of(const stw_cp_plan *p, const stw_cp_exchange *x, const stw_cp_tensor *t,
                             const stw_cp_seq *seq, stw_cp_chunk chunk, int64_t before, int32_t to_lane,
                             int64_t heads) {
    const int is_shard = t->whose == STW_CP_SHARDS;
    const int64_t row = is_shard ? shard_row(p, seq, chunk, t->kv) : before;
    return (stw_cp_lines){t, stw_cp_at(t, seq, 0, row), is_shard ? 0 : (to_lane * x->groups + x->group) * heads,
                          stw_cp_batch_stride(t, seq)};
}

/* The chunks of a rank's rows of a sequence: one where its rows follow each other, as they do in its own tensors and
 * messages, else two. */
static int chunks_of(const stw_cp_plan *p, const stw_cp_seq *seq, int kv, int64_t rank, int in_shard,
                     stw_cp_chunk chunk_out[2]) {
    for (int at = 0; at < 2; ++at) chunk_out[at] = stw_cp_chunk_of(p->desc.order, seq->rows[kv], rank, p->cp->size, at);
    const int64_t second = shard_row(p, seq, chunk_out[1], kv);
    if (in_shard && shard_row(p, seq, chunk_out[0], kv) + chunk_out[0].count != second) return 2;
    chunk_out[0].count += chunk_out[1].count;
    return 1;
}

/* Rows of a lane between a tensor and a message. */
static stw_status move_rows(const stw_cp_run *run, const stw_cp_exchange *x, int i, int32_t lane, char **data,
                            int packs) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor *t = packs ? x->from[i] : x->to[i];
    const int64_t heads = shards_side(x, i)->heads,
                  rank = p->shard * p->split + (t->whose == STW_CP_SHARDS ? lane : p->lane);
    const stw_cp_tensor line = stw_cp_ours(*data, STW_CP_RANKS, t->kv, heads, t->width, x->from[i]->dtype);
    const int64_t row_bytes = line.seq * (int64_t)stw_dtype_size(line.dtype);
    stw_status status = STW_OK;
    for (int64_t s = 0; s < p->seq_count && !status; ++s) {
        const stw_cp_seq *seq = &p->seqs[s];
        int64_t rows = stw_cp_rows_of(p->desc.order, seq->rows[t->kv], rank, p->cp->size), before = 0;
        stw_cp_chunk chunks[2];
        const int count = chunks_of(p, seq, t->kv, rank, t->whose == STW_CP_SHARDS, chunks);
        for (int at = 0; at < count && !status; ++at) {
            const stw_cp_lines own = lines_of(p, x, t, seq, chunks[at], before, lane, heads);
            const stw_cp_lines message = {&line, *data + before * row_bytes, 0, rows * line.seq};
            status = stw_cp_copy_heads(run, packs ? &message : &own, packs ? &own : &message, seq->batch,
                                       chunks[at].count, heads, !packs && x->adds && x->adds[i]);
            before += chunks[at].count;
        }
        *data += seq->batch * rows * row_bytes;
    }
    return status;
}

/* All messages, packed or unpacked; by the transport's own function there is one for the rank itself, too. */
static stw_status move_all(const stw_cp_run *run, const stw_cp_exchange *x, int packs) {
    const stw_cp_plan *p = run->plan;
    size_t places[2] = {0, 0};
    stw_status status = STW_OK;
    for (int32_t lane = 0; lane < p->split && !status; ++lane) {
        const messages m = messages_of(run, x, lane, places);
        char *data = packs ? m.sent : m.got;
        if (lane == p->lane && !goes_at_once(p)) continue;
        for (int i = 0; i < x->count && !status; ++i) status = move_rows(run, x, i, lane, &data, packs);
    }
    return status;
}

stw_status stw_cp_exchange_pack(const stw_cp_run *run, const stw_cp_exchange *x) { return move_all(run, x, 1); }
stw_status stw_cp_exchange_unpack(const stw_cp_run *run, const stw_cp_exchange *x) { return move_all(run, x, 0); }

stw_status stw_cp_exchange_own(const stw_cp_run *run, const stw_cp_exchange *x) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    if (goes_at_once(p)) return STW_OK;
    for (int i = 0; i < x->count; ++i)
        for (int64_t s = 0; s < p->seq_count; ++s) {
            const stw_cp_seq *seq = &p->seqs[s];
            const int64_t heads = shards_side(x, i)->heads;
            stw_cp_chunk chunks[2];
            const int count = chunks_of(p, seq, x->to[i]->kv, p->cp->rank, 1, chunks);
            for (int64_t at = 0, before = 0; at < count && !status; ++at) {
                const stw_cp_lines to = lines_of(p, x, x->to[i], seq, chunks[at], before, p->lane, heads);
                const stw_cp_lines from = lines_of(p, x, x->from[i], seq, chunks[at], before, p->lane, heads);
                status = stw_cp_copy_heads(run, &to, &from, seq->batch, chunks[at].count, heads, x->adds && x->adds[i]);
                before += chunks[at].count;
            }
        }
    return status;
}

/* ---- sending ---- */

/* To and from each other lane, within a group. */
static stw_status post_all(const stw_cp_run *run, const stw_cp_exchange *x) {
    const stw_cp_plan *p = run->plan;
    size_t at[2] = {0, 0};
    stw_status status = STW_OK;
    for (int32_t lane = 0; lane < p->split && !status; ++lane) {
        const messages m = messages_of(run, x, lane, at);
        const int32_t peer = p->shard * p->split + lane;
        if (lane == p->lane) continue;
        status = stw_cp_send(&run->wire, m.sent, m.out, peer);
        if (!status) status = stw_cp_recv(&run->wire, m.got, m.back, peer);
    }
    return status;
}

stw_status stw_cp_exchange_start(stw_cp_run *run, const stw_cp_exchange *const *all, int count) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    run->wire.what = all[0]->in ? "the exchange of heads" : "the exchange of heads back";
    if (goes_at_once(p)) {
        for (int i = 0; i < count && !status; ++i)
            status = stw_cp_all_to_all(&run->wire, run->workspace + p->at.sent + all[i]->sent,
                                       run->workspace + p->at.received + all[i]->received,
                                       stw_cp_message_size(message_bytes(p, all[i], p->lane)));
        return status;
    }
    status = stw_cp_begin(&run->wire, 0);
    for (int i = 0; i < count && !status; ++i) status = post_all(run, all[i]);
    return status ? status : stw_cp_end(&run->wire);
}

stw_status stw_cp_exchange_all(stw_cp_run *run, const stw_cp_exchange *x) {
    stw_status status = stw_cp_exchange_pack(run, x);
    if (!status) status = stw_cp_exchange_start(run, &x, 1);
    if (status) return status;
    status = stw_cp_exchange_own(run, x);
    stw_status waited = stw_cp_wait(&run->wire); /* also after a failure: the transport holds our memory */
    if (!status) status = waited;
    return status ? status : stw_cp_exchange_unpack(run, x);
}

/* ---- at plan time ---- */

size_t stw_cp_exchange_room(const stw_cp_plan *p, const size_t bytes[2], int32_t groups, int comes) {
    size_t room = 0;
    for (int32_t lane = 0; lane < p->split; ++lane) {
        size_t message = 0;
        for (int kv = 0; kv < 2; ++kv)
            message +=
                (size_t)(rows_of_lane(p, comes ? lane : p->lane, kv) * (kv ? p->heads_kv : p->heads_q) / groups) *
                bytes[kv];
        room += stw_cp_message_size(message);
    }
    return room;
}

void stw_cp_exchange_widths(const stw_cp_plan *p, size_t in[2], size_t back[2]) {
    const stw_attn_desc *d = &p->attn;
    const size_t number = stw_dtype_size(p->number), element = stw_dtype_size(d->dtype);
    const size_t qk = (size_t)d->head_dim_qk, v = (size_t)d->head_dim_v;
    in[0] = qk * element;
    in[1] = (qk + v) * element;
    back[0] = v * element + number; /* O, LSE */
    back[1] = 0;
    if (p->kind != STW_PLAN_ATTN_BWD) return;
    in[0] += v * element + 2 * number; /* dO, LSE, delta */
    back[0] = d->outputs & STW_OUT_DQ ? qk * stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DQ)) : 0;
    back[1] = (d->outputs & STW_OUT_DK ? qk * stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DK)) : 0) +
              (d->outputs & STW_OUT_DV ? v * stw_dtype_size(stw_cp_result_dtype(p, STW_OUT_DV)) : 0);
}

/* To the other lanes of the shard: of this rank's rows their heads (in), of their rows this rank's heads (back). */
uint64_t stw_cp_exchange_bytes(const stw_cp_plan *p) {
    size_t in[2], back[2];
    const uint64_t others = (uint64_t)p->split - 1, groups = (uint64_t)p->groups;
    const uint64_t heads[2] = {(uint64_t)p->heads_q, (uint64_t)p->heads_kv};
    /* by heads LSE and delta are messages of their own */
    const uint64_t rows = stw_cp_goes_by_heads(p) ? 2 * stw_dtype_size(p->number) * (uint64_t)p->rows[0] * heads[0] : 0;
    uint64_t to_one = 0, from_one = 0, bytes = 0;
    stw_cp_exchange_widths(p, in, back);
    if (stw_cp_goes_by_heads(p) && !back[0] && !back[1]) return 0;
    for (int kv = 0; kv < 2; ++kv) {
        to_one += (uint64_t)p->rows[kv] * heads[kv] * in[kv];
        from_one += (uint64_t)p->rows[kv] * heads[kv] * back[kv];
        bytes += (uint64_t)(p->shard_rows[kv] - p->rows[kv]) * heads[kv] * back[kv];
    }
    if (goes_at_once(p))
        return others * (stw_cp_message_size(rows) + groups * (stw_cp_message_size((to_one - rows) / groups) +
                                                               stw_cp_message_size(from_one / groups)));
    return others * to_one + bytes;
}
