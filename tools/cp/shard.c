/* SPDX-License-Identifier: MIT
 *
 * What a rank holds of the whole problem: cut out of its arena, described for the API, put together again on rank 0. */
#include "cp.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cp_fail(cp_result *r, const char *format, ...) {
    va_list arguments;
    if (r->outcome == STW_VERIFY_FAIL) return;
    r->outcome = STW_VERIFY_FAIL;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
}

/* ---- shards ---- */

static int64_t rows_of(const cp_shard *s, int64_t b, int kv, int64_t first[2], int64_t count[2]) {
    stw_cp_shard(s->order, (kv ? s->whole->c.kv : s->whole->c.q)[b].rows, s->rank, s->size, first, count);
    return count[0] + count[1];
}

/* The shard's descriptor; ranks with an odd number have [B,H,S,D]. */
static void describe(cp_shard *s) {
    const stw_attn_desc *w = &s->whole->c.problem.desc;
    int64_t first[2], count[2], longest[2] = {0, 0}, keys = 0;
    s->desc = *w;
    s->rows[0] = s->rows[1] = 0;
    for (int64_t b = 0; b < w->batch; ++b)
        for (int kv = 0; kv < 2; ++kv) {
            int64_t rows = rows_of(s, b, kv, first, count);
            s->rows[kv] += rows;
            if (rows > longest[kv]) longest[kv] = rows;
            if (kv && s->whole->c.kv[b].rows > keys) keys = s->whole->c.kv[b].rows;
        }
    for (int kv = 0; kv < 2; ++kv) {
        if (stw_attn_is_packed(w, kv)) continue;
        stw_cp_shard(s->order, kv ? w->max_seq_kv : w->max_seq_q, s->rank, s->size, first, count);
        longest[kv] = count[0] + count[1]; /* also of an empty batch */
    }
    s->desc.max_seq_q = longest[0];
    s->desc.max_seq_kv = longest[1];
    if (stw_attn_is_packed(w, 0)) s->desc.total_q = s->rows[0], s->desc.flags |= STW_ATTN_PACKED_Q;
    if (stw_attn_is_packed(w, 1)) s->desc.total_kv = s->rows[1], s->desc.flags |= STW_ATTN_PACKED_KV;
    if (s->rank & 1) stw_layout_bhsd(&s->desc);
    else stw_layout_bshd(&s->desc);
    s->desc.intervals = w->intervals; /* each rank has those of the whole problem */
    s->desc.block_mask = w->block_mask;
    stw_bias_strides bias = {.key = w->bias.key != 0};
    int64_t reach = bias.key ? keys : 1;
    if (w->bias.query) bias.query = reach, reach *= longest[0] ? longest[0] : 1;
    if (w->bias.head) bias.head = reach, reach *= w->heads_q;
    if (w->bias.batch) bias.batch = reach, reach *= w->batch;
    s->desc.bias = s->desc.dbias = bias;
    s->bytes[STW_VERIFY_BIAS] = s->bytes[STW_VERIFY_DBIAS] = (size_t)reach;
}

static const stw_attn_strides *strides_of(const stw_attn_desc *d, stw_verify_tensor id) {
    switch (id) {
    case STW_VERIFY_Q: return &d->q;
    case STW_VERIFY_K: return &d->k;
    case STW_VERIFY_V: return &d->v;
    case STW_VERIFY_OUT: return &d->out;
    case STW_VERIFY_DOUT: return &d->dout;
    case STW_VERIFY_LSE: return &d->lse;
    case STW_VERIFY_DLSE: return &d->dlse;
    case STW_VERIFY_DELTA: return &d->delta;
    case STW_VERIFY_DQ: return &d->dq;
    case STW_VERIFY_DK: return &d->dk;
    case STW_VERIFY_DV: return &d->dv;
    default: return NULL;
    }
}

static int is_key_side(stw_verify_tensor id) {
    return id == STW_VERIFY_K || id == STW_VERIFY_V || id == STW_VERIFY_DK || id == STW_VERIFY_DV;
}

static stw_dtype dtype_of(const stw_attn_desc *d, stw_verify_tensor id) {
    switch (id) {
    case STW_VERIFY_DQ: return d->dq_dtype ? d->dq_dtype : d->dtype;
    case STW_VERIFY_DK: return d->dk_dtype ? d->dk_dtype : d->dtype;
    case STW_VERIFY_DV: return d->dv_dtype ? d->dv_dtype : d->dtype;
    case STW_VERIFY_LSE:
    case STW_VERIFY_DLSE:
    case STW_VERIFY_DELTA: return stw_dtype_of_rows(d->dtype);
    case STW_VERIFY_BIAS: return d->bias_dtype;
    case STW_VERIFY_DBIAS: return d->dbias_dtype ? d->dbias_dtype : d->bias_dtype;
    default: return d->dtype;
    }
}

static int64_t width_of(const stw_attn_desc *d, stw_verify_tensor id) {
    switch (id) {
    case STW_VERIFY_LSE:
    case STW_VERIFY_DLSE:
    case STW_VERIFY_DELTA: return 1;
    case STW_VERIFY_V:
    case STW_VERIFY_OUT:
    case STW_VERIFY_DOUT:
    case STW_VERIFY_DV: return d->head_dim_v;
    default: return d->head_dim_qk;
    }
}

/* Calls `visit` for each row and head of a tensor that this rank holds. */
typedef void (*visit_fn)(void *user, size_t here, size_t whole, size_t bytes);
static void for_rows(const cp_shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
    const stw_verify_case *c = &s->whole->c;
    const stw_attn_desc *d = &s->desc;
    const stw_attn_strides *stride = strides_of(d, id);
    int kv = is_key_side(id), packed = stw_attn_is_packed(d, kv);
    size_t element = stw_dtype_size(dtype_of(d, id));
    int64_t before = 0, first[2], count[2];
    for (int64_t b = 0; b < d->batch; ++b) {
        int64_t rows = rows_of(s, b, kv, first, count);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t h = 0; h < (kv ? d->heads_kv : d->heads_q); ++h) {
                int64_t position = row < count[0] ? first[0] + row : first[1] + row - count[0];
                int64_t here =
                    h * stride->head + (packed ? (before + row) * stride->seq : b * stride->batch + row * stride->seq);
                int64_t whole = stw_verify_row_index(c, id, b, h, position);
                visit(user, (size_t)here * element, c->offset[id] + (size_t)whole * element,
                      (size_t)width_of(d, id) * element);
            }
        before += rows;
    }
}

/* The same of single elements of a bias; of one that is broadcast over rows, each rank holds all. */
static void for_bias(const cp_shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
    const stw_verify_case *c = &s->whole->c;
    const stw_attn_desc *d = &s->desc, *w = &c->problem.desc;
    const stw_bias_strides *to = &d->bias, *from = id == STW_VERIFY_BIAS ? &w->bias : &w->dbias;
    size_t element = stw_dtype_size(dtype_of(d, id));
    int64_t first[2], count[2];
    for (int64_t b = 0; b < (from->batch ? d->batch : 1); ++b)
        for (int64_t h = 0; h < (from->head ? d->heads_q : 1); ++h) {
            int64_t rows = from->query ? rows_of(s, b, 0, first, count) : 1;
            int64_t keys = from->key ? c->kv[b].rows : 1;
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t j = 0; j < keys; ++j) {
                    int64_t position = !from->query ? 0 : row < count[0] ? first[0] + row : first[1] + row - count[0];
                    int64_t whole = b * from->batch + h * from->head + position * from->query + j * from->key;
                    visit(user, (size_t)(b * to->batch + h * to->head + row * to->query + j * to->key) * element,
                          c->offset[id] + (size_t)whole * element, element);
                }
        }
}

/* Bounds of a pack, whose sequences follow each other without the arena's gaps: each rank has all of them. */
static void for_intervals(const cp_shard *s, visit_fn visit, void *user) {
    const stw_verify_case *c = &s->whole->c;
    const stw_interval_strides *t = &s->desc.intervals;
    int64_t before = 0;
    for (int64_t b = 0; b < s->desc.batch; before += c->kv[b++].rows)
        for (int64_t h = 0; h < (t->head ? s->desc.heads_kv : 1); ++h)
            for (int64_t j = 0; j < c->kv[b].rows; ++j) {
                const int64_t here = h * t->head + (before + j) * t->key,
                              whole = here + (c->kv[b].first - before) * t->key;
                visit(user, (size_t)here * sizeof(int32_t),
                      c->offset[STW_VERIFY_INTERVALS] + (size_t)whole * sizeof(int32_t),
                      (size_t)t->key * sizeof(int32_t));
            }
}

static int is_rows(stw_verify_tensor id) { return strides_of(&(stw_attn_desc){0}, id) != NULL; }
static int is_bias(stw_verify_tensor id) { return id == STW_VERIFY_BIAS || id == STW_VERIFY_DBIAS; }

typedef struct copying {
    unsigned char *shard, *line;
    const unsigned char *arena;
    unsigned char *after;
} copying;
static void cut(void *user, size_t here, size_t whole, size_t bytes) {
    copying *c = user;
    memcpy(c->shard + here, c->arena + whole, bytes);
}
static void to_line(void *user, size_t here, size_t whole, size_t bytes) {
    copying *c = user;
    (void)whole;
    memcpy(c->line, c->shard + here, bytes);
    c->line += bytes;
}
static void from_line(void *user, size_t here, size_t whole, size_t bytes) {
    copying *c = user;
    (void)here;
    memcpy(c->after + whole, c->line, bytes);
    c->line += bytes;
}
static void measure(void *user, size_t here, size_t whole, size_t bytes) {
    (void)here;
    (void)whole;
    *(size_t *)user += bytes;
}
static void visit_all(const cp_shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
    if (is_rows(id)) for_rows(s, id, visit, user);
    else if (is_bias(id)) for_bias(s, id, visit, user);
    else if (id == STW_VERIFY_INTERVALS && stw_attn_intervals_through_pack(&s->desc)) for_intervals(s, visit, user);
    else visit(user, 0, s->whole->c.offset[id], s->whole->c.size[id]);
}

/* Allocates a tensor of the shard, NaN where nothing is copied. */
static int make_tensor(cp_shard *s, stw_verify_tensor id) {
    const stw_verify_case *c = &s->whole->c;
    const stw_attn_desc *d = &s->desc;
    size_t bytes = c->size[id];
    if (is_rows(id))
        bytes = (size_t)((is_key_side(id)
                              ? d->heads_kv * (stw_attn_is_packed(d, 1) ? s->rows[1] : d->batch * d->max_seq_kv)
                              : d->heads_q * (stw_attn_is_packed(d, 0) ? s->rows[0] : d->batch * d->max_seq_q)) *
                         width_of(d, id)) *
                stw_dtype_size(dtype_of(d, id));
    else if (is_bias(id)) bytes = s->bytes[id] * stw_dtype_size(dtype_of(d, id));
    s->data[id] = malloc(bytes + 64);
    s->bytes[id] = bytes;
    if (!s->data[id]) return 0;
    memset(s->data[id], 0xFF, bytes + 64);
    copying copy = {.shard = s->data[id], .arena = c->host};
    visit_all(s, id, cut, &copy);
    return 1;
}

int cp_shard_make(cp_shard *s) {
    const stw_verify_case *c = &s->whole->c;
    describe(s);
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) {
        if (id >= STW_VERIFY_CU_Q && id <= STW_VERIFY_K_OFFSETS) continue; /* lists of the whole problem */
        if (c->present[id] || id == STW_VERIFY_OUT || id == STW_VERIFY_LSE)
            if (!make_tensor(s, (stw_verify_tensor)id)) return 0;
    }
    return 1;
}

void cp_shard_free(cp_shard *s) {
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) free(s->data[id]);
}

stw_attn_args cp_shard_args(const cp_shard *s, unsigned char *const data[]) {
    stw_attn_args args = s->whole->c.values;
    args.q_offset = args.k_offset = 0;
#define POINTER(id, field) args.field = (void *)data[STW_VERIFY_##id];
    STW_VERIFY_TENSORS(POINTER)
#undef POINTER
    if (s->whole->c.problem.desc.flags & STW_ATTN_GIVEN_DELTA) args.out = NULL;
    return args;
}

/* ---- running ---- */

static int32_t node_of(const cp_row *row, const stw_attn_desc *d, int32_t size) {
    int32_t most = 1;
    for (int32_t n = 1; n < size && row->node; ++n)
        if (size % n == 0 && d->heads_kv % n == 0) most = n;
    return row->node ? most : 0;
}

static int32_t groups_of(const cp_row *row, const stw_attn_desc *d, int32_t size) {
    int32_t most = row->groups ? 1 : 0;
    for (int32_t n = 2; n <= row->groups; ++n)
        if (d->heads_kv % size == 0 && d->heads_kv / size % n == 0) most = n;
    return most;
}

stw_cp_desc cp_shard_desc(const cp_shard *s, const cp_row *row) {
    const stw_attn_desc *w = &s->whole->c.problem.desc;
    stw_cp_desc d = STW_INIT(stw_cp_desc);
    d.attn = &s->desc;
    d.seq_q = stw_attn_is_packed(w, 0) ? 0 : w->max_seq_q;
    d.seq_kv = stw_attn_is_packed(w, 1) ? 0 : w->max_seq_kv;
    d.cu_seqlens_q = s->whole->cu[0];
    d.cu_seqlens_kv = s->whole->cu[1];
    d.used_q = s->whole->used[0];
    d.used_kv = s->whole->used[1];
    d.q_offset = s->whole->c.problem.q_offset;
    d.k_offset = s->whole->c.problem.k_offset;
    d.order = row->order;
    d.schedule = row->schedule;
    d.ranks_per_node = node_of(row, w, s->size);
    d.head_groups = groups_of(row, w, s->size);
    return d;
}

/* ---- putting together ---- */

/* On a GPU the wire takes the context's memory. */
int cp_move_bytes(cp_rank *rank, const void *from, void *to, size_t bytes, int32_t peer) {
    stw_cp_transport *w = rank->results.send ? &rank->results : &rank->wire;
    void *data = from ? (void *)(uintptr_t)from : to, *staged = NULL;
    if (!bytes) return 1;
    int on_host = !rank->on_device || w == &rank->results;
    if (!on_host && stw_buffer_alloc(rank->context, bytes, &staged)) return 0;
    int error = 0;
    if (!on_host && from) error = stw_copy(rank->context, staged, from, bytes, rank->stream);
    void *moved = on_host ? data : staged;
    if (!error) error = w->group_begin(w->user);
    if (!error)
        error = from ? w->send(w->user, moved, bytes, peer, rank->stream)
                     : w->recv(w->user, moved, bytes, peer, rank->stream);
    if (!error) error = w->group_end(w->user, rank->stream);
    if (!error && w->wait) error = w->wait(w->user, rank->stream);
    if (!error && !on_host && !from) error = stw_copy(rank->context, to, staged, bytes, rank->stream);
    if (!error && !on_host) error = stw_stream_synchronize(rank->context, rank->stream);
    if (staged) stw_buffer_free(rank->context, staged);
    return !error;
}

/* One tensor of all ranks into rank 0's arena. */
void cp_collect(cp_rank *rank, const cp_shard *own, stw_verify_tensor id, unsigned char *after, cp_result *r) {
    for (int32_t from = 0; from < rank->size; ++from) {
        cp_shard s = {.whole = own->whole, .rank = from, .size = rank->size, .order = own->order};
        if (rank->rank != 0 && rank->rank != from) continue;
        describe(&s);
        size_t bytes = 0;
        visit_all(&s, id, measure, &bytes);
        unsigned char *line = malloc(bytes + 1);
        if (!line) {
            cp_fail(r, "rank %d: no memory", rank->rank);
            return;
        }
        if (rank->rank == from) {
            copying copy = {.shard = own->data[id], .line = line};
            visit_all(&s, id, to_line, &copy);
        }
        int moved = 1;
        if (from && rank->rank == from) moved = cp_move_bytes(rank, line, NULL, bytes, 0);
        else if (from) moved = cp_move_bytes(rank, NULL, line, bytes, from);
        if (!moved) cp_fail(r, "rank %d: the results of rank %d did not arrive", rank->rank, from);
        if (!rank->rank && moved) {
            int same_for_all = !is_rows(id) && !(is_bias(id) && own->whole->c.problem.desc.dbias.query);
            copying copy = {.line = line, .after = after};
            if (same_for_all && from) {
                cp_shard mine = *own;
                unsigned char *ours = malloc(bytes + 1);
                copying check = {.shard = own->data[id], .line = ours};
                if (ours) visit_all(&mine, id, to_line, &check);
                if (ours && memcmp(ours, line, bytes))
                    cp_fail(r, "%s of rank %d is not that of rank 0", stw_verify_tensor_names[id], from);
                free(ours);
            } else {
                visit_all(&s, id, from_line, &copy);
            }
        }
        free(line);
    }
}
