/* SPDX-License-Identifier: MIT
 *
 * Opening the measurement of a nested operation (measure.h): attention as the packed problem that it is, all
 * others as a case without expectation. */
#include "measure.h"

#include "tools/base/tool.h"

#include <stdlib.h>
#include <string.h>

static stw_status fail(stw_measure *m, stw_case_result *result, const char *what, stw_status status,
                       const char *text) {
    stw_case_fail(result, "%s: %s: %s", what, stw_status_name(status), text);
    stw_measure_close(m);
    return status;
}

static stw_status open_attention(const stw_jagged_problem *problem, stw_context *context,
                                 size_t workspace_bytes, stw_measure *m, stw_case_result *result) {
    stw_problem packed = problem->attn;
    packed.seed = problem->seed;
    stw_status status = stw_measure_open(&packed, context, workspace_bytes, m, result);
    if (status) return status;
    m->kind = STW_MEASURE_JAGGED_ATTN;
    status = jagged_attention_args(&m->c, problem->desc.index_dtype, &m->device, &m->args, &m->jagged_args,
                                   &m->lengths);
    return status ? fail(m, result, "lengths", status, stw_last_error()) : STW_OK;
}

stw_status stw_measure_open_jagged(const stw_jagged_problem *problem, stw_context *context,
                                   size_t workspace_bytes, stw_measure *m, stw_case_result *result) {
    stw_jagged_problem seeded = *problem;
    if (problem->desc.op == STW_JAGGED_ATTENTION)
        return open_attention(problem, context, workspace_bytes, m, result);
    memset(m, 0, sizeof *m);
    m->kind = STW_MEASURE_JAGGED;
    if (!seeded.seed) seeded.seed = 1;
    stw_status status = jagged_case_build_inputs(&seeded, &m->j);
    if (status) return fail(m, result, "data", status, stw_tool_last_error());
    m->after = malloc(m->j.bytes);
    if (!m->after) return fail(m, result, "data", STW_E_NO_MEMORY, "no memory for the results");
    status = stw_case_device_open(context, m->j.bytes, workspace_bytes, &m->device);
    if (!status) status = stw_case_device_load(&m->device, m->j.host, 0xFF);
    if (status) return fail(m, result, "buffers", status, stw_last_error());
    m->jagged_args = jagged_case_args(&m->j, m->device.arena);
    return STW_OK;
}
