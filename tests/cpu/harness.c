/* SPDX-License-Identifier: MIT
 *
 * Fixtures through the library: see harness.h. */
#include "tests/cpu/harness.h"

#include "tools/reference/problem.h"
#include "common/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD 256

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) #id,
#define STW_RULE(conditions, id)
const char *const harness_variants[] = {
#include "common/tuning/attn_bwd.cpu.def"
};
const int harness_variant_count = (int)(sizeof harness_variants / sizeof *harness_variants);

stw_context *harness_context(const char *variant, int threads) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = threads;
    if (variant) setenv("STERNWAY_VARIANT", variant, 1);
    else unsetenv("STERNWAY_VARIANT");
    stw_context *context = NULL;
    if (stw_context_create(&opts, &context) != STW_OK) fail_msg("%s", stw_last_error());
    fixture f = fixture_start();
    fixture_build(&f);
    stw_plan *plan = NULL;
    stw_status status = stw_attn_bwd_plan(context, &f.desc, &plan);
    fixture_free(&f);
    stw_plan_destroy(plan);
    if (status == STW_OK) return context;
    stw_context_destroy(context);
    assert_int_equal(status, STW_E_UNSUPPORTED);
    return NULL;
}

uint32_t harness_all_outputs(const fixture *f) {
    uint32_t outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (f->desc.bias_dtype && f->desc.bias_dtype != STW_U8) outputs |= STW_OUT_DBIAS;
    if (f->desc.flags & STW_ATTN_SINK) outputs |= STW_OUT_DSINK;
    return outputs;
}

void harness_run(stw_context *context, const fixture *f) {
    stw_plan *plan = NULL;
    if (stw_attn_bwd_plan(context, &f->desc, &plan) != STW_OK) fail_msg("plan: %s", stw_last_error());
    size_t size = stw_plan_workspace_size(plan), total = (size + 2 * GUARD + 255) / 256 * 256;
    unsigned char *memory = aligned_alloc(256, total);
    assert_non_null(memory);
    memset(memory, 0xFF, total);
    stw_status status = stw_attn_bwd(plan, &f->args, memory + GUARD, size, NULL);
    if (status != STW_OK) fail_msg("run: %s", stw_last_error());
    for (size_t i = 0; i < GUARD; ++i) assert_int_equal(memory[i], 0xFF);
    for (size_t i = GUARD + size; i < total; ++i) assert_int_equal(memory[i], 0xFF);
    free(memory);
    stw_plan_destroy(plan);
}

int harness_all_bytes(const void *data, size_t bytes, unsigned char value) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; ++i)
        if (p[i] != value) return 0;
    return 1;
}

/* The fixture's buffer that starts at `data`. */
static int buffer_of(const fixture *f, const void *data) {
    for (int n = 0; n < f->count; ++n)
        if (f->buffers[n] == data) return n;
    return -1;
}

static int output_buffers(const fixture *f, int buffers[8]) {
    const stw_attn_args *a = &f->args;
    const void *outputs[] = {a->dq,    a->dk,    a->dv,
                             a->dbias, a->dsink, f->desc.flags & STW_ATTN_WRITE_DELTA ? a->delta : NULL};
    int count = 0;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; ++i)
        if (outputs[i] && buffer_of(f, outputs[i]) >= 0) buffers[count++] = buffer_of(f, outputs[i]);
    return count;
}

void harness_poison_outputs(fixture *f) {
    int buffers[8], count = output_buffers(f, buffers);
    for (int i = 0; i < count; ++i) memset(f->buffers[buffers[i]], 0xFF, f->bytes[buffers[i]]);
}

unsigned char *harness_snapshot(const fixture *f, size_t *bytes_out) {
    int buffers[8], count = output_buffers(f, buffers);
    size_t total = 0;
    for (int i = 0; i < count; ++i) total += f->bytes[buffers[i]];
    unsigned char *copy = malloc(total), *to = copy;
    assert_non_null(copy);
    for (int i = 0; i < count; ++i) {
        memcpy(to, f->buffers[buffers[i]], f->bytes[buffers[i]]);
        to += f->bytes[buffers[i]];
    }
    *bytes_out = total;
    return copy;
}

static void poison_row(const fixture *f, fixture_tensor tensor, const void *data, int64_t b, int64_t h, int64_t i,
                       int64_t dim) {
    size_t size = stw_dtype_size(f->desc.dtype);
    char *row = (char *)(uintptr_t)data + (size_t)fixture_index(f, tensor, b, h, i, 0) * size;
    memset(row, 0xFF, size * (size_t)dim);
}

static void poison_sequence(fixture *f, const stw_ref_problem *p, int64_t b, unsigned char *bias_seen) {
    const stw_attn_desc *d = &f->desc;
    const stw_attn_args *a = &f->args;
    stw_ref_side q = stw_ref_side_q(p, b), kv = stw_ref_side_kv(p, b);
    for (int64_t i = 0; i < q.used; ++i) {
        int sees = 0;
        for (int64_t j = 0; j < kv.used; ++j) {
            if (!stw_ref_visible(p, &q, &kv, i, j)) continue;
            sees = 1;
            for (int64_t h = 0; bias_seen && h < d->heads_q; ++h) bias_seen[fixture_bias_index(f, b, h, i, j)] = 1;
        }
        for (int64_t h = 0; !sees && h < d->heads_q; ++h) {
            poison_row(f, FIXTURE_Q, a->q, b, h, i, d->head_dim_qk);
            poison_row(f, FIXTURE_OUT, a->out, b, h, i, d->head_dim_v);
            poison_row(f, FIXTURE_DOUT, a->dout, b, h, i, d->head_dim_v);
        }
    }
    for (int64_t j = 0; j < kv.used; ++j) {
        int seen = 0;
        for (int64_t i = 0; i < q.used && !seen; ++i) seen = stw_ref_visible(p, &q, &kv, i, j);
        for (int64_t h = 0; !seen && h < d->heads_kv; ++h) {
            poison_row(f, FIXTURE_K, a->k, b, h, j, d->head_dim_qk);
            poison_row(f, FIXTURE_V, a->v, b, h, j, d->head_dim_v);
        }
    }
}

void harness_poison_unseen(fixture *f) {
    stw_ref_problem problem;
    assert_int_equal(stw_ref_problem_init(&problem, &f->desc, &f->args, 1), STW_OK);
    int bias = f->args.bias ? buffer_of(f, f->args.bias) : -1;
    size_t size = bias >= 0 ? stw_dtype_size(f->desc.bias_dtype) : 1, count = bias >= 0 ? f->bytes[bias] / size : 0;
    unsigned char *seen = bias >= 0 ? calloc(count, 1) : NULL;
    for (int64_t b = 0; b < f->desc.batch; ++b) poison_sequence(f, &problem, b, seen);
    for (size_t n = 0; n < count; ++n)
        if (!seen[n]) memset((char *)f->buffers[bias] + n * size, 0xFF, size);
    free(seen);
}

/* Bytes that the reference leaves at 0xFF must be 0xFF in the library's tensor too. */
static void check_untouched(const fixture *f, const stw_expectation *expectation, const char *label) {
    fixture stored = *f;
    void **slots[] = {&stored.args.dq, &stored.args.dk, &stored.args.dv, &stored.args.dbias,
                      (void **)&stored.args.dsink};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; ++i) {
        int n = *slots[i] ? buffer_of(f, *slots[i]) : -1;
        if (n < 0) continue;
        *slots[i] = malloc(f->bytes[n]);
        assert_non_null(*slots[i]);
        memset(*slots[i], 0xFF, f->bytes[n]);
    }
    fixture_store(&stored, &expectation->reference);
    const void *ours[] = {f->args.dq, f->args.dk, f->args.dv, f->args.dbias, f->args.dsink};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; ++i) {
        int n = ours[i] ? buffer_of(f, ours[i]) : -1;
        if (n < 0) continue;
        const stw_attn_desc *d = &f->desc;
        const stw_dtype own[] = {d->dq_dtype, d->dk_dtype, d->dv_dtype, d->dbias_dtype ? d->dbias_dtype : d->bias_dtype,
                                 stw_dtype_of_rows(d->dtype)};
        size_t size = stw_dtype_size(own[i] ? own[i] : d->dtype);
        const unsigned char poison[] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, *expected = *slots[i],
                            *got = ours[i];
        for (size_t at = 0; at + size <= f->bytes[n]; at += size) {
            const unsigned char zero[8] = {0};
            if (!memcmp(expected + at, poison, size) && memcmp(got + at, poison, size))
                fail_msg("%s: output %zu was written outside its gradient, byte %zu", label, i, at);
            /* a pair of dBias that takes no part is 0, not nearly 0 */
            if (ours[i] == f->args.dbias && !memcmp(expected + at, zero, size) &&
                stw_load_f64(got, (int64_t)(at / size), own[i] ? own[i] : d->dtype) != 0)
                fail_msg("%s: dbias is not 0 at byte %zu", label, at);
        }
        free(*slots[i]);
    }
}

void harness_judge(const fixture *f, const stw_expectation *expectation, stw_accuracy_pool *pool, const char *label) {
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        stw_accuracy accuracy;
        if (!expectation->grad[g].wanted) continue;
        assert_int_equal(stw_judge(&f->desc, &f->args, expectation, (stw_grad)g, NULL, &accuracy), STW_OK);
        if (!accuracy.pass)
            fail_msg("%s: %s max %.3g of %.3g, rms %.3g of %.3g; element %lld is %.9g, reference %.9g", label,
                     stw_grad_names[g], accuracy.max_error, accuracy.max_allowed, accuracy.rms_error,
                     accuracy.rms_allowed, (long long)accuracy.worst, accuracy.worst_value, accuracy.worst_ref);
        stw_pool_add(pool, &accuracy);
    }
    check_untouched(f, expectation, label);
}

stw_context *harness_contexts[sizeof harness_variants / sizeof *harness_variants];

int harness_open(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v) harness_contexts[v] = harness_context(harness_variants[v], 2);
    return 0;
}

int harness_close(void **state) {
    (void)state;
    for (int v = 0; v < harness_variant_count; ++v) stw_context_destroy(harness_contexts[v]);
    return 0;
}
