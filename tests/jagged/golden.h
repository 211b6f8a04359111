/* SPDX-License-Identifier: MIT
 *
 * Reads the golden vectors of tests/golden/jagged: one file open at a time, problem after problem. Fails the
 * running test on anything that is not as the folder's README says. */
#ifndef STW_TESTS_JAGGED_GOLDEN_H
#define STW_TESTS_JAGGED_GOLDEN_H

#include "sternway/sternway.h"
#include "tools/base/safetensors.h"

enum { GOLDEN_MAX = 256, COMPONENTS_MAX = 16, RANK_MAX = 8 };

typedef struct golden {
    stw_safetensors file;
    char names[GOLDEN_MAX][96]; /* of the problems, sorted as the file has them */
    int count;
} golden;

/* One problem of an open file. */
typedef struct golden_case {
    const golden *from;
    const char *name;
    char op[32];
    stw_dtype dtype;
} golden_case;

void golden_open(golden *g, const char *name); /* "pointwise" */
void golden_close(golden *g);
golden_case golden_at(const golden *g, int n);

const char *golden_text(const golden_case *c, const char *key); /* null when absent */
int64_t golden_number(const golden_case *c, const char *key, int64_t absent);
int golden_list(const golden_case *c, const char *key, int64_t list_out[RANK_MAX]);

/* Null when absent, unless `required`. */
const stw_st_tensor *golden_tensor(const golden_case *c, const char *key, int required);
double golden_real(const stw_st_tensor *t, int64_t n);
/* The integers of a tensor; their number. */
int golden_integers(const golden_case *c, const char *key, int64_t list_out[COMPONENTS_MAX]);

#endif
