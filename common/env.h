/* SPDX-License-Identifier: MIT
 *
 * The environment as typed values: read once by stw_context_create and stw_explain_attn, never later.
 * The list of variables is common/env.def. */
#ifndef STW_COMMON_ENV_H
#define STW_COMMON_ENV_H

#include "common/status.h"

typedef enum stw_env_deterministic {
    STW_ENV_DET_OFF = 0,
    STW_ENV_DET_ON = 1,
    STW_ENV_DET_WARN = 2
} stw_env_deterministic;

typedef struct stw_env {
    stw_backend backend;
    char arch[32];  /* of STERNWAY_BACKEND=hip:gfx942; "" = not forced */
    int has_device; /* STERNWAY_DEVICE was set */
    int32_t device;
    stw_env_deterministic deterministic;
    char tuning[512];
    char variant[64];
    int64_t smem_max;   /* bytes; 0 = not set */
    int trust_pointers; /* GPU calls do not ask what memory their pointers are */
    int32_t cpu_threads;
    stw_log_level log;
    char log_file[512];
} stw_env;

typedef struct stw_env_row {
    const char *name, *fallback, *help;
} stw_env_row;

/* Parses the environment. Errors: STW_E_INVALID naming the variable, its value and what is accepted. */
stw_status stw_env_read(stw_env *env_out);

/* The same from any lookup function: what tests and the fuzzer drive. */
stw_status stw_env_parse(const char *(*lookup)(void *user, const char *name), void *user, stw_env *env_out);

/* "cuda:sm80" to its parts. Errors: STW_E_INVALID; `who` opens the text. */
stw_status stw_env_parse_backend(const char *who, const char *text, stw_backend *backend_out, char arch_out[32]);

/* Looks in `variables` ("NAME=value" strings up to NULL) from *index on for a STERNWAY_* variable that nobody
 * reads. 1: *index is past it and `text` got "STERNWAY_BACKND is unknown; did you mean STERNWAY_BACKEND?". */
int stw_env_unknown(char *const *variables, size_t *index, stw_text *text);

/* The same in the environment of the process; that of a setuid program holds none, as it is not read. */
int stw_env_unknown_here(size_t *index, stw_text *text);

/* What AMD's two runtimes read to hide and number devices, as it is now; NULL: not set. */
const char *stw_env_rocr_devices(void);
const char *stw_env_hip_devices(void);

extern const stw_env_row stw_env_rows[];
extern const size_t stw_env_row_count;

#endif
