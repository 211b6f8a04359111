/* SPDX-License-Identifier: MIT
 *
 * One row on one rank: the shard is cut out of the whole problem's arena, the public API runs backward and forward,
 * and rank 0 puts the shards of all together in a copy of that arena, which tools/verify judges as the result of one
 * device. */
#include "cp.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(cp_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(cp_result *r, const char *format, ...) {
    va_list arguments;
    if (r->outcome == STW_VERIFY_FAIL) return;
    r->outcome = STW_VERIFY_FAIL;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
}

/* ---- the whole problem ---- */

static int32_t *starts_of(const stw_verify_case *c, int kv) {
    int32_t *cu = calloc((size_t)c->problem.desc.batch + 1, sizeof *cu);
    for (int64_t b = 0; cu && b < c->problem.desc.batch; ++b) cu[b + 1] = cu[b] + (int32_t)(kv ? c->kv : c->q)[b].rows;
    return cu;
}

static int32_t *used_of(const stw_verify_case *c, int kv) {
    int32_t *used = calloc((size_t)c->problem.desc.batch + 1, sizeof *used);
    for (int64_t b = 0; used && b < c->problem.desc.batch; ++b) used[b] = (int32_t)(kv ? c->kv : c->q)[b].used;
    return used;
}

/* RMS of O against the reference; `o` is laid out as the arena's. */
static double out_error(const stw_verify_case *c, const unsigned char *arena) {
    const stw_attn_desc *d = &c->problem.desc;
    double sum = 0, count = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h)
            for (int64_t i = 0; i < c->q[b].used; ++i) {
                int64_t row = (stw_attn_is_packed(d, 0) ? c->q[b].first : b * d->max_seq_q) + i;
                const double *wanted = c->forward.out + (row * d->heads_q + h) * d->head_dim_v;
                int64_t at = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                for (int64_t n = 0; n < d->head_dim_v; ++n) {
                    double error = stw_load_f64(arena + c->offset[STW_VERIFY_OUT], at + n, d->dtype) - wanted[n];
                    sum += error * error;
                    count++;
                }
            }
    return count > 0 ? sqrt(sum / count) : 0;
}

/* What stw_attn_fwd on one device makes of it. */
static stw_status run_single_forward(cp_whole *w, stw_context *context) {
    stw_plan *plan = NULL;
    void *arena = NULL, *workspace = NULL;
    unsigned char *host = malloc(w->c.bytes);
    stw_status status = host ? stw_attn_fwd_plan(context, &w->c.problem.desc, &plan) : STW_E_NO_MEMORY;
    size_t size = stw_plan_workspace_size(plan);
    if (!status) status = stw_buffer_alloc(context, w->c.bytes, &arena);
    if (!status) status = stw_buffer_alloc(context, size, &workspace);
    if (!status) status = stw_copy(context, arena, w->c.host, w->c.bytes, NULL);
    if (!status) {
        stw_attn_args args = stw_verify_args(&w->c, arena);
        args.out = (unsigned char *)arena + w->c.offset[STW_VERIFY_OUT];
        status = stw_attn_fwd(plan, &args, workspace, size, NULL);
    }
    if (!status) status = stw_copy(context, host, arena, w->c.bytes, NULL);
    if (!status) status = stw_stream_synchronize(context, NULL);
    if (!status) w->out_error = out_error(&w->c, host);
    stw_plan_destroy(plan);
    if (arena) stw_buffer_free(context, arena);
    if (workspace) stw_buffer_free(context, workspace);
    free(host);
    return status;
}

stw_status cp_whole_build(const char *problem, int64_t seed, int owner, stw_context *context, cp_whole *whole_out) {
    stw_problem parsed;
    const stw_verify_options once = {0};
    memset(whole_out, 0, sizeof *whole_out);
    stw_status status = stw_problem_parse(problem, &parsed);
    if (status) return status;
    parsed.seed += 2 * seed;
    status = owner ? stw_verify_build(&parsed, &whole_out->c) : stw_verify_build_inputs(&parsed, &whole_out->c);
    if (status) return status;
    stw_verify_case *c = &whole_out->c;
    const stw_attn_desc *d = &parsed.desc;
    if (owner) {
        stw_verify_check(c, context, &once, &whole_out->single);
        status = run_single_forward(whole_out, context);
    } else if (d->flags & STW_ATTN_GIVEN_DELTA) {
        c->present[STW_VERIFY_OUT] = 0;
    }
    for (int kv = 0; kv < 2; ++kv) {
        if (stw_attn_is_packed(d, kv)) whole_out->cu[kv] = starts_of(c, kv);
        if (c->present[kv ? STW_VERIFY_USED_KV : STW_VERIFY_USED_Q]) whole_out->used[kv] = used_of(c, kv);
    }
    return status;
}

void cp_whole_free(cp_whole *w) {
    for (int kv = 0; kv < 2; ++kv) {
        free(w->cu[kv]);
        free(w->used[kv]);
    }
    stw_verify_free(&w->c);
}

/* ---- shards ---- */

typedef struct shard {
    const cp_whole *whole;
    int32_t rank, size;
    stw_cp_order order;
    stw_attn_desc desc; /* of this rank */
    int64_t rows[2];
    unsigned char *data[STW_VERIFY_TENSOR_COUNT];
    void *seen[STW_VERIFY_TENSOR_COUNT]; /* as the calls get it: `data`, or its copy on the device */
    size_t bytes[STW_VERIFY_TENSOR_COUNT];
} shard;

static int64_t rows_of(const shard *s, int64_t b, int kv, int64_t first[2], int64_t count[2]) {
    stw_cp_shard(s->order, (kv ? s->whole->c.kv : s->whole->c.q)[b].rows, s->rank, s->size, first, count);
    return count[0] + count[1];
}

/* The shard's descriptor; ranks with an odd number have [B,H,S,D]. */
static void describe(shard *s) {
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
static void for_rows(const shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
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
static void for_bias(const shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
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
static void visit_all(const shard *s, stw_verify_tensor id, visit_fn visit, void *user) {
    if (is_rows(id)) for_rows(s, id, visit, user);
    else if (is_bias(id)) for_bias(s, id, visit, user);
    else visit(user, 0, s->whole->c.offset[id], s->whole->c.size[id]);
}

/* Allocates a tensor of the shard, NaN where nothing is copied. */
static int make_tensor(shard *s, stw_verify_tensor id) {
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
    s->seen[id] = s->data[id];
    return 1;
}

/* Tensors of the shard to the device and back, where there is one. */
static stw_status to_device(const cp_rank *rank, shard *s) {
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && rank->on_device && !status; ++id) {
        if (!s->data[id]) continue;
        if (s->seen[id] == s->data[id]) status = stw_buffer_alloc(rank->context, s->bytes[id] + 64, &s->seen[id]);
        if (status) s->seen[id] = s->data[id];
        else status = stw_copy(rank->context, s->seen[id], s->data[id], s->bytes[id] + 64, rank->stream);
    }
    return status ? status : stw_stream_synchronize(rank->context, rank->stream);
}
static stw_status from_device(const cp_rank *rank, const shard *s) {
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && rank->on_device && !status; ++id)
        if (s->data[id]) status = stw_copy(rank->context, s->data[id], s->seen[id], s->bytes[id] + 64, rank->stream);
    return status ? status : stw_stream_synchronize(rank->context, rank->stream);
}

static int make_shard(shard *s) {
    const stw_verify_case *c = &s->whole->c;
    describe(s);
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) {
        if (id >= STW_VERIFY_CU_Q && id <= STW_VERIFY_K_OFFSETS) continue; /* lists of the whole problem */
        if (c->present[id] || id == STW_VERIFY_OUT || id == STW_VERIFY_LSE)
            if (!make_tensor(s, (stw_verify_tensor)id)) return 0;
    }
    return 1;
}

static void free_shard(const cp_rank *rank, shard *s) {
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id) {
        if (s->seen[id] != s->data[id]) stw_buffer_free(rank->context, s->seen[id]);
        free(s->data[id]);
    }
}

static stw_attn_args args_of(const shard *s) {
    stw_attn_args args = s->whole->c.values;
    args.q_offset = args.k_offset = 0;
#define POINTER(id, field) args.field = s->seen[STW_VERIFY_##id];
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

static stw_cp_desc desc_of(const shard *s, const cp_row *row) {
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
    return d;
}

static void note_plan(const stw_cp_plan *plan, cp_result *r) {
    char text[4096];
    const char *at;
    if (stw_cp_plan_describe(plan, text, sizeof text, NULL)) return;
    if ((at = strstr(text, "\nschedule: ")) != NULL)
        snprintf(r->schedule, sizeof r->schedule, "%.*s", (int)strcspn(at + 11, "\n"), at + 11);
    if ((at = strstr(text, "\nimbalance: ")) != NULL) r->imbalance = strtod(at + 12, NULL);
}

/* Plans and runs; twice, and the outputs must have the same bits. `kept`: outputs before the call. */
static void run(cp_rank *rank, shard *s, const cp_row *row, int forward, cp_result *r) {
    static const stw_verify_tensor outputs[] = {STW_VERIFY_DQ,    STW_VERIFY_DK,    STW_VERIFY_DV,  STW_VERIFY_DBIAS,
                                                STW_VERIFY_DSINK, STW_VERIFY_DELTA, STW_VERIFY_OUT, STW_VERIFY_LSE};
    const stw_cp_desc desc = desc_of(s, row);
    const char *call = forward ? "stw_cp_attn_fwd" : "stw_cp_attn_bwd";
    unsigned char *before[8] = {0}, *once[8] = {0};
    stw_cp_plan *plan = NULL;
    stw_status status = forward ? stw_cp_attn_fwd_plan(rank->cp, rank->context, &desc, &plan)
                                : stw_cp_attn_bwd_plan(rank->cp, rank->context, &desc, &plan);
    if (status) {
        fail(r, "rank %d: %s_plan: %s: %s", rank->rank, call, stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) r->outcome = STW_VERIFY_SKIP;
        return;
    }
    if (!forward) note_plan(plan, r);
    size_t size = stw_cp_plan_workspace_size(plan);
    unsigned char *workspace = malloc(size + 65);
    void *scratch = workspace;
    if (rank->on_device && stw_buffer_alloc(rank->context, size + 65, &scratch)) scratch = NULL;
    status = to_device(rank, s);
    stw_attn_args args = args_of(s);
    if (forward) args.out = s->seen[STW_VERIFY_OUT];
    for (int i = 0; i < 8; ++i) {
        size_t bytes = s->bytes[outputs[i]];
        if (!s->data[outputs[i]]) continue;
        before[i] = malloc(bytes + 1);
        once[i] = malloc(bytes + 1);
        if (before[i]) memcpy(before[i], s->data[outputs[i]], bytes);
    }
    for (int n = 0; n < 2 && workspace && scratch && !status; ++n) {
        memset(workspace, n ? 0x7F : 0xFF, size + 65);
        for (int i = 0; i < 8 && n; ++i) {
            if (!before[i] || !once[i]) continue;
            memcpy(once[i], s->data[outputs[i]], s->bytes[outputs[i]]);
            memcpy(s->data[outputs[i]], before[i], s->bytes[outputs[i]]);
        }
        status = n ? to_device(rank, s) : STW_OK;
        if (!status && rank->on_device) status = stw_copy(rank->context, scratch, workspace, size + 65, rank->stream);
        void *start = (char *)scratch + 1;
        if (!status)
            status = forward ? stw_cp_attn_fwd(plan, &args, start, size, rank->stream)
                             : stw_cp_attn_bwd(plan, &args, start, size, rank->stream);
        if (!status && rank->on_device) status = stw_copy(rank->context, workspace, scratch, size + 65, rank->stream);
        if (!status) status = from_device(rank, s);
        if (status) fail(r, "rank %d: %s: %s: %s", rank->rank, call, stw_status_name(status), stw_last_error());
        for (size_t at = 0; at < 64; ++at)
            if (at ? workspace[size + at] != (n ? 0x7F : 0xFF) : workspace[0] != (n ? 0x7F : 0xFF))
                fail(r, "rank %d: %s: memory around the workspace was written", rank->rank, call);
    }
    for (int i = 0; i < 8 && !status; ++i)
        if (once[i] && memcmp(once[i], s->data[outputs[i]], s->bytes[outputs[i]]))
            fail(r, "rank %d: %s: %s differs in a second run", rank->rank, call, stw_verify_tensor_names[outputs[i]]);
    for (int i = 0; i < 8; ++i) {
        free(before[i]);
        free(once[i]);
    }
    if (!workspace || !scratch) fail(r, "rank %d: no memory", rank->rank);
    if (status) fail(r, "rank %d: %s: %s", rank->rank, call, stw_last_error());
    if (scratch && scratch != workspace) stw_buffer_free(rank->context, scratch);
    free(workspace);
    stw_cp_plan_destroy(plan);
}

/* ---- putting together ---- */

static int move_bytes(cp_rank *rank, const void *from, void *to, size_t bytes, int32_t peer) {
    stw_cp_transport *w = rank->results.send ? &rank->results : &rank->wire;
    if (!bytes) return 1;
    int error = w->group_begin(w->user);
    if (!error) error = from ? w->send(w->user, from, bytes, peer, NULL) : w->recv(w->user, to, bytes, peer, NULL);
    if (!error) error = w->group_end(w->user, NULL);
    if (!error && w->wait) error = w->wait(w->user, NULL);
    return !error;
}

/* One tensor of all ranks into rank 0's arena. */
static void collect(cp_rank *rank, const shard *own, stw_verify_tensor id, unsigned char *after, cp_result *r) {
    for (int32_t from = 0; from < rank->size; ++from) {
        shard s = {.whole = own->whole, .rank = from, .size = rank->size, .order = own->order};
        if (rank->rank != 0 && rank->rank != from) continue;
        describe(&s);
        size_t bytes = 0;
        visit_all(&s, id, measure, &bytes);
        unsigned char *line = malloc(bytes + 1);
        if (!line) {
            fail(r, "rank %d: no memory", rank->rank);
            return;
        }
        if (rank->rank == from) {
            copying copy = {.shard = own->data[id], .line = line};
            visit_all(&s, id, to_line, &copy);
        }
        int moved = 1;
        if (from && rank->rank == from) moved = move_bytes(rank, line, NULL, bytes, 0);
        else if (from) moved = move_bytes(rank, NULL, line, bytes, from);
        if (!moved) fail(r, "rank %d: the results of rank %d did not arrive", rank->rank, from);
        if (!rank->rank && moved) {
            int same_for_all = !is_rows(id) && !(is_bias(id) && own->whole->c.problem.desc.dbias.query);
            copying copy = {.line = line, .after = after};
            if (same_for_all && from) {
                shard mine = *own;
                unsigned char *ours = malloc(bytes + 1);
                copying check = {.shard = own->data[id], .line = ours};
                if (ours) visit_all(&mine, id, to_line, &check);
                if (ours && memcmp(ours, line, bytes))
                    fail(r, "%s of rank %d is not that of rank 0", stw_verify_tensor_names[id], from);
                free(ours);
            } else {
                visit_all(&s, id, from_line, &copy);
            }
        }
        free(line);
    }
}

/* RMS beside the single device's own; what has too few elements is judged by the rule alone. */
static void judge(const cp_whole *w, const stw_verify_result *result, cp_result *r) {
    if (result->outcome == STW_VERIFY_FAIL) fail(r, "%s", result->text);
    if (result->near) fail(r, "beyond the accuracy rule: %s", result->text);
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        const stw_accuracy *a = &result->accuracy[g], *own = &w->single.accuracy[g];
        r->ratio[g] = -1;
        if (a->small || !a->elements || !(own->rms_error > 0)) continue;
        r->ratio[g] = a->rms_error / own->rms_error;
        if (!(r->ratio[g] <= 1.25))
            fail(r, "%s: RMS error %.3g is %.3f times the single device's own, %.3g (accepted 1.25)", stw_grad_names[g],
                 a->rms_error, r->ratio[g], own->rms_error);
    }
}

static void check_backward(cp_rank *rank, shard *s, const cp_row *row, cp_result *r) {
    static const stw_verify_tensor outputs[] = {STW_VERIFY_DQ,    STW_VERIFY_DK,    STW_VERIFY_DV,    STW_VERIFY_DBIAS,
                                                STW_VERIFY_DSINK, STW_VERIFY_DELTA, STW_VERIFY_STATUS};
    const stw_verify_case *c = &s->whole->c;
    run(rank, s, row, 0, r);
    if (r->outcome == STW_VERIFY_SKIP) return;
    unsigned char *after = rank->rank ? NULL : malloc(c->bytes);
    if (after) memcpy(after, c->host, c->bytes);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; ++i)
        if (c->present[outputs[i]]) collect(rank, s, outputs[i], after, r);
    if (after) {
        stw_verify_result result;
        stw_verify_result_clear(&result);
        stw_verify_check_outputs(c, after, &result);
        judge(s->whole, &result, r);
    }
    free(after);
}

static void check_forward(cp_rank *rank, shard *s, const cp_row *row, cp_result *r) {
    const stw_verify_case *c = &s->whole->c;
    const stw_attn_desc *d = &c->problem.desc;
    if (c->problem.data != STW_DATA_NORMAL) return;
    memset(s->data[STW_VERIFY_OUT], 0xFF, s->bytes[STW_VERIFY_OUT]);
    memset(s->data[STW_VERIFY_LSE], 0xFF, s->bytes[STW_VERIFY_LSE]);
    run(rank, s, row, 1, r);
    unsigned char *after = rank->rank ? NULL : malloc(c->bytes);
    if (after) memcpy(after, c->host, c->bytes);
    collect(rank, s, STW_VERIFY_OUT, after, r);
    collect(rank, s, STW_VERIFY_LSE, after, r);
    if (after) {
        double out_bound, lse_bound, error = out_error(c, after);
        stw_verify_forward_bounds(c, &out_bound, &lse_bound);
        r->out_ratio = s->whole->out_error > 0 ? error / s->whole->out_error : error > 0 ? INFINITY : 0;
        if (!(r->out_ratio <= 1.25))
            fail(r, "out: RMS error %.3g is %.3f times the single device's own (accepted 1.25)", error, r->out_ratio);
        for (int64_t b = 0; b < d->batch; ++b)
            for (int64_t h = 0; h < d->heads_q; ++h)
                for (int64_t i = 0; i < c->q[b].rows; ++i) {
                    int64_t line = (stw_attn_is_packed(d, 0) ? c->q[b].first : b * d->max_seq_q) + i;
                    double wanted = c->forward.lse[h * c->forward.rows_q + line];
                    double x =
                        stw_load_f64(after + c->offset[STW_VERIFY_LSE],
                                     stw_verify_row_index(c, STW_VERIFY_LSE, b, h, i), stw_dtype_of_rows(d->dtype));
                    if (x != wanted && !(fabs(x - wanted) <= lse_bound))
                        fail(r, "lse: sequence %lld head %lld row %lld: %.9g not %.9g", (long long)b, (long long)h,
                             (long long)i, x, wanted);
                    int64_t at = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                    for (int64_t n = 0; n < d->head_dim_v; ++n) {
                        double ref = c->forward.out[(line * d->heads_q + h) * d->head_dim_v + n];
                        double o = stw_load_f64(after + c->offset[STW_VERIFY_OUT], at + n, d->dtype);
                        if (!(fabs(o - ref) <= out_bound))
                            fail(r, "out: sequence %lld head %lld row %lld element %lld: %.9g not %.9g", (long long)b,
                                 (long long)h, (long long)i, (long long)n, o, ref);
                    }
                }
    }
    free(after);
}

void cp_check(cp_rank *rank, const cp_row *row, const cp_whole *whole, cp_result *result_out) {
    shard s = {.whole = whole, .rank = rank->rank, .size = rank->size, .order = row->order};
    memset(result_out, 0, sizeof *result_out);
    result_out->outcome = STW_VERIFY_OK;
    for (int g = 0; g < STW_GRAD_COUNT; ++g) result_out->ratio[g] = -1;
    cp_row_name(row, result_out->name, sizeof result_out->name);
    if (!make_shard(&s)) fail(result_out, "rank %d: no memory", rank->rank);
    else {
        check_backward(rank, &s, row, result_out);
        if (result_out->outcome != STW_VERIFY_SKIP) check_forward(rank, &s, row, result_out);
    }
    free_shard(rank, &s);
}
