/* SPDX-License-Identifier: MIT
 *
 * The vendor's library of dense products: loading it, finding an algorithm at plan time, running it. Results
 * are in column order there, so C[m,n] = A B is computed as C^T = B^T A^T. See blas.h. */
#include "backends/gpu/blas.h"

#include "common/dtype.h"
#include "common/lock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

/* UNTRIED also after a load that failed: the next device tries again. */
enum { BLAS_UNTRIED, BLAS_LOADED, BLAS_ASKED, BLAS_REFUSED };

typedef struct blas_product {
    stw_gpu_product base;
    struct blas_product *next;
    void *desc, *a, *b, *c; /* the library's a is our B */
    uint64_t algorithm[STW_BLAS_ALGORITHM_BYTES / 8];
    atomic_int warm; /* has run: its code is loaded */
} blas_product;

/* What a device has of its library. The handle is made by the first product. */
typedef struct blas_device {
    void *handle;
    int load_failed; /* not tried again by this device's plans: it costs more than a plan */
    blas_product *products;
    atomic_uintptr_t stream; /* the only one that uses the handle; 0: none yet */
    atomic_int busy;         /* a thread is in the library */
} blas_device;

/* ---- loading ---- */

static int refuse(stw_blas_vendor *vendor, const char *text) {
    stw_text reason = stw_text_in(vendor->reason, sizeof vendor->reason);
    stw_text_add(&reason, "%s", text);
    vendor->state = BLAS_REFUSED;
    return 0;
}

/* 0 where the library does not load, which may pass. */
static int load(stw_blas_vendor *vendor, const stw_blas_release *release, const char *who) {
    char words[512], missing[256], absent[64], text[400];
    stw_text reason = stw_text_in(words, sizeof words), without = stw_text_in(missing, sizeof missing),
             unused = stw_text_in(absent, sizeof absent), all = stw_text_in(text, sizeof text);
    if (!stw_dso_open(&vendor->dso, release->sonames, release->soname_count, &reason)) {
        stw_log(STW_LOG_INFO, "%s: no %s for dense products (%s)", who, vendor->name, words);
        return 0;
    }
    vendor->state = BLAS_LOADED;
    if (!stw_dso_bind(&vendor->dso, vendor->rows, vendor->row_count, &vendor->functions, &without, &unused)) {
        stw_log(STW_LOG_INFO, "%s: no %s for dense products (%s lacks %s)", who, vendor->name, vendor->dso.soname,
                missing);
        stw_text_add(&all, "%s lacks %s", vendor->dso.soname, missing);
        refuse(vendor, text);
    } else stw_log(STW_LOG_INFO, "%s: %s for dense products", who, vendor->dso.soname);
    return 1;
}

/* ---- products ---- */

static void undescribe(const stw_blas_functions *f, blas_product *p) {
    if (p->c) f->MatrixLayoutDestroy(p->c);
    if (p->b) f->MatrixLayoutDestroy(p->b);
    if (p->a) f->MatrixLayoutDestroy(p->a);
    if (p->desc) f->MatmulDescDestroy(p->desc);
}

static int type_of(const stw_blas_vendor *vendor, stw_dtype dtype) {
    return dtype == STW_F32 ? vendor->type_f32 : dtype == STW_BF16 ? vendor->type_bf16 : vendor->type_f16;
}

/* Operands and result as the library sees them. 0, or its error. */
static int describe(const stw_blas_vendor *vendor, blas_product *p, const stw_gpu_shape *s) {
    const stw_blas_functions *f = &vendor->functions;
    int type = type_of(vendor, s->dtype);
    int32_t transposed = vendor->transposed;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    int error = f->MatmulDescCreate(&p->desc, vendor->compute_f32, vendor->type_f32);
    if (!error && s->a_by_k)
        error = f->MatmulDescSetAttribute(p->desc, vendor->transpose_b, &transposed, sizeof transposed);
    if (!error) error = f->MatrixLayoutCreate(&p->a, type, n, k, s->n);
    if (!error)
        error = f->MatrixLayoutCreate(&p->b, type, s->a_by_k ? m : k, s->a_by_k ? k : m, s->a_by_k ? s->m : s->k);
    if (!error) error = f->MatrixLayoutCreate(&p->c, type_of(vendor, s->out_dtype), n, m, s->n);
    return error;
}

/* The library's own choice among the algorithms that the preferences leave. */
static int choose(const stw_blas_vendor *vendor, blas_product *p, void *handle) {
    const stw_blas_functions *f = &vendor->functions;
    uint64_t result[STW_BLAS_RESULT_BYTES / 8] = {0};
    void *preference = NULL;
    size_t workspace;
    int state, found = 0, error = f->MatmulPreferenceCreate(&preference);
    for (size_t i = 0; i < vendor->preference_count && !error; ++i) {
        const stw_blas_setting *set = &vendor->preferences[i];
        uint32_t half = (uint32_t)set->value;
        error = f->MatmulPreferenceSetAttribute(preference, set->attribute,
                                                set->size == 4 ? (const void *)&half : &set->value, set->size);
    }
    if (!error)
        error = f->MatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->c, p->c, preference, 1, result, &found);
    if (preference) f->MatmulPreferenceDestroy(preference);
    memcpy(&workspace, (char *)result + vendor->workspace_at, sizeof workspace);
    memcpy(&state, (char *)result + vendor->state_at, sizeof state);
    if (error || found < 1 || state || workspace > vendor->workspace) return error ? error : state ? state : -1;
    memcpy(p->algorithm, result, vendor->algorithm_size);
    p->base.workspace = workspace;
    return 0;
}

static blas_product *product_make(stw_gpu *gpu, blas_device *device, const stw_gpu_shape *shape, stw_text *why) {
    stw_blas_vendor *vendor = gpu->ops->blas;
    blas_product *p = calloc(1, sizeof *p);
    if (!p) {
        stw_text_add(why, "no memory");
        return NULL;
    }
    p->base.shape = *shape;
    p->base.library = vendor->dso.soname;
    int error = describe(vendor, p, shape);
    if (!error) error = choose(vendor, p, device->handle);
    if (!error) return p;
    stw_text_add(why, "%s has no product of %lld x %lld over %lld (status %d)", vendor->dso.soname, (long long)shape->m,
                 (long long)shape->n, (long long)shape->k, error);
    undescribe(&vendor->functions, p);
    free(p);
    return NULL;
}

/* ---- versions that are newer than their headers that were read ---- */

enum { TRIAL_M = 48, TRIAL_N = 80, TRIAL_K = 32, TRIAL_A = 0, TRIAL_B = 3072, TRIAL_C = 8192, TRIAL_BYTES = 23552 };
_Static_assert(TRIAL_B == 2 * TRIAL_M * TRIAL_K && TRIAL_C == TRIAL_B + 2 * TRIAL_K * TRIAL_N &&
                   TRIAL_BYTES == TRIAL_C + 4 * TRIAL_M * TRIAL_N,
               "A, B and C behind each other, each at a multiple of 256");

/* -2 .. 2, so that every sum is exact. */
static int trial_value(int row, int column) { return (row * 7 + column * 3 + row * column) % 5 - 2; }

static void trial_fill(char *host, const stw_gpu_shape *shape) {
    for (int m = 0; m < TRIAL_M; ++m)
        for (int k = 0; k < TRIAL_K; ++k)
            stw_store_f32(host + TRIAL_A, shape->a_by_k ? k * TRIAL_M + m : m * TRIAL_K + k, shape->dtype,
                          (float)trial_value(m, k));
    for (int k = 0; k < TRIAL_K; ++k)
        for (int n = 0; n < TRIAL_N; ++n)
            stw_store_f32(host + TRIAL_B, k * TRIAL_N + n, shape->dtype, (float)trial_value(n, k + 1));
    for (int i = 0; i < TRIAL_M * TRIAL_N; ++i) stw_store_f32(host + TRIAL_C, i, STW_F32, 1.0f);
}

/* C was 1 before and is added to. */
static int trial_is_right(const char *host) {
    for (int m = 0; m < TRIAL_M; ++m)
        for (int n = 0; n < TRIAL_N; ++n) {
            int sum = 1;
            for (int k = 0; k < TRIAL_K; ++k) sum += trial_value(m, k) * trial_value(n, k + 1);
            if (stw_load_f32(host + TRIAL_C, m * TRIAL_N + n, STW_F32) != (float)sum) return 0;
        }
    return 1;
}

static int multiplies(stw_gpu *gpu, blas_device *device, char *memory, const stw_gpu_shape *shape) {
    const stw_blas_vendor *vendor = gpu->ops->blas;
    char host[TRIAL_BYTES], reason[96];
    stw_text why = stw_text_in(reason, sizeof reason);
    float one = 1.0f;
    blas_product *p = product_make(gpu, device, shape, &why);
    if (!p) return 0;
    trial_fill(host, shape);
    int error = !vendor->trial->copy(gpu, memory, host, sizeof host);
    if (!error)
        error = vendor->functions.Matmul(device->handle, p->desc, &one, memory + TRIAL_B, p->a, memory + TRIAL_A, p->b,
                                         &one, memory + TRIAL_C, p->c, memory + TRIAL_C, p->c, p->algorithm, NULL,
                                         p->base.workspace, NULL);
    if (!error) error = !vendor->trial->copy(gpu, host, memory, sizeof host);
    undescribe(&vendor->functions, p);
    free(p);
    return !error && trial_is_right(host);
}

/* Both orders and both types of operands, exactly. The handle is made anew: it belongs to the first stream that used
 * it. */
static int passes(stw_gpu *gpu, blas_device *device) {
    const stw_blas_vendor *vendor = gpu->ops->blas;
    const stw_gpu_shape shapes[] = {{TRIAL_M, TRIAL_N, TRIAL_K, STW_BF16, STW_F32, 0},
                                    {TRIAL_M, TRIAL_N, TRIAL_K, STW_F16, STW_F32, 1}};
    char *memory = vendor->trial ? vendor->trial->memory(gpu, TRIAL_BYTES) : NULL;
    int right = memory && multiplies(gpu, device, memory, &shapes[0]) && multiplies(gpu, device, memory, &shapes[1]);
    if (memory) vendor->trial->free(gpu, memory);
    vendor->functions.Destroy(device->handle);
    if (vendor->functions.Create(&device->handle)) device->handle = NULL;
    return right && device->handle;
}

/* 1 when this version's ABI is known, or its trial went well. Asked once: it takes a handle. */
static int version_fits(stw_gpu *gpu, blas_device *device, const stw_blas_release *release) {
    stw_blas_vendor *vendor = gpu->ops->blas;
    int version = 0;
    if (vendor->state != BLAS_LOADED) return vendor->state == BLAS_ASKED;
    vendor->state = BLAS_ASKED;
    if (!release->end) return 1;
    int error = vendor->functions.GetVersion(device->handle, &version);
    if (!error && version >= release->least && version < release->end) return 1;
    int tried = !error && version >= release->end && version < release->newest;
    if (tried && passes(gpu, device)) return 1;
    char text[160];
    stw_text all = stw_text_in(text, sizeof text);
    stw_text_add(&all, "%s is version %d.%d.%d%s, accepted: %s", vendor->dso.soname, version / 100000,
                 version / 100 % 1000, version % 100, tried ? ", whose trial product is wrong" : "", release->between);
    return refuse(vendor, text);
}

/* The device's part with a handle, or NULL with the reason. */
static blas_device *device_start(stw_gpu *gpu, stw_text *why) {
    stw_blas_vendor *vendor = gpu->ops->blas;
    blas_device *device = gpu->blas;
    if (device && device->handle) return device;
    if (!device && !(gpu->blas = device = calloc(1, sizeof *device))) {
        stw_text_add(why, "no memory");
        return NULL;
    }
    const stw_blas_release *release = vendor->release(gpu);
    int cancel = stw_lock(&vendor->lock);
    if (vendor->state == BLAS_UNTRIED && !device->load_failed)
        device->load_failed = !load(vendor, release, gpu->ops->who);
    if (vendor->state == BLAS_UNTRIED) {
        stw_text_add(why, "no %s is found", vendor->name);
    } else if (vendor->state != BLAS_REFUSED) {
        int there = !vendor->room || vendor->room(gpu);
        int error = there ? vendor->functions.Create(&device->handle) : -1;
        if (error) device->handle = NULL;
        if (!device->handle)
            stw_text_add(why, "no handle of %s (%s)", vendor->dso.soname,
                         there ? "it fails" : "no memory, or a stream is captured");
        else if (!version_fits(gpu, device, release)) {
            if (device->handle) vendor->functions.Destroy(device->handle);
            device->handle = NULL;
        }
    }
    if (vendor->state == BLAS_REFUSED) stw_text_add(why, "%s", vendor->reason);
    stw_unlock(&vendor->lock, cancel);
    return device->handle ? device : NULL;
}

const stw_gpu_product *stw_blas_find(stw_gpu *gpu, const stw_gpu_shape *shape, stw_text *why) {
    stw_blas_vendor *vendor = gpu->ops->blas;
    const char *refusal = vendor->refusal ? vendor->refusal(gpu, shape) : NULL;
    if (refusal) {
        stw_text_add(why, "%s", refusal);
        return NULL;
    }
    int cancel = stw_lock(&gpu->lock);
    blas_device *device = device_start(gpu, why);
    blas_product *p = device ? device->products : NULL;
    while (p && memcmp(&p->base.shape, shape, sizeof *shape)) p = p->next;
    int found = p != NULL;
    if (device && !p && (p = product_make(gpu, device, shape, why))) {
        p->next = device->products;
        device->products = p;
    }
    if (!found && vendor->settle) vendor->settle(gpu);
    stw_unlock(&gpu->lock, cancel);
    return p ? &p->base : NULL;
}

void stw_blas_end(stw_gpu *gpu, int alive) {
    blas_device *device = gpu->blas;
    const stw_blas_functions *f = &gpu->ops->blas->functions;
    for (blas_product *p = device ? device->products : NULL, *next; p; p = next) {
        next = p->next;
        if (alive) undescribe(f, p);
        free(p);
    }
    if (device && alive && device->handle) f->Destroy(device->handle);
    free(device);
    gpu->blas = NULL;
}

/* ---- running ---- */

/* The default stream has two names. That of each thread is one name for many. */
enum { STREAM_DEFAULT = 1, STREAM_PER_THREAD = 2 };

int stw_blas_claim(stw_gpu *gpu, const stw_gpu_product *product, stw_stream stream) {
    const stw_blas_vendor *vendor = gpu->ops->blas;
    const blas_product *p = (const blas_product *)product;
    blas_device *device = gpu->blas;
    if (!vendor->capturing) return 1;
    uintptr_t mine = stream ? (uintptr_t)stream : STREAM_DEFAULT, owner = atomic_load(&device->stream);
    if (mine == STREAM_PER_THREAD || (owner && owner != mine)) return 0;
    if (!atomic_load(&p->warm) && vendor->capturing(gpu, stream)) return 0;
    if (!owner && !atomic_compare_exchange_strong(&device->stream, &owner, mine) && owner != mine) return 0;
    return !atomic_exchange(&device->busy, 1);
}

stw_status stw_blas_run(stw_gpu *gpu, const stw_gpu_product *product, const stw_gpu_operands *o, stw_stream stream) {
    stw_blas_vendor *vendor = gpu->ops->blas;
    blas_product *p = (blas_product *)product;
    blas_device *device = gpu->blas;
    float one = 1.0f, before = o->accumulate ? 1.0f : 0.0f;
    int error = vendor->functions.Matmul(device->handle, p->desc, &one, o->b, p->a, o->a, p->b, &before, o->c, p->c,
                                         o->c, p->c, p->algorithm, o->workspace, p->base.workspace, stream);
    if ((error || !atomic_load(&p->warm)) && vendor->settle) vendor->settle(gpu);
    if (!error) atomic_store(&p->warm, 1);
    if (vendor->capturing) atomic_store(&device->busy, 0);
    return error ? stw_fail(STW_E_DRIVER, "jagged_bwd: %sMatmul failed: status %d", vendor->prefix, error) : STW_OK;
}
