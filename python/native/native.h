/* SPDX-License-Identifier: MIT */
/* What the files of the C module share. The limited API of Python 3.10: one binary for every later Python. */
#ifndef STERNWAY_NATIVE_H
#define STERNWAY_NATIVE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sternway/sternway.h>

/* ---- structs of the C interface (structs.c, tables by generate.py) ---------------------------------------------- */
typedef enum stw_py_kind {
    STW_PY_I32,
    STW_PY_U32, /* enums too */
    STW_PY_I64,
    STW_PY_U64,
    STW_PY_SIZE,
    STW_PY_F32,
    STW_PY_F64,
    STW_PY_POINTER,
    STW_PY_TEXT,  /* const char * */
    STW_PY_CHARS, /* char[n]      */
    STW_PY_STRUCT
} stw_py_kind;

typedef struct stw_py_table stw_py_table;

typedef struct stw_py_field {
    const char *name;
    size_t offset;
    size_t size; /* of all elements */
    stw_py_kind kind;
    int count;                 /* elements of an array, else 1 */
    const stw_py_table *table; /* of a STRUCT */
} stw_py_field;

struct stw_py_table {
    const char *name;
    size_t size;
    const stw_py_field *fields; /* ended by one without name */
};

typedef struct stw_py_constant {
    const char *type; /* an enum, NULL for a flag */
    const char *name; /* without STW_ */
    long long value;
} stw_py_constant;

/* The memory of a struct object, NULL with TypeError if `object` is none of that table. */
void *stw_py_struct(PyObject *object, const stw_py_table *table);
/* A copy of a struct and a reference to what its pointers need: another thread may set its fields meanwhile. */
typedef struct stw_py_held {
    PyObject *keep;
    union {
        stw_attn_desc attn_desc;
        stw_attn_args attn_args;
        stw_jagged_desc jagged_desc;
        stw_jagged_args jagged_args;
    } as;
} stw_py_held;
int stw_py_hold(PyObject *object, const stw_py_table *table, stw_py_held *held); /* -1: TypeError */
void stw_py_let_go(stw_py_held *held);
extern const stw_py_table *const stw_py_attn_desc,
    *const stw_py_attn_args, *const stw_py_jagged_desc, *const stw_py_jagged_args, *const stw_py_context_opts,
                                                                                       *const stw_py_device_info,
                                                                                           *const stw_py_image_info;
const stw_py_field *stw_py_find_field(const stw_py_table *table, const char *name);
/* Value of a field as an int, float, str, bytes or tuple. */
PyObject *stw_py_get_field(const void *base, const stw_py_field *field);
/* Sets a field; what a pointer field needs alive is put into the dict *keep (NULL: pointers are refused). Its key is
 * the distance of the pointer from `keep`, which lies in one object with the struct. -1: raised. */
int stw_py_set_field(void *base, const stw_py_field *field, PyObject *value, PyObject **keep);
/* A number of 64 bits, negative ones in two's complement; a larger one raises OverflowError. -1: raised. */
int stw_py_u64(const char *name, PyObject *value, uint64_t *number);
/* Sets further bits; a number of more than 32 bits raises OverflowError. -1: raised. */
int stw_py_add_bits(uint32_t *bits, PyObject *value, const char *name);
/* Adds a keyword to a table of numbers by name; names are interned, as those of callers are. -1: raised. */
int stw_py_add_keyword(PyObject *keywords, const char *name, int number);
int stw_py_add_structs(PyObject *module);

/* ---- arrays (array.c) ------------------------------------------------------------------------------------------- */
enum { STW_PY_RANK_MAX = 8, STW_PY_HOST = -1, STW_PY_SOME_GPU = -2 };

typedef struct stw_py_array {
    void *data;
    const char *name; /* in messages */
    PyObject *hold;   /* a capsule that owns what the pointers below point to, or NULL */
    int64_t shape[STW_PY_RANK_MAX];
    int64_t strides[STW_PY_RANK_MAX]; /* in elements */
    int rank;
    int device; /* ordinal of the GPU, STW_PY_HOST or STW_PY_SOME_GPU (not told) */
    stw_dtype dtype;
    bool truth; /* bool: dtype is U8 */
    bool read_only;
} stw_py_array;

/* Describes an array object without a copy. `stream` is where a GPU array will be used. -1: raised. */
int stw_py_array_open(PyObject *object, const char *name, uintptr_t stream, stw_py_array *array);
void stw_py_array_close(stw_py_array *array);
/* Elements lie one behind the other, row-major. */
bool stw_py_array_contiguous(const stw_py_array *array);
int64_t stw_py_array_elements(const stw_py_array *array);
size_t stw_py_array_bytes(const stw_py_array *array); /* of its elements */
const char *stw_py_dtype_name(stw_dtype dtype);

/* ---- contexts and plans (context.c) ----------------------------------------------------------------------------- */
enum { STW_PY_KEPT_PLANS = 64 };

typedef enum stw_py_operation { STW_PY_ATTN_BWD, STW_PY_ATTN_FWD, STW_PY_JAGGED_BWD } stw_py_operation;

typedef struct stw_py_plan {
    PyObject_HEAD stw_plan *plan;
    PyObject *context;
    stw_py_operation operation;
} stw_py_plan;

typedef struct stw_py_kept { /* a plan and the descriptor that it was made of */
    PyObject *plan;
    stw_py_operation operation;
    uint64_t used; /* when last */
    union {
        stw_attn_desc attn;
        stw_jagged_desc jagged;
    } desc;
} stw_py_kept;

typedef struct stw_py_context {
    PyObject_HEAD stw_context *context;
    stw_memory memory;
    int device;    /* -1: host memory */
    void *scratch; /* workspace of the last call in host memory, taken and given back under the GIL */
    size_t scratch_size;
    uint64_t clock;
    PyObject *owned;   /* set of the addresses of buffers */
    stw_py_kept *kept; /* STW_PY_KEPT_PLANS of them */
} stw_py_context;

extern PyObject *stw_py_context_type, *stw_py_plan_type;
int stw_py_add_contexts(PyObject *module);
stw_py_context *stw_py_context_of(PyObject *object); /* NULL with TypeError */
bool stw_py_on_device(const stw_py_context *context, const stw_py_array *array);
/* A new reference to the plan of a descriptor, made or found among the kept ones; `desc` may hold no pointers. */
stw_py_plan *stw_py_keep_plan(stw_py_context *context, stw_py_operation operation, const void *desc);

/* Workspace of one call: the caller's array or callable, or the context's scratch memory. */
typedef struct stw_py_workspace {
    void *data;
    size_t size;
    void *scratch; /* to be given back */
    PyObject *object;
    stw_py_array array;
} stw_py_workspace;
int stw_py_workspace_open(stw_py_context *context, PyObject *from, size_t size, uintptr_t stream,
                          stw_py_workspace *workspace);
void stw_py_workspace_close(stw_py_context *context, stw_py_workspace *workspace);

/* ---- errors (module.c) ------------------------------------------------------------------------------------------ */
/* Raises the exception of a status with the library's text; returns NULL. */
void *stw_py_raise(stw_status status);
/* Raise InvalidError, UnsupportedError with a text of ours; return NULL. */
void *stw_py_invalid(const char *format, ...);
void *stw_py_unsupported(const char *format, ...);

/* ---- calls with arrays (attention.c, jagged.c) ------------------------------------------------------------------ */
PyObject *stw_py_attn_bwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *stw_py_attn_fwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *stw_py_dropout_mask(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *stw_py_jagged_bwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* Elements of a nested operation's tensors (jagged_sizes.c); those that the operation lacks have 0. */
typedef struct stw_py_jagged_sizes {
    int64_t grad; /* -1: lengths in device data decide */
    int64_t x;    /* y too */
    int64_t dx;
    int64_t other;   /* dother too */
    int64_t weight;  /* dweight too */
    int64_t lines;   /* mean and rstd */
    int64_t columns; /* dbias */
} stw_py_jagged_sizes;
/* Of a descriptor that the library has planned: its products are below 2^60, nothing is divided by 0. */
stw_py_jagged_sizes stw_py_jagged_sizes_of(const stw_jagged_desc *desc);

int stw_py_add_attention(PyObject *module);
int stw_py_add_jagged(PyObject *module);

typedef enum stw_py_layout { STW_PY_BSHD, STW_PY_BHSD, STW_PY_THD } stw_py_layout;

#endif
