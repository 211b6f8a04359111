/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: the rows of the conformance suite, the list of cases made from them, the processes
 * that run it, and the totals. */
#ifndef STW_TOOLS_CONFORM_H
#define STW_TOOLS_CONFORM_H

#include "tools/verify/verify.h"
#include "tools/base/tool.h"

#define CONFORM_LINE_MAX    512
#define CONFORM_VARIANT_MAX 64
#define CONFORM_DEVICES_MAX 64

/* A feature of docs/specification.md section 2. */
typedef struct conform_row {
    const char *name, *what;
    const char *const *options; /* alternatives of the feature: "b2h4k2s33x70d64 wl3:wr2" or "wl3:wr2"; NULL ends */
    int rounds;                 /* times that each alternative is tried with other sizes, dims and dtypes */
} conform_row;

#define CONFORM_ROW_LARGE (-2)

extern const conform_row conform_rows[];
extern const size_t conform_row_count;

typedef struct conform_case {
    int row; /* index into conform_rows; -1: given on the command line, CONFORM_ROW_LARGE */
    char line[CONFORM_LINE_MAX];
} conform_case;

typedef struct conform_list {
    conform_case *cases;
    size_t count, capacity;
    size_t repeated; /* cases left out because their line was there already */
    size_t *slots;   /* hash table of case numbers + 1; its size is twice the capacity */
} conform_list;

/* Appends a case unless the same line is there. 0: no memory. */
int conform_list_add(conform_list *list, int row, const char *line);
void conform_list_free(conform_list *list);

/* The seed of a line's data: the one it names, else one that follows from its text. */
int64_t conform_seed_of(const char *line);

/* rows.c: the cases of a row; scale 1 is the usual number. */
int conform_list_row(conform_list *list, int row, double scale);

/* rows.c: alternatives of jagged operations, "jagged_sum:%:..", and the line of a round. */
extern const char *const conform_jagged_pointwise[];
extern const char *const conform_jagged_threshold[];
extern const char *const conform_jagged_softmax[];
extern const char *const conform_jagged_log_softmax[];
extern const char *const conform_jagged_sum[];
extern const char *const conform_jagged_select[];
extern const char *const conform_jagged_layer_norm[];
extern const char *const conform_jagged_rms_norm[];
extern const char *const conform_jagged_reshape[];
extern const char *const conform_jagged_padded[];
extern const char *const conform_jagged_linear[];
extern const char *const conform_jagged_matmul[];
extern const char *const conform_jagged_attention[];
void conform_jagged_line(const char *option, unsigned round, char *line);

/* pairs.c: problems in which every pair of levels of any two factors occurs. `seed` varies them. */
int conform_list_pairs(conform_list *list, int row, uint64_t seed);

const char *conform_row_name(int row);
/* A filter names cases, or after a `!` those to be left out; all must agree. */
int conform_is_wanted(const conform_case *c, const char *const *filters, int count);
void conform_print_rows(const conform_list *list);     /* --list     */
void conform_print_problems(const conform_list *list); /* --problems */

/* ---- running ---------------------------------------------------------------------------------------- */

typedef struct conform_target { /* what every case runs on */
    stw_context_opts opts;
    char arch[32];
    int here;         /* open it in this process: nothing is forked */
    int device_count; /* --devices: those that share the cases; 0: the one of opts or the environment */
    int all_devices;  /* every one there is; the probe fills in which */
    int devices[CONFORM_DEVICES_MAX];
    int variant_count; /* variants of the table that run here */
    char variants[CONFORM_VARIANT_MAX][48];
    int refused_count;
    char refused[CONFORM_VARIANT_MAX][208]; /* "variant NAME: reason", "device N: reason" */
} conform_target;

/* Finds out, in a child process, whether the target can be opened on each device and which variants run on
 * it; `wanted`: a variant, "all", or NULL for the table's choice alone. STW_E_*, with the reason in `why`,
 * when it cannot. */
stw_status conform_probe(conform_target *target, const char *wanted, char *why, size_t capacity);

typedef struct conform_options {
    int jobs; /* 0: no process but this one */
    stw_verify_options check;
    int hang_seconds; /* a case that takes longer fails; 0: 10 minutes */
} conform_options;

/* Results arrive in the order of the list: cases[i] on variants[v]. */
typedef void (*conform_report_fn)(void *user, const conform_case *c, int variant, const stw_verify_result *result);

/* Runs the list in `jobs` processes. 0: the machine failed (said on standard error), or the command was stopped
 * (tools/base/stop.h), and cases are left that did not run. */
int conform_run(const conform_list *list, const conform_target *target, const conform_options *options,
                conform_report_fn report, void *user);

/* pools.c: RMS of the small tensors of each row, variant and gradient. */
typedef struct conform_pools conform_pools;
conform_pools *conform_pools_new(int variants); /* NULL: no memory; free() ends it */
void conform_pools_add(conform_pools *pools, int row, int variant, const stw_verify_result *result);
/* Judges every pool; cases[i].line names it. Pools of few elements may run further cases of `list`. */
void conform_pools_report(conform_pools *pools, const conform_list *list, const conform_target *target,
                          const conform_options *options, conform_report_fn report, void *user);

/* Opens a context of the target with one of its variants ("" = the table's choice) and so many CPU threads
 * (0 = the default). */
stw_status conform_open(const conform_target *target, const char *variant, int threads, stw_context **context_out);

/* large.c: problems of more than 2^31 elements, verified on sampled rows and keys. */
int conform_list_large(conform_list *list);
double conform_memory(void); /* bytes of the host that can be had without ending anybody: MemAvailable */
size_t conform_tensor_bytes(const stw_attn_desc *desc); /* of all large tensors; SIZE_MAX: beyond counting */
/* large_jagged.c: the same of jagged operations. Errors: those of the library; STW_E_NO_MEMORY. */
int conform_list_large_jagged(conform_list *list);
stw_status conform_large_jagged_check(const char *line, stw_context *context, stw_verify_result *result);
void conform_large_check(const char *line, stw_context *context, stw_verify_result *result);

/* filled.c: one whose every element has data. Errors: those of the library; STW_E_NO_MEMORY. */
stw_status conform_filled_check(const stw_problem *problem, stw_context *context, stw_verify_result *result);

#endif
