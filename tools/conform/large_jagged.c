/* SPDX-License-Identifier: MIT
 *
 * `conform --large` of jagged operations: tensors of more than 2^31 elements. Components are all of one
 * length, inputs repeat a random block (as in filled.c), and some components come back - the first,
 * those around element 2^31, the last - each judged as a problem of one component. Sums over all components
 * (dW, dbias) are not sampled. Called by large.c. */
#include "filled.h"
#include "tools/verify/jagged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/dtype.h"

#define GUARD_BYTES ((size_t)4096)
#define GUARD_VALUE 0xA5
#define FAR         (INT64_C(1) << 31)

typedef struct large {
    stw_jagged_problem problem;
    stw_context *context;
    stw_verify_result *result;
    unsigned char *device[JVERIFY_COUNT], *block[JVERIFY_COUNT];
    int64_t elements[JVERIFY_COUNT];
    size_t bytes[JVERIFY_COUNT];
    void *workspace;
} large;

int conform_list_large_jagged(conform_list *list) {
    static const char *const lines[] = {"jagged_gelu:bf16:c40000l840t33600000i64:i64:lens_full",
                                        "jagged_silu:f16:c2000l8400t16800000o2i64:jagged:i32:lens_full",
                                        "jagged_gelu_tanh:f32:c2000l16800t33600000i64:i32:lens_full:full",
                                        "jagged_threshold:i8:c70000l31000t2170000000i1:i64:lens_full",
                                        "jagged_threshold:bf16:c70000l31000t2170000000i1:i64:lens_full:thr0.25",
                                        "jagged_softmax:bf16:c4000l8400t33600000i64:ragged:i64:lens_full",
                                        "jagged_softmax:f16:c40000l840t33600000i64:inner:i32:lens_full",
                                        "jagged_softmax:bf16:c4000l4200t16800000o2i64:outer:jagged:i32:lens_full",
                                        "jagged_log_softmax:bf16:c4000l8400t33600000i64:ragged:i64:lens_full",
                                        "jagged_log_softmax:f16:c40000l840t33600000i64:inner:i32:lens_full",
                                        "jagged_layer_norm:bf16:c4000l8400t33600000i64:gamma:out_x:i64:lens_full",
                                        "jagged_rms_norm:f16:c4000l8400t33600000i64:gamma:out_x:i64:lens_full",
                                        "jagged_rms_norm:bf16:c4000l8400t33600000i64:ragged:i64:lens_full",
                                        "jagged_sum:bf16:c4000l8400t33600000i64:ragged:i64:lens_full",
                                        "jagged_sum:f16:c40000l840t33600000i64:inner:i32:lens_full",
                                        "jagged_select:bf16:c4000l8400t33600000i64:inner:index-1:i32:lens_full",
                                        "jagged_select:f16:c4000l8400t33600000i64:ragged:index8399:i64:lens_full",
                                        "jagged_reshape:bf16:c4000l8400t33600000:shape-1,64:gshape8,-1,8:i32:lens_full",
                                        "jagged_to_padded:bf16:c4000l8400t33600000i64p8401:i64:lens_full",
                                        "jagged_from_padded:f16:c4000l8400t33600000i64p8401:i32:lens_full",
                                        "jagged_linear:bf16:c40000l840t33600000i64f48:out_x:i32:lens_full",
                                        "jagged_matmul:bf16:c40000m840k64n48:tm33600000:i64:lens_full",
                                        "jagged_matmul:f16:c40000m48k840n64:tk33600000:i32:lens_full"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i)
        if (!conform_list_add(list, CONFORM_ROW_LARGE, lines[i])) return 0;
    return 1;
}

/* ---- what can be sampled ----------------------------------------------------------------------------------
 */

static int is_ragged(const stw_jagged_desc *d, int axis) {
    return d->op == STW_JAGGED_MATMUL ? (int)(d->ragged_axes >> axis & 1u) : axis == 0;
}

static int is_sampled(const stw_jagged_problem *p) {
    const stw_jagged_desc *d = &p->desc;
    const uint32_t flags = STW_JAGGED_HAS_USED | STW_JAGGED_X_BASES | STW_JAGGED_OTHER_BASES | STW_JAGGED_GRAD_BASES;
    for (int i = 0; i < 3; ++i)
        if (is_ragged(d, i) && (p->lens != STW_LENS_FULL || d->axis[i].total != d->components * d->axis[i].size))
            return 0;
    int norm = stw_jagged_is_norm(d->op) && d->dim != STW_DIM_RAGGED;
    int planes = stw_jagged_is_softmax(d->op) || norm || stw_jagged_is_pointwise(d->op);
    int rows = !d->storage && !d->grad_storage && !d->other_storage;
    return d->op != STW_JAGGED_ATTENTION && d->components && !(d->flags & flags) && !d->accumulate &&
           d->dim != STW_DIM_COMPONENT && !p->skew && (planes || rows) &&
           !(stw_jref_outputs(d) & ~(uint32_t)(STW_JAGGED_DX | STW_JAGGED_DOTHER));
}

static stw_dtype dtype_of(const stw_jagged_desc *d, int t) {
    if (t >= JVERIFY_DX && t < JVERIFY_STATUS) return stw_jref_dtype(d, t - JVERIFY_DX);
    if (t == STW_JREF_MEAN || t == STW_JREF_RSTD) return STW_F32;
    return t == STW_JREF_WEIGHT && d->weight_dtype ? d->weight_dtype : d->dtype;
}

/* Elements of every tensor of the call; offsets and status_out are counted in bytes alone. */
static void measure_tensors(large *l) {
    const stw_jagged_desc *d = &l->problem.desc;
    stw_jagged_args none = STW_INIT(stw_jagged_args);
    int64_t outputs[STW_JREF_OUTPUTS];
    for (int i = 0; i < STW_JREF_INPUTS; ++i) l->elements[i] = stw_jref_elements(d, &none, (stw_jref_input)i);
    stw_jref_output_elements(d, outputs);
    for (int i = 0; i < STW_JREF_OUTPUTS; ++i)
        l->elements[JVERIFY_DX + i] = stw_jref_outputs(d) >> i & 1u ? outputs[i] : 0;
    for (int t = 0; t < JVERIFY_STATUS; ++t) l->bytes[t] = (size_t)l->elements[t] * stw_dtype_size(dtype_of(d, t));
    l->bytes[JVERIFY_STATUS] = 4;
    for (int i = 0; i < 3; ++i)
        if (is_ragged(d, i))
            l->bytes[JVERIFY_OFFSETS + i] = (size_t)(d->components + 1) * (d->index_dtype == STW_I64 ? 8 : 4);
}

static int fits_host(const large *l) {
    double bytes = 0, available = conform_memory();
    for (int t = 0; t < JVERIFY_COUNT; ++t) bytes += (double)l->bytes[t];
    if (strcmp(stw_context_arch(l->context), "cpu") || 1.1 * bytes < available) return 1;
    return stw_verify_fail(l->result, "needs more memory than there is: %.1f GiB and the workspace", bytes * 0x1p-30);
}

/* ---- buffers ----------------------------------------------------------------------------------------------
 */

static stw_status no_memory(const large *l) {
    stw_verify_fail(l->result, "no memory on the host");
    return STW_E_NO_MEMORY;
}

/* An input's block of data, or an output's NaN. */
static unsigned char *make_block(const large *l, int t, int64_t count) {
    size_t element = stw_dtype_size(dtype_of(&l->problem.desc, t));
    unsigned char *block = malloc((size_t)count * element + 16);
    if (!block) return NULL;
    memset(block, 0xFF, (size_t)count * element);
    for (int64_t n = 0; t < STW_JREF_INPUTS && n < count; ++n)
        jagged_verify_store(&l->problem, t, n, block, dtype_of(&l->problem.desc, t));
    return block;
}

static stw_status place_offsets(large *l, int t) {
    const stw_jagged_desc *d = &l->problem.desc;
    int64_t length = d->axis[t - JVERIFY_OFFSETS].size;
    unsigned char *starts = malloc(l->bytes[t]);
    if (!starts) return no_memory(l);
    for (int64_t b = 0; b <= d->components; ++b)
        if (d->index_dtype == STW_I64) ((int64_t *)(void *)starts)[b] = b * length;
        else ((int32_t *)(void *)starts)[b] = (int32_t)(b * length);
    stw_status status = stw_copy(l->context, l->device[t], starts, l->bytes[t], NULL);
    if (!status) status = stw_stream_synchronize(l->context, NULL);
    free(starts);
    return status;
}

static stw_status place(large *l, int t) {
    unsigned char guard[GUARD_BYTES];
    void *buffer = NULL;
    stw_status status = stw_buffer_alloc(l->context, l->bytes[t] + GUARD_BYTES, &buffer);
    if (status) return status;
    l->device[t] = buffer;
    memset(guard, GUARD_VALUE, sizeof guard);
    status = stw_copy(l->context, l->device[t] + l->bytes[t], guard, GUARD_BYTES, NULL);
    if (status) return status;
    if (t >= JVERIFY_OFFSETS) return place_offsets(l, t);
    int64_t count = l->elements[t] < FILLED_BLOCK ? l->elements[t] : FILLED_BLOCK;
    if (t == JVERIFY_STATUS) return stw_copy(l->context, buffer, guard, 4, NULL);
    l->block[t] = make_block(l, t, count);
    if (!l->block[t]) return no_memory(l);
    return filled_repeat(l->context, l->device[t], l->block[t],
                         (size_t)count * stw_dtype_size(dtype_of(&l->problem.desc, t)), l->bytes[t]);
}

static stw_status check_guards(const large *l) {
    unsigned char guard[GUARD_BYTES];
    int32_t seen = -1;
    stw_status status = stw_copy(l->context, &seen, l->device[JVERIFY_STATUS], 4, NULL);
    if (!status) status = stw_stream_synchronize(l->context, NULL);
    if (!status && seen)
        stw_verify_fail(l->result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
    for (int t = 0; t < JVERIFY_COUNT && !status; ++t) {
        if (!l->device[t]) continue;
        status = stw_copy(l->context, guard, l->device[t] + l->bytes[t], sizeof guard, NULL);
        if (!status) status = stw_stream_synchronize(l->context, NULL);
        for (size_t i = 0; !status && i < sizeof guard; ++i)
            if (guard[i] != GUARD_VALUE) {
                stw_verify_fail(l->result, "byte %zu behind %s was written", i, jagged_verify_tensor_name(t));
                break;
            }
    }
    return status;
}

static stw_jagged_args args_of(const large *l) {
    stw_jagged_args a = STW_INIT(stw_jagged_args);
    a.grad = l->device[STW_JREF_GRAD];
    a.x = l->device[STW_JREF_X];
    a.y = l->device[STW_JREF_Y];
    a.other = l->device[STW_JREF_OTHER];
    a.weight = l->device[STW_JREF_WEIGHT];
    a.mean = (const float *)(const void *)l->device[STW_JREF_MEAN];
    a.rstd = (const float *)(const void *)l->device[STW_JREF_RSTD];
    a.dx = l->device[JVERIFY_DX];
    a.dother = l->device[JVERIFY_DOTHER];
    a.status_out = (int32_t *)(void *)l->device[JVERIFY_STATUS];
    for (int i = 0; i < 3; ++i) a.axis[i].offsets = l->device[JVERIFY_OFFSETS + i];
    return a;
}

/* ---- sampled components
 * ------------------------------------------------------------------------------------ */

/* Elements [at, at + count); an input must still be the block's repetition. */
static stw_status fetch(const large *l, int t, int64_t at, int64_t count, unsigned char *to) {
    size_t element = stw_dtype_size(dtype_of(&l->problem.desc, t));
    stw_status status = stw_copy(l->context, to, l->device[t] + (size_t)at * element, (size_t)count * element, NULL);
    if (!status) status = stw_stream_synchronize(l->context, NULL);
    for (int64_t i = 0; !status && t < STW_JREF_INPUTS && i < count;) {
        int64_t from = (at + i) % FILLED_BLOCK, left = FILLED_BLOCK - from;
        int64_t n = left < count - i ? left : count - i;
        if (memcmp(to + (size_t)i * element, l->block[t] + (size_t)from * element, (size_t)n * element))
            stw_verify_fail(l->result, "%s was written near element %lld", jagged_verify_tensor_name(t),
                            (long long)(at + i));
        i += n;
    }
    return status;
}

/* Component b of a tensor, `own` elements as a problem of its own has them: one behind the other, in planes
 * where the storage is by planes, or the same for all (weights). */
static stw_status fetch_component(const large *l, int t, int64_t b, int64_t own, unsigned char *to) {
    const stw_jagged_desc *d = &l->problem.desc;
    size_t element = stw_dtype_size(dtype_of(d, t));
    int64_t planes = d->storage && d->outer ? d->outer : 1;
    if (l->elements[t] == own && d->components > 1) return fetch(l, t, 0, own, to);
    if (l->elements[t] != own * d->components || own % planes)
        return stw_fail(STW_E_INTERNAL, "sample: %s has %lld elements, a component %lld", jagged_verify_tensor_name(t),
                        (long long)l->elements[t], (long long)own);
    stw_status status = STW_OK;
    for (int64_t o = 0; o < planes && !status; ++o) {
        int64_t part = own / planes;
        status = fetch(l, t, (o * d->components + b) * part, part, to + (size_t)(o * part) * element);
    }
    return status;
}

static stw_status judge_component(const large *l, int64_t b) {
    stw_jagged_problem one = l->problem;
    jagged_verify_case c;
    for (int i = 0; i < 3; ++i)
        if (is_ragged(&one.desc, i)) one.desc.axis[i].total = one.desc.axis[i].size;
    one.desc.components = 1;
    stw_status status = jagged_verify_build_inputs(&one, &c);
    if (status) return stw_fail(status, "sample: %s", stw_tool_last_error()), status;
    for (int t = 0; t < STW_JREF_INPUTS && !status; ++t)
        if (c.size[t])
            status = fetch_component(l, t, b, (int64_t)(c.size[t] / stw_dtype_size(dtype_of(&one.desc, t))),
                                     c.host + c.offset[t]);
    if (!status) status = jagged_verify_expect(&c);
    unsigned char *after = status ? NULL : malloc(c.bytes);
    if (!status && !after) status = no_memory(l);
    if (!status) memcpy(after, c.host, c.bytes);
    if (!status) memset(after + c.offset[JVERIFY_STATUS], 0, c.size[JVERIFY_STATUS]);
    for (int t = JVERIFY_DX; t < JVERIFY_STATUS && !status; ++t)
        if (c.size[t])
            status = fetch_component(l, t, b, (int64_t)(c.size[t] / stw_dtype_size(dtype_of(&one.desc, t))),
                                     after + c.offset[t]);
    int before = l->result->outcome == STW_VERIFY_FAIL;
    if (!status) jagged_verify_check_outputs(&c, after, l->result);
    if (!before && (l->result->outcome == STW_VERIFY_FAIL || l->result->near)) {
        char text[sizeof l->result->text];
        snprintf(text, sizeof text, "%s", l->result->text);
        snprintf(l->result->text, sizeof l->result->text, "component %lld: %.440s", (long long)b, text);
        l->result->outcome = STW_VERIFY_FAIL; /* no further data here: a near miss is one */
    }
    l->result->near = 0;
    free(after);
    jagged_verify_free(&c);
    return status;
}

static stw_status judge_components(const large *l) {
    int64_t n = l->problem.desc.components, most = 0, samples[4], last = -1;
    for (int t = 0; t < JVERIFY_STATUS; ++t) most = l->elements[t] > most ? l->elements[t] : most;
    int64_t far = most / n > 0 ? FAR / (most / n) : 0; /* in which component element 2^31 is */
    if (far >= n) far = n / 2;
    samples[0] = 0, samples[1] = far, samples[2] = far + 1 < n ? far + 1 : far, samples[3] = n - 1;
    for (int i = 0; i < 4; ++i) {
        if (samples[i] <= last) continue;
        last = samples[i];
        stw_status status = judge_component(l, last);
        if (status) return status;
    }
    return STW_OK;
}

static stw_status run(large *l) {
    stw_plan *plan = NULL;
    stw_status status = stw_jagged_bwd_plan(l->context, &l->problem.desc, &plan);
    if (!status) {
        stw_verify_note_variant(plan, l->result);
        status = stw_buffer_alloc(l->context, stw_plan_workspace_size(plan), &l->workspace);
    }
    for (int t = 0; t < JVERIFY_COUNT && !status; ++t)
        if (l->bytes[t]) status = place(l, t);
    stw_jagged_args args = args_of(l);
    if (!status) status = stw_jagged_bwd(plan, &args, l->workspace, stw_plan_workspace_size(plan), NULL);
    if (!status) status = stw_stream_synchronize(l->context, NULL);
    stw_plan_destroy(plan);
    if (!status) status = check_guards(l);
    return status ? status : judge_components(l);
}

stw_status conform_large_jagged_check(const char *line, stw_context *context, stw_verify_result *result) {
    large l = {.context = context, .result = result};
    stw_status status = stw_problem_jagged_parse(line, &l.problem);
    if (status) return status;
    l.problem.seed = conform_seed_of(line);
    if (!is_sampled(&l.problem)) {
        stw_verify_fail(result, "--large samples components of one length (lens_full), without used lengths, bases, "
                                "accumulation and sums over components");
        result->outcome = STW_VERIFY_SKIP;
        return STW_OK;
    }
    measure_tensors(&l);
    if (!fits_host(&l)) return STW_E_NO_MEMORY;
    status = run(&l);
    for (int t = 0; t < JVERIFY_COUNT; ++t) {
        if (l.device[t]) stw_buffer_free(context, l.device[t]);
        free(l.block[t]);
    }
    if (l.workspace) stw_buffer_free(context, l.workspace);
    return status;
}
