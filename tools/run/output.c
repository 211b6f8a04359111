/* SPDX-License-Identifier: MIT
 *
 * `sternway run -o`: the results of all problems as one safetensors file, under the names of their problems.
 */
#include "tools/base/replace_file.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* out and lse only where they were computed. */
static int is_result(const run_problem *p, int slot) {
    if (!p->arrays[slot].used || p->error[0]) return 0;
    return slot >= RUN_INPUTS || (p->compute_forward && (slot == RUN_OUT || slot == RUN_LSE));
}

static int add_tensor(const run_problem *p, int slot, stw_st_tensor *tensor) {
    const run_array *array = &p->arrays[slot];
    char *name = NULL;
    if (asprintf(&name, "%s%s%s", p->name, p->name[0] ? "." : "", run_slot_rows[slot].name) < 0) return -1;
    *tensor = (stw_st_tensor){.name = name, .type = array->type, .rank = array->rank, .data = array->host};
    memcpy(tensor->shape, array->shape, (size_t)array->rank * sizeof array->shape[0]);
    return 0;
}

int run_check_output(const char *path, char **inputs, int input_count) {
    char error[STW_REPLACE_ERROR_MAX];
    struct stat output, input;
    char *target = stw_replace_target(path, error);
    if (!target) {
        stw_tool_error("run", path, "%s", error);
        return STW_EXIT_USAGE;
    }
    int exists = !stat(target, &output);
    free(target);
    for (int i = 0; exists && i < input_count; ++i) {
        if (stat(inputs[i], &input) || input.st_dev != output.st_dev || input.st_ino != output.st_ino)
            continue;
        stw_tool_error("run", path, "is the input %s; the output needs a file of its own", inputs[i]);
        return STW_EXIT_USAGE;
    }
    return STW_EXIT_OK;
}

int run_write(const char *path, const run_problem *problems, size_t count) {
    char error[STW_ST_ERROR_MAX] = "out of memory";
    stw_st_tensor *tensors = calloc(count * RUN_SLOTS + 1, sizeof *tensors);
    size_t used = 0;
    int status = tensors ? 0 : -1;
    for (size_t i = 0; i < count && !status; ++i)
        for (int slot = 0; slot < RUN_SLOTS && !status; ++slot) {
            if (!is_result(&problems[i], slot)) continue;
            status = add_tensor(&problems[i], slot, &tensors[used]);
            if (!status) ++used;
        }
    const stw_st_pair about[] = {{"about", "gradients of attention, by `sternway run`"},
                                 {"format", "sternway"}};
    if (!status) status = stw_safetensors_write(path, tensors, used, about, 2, error);
    if (status) stw_tool_error("run", path, "%s", error);
    for (size_t i = 0; i < used; ++i) free((void *)(uintptr_t)tensors[i].name);
    free(tensors);
    return status ? STW_EXIT_FAILED : STW_EXIT_OK;
}
