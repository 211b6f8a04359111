/* SPDX-License-Identifier: MIT
 *
 * Plans and run calls of the jagged operations on a GPU, as backends/gpu/launch.c is attention's: the plan
 * finds the kernels that backends/gpu/jagged_launch.c names, a run call checks its pointers and launches them in
 * the caller's stream. */
#include "backends/gpu/blas.h"
#include "backends/gpu/gpu.h"
#include "backends/gpu/jagged_launch.h"
#include "common/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A product of linear by the device's own kernels, and the kernel that adds up its parts. */
typedef struct own_product {
    const stw_gpu_kernel *kernel, *end; /* NULL: none, and no parts */
    int64_t work_tiles;
    uint32_t blocks, end_blocks;
} own_product;

typedef struct launch_step {
    const stw_gpu_kernel *kernel;
    const stw_gpu_product *library; /* or NULL: does the step for operands at multiples of 16 bytes */
    own_product own;                /* the same, where no library does */
    int64_t work_tiles;
    uint32_t grid_x, grid_y;
    uint16_t kind, product;
} launch_step;

/* stw_jagged_work.own */
typedef struct launch_plan {
    uint32_t count;
    size_t library_at; /* offset of the library's workspace */
    size_t own_at;     /* ... of the parts of own products  */
    const stw_jagged_table *table;
    launch_step step[STW_JAGGED_STEPS];
} launch_plan;

/* ---- products by the vendor's library ---- */

static int is_dx(const launch_step *step) { return step->product == STW_JPRODUCT_DX; }

/* Sides of a result's tile that one compute unit works on. */
enum { LIBRARY_TILE = 128 };

/* Why a product of linear is our own tiles', or NULL: ask the library. A library knows no rows to skip, so
 * only products whose every row counts get here. It is faster where there is work for the whole device; f32
 * is not its strength without TF32. Measured for cuBLASLt on an H200, taken over for hipBLASLt without a
 * measurement; one that may not split long sums is kept from results too small for the device. */
static const char *library_refusal(const stw_gpu *gpu, const stw_jagged_work *work, const stw_gpu_shape *s,
                                   uint32_t compute_units) {
    const char *forced = work->forced_variant;
    double size = (double)s->m * (double)s->n, largest = INT32_MAX;
    if (forced && !strcmp(forced, "tiles")) return "STERNWAY_VARIANT=tiles";
    if (forced && !strcmp(forced, "wgmma")) return "STERNWAY_VARIANT=wgmma";
    if (work->deterministic && !gpu->ops->blas->ordered) return "deterministic mode";
    if (s->dtype == STW_F32) return "f32";
    if (!work->params.components || size * (double)s->k < 1e8) return "little work";
    if ((double)s->m > largest || (double)s->n > largest || (double)s->k > largest) return "2^31 rows";
    if (!gpu->ops->blas->workspace && size < (double)LIBRARY_TILE * LIBRARY_TILE * compute_units)
        return "few tiles in the result";
    return NULL;
}

static stw_gpu_shape shape_of(const stw_jagged_params *p, int dx) {
    int64_t rows = p->axis[0].total * p->outer;
    stw_gpu_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = dx ? rows : p->out_features;
    shape.n = p->inner;
    shape.k = dx ? p->out_features : rows;
    shape.dtype = (stw_dtype)p->dtype;
    shape.out_dtype = (stw_dtype)(dx ? p->dx_dtype : p->dweight_dtype);
    shape.a_by_k = !dx;
    return shape;
}

/* Fills step->library, or adds the reason to the plan's note. */
static void find_library(const stw_device *device, stw_jagged_work *work, launch_step *step, stw_text *note) {
    stw_gpu *gpu = device->state;
    const stw_jagged_params *p = &work->params;
    if (step->product < STW_JPRODUCT_DX || !(p->features & STW_JFEAT_FULL)) return;
    stw_gpu_shape shape = shape_of(p, is_dx(step));
    char words[160] = "";
    stw_text why = stw_text_in(words, sizeof words);
    const char *refusal = library_refusal(gpu, work, &shape, device->compute_units);
    if (refusal) stw_text_add(&why, "%s", refusal);
    else step->library = stw_blas_find(gpu, &shape, &why);
    if (!step->library) stw_text_add(note, "%s by own tiles: %s, ", is_dx(step) ? "dX" : "dW", words);
    else if (!gpu->ops->blas->ordered) work->unordered = step->library->library;
}

/* Whether all operands stand at multiples of 16 bytes. */
static int is_aligned(const launch_step *step, const stw_jagged_params *p) {
    uintptr_t all = (uintptr_t)p->grad | (uintptr_t)(is_dx(step) ? p->weight : p->x) |
                    (uintptr_t)(is_dx(step) ? p->dx : p->dweight);
    return all % 16 == 0;
}

/* Whether the library takes this call; then run_library must follow. */
static int library_takes(stw_gpu *gpu, const launch_step *step, const stw_jagged_params *p, stw_stream stream) {
    return step->library && is_aligned(step, p) && stw_blas_claim(gpu, step->library, stream);
}

/* ---- products by the device's own kernels ---- */

/* Smaller products are latency alone. */
#define OWN_LEAST 3e5

/* Tensor loads count in 32 bits and step by 16 bytes. Sums are not as exact as f32's, which results of 16 bits hide. */
static int own_takes(const stw_gpu *gpu, const stw_jagged_work *work, const stw_gpu_shape *s) {
    const char *forced = work->forced_variant;
    double largest = INT32_MAX;
    int asked = forced && !strcmp(forced, "wgmma");
    if (!gpu->jagged_own_image || (forced && !strcmp(forced, "tiles")) || s->dtype == STW_F32) return 0;
    if (!work->params.components || !s->m || !s->n || !s->k || s->out_dtype != s->dtype) return 0;
    if (!s->a_by_k && s->k > STW_JAGGED_OWN_MOST_K) return 0;
    if (!asked && (double)s->m * (double)s->n * (double)s->k < OWN_LEAST) return 0;
    return work->params.inner % 8 == 0 && work->params.out_features % 8 == 0 && (double)s->m < largest &&
           (double)s->n < largest && (double)s->k < largest;
}

/* Fills step->own, and *parts_out with the bytes of its parts. */
static stw_status find_own(const stw_device *device, const stw_jagged_work *work, launch_step *step,
                           size_t *parts_out) {
    stw_gpu *gpu = device->state;
    const stw_jagged_params *p = &work->params;
    stw_gpu_shape shape = shape_of(p, is_dx(step));
    if (!own_takes(gpu, work, &shape)) return STW_OK;
    stw_jagged_cut cut = stw_jagged_cut_of(p, step->product, &stw_jagged_own_table);
    const char *type = stw_dtype_name((stw_dtype)p->dtype);
    char name[STW_JAGGED_ENTRY_MAX];
    snprintf(name, sizeof name, "stw_jagged_wgmma_%d%d_%s", cut.a_by_k, cut.b_by_k, type);
    const stw_gpu_entry entry = {name, STW_KERNEL_JAGGED_OWN, STW_JAGGED_OWN_THREADS, STW_JAGGED_OWN_SMEM, 0};
    stw_status status = stw_gpu_kernel_find(gpu, &entry, &step->own.kernel);
    if (status) return status;
    step->own.work_tiles = cut.work_tiles;
    step->own.blocks = device->compute_units / 2 * 2;
    if (cut.parts < 2) return STW_OK;
    snprintf(name, sizeof name, "stw_jagged_product_end_%s", type);
    const stw_gpu_entry end = {name, STW_KERNEL_JAGGED, STW_JAGGED_THREADS, 256, 0};
    step->own.end_blocks = 8 * device->compute_units;
    *parts_out = (size_t)cut.slots * STW_JAGGED_OWN_BM * STW_JAGGED_OWN_BN * 4;
    return stw_gpu_kernel_find(gpu, &end, &step->own.end);
}

static stw_status run_own(stw_gpu *gpu, const launch_step *step, const stw_jagged_launch *common, void *parts,
                          stw_stream stream) {
    const own_product *own = &step->own;
    stw_jagged_launch launch = *common;
    _Alignas(64) unsigned char maps[STW_GPU_MAPS_BYTES];
    void *arguments[] = {&launch, maps};
    launch.product_sums = parts;
    stw_status status = gpu->ops->encode_product(gpu, &common->p, is_dx(step), maps);
    stw_jagged_launch_step(STW_JSTEP_PRODUCT, own->work_tiles, own->blocks, step->product, &stw_jagged_own_table,
                           &launch);
    if (!status) status = gpu->ops->launch(gpu, own->kernel, own->blocks, 1, stream, arguments);
    if (status || !own->end) return status;
    stw_jagged_launch_step(STW_JSTEP_PRODUCT_END, own->work_tiles, own->end_blocks, step->product,
                           &stw_jagged_own_table, &launch);
    return gpu->ops->launch(gpu, own->end, own->end_blocks, 1, stream, arguments);
}

static stw_status run_library(stw_gpu *gpu, const launch_step *step, const stw_jagged_params *p, void *workspace,
                              stw_stream stream) {
    int dx = is_dx(step);
    stw_gpu_operands operands = {.a = p->grad,
                                 .b = dx ? p->weight : p->x,
                                 .c = dx ? p->dx : p->dweight,
                                 .workspace = step->library->workspace ? workspace : NULL,
                                 .accumulate = (p->accumulate & (dx ? STW_JAGGED_DX : STW_JAGGED_DWEIGHT)) != 0};
    return stw_blas_run(gpu, step->library, &operands, stream);
}

static void describe(stw_jagged_work *work, const stw_gpu *gpu, const stw_jagged_steps *steps, const launch_plan *plan,
                     stw_text *note) {
    stw_text variant = stw_text_in(work->variant, sizeof work->variant);
    const stw_blas_vendor *blas = gpu->ops->blas;
    int libraries = 0, products = 0;
    for (uint32_t i = 1; i < steps->count; ++i) {
        const stw_gpu_product *library = plan->step[i].library;
        const stw_gpu_kernel *own = plan->step[i].own.kernel;
        const char *shared = steps->step[i].entry + strlen("stw_jagged_"),
                   *first = library ? library->library
                            : own   ? own->name + strlen("stw_jagged_")
                                    : shared;
        if ((library || own) && steps->step[i].kind == STW_JSTEP_PRODUCT_END) continue;
        stw_text_add(&variant, "%s%s", i > 1 ? " " : "", first);
        if (first != shared) stw_text_add(note, "%s else %s, ", first, shared);
        libraries += library != NULL;
        products += own && !library;
    }
    if (libraries)
        stw_text_add(note, "else: operands at no multiple of 16 bytes%s, %s",
                     blas->capturing ? ", a second stream or thread, a first call in a capture" : "",
                     blas->measured ? "" : "chosen without a measurement, ");
    if (products && !libraries) stw_text_add(note, "else: operands at no multiple of 16 bytes, ");
    if (steps->count < 2) stw_text_add(&variant, "lengths");
    stw_text_add(note, "%s, %u kernel%s", stw_image_kind_name(gpu->jagged_image->kind), steps->count,
                 steps->count == 1 ? "" : "s");
}

stw_status stw_gpu_jagged_prepare(const stw_device *device, stw_jagged_work *work) {
    stw_gpu *gpu = device->state;
    const char *refusal = stw_jagged_refusal(&work->params);
    if (refusal) return stw_fail(STW_E_UNSUPPORTED, "jagged_bwd_plan: %s: %s", gpu->ops->who, refusal);
    if (!gpu->jagged_image)
        return stw_fail(STW_E_NO_IMAGE, "jagged_bwd_plan: this build holds no %s image of the jagged operations for %s",
                        gpu->ops->who, device->arch->name);
    stw_jagged_steps steps;
    launch_plan plan = {.table = stw_jagged_table_of(device->arch)};
    stw_text note = stw_text_in(work->note, sizeof work->note);
    size_t library = 0, own = 0; /* bytes of workspace, behind ours */
    int before;
    stw_jagged_steps_of(&work->params, plan.table, device->compute_units, &steps);
    stw_status status = stw_gpu_enter(gpu, "jagged_bwd_plan", &before);
    if (status) return status;
    for (uint32_t i = 0; i < steps.count; ++i) {
        const stw_jagged_step *step = &steps.step[i];
        plan.step[i] = (launch_step){.work_tiles = step->work_tiles,
                                     .grid_x = step->grid_x,
                                     .grid_y = step->grid_y,
                                     .kind = (uint16_t)step->kind,
                                     .product = (uint16_t)step->product};
        const stw_gpu_entry entry = {step->entry, STW_KERNEL_JAGGED, step->block, step->smem, 0};
        status = stw_gpu_kernel_find(gpu, &entry, &plan.step[i].kernel);
        if (status) break;
        if (step->kind == STW_JSTEP_PRODUCT) {
            size_t parts = 0;
            find_library(device, work, &plan.step[i], &note);
            if (step->product >= STW_JPRODUCT_DX && !plan.step[i].library)
                status = find_own(device, work, &plan.step[i], &parts);
            if (status) break;
            own = parts > own ? parts : own;
        }
        if (step->kind == STW_JSTEP_PRODUCT_END) {
            plan.step[i].library = plan.step[i - 1].library;
            plan.step[i].own = plan.step[i - 1].own;
        }
        if (plan.step[i].library && plan.step[i].library->workspace > library)
            library = plan.step[i].library->workspace;
    }
    status = stw_gpu_leave(gpu, before, status);
    launch_plan *kept = status ? NULL : malloc(sizeof *kept);
    if (!status && !kept) status = stw_fail(STW_E_NO_MEMORY, "jagged_bwd_plan: no memory");
    if (status) return status;
    plan.count = steps.count;
    work->workspace_size = steps.workspace + own + library;
    plan.own_at = steps.workspace;
    plan.library_at = steps.workspace + own;
    *kept = plan;
    free(work->own);
    work->own = kept;
    describe(work, gpu, &steps, &plan, &note);
    return STW_OK;
}

/* Every array of the call by name: a wrong pointer would fail inside a kernel and lose the device. */
static stw_status check_call(stw_gpu *gpu, const stw_jagged_params *p, const void *workspace, stw_stream stream) {
    const struct {
        const char *name;
        const void *pointer;
        int written;
    } rows[] = {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output) {#name, p->name, output},
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
        {"axis[0].offsets", p->axis[0].offsets, 0},
        {"axis[1].offsets", p->axis[1].offsets, 0},
        {"axis[2].offsets", p->axis[2].offsets, 0},
        {"axis[0].used", p->axis[0].used, 0},
        {"axis[1].used", p->axis[1].used, 0},
        {"axis[2].used", p->axis[2].used, 0},
        {"x_bases", p->x_matrix.bases, 0},
        {"other_bases", p->other_matrix.bases, 0},
        {"grad_bases", p->grad_matrix.bases, 0},
        {"status_out", p->status_out, 1},
        {"workspace", workspace, 1}};
    stw_status status = gpu->ops->check_stream(gpu, "jagged_bwd", stream);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !status; ++i)
        if (rows[i].pointer)
            status = stw_gpu_check_pointer(gpu, "jagged_bwd", rows[i].name, rows[i].pointer, rows[i].written);
    return status;
}

stw_status stw_gpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                              void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    stw_gpu *gpu = device->state;
    stw_jagged_launch launch;
    const launch_plan *plan = work->own;
    void *arguments[] = {&launch, NULL};
    int before, taken = 0; /* by the library or an own kernel: this product and its end */
    const stw_jagged_table *table = plan->table;
    stw_status status = stw_gpu_enter(gpu, "jagged_bwd", &before);
    if (status) return status;
    status = check_call(gpu, params, work->workspace_size ? workspace : NULL, stream);
    if (!status) stw_jagged_launch_of(params, table, workspace, &launch);
    for (uint32_t i = 0; i < plan->count && !status; ++i) {
        const launch_step *step = &plan->step[i];
        if (step->kind != STW_JSTEP_PRODUCT_END) {
            taken = library_takes(gpu, step, params, stream);
            if (taken) status = run_library(gpu, step, params, (char *)workspace + plan->library_at, stream);
            else if (step->own.kernel && is_aligned(step, params)) {
                status = run_own(gpu, step, &launch, (char *)workspace + plan->own_at, stream);
                taken = 1;
            }
        }
        if (taken) continue;
        stw_jagged_launch_step((stw_jagged_kind)step->kind, step->work_tiles, (int64_t)step->grid_x * step->grid_y,
                               step->product, table, &launch);
        status = gpu->ops->launch(gpu, step->kernel, step->grid_x, step->grid_y, stream, arguments);
    }
    return stw_gpu_leave(gpu, before, status);
}
