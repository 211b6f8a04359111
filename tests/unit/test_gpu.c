/* SPDX-License-Identifier: MIT
 *
 * What the GPU backends share (backends/gpu/gpu.h), over a driver that only counts: entering a device and its loss,
 * kernels, checks of pointers, plans and calls that fail half way; and the products of a vendor's library
 * (backends/gpu/blas.h) over one that fails where it is told to. Nobody reads what the addresses here stand for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends/gpu/attn_tiled.h"
#include "backends/gpu/blas.h"
#include "tools/problem/jagged.h"
#include "common/size_class.h"
#include "dispatch/attn_problem.h"
#include "dispatch/jagged_problem.h"
#include "dispatch/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(number) ((void *)((uintptr_t)(number) << 20))

/* ---- memory: the linker sends the library's calls here ---- */

static int callocs_left; /* that succeed; -1: all */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    if (!callocs_left) return NULL;
    if (callocs_left > 0) --callocs_left;
    return __real_calloc(count, bytes);
}

/* ---- the driver ---- */

static struct {
    int forked, depth; /* of make_current without its restore */
    stw_status enter, restore, module, kernel, launch, encode, side;
    const char *bad_pointer;
    int modules, kernels;
    char asked[400], launched[400];
    uint32_t grid[8];
    int launches, sides, orders;
    unsigned char *arguments; /* where the launches of attention go, one after the other; or NULL */
    stw_attn_stages stages;   /* of the last copies */
} fake;

static stw_status fails(stw_status status, const char *what) {
    return status ? stw_fail(status, "fake: %s", what) : STW_OK;
}

static int fake_forked(void) { return fake.forked; }

static stw_status fake_make_current(stw_gpu *gpu, int *before_out) {
    (void)gpu;
    if (!fake.enter) ++fake.depth;
    *before_out = 7;
    return fails(fake.enter, "enter");
}

static stw_status fake_restore(stw_gpu *gpu, int before) {
    (void)gpu;
    assert_int_equal(before, 7);
    --fake.depth;
    return fails(fake.restore, "restore");
}

static stw_status fake_module_load(stw_gpu *gpu, int other) {
    ++fake.modules;
    void **modules[] = {&gpu->module, &gpu->jagged_module, &gpu->jagged_own_module, &gpu->cp_module};
    if (!fake.module) *modules[other] = &fake;
    return fails(fake.module, "module");
}

static stw_status fake_kernel_load(stw_gpu *gpu, stw_gpu_kernel *kernel) {
    (void)gpu;
    ++fake.kernels;
    kernel->function = &fake;
    return fails(fake.kernel, "kernel");
}

static stw_status fake_check_stream(stw_gpu *gpu, const char *who, stw_stream stream) {
    (void)gpu, (void)who, (void)stream;
    return STW_OK;
}

static stw_status fake_check_pointer(stw_gpu *gpu, const char *who, const char *name, const void *pointer,
                                     int written) {
    (void)gpu, (void)who, (void)pointer;
    size_t length = strlen(fake.asked);
    snprintf(fake.asked + length, sizeof fake.asked - length, "%s%s ", name, written ? "=" : "");
    return fails(fake.bad_pointer && !strcmp(name, fake.bad_pointer) ? STW_E_INVALID : STW_OK, name);
}

static stw_status fake_launch(stw_gpu *gpu, const stw_gpu_kernel *kernel, uint32_t grid_x, uint32_t grid_y,
                              stw_stream stream, void **arguments) {
    (void)gpu, (void)stream;
    const uint64_t grid = (uint64_t)grid_y << 32 | grid_x;
    if (fake.arguments) {
        memcpy(fake.arguments, &grid, sizeof grid);
        memcpy(fake.arguments + sizeof grid, arguments[0], sizeof(stw_attn_launch));
        fake.arguments += sizeof grid + sizeof(stw_attn_launch);
    }
    size_t length = strlen(fake.launched);
    if (strstr(kernel->name, "_stage_")) memcpy(&fake.stages, arguments[0], sizeof fake.stages);
    snprintf(fake.launched + length, sizeof fake.launched - length, "%s ", kernel->name);
    fake.grid[fake.launches++ % 8] = grid_x;
    return fails(fake.launch, "launch");
}

static stw_status fake_encode_product(stw_gpu *gpu, const stw_jagged_params *p, int dx, void *maps_out) {
    (void)gpu, (void)p;
    memset(maps_out, dx, 8);
    return fails(fake.encode, "encode");
}

static stw_status fake_side_open(stw_gpu *gpu, stw_cp_side *side) {
    (void)gpu;
    if (!fake.side) side->stream = &fake, ++fake.sides;
    return fails(fake.side, "side");
}

static void fake_side_close(stw_gpu *gpu, stw_cp_side *side) {
    (void)gpu;
    assert_ptr_equal(side->stream, &fake);
    --fake.sides;
}

static stw_status fake_order(stw_gpu *gpu, void *event, stw_stream before, stw_stream after) {
    (void)gpu, (void)event, (void)before, (void)after;
    ++fake.orders;
    return STW_OK;
}

/* ---- the library of products ---- */

static struct {
    int calls_left; /* until one fails, once; -1: none does */
    int create;     /* error of Create */
    int live;       /* handles, descriptors, layouts and preferences */
    int destroyed, matmul, matmuls, found, state, types[3], layouts;
    size_t workspace;
    const void *given; /* the workspace of the last product */
    float before;
    int captured;
    stw_stream rival; /* a thread that claims a stream while another one does */
    const stw_gpu_product *product;
} lib;

static int may_fail(void **out) {
    if (!lib.calls_left--) return 13;
    lib.calls_left = lib.calls_left < 0 ? -1 : lib.calls_left;
    if (out) *out = &lib, ++lib.live;
    return 0;
}

static int lib_destroy(void *object) {
    assert_ptr_equal(object, &lib);
    --lib.live;
    ++lib.destroyed;
    return 0;
}

static int lib_create(void **handle_out) {
    if (lib.create) return lib.create;
    *handle_out = &lib;
    ++lib.live;
    return 0;
}

static int lib_desc(void **out, int compute, int scale_type) {
    (void)compute, (void)scale_type;
    return may_fail(out);
}

static int lib_set(void *object, int attribute, const void *value, size_t size) {
    (void)attribute;
    assert_true(object == &lib && value && (size == 4 || size == 8));
    return may_fail(NULL);
}

static int lib_layout(void **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    (void)columns;
    assert_int_equal(rows, stride);
    lib.types[lib.layouts++ % 3] = type;
    return may_fail(out);
}

static int lib_preference(void **out) { return may_fail(out); }

enum { WORKSPACE_AT = 64, STATE_AT = 72, F32 = 100, F16 = 101, BF16 = 102 };

static int lib_heuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int count,
                         void *results_out, int *count_out) {
    assert_true(handle && desc && a && b && c && d && preference && count == 1);
    memcpy((char *)results_out + WORKSPACE_AT, &lib.workspace, sizeof lib.workspace);
    memcpy((char *)results_out + STATE_AT, &lib.state, sizeof lib.state);
    *count_out = lib.found;
    return may_fail(NULL);
}

static int lib_matmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                      void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                      const void *algorithm, void *workspace, size_t bytes, void *stream) {
    (void)a_layout, (void)b_layout, (void)c_layout, (void)d_layout, (void)algorithm, (void)bytes, (void)stream;
    assert_true(handle && desc && alpha && a && b && c == d);
    ++lib.matmuls;
    lib.given = workspace;
    memcpy(&lib.before, beta, sizeof lib.before);
    return lib.matmul;
}

static const stw_blas_release *lib_release(const stw_gpu *gpu) {
    static const char *const sonames[] = {"libc.so.6"}; /* one that is there; none of its symbols is looked up */
    static const stw_blas_release release = {.sonames = sonames, .soname_count = 1};
    (void)gpu;
    return &release;
}

static int lib_capturing(stw_gpu *gpu, stw_stream stream) {
    stw_stream rival = lib.rival;
    lib.rival = NULL;
    if (rival && rival != stream) assert_int_equal(stw_blas_claim(gpu, lib.product, rival), 1);
    if (rival && rival == stream) assert_int_equal(stw_blas_claim(gpu, lib.product, stream), 1);
    return lib.captured;
}

/* ---- a device ---- */

static stw_blas_vendor vendor;
static stw_gpu gpu;
static stw_device device;
static const stw_image image = {STW_BACKEND_CUDA, "sm80", STW_IMAGE_CUBIN, NULL, NULL, 0};

static int device_open(void **state) {
    static const stw_blas_setting preferences[] = {{1, 8, 1 << 20}, {5, 4, 16}};
    static const stw_gpu_ops ops = {.who = "fake",
                                    .wave = 32,
                                    .forked = fake_forked,
                                    .make_current = fake_make_current,
                                    .restore = fake_restore,
                                    .module_load = fake_module_load,
                                    .kernel_load = fake_kernel_load,
                                    .check_stream = fake_check_stream,
                                    .check_pointer = fake_check_pointer,
                                    .launch = fake_launch,
                                    .encode_product = fake_encode_product,
                                    .side_open = fake_side_open,
                                    .side_close = fake_side_close,
                                    .order = fake_order,
                                    .blas = &vendor};
    (void)state;
    memset(&fake, 0, sizeof fake);
    memset(&lib, 0, sizeof lib);
    callocs_left = lib.calls_left = -1;
    lib.found = 1;
    vendor = (stw_blas_vendor){.name = "fakeLt",
                               .prefix = "fake",
                               .release = lib_release,
                               .type_f32 = F32,
                               .type_f16 = F16,
                               .type_bf16 = BF16,
                               .preferences = preferences,
                               .preference_count = 2,
                               .workspace = 1 << 20,
                               .algorithm_size = 16,
                               .workspace_at = WORKSPACE_AT,
                               .state_at = STATE_AT,
                               .ordered = 1,
                               .measured = 1,
                               .functions = {lib_create, lib_destroy, lib_desc, lib_destroy, lib_set, lib_layout,
                                             lib_destroy, lib_preference, lib_destroy, lib_set, lib_heuristic,
                                             lib_matmul, NULL}};
    pthread_mutex_init(&vendor.lock, NULL);
    stw_gpu_init(&gpu, &ops, 0, &image);
    gpu.jagged_image = gpu.cp_image = &image;
    device = (stw_device){
        .arch = stw_arch_find(STW_BACKEND_CUDA, "sm80"), .compute_units = 100, .smem_max = 163 << 10, .state = &gpu};
    return 0;
}

static int device_close(void **state) {
    (void)state;
    callocs_left = -1;
    stw_blas_end(&gpu, 1);
    stw_gpu_end(&gpu);
    pthread_mutex_destroy(&vendor.lock);
    if (vendor.dso.handle) stw_dso_close(&vendor.dso);
    return fake.depth ? -1 : 0; /* every enter had its leave */
}

static void says(const char *text) {
    if (!strstr(stw_last_error(), text)) fail_msg("\"%s\" lacks \"%s\"", stw_last_error(), text);
}

/* ---- backends/gpu/gpu.c ---- */

static void forked_children_are_refused(void **state) {
    (void)state;
    int before;
    fake.forked = 1;
    assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_E_FORKED);
    says("a_call: this context was made before the process forked");
    assert_int_equal(fake.depth, 0); /* no driver call */
}

static void the_first_loss_is_told(void **state) {
    (void)state;
    int before;
    stw_fail(STW_E_DRIVER, "no loss");
    assert_int_equal(stw_gpu_note(&gpu, STW_E_DRIVER), STW_E_DRIVER);
    assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_OK);
    assert_int_equal(stw_gpu_leave(&gpu, before, STW_OK), STW_OK);
    atomic_store(&gpu.lost, 1); /* as while another thread keeps its text */
    assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_E_DEVICE_LOST);
    says("a_call: the device was lost: another thread's call failed; the process must be started again");
    atomic_store(&gpu.lost, 0);
    stw_fail(STW_E_DEVICE_LOST, "the first failure");
    assert_int_equal(stw_gpu_note(&gpu, STW_E_DEVICE_LOST), STW_E_DEVICE_LOST);
    stw_fail(STW_E_DEVICE_LOST, "the second failure");
    assert_int_equal(stw_gpu_note(&gpu, STW_E_DEVICE_LOST), STW_E_DEVICE_LOST);
    assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_E_DEVICE_LOST);
    says("a_call: the device was lost: the first failure; the process must be started again");
    assert_int_equal(fake.depth, 0);
}

static void leaving_keeps_the_first_failure(void **state) {
    (void)state;
    for (int fails_too = 0; fails_too < 2; ++fails_too) {
        int before;
        assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_OK);
        fake.restore = fails_too ? STW_E_DRIVER : STW_OK;
        stw_fail(STW_E_INVALID, "the call's own words");
        assert_int_equal(stw_gpu_leave(&gpu, before, STW_E_INVALID), STW_E_INVALID);
        assert_string_equal(stw_last_error(), "the call's own words");
        fake.restore = STW_OK;
    }
    int before;
    assert_int_equal(stw_gpu_enter(&gpu, "a_call", &before), STW_OK);
    fake.restore = STW_E_DRIVER;
    assert_int_equal(stw_gpu_leave(&gpu, before, STW_OK), STW_E_DRIVER);
    says("fake: restore");
}

static void kernels_are_found_by_name_and_shape(void **state) {
    (void)state;
    const stw_gpu_kernel *kernel[4], *again = NULL;
    assert_int_equal(stw_gpu_kernel_find(&gpu, &(stw_gpu_entry){"one", STW_KERNEL_ATTN, 64, 100, 0}, &kernel[0]),
                     STW_OK);
    assert_int_equal(stw_gpu_kernel_find(&gpu, &(stw_gpu_entry){"one", STW_KERNEL_ATTN, 128, 100, 0}, &kernel[1]),
                     STW_OK);
    assert_int_equal(stw_gpu_kernel_find(&gpu, &(stw_gpu_entry){"one", STW_KERNEL_ATTN, 64, 200, 0}, &kernel[2]),
                     STW_OK);
    assert_int_equal(stw_gpu_kernel_find(&gpu, &(stw_gpu_entry){"two", STW_KERNEL_ATTN, 64, 100, 0}, &kernel[3]),
                     STW_OK);
    assert_int_equal(fake.kernels, 4);
    assert_int_equal(fake.modules, 1);
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(stw_gpu_kernel_find(&gpu,
                                             &(stw_gpu_entry){kernel[i]->name, kernel[i]->image, kernel[i]->threads,
                                                              kernel[i]->smem, 0},
                                             &again),
                         STW_OK);
        assert_ptr_equal(again, kernel[i]);
        for (int n = 0; n < i; ++n) assert_ptr_not_equal(kernel[n], kernel[i]);
    }
    assert_int_equal(fake.kernels, 4);
}

/* A kernel that was not made is not there, and the next call tries again. */
static void kernels_that_cannot_be_made(void **state) {
    (void)state;
    const stw_gpu_kernel *kernel = NULL;
    const stw_gpu_entry jagged = {"stw_jagged_x", STW_KERNEL_JAGGED, 64, 0, 0};
    fake.module = STW_E_NO_IMAGE;
    assert_int_equal(stw_gpu_kernel_find(&gpu, &jagged, &kernel), STW_E_NO_IMAGE);
    fake.module = STW_OK;
    callocs_left = 0;
    assert_int_equal(stw_gpu_kernel_find(&gpu, &jagged, &kernel), STW_E_NO_MEMORY);
    assert_string_equal(stw_last_error(), "fake: no memory for kernel stw_jagged_x");
    callocs_left = -1;
    fake.kernel = STW_E_INTERNAL;
    assert_int_equal(stw_gpu_kernel_find(&gpu, &jagged, &kernel), STW_E_INTERNAL);
    assert_null(kernel);
    assert_null(gpu.kernels);
    fake.kernel = STW_OK;
    assert_int_equal(stw_gpu_kernel_find(&gpu, &jagged, &kernel), STW_OK);
    assert_int_equal(fake.modules, 2); /* the failed one, and the good one once */
    assert_null(gpu.module);           /* that of attention is not needed */
}

/* ---- backends/gpu/cp.c ---- */

static void ranks_need_an_image_and_a_stream(void **state) {
    (void)state;
    stw_cp_side side;
    gpu.cp_image = NULL;
    snprintf(device.name, sizeof device.name, "Fake");
    assert_int_equal(stw_gpu_cp_open(&device, &side), STW_E_NO_IMAGE);
    assert_string_equal(stw_last_error(), "cp_plan: this build holds no kernels of attention over ranks for \"Fake\"");
    gpu.cp_image = &image;
    stw_status *const failing[] = {&fake.enter, &fake.module, &fake.kernel, &fake.side};
    for (int i = 0; i < 4; ++i) {
        *failing[i] = STW_E_DRIVER;
        assert_int_equal(stw_gpu_cp_open(&device, &side), STW_E_DRIVER);
        *failing[i] = STW_OK;
        assert_null(side.stream);
        stw_gpu_cp_close(&device, &side); /* also of what was not opened */
    }
    assert_int_equal(stw_gpu_cp_open(&device, &side), STW_OK);
    assert_non_null(side.kernel[0]);
    assert_non_null(side.kernel[1]);
    assert_int_equal(fake.sides, 1);
    fake.enter = STW_E_DRIVER; /* a driver that is shutting down */
    stw_cp_side lost = side;
    stw_gpu_cp_close(&device, &lost);
    assert_int_equal(fake.sides, 1);
    fake.enter = STW_OK;
    stw_gpu_cp_close(&device, &side);
    assert_null(side.stream);
    assert_int_equal(fake.sides, 0);
}

/* A thread copies four vectors where all rows are whole ones, else an element, and the grid is bounded; nothing is
 * launched for nothing. */
static void elements_of_ranks_are_launched(void **state) {
    (void)state;
    static const struct {
        const char *what;
        int64_t extent[4], to[4], from[4];
        uintptr_t offset;
        uint32_t blocks;
    } rows[] = {{"vectors", {1, 1, 128, 64}, {0, 0, 64, 1}, {0, 0, 64, 1}, 0, 2},
                {"a row of 66", {1, 1, 32, 66}, {0, 0, 66, 1}, {0, 0, 66, 1}, 0, 9},
                {"strided columns", {1, 1, 32, 64}, {0, 0, 64, 1}, {0, 0, 128, 2}, 0, 8},
                {"uneven batches", {2, 1, 16, 64}, {1026, 0, 64, 1}, {1024, 0, 64, 1}, 0, 8},
                {"uneven heads", {1, 2, 16, 64}, {0, 1026, 64, 1}, {0, 1024, 64, 1}, 0, 8},
                {"uneven rows", {1, 1, 32, 64}, {0, 0, 66, 1}, {0, 0, 64, 1}, 0, 8},
                {"an uneven start", {1, 1, 32, 64}, {0, 0, 64, 1}, {0, 0, 64, 1}, 4, 8},
                {"no rows", {1, 1, 0, 64}, {0, 0, 64, 1}, {0, 0, 64, 1}, 0, 0},
                {"many rows", {1, 1, 1 << 22, 256}, {0, 0, 256, 1}, {0, 0, 256, 1}, 0, 1 << 16}};
    stw_cp_side side;
    assert_int_equal(stw_gpu_cp_open(&device, &side), STW_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_cp_cast cast = {.to = AT(1), .from = (char *)AT(2) + rows[i].offset};
        cast.to_dtype = cast.from_dtype = STW_F32;
        memcpy(cast.extent, rows[i].extent, sizeof cast.extent);
        memcpy(cast.to_stride, rows[i].to, sizeof cast.to_stride);
        memcpy(cast.from_stride, rows[i].from, sizeof cast.from_stride);
        fake.launches = 0;
        assert_int_equal(stw_gpu_cp_cast(&device, &side, &cast, NULL), STW_OK);
        const uint32_t blocks = fake.launches ? fake.grid[0] : 0;
        if (blocks != rows[i].blocks) fail_msg("%s: %u CTAs", rows[i].what, blocks);
    }
    const stw_cp_cast zeros = {.to = AT(1), .extent = {1, 1, 1, 1024}, .to_stride = {0, 0, 0, 1}, .to_dtype = STW_F64};
    stw_cp_merge merge = {.batches = 1, .rows = 32, .heads = 2};
    fake.launches = 0;
    assert_int_equal(stw_gpu_cp_cast(&device, &side, &zeros, NULL), STW_OK);
    assert_int_equal(stw_gpu_cp_merge(&device, &side, &merge, NULL), STW_OK); /* a line is a warp's */
    assert_int_equal(fake.launches, 2);
    assert_int_equal(fake.grid[0], 1);
    assert_int_equal(fake.grid[1], 8);
    merge.rows = 0;
    assert_int_equal(stw_gpu_cp_merge(&device, &side, &merge, NULL), STW_OK);
    assert_int_equal(fake.launches, 2);
    assert_int_equal(stw_gpu_cp_order(&device, &side, 1, NULL, NULL), STW_OK);
    assert_int_equal(fake.orders, 1);
    fake.forked = 1;
    assert_int_equal(stw_gpu_cp_order(&device, &side, 0, NULL, NULL), STW_E_FORKED);
    assert_int_equal(stw_gpu_cp_cast(&device, &side, &zeros, NULL), STW_E_FORKED);
    assert_int_equal(stw_gpu_cp_check(&device, "a_call", STW_PLAN_ATTN_FWD, NULL, NULL, NULL), STW_E_FORKED);
    fake.forked = 0;
    assert_int_equal(fake.orders, 1);
    assert_int_equal(fake.launches, 2);
    stw_gpu_cp_close(&device, &side);
}

/* ---- backends/gpu/launch.c: pointers ---- */

static const char *asked(const stw_attn_params *params, const void *workspace, stw_status expected) {
    fake.asked[0] = 0;
    assert_int_equal(stw_gpu_check_call(&gpu, "a_call", STW_CALL_BWD, params, workspace, NULL), expected);
    return fake.asked;
}

/* Which arrays a call writes ("="): a driver may want other memory for them. */
static void written_arrays_are_asked_for_as_such(void **state) {
    (void)state;
    stw_attn_params p = {.batch = 2, .max_seq_q = 3, .max_seq_kv = 4};
    p.q.data = p.k.data = p.v.data = p.out.data = p.dout.data = p.bias.data = AT(1);
    p.dq.data = p.dk.data = p.dv.data = p.delta.data = p.dbias.data = AT(2);
    p.lse.data = p.dlse.data = AT(3), p.sink = p.dsink = AT(4), p.cu_seqlens_q = AT(5), p.status_out = AT(6);
    assert_string_equal(asked(&p, AT(9), STW_OK),
                        "q k v out dout dq= dk= dv= lse dlse delta= bias dbias= sink dsink= cu_seqlens_q "
                        "status_out= workspace= ");
    stw_attn_params f = {.batch = 2, .max_seq_q = 3, .max_seq_kv = 4};
    f.q.data = f.k.data = f.v.data = f.out.data = f.lse.data = AT(1), f.status_out = AT(6);
    fake.asked[0] = 0;
    assert_int_equal(stw_gpu_check_call(&gpu, "a_call", STW_CALL_FWD, &f, AT(9), NULL), STW_OK);
    assert_string_equal(fake.asked, "q k v out= lse= status_out= workspace= ");
    f.mask_out = AT(7), fake.asked[0] = 0;
    assert_int_equal(stw_gpu_check_call(&gpu, "a_call", STW_CALL_DROPOUT_MASK, &f, NULL, NULL), STW_OK);
    assert_string_equal(fake.asked, "q k v out lse mask= status_out= ");
}

/* Tensors without a row may be any pointer: an empty array of a framework often is. */
static void empty_tensors_are_not_asked_for(void **state) {
    (void)state;
    stw_attn_params p = {.batch = 2, .max_seq_q = 3, .max_seq_kv = 4};
    p.q.data = AT(1), p.k.data = AT(2), p.bias.data = AT(3), p.sink = AT(4);
    assert_string_equal(asked(&p, AT(5), STW_OK), "q k bias sink workspace= ");
    assert_string_equal(asked(&p, NULL, STW_OK), "q k bias sink ");
    p.max_seq_q = 0;
    assert_string_equal(asked(&p, NULL, STW_OK), "k sink ");
    p.max_seq_q = 3, p.max_seq_kv = 0;
    assert_string_equal(asked(&p, NULL, STW_OK), "q sink ");
    p.features = STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV, p.max_seq_kv = 4;
    p.total_q = 0, p.total_kv = 9;
    assert_string_equal(asked(&p, NULL, STW_OK), "k sink ");
    p.total_q = 9, p.batch = 0;
    assert_string_equal(asked(&p, AT(5), STW_OK), "sink workspace= ");
    p.batch = 2;
    fake.bad_pointer = "k";
    assert_string_equal(asked(&p, AT(5), STW_E_INVALID), "q k ");
    says("fake: k");
}

/* ---- backends/gpu/blas.c ---- */

static const stw_gpu_shape a_shape = {.m = 4, .n = 5, .k = 6, .dtype = STW_F16, .out_dtype = STW_F32, .a_by_k = 1};

static const stw_gpu_product *find(const stw_gpu_shape *shape, const char *expected_why) {
    char words[200] = "";
    stw_text why = stw_text_in(words, sizeof words);
    const stw_gpu_product *product = stw_blas_find(&gpu, shape, &why);
    assert_string_equal(words, expected_why);
    assert_int_equal(product == NULL, expected_why[0] != 0);
    return product;
}

static void products_without_memory(void **state) {
    (void)state;
    for (int i = 0; i < 2; ++i) { /* the device's part, the product */
        callocs_left = i;
        find(&a_shape, "no memory");
        assert_int_equal(lib.live, i); /* the handle, once there is one */
    }
    callocs_left = -1;
    const stw_gpu_product *product = find(&a_shape, "");
    callocs_left = 0; /* a known one takes none */
    assert_ptr_equal(find(&a_shape, ""), product);
}

/* Whatever call fails: no product, the reason, nothing left behind. */
static void each_call_of_the_library_fails(void **state) {
    (void)state;
    for (int64_t a_by_k = 0; a_by_k < 2; ++a_by_k) {
        stw_gpu_shape shape = a_shape;
        shape.a_by_k = a_by_k;
        /* a descriptor, its attribute, three layouts, a preference and its two attributes, the question */
        for (int call = 0; call < 8 + a_by_k; ++call) {
            lib.calls_left = call;
            find(&shape, "libc.so.6 has no product of 4 x 5 over 6 (status 13)");
            assert_int_equal(lib.live, 1 + 4 * (int)a_by_k); /* the handle, and the product before */
            lib.calls_left = -1;
        }
        find(&shape, "");
        assert_int_equal(lib.live, 1 + 4 * (1 + (int)a_by_k)); /* a product: a descriptor and three layouts */
    }
    stw_gpu_shape other = a_shape;
    other.m = 7;
    lib.found = 0;
    find(&other, "libc.so.6 has no product of 7 x 5 over 6 (status -1)");
    lib.found = 1, lib.state = 3;
    find(&other, "libc.so.6 has no product of 7 x 5 over 6 (status 3)");
    lib.state = 0, lib.workspace = vendor.workspace + 1; /* more than was allowed */
    find(&other, "libc.so.6 has no product of 7 x 5 over 6 (status -1)");
    lib.workspace = vendor.workspace;
    assert_int_equal(find(&other, "")->workspace, vendor.workspace);
}

static void handle_that_cannot_be_made(void **state) {
    (void)state;
    lib.create = 3;
    find(&a_shape, "no handle of libc.so.6 (it fails)");
    stw_blas_end(&gpu, 1);
    assert_int_equal(lib.destroyed, 0);
    assert_null(gpu.blas);
    lib.create = 0;
    find(&a_shape, "");
}

static void element_types_of_products(void **state) {
    static const struct {
        stw_dtype in, out;
        int types[3];
    } cases[] = {{STW_F16, STW_F32, {F16, F16, F32}},
                 {STW_BF16, STW_BF16, {BF16, BF16, BF16}},
                 {STW_F32, STW_F16, {F32, F32, F16}}};
    (void)state;
    for (size_t i = 0; i < 3; ++i) {
        stw_gpu_shape shape = a_shape;
        shape.dtype = cases[i].in, shape.out_dtype = cases[i].out;
        find(&shape, "");
        assert_memory_equal(lib.types, cases[i].types, sizeof lib.types);
    }
}

/* After a fork or a loss the library is not called any more. */
static void ends_of_devices(void **state) {
    (void)state;
    stw_blas_end(&gpu, 1); /* never used */
    assert_int_equal(lib.destroyed, 0);
    find(&a_shape, "");
    int live = lib.live, destroyed = lib.destroyed;
    assert_int_equal(live, 5);
    stw_blas_end(&gpu, 0);
    assert_int_equal(lib.destroyed, destroyed);
    assert_null(gpu.blas);
    lib.live = 0;
    find(&a_shape, "");
    stw_blas_end(&gpu, 1);
    assert_int_equal(lib.live, 0);
}

/* Of two threads that come at once one gets the library. */
static void one_stream_owns_the_library(void **state) {
    (void)state;
    stw_stream mine = AT(1), other = AT(2);
    const stw_gpu_operands operands = {.a = AT(3), .b = AT(4), .c = AT(5)};
    lib.product = find(&a_shape, "");
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 1); /* a library without such rules */
    assert_int_equal(stw_blas_claim(&gpu, lib.product, other), 1);
    vendor.capturing = lib_capturing;
    lib.captured = 1;
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 0); /* has not run before */
    lib.captured = 0;
    lib.rival = mine; /* the same stream, another thread: it is in the library */
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 0);
    assert_int_equal(stw_blas_run(&gpu, lib.product, &operands, mine), STW_OK);
    assert_int_equal(stw_blas_claim(&gpu, lib.product, other), 0);
    lib.captured = 1; /* a product that has run may be captured */
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 1);
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 0); /* busy */
    assert_int_equal(stw_blas_run(&gpu, lib.product, &operands, mine), STW_OK);
    stw_blas_end(&gpu, 1);
    lib.product = find(&a_shape, "");
    lib.captured = 0;
    lib.rival = other; /* another stream comes first */
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 0);
    assert_int_equal(stw_blas_run(&gpu, lib.product, &operands, other), STW_OK);
    assert_int_equal(stw_blas_claim(&gpu, lib.product, mine), 0);
    assert_int_equal(stw_blas_claim(&gpu, lib.product, other), 1);
}

/* ---- backends/gpu/jagged.c ---- */

static stw_jagged_work work_of(const char *line) {
    stw_jagged_problem problem;
    stw_jagged_work work;
    memset(&work, 0, sizeof work);
    if (stw_problem_jagged_parse(line, &problem) || stw_jagged_check(&problem.desc))
        fail_msg("%s: %s", line, stw_last_error());
    stw_jagged_params_fill(&problem.desc, &work.params);
    return work;
}

#define LINEAR "jagged_linear:f16:c8l1000t8000i1024f1024:full:out_x:out_w"

static void notes(stw_jagged_work *work, const char *text) {
    if (stw_gpu_jagged_prepare(&device, work)) fail_msg("%s", stw_last_error());
    if (!strstr(work->note, text)) fail_msg("\"%s\" lacks \"%s\"", work->note, text);
}

static void replace_work(stw_jagged_work *work, const char *line) {
    free(work->own);
    *work = work_of(line);
}

static void products_that_are_not_the_librarys(void **state) {
    (void)state;
    stw_jagged_work work = work_of(LINEAR);
    work.forced_variant = "tiles";
    notes(&work, "dX by own tiles: STERNWAY_VARIANT=tiles, dW by own tiles: STERNWAY_VARIANT=tiles, ");
    assert_null(strstr(work.variant, "libc.so.6"));
    work.forced_variant = "";
    notes(&work, "libc.so.6 else product_");
    assert_null(work.unordered);
    assert_string_equal(work.variant, "libc.so.6 libc.so.6");
    replace_work(&work, LINEAR);
    work.deterministic = 1;
    notes(&work, "libc.so.6 else product_"); /* it promises an order */
    vendor.ordered = 0;
    notes(&work, "dX by own tiles: deterministic mode, dW by own tiles: deterministic mode, ");
    work.deterministic = 0;
    notes(&work, "libc.so.6 else product_");
    assert_string_equal(work.unordered, "libc.so.6");
    replace_work(&work, "jagged_linear:f32:c8l1000t8000i1024f1024:full");
    notes(&work, "dX by own tiles: f32, dW by own tiles: f32, ");
    replace_work(&work, "jagged_linear:f16:c8l1000t8000i64f64:full");
    notes(&work, "dX by own tiles: little work, dW by own tiles: little work, ");
    replace_work(&work, "jagged_linear:f16:c0l1000t8000i1024f1024:full");
    notes(&work, "dW by own tiles: little work, ");
    replace_work(&work, "jagged_linear:f16:c8l1000t2147483648i64f64:full");
    notes(&work, "dX by own tiles: 2^31 rows, dW by own tiles: 2^31 rows, ");
    replace_work(&work, "jagged_linear:f16:c8l1000t64i2147483648f64:full");
    notes(&work, "dX by own tiles: 2^31 rows, dW by own tiles: 2^31 rows, ");
    replace_work(&work, "jagged_linear:f16:c8l1000t64i64f2147483648:full");
    notes(&work, "dX by own tiles: 2^31 rows, dW by own tiles: 2^31 rows, ");
    vendor.workspace = 0; /* does not split sums */
    replace_work(&work, LINEAR);
    notes(&work, "dW by own tiles: few tiles in the result, libc.so.6 else product_");
    replace_work(&work, "jagged_linear:f16:c8l1000t8000i4096f4096:full");
    notes(&work, "libc.so.6 else product_");
    assert_null(strstr(work.note, "own tiles"));
    replace_work(&work, "jagged_linear:f16:c8l1000t8000i1024f1024"); /* rows to skip: nobody asks the library */
    notes(&work, "cubin, ");
    assert_null(strstr(work.note, "libc.so.6"));
    assert_null(strstr(work.note, "own tiles"));
    free(work.own);
}

static void jagged_plans_that_fail(void **state) {
    (void)state;
    stw_jagged_work work = work_of(LINEAR);
    fake.kernel = STW_E_INTERNAL;
    assert_int_equal(stw_gpu_jagged_prepare(&device, &work), STW_E_INTERNAL);
    says("fake: kernel");
    fake.kernel = STW_OK;
    fake.enter = STW_E_DRIVER;
    assert_int_equal(stw_gpu_jagged_prepare(&device, &work), STW_E_DRIVER);
    says("fake: enter");
    fake.enter = STW_OK;
    gpu.jagged_image = NULL;
    assert_int_equal(stw_gpu_jagged_prepare(&device, &work), STW_E_NO_IMAGE);
    says("jagged_bwd_plan: this build holds no fake image of the jagged operations for sm80");
    work.params.dtype = STW_F64;
    assert_int_equal(stw_gpu_jagged_prepare(&device, &work), STW_E_UNSUPPORTED);
    says("jagged_bwd_plan: fake: GPUs have f16, bf16 and f32, the CPU backend has the others");
    work.params.dtype = STW_F16;
    assert_null(work.own);
    assert_int_equal(work.workspace_size, 0);
}

static stw_status run(const stw_jagged_work *work, const stw_jagged_params *p) {
    fake.asked[0] = fake.launched[0] = 0;
    fake.launches = lib.matmuls = 0;
    return stw_gpu_jagged_bwd(&device, work, p, AT(9), NULL, 0);
}

#define PREPARE "stw_jagged_prepare "
#define DX      "stw_jagged_product_01_f16 "
#define DW      "stw_jagged_product_11_f16 stw_jagged_product_end_f16 "

static void calls_with_a_library(void **state) {
    (void)state;
    lib.workspace = 1000;
    stw_jagged_work work = work_of(LINEAR);
    notes(&work, "libc.so.6 else product_01_f16, libc.so.6 else product_11_f16, else: operands at no multiple of "
                 "16 bytes, cubin, 4 kernels");
    stw_jagged_params p = work.params;
    p.grad = AT(1), p.x = AT(2), p.weight = AT(3), p.dx = AT(4), p.dweight = AT(5);
    p.axis[0].offsets = AT(6);
    assert_int_equal(run(&work, &p), STW_OK);
    assert_string_equal(fake.asked, "grad x weight dx= dweight= axis[0].offsets workspace= ");
    assert_string_equal(fake.launched, PREPARE);
    assert_int_equal(lib.matmuls, 2);
    assert_true((const char *)lib.given > (char *)AT(9) &&
                (const char *)lib.given + 1000 <= (char *)AT(9) + work.workspace_size);
    p.dweight = (char *)AT(5) + 8; /* dX is still the library's */
    assert_int_equal(run(&work, &p), STW_OK);
    assert_string_equal(fake.launched, PREPARE DW);
    assert_int_equal(lib.matmuls, 1);
    p.grad = (const char *)AT(1) + 2;
    assert_int_equal(run(&work, &p), STW_OK);
    assert_string_equal(fake.launched, PREPARE DX DW);
    assert_int_equal(lib.matmuls, 0);
    p.grad = AT(1), p.dweight = AT(5);
    vendor.capturing = lib_capturing;
    assert_int_equal(stw_gpu_jagged_bwd(&device, &work, &p, AT(9), AT(7), 0), STW_OK); /* owns it from now on */
    assert_int_equal(run(&work, &p), STW_OK);
    assert_string_equal(fake.launched, PREPARE DX DW);
    assert_int_equal(lib.matmuls, 0);
    free(work.own);
}

static void jagged_calls_that_fail(void **state) {
    (void)state;
    stw_jagged_work work = work_of(LINEAR);
    notes(&work, "libc.so.6");
    stw_jagged_params p = work.params;
    p.grad = AT(1), p.x = AT(2), p.weight = AT(3), p.dx = AT(4), p.dweight = AT(5);
    fake.enter = STW_E_DRIVER;
    assert_int_equal(run(&work, &p), STW_E_DRIVER);
    assert_string_equal(fake.asked, "");
    fake.enter = STW_OK;
    fake.bad_pointer = "weight";
    assert_int_equal(run(&work, &p), STW_E_INVALID);
    says("fake: weight");
    assert_string_equal(fake.asked, "grad x weight ");
    assert_string_equal(fake.launched, "");
    fake.bad_pointer = NULL;
    lib.matmul = 13;
    assert_int_equal(run(&work, &p), STW_E_DRIVER);
    says("jagged_bwd: fakeMatmul failed: status 13");
    assert_string_equal(fake.launched, PREPARE);
    assert_int_equal(lib.matmuls, 1);
    lib.matmul = 0;
    fake.launch = STW_E_DRIVER;
    assert_int_equal(run(&work, &p), STW_E_DRIVER);
    assert_string_equal(fake.launched, PREPARE);
    assert_int_equal(lib.matmuls, 0);
    free(work.own);
}

#define OWN_DX "stw_jagged_wgmma_01_f16 "
#define OWN_DW "stw_jagged_wgmma_11_f16 "
#define END    "stw_jagged_product_end_f16 "

/* Products of an image of the device's own: of 16-bit types, whole vectors and work enough. */
static void calls_with_own_products(void **state) {
    (void)state;
    static const struct {
        const char *sizes, *forced, *launched;
    } rows[] = {
        {"i4096f4096", "", PREPARE OWN_DX OWN_DW},
        {"i64f96", "", PREPARE OWN_DX OWN_DW END}, /* few tiles in dW: its sums in parts */
        {"i64f96", "tiles", PREPARE DX DW},
        {"i8f8", "", PREPARE OWN_DX OWN_DW END},
        {"i1020f1024", "", PREPARE DX DW},
        {"i1024f1020", "", PREPARE DX DW},
        {"i64f96:dx_f32", "", PREPARE DX OWN_DW END},
    };
    gpu.jagged_own_image = &image;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char line[100];
        snprintf(line, sizeof line, "jagged_linear:f16:c8l1000t8000%s:out_x:out_w", rows[i].sizes);
        stw_jagged_work work = work_of(line);
        work.forced_variant = rows[i].forced;
        if (stw_gpu_jagged_prepare(&device, &work)) fail_msg("%s", stw_last_error());
        stw_jagged_params p = work.params;
        p.grad = AT(1), p.x = AT(2), p.weight = AT(3), p.dx = AT(4), p.dweight = AT(5);
        p.axis[0].offsets = AT(6);
        assert_int_equal(run(&work, &p), STW_OK);
        if (strcmp(fake.launched, rows[i].launched)) fail_msg("%s: %s", line, fake.launched);
        free(work.own);
    }
    stw_jagged_work work = work_of("jagged_linear:f16:c2l20t40i64f64:out_x:out_w");
    notes(&work, "cubin, ");
    assert_string_equal(work.variant, "product_01_f16 product_11_f16"); /* little work */
    work.forced_variant = "wgmma";
    notes(&work, "wgmma_01_f16 else product_01_f16, wgmma_11_f16 else product_11_f16, ");
    replace_work(&work, "jagged_linear:f16:c8l1000t8000i64f96:out_x:out_w");
    notes(&work, "wgmma_01_f16 else product_01_f16, wgmma_11_f16 else product_11_f16, else: operands at no multiple of "
                 "16 bytes, ");
    stw_jagged_params p = work.params;
    p.grad = AT(1), p.x = AT(2), p.weight = AT(3), p.dx = AT(4), p.dweight = (char *)AT(5) + 8; /* no tensor load */
    assert_int_equal(run(&work, &p), STW_OK);
    assert_string_equal(fake.launched, PREPARE OWN_DX DW);
    fake.encode = STW_E_DRIVER;
    assert_int_equal(run(&work, &p), STW_E_DRIVER);
    says("fake: encode");
    assert_string_equal(fake.launched, PREPARE);
    free(work.own);
}

/* ---- backends/gpu/launch.c ---- */

static stw_attn_work attn_work_of(const char *line, const char *variant) {
    stw_problem problem;
    stw_attn_work work;
    memset(&work, 0, sizeof work);
    if (stw_problem_parse(line, &problem) || stw_attn_check(&problem.desc, STW_PLAN_ATTN_BWD))
        fail_msg("%s: %s", line, stw_last_error());
    work.kind = STW_PLAN_ATTN_BWD;
    stw_attn_params_fill(&problem.desc, STW_PLAN_ATTN_BWD, 0, &work.params);
    work.variant = stw_attn_variant_find(stw_attn_table_find("sm80"), variant);
    assert_non_null(work.variant);
    return work;
}

static void tiles_that_are_refused(void **state) {
    (void)state;
    stw_attn_work work = attn_work_of("attn_bwd:bf16:b2h2s100d64", "sm80_fwd_64x64_hd64");
    assert_int_equal(stw_gpu_attn_prepare(&device, &work), STW_E_UNSUPPORTED);
    assert_string_equal(stw_last_error(), "attn_plan: variant sm80_fwd_64x64_hd64: it is a forward's tile");
    assert_int_equal(work.workspace_size, 0);
    assert_int_equal(fake.kernels, 0);
}

/* The largest grid of a backward call. */
static uint32_t grid_of(const char *line) {
    stw_attn_work work = attn_work_of(line, "sm80_64x128_hd64");
    if (stw_gpu_attn_prepare(&device, &work)) fail_msg("%s", stw_last_error());
    stw_attn_steps steps;
    stw_attn_steps_of(STW_CALL_BWD, work.variant, &work.params, 32, &steps);
    fake.launches = 0;
    assert_int_equal(stw_gpu_attn_bwd(&device, &work, &work.params, AT(9), NULL, 0), STW_OK);
    free(work.own);
    assert_int_equal(fake.launches, steps.count);
    for (uint32_t i = 0; i < steps.count; ++i) {
        if (steps.step[i].queued != STW_QUEUED_NEVER) return fake.grid[i];
        assert_int_equal(fake.grid[i], steps.step[i].grid_x);
    }
    fail_msg("%s: no step is queued", line);
    return 0;
}

/* CTAs that take work tiles until none is left are as many as run at a time, in the header's words;
 * where work tiles are too few each gets a CTA of its own. */
static void queued_steps_get_the_blocks_that_run_at_a_time(void **state) {
    (void)state;
    device.compute_units = 3;
    assert_int_equal(grid_of("attn_bwd:bf16:b1h1s128d64:causal_br"), 1);
    assert_int_equal(grid_of("attn_bwd:bf16:b1h3s128d64:causal_br"), 3);
    assert_int_equal(grid_of("attn_bwd:bf16:b2h2s128d64:causal_br"), 3);
    assert_int_equal(grid_of("attn_bwd:bf16:b1h1s4096d64:causal_br"), 32); /* of many keys: 24 work tiles a CTA */
    assert_int_equal(grid_of("attn_bwd:bf16:b1h3s4096d64:causal_br"), 3);
    device.smem_max = 0; /* told too little: one a multiprocessor */
    assert_int_equal(grid_of("attn_bwd:bf16:b1h3s4096d64:causal_br"), 3);
    device.smem_max = 8 * 163 << 10;
    assert_true(grid_of("attn_bwd:bf16:b9h9s4096d64:causal_br") >= 3 * 8);
}

/* ---- calls of other sizes than their plan's ---- */

enum { LAUNCH_BYTES = STW_ATTN_STEPS * (8 + sizeof(stw_attn_launch)) };

/* What a call with these parameters launches through a plan, names and arguments. */
static void launches_of(stw_attn_work *work, const stw_attn_params *params, char *names, unsigned char *launches_out) {
    if (stw_gpu_attn_prepare(&device, work)) fail_msg("%s", stw_last_error());
    memset(launches_out, 0, LAUNCH_BYTES);
    fake.launched[0] = 0;
    fake.arguments = launches_out;
    assert_int_equal(stw_gpu_attn_bwd(&device, work, params, AT(9), NULL, 0), STW_OK);
    fake.arguments = NULL;
    free(work->own);
    work->own = NULL;
    memcpy(names, fake.launched, sizeof fake.launched);
}

/* A call through the plan of its class launches what it launches through its own: the same kernels, grids and
 * arguments to the last byte. */
static void classes_launch_what_their_own_plans_do(void **state) {
    (void)state;
    static const char *const lines[][2] = {
        {"attn_bwd:bf16:b17h4k2s130x150d64:thd:tq1000:tk1009", "sm80_64x128_hd64"},
        {"attn_bwd:bf16:b33h2s1030x1200d64:thd:tq5000:tk5001:causal_br", "sm80_64x128_hd64"},
        {"attn_bwd:f16:b19h2s257d64:thd:tq2100:tk2100:dropout0.2:map_mem_eff", "sm80_64x128_hd64"},
        {"attn_bwd:bf16:b21h2s70x90d64:thd:tq900:tk901:bias_1hqk:grads_qkvbs:sink", "sm80_64x128_hd64"},
        {"attn_bwd:f32:b35h2s33d40:thd:tq500:tk500:lse_local:det", "sm80_64x64_hd64_f32"},
        {"attn_bwd:bf16:b1h1s4097d64:thd:tq4097:tk4097:causal_br", "sm80_64x128_hd64"},
    };
    static unsigned char own[LAUNCH_BYTES], shared[LAUNCH_BYTES];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i) {
        char own_names[sizeof fake.launched], names[sizeof fake.launched];
        stw_attn_work work = attn_work_of(lines[i][0], lines[i][1]), class = work;
        stw_attn_params *p = &class.params;
        p->batch = stw_size_class(p->batch);
        p->max_seq_q = stw_size_class(p->max_seq_q);
        p->max_seq_kv = stw_size_class(p->max_seq_kv);
        p->total_q = stw_size_class(p->total_q);
        p->total_kv = stw_size_class(p->total_kv);
        assert_true(p->total_q > work.params.total_q);
        device.compute_units = i & 1 ? 2 : 132; /* from the tile counter; a CTA a work tile */
        launches_of(&work, &work.params, own_names, own);
        launches_of(&class, &work.params, names, shared);
        assert_string_equal(names, own_names);
        if (memcmp(own, shared, sizeof own)) fail_msg("%s: another launch", lines[i][0]);
        assert_true(work.workspace_size <= class.workspace_size);
        launches_of(&class, &class.params, names, shared);
        if (!memcmp(own, shared, sizeof own)) fail_msg("%s: the class's own sizes", lines[i][0]);
    }
}

/* Copies of inputs: the whole call is asked for first, then a kernel by size of element makes all. */
static void staged_inputs(void **state) {
    (void)state;
    static const char *const lines[] = {"attn_bwd:bf16:b2h2s300d64:st_dout0,0,0,0:st_k76800,38400,1,300",
                                        "attn_bwd:f32:b2h2s300d64:st_dout0,0,0,0:st_k76800,38400,1,300"};
    for (int n = 0; n < 2; ++n) {
        const size_t element = n ? 4 : 2;
        stw_attn_work work = attn_work_of(lines[n], n ? "sm80_32x64_hd64_f32" : "sm80_64x128_hd64");
        stw_problem problem;
        assert_int_equal(stw_problem_parse(lines[n], &problem), STW_OK);
        assert_int_equal(stw_attn_check(&problem.desc, STW_PLAN_ATTN_BWD), STW_OK);
        stw_attn_stages_plan(&problem.desc, 0, &work);
        assert_int_equal(work.stage_count, 2); /* k whole, dout one row */
        assert_int_equal(work.stage_size, 2 * 2 * 300 * 64 * element + 256);
        assert_int_equal(work.params.k.seq, 64);
        assert_int_equal(work.params.k.head, 300 * 64);
        assert_int_equal(work.params.k.batch, 2 * 300 * 64);
        assert_int_equal(work.params.dout.seq | work.params.dout.head | work.params.dout.batch, 0);
        if (stw_gpu_attn_prepare(&device, &work)) fail_msg("%s", stw_last_error());
        stw_attn_params params = work.params;
        params.k.data = AT(2), params.dout.data = AT(5);
        stw_attn_stage stages[STW_STAGES_MAX];
        assert_int_equal(stw_attn_stages_bind(&work, &params, AT(9), stages), 2);
        fake.launches = 0, fake.launched[0] = fake.asked[0] = 0;
        assert_int_equal(stw_gpu_stage(&device, &work, &params, stages, 2, AT(9), NULL, 0), STW_OK);
        assert_string_equal(fake.asked, "k dout workspace= ");
        assert_string_equal(fake.launched, n ? "stw_attn_stage_4 " : "stw_attn_stage_2 ");
        assert_int_equal(fake.grid[0], 2 * 2 * 5 + 1); /* k: heads, strips of 64 rows; dout: one row */
        assert_int_equal(fake.stages.count, 2);
        assert_int_equal(fake.stages.end[0], 2 * 2 * 5);
        assert_int_equal(fake.stages.end[1], 2 * 2 * 5 + 1);
        assert_ptr_equal(fake.stages.stage[0].from, AT(2));
        assert_ptr_equal(fake.stages.stage[1].from, AT(5));
        assert_ptr_equal(fake.stages.stage[1].to, (char *)AT(9) + 2 * 2 * 300 * 64 * element);
        fake.bad_pointer = "dout", fake.launches = 0;
        assert_int_equal(stw_gpu_stage(&device, &work, &params, stages, 2, AT(9), NULL, 0), STW_E_INVALID);
        fake.bad_pointer = NULL;
        assert_int_equal(fake.launches, 0);
        fake.launch = STW_E_DRIVER;
        assert_int_equal(stw_gpu_stage(&device, &work, &params, stages, 2, AT(9), NULL, 0), STW_E_DRIVER);
        assert_int_equal(fake.launches, 1);
        fake.launch = STW_OK, fake.forked = 1;
        assert_int_equal(stw_gpu_stage(&device, &work, &params, stages, 2, AT(9), NULL, 0), STW_E_FORKED);
        fake.forked = 0;
        free(work.own);
        params.k.data = NULL; /* a pack without rows */
        assert_int_equal(stw_attn_stages_bind(&work, &params, AT(9), stages), 1);
        assert_ptr_equal(stages[0].from, AT(5));
    }
    /* rows that are one in memory, spread: as many in the copy, the other broadcast dimensions as they are */
    static const char spread[] = "attn_bwd:bf16:b2h2s300d64:st_dout0,0,0:st_q0,64,0:st_v0,0,64";
    stw_problem problem;
    stw_attn_work work = attn_work_of(spread, "sm80_64x128_hd64");
    assert_int_equal(stw_problem_parse(spread, &problem), STW_OK);
    assert_int_equal(stw_attn_check(&problem.desc, STW_PLAN_ATTN_BWD), STW_OK);
    stw_attn_stages_plan(&problem.desc, 0, &work);
    assert_int_equal(work.stage_count, 0);
    stw_attn_stages_plan(&problem.desc, STW_COPY_SPREADS, &work);
    assert_int_equal(work.stage_count, 2);
    assert_int_equal(work.params.q.seq, 64);
    assert_int_equal(work.params.q.head, 300 * 64);
    assert_int_equal(work.params.dout.seq, 64);
    assert_int_equal(work.params.q.batch | work.params.dout.head | work.params.dout.batch | work.params.v.batch, 0);
    assert_int_equal(work.stage[0].from_strides.seq | work.stage[1].from_strides.seq, 0);
    assert_int_equal(work.stage[1].rows, 300);
    /* more work tiles than a row of AMD's grids has */
    stw_attn_stage large = {.batch = 1, .heads = 1 << 20, .rows = 320, .element = 2};
    stw_attn_stages all;
    uint32_t x, y;
    stw_attn_stages_of(&large, 1, 64, &all, &x, &y);
    assert_int_equal(x, 1 << 22);
    assert_int_equal(y, 2);
    stw_attn_stages_of(&large, 1, 32, &all, &x, &y);
    assert_int_equal(x, 5 << 20);
    assert_int_equal(y, 1);
}

/* Which inputs a GPU copies because their rows are no whole vectors: all of those, where there are enough keys. */
static void aligned_inputs(void **state) {
    (void)state;
    static const struct {
        const char *line;
        const char *copied; /* a letter an input; the last is dout */
        size_t element;
        int64_t row; /* of the copy of q, elements */
    } rows[] = {
        {"attn_bwd:bf16:b2h2s300d64", "", 2, 0},
        {"attn_bwd:bf16:b2h2s300d66", "qkvod", 2, 72},
        {"attn_bwd:f32:b2h2s300d66", "qkvod", 4, 68},
        {"attn_bwd:bf16:b2h2s300d64:gap1", "qkvod", 2, 64},
        {"attn_bwd:bf16:b2h2s300d66:delta_in", "qkvd", 2, 72},
        {"attn_bwd:bf16:b2h2s300d64x66", "vod", 2, 64},
        {"attn_bwd:bf16:b2h2s300d66:gap6", "qkvod", 2, 72},
        {"attn_bwd:bf16:b1h1s300d64:st_q0,1,68", "q", 2, 64},
        {"attn_bwd:bf16:b1h1s300d64:st_q3,1,72", "", 2, 0}, /* strides that no row uses */
        {"attn_bwd:bf16:b2h2s300d64:any_address", "qkvod", 2, 64},
        {"attn_bwd:bf16:b2h2s60d64:any_address", "", 2, 0},
        {"attn_bwd:bf16:b2h2s60d66", "", 2, 0},
        {"attn_bwd:bf16:b2h2s150d66:causal_br", "", 2, 0},
        {"attn_bwd:bf16:b2h2s300d66:causal_br", "qkvod", 2, 72},
        {"attn_bwd:bf16:b2h2s9000d66:causal_br:wl30", "", 2, 0},
        {"attn_bwd:bf16:b9h2s300d66:thd:tq600:tk700", "", 2, 0}, /* 78 keys a sequence */
        {"attn_bwd:bf16:b2h2s300d66:thd:tq600:tk600", "qkvod", 2, 72},
        {"attn_bwd:bf16:b2h2s1x9000d66", "", 2, 0},
        {"attn_fwd:bf16:b2h2s900d66", "qkv", 2, 72},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        stw_problem problem;
        assert_int_equal(stw_problem_parse(rows[i].line, &problem), STW_OK);
        stw_attn_work work = {.kind = (stw_plan_kind)problem.op};
        assert_int_equal(stw_attn_check(&problem.desc, work.kind), STW_OK);
        stw_attn_params_fill(&problem.desc, work.kind, 0, &work.params);
        const stw_attn_params before = work.params;
        stw_attn_stages_plan(&problem.desc, STW_COPY_SPREADS, &work);
        assert_int_equal(work.stage_count, 0);
        assert_memory_equal(&work.params, &before, sizeof before);
        stw_attn_stages_plan(&problem.desc, STW_COPY_SPREADS | STW_COPY_ALIGNS, &work);
        char copied[STW_STAGES_MAX + 1] = "";
        for (uint32_t s = 0; s < work.stage_count; ++s) {
            const stw_attn_stage *stage = &work.stage[s];
            copied[s] = stw_tensor_rows[stage->tensor].name[0];
            assert_int_equal(stage->element, rows[i].element);
            assert_true(work.params.features & STW_FEAT_PADDED << stage->tensor);
            assert_int_equal(stw_stage_row(stage) * (int64_t)stage->element % STW_STAGE_PITCH, 0);
        }
        if (strcmp(copied, rows[i].copied)) fail_msg("%s: %s", rows[i].line, copied);
        assert_int_equal(work.stage_size % STW_WORKSPACE_ALIGNMENT, 0);
        if (strchr(copied, 'q')) assert_int_equal(work.params.q.seq, rows[i].row);
        else assert_memory_equal(&work.params.q, &before.q, sizeof before.q);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, device_open, device_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(forked_children_are_refused),
        TEST(the_first_loss_is_told),
        TEST(leaving_keeps_the_first_failure),
        TEST(kernels_are_found_by_name_and_shape),
        TEST(kernels_that_cannot_be_made),
        TEST(ranks_need_an_image_and_a_stream),
        TEST(elements_of_ranks_are_launched),
        TEST(empty_tensors_are_not_asked_for),
        TEST(written_arrays_are_asked_for_as_such),
        TEST(products_without_memory),
        TEST(each_call_of_the_library_fails),
        TEST(handle_that_cannot_be_made),
        TEST(element_types_of_products),
        TEST(ends_of_devices),
        TEST(one_stream_owns_the_library),
        TEST(products_that_are_not_the_librarys),
        TEST(jagged_plans_that_fail),
        TEST(calls_with_a_library),
        TEST(jagged_calls_that_fail),
        TEST(calls_with_own_products),
        TEST(tiles_that_are_refused),
        TEST(queued_steps_get_the_blocks_that_run_at_a_time),
        TEST(classes_launch_what_their_own_plans_do),
        TEST(staged_inputs),
        TEST(aligned_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
