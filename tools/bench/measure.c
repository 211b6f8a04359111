/* SPDX-License-Identifier: MIT
 *
 * Runs of a plan on a large problem, verified and timed (measure.h). */
#include "measure.h"

#include "tools/base/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_ROWS   16
#define BATCH_SECONDS 4e-3
#define ISSUE_CALLS   16

static stw_status note(stw_case_result *result, const char *what, stw_status status, const char *text) {
    if (status) stw_case_fail(result, "%s: %s: %s", what, stw_status_name(status), text);
    return status;
}

stw_status stw_measure_open(const stw_problem *problem, stw_context *context, size_t workspace_bytes,
                            stw_measure *measure_out, stw_case_result *result_out) {
    stw_measure *m = measure_out;
    stw_problem seeded = *problem;
    memset(m, 0, sizeof *m);
    if (!seeded.seed) seeded.seed = 1;
    stw_status status = stw_case_build_inputs(&seeded, &m->c);
    if (status) return note(result_out, "data", status, stw_tool_last_error());
    status = stw_case_device_open(context, m->c.bytes, workspace_bytes, &m->device);
    if (!status) status = stw_case_sample_forward(&m->c, context, &m->device);
    note(result_out, "forward", status, stw_last_error());
    m->after = status ? NULL : malloc(m->c.bytes);
    if (!status && !m->after) status = note(result_out, "data", STW_E_NO_MEMORY, "no memory for the results");
    if (status) {
        stw_measure_close(m);
        return status;
    }
    m->args = stw_case_args(&m->c, m->device.arena);
    return STW_OK;
}

void stw_measure_close(stw_measure *m) {
    if (m->lengths) stw_buffer_free(m->device.context, m->lengths);
    if (m->device.context) stw_case_device_close(&m->device);
    free(m->after);
    stw_case_free(&m->c);
    jagged_case_free(&m->j);
    memset(m, 0, sizeof *m);
}

/* ---- verification -------------------------------------------------------------------------------------- */

static const stw_case_tensor results[] = {STW_CASE_DQ, STW_CASE_DK, STW_CASE_DV, STW_CASE_DBIAS,
                                          STW_CASE_DSINK};
enum { RESULTS = sizeof results / sizeof *results };

/* Where result i lies in the arena; 0: it is absent. JCASE_DX.. are DX, DOTHER, DWEIGHT, DBIAS and the
 * status. */
static size_t result_at(const stw_measure *m, int i, size_t *offset_out) {
    if (m->kind == STW_MEASURE_JAGGED) {
        *offset_out = m->j.offset[JCASE_DX + i];
        return m->j.size[JCASE_DX + i];
    }
    *offset_out = m->c.offset[results[i]];
    return m->c.present[results[i]] ? m->c.size[results[i]] : 0;
}

/* Copies the gradients between the device's arena and one of the host: nothing else of it changes. */
static stw_status copy_results(const stw_measure *m, unsigned char *host, int to_device) {
    stw_status status = STW_OK;
    for (int i = 0; i < RESULTS && !status; ++i) {
        size_t at, bytes = result_at(m, i, &at);
        if (!bytes) continue;
        void *there = m->device.arena + at, *here = host + at;
        status = stw_copy(m->device.context, to_device ? there : here, to_device ? here : there, bytes,
                          m->device.stream);
    }
    return status;
}

static stw_status poison_workspace(const stw_measure *m) {
    size_t bytes = m->device.workspace_bytes;
    unsigned char *filler = malloc(bytes + 1);
    if (!filler) return STW_E_NO_MEMORY;
    memset(filler, 0xFF, bytes);
    stw_status status =
        bytes ? stw_copy(m->device.context, m->device.workspace, filler, bytes, m->device.stream) : STW_OK;
    if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    free(filler);
    return status;
}

/* The last sequence with rows on both sides; -1: there is none. */
static int64_t last_sequence(const stw_case *c) {
    int64_t b = c->problem.desc.batch - 1;
    while (b >= 0 && !(c->q[b].used > 0 && c->kv[b].used > 0)) --b;
    return b;
}

static const char *judge_jagged(const stw_measure *m, stw_case_result *result) {
    int32_t seen;
    memcpy(&seen, m->after + m->j.offset[JCASE_STATUS], sizeof seen);
    if (seen) stw_case_fail(result, "status_out is 0x%x for values that are all in range", (unsigned)seen);
    return jagged_sample_judge(&m->j, m->after, result);
}

const char *stw_measure_verify(stw_measure *m, const stw_plan *plan, stw_case_result *result) {
    int judged = 0, jagged = m->kind == STW_MEASURE_JAGGED;
    int64_t sequence = jagged ? 0 : last_sequence(&m->c);
    stw_status status = poison_workspace(m);
    if (!status) status = copy_results(m, jagged ? m->j.host : m->c.host, 1);
    if (!status) status = stw_measure_run(m, plan, 1);
    if (!status) status = copy_results(m, m->after, 0);
    if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    note(result, "first run", status, stw_last_error());
    if (status) return "its first run failed";
    if (jagged) return judge_jagged(m, result);
    if (sequence >= 0) stw_case_sample_judge(&m->c, m->after, sequence, SAMPLE_ROWS, result, &judged);
    return judged ? NULL : sequence < 0 ? "it is empty" : "its dropout map is not sampled";
}

/* ---- time ---------------------------------------------------------------------------------------------- */

static stw_status issue(const stw_measure *m, const stw_plan *plan, int calls) {
    stw_status status = STW_OK;
    const stw_case_device *d = &m->device;
    for (int i = 0; i < calls && !status; ++i)
        status = m->kind == STW_MEASURE_ATTN
                     ? stw_attn_bwd(plan, &m->args, d->workspace, d->workspace_bytes, d->stream)
                     : stw_jagged_bwd(plan, &m->jagged_args, d->workspace, d->workspace_bytes, d->stream);
    return status;
}

stw_status stw_measure_run(const stw_measure *m, const stw_plan *plan, int calls) {
    stw_status status = issue(m, plan, calls);
    return status ? status : stw_stream_synchronize(m->device.context, m->device.stream);
}

stw_status stw_measure_batch(const stw_measure *m, const stw_plan *plan, int *calls_out) {
    stw_status status = stw_measure_run(m, plan, 1);
    double once = 0;
    int calls = 1;
    /* Doubled until the batch is long enough: a single call says little where waiting takes longer. */
    for (int turn = 0; turn < 12 && !status; ++turn) {
        double begin = stw_tool_seconds();
        status = stw_measure_run(m, plan, calls);
        once = (stw_tool_seconds() - begin) / calls;
        if (once * calls >= BATCH_SECONDS / 4) break;
        calls *= 2;
    }
    *calls_out = once < BATCH_SECONDS ? (int)ceil(BATCH_SECONDS / fmax(once, 1e-6)) : 1;
    return status;
}

stw_status stw_measure_issue(const stw_measure *m, const stw_plan *plan, double *seconds_out) {
    double times[ISSUE_CALLS], quartiles[3];
    stw_status status = STW_OK;
    for (int i = 0; i < ISSUE_CALLS && !status; ++i) {
        double begin = stw_tool_seconds();
        status = issue(m, plan, 1);
        times[i] = stw_tool_seconds() - begin;
        if (!status) status = stw_stream_synchronize(m->device.context, m->device.stream);
    }
    if (status) return status;
    stw_measure_quartiles(times, ISSUE_CALLS, quartiles);
    *seconds_out = quartiles[1];
    return STW_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double q) {
    double at = q * (count - 1);
    int low = (int)at;
    return low + 1 < count ? sorted[low] + (at - low) * (sorted[low + 1] - sorted[low]) : sorted[low];
}

void stw_measure_quartiles(double *values, int count, double quartiles_out[3]) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int i = 0; i < 3; ++i) quartiles_out[i] = quantile(values, count, 0.25 * (i + 1));
}
