/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: what every part of the interface shares: status values, the struct_size rule, data
 * types, devices, contexts, and the thin portable memory and stream calls. C11, clean in C++17.
 * Users include <sternway/sternway.h>, which brings all headers in. */
#ifndef STERNWAY_BASE_H
#define STERNWAY_BASE_H

#include <stddef.h>
#include <stdint.h>

#define STW_VERSION_MAJOR 0 /**< of these headers */
#define STW_VERSION_MINOR 1 /**< of these headers */
#define STW_VERSION_PATCH 0 /**< of these headers */
/** The headers' version as one number, major * 10000 + minor * 100 + patch; the library's: stw_version(). */
#define STW_VERSION ((uint32_t)(STW_VERSION_MAJOR * 10000 + STW_VERSION_MINOR * 100 + STW_VERSION_PATCH))

#if defined(__GNUC__)
/** Marks what the library exports. */
#define STW_API __attribute__((visibility("default")))
#else
#define STW_API
#endif

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- the struct_size rule ---------------------------------------------------------------------*/
#ifdef __cplusplus
#define STW_INIT(type) (::sternway_detail::init<type>())
#else
/** The struct_size rule. Every struct a caller fills begins with `size_t struct_size` = sizeof of the struct
 * as the caller was compiled. Fields are only ever appended. A zeroed field means "absent" or "default";
 * where a zero is meant as a value, a flag says so. A shorter struct (older caller) is read with zeros
 * behind it; a longer one (newer caller) is accepted when its unknown tail is all zero, and refused
 * with STW_E_UNSUPPORTED otherwise. STW_INIT gives a zeroed struct with the size set:
 *
 *     stw_attn_desc desc = STW_INIT(stw_attn_desc);
 */
#define STW_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* ---- status ------------------------------------------------------------------------------------*/
/** Every fallible call returns one of these; the numbers are pinned for ever. On anything but STW_OK
 * nothing was launched, output parameters and buffers are untouched (but for *status_out, whose purpose it
 * is), and stw_last_error() tells the function, the field, the value seen and what would be accepted. Of a
 * descriptor, INVALID is what contradicts these headers: unknown values and flags, sizes without a meaning,
 * fields against each other, outputs that overlap, spans beyond 2^63 bytes. UNSUPPORTED is what a correct call
 * of another library could ask for: an element type, a size above a limit, a negative stride. A binding may
 * fall back on the latter; the former is its defect.
 *
 * The calls below name the statuses that are their own. Beside these each call that takes a struct may return
 * STW_E_UNSUPPORTED by the struct_size rule, and each call with a GPU's context STW_E_DRIVER,
 * STW_E_DEVICE_LOST and STW_E_FORKED. */
typedef enum stw_status {
    STW_OK = 0,            /**< done, or on its way in the stream                                     */
    STW_E_INVALID = 1,     /**< the caller's arguments contradict the documentation                   */
    STW_E_UNSUPPORTED = 2, /**< a well-formed problem beyond a limit, which the text names             */
    STW_E_NO_DRIVER = 3,   /**< libcuda / libamdhip64 is missing, too old or failed to start          */
    STW_E_NO_DEVICE = 4,   /**< the driver is there, the device is not                                */
    STW_E_NO_IMAGE = 5,    /**< this build holds no kernels for the device's arch                     */
    STW_E_WORKSPACE = 6,   /**< workspace null or too small                                           */
    STW_E_NO_MEMORY = 7,   /**< an allocation failed                                                  */
    STW_E_DRIVER = 8,      /**< a call of the driver or of a transport failed; the text holds its error */
    STW_E_INTERNAL = 9,    /**< a defect in this library                                              */
    STW_E_DEVICE_LOST = 10, /**< the device reported a sticky error; the context is dead              */
    STW_E_FORKED = 11       /**< a GPU context is used in a child of the process that created it      */
} stw_status;

/** The name of a status.
 * @param status any number
 * @return "STW_E_INVALID" and so on; "STW_E_?" for any other number. Static storage. */
STW_API const char *stw_status_name(stw_status status);

/** The text of this thread's last failed call. A call that succeeds leaves it.
 * @return "" if none failed yet. Owned by the library, valid until this thread's next failing call. */
STW_API const char *stw_last_error(void);

/** The library's version.
 * @return STW_VERSION of the library in use (the header's is the macro). */
STW_API uint32_t stw_version(void);

/* ---- log ---------------------------------------------------------------------------------------*/
/** Levels as in STERNWAY_LOG. */
typedef enum stw_log_level {
    STW_LOG_ERROR = 0, /**< what ends a call or a context        */
    STW_LOG_WARN = 1,  /**< and what the caller should know      */
    STW_LOG_INFO = 2,  /**< and what was found and chosen        */
    /** and every plan as a PROBLEM line, and its first call that runs slower kernels for its pointers */
    STW_LOG_TRACE = 3
} stw_log_level;
/** Gets each line of the log, from any thread that calls the library; `line` has no newline and is valid
 * during the call. */
typedef void (*stw_log_fn)(void *user, stw_log_level level, const char *line);
/** Where the log goes. Without a function of the caller's, lines of the level in force go to
 * STERNWAY_LOG_FILE or to standard error.
 * @param fn    may be called from any thread that calls the library; NULL restores the default
 * @param user  handed to it */
STW_API void stw_set_log(stw_log_fn fn, void *user);

/* ---- data types --------------------------------------------------------------------------------*/
/** Types of elements. F64 only in attention on the CPU backend; F64 and integers only where a jagged
 * operation says so (jagged_bwd.h), and for its offsets; U8 also for a mask of bytes
 * (stw_attn_desc.bias_dtype). */
typedef enum stw_dtype {
    STW_DTYPE_NONE = 0, /**< never a tensor's type: "absent" or "as the input"  */
    STW_F16 = 1,        /**< IEEE binary16                                      */
    STW_BF16 = 2,       /**< bfloat16                                           */
    STW_F32 = 3,        /**< IEEE binary32                                      */
    STW_F64 = 4,        /**< IEEE binary64                                      */
    STW_I8 = 5,         /**< signed, 8 bits                                     */
    STW_U8 = 6,         /**< unsigned, 8 bits, and truth values of a byte       */
    STW_I16 = 7,        /**< signed, 16 bits                                    */
    STW_I32 = 8,        /**< signed, 32 bits                                    */
    STW_I64 = 9         /**< signed, 64 bits                                    */
} stw_dtype;

/* ---- backends and devices ----------------------------------------------------------------------*/
/** Who does the work. */
typedef enum stw_backend {
    STW_BACKEND_AUTO = 0, /**< STERNWAY_BACKEND decides, else the best backend that fits */
    STW_BACKEND_CPU = 1,  /**< always there                                              */
    STW_BACKEND_CUDA = 2, /**< NVIDIA                                                    */
    STW_BACKEND_HIP = 3   /**< AMD                                                       */
} stw_backend;

/** One device of this machine, as stw_devices() lists it. */
typedef struct stw_device_info {
    size_t struct_size;     /**< sizeof(stw_device_info)                                     */
    stw_backend backend;    /**< CUDA or HIP; the CPU is listed last as CPU device 0         */
    int32_t device;         /**< ordinal for stw_context_opts.device                         */
    int32_t usable;         /**< 1 when this build has kernels for it, else 0: see `note`    */
    uint32_t compute_units; /**< SMs, CUs or CPU threads; 0 = not known without the driver   */
    uint64_t memory_bytes;  /**< total memory; 0 = not known without the driver              */
    char arch[32];          /**< "sm90", "gfx942", "cpu", or "" when only the driver could tell */
    char name[96];          /**< marketing name where known                                  */
    char uuid[48];          /**< "GPU-..." or "" when not known                              */
    char note[160];         /**< why it is not usable, or ""                                 */
} stw_device_info;

/** Lists the devices of this machine without starting any driver (no cuInit, no hipInit): AMD from
 * /sys/class/kfd, NVIDIA from /dev and NVML, then the CPU. Of AMD's devices it lists those that the
 * runtime will show, in its order: ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, or in the latter's
 * place CUDA_VISIBLE_DEVICES, choose them. NVIDIA's are all listed: CUDA_VISIBLE_DEVICES is its driver's.
 * @param infos      array of `capacity` elements whose struct_size fields are set by the caller (all
 *                   alike; its value is also the distance between elements); NULL with capacity 0
 * @param capacity   elements of `infos`
 * @param count_out  number of devices there are, which may exceed capacity; required
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_devices(stw_device_info *infos, size_t capacity, size_t *count_out);

/** One embedded device image: kernels of one arch for attention, jagged operations, or attention over ranks. */
typedef struct stw_image_info {
    size_t struct_size;  /**< sizeof(stw_image_info)                            */
    stw_backend backend; /**< CUDA or HIP                                       */
    int32_t intact;      /**< 1 when its bytes have the hash they were built with */
    uint64_t bytes;      /**< size, as it lies in the library                    */
    uint64_t hash;       /**< 64-bit FNV-1a as recorded at build time           */
    char arch[32];       /**< whose kernels these are: "sm80", "gfx942"         */
    char kind[32];       /**< "cubin", "ptx", "code object"                     */
    char ops[32];        /**< whose kernels: "attention", "jagged", "ranks"     */
} stw_image_info;

/** Lists every device image in this library and hashes each. Arguments and errors as for stw_devices(); a
 * damaged image is told by its `intact`, not by the status.
 * @copydetails stw_devices */
STW_API stw_status stw_embedded_images(stw_image_info *infos, size_t capacity, size_t *count_out);

/** Where the tensors of a context's calls live; must be chosen, there is no default. */
typedef enum stw_memory {
    STW_MEMORY_HOST = 1,   /**< ordinary host memory: only the CPU backend fits                         */
    STW_MEMORY_DEVICE = 2, /**< memory of the GPU: `auto` never chooses the CPU, and CPU is refused     */
    STW_MEMORY_BUFFERS = 3 /**< every tensor comes from stw_buffer_alloc of this context: any backend   */
} stw_memory;

/** Bit of stw_context_opts.flags: `device` is meant, 0 included; else STERNWAY_DEVICE, else 0. */
#define STW_CONTEXT_HAS_DEVICE 0x1u

/** Explicit options win over the environment; AUTO, an absent device and a NULL arch read it. */
typedef struct stw_context_opts {
    size_t struct_size;  /**< sizeof(stw_context_opts)                                               */
    stw_backend backend; /**< a backend named here is never replaced                                 */
    stw_memory memory;   /**< required                                                               */
    uint32_t flags;      /**< STW_CONTEXT_HAS_DEVICE                                                 */
    int32_t device;      /**< ordinal as the driver numbers them                                     */
    const char *arch;    /**< force kernels of this arch, "sm80"; NULL: the device's. Read, not kept */
    int32_t cpu_threads; /**< CPU backend: 1..1024; 0 = STERNWAY_CPU_THREADS, else all allowed cores */
} stw_context_opts;

typedef struct stw_context stw_context; /**< one backend on one device; used from any thread          */
typedef struct stw_plan stw_plan;       /**< one problem class, ready to run; immutable               */
typedef void *stw_stream;               /**< a CUstream or hipStream_t as it is; ignored on the CPU   */

/** Creates a context on one device. The caller's current CUDA/HIP device and context stay as they are.
 * The environment (docs/command.md) is read here, once. Once a process the log warns of STERNWAY_ variables
 * that are unknown, and of a GPU that AUTO wanted and replaced by the CPU. The context stays alive until it
 * and every plan made from it are destroyed, in any order.
 * @param opts         which backend, device and kind of memory
 * @param context_out  the new context
 * @return STW_OK, STW_E_INVALID (options, environment), STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_NO_IMAGE,
 * STW_E_DRIVER, STW_E_NO_MEMORY. A backend or arch asked for by name is never silently replaced. */
STW_API stw_status stw_context_create(const stw_context_opts *opts, stw_context **context_out);
/** Gives the caller's hold on a context back.
 * @param context NULL is fine */
STW_API void stw_context_destroy(stw_context *context);

/** The arch whose kernels the context runs.
 * @param context a context or NULL
 * @return "sm90", "gfx942", "cpu"; of NULL "". Owned by the context, valid as long as it. */
STW_API const char *stw_context_arch(const stw_context *context);

/* ---- portable memory and streams ----------------------------------------------------------------*/
/** Memory of the context's device, so that one program runs on every backend; nothing here is used by the
 * run calls. Buffers are 256-byte aligned, of uninitialised content, host-readable on the CPU backend only.
 * @param context      whose device
 * @param bytes        0 gives a valid pointer that may not be dereferenced
 * @param pointer_out  the buffer
 * @return STW_OK, STW_E_INVALID, STW_E_NO_MEMORY, STW_E_DRIVER. */
STW_API stw_status stw_buffer_alloc(stw_context *context, size_t bytes, void **pointer_out);
/** Gives a buffer back.
 * @param context  the one it is from
 * @param pointer  NULL is fine
 * @return STW_OK, STW_E_INVALID, STW_E_DRIVER. */
STW_API stw_status stw_buffer_free(stw_context *context, void *pointer);

/** Copies between host memory and buffers, in any direction, ordered in `stream`; host memory that is
 * not page-locked is safe to reuse on return. The CPU backend copies before it returns.
 * @param context,to,from,bytes,stream as in memcpy, on this context, in this stream
 * @return STW_OK, STW_E_INVALID, STW_E_DRIVER. */
STW_API stw_status stw_copy(stw_context *context, void *to, const void *from, size_t bytes,
                            stw_stream stream);

/** A stream of the context's device. The CPU backend gives a handle that carries no order: its calls
 * are complete when they return. A NULL stream is the device's default stream.
 * @param context     whose device
 * @param stream_out  the new stream
 * @return STW_OK, STW_E_INVALID, STW_E_NO_MEMORY, STW_E_DRIVER. */
STW_API stw_status stw_stream_create(stw_context *context, stw_stream *stream_out);
/** Waits for what the stream was given.
 * @param context,stream whose end is awaited
 * @return STW_OK, STW_E_INVALID, STW_E_DRIVER, STW_E_DEVICE_LOST. */
STW_API stw_status stw_stream_synchronize(stw_context *context, stw_stream stream);
/** Gives a stream back.
 * @param context,stream made by stw_stream_create()
 * @return STW_OK, STW_E_INVALID, STW_E_DRIVER. */
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
