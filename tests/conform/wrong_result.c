/* SPDX-License-Identifier: MIT
 *
 * Preloaded by the tests of conform: a backward whose result is wrong, for what the command does then.
 * WRONG_DX_BYTE=N changes byte N of a jagged dx; WRONG_DQ=TEXT the first byte of dQ of calls whose plan's
 * description holds the text; WRONG_CRASH=TEXT ends the process in such a call, WRONG_EXIT=TEXT with status 0,
 * WRONG_DESTROY=1 where a process that made such calls destroys a context. CPU memory only.
 * WRONG_MALLOC=N: the Nth allocation of a process and with WRONG_EVER=1 every later one fails. */
#include "sternway/sternway.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int calls; /* of stw_attn_bwd in this process */

STW_API stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                                stw_stream stream) {
    stw_status (*real)(const stw_plan *, const stw_attn_args *, void *, size_t, stw_stream);
    void *symbol = real_of("stw_attn_bwd");
    const char *wrong = getenv("WRONG_DQ"), *crash = getenv("WRONG_CRASH"), *leave = getenv("WRONG_EXIT");
    char text[4096] = "";
    memcpy(&real, &symbol, sizeof real);
    ++calls;
    stw_status status = real(plan, args, workspace, workspace_size, stream);
    if (status || stw_plan_describe(plan, text, sizeof text, NULL)) return status;
    if (crash && strstr(text, crash)) raise(SIGSEGV);
    if (leave && strstr(text, leave)) _exit(0);
    if (wrong && args->dq && strstr(text, wrong))
        ((unsigned char *)args->dq)[1] ^= 0x40; /* the exponent of a 16-bit number */
    return status;
}

STW_API void stw_context_destroy(stw_context *context) {
    void (*real)(stw_context *);
    void *symbol = real_of("stw_context_destroy");
    memcpy(&real, &symbol, sizeof real);
    real(context);
    if (context && getenv("WRONG_DESTROY") && calls) raise(SIGSEGV);
}

/* Not under sanitizers, and of glibc: what the real one is called there. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static int fails(void) {
    static long left = -1, ever;
    if (left < 0) {
        const char *number = getenv("WRONG_MALLOC");
        left = number ? atol(number) : 0;
        ever = getenv("WRONG_EVER") != NULL;
    }
    if (left > 1) --left;
    else if (left == 1 && !ever) return left = 0, 1;
    return left == 1;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
