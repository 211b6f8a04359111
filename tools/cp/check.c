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

static void make_lists(cp_whole *w) {
    for (int kv = 0; kv < 2; ++kv) {
        if (stw_attn_is_packed(&w->c.problem.desc, kv)) w->cu[kv] = starts_of(&w->c, kv);
        if (w->c.present[kv ? STW_VERIFY_USED_KV : STW_VERIFY_USED_Q]) w->used[kv] = used_of(&w->c, kv);
    }
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
    make_lists(whole_out);
    return status;
}

stw_status cp_whole_build_large(const char *problem, int owner, stw_context *context, cp_whole *whole_out) {
    stw_problem parsed;
    memset(whole_out, 0, sizeof *whole_out);
    stw_status status = stw_problem_parse(problem, &parsed);
    if (status) return status;
    if (!parsed.seed) parsed.seed = 1;
    stw_verify_case *c = &whole_out->c;
    if ((status = stw_verify_build_inputs(&parsed, c))) return status;
    if (owner && parsed.op != STW_PROBLEM_ATTN_FWD) {
        stw_verify_device device;
        status = stw_verify_device_open(context, c->bytes, 0, &device);
        if (!status) {
            status = stw_verify_sample_forward(c, context, &device);
            stw_verify_device_close(&device);
        }
    }
    if (parsed.desc.flags & STW_ATTN_GIVEN_DELTA) c->present[STW_VERIFY_OUT] = 0;
    make_lists(whole_out);
    if (status) cp_whole_free(whole_out);
    return status;
}

void cp_whole_free(cp_whole *w) {
    for (int kv = 0; kv < 2; ++kv) {
        free(w->cu[kv]);
        free(w->used[kv]);
    }
    stw_verify_free(&w->c);
}

void cp_note_plan(const stw_cp_plan *plan, cp_result *r) {
    char text[4096];
    const char *at;
    if (stw_cp_plan_describe(plan, text, sizeof text, NULL)) return;
    if ((at = strstr(text, "\nschedule: ")) != NULL)
        snprintf(r->schedule, sizeof r->schedule, "%.*s", (int)strcspn(at + 11, "\n"), at + 11);
    if ((at = strstr(text, "\nimbalance: ")) != NULL) r->imbalance = strtod(at + 12, NULL);
}

/* Whether the plan promises the same bits: on GPUs where deterministic mode was asked for. */
static int promises_same_bits(const stw_cp_plan *plan) {
    char text[4096];
    return !stw_cp_plan_describe(plan, text, sizeof text, NULL) && strstr(text, "\ndeterministic: yes");
}

/* Tensors of the shard to the device and back, where there is one. */
static stw_status to_device(const cp_rank *rank, cp_shard *s) {
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && !status; ++id) {
        void *made = s->seen[id];
        if (!s->data[id]) continue;
        if (!rank->on_device) s->seen[id] = s->data[id];
        else {
            if (!made) status = stw_buffer_alloc(rank->context, s->bytes[id] + 64, &made);
            s->seen[id] = made;
            if (!status) status = stw_copy(rank->context, made, s->data[id], s->bytes[id] + 64, rank->stream);
        }
    }
    return status ? status : stw_stream_synchronize(rank->context, rank->stream);
}
static stw_status from_device(const cp_rank *rank, const cp_shard *s) {
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && rank->on_device && !status; ++id)
        if (s->data[id]) status = stw_copy(rank->context, s->data[id], s->seen[id], s->bytes[id] + 64, rank->stream);
    return status ? status : stw_stream_synchronize(rank->context, rank->stream);
}
static void free_on_device(const cp_rank *rank, cp_shard *s) {
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id)
        if (rank->on_device && s->seen[id]) stw_buffer_free(rank->context, s->seen[id]);
}

/* Plans and runs; twice, and the outputs must have the same bits. `kept`: outputs before the call. */
static void run(cp_rank *rank, cp_shard *s, const cp_row *row, int forward, cp_result *r) {
    static const stw_verify_tensor outputs[] = {STW_VERIFY_DQ,    STW_VERIFY_DK,    STW_VERIFY_DV,  STW_VERIFY_DBIAS,
                                                STW_VERIFY_DSINK, STW_VERIFY_DELTA, STW_VERIFY_OUT, STW_VERIFY_LSE};
    const stw_cp_desc desc = cp_shard_desc(s, row);
    const char *call = forward ? "stw_cp_attn_fwd" : "stw_cp_attn_bwd";
    unsigned char *before[8] = {0}, *once[8] = {0};
    stw_cp_plan *plan = NULL;
    stw_status status = forward ? stw_cp_attn_fwd_plan(rank->cp, rank->context, &desc, &plan)
                                : stw_cp_attn_bwd_plan(rank->cp, rank->context, &desc, &plan);
    if (status) {
        cp_fail(r, "rank %d: %s_plan: %s: %s", rank->rank, call, stw_status_name(status), stw_last_error());
        if (status == STW_E_UNSUPPORTED) r->outcome = STW_VERIFY_SKIP;
        return;
    }
    if (!forward) cp_note_plan(plan, r);
    size_t size = stw_cp_plan_workspace_size(plan);
    unsigned char *workspace = malloc(size + 65);
    void *scratch = workspace;
    if (rank->on_device && stw_buffer_alloc(rank->context, size + 65, &scratch)) scratch = NULL;
    status = to_device(rank, s);
    stw_attn_args args = cp_shard_args(s, s->seen);
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
        void *start = (char *)scratch + 1;
        status = n ? to_device(rank, s) : STW_OK;
        if (!status && rank->on_device) status = stw_copy(rank->context, scratch, workspace, size + 65, rank->stream);
        if (!status)
            status = forward ? stw_cp_attn_fwd(plan, &args, start, size, rank->stream)
                             : stw_cp_attn_bwd(plan, &args, start, size, rank->stream);
        if (!status && rank->on_device) status = stw_copy(rank->context, workspace, scratch, size + 65, rank->stream);
        if (!status) status = from_device(rank, s);
        if (status) cp_fail(r, "rank %d: %s: %s: %s", rank->rank, call, stw_status_name(status), stw_last_error());
        for (size_t at = 0; at < 64; ++at)
            if (at ? workspace[size + at] != (n ? 0x7F : 0xFF) : workspace[0] != (n ? 0x7F : 0xFF))
                cp_fail(r, "rank %d: %s: memory around the workspace was written", rank->rank, call);
    }
    for (int i = 0; i < 8 && !status && promises_same_bits(plan); ++i)
        if (once[i] && memcmp(once[i], s->data[outputs[i]], s->bytes[outputs[i]]))
            cp_fail(r, "rank %d: %s: %s differs in a second run", rank->rank, call,
                    stw_verify_tensor_names[outputs[i]]);
    for (int i = 0; i < 8; ++i) {
        free(before[i]);
        free(once[i]);
    }
    if (!workspace || !scratch) cp_fail(r, "rank %d: no memory", rank->rank);
    if (status) cp_fail(r, "rank %d: %s: %s", rank->rank, call, stw_last_error());
    if (scratch && scratch != workspace) stw_buffer_free(rank->context, scratch);
    free(workspace);
    stw_cp_plan_destroy(plan);
}

/* ---- judging ---- */

/* RMS beside the single device's own; what has too few elements is judged by the rule alone. */
static void judge(const cp_whole *w, const stw_verify_result *result, cp_result *r) {
    if (result->outcome == STW_VERIFY_FAIL) cp_fail(r, "%s", result->text);
    if (result->near) cp_fail(r, "beyond the accuracy rule: %s", result->text);
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        const stw_accuracy *a = &result->accuracy[g], *own = &w->single.accuracy[g];
        r->ratio[g] = -1;
        if (a->small || !a->elements || !(own->rms_error > 0)) continue;
        r->ratio[g] = a->rms_error / own->rms_error;
        if (!(r->ratio[g] <= 1.25))
            cp_fail(r, "%s: RMS error %.3g is %.3f times the single device's own, %.3g (accepted 1.25)",
                    stw_grad_names[g], a->rms_error, r->ratio[g], own->rms_error);
    }
}

static void check_backward(cp_rank *rank, cp_shard *s, const cp_row *row, cp_result *r) {
    static const stw_verify_tensor outputs[] = {STW_VERIFY_DQ,    STW_VERIFY_DK,    STW_VERIFY_DV,    STW_VERIFY_DBIAS,
                                                STW_VERIFY_DSINK, STW_VERIFY_DELTA, STW_VERIFY_STATUS};
    const stw_verify_case *c = &s->whole->c;
    run(rank, s, row, 0, r);
    if (r->outcome == STW_VERIFY_SKIP) return;
    unsigned char *after = rank->rank ? NULL : malloc(c->bytes);
    if (after) memcpy(after, c->host, c->bytes);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; ++i)
        if (c->present[outputs[i]]) cp_collect(rank, s, outputs[i], after, r);
    if (after) {
        stw_verify_result result;
        stw_verify_result_clear(&result);
        stw_verify_check_outputs(c, after, &result);
        judge(s->whole, &result, r);
    }
    free(after);
}

static void check_forward(cp_rank *rank, cp_shard *s, const cp_row *row, cp_result *r) {
    const stw_verify_case *c = &s->whole->c;
    const stw_attn_desc *d = &c->problem.desc;
    if (c->problem.data != STW_DATA_NORMAL) return;
    memset(s->data[STW_VERIFY_OUT], 0xFF, s->bytes[STW_VERIFY_OUT]);
    memset(s->data[STW_VERIFY_LSE], 0xFF, s->bytes[STW_VERIFY_LSE]);
    run(rank, s, row, 1, r);
    unsigned char *after = rank->rank ? NULL : malloc(c->bytes);
    if (after) memcpy(after, c->host, c->bytes);
    cp_collect(rank, s, STW_VERIFY_OUT, after, r);
    cp_collect(rank, s, STW_VERIFY_LSE, after, r);
    if (after) {
        double out_bound, lse_bound, error = out_error(c, after);
        stw_verify_forward_bounds(c, &out_bound, &lse_bound);
        r->out_ratio = s->whole->out_error > 0 ? error / s->whole->out_error : error > 0 ? INFINITY : 0;
        if (!(r->out_ratio <= 1.25))
            cp_fail(r, "out: RMS error %.3g is %.3f times the single device's own (accepted 1.25)", error,
                    r->out_ratio);
        for (int64_t b = 0; b < d->batch; ++b)
            for (int64_t h = 0; h < d->heads_q; ++h)
                for (int64_t i = 0; i < c->q[b].rows; ++i) {
                    int64_t line = (stw_attn_is_packed(d, 0) ? c->q[b].first : b * d->max_seq_q) + i;
                    double wanted = c->forward.lse[h * c->forward.rows_q + line];
                    double x =
                        stw_load_f64(after + c->offset[STW_VERIFY_LSE],
                                     stw_verify_row_index(c, STW_VERIFY_LSE, b, h, i), stw_dtype_of_rows(d->dtype));
                    if (x != wanted && !(fabs(x - wanted) <= lse_bound))
                        cp_fail(r, "lse: sequence %lld head %lld row %lld: %.9g not %.9g", (long long)b, (long long)h,
                                (long long)i, x, wanted);
                    int64_t at = stw_verify_row_index(c, STW_VERIFY_OUT, b, h, i);
                    for (int64_t n = 0; n < d->head_dim_v; ++n) {
                        double ref = c->forward.out[(line * d->heads_q + h) * d->head_dim_v + n];
                        double o = stw_load_f64(after + c->offset[STW_VERIFY_OUT], at + n, d->dtype);
                        if (!(fabs(o - ref) <= out_bound))
                            cp_fail(r, "out: sequence %lld head %lld row %lld element %lld: %.9g not %.9g",
                                    (long long)b, (long long)h, (long long)i, (long long)n, o, ref);
                    }
                }
    }
    free(after);
}

void cp_check(cp_rank *rank, const cp_row *row, const cp_whole *whole, cp_result *result_out) {
    cp_shard s = {.whole = whole, .rank = rank->rank, .size = rank->size, .order = row->order};
    memset(result_out, 0, sizeof *result_out);
    result_out->outcome = STW_VERIFY_OK;
    for (int g = 0; g < STW_GRAD_COUNT; ++g) result_out->ratio[g] = -1;
    cp_row_name(row, result_out->name, sizeof result_out->name);
    if (!cp_shard_make(&s)) cp_fail(result_out, "rank %d: no memory", rank->rank);
    else {
        check_backward(rank, &s, row, result_out);
        if (result_out->outcome != STW_VERIFY_SKIP) check_forward(rank, &s, row, result_out);
    }
    free_on_device(rank, &s);
    cp_shard_free(&s);
}
