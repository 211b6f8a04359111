/* SPDX-License-Identifier: MIT
 *
 * The fake libcuda.so.1, the half about work: primary contexts, modules, launches, memory and streams. Memory
 * is the host's, a launch runs nothing (unless fake_launch is linked: tests/sm80_emu) and is logged as
 * "launch NAME", with the tensor maps that kernels of an sm90 image have (cuda_maps.c). Handles are checked
 * as the real driver does, and what was never given back is logged when the process ends: "left WHAT N". */
#include "cuda.h"

enum { DEVICES = 8, BLOCKS = 256, MODULES = 16, FUNCTIONS = 256, DEPTH = 16 };
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500
};

typedef struct fake_context {
    int retained, ordinal;
} fake_context;
#define FATBIN "\x50\xed\x55\xba" /* how nvcc's containers begin */

/* `sm90`: of the image whose bytes begin so. Such modules hold kernels with "_sm90_" in their names, others the
 * rest; `compiled`: nvcc's, which is not read and holds whatever is asked for. */
typedef struct fake_module {
    fake_context *context;
    int sm90, compiled;
} fake_module;
typedef struct fake_function {
    char name[96];
    fake_module *module;
    int smem;
} fake_function;
typedef struct fake_stream {
    fake_context *context;
    struct fake_graph *capturing;
} fake_stream;
typedef struct fake_event {
    fake_context *context;
} fake_event;
enum { HOST = 1, DEVICE = 2 };
typedef struct fake_block {
    char *at;
    size_t bytes;
    fake_context *context;
    int type, managed; /* as cuPointerGetAttributes tells them */
} fake_block;

static fake_context contexts[DEVICES];
static fake_module modules[MODULES];
static fake_function functions[FUNCTIONS];
static fake_block blocks[BLOCKS];
static int streams, events, block_count;
static _Thread_local fake_context *stack[DEPTH];
static _Thread_local int depth;

static fake_context *current(void) { return depth ? stack[depth - 1] : NULL; }

/* What every function here begins with. */
static int begin(const char *function) {
    if (fake_fast()) return 0; /* asking for the process costs more than a run call */
    int error = fake_call(function);
    if (!error) error = fake_cuda_started();
    return error;
}

static int begin_in_context(const char *function) {
    int error = begin(function);
    return error ? error : current() ? 0 : INVALID_CONTEXT;
}

static void left(const char *what, int count) {
    char line[96];
    snprintf(line, sizeof line, "left %s %d", what, count);
    if (count) fake_log(line);
}

__attribute__((destructor)) static void report(void) {
    int retained = 0, allocated = 0, loaded = 0;
    for (int i = 0; i < MODULES; ++i) loaded += modules[i].context != NULL;
    for (int i = 0; i < DEVICES; ++i) retained += contexts[i].retained;
    for (int i = 0; i < BLOCKS; ++i) allocated += blocks[i].at != NULL;
    if (fake_cuda_started()) return; /* a child's copy */
    left("contexts", retained);
    left("blocks", allocated);
    left("modules", loaded);
    left("streams", streams);
    left("events", events);
    left("pushes", depth);
}

/* The emulator's: runs the kernel and gives the launch's error. */
__attribute__((weak)) int fake_launch(const char *name, unsigned grid_x, unsigned grid_y, unsigned block, unsigned smem,
                                      void *const *parameters);

int cuGetProcAddress_v2(const char *name, void **function_out, int abi, uint64_t flags, int *found_out);
int cuDevicePrimaryCtxRetain(void **context_out, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context_out);
int cuCtxGetCurrent(void **context_out);
int cuModuleLoadDataEx(void **module_out, const void *image, unsigned count, int *options, void **values);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **function_out, void *module, const char *name);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuFuncLoad(void *function);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **parameters, void **extra);
/* CUlaunchConfig with CUlaunchAttribute */
typedef struct launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem;
    void *stream;
    struct {
        int id, pad, allowed, rest[15];
    } *attributes;
    unsigned attribute_count;
} launch_config;
int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra);
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t pointer);
int cuMemAlloc_v2(uint64_t *pointer_out, size_t bytes);
int cuMemFree_v2(uint64_t pointer);
int cuMemAllocManaged(uint64_t *pointer_out, size_t bytes, unsigned flags);
int cuMemAllocAsync(uint64_t *pointer_out, size_t bytes, void *stream);
int cuMemFreeAsync(uint64_t pointer, void *stream);
int cuMemHostAlloc(void **pointer_out, size_t bytes, unsigned flags);
int cuMemFreeHost(void *pointer);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream);
int cuCtxCreate_v2(void **context_out, unsigned flags, int device);
int cuCtxDestroy_v2(void *context);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuStreamCreate(void **stream_out, unsigned flags);
int cuStreamCreateWithPriority(void **stream_out, unsigned flags, int priority);
int cuStreamGetCtx(void *stream, void **context_out);
int cuStreamSynchronize(void *stream);
int cuStreamDestroy_v2(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **event_out, unsigned flags);
int cuEventRecord(void *event, void *stream);
int cuEventDestroy_v2(void *event);

/* Not logged: it is called once for every function. Gives this library's own, and 1 (not found) for the rest.
 */
int cuGetProcAddress_v2(const char *name, void **function_out, int abi, uint64_t flags, int *found_out) {
    char versioned[96];
    if (getenv("FAKE_NO_PROC_ADDRESS")) return 999;
    if (abi != 12000 || flags) return INVALID_VALUE;
    Dl_info info;
    if (!dladdr((void *)contexts, &info)) abort();
    void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *found = dlsym(self, versioned);
    if (!found) found = dlsym(self, name);
    dlclose(self);
    *function_out = found;
    *found_out = found ? 0 : 1;
    return found ? 0 : 500;
}

int cuDevicePrimaryCtxRetain(void **context_out, int device) {
    cuda_device facts;
    int error = begin("cuDevicePrimaryCtxRetain"), ordinal = device - FAKE_CUDA_HANDLE;
    if (!error && (ordinal >= DEVICES || !fake_cuda_device_at(ordinal, &facts))) error = INVALID_DEVICE;
    if (error) return error;
    contexts[ordinal].ordinal = ordinal;
    contexts[ordinal].retained++;
    *context_out = &contexts[ordinal];
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    int error = begin("cuDevicePrimaryCtxRelease_v2"), ordinal = device - FAKE_CUDA_HANDLE;
    if (!error && (ordinal < 0 || ordinal >= DEVICES || contexts[ordinal].retained < 1)) error = INVALID_CONTEXT;
    if (!error) contexts[ordinal].retained--;
    return error;
}

int cuCtxPushCurrent_v2(void *context) {
    int error = begin("cuCtxPushCurrent_v2");
    if (!error && (!context || ((fake_context *)context)->retained < 1 || depth == DEPTH)) error = INVALID_CONTEXT;
    if (!error) stack[depth++] = context;
    return error;
}

/* Takes the context away also when it is told to fail: what it left behind is then no fault of the caller. */
int cuCtxPopCurrent_v2(void **context_out) {
    int error = begin("cuCtxPopCurrent_v2");
    if (!depth) return INVALID_CONTEXT;
    *context_out = stack[--depth];
    return error;
}

int cuCtxGetCurrent(void **context_out) {
    *context_out = current();
    return 0;
}

/* Another context of the device, current from now on. */
int cuCtxCreate_v2(void **context_out, unsigned flags, int device) {
    cuda_device facts;
    int error = begin("cuCtxCreate_v2"), ordinal = device - FAKE_CUDA_HANDLE;
    if (!error && (flags || depth == DEPTH || !fake_cuda_device_at(ordinal, &facts))) error = INVALID_VALUE;
    fake_context *made = error ? NULL : malloc(sizeof *made);
    if (!made) return error ? error : OUT_OF_MEMORY;
    *made = (fake_context){1, ordinal};
    *context_out = stack[depth++] = made;
    return 0;
}

int cuCtxDestroy_v2(void *context) {
    int error = begin("cuCtxDestroy_v2");
    if (error) return error;
    if (context == current()) depth--;
    free(context);
    return 0;
}

int cuModuleLoadDataEx(void **module_out, const void *image, unsigned count, int *options, void **values) {
    int error = begin_in_context("cuModuleLoadDataEx");
    if (!error) error = fake_unsafe();
    for (unsigned i = 0; error && i < count; ++i)
        if (options[i] == 5) snprintf(values[i], 32, "ptxas says no\nsecond line");
    if (error) return error;
    if (!image) return INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    int i = 0;
    while (i < MODULES && modules[i].context) ++i;
    if (i == MODULES) abort();
    modules[i] = (fake_module){current(), !strncmp(image, "sm90", 4), !strncmp(image, FATBIN, 4)};
    pthread_mutex_unlock(&fake_lock);
    *module_out = &modules[i];
    return 0;
}

int cuModuleUnload(void *module) {
    int error = begin_in_context("cuModuleUnload");
    fake_module *m = module;
    if (!error && (!m || m->context != current())) error = INVALID_HANDLE;
    if (error) return error;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FUNCTIONS; ++i)
        if (functions[i].module == m) functions[i].module = NULL;
    m->context = NULL;
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int cuModuleGetFunction(void **function_out, void *module, const char *name) {
    int error = begin_in_context("cuModuleGetFunction");
    fake_module *m = module;
    if (!error && (!m || m->context != current())) error = INVALID_HANDLE;
    if (!error && !fake_launch && !m->compiled && m->sm90 != (strstr(name, "_sm90") != NULL)) error = NOT_FOUND;
    if (error) return error;
    fake_function *found = NULL, *unused = NULL;
    pthread_mutex_lock(&fake_lock);
    for (int i = FUNCTIONS - 1; i >= 0; --i)
        if (!functions[i].module) unused = &functions[i];
        else if (functions[i].module == m && !strcmp(functions[i].name, name)) found = &functions[i];
    if (!found) {
        if (!unused) abort();
        found = unused;
        snprintf(found->name, sizeof found->name, "%s", name);
        found->module = m;
        found->smem = 48 * 1024;
    }
    pthread_mutex_unlock(&fake_lock);
    *function_out = found;
    return 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    fake_function *f = function;
    cuda_device facts;
    int error = begin_in_context("cuFuncSetAttribute");
    if (error) return error;
    if (!f->module) return INVALID_HANDLE;
    if (attribute != 8 || !fake_cuda_device_at(f->module->context->ordinal, &facts) || value > facts.smem)
        return INVALID_VALUE;
    f->smem = value;
    return 0;
}

int cuFuncLoad(void *function) {
    int error = begin_in_context("cuFuncLoad");
    return error || function ? error : INVALID_HANDLE;
}

static int stream_is_here(void *stream) {
    return (uintptr_t)stream <= 2 || ((fake_stream *)stream)->context == current();
}

/* sm90's main loops have tensor maps as their second argument, but for those of few rows. */
static int takes_maps(const char *name) { return strstr(name, "_bwd_sm90_") && !strstr(name, "_sm90_few"); }
/* This driver checks and logs the maps of images in its own format. The emulator reads those of nvcc's. */
static int has_maps(const fake_function *f) { return f->module->sm90 && takes_maps(f->name); }

int fake_do(const fake_work *work) {
    if (!work->function && work->from) memmove(work->to, work->from, work->bytes);
    if (!work->function && !work->from) memset(work->to, work->value, work->bytes);
    if (!work->function) return 0;
    void *const parameters[] = {(void *)work->argument, (void *)work->maps};
    if (fake_launch)
        return fake_launch(work->function, work->grid_x, work->grid_y, work->block, work->smem, parameters);
    if (fake_fast()) return 0;
    char line[128];
    snprintf(line, sizeof line, "launch %s", work->function);
    fake_log(line);
    if (work->maps && work->logged) fake_maps_log(work->maps);
    return 0;
}

struct fake_graph **fake_capturing(void *stream) {
    static struct fake_graph *none;
    if (!stream_is_here(stream)) return NULL;
    return (uintptr_t)stream <= 2 ? &none : &((fake_stream *)stream)->capturing;
}

/* Work into a stream that is one of the current context. */
static int put(const fake_work *work, void *stream) {
    struct fake_graph *graph = (uintptr_t)stream <= 2 ? NULL : ((fake_stream *)stream)->capturing;
    return graph ? fake_capture(graph, work) : fake_do(work);
}

static int launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned smem, void *stream, void **parameters, void **extra) {
    fake_function *f = function;
    if (!f->module || f->module->context != current() || !stream_is_here(stream)) return INVALID_HANDLE;
    if (!grid_x || grid_x > 0x7fffffffu || !grid_y || grid_y > 65535 || grid_z != 1 || !block_x || block_x > 1024 ||
        block_y != 1 || block_z != 1 || block_x % 32 || smem > (unsigned)f->smem || !parameters || !parameters[0] ||
        extra || (has_maps(f) && !fake_maps_are_good(parameters[1])))
        return INVALID_VALUE;
    fake_work work = {.function = f->name,
                      .grid_x = grid_x,
                      .grid_y = grid_y,
                      .block = block_x,
                      .smem = smem,
                      .argument = parameters[0],
                      .maps = takes_maps(f->name) ? parameters[1] : NULL,
                      .logged = has_maps(f)};
    return put(&work, stream);
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **parameters, void **extra) {
    int error = begin_in_context("cuLaunchKernel");
    return error ? error
                 : launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, smem, stream, parameters, extra);
}

/* Takes one attribute, the early start. Kernels run one behind the other here all the same. */
int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
    const launch_config *c = config;
    int error = begin_in_context("cuLaunchKernelEx");
    if (error) return error;
    if (!c || c->attribute_count != 1 || c->attributes->id != 6 || c->attributes->allowed != 1) return INVALID_VALUE;
    return launch(function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->smem, c->stream,
                  parameters, extra);
}

static fake_block *block_of(uint64_t pointer) {
    for (int i = 0; i < block_count; ++i)
        if (blocks[i].at && pointer - (uintptr_t)blocks[i].at < blocks[i].bytes) return &blocks[i];
    return NULL;
}

/* As the real one: no error for a pointer that it does not know, but no memory type either. */
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t pointer) {
    int error = begin_in_context("cuPointerGetAttributes");
    if (error) return error;
    pthread_mutex_lock(&fake_lock);
    const fake_block *block = block_of(pointer);
    int ordinal = block ? block->context->ordinal : -2, type = block ? block->type : 0,
        managed = block && block->managed;
    pthread_mutex_unlock(&fake_lock);
    for (unsigned i = 0; i < count; ++i) switch (attributes[i]) {
        case 2: *(unsigned *)values[i] = (unsigned)type; break;
        case 8: *(unsigned char *)values[i] = (unsigned char)managed; break;
        case 9: *(int *)values[i] = ordinal; break;
        default: return INVALID_VALUE;
        }
    return 0;
}

static int allocate(const char *call, uint64_t *pointer_out, size_t bytes, int type, int managed) {
    int error = begin_in_context(call), i = 0;
    if (!error) error = fake_unsafe();
    if (error) return error;
    if (!bytes) return INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    while (i < BLOCKS && blocks[i].at) ++i;
    char *at = i < BLOCKS && bytes < (size_t)1 << 32 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    if (at) blocks[i] = (fake_block){at, bytes, current(), type, managed};
    if (at && i >= block_count) block_count = i + 1;
    pthread_mutex_unlock(&fake_lock);
    *pointer_out = (uintptr_t)at;
    return at ? 0 : OUT_OF_MEMORY;
}

static int release(const char *call, uint64_t pointer, int type) {
    int error = begin_in_context(call);
    if (!error) error = fake_unsafe();
    if (error) return error;
    pthread_mutex_lock(&fake_lock);
    fake_block *block = block_of(pointer);
    if (!block || (uintptr_t)block->at != pointer || block->type != type) error = INVALID_VALUE;
    else {
        free(block->at);
        block->at = NULL;
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int cuMemAlloc_v2(uint64_t *pointer_out, size_t bytes) {
    return allocate("cuMemAlloc_v2", pointer_out, bytes, DEVICE, 0);
}

int cuMemFree_v2(uint64_t pointer) { return release("cuMemFree_v2", pointer, DEVICE); }

int cuMemAllocManaged(uint64_t *pointer_out, size_t bytes, unsigned flags) {
    return flags == 1 ? allocate("cuMemAllocManaged", pointer_out, bytes, DEVICE, 1) : INVALID_VALUE;
}

/* A pool's memory is there at once. */
int cuMemAllocAsync(uint64_t *pointer_out, size_t bytes, void *stream) {
    return stream_is_here(stream) ? allocate("cuMemAllocAsync", pointer_out, bytes, DEVICE, 0) : INVALID_HANDLE;
}

int cuMemFreeAsync(uint64_t pointer, void *stream) {
    return stream_is_here(stream) ? release("cuMemFreeAsync", pointer, DEVICE) : INVALID_HANDLE;
}

int cuMemHostAlloc(void **pointer_out, size_t bytes, unsigned flags) {
    uint64_t pointer = 0;
    int error = flags ? INVALID_VALUE : allocate("cuMemHostAlloc", &pointer, bytes, HOST, 0);
    *pointer_out = (void *)(uintptr_t)pointer;
    return error;
}

int cuMemFreeHost(void *pointer) { return release("cuMemFreeHost", (uintptr_t)pointer, HOST); }

static int copy(const char *call, void *to, const void *from, size_t bytes, void *stream) {
    int error = begin_in_context(call);
    if (!error && !stream_is_here(stream)) error = INVALID_HANDLE;
    fake_work work = {.to = to, .from = from, .bytes = bytes};
    return error || !bytes ? error : put(&work, stream);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return copy("cuMemcpyAsync", (void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, stream);
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    int unsafe = fake_unsafe();
    return unsafe ? unsafe : copy("cuMemcpyHtoD_v2", (void *)(uintptr_t)to, from, bytes, NULL);
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    int unsafe = fake_unsafe();
    return unsafe ? unsafe : copy("cuMemcpyDtoH_v2", to, (const void *)(uintptr_t)from, bytes, NULL);
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    int error = begin_in_context("cuMemsetD8Async");
    if (!error && !stream_is_here(stream)) error = INVALID_HANDLE;
    fake_work work = {.to = (char *)(uintptr_t)to, .bytes = bytes, .value = value};
    return error ? error : put(&work, stream);
}

static int create_stream(const char *call, void **stream_out, unsigned flags) {
    int error = begin_in_context(call);
    if (!error && flags > 1) error = INVALID_VALUE;
    fake_stream *stream = error ? NULL : malloc(sizeof *stream);
    if (!stream) return error ? error : OUT_OF_MEMORY;
    *stream = (fake_stream){current(), NULL};
    __atomic_fetch_add(&streams, 1, __ATOMIC_RELAXED);
    *stream_out = stream;
    return 0;
}

int cuStreamCreate(void **stream_out, unsigned flags) { return create_stream("cuStreamCreate", stream_out, flags); }

int cuStreamCreateWithPriority(void **stream_out, unsigned flags, int priority) {
    (void)priority; /* clamped to the driver's range, whatever it is */
    return create_stream("cuStreamCreateWithPriority", stream_out, flags);
}

int cuStreamGetCtx(void *stream, void **context_out) {
    int error = begin_in_context("cuStreamGetCtx");
    if (!error) *context_out = (uintptr_t)stream <= 2 ? current() : ((fake_stream *)stream)->context;
    return error;
}

int cuStreamSynchronize(void *stream) {
    int error = begin_in_context("cuStreamSynchronize");
    if (!error) error = fake_unsafe();
    return error || stream_is_here(stream) ? error : INVALID_HANDLE;
}

int cuStreamDestroy_v2(void *stream) {
    int error = begin_in_context("cuStreamDestroy_v2");
    if (error) return error;
    if ((uintptr_t)stream <= 2) return INVALID_HANDLE;
    free(stream);
    __atomic_fetch_sub(&streams, 1, __ATOMIC_RELAXED);
    return 0;
}

int cuEventCreate(void **event_out, unsigned flags) {
    int error = begin_in_context("cuEventCreate");
    if (!error && flags != 2) error = INVALID_VALUE; /* times cost, and are not asked for */
    fake_event *event = error ? NULL : malloc(sizeof *event);
    if (!event) return error ? error : OUT_OF_MEMORY;
    event->context = current();
    __atomic_fetch_add(&events, 1, __ATOMIC_RELAXED);
    *event_out = event;
    return 0;
}

int cuEventRecord(void *event, void *stream) {
    int error = begin_in_context("cuEventRecord");
    if (error) return error;
    return ((fake_event *)event)->context == current() && stream_is_here(stream) ? 0 : INVALID_HANDLE;
}

/* The event may be another context's. */
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    int error = begin_in_context("cuStreamWaitEvent");
    if (error) return error;
    return !flags && event && stream_is_here(stream) ? 0 : INVALID_HANDLE;
}

int cuEventDestroy_v2(void *event) {
    int error = begin_in_context("cuEventDestroy_v2");
    if (error) return error;
    free(event);
    __atomic_fetch_sub(&events, 1, __ATOMIC_RELAXED);
    return 0;
}
