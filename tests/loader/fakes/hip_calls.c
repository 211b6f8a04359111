/* SPDX-License-Identifier: MIT
 *
 * The fake libamdhip64, the half about work: the current device, modules, launches, memory and streams.
 * Memory is the host's, a launch runs nothing and is logged as "launch NAME". Handles are checked as the real
 * runtime does, and what was never given back is logged when the process ends: "left WHAT N".
 * FAKE_HIP_CURRENT is the device a thread finds current; the first byte of an allocation decides what memory
 * it says it is: 'M' managed, 'H' page-locked host memory, 'F', 'U', 'C' and 'X' of hipExtMallocWithFlags:
 * fine-grained, uncached, contiguous and one that is not known yet; 'V' and 'R' of hipMemMap, for writing and for
 * reading alone, which hipPointerGetAttributes does not know; 'P' pageable memory, of the one object that the
 * runtime has for it. FAKE_HIP_POINTER_TYPE is the type of device memory in a runtime that numbers anew. */
#include "hip.h"

#include "file_behind.h"

enum { DEVICES = 8, BLOCKS = 256, FUNCTIONS = 256 };
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    NO_FILE = 301,
    INVALID_HANDLE = 400,
    NO_STREAM = 709
};

typedef struct fake_module {
    int device;
} fake_module;
typedef struct fake_function {
    char name[96];
    fake_module *module;
} fake_function;
typedef struct fake_stream {
    int device, alive;
} fake_stream;
typedef struct fake_block {
    char *at;
    size_t bytes;
    int device;
} fake_block;

static fake_function functions[FUNCTIONS];
static fake_block blocks[BLOCKS];
static fake_stream pool[4096],
    event_pool[4096]; /* never freed, and no leak: a lost device's streams are not destroyed */
static int modules, streams, events, function_count, block_count;
static _Thread_local int set_device = -1, last_error;

int fake_hip_error(int error) {
    if (error) last_error = error;
    return error;
}

static int current(void) {
    const char *given = set_device < 0 && !fake_fast() ? getenv("FAKE_HIP_CURRENT") : NULL;
    return set_device >= 0 ? set_device : given ? atoi(given) : 0;
}

/* What every function here begins with. */
static int begin(const char *function) {
    if (fake_fast()) return 0; /* asking for the process costs more than a run call */
    int error = fake_call(function);
    if (!error) error = fake_hip_started();
    return fake_hip_error(error);
}

static void left(const char *what, int count) {
    char line[96];
    snprintf(line, sizeof line, "left %s %d", what, count);
    if (count) fake_log(line);
}

__attribute__((destructor)) static void report(void) {
    int allocated = 0;
    for (int i = 0; i < BLOCKS; ++i) allocated += blocks[i].at != NULL;
    if (fake_hip_started()) return; /* a child's copy */
    left("blocks", allocated);
    left("modules", modules);
    left("streams", streams);
    left("events", events);
}

void hipFakeState(int *device, int *error);
int hipGetLastError(void);
int hipGetDevice(int *device);
int hipSetDevice(int device);
int hipModuleLoadData(void **module_out, const void *image);
int hipModuleUnload(void *module);
int hipModuleGetFunction(void **function_out, void *module, const char *name);
int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **parameters,
                          void **extra);
int hipPointerGetAttributes(void *attributes, const void *pointer);
int hipMemGetAccess(unsigned long long *access, const void *location, void *pointer);
int hipMemGetAddressRange(void **base_out, size_t *bytes_out, void *pointer);
int hipMalloc(void **pointer_out, size_t bytes);
int hipFree(void *pointer);
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int hipStreamCreateWithFlags(void **stream_out, unsigned flags);
int hipStreamCreateWithPriority(void **stream_out, unsigned flags, int priority);
int hipStreamGetDevice(void *stream, int *device);
int hipStreamIsCapturing(void *stream, int *status);
int hipStreamSynchronize(void *stream);
int hipStreamDestroy(void *stream);
int hipStreamWaitEvent(void *stream, void *event, unsigned flags);
int hipEventCreateWithFlags(void **event_out, unsigned flags);
int hipEventRecord(void *event, void *stream);
int hipEventDestroy(void *event);

/* For the test program alone: neither logged nor told to fail. */
void hipFakeState(int *device, int *error) {
    *device = current();
    *error = last_error;
}

int hipGetLastError(void) {
    int error = last_error;
    fake_call("hipGetLastError");
    last_error = 0;
    return error;
}

int hipGetDevice(int *device) {
    int error = begin("hipGetDevice");
    if (!error) *device = current();
    return error;
}

/* Told to fail, it still goes back to the device that was current at first: what it left behind would be no
 * fault of the caller. */
int hipSetDevice(int device) {
    hip_device facts;
    int error = begin("hipSetDevice");
    if (!fake_fast() && !fake_hip_device_at(device, &facts)) return fake_hip_error(INVALID_DEVICE);
    set_device = error ? -1 : device;
    return error;
}

int hipModuleLoadData(void **module_out, const void *image) {
    int error = begin("hipModuleLoadData");
    if (!error && !image) error = INVALID_VALUE;
    if (!error && file_behind(image)) error = NO_FILE;
    fake_module *module = error ? NULL : malloc(sizeof *module);
    if (!module) return fake_hip_error(error ? error : OUT_OF_MEMORY);
    module->device = current();
    ++modules;
    *module_out = module;
    return 0;
}

int hipModuleUnload(void *module) {
    int error = begin("hipModuleUnload");
    if (!error && ((fake_module *)module)->device != current()) error = INVALID_HANDLE;
    if (error) return fake_hip_error(error);
    free(module);
    --modules;
    return 0;
}

int hipModuleGetFunction(void **function_out, void *module, const char *name) {
    int error = begin("hipModuleGetFunction");
    if (error) return error;
    pthread_mutex_lock(&fake_lock);
    int i = 0;
    while (i < function_count && (strcmp(functions[i].name, name) || functions[i].module != module)) ++i;
    if (i == FUNCTIONS) abort();
    if (i == function_count) {
        snprintf(functions[i].name, sizeof functions[i].name, "%s", name);
        functions[i].module = module;
        ++function_count;
    }
    pthread_mutex_unlock(&fake_lock);
    *function_out = &functions[i];
    return 0;
}

/* As ROCm 5 and 6: "context is destroyed" for what is no stream, or none any more. */
static int stream_error(void *stream) {
    if ((uintptr_t)stream <= 2) return 0;
    size_t at = (uintptr_t)stream - (uintptr_t)pool;
    if (at >= sizeof pool || at % sizeof pool[0] || !((fake_stream *)stream)->alive) return NO_STREAM;
    return ((fake_stream *)stream)->device == current() ? 0 : INVALID_HANDLE;
}

int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned smem, void *stream, void **parameters,
                          void **extra) {
    fake_function *f = function;
    int error = begin("hipModuleLaunchKernel");
    if (error) return error;
    error = f->module->device != current() ? INVALID_HANDLE : stream_error(stream);
    if (error) return fake_hip_error(error);
    if (!grid_x || (uint64_t)grid_x * block_x > 0xffffffffu || !grid_y || grid_y > 65535 || grid_z != 1 || !block_x ||
        block_x > 1024 || block_y != 1 || block_z != 1 || block_x % 64 || smem > 65536 || !parameters ||
        !parameters[0] || extra)
        return fake_hip_error(INVALID_VALUE);
    if (fake_fast()) return 0;
    char line[128];
    snprintf(line, sizeof line, "launch %s", f->name);
    fake_log(line);
    return 0;
}

static fake_block *block_of(const void *pointer) {
    for (int i = 0; i < block_count; ++i)
        if (blocks[i].at && (uintptr_t)pointer - (uintptr_t)blocks[i].at < blocks[i].bytes) return &blocks[i];
    return NULL;
}

/* As the real one: an error for a pointer that it does not know; the types count otherwise since ROCm 6. */
int hipPointerGetAttributes(void *attributes, const void *pointer) {
    struct {
        int type, device;
        void *device_pointer, *host_pointer;
        int managed;
        unsigned flags;
    } about = {0};
    int error = begin("hipPointerGetAttributes"), old = !fake_fast() && fake_hip_version() < 60000000;
    if (error) return error;
    const fake_block *block = block_of(pointer);
    if (!block) return fake_hip_error(INVALID_VALUE);
    if (*block->at == 'V' || *block->at == 'R') return fake_hip_error(OUT_OF_MEMORY);
    int kind = *block->at == 'M' ? 3 : *block->at == 'H' ? 1 : 2;
    static const unsigned flags[] = {['F'] = 1, ['U'] = 3, ['C'] = 4, ['X'] = 0x10};
    static const int in_5[] = {0, 0, 1, 4};
    about.type = old ? in_5[kind] : kind;
    about.device = *block->at == 'P' ? 0 : block->device;
    about.device_pointer = (void *)(uintptr_t)pointer;
    if (kind == 2 && getenv("FAKE_HIP_POINTER_TYPE")) about.type = atoi(getenv("FAKE_HIP_POINTER_TYPE"));
    about.managed = kind == 3;
    about.flags = (unsigned char)*block->at < sizeof flags / sizeof flags[0] ? flags[(unsigned char)*block->at] : 0;
    memcpy(attributes, &about, sizeof about);
    return 0;
}

/* Of memory that hipMemMap mapped; all of it is device 0's. */
int hipMemGetAccess(unsigned long long *access, const void *location, void *pointer) {
    const int *where = location;
    int error = begin("hipMemGetAccess");
    if (error) return error;
    const fake_block *block = block_of(pointer);
    if (!block || (*block->at != 'V' && *block->at != 'R') || where[0] != 1) return fake_hip_error(INVALID_VALUE);
    *access = where[1] ? 0 : *block->at == 'V' ? 3 : 1;
    return 0;
}

int hipMemGetAddressRange(void **base_out, size_t *bytes_out, void *pointer) {
    int error = begin("hipMemGetAddressRange");
    if (error) return error;
    const fake_block *block = block_of(pointer);
    if (!block) return fake_hip_error(INVALID_VALUE);
    *base_out = *block->at == 'P' ? (void *)0x100 : (void *)block->at;
    *bytes_out = *block->at == 'P' ? SIZE_MAX - 0x100 : block->bytes;
    return 0;
}

int hipMalloc(void **pointer_out, size_t bytes) {
    int error = begin("hipMalloc"), i = 0;
    if (error) return error;
    if (!bytes) return fake_hip_error(INVALID_VALUE);
    pthread_mutex_lock(&fake_lock);
    while (i < BLOCKS && blocks[i].at) ++i;
    char *at = i < BLOCKS && bytes < (size_t)1 << 32 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    if (at) *at = 0;
    if (at) blocks[i] = (fake_block){at, bytes, current()};
    if (at && i >= block_count) block_count = i + 1;
    pthread_mutex_unlock(&fake_lock);
    *pointer_out = at;
    return at ? 0 : fake_hip_error(OUT_OF_MEMORY);
}

int hipFree(void *pointer) {
    int error = begin("hipFree");
    fake_block *block = error ? NULL : block_of(pointer);
    if (error) return error;
    if (!block || block->at != pointer) return fake_hip_error(INVALID_VALUE);
    free(block->at);
    block->at = NULL;
    return 0;
}

int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    int error = begin("hipMemcpyAsync");
    if (!error && kind != 4) error = INVALID_VALUE;
    if (!error) error = stream_error(stream);
    if (!error) memmove(to, from, bytes);
    return fake_hip_error(error);
}

static int create_stream(const char *call, void **stream_out, unsigned flags) {
    int error = begin(call);
    if (!error && flags > 1) error = INVALID_VALUE;
    static unsigned taken;
    unsigned number = error ? 0 : __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    if (error || number >= sizeof pool / sizeof pool[0]) return fake_hip_error(error ? error : OUT_OF_MEMORY);
    fake_stream *stream = &pool[number];
    stream->device = current();
    stream->alive = 1;
    ++streams;
    *stream_out = stream;
    return 0;
}

int hipStreamCreateWithFlags(void **stream_out, unsigned flags) {
    return create_stream("hipStreamCreateWithFlags", stream_out, flags);
}

int hipStreamCreateWithPriority(void **stream_out, unsigned flags, int priority) {
    (void)priority; /* clamped to the runtime's range, whatever it is */
    return create_stream("hipStreamCreateWithPriority", stream_out, flags);
}

int hipStreamGetDevice(void *stream, int *device) {
    int error = begin("hipStreamGetDevice");
    if (!error && stream_error(stream) == NO_STREAM) error = fake_hip_error(NO_STREAM);
    if (!error) *device = (uintptr_t)stream <= 2 ? current() : ((fake_stream *)stream)->device;
    return error;
}

int hipStreamIsCapturing(void *stream, int *status) {
    int error = begin("hipStreamIsCapturing");
    *status = 0;
    return error ? error : fake_hip_error(stream_error(stream));
}

int hipStreamSynchronize(void *stream) {
    int error = begin("hipStreamSynchronize");
    return error ? error : fake_hip_error(stream_error(stream));
}

int hipStreamDestroy(void *stream) {
    int error = begin("hipStreamDestroy");
    if (error) return error;
    if ((uintptr_t)stream <= 2) return fake_hip_error(INVALID_HANDLE);
    if (stream_error(stream) == NO_STREAM) return fake_hip_error(NO_STREAM);
    ((fake_stream *)stream)->alive = 0;
    --streams;
    return 0;
}

int hipEventCreateWithFlags(void **event_out, unsigned flags) {
    int error = begin("hipEventCreateWithFlags");
    if (!error && flags != 2) error = INVALID_VALUE; /* times cost, and are not asked for */
    static unsigned taken;
    unsigned number = error ? 0 : __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    if (error || number >= sizeof event_pool / sizeof event_pool[0])
        return fake_hip_error(error ? error : OUT_OF_MEMORY);
    event_pool[number] = (fake_stream){.device = current(), .alive = 1};
    __atomic_fetch_add(&events, 1, __ATOMIC_RELAXED);
    *event_out = &event_pool[number];
    return 0;
}

static int event_error(const fake_stream *event) { return event && event->alive ? 0 : INVALID_HANDLE; }

int hipEventRecord(void *event, void *stream) {
    int error = begin("hipEventRecord");
    if (!error) error = fake_hip_error(event_error(event));
    return error ? error : fake_hip_error(stream_error(stream));
}

int hipStreamWaitEvent(void *stream, void *event, unsigned flags) {
    int error = begin("hipStreamWaitEvent");
    if (!error) error = fake_hip_error(flags ? INVALID_VALUE : event_error(event));
    return error ? error : fake_hip_error(stream_error(stream));
}

int hipEventDestroy(void *event) {
    int error = begin("hipEventDestroy");
    if (!error) error = fake_hip_error(event_error(event));
    if (error) return error;
    ((fake_stream *)event)->alive = 0;
    __atomic_fetch_sub(&events, 1, __ATOMIC_RELAXED);
    return 0;
}
