/* SPDX-License-Identifier: MIT
 *
 * Plans and run calls of the jagged operations on a GPU, as common/gpu_launch.c is attention's: the plan
 * finds the kernels that common/jagged_launch.c names, a run call checks its pointers and launches them in
 * the caller's stream. */
#include "common/gpu.h"
#include "common/jagged_launch.h"

#include <string.h>

typedef struct launch_step {
    const stw_gpu_kernel *kernel;
    const stw_gpu_product *library; /* or NULL: does the step for operands at multiples of 16 bytes */
    int64_t units;
    uint32_t grid_x, grid_y;
    uint16_t kind, product;
} launch_step;

/* What a plan keeps in stw_jagged_work.scratch. */
typedef struct launch_plan {
    uint64_t count : 8, library_at : 56; /* offset of the library's workspace */
    launch_step step[STW_JAGGED_STEPS];
} launch_plan;
_Static_assert(sizeof(launch_plan) <= sizeof((stw_jagged_work *)NULL)->scratch,
               "a launch plan fits the scratch");

static const stw_jagged_table *table_of(const stw_device *device) {
    return stw_jagged_table_of(device->arch);
}

/* ---- products by the vendor's library ---- */

/* A library knows no rows to skip: only where every row of the buffers counts. It is faster where there is
 * work for the whole device; f32 is not its strength without TF32. */
static int library_fits(const stw_jagged_work *work, uint32_t product) {
    const stw_jagged_params *p = &work->params;
    double work_items =
        (double)p->axis[0].total * (double)p->outer * (double)p->inner * (double)p->out_features;
    const char *forced = work->forced_variant;
    return product >= STW_JPRODUCT_DX && (p->features & STW_JFEAT_FULL) && p->dtype != STW_F32 &&
           p->components && work_items >= 1e8 && !(forced && !strcmp(forced, "tiles"));
}

static stw_status find_library(stw_gpu *gpu, const stw_jagged_work *work, launch_step *step,
                               size_t *workspace) {
    const stw_jagged_params *p = &work->params;
    if (!gpu->ops->product_find || !library_fits(work, step->product)) return STW_OK;
    int dx = step->product == STW_JPRODUCT_DX;
    int64_t rows = p->axis[0].total * p->outer;
    stw_gpu_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = dx ? rows : p->out_features;
    shape.n = p->inner;
    shape.k = dx ? p->out_features : rows;
    shape.dtype = (stw_dtype)p->dtype;
    shape.out_dtype = (stw_dtype)(dx ? p->dx_dtype : p->dweight_dtype);
    shape.a_by_k = !dx;
    stw_status status = gpu->ops->product_find(gpu, &shape, &step->library);
    if (step->library && step->library->workspace > *workspace) *workspace = step->library->workspace;
    return status;
}

/* Whether this call's operands suit the library. */
static int library_runs(const launch_step *step, const stw_jagged_params *p) {
    int dx = step->product == STW_JPRODUCT_DX;
    uintptr_t all =
        (uintptr_t)p->grad | (uintptr_t)(dx ? p->weight : p->x) | (uintptr_t)(dx ? p->dx : p->dweight);
    return step->library && all % 16 == 0;
}

static stw_status run_library(stw_gpu *gpu, const launch_step *step, const stw_jagged_params *p,
                              void *workspace, stw_stream stream) {
    if (step->kind == STW_JSTEP_PRODUCT_END) return STW_OK; /* part of the product */
    int dx = step->product == STW_JPRODUCT_DX;
    stw_gpu_operands operands = {.a = p->grad,
                                 .b = dx ? p->weight : p->x,
                                 .c = dx ? p->dx : p->dweight,
                                 .workspace = workspace,
                                 .accumulate =
                                     (p->accumulate & (dx ? STW_JAGGED_DX : STW_JAGGED_DWEIGHT)) != 0};
    return gpu->ops->product_run(gpu, step->library, &operands, stream);
}

static void describe(stw_jagged_work *work, const stw_gpu *gpu, const stw_jagged_steps *steps,
                     const launch_plan *plan) {
    stw_text variant = stw_text_in(work->variant, sizeof work->variant),
             note = stw_text_in(work->note, sizeof work->note);
    for (uint32_t i = 1; i < steps->count; ++i) {
        const stw_gpu_product *library = plan->step[i].library;
        if (library && steps->step[i].kind == STW_JSTEP_PRODUCT_END) continue;
        stw_text_add(&variant, "%s%s", i > 1 ? " " : "",
                     library ? library->library : steps->step[i].entry + strlen("stw_jagged_"));
        if (library)
            stw_text_add(&note, "%s unless operands start at no multiple of 16 bytes (then %s), ",
                         library->library, steps->step[i].entry + strlen("stw_jagged_"));
    }
    if (steps->count < 2) stw_text_add(&variant, "lengths");
    stw_text_add(&note, "%s, %u kernel%s", stw_image_kind_name(gpu->jagged_image->kind), steps->count,
                 steps->count == 1 ? "" : "s");
}

stw_status stw_gpu_jagged_prepare(const stw_device *device, stw_jagged_work *work) {
    stw_gpu *gpu = device->state;
    const char *refusal = stw_jagged_refusal(&work->params);
    if (refusal) return stw_fail(STW_E_UNSUPPORTED, "jagged_bwd_plan: %s: %s", gpu->ops->who, refusal);
    if (!gpu->jagged_image)
        return stw_fail(STW_E_NO_IMAGE,
                        "jagged_bwd_plan: this build holds no %s image of the jagged operations for %s",
                        gpu->ops->who, device->arch->name);
    stw_jagged_steps steps;
    launch_plan plan = {0};
    size_t library = 0; /* bytes of workspace, behind ours */
    int before;
    stw_jagged_steps_of(&work->params, table_of(device), device->compute_units, &steps);
    stw_status status = stw_gpu_enter(gpu, "jagged_bwd_plan", &before);
    if (status) return status;
    for (uint32_t i = 0; i < steps.count && !status; ++i) {
        const stw_jagged_step *step = &steps.step[i];
        plan.step[i] = (launch_step){.units = step->units,
                                     .grid_x = step->grid_x,
                                     .grid_y = step->grid_y,
                                     .kind = (uint16_t)step->kind,
                                     .product = (uint16_t)step->product};
        status = stw_gpu_kernel_find(gpu, step->entry, step->block, step->smem, &plan.step[i].kernel);
        int product = step->kind == STW_JSTEP_PRODUCT || step->kind == STW_JSTEP_PRODUCT_END;
        if (!status && product) status = find_library(gpu, work, &plan.step[i], &library);
    }
    status = stw_gpu_leave(gpu, before, status);
    if (status) return status;
    plan.count = steps.count;
    work->workspace_size = steps.workspace + library;
    plan.library_at = steps.workspace;
    memcpy(work->scratch, &plan, sizeof plan);
    describe(work, gpu, &steps, &plan);
    return STW_OK;
}

/* Every array of the call by name: a wrong pointer would fail inside a kernel and lose the device. */
static stw_status check_call(stw_gpu *gpu, const stw_jagged_params *p, const void *workspace,
                             stw_stream stream) {
    const struct {
        const char *name;
        const void *pointer;
    } rows[] = {{"grad", p->grad},
                {"x", p->x},
                {"y", p->y},
                {"other", p->other},
                {"weight", p->weight},
                {"mean", p->mean},
                {"rstd", p->rstd},
                {"dx", p->dx},
                {"dother", p->dother},
                {"dweight", p->dweight},
                {"dbias", p->dbias},
                {"axis[0].offsets", p->axis[0].offsets},
                {"axis[1].offsets", p->axis[1].offsets},
                {"axis[2].offsets", p->axis[2].offsets},
                {"axis[0].used", p->axis[0].used},
                {"axis[1].used", p->axis[1].used},
                {"axis[2].used", p->axis[2].used},
                {"x_bases", p->x_matrix.bases},
                {"other_bases", p->other_matrix.bases},
                {"grad_bases", p->grad_matrix.bases},
                {"status_out", p->status_out},
                {"workspace", workspace}};
    stw_status status = gpu->ops->check_stream(gpu, "jagged_bwd", stream);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !status; ++i)
        if (rows[i].pointer)
            status = gpu->ops->check_pointer(gpu, "jagged_bwd", rows[i].name, rows[i].pointer, 0);
    return status;
}

stw_status stw_gpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work,
                              const stw_jagged_params *params, void *workspace, stw_stream stream) {
    stw_gpu *gpu = device->state;
    const stw_jagged_table *table = table_of(device);
    stw_jagged_launch launch;
    launch_plan plan;
    void *arguments[] = {&launch, NULL};
    int before;
    memcpy(&plan, work->scratch, sizeof plan);
    stw_status status = stw_gpu_enter(gpu, "jagged_bwd", &before);
    if (status) return status;
    status = check_call(gpu, params, work->workspace_size ? workspace : NULL, stream);
    if (!status) stw_jagged_launch_of(params, table, workspace, &launch);
    for (uint32_t i = 0; i < plan.count && !status; ++i) {
        const launch_step *step = &plan.step[i];
        if (library_runs(step, params)) {
            status = run_library(gpu, step, params, (char *)workspace + plan.library_at, stream);
            continue;
        }
        stw_jagged_launch_step((stw_jagged_kind)step->kind, step->units, (int64_t)step->grid_x * step->grid_y,
                               step->product, table, &launch);
        status = gpu->ops->launch(gpu, step->kernel, step->grid_x, step->grid_y, stream, arguments);
    }
    return stw_gpu_leave(gpu, before, status);
}
