/* SPDX-License-Identifier: MIT
 *
 * Sternway: what every part of the interface shares: status values, the struct_size rule, data
 * types, devices, contexts, and the thin portable memory and stream calls. C11, clean in C++17.
 * Users include <sternway/sternway.h>, which brings all headers in. */
#ifndef STERNWAY_BASE_H
#define STERNWAY_BASE_H

#include <stddef.h>
#include <stdint.h>

#define STW_VERSION_MAJOR 0
#define STW_VERSION_MINOR 1
#define STW_VERSION_PATCH 0
#define STW_VERSION       ((uint32_t)(STW_VERSION_MAJOR * 10000 + STW_VERSION_MINOR * 100 + STW_VERSION_PATCH))

#if defined(__GNUC__)
#define STW_API __attribute__((visibility("default")))
#else
#define STW_API
#endif

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- the struct_size rule ---------------------------------------------------------------------
 * Every struct a caller fills begins with `size_t struct_size` = sizeof of the struct as the caller
 * was compiled. Fields are only ever appended. A zeroed field means "absent" or "default"; where a
 * zero is meant as a value, a flag says so. A shorter struct (older caller) is read with zeros
 * behind it; a longer one (newer caller) is accepted when its unknown tail is all zero, and refused
 * with STW_E_UNSUPPORTED otherwise. STW_INIT gives a zeroed struct with the size set:
 *     stw_attn_desc desc = STW_INIT(stw_attn_desc);                                             */
#ifdef __cplusplus
#define STW_INIT(type) (::sternway_detail::init<type>())
#else
#define STW_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* ---- status ------------------------------------------------------------------------------------
 * Every fallible call returns one of these; the numbers are pinned for ever. On anything but STW_OK
 * nothing was launched, output parameters and buffers are untouched (but for *status_out, whose purpose it
 * is), and stw_last_error() tells the function, the field, the value seen and what would be accepted. */
typedef enum stw_status {
    STW_OK = 0,
    STW_E_INVALID = 1,     /* the caller's arguments contradict the documentation                   */
    STW_E_UNSUPPORTED = 2, /* a well-formed problem that the chosen backend cannot do               */
    STW_E_NO_DRIVER = 3,   /* libcuda / libamdhip64 is missing, too old or failed to start          */
    STW_E_NO_DEVICE = 4,   /* the driver is there, the device is not                                */
    STW_E_NO_IMAGE = 5,    /* this build holds no kernels for the device's arch                     */
    STW_E_WORKSPACE = 6,   /* workspace null, too small or not 256-byte aligned                     */
    STW_E_NO_MEMORY = 7,   /* an allocation failed                                                  */
    STW_E_DRIVER = 8,      /* a driver call failed; the text holds the driver's own error           */
    STW_E_INTERNAL = 9,    /* a defect in this library                                              */
    STW_E_DEVICE_LOST = 10, /* the device reported a sticky error; the context is dead              */
    STW_E_FORKED = 11       /* a GPU context is used in a child of the process that created it      */
} stw_status;

/* The name of a status, "STW_E_INVALID" and so on; "STW_E_?" for any other number. Static storage. */
STW_API const char *stw_status_name(stw_status status);

/* The text of this thread's last failed call, "" if none failed yet. A call that succeeds leaves it.
 * Owned by the library, valid until this thread's next failing call. */
STW_API const char *stw_last_error(void);

/* STW_VERSION of the library in use (the header's is the macro). */
STW_API uint32_t stw_version(void);

/* ---- log ---------------------------------------------------------------------------------------
 * Levels as in STERNWAY_LOG. Without a function of the caller's, lines of the level in force go to
 * STERNWAY_LOG_FILE or to standard error. `line` has no newline and is valid during the call.
 * The function may be called from any thread that calls the library; fn = NULL restores the default. */
typedef enum stw_log_level { STW_LOG_ERROR = 0, STW_LOG_WARN = 1, STW_LOG_INFO = 2, STW_LOG_TRACE = 3 } stw_log_level;
typedef void (*stw_log_fn)(void *user, stw_log_level level, const char *line);
STW_API void stw_set_log(stw_log_fn fn, void *user);

/* ---- data types --------------------------------------------------------------------------------*/
typedef enum stw_dtype {
    STW_DTYPE_NONE = 0, /* never a tensor's type: "absent" or "as the input"  */
    STW_F16 = 1,        /* IEEE binary16                                      */
    STW_BF16 = 2,       /* bfloat16                                           */
    STW_F32 = 3,        /* IEEE binary32                                      */
    /* Only where a jagged operation says so (jagged_bwd.h), and for its offsets. */
    STW_F64 = 4,
    STW_I8 = 5,
    STW_U8 = 6, /* and truth values of a byte */
    STW_I16 = 7,
    STW_I32 = 8,
    STW_I64 = 9
} stw_dtype;

/* ---- backends and devices ----------------------------------------------------------------------*/
typedef enum stw_backend {
    STW_BACKEND_AUTO = 0, /* STERNWAY_BACKEND decides, else the best backend that fits */
    STW_BACKEND_CPU = 1,
    STW_BACKEND_CUDA = 2,
    STW_BACKEND_HIP = 3
} stw_backend;

typedef struct stw_device_info {
    size_t struct_size;
    stw_backend backend;  /* CUDA or HIP; the CPU is listed last as CPU device 0             */
    int32_t device;       /* ordinal for stw_context_opts.device                             */
    int32_t usable;       /* 1 when this build has kernels for it, else 0: see `note`        */
    uint32_t compute_units; /* SMs, CUs or CPU threads; 0 = not known without the driver     */
    uint64_t memory_bytes;  /* total memory; 0 = not known without the driver                */
    char arch[32];        /* "sm90", "gfx942", "cpu", or "" when only the driver could tell  */
    char name[96];        /* marketing name where known                                      */
    char uuid[48];        /* "GPU-..." or "" when not known                                  */
    char note[160];       /* why it is not usable, or ""                                     */
} stw_device_info;

/* Lists the devices of this machine without starting any driver (no cuInit, no hipInit): AMD from
 * /sys/class/kfd, NVIDIA from /dev and NVML, then the CPU. CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES
 * and HIP_VISIBLE_DEVICES are not applied here; they are the driver's.
 *   infos      array of `capacity` elements whose struct_size fields are set by the caller (all
 *              alike; its value is also the distance between elements); NULL with capacity 0
 *   count_out  number of devices there are, which may exceed capacity; required
 * Errors: STW_E_INVALID. */
STW_API stw_status stw_devices(stw_device_info *infos, size_t capacity, size_t *count_out);

/* One embedded device image: kernels of one arch. */
typedef struct stw_image_info {
    size_t struct_size;
    stw_backend backend;
    int32_t intact;      /* 1 when its bytes have the hash they were built with */
    uint64_t bytes, hash; /* size; 64-bit FNV-1a as recorded at build time      */
    char arch[32];       /* a row of dispatch/arch.def, "sm80"                  */
    char kind[32];       /* "cubin", "ptx", "code object"                       */
} stw_image_info;

/* Lists the device images in this library and hashes each. Arguments and errors as for stw_devices; a
 * damaged image is told by its `intact`, not by the status. */
STW_API stw_status stw_embedded_images(stw_image_info *infos, size_t capacity, size_t *count_out);

/* Where the tensors of a context's calls live; must be chosen, there is no default. */
typedef enum stw_memory {
    STW_MEMORY_HOST = 1,   /* ordinary host memory: only the CPU backend fits                         */
    STW_MEMORY_DEVICE = 2, /* memory of the GPU: `auto` never chooses the CPU, and CPU is refused     */
    STW_MEMORY_BUFFERS = 3 /* every tensor comes from stw_buffer_alloc of this context: any backend   */
} stw_memory;

#define STW_CONTEXT_HAS_DEVICE 0x1u /* `device` is meant, 0 included; else STERNWAY_DEVICE, else 0 */

/* Explicit options win over the environment; AUTO, an absent device and a NULL arch read it. */
typedef struct stw_context_opts {
    size_t struct_size;
    stw_backend backend;
    stw_memory memory;   /* required                                                               */
    uint32_t flags;      /* STW_CONTEXT_HAS_DEVICE                                                 */
    int32_t device;      /* ordinal as the driver numbers them                                     */
    const char *arch;    /* force kernels of this arch, "sm80"; NULL: the device's. Read, not kept */
    int32_t cpu_threads; /* CPU backend: 1..1024; 0 = STERNWAY_CPU_THREADS, else all allowed cores */
} stw_context_opts;

typedef struct stw_context stw_context; /* one backend on one device; used from any thread          */
typedef struct stw_plan stw_plan;       /* one problem class, ready to run; immutable               */
typedef void *stw_stream;               /* a CUstream or hipStream_t as it is; ignored on the CPU   */

/* Creates a context on one device. The caller's current CUDA/HIP device and context stay as they are.
 * The environment (README, table) is read here, once. The context stays alive until it and every plan
 * made from it are destroyed, in any order.
 * Errors: STW_E_INVALID (options, environment), STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_NO_IMAGE,
 * STW_E_DRIVER, STW_E_NO_MEMORY. A backend or arch asked for by name is never silently replaced. */
STW_API stw_status stw_context_create(const stw_context_opts *opts, stw_context **context_out);
STW_API void stw_context_destroy(stw_context *context); /* NULL is fine */

/* "sm90", "gfx942", "cpu"; valid as long as the context. */
STW_API const char *stw_context_arch(const stw_context *context);

/* ---- portable memory and streams ----------------------------------------------------------------
 * So that one program runs on every backend. Nothing here is used by the run calls.
 * Buffers are 256-byte aligned, of uninitialised content, host-readable on the CPU backend only. */

/* bytes = 0 gives a valid pointer that may not be dereferenced. Errors: STW_E_INVALID, STW_E_NO_MEMORY,
 * STW_E_DRIVER. */
STW_API stw_status stw_buffer_alloc(stw_context *context, size_t bytes, void **pointer_out);
STW_API stw_status stw_buffer_free(stw_context *context, void *pointer); /* NULL is fine */

/* Copies between host memory and buffers, in any direction, ordered in `stream`; host memory that is
 * not page-locked is safe to reuse on return. The CPU backend copies before it returns. */
STW_API stw_status stw_copy(stw_context *context, void *to, const void *from, size_t bytes, stw_stream stream);

/* Streams of the context's device. The CPU backend gives a handle that carries no order: its calls
 * are complete when they return. A NULL stream is the device's default stream. */
STW_API stw_status stw_stream_create(stw_context *context, stw_stream *stream_out);
STW_API stw_status stw_stream_synchronize(stw_context *context, stw_stream stream);
STW_API stw_status stw_stream_destroy(stw_context *context, stw_stream stream);

#ifdef __cplusplus
} /* extern "C" */
namespace sternway_detail {
template <typename T> inline T init() {
    T value = T();
    value.struct_size = sizeof(T);
    return value;
}
} // namespace sternway_detail
#endif
#endif
