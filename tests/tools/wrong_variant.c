/* SPDX-License-Identifier: MIT
 *
 * Preloaded by test_tune.py and test_bench.py: the backward of one variant, named by WRONG_VARIANT, and with
 * WRONG_FORWARD every forward, compute with K and V exchanged; of a nested operation, WRONG_JAGGED=NAME:COUNT changes
 * the sign of so many floats of that output; with WRONG_CP the backward over ranks computes with them exchanged. What
 * tune and bench do when a kernel is wrong cannot be seen otherwise. */
#include "sternway/sternway.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

STW_API stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                                stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_attn_args *, void *, size_t, stw_stream);
    void *symbol = dlsym(RTLD_NEXT, "stw_attn_bwd");
    memcpy(&real, &symbol, sizeof real);
    stw_attn_args changed = *args;
    char text[4096];
    const char *wrong = getenv("WRONG_VARIANT");
    if (wrong && !stw_plan_describe(plan, text, sizeof text, NULL) && strstr(text, wrong)) {
        changed.k = args->v;
        changed.v = args->k;
    }
    return real(plan, &changed, workspace, workspace_size, stream);
}

STW_API stw_status stw_attn_fwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                                stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_attn_args *, void *, size_t, stw_stream);
    void *symbol = dlsym(RTLD_NEXT, "stw_attn_fwd");
    memcpy(&real, &symbol, sizeof real);
    stw_attn_args changed = *args;
    if (getenv("WRONG_FORWARD")) changed.k = args->v, changed.v = args->k;
    return real(plan, &changed, workspace, workspace_size, stream);
}

STW_API stw_status stw_jagged_bwd(const stw_plan *plan, const stw_jagged_args *args, void *workspace,
                                  size_t workspace_size, stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_jagged_args *, void *, size_t, stw_stream);
    void *symbol = dlsym(RTLD_NEXT, "stw_jagged_bwd");
    memcpy(&real, &symbol, sizeof real);
    stw_status status = real(plan, args, workspace, workspace_size, stream);
    const char *wrong = getenv("WRONG_JAGGED");
    char name[16];
    long count;
    if (status || !wrong || sscanf(wrong, "%15[a-z]:%ld", name, &count) != 2) return status;
    void *outputs[] = {args->dx, args->dother, args->dweight, args->dbias};
    const char *const names[] = {"dx", "dother", "dweight", "dbias"};
    for (int i = 0; i < 4; ++i)
        for (long n = 0; !strcmp(name, names[i]) && n < count; ++n) ((float *)outputs[i])[n] *= -1;
    return status;
}

STW_API stw_status stw_cp_attn_bwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace,
                                   size_t workspace_size, stw_stream stream) {
    stw_status (*real)(const stw_cp_plan *, const stw_attn_args *, void *, size_t, stw_stream);
    void *symbol = dlsym(RTLD_NEXT, "stw_cp_attn_bwd");
    memcpy(&real, &symbol, sizeof real);
    stw_attn_args changed = *args;
    if (getenv("WRONG_CP")) changed.k = args->v, changed.v = args->k;
    return real(plan, &changed, workspace, workspace_size, stream);
}
