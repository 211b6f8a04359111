/* SPDX-License-Identifier: MIT
 *
 * `sternway run` inside: a problem of a safetensors file on its way through load (load.c, shape.c), execution on a
 * context (exec.c), comparison with the file's references (check.c) and the report (report.c); nested operations are
 * nested.c's. run.c holds the command line and the order of things. */
#ifndef STW_TOOLS_RUN_H
#define STW_TOOLS_RUN_H

#include "tools/reference/accuracy.h"
#include "common/status.h"
#include "tools/base/safetensors.h"
#include "tools/base/tool.h"

/* Every tensor a call can have, in stw_attn_args or as a reference. */
typedef enum run_slot {
    RUN_Q,
    RUN_K,
    RUN_V,
    RUN_OUT,
    RUN_DOUT,
    RUN_LSE,
    RUN_DLSE,
    RUN_DELTA,
    RUN_BIAS,
    RUN_ALIBI,
    RUN_SINK,
    RUN_CU_Q,
    RUN_CU_K,
    RUN_USED_Q,
    RUN_USED_K,
    RUN_Q_OFFSETS,
    RUN_K_OFFSETS,
    RUN_INTERVALS,
    RUN_BLOCK_MASK,
    RUN_INPUTS, /* from here on: what the call writes, in the order of stw_grad */
    RUN_DQ = RUN_INPUTS,
    RUN_DK,
    RUN_DV,
    RUN_DBIAS,
    RUN_DSINK,
    RUN_SLOTS
} run_slot;

typedef struct run_slot_row {
    const char *name;  /* in the file */
    size_t pointer;    /* offset in stw_attn_args */
    const char *types; /* accepted, for inputs: " F32 F16 " */
} run_slot_row;

extern const run_slot_row run_slot_rows[RUN_SLOTS];

typedef struct run_array {
    int used;
    stw_st_type type;
    int rank;
    int64_t shape[4]; /* in the file                                            */
    size_t bytes;     /* in the file                                            */
    size_t capacity;  /* of host and buffer: one row more, for packed sides without rows */
    void *host;       /* aligned; the file's data, or what the call wrote       */
    void *buffer;     /* of stw_buffer_alloc while the problem runs             */
} run_array;

typedef struct run_result { /* of one reference */
    int given;
    stw_accuracy accuracy; /* rms_allowed 0: not judged */
} run_result;

typedef struct run_flash { /* FlashAttention's reading of a mask, by flash_* metadata */
    int given, causal;
    int64_t left, right;
} run_flash;

typedef struct run_nested run_nested;

typedef struct run_problem {
    char *name;                              /* prefix without its dot, "" for none */
    const stw_st_tensor *inputs[RUN_INPUTS]; /* of the file, or NULL                */
    const stw_st_tensor *references[STW_GRAD_COUNT];
    stw_attn_desc desc;
    stw_attn_args values; /* what comes by value: offsets, seed; pointers null */
    run_flash flash;
    run_array arrays[RUN_SLOTS];
    int compute_forward;            /* out and lse are absent */
    char *plan_text, *forward_text; /* stw_plan_describe */
    char arch[32];
    double seconds, forward_seconds;  /* median of `runs`; one call */
    int runs;                         /* options->repeat, or fewer where the command was stopped */
    int64_t first_row[2], end_row[2]; /* rows of q and k that belong to a sequence */
    run_result results[STW_GRAD_COUNT];
    char error[1024];   /* why the problem could not be run, or "" */
    int exit_status;    /* STW_EXIT_*                              */
    run_nested *nested; /* null: attention; else results lie in RUN_DQ.. as dx, dother, dweight, dbias */
} run_problem;

typedef struct run_options {
    stw_tool_device device;
    double tolerance; /* < 0: the accuracy rule */
    int repeat, threads, json, verbose;
    const char *output;
} run_options;

/* Stores the text of a refused problem; returns exit_status. */
int run_refuse(run_problem *problem, int exit_status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Splits the file into problems by prefix and fills names, inputs, references and metadata options. A
 * problem that is wrong has its error set. Returns 0, or -1 when the file itself is refused. */
int run_load(const stw_safetensors *file, run_problem **problems_out, size_t *count_out, char error[STW_ST_ERROR_MAX]);
void run_free(run_problem *problems, size_t count);

/* nested.c: a problem by its PROBLEM line, a tensor of its own; the whole of running and of comparing one. */
int run_nested_open(run_problem *problem, const char *line);
int run_nested_take(run_problem *problem, const stw_st_tensor *tensor, const char *leaf);
int run_nested_execute(run_problem *problem, stw_context *context, const run_options *options);
int run_nested_check(run_problem *problem, const run_options *options);
void run_nested_free(run_problem *problem);
const char *run_gradient_name(const run_problem *problem, int which); /* by stw_grad */

/* Types and shapes to a complete descriptor and the shapes of all arrays. Allocates nothing. */
int run_shape(run_problem *problem);

/* Allocates the arrays and fills in the file's data; for problems that a plan has accepted. */
int run_fill(run_problem *problem);

/* Plans, runs and copies back. */
int run_execute(run_problem *problem, stw_context *context, const run_options *options);

/* The host pointers of a problem's arrays as arguments of a call. */
stw_attn_args run_host_args(const run_problem *problem);

/* Fills results from the references of the file. */
int run_check(run_problem *problem, const run_options *options, stw_accuracy_pool *pool);

/* Value of element `index` of any float type; NaN for others. */
double run_load_float(const void *data, stw_st_type type, uint64_t index);
const char *run_accepts_float(void);      /* types of a reference */
stw_dtype run_dtype_of(stw_st_type type); /* NONE when the library has no such type */

/* Whether -o can be written and is none of the inputs. Returns the exit status; errors are on standard error.
 */
int run_check_output(const char *path, char **inputs, int input_count);

/* -o; `partial`: metadata that says why problems are missing, or NULL. Returns the exit status; errors are on standard
 * error. */
int run_write(const char *path, const run_problem *problems, size_t count, const char *partial);

void run_print(const run_problem *problem, const run_options *options);
cJSON *run_json(const run_problem *problem);

#endif
