/* SPDX-License-Identifier: MIT
 *
 * Preloaded by the tests of conform: a backward whose result is wrong, for what the command does then.
 * WRONG_DX_BYTE=N changes byte N of a jagged dx; WRONG_DQ=TEXT the first byte of dQ of calls whose plan's
 * description holds the text. CPU memory only. */
#include "sternway/sternway.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void *real_of(const char *name) { return dlsym(RTLD_NEXT, name); }

STW_API stw_status stw_jagged_bwd(const stw_plan *plan, const stw_jagged_args *args, void *workspace,
                                  size_t workspace_size, stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_jagged_args *, void *, size_t, stw_stream);
    void *symbol = real_of("stw_jagged_bwd");
    const char *wrong = getenv("WRONG_DX_BYTE");
    memcpy(&real, &symbol, sizeof real);
    stw_status status = real(plan, args, workspace, workspace_size, stream);
    if (!status && wrong && args->dx) ((unsigned char *)args->dx)[atoll(wrong)] ^= 0x55;
    return status;
}

STW_API stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                                stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_attn_args *, void *, size_t, stw_stream);
    void *symbol = real_of("stw_attn_bwd");
    const char *wrong = getenv("WRONG_DQ");
    char text[4096];
    memcpy(&real, &symbol, sizeof real);
    stw_status status = real(plan, args, workspace, workspace_size, stream);
    if (!status && wrong && args->dq && !stw_plan_describe(plan, text, sizeof text, NULL) && strstr(text, wrong))
        ((unsigned char *)args->dq)[1] ^= 0x40; /* the exponent of a 16-bit number */
    return status;
}
