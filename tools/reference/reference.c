/* SPDX-License-Identifier: MIT
 *
 * The oracle's entry points: the backward in one mode, and freeing. The forward is in forward.c. */
#include "backward.h"

#include <stdlib.h>
#include <string.h>

stw_status stw_ref_attn_bwd(const stw_attn_desc *desc, const stw_attn_args *args, const stw_ref_mode *mode,
                            stw_ref_result *result) {
    stw_ref_problem problem;
    memset(result, 0, sizeof *result);
    stw_status status = stw_ref_problem_init(&problem, desc, args, 1);
    if (status != STW_OK) return status;
    stw_ref_eval evals[2] = {{.mode = mode ? *mode : (stw_ref_mode){0}}, {.absolute = 1}};
    stw_ref_result *results[2] = {result, result};
    status = stw_ref_backward_many(&problem, evals, evals[0].mode.f32 ? 1 : 2, results);
    if (status != STW_OK) stw_ref_free(result);
    return status;
}

void stw_ref_free(stw_ref_result *r) {
    double *arrays[] = {r->out,   r->lse,    r->dq,     r->dk,     r->dv,        r->dbias,    r->dsink,
                        r->delta, r->abs_dq, r->abs_dk, r->abs_dv, r->abs_dbias, r->abs_dsink};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; ++n) free(arrays[n]);
    free(r->row_q);
    free(r->row_kv);
    memset(r, 0, sizeof *r);
}
