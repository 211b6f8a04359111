/* SPDX-License-Identifier: MIT */
/* Attention with arrays: descriptor and arguments are read off the arrays, then one call of stw_attn_*_once(). */
#include "native.h"

#include <string.h>

/* Tensors by keyword, in the order of stw_attn_args' pointers. */
typedef enum role {
    Q,
    K,
    V,
    OUT,
    DOUT,
    LSE,
    DLSE,
    DELTA,
    BIAS,
    ALIBI,
    SINK,
    CU_Q,
    CU_KV,
    USED_Q,
    USED_KV,
    Q_OFFSETS,
    K_OFFSETS,
    SEED,
    OFFSET,
    INTERVALS,
    BLOCK_MASK,
    DQ,
    DK,
    DV,
    DBIAS,
    DSINK,
    STATUS,
    MASK_OUT,
    WORKSPACE,
    STREAM,
    ROLES
} role;

typedef struct role_info {
    const char *name;
    size_t pointer;  /* in stw_attn_args */
    stw_dtype dtype; /* required, NONE: see check_types() */
    bool written;
} role_info;

#define AT(field) offsetof(stw_attn_args, field)
static const role_info roles[ROLES] = {
    [Q] = {"q", AT(q), 0, 0},
    [K] = {"k", AT(k), 0, 0},
    [V] = {"v", AT(v), 0, 0},
    [OUT] = {"out", AT(out), 0, 0},
    [DOUT] = {"dout", AT(dout), 0, 0},
    [LSE] = {"lse", AT(lse), 0, 0},
    [DLSE] = {"dlse", AT(dlse), 0, 0},
    [DELTA] = {"delta", AT(delta), 0, 0},
    [BIAS] = {"bias", AT(bias), 0, 0},
    [ALIBI] = {"alibi_slopes", AT(alibi_slopes), 0, 0},
    [SINK] = {"sink", AT(sink), 0, 0},
    [CU_Q] = {"cu_seqlens_q", AT(cu_seqlens_q), STW_I32, 0},
    [CU_KV] = {"cu_seqlens_kv", AT(cu_seqlens_kv), STW_I32, 0},
    [USED_Q] = {"used_q", AT(used_q), STW_I32, 0},
    [USED_KV] = {"used_kv", AT(used_kv), STW_I32, 0},
    [Q_OFFSETS] = {"q_offsets", AT(q_offsets), STW_I64, 0},
    [K_OFFSETS] = {"k_offsets", AT(k_offsets), STW_I64, 0},
    [SEED] = {"dropout_seed_ptr", AT(dropout_seed_ptr), STW_I64, 0},
    [OFFSET] = {"dropout_offset_ptr", AT(dropout_offset_ptr), STW_I64, 0},
    [INTERVALS] = {"intervals", AT(intervals), STW_I32, 0},
    [BLOCK_MASK] = {"block_mask", AT(block_mask), STW_U8, 0},
    [DQ] = {"dq", AT(dq), 0, 1},
    [DK] = {"dk", AT(dk), 0, 1},
    [DV] = {"dv", AT(dv), 0, 1},
    [DBIAS] = {"dbias", AT(dbias), 0, 1},
    [DSINK] = {"dsink", AT(dsink), 0, 1},
    [STATUS] = {"status_out", AT(status_out), STW_I32, 1},
    [MASK_OUT] = {"mask_out", 0, STW_U8, 1},
    [WORKSPACE] = {"workspace", 0, 0, 0},
    [STREAM] = {"stream", 0, 0, 0},
};

/* Options by keyword. */
typedef enum where { IN_DESC, IN_ARGS, SPECIAL } where;
typedef struct option {
    const char *name;
    where where;
    uint32_t flag; /* set with it */
    const stw_py_field *field;
} option;

enum { MAX_Q = 11, MAX_KV };
static option options[] = {
    {"mask", IN_DESC, 0, NULL},
    {"window_left", IN_DESC, STW_ATTN_HAS_WINDOW_LEFT, NULL},
    {"window_right", IN_DESC, STW_ATTN_HAS_WINDOW_RIGHT, NULL},
    {"diagonal_shift", IN_DESC, STW_ATTN_HAS_SHIFT, NULL},
    {"dropout_p", IN_DESC, 0, NULL},
    {"dropout_map", IN_DESC, 0, NULL},
    {"accumulate", IN_DESC, 0, NULL},
    {"batch_offset", IN_DESC, 0, NULL},
    {"head_offset", IN_DESC, 0, NULL},
    {"heads_total", IN_DESC, 0, NULL},
    {"interval_form", IN_DESC, 0, NULL},
    [MAX_Q] = {"max_seq_q", IN_DESC, 0, NULL},
    {"max_seq_kv", IN_DESC, 0, NULL},
    {"q_offset", IN_ARGS, 0, NULL},
    {"k_offset", IN_ARGS, 0, NULL},
    {"cpu_threads", IN_ARGS, 0, NULL},
    {"scale", SPECIAL, STW_ATTN_HAS_SCALE, NULL},
    {"softcap", SPECIAL, 0, NULL},
    {"flags", SPECIAL, 0, NULL},
    {"dropout_seed", SPECIAL, 0, NULL},
    {"dropout_offset", SPECIAL, 0, NULL},
    {"deterministic", SPECIAL, 0, NULL},
    {"flash_window", SPECIAL, 0, NULL},
};
enum {
    OPTIONS = sizeof options / sizeof *options,
    SCALE = OPTIONS - 7,
    SOFTCAP,
    FLAGS,
    SEED_VALUE,
    OFFSET_VALUE,
    DETERMINISTIC,
    FLASH
};

static PyObject *keywords; /* name -> number of a role, or ROLES + number of an option */

typedef struct call {
    const char *who;
    stw_py_context *context;
    stw_attn_desc desc;
    stw_attn_args args;
    stw_py_array arrays[ROLES];
    bool given[ROLES];
    PyObject *workspace;
    void *stream;
    bool forward, packed, flash, has_max_q, has_max_kv;
    double scale, softcap;
    long long flash_window[3];
    void *mask_out;
} call;

/* ---- reading the call ------------------------------------------------------------------------------------------- */
static int set_special(call *call, int number, PyObject *value) {
    stw_attn_desc *desc = &call->desc;
    switch (number) {
    case SCALE: desc->scale = (float)(call->scale = PyFloat_AsDouble(value)); break;
    case SOFTCAP:
        desc->softcap = (float)(call->softcap = PyFloat_AsDouble(value));
        if (call->softcap > 0 && desc->softcap == 0) { /* 0 would be: off */
            stw_py_invalid("%s: softcap %g is below the smallest f32 number", call->who, call->softcap);
            return -1;
        }
        break;
    case FLAGS: return stw_py_add_bits(&desc->flags, value, "flags");
    case SEED_VALUE: return stw_py_u64("dropout_seed", value, &call->args.dropout_seed);
    case OFFSET_VALUE: return stw_py_u64("dropout_offset", value, &call->args.dropout_offset);
    case DETERMINISTIC:
        desc->deterministic = PyObject_IsTrue(value) ? STW_DETERMINISTIC_ON : STW_DETERMINISTIC_OFF;
        break;
    case FLASH:
        if (!PyTuple_Check(value) || PyTuple_Size(value) != 3) {
            PyErr_SetString(PyExc_TypeError, "flash_window: (causal, left, right) is needed");
            return -1;
        }
        call->flash = true;
        for (int i = 0; i < 3; ++i) call->flash_window[i] = PyLong_AsLongLong(PyTuple_GetItem(value, i));
        break;
    default: break;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int set_option(call *call, int number, PyObject *value) {
    const option *option = &options[number];
    call->desc.flags |= option->flag;
    if (number == MAX_Q) call->has_max_q = true;
    if (number == MAX_KV) call->has_max_kv = true;
    int failed = option->where == SPECIAL
                     ? set_special(call, number, value)
                     : stw_py_set_field(option->where == IN_DESC ? (void *)&call->desc : (void *)&call->args,
                                        option->field, value, NULL);
    if (failed && number != FLASH && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s: %s is %R, a number is expected", call->who, option->name,
                     (PyObject *)Py_TYPE(value)); /* Python's own text does not name the argument */
    return failed;
}

static int set_tensor(call *call, role role, PyObject *value) {
    const role_info *info = &roles[role];
    if (role == WORKSPACE) {
        call->workspace = value;
        return 0;
    }
    if ((role == SEED || role == OFFSET) && PyLong_Check(value)) {
        *(void **)((char *)&call->args + info->pointer) = PyLong_AsVoidPtr(value);
        return PyErr_Occurred() ? -1 : 0;
    }
    stw_py_array *array = &call->arrays[role];
    if (stw_py_array_open(value, info->name, (uintptr_t)call->stream, array)) return -1;
    call->given[role] = true;
    bool written = info->written || (call->forward && (role == OUT || role == LSE)) ||
                   (role == DELTA && call->desc.flags & STW_ATTN_WRITE_DELTA);
    if (!stw_py_on_device(call->context, array)) {
        char place[32] = "host memory", wanted[32] = "host memory";
        if (array->device >= 0) PyOS_snprintf(place, sizeof place, "GPU %d", array->device);
        if (array->device == STW_PY_SOME_GPU) PyOS_snprintf(place, sizeof place, "a GPU");
        if (call->context->device >= 0) PyOS_snprintf(wanted, sizeof wanted, "GPU %d", call->context->device);
        stw_py_invalid("%s: %s is in %s, the call is for %s", call->who, info->name, place, wanted);
        return -1;
    }
    if (written && array->read_only) {
        stw_py_invalid("%s: %s is read only", call->who, info->name);
        return -1;
    }
    if (info->dtype && array->dtype != info->dtype) {
        stw_py_invalid("%s: %s is %s, it must be %s", call->who, info->name, stw_py_dtype_name(array->dtype),
                       stw_py_dtype_name(info->dtype));
        return -1;
    }
    if (role == MASK_OUT) call->mask_out = array->data;
    else *(void **)((char *)&call->args + info->pointer) = array->data;
    return 0;
}

static int keyword_number(const call *call, PyObject *name) {
    PyObject *number = PyDict_GetItemWithError(keywords, name);
    if (number) return (int)PyLong_AsLong(number);
    if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s: there is no argument %R", call->who, name);
    return -1;
}

/* context, layout, then keywords; the stream first, which arrays are asked for. */
static int read_call(call *call, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    int numbers[ROLES + OPTIONS];
    if (count != 2 || named > (Py_ssize_t)(sizeof numbers / sizeof *numbers)) {
        PyErr_Format(PyExc_TypeError, "%s(context, layout, *, ...): two arguments without a name, got %zd", call->who,
                     count);
        return -1;
    }
    if (!(call->context = stw_py_context_of(args[0]))) return -1;
    long layout = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return -1;
    if (layout < STW_PY_BSHD || layout > STW_PY_THD) {
        stw_py_invalid("%s: layout is %ld; BSHD, BHSD and THD are possible", call->who, layout);
        return -1;
    }
    call->packed = layout == STW_PY_THD;
    for (Py_ssize_t i = 0; i < named; ++i) {
        numbers[i] = keyword_number(call, PyTuple_GetItem(names, i));
        if (numbers[i] < 0) return -1;
        if (numbers[i] == STREAM && args[2 + i] != Py_None) call->stream = PyLong_AsVoidPtr(args[2 + i]);
        if (numbers[i] == ROLES + FLAGS && args[2 + i] != Py_None && set_special(call, FLAGS, args[2 + i])) return -1;
    }
    if (PyErr_Occurred()) return -1;
    for (Py_ssize_t i = 0; i < named; ++i) {
        PyObject *value = args[2 + i];
        if (value == Py_None || numbers[i] == STREAM) continue;
        if (numbers[i] < ROLES ? set_tensor(call, (role)numbers[i], value)
                               : set_option(call, numbers[i] - ROLES, value))
            return -1;
    }
    return (int)layout;
}

/* ---- from shapes to the descriptor ------------------------------------------------------------------------------ */
typedef struct dims { /* which dimension is which */
    int batch, head, seq, last;
} dims;
static const dims layouts[] = {{0, 2, 1, 3}, {0, 1, 2, 3}, {-1, 1, 0, 2}};

static int64_t extent(const stw_py_array *array, int dimension) { return dimension < 0 ? 0 : array->shape[dimension]; }

static stw_attn_strides strides_of(const stw_py_array *array, const dims *dims) {
    return (stw_attn_strides){dims->batch < 0 ? 0 : array->strides[dims->batch], array->strides[dims->head],
                              array->strides[dims->seq]};
}

static int wrong_shape(const call *call, role role, const char *should) {
    const stw_py_array *array = &call->arrays[role];
    char text[200] = "[";
    size_t end = 1;
    for (int i = 0; i < array->rank; ++i)
        end +=
            (size_t)PyOS_snprintf(text + end, sizeof text - end, "%s%lld", i ? ", " : "", (long long)array->shape[i]);
    PyOS_snprintf(text + end, sizeof text - end, "]");
    stw_py_invalid("%s: %s has the shape %s, it must be %s", call->who, roles[role].name, text, should);
    return -1;
}

static int missing(const call *call, role role) {
    stw_py_invalid("%s: %s is required", call->who, roles[role].name);
    return -1;
}

static int read_sizes(call *call, const dims *dims) {
    stw_attn_desc *desc = &call->desc;
    const int rank = dims->last + 1;
    for (role role = Q; role <= (call->given[MASK_OUT] ? K : V); ++role) {
        if (!call->given[role]) return missing(call, role);
        if (call->arrays[role].rank != rank)
            return wrong_shape(call, role, call->packed ? "[rows, heads, head_dim]" : "of four dimensions");
    }
    const stw_py_array *q = &call->arrays[Q], *k = &call->arrays[K], *v = &call->arrays[call->given[V] ? V : K];
    if (q->dtype != STW_F16 && q->dtype != STW_BF16 && q->dtype != STW_F32 && q->dtype != STW_F64) {
        stw_py_unsupported("%s: q is %s; f16, bf16, f32 and, on the CPU, f64 are there", call->who,
                           stw_py_dtype_name(q->dtype));
        return -1;
    }
    desc->dtype = q->dtype;
    desc->heads_q = extent(q, dims->head), desc->heads_kv = extent(k, dims->head);
    desc->head_dim_qk = extent(q, dims->last), desc->head_dim_v = extent(v, dims->last);
    if (call->packed) {
        for (role role = CU_Q; role <= CU_KV; ++role)
            if (!call->given[role]) return missing(call, role);
        if (call->arrays[CU_Q].rank != 1 || call->arrays[CU_Q].shape[0] < 1)
            return wrong_shape(call, CU_Q, "[sequences + 1]");
        if (!call->has_max_q || !call->has_max_kv) {
            stw_py_invalid("%s: %s is required beside cu_seqlens: no sequence is longer", call->who,
                           call->has_max_q ? "max_seq_kv" : "max_seq_q");
            return -1;
        }
        desc->batch = call->arrays[CU_Q].shape[0] - 1;
        desc->total_q = extent(q, dims->seq), desc->total_kv = extent(k, dims->seq);
        desc->flags |= STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV;
    } else {
        desc->batch = extent(q, dims->batch);
        desc->max_seq_q = extent(q, dims->seq), desc->max_seq_kv = extent(k, dims->seq);
        for (role role = CU_Q; role <= CU_KV; ++role)
            if (call->given[role]) {
                stw_py_invalid("%s: %s is for the layout THD", call->who, roles[role].name);
                return -1;
            }
    }
    return 0;
}

/* One of q's, k's or v's kind: `heads`, `rows` and `last` are the extents that it must have. */
static int check_rows(const call *call, role role, const dims *dims, int64_t heads, int64_t rows, int64_t last) {
    const stw_py_array *array = &call->arrays[role];
    const int rank = dims->last + 1;
    if (array->rank == rank && extent(array, dims->batch) == (call->packed ? 0 : call->desc.batch) &&
        extent(array, dims->head) == heads && extent(array, dims->seq) == rows && extent(array, dims->last) == last)
        return 0;
    char should[96];
    if (call->packed)
        PyOS_snprintf(should, sizeof should, "[%lld, %lld, %lld]", (long long)rows, (long long)heads, (long long)last);
    else
        PyOS_snprintf(should, sizeof should, "[%lld, %lld, %lld, %lld]", (long long)call->desc.batch,
                      (long long)(dims->head == 1 ? heads : rows), (long long)(dims->head == 1 ? rows : heads),
                      (long long)last);
    return wrong_shape(call, role, should);
}

/* q, k, v, out, dout and the gradients: shapes, types, strides. */
static int read_rows(call *call, const dims *dims) {
    stw_attn_desc *desc = &call->desc;
    const int64_t rows_q = call->packed ? desc->total_q : desc->max_seq_q,
                  rows_kv = call->packed ? desc->total_kv : desc->max_seq_kv;
    const struct {
        role role;
        stw_attn_strides *strides;
        int64_t *last;
        stw_dtype *gradient;
        int64_t heads, rows, width;
        uint32_t output;
    } tensors[] = {{Q, &desc->q, &desc->dim.q, NULL, desc->heads_q, rows_q, desc->head_dim_qk, 0},
                   {K, &desc->k, &desc->dim.k, NULL, desc->heads_kv, rows_kv, desc->head_dim_qk, 0},
                   {V, &desc->v, &desc->dim.v, NULL, desc->heads_kv, rows_kv, desc->head_dim_v, 0},
                   {OUT, &desc->out, &desc->dim.out, NULL, desc->heads_q, rows_q, desc->head_dim_v, 0},
                   {DOUT, &desc->dout, &desc->dim.dout, NULL, desc->heads_q, rows_q, desc->head_dim_v, 0},
                   {DQ, &desc->dq, NULL, &desc->dq_dtype, desc->heads_q, rows_q, desc->head_dim_qk, STW_OUT_DQ},
                   {DK, &desc->dk, NULL, &desc->dk_dtype, desc->heads_kv, rows_kv, desc->head_dim_qk, STW_OUT_DK},
                   {DV, &desc->dv, NULL, &desc->dv_dtype, desc->heads_kv, rows_kv, desc->head_dim_v, STW_OUT_DV}};
    bool scattered = false, anywhere = false;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
        const role role = tensors[i].role;
        const stw_py_array *array = &call->arrays[role];
        if (tensors[i].last) *tensors[i].last = 1;
        if (!call->given[role]) continue;
        if (check_rows(call, role, dims, tensors[i].heads, tensors[i].rows, tensors[i].width)) return -1;
        *tensors[i].strides = strides_of(array, dims);
        const int64_t last = array->shape[dims->last] > 1 ? array->strides[dims->last] : 1;
        const bool written = tensors[i].output || (call->forward && role == OUT);
        if (last != 1 && (written || last < 0)) {
            stw_py_invalid("%s: %s has the stride %lld along head_dim, it must be 1", call->who, roles[role].name,
                           (long long)last);
            return -1;
        }
        if (tensors[i].last) *tensors[i].last = last;
        scattered |= last != 1;
        anywhere |= !written && (uintptr_t)array->data % 16 != 0;
        if (!tensors[i].output) {
            if (array->dtype == desc->dtype && !array->truth) continue;
            stw_py_invalid("%s: %s is %s, q is %s", call->who, roles[role].name, stw_py_dtype_name(array->dtype),
                           stw_py_dtype_name(desc->dtype));
            return -1;
        }
        desc->outputs |= tensors[i].output;
        if (array->dtype != desc->dtype)
            *tensors[i].gradient = array->dtype ? array->dtype : STW_U8; /* the library refuses U8 */
    }
    if (anywhere) desc->flags |= STW_ATTN_ANY_ADDRESS;
    if (scattered) desc->flags |= STW_ATTN_HAS_DIM_STRIDES;
    else desc->dim = (stw_attn_dim_strides){0};
    return 0;
}

/* LSE, dLSE and delta: [B,H,S] (or longer rows, or a last dimension of 1); packed [H,T], or [B,H,S] of local rows. */
static int read_row_numbers(call *call, role role, stw_attn_strides *strides) {
    const stw_attn_desc *desc = &call->desc;
    const stw_py_array *array = &call->arrays[role];
    if (!call->given[role]) return 0;
    const stw_dtype wanted = desc->dtype == STW_F64 ? STW_F64 : STW_F32;
    if (array->dtype != wanted) {
        stw_py_invalid("%s: %s is %s, it must be %s", call->who, roles[role].name, stw_py_dtype_name(array->dtype),
                       stw_py_dtype_name(wanted));
        return -1;
    }
    if (call->packed && array->rank == 2) {
        if (array->shape[0] != desc->heads_q || array->shape[1] < desc->total_q)
            return wrong_shape(call, role, "[heads, rows]");
        *strides = (stw_attn_strides){0, array->strides[0], array->strides[1]};
        return 0;
    }
    const bool column = array->rank == 4 && array->shape[3] == 1;
    if ((array->rank != 3 && !column) || array->shape[0] != desc->batch || array->shape[1] != desc->heads_q ||
        array->shape[2] < desc->max_seq_q)
        return wrong_shape(call, role,
                           call->packed ? "[heads, rows] or [batch, heads, max_seq_q]" : "[batch, heads, rows]");
    *strides = (stw_attn_strides){array->strides[0], array->strides[1], array->strides[2]};
    return 0;
}

static int read_bias_strides(const call *call, role role, stw_bias_strides *strides) {
    const stw_attn_desc *desc = &call->desc;
    const stw_py_array *array = &call->arrays[role];
    const int64_t full[] = {desc->batch, desc->heads_q, desc->max_seq_q, desc->max_seq_kv};
    int64_t *to[] = {&strides->batch, &strides->head, &strides->query, &strides->key};
    bool fits = array->rank == 4;
    for (int i = 0; fits && i < 4; ++i) {
        fits = array->shape[i] == full[i] || array->shape[i] == 1;
        *to[i] = array->shape[i] == 1 ? 0 : array->strides[i];
    }
    return fits ? 0 : wrong_shape(call, role, "[batch or 1, heads or 1, queries or 1, keys or 1]");
}

static int read_bias(call *call) {
    stw_attn_desc *desc = &call->desc;
    if (call->given[BIAS]) {
        const stw_dtype type = call->arrays[BIAS].dtype;
        desc->bias_dtype = type ? type : STW_I64; /* the library refuses I64 */
        if (read_bias_strides(call, BIAS, &desc->bias)) return -1;
    }
    if (call->given[DBIAS]) {
        if (!call->given[BIAS]) return missing(call, BIAS);
        desc->outputs |= STW_OUT_DBIAS;
        if (call->arrays[DBIAS].dtype != desc->bias_dtype) desc->dbias_dtype = call->arrays[DBIAS].dtype;
        if (read_bias_strides(call, DBIAS, &desc->dbias)) return -1;
    }
    return 0;
}

/* Intervals [batch or 1, key heads or 1, keys, bounds], the keys of a pack [1, heads or 1, rows, bounds]; a block mask
 * [batch or 1, heads or 1, blocks of rows, blocks of keys]. */
static int read_masks(call *call) {
    static const int64_t bounds[] = {0, 1, 2, 2, 3, 4};
    stw_attn_desc *desc = &call->desc;
    const stw_py_array *intervals = &call->arrays[INTERVALS], *blocks = &call->arrays[BLOCK_MASK];
    if (call->given[INTERVALS] != (desc->interval_form != STW_INTERVALS_NONE)) {
        stw_py_invalid("%s: %s", call->who,
                       call->given[INTERVALS] ? "interval_form is required beside intervals"
                                              : "intervals is required beside interval_form");
        return -1;
    }
    if (call->given[INTERVALS] && (unsigned)desc->interval_form <= STW_INTERVALS_TWO_RANGES) {
        const int64_t full[] = {call->packed ? 1 : desc->batch, desc->heads_kv,
                                call->packed ? desc->total_kv : desc->max_seq_kv, bounds[desc->interval_form]};
        int64_t *to[] = {&desc->intervals.batch, &desc->intervals.head, &desc->intervals.key, &desc->intervals.bound};
        bool fits = intervals->rank == 4;
        for (int i = 0; fits && i < 4; ++i) {
            fits = intervals->shape[i] == full[i] || (i < 2 && intervals->shape[i] == 1);
            *to[i] = intervals->shape[i] == 1 ? 0 : intervals->strides[i];
        }
        if (!fits)
            return wrong_shape(call, INTERVALS,
                               call->packed ? "[1, key heads or 1, rows of keys, bounds of the form]"
                                            : "[batch or 1, key heads or 1, keys, bounds of the form]");
    }
    if (!call->given[BLOCK_MASK]) return 0;
    const int64_t full[] = {desc->batch, desc->heads_q, (desc->max_seq_q + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK,
                            (desc->max_seq_kv + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK};
    int64_t *to[] = {&desc->block_mask.batch, &desc->block_mask.head, &desc->block_mask.query, &desc->block_mask.key};
    desc->flags |= STW_ATTN_BLOCK_MASK;
    bool fits = blocks->rank == 4;
    for (int i = 0; fits && i < 4; ++i) {
        fits = blocks->shape[i] == full[i] || (i < 2 && blocks->shape[i] == 1);
        *to[i] = blocks->shape[i] == 1 ? 0 : blocks->strides[i];
    }
    return fits ? 0 : wrong_shape(call, BLOCK_MASK, "[batch or 1, heads or 1, blocks of 128 rows, blocks of 128 keys]");
}

/* One number a head, or a head and batch. */
static int check_heads(const call *call, role role, bool batches) {
    const stw_attn_desc *desc = &call->desc;
    const stw_py_array *array = &call->arrays[role];
    const stw_dtype wanted = desc->dtype == STW_F64 ? STW_F64 : STW_F32;
    if (array->dtype != wanted) {
        stw_py_invalid("%s: %s is %s, it must be %s", call->who, roles[role].name, stw_py_dtype_name(array->dtype),
                       stw_py_dtype_name(wanted));
        return -1;
    }
    const int last = array->rank - 1;
    const bool fits = (array->rank == 1 || (batches && array->rank == 2 && array->shape[0] == desc->batch)) &&
                      array->shape[last] == desc->heads_q && (array->strides[last] == 1 || array->shape[last] < 2);
    return fits ? 0
                : wrong_shape(call, role,
                              batches ? "[heads] or [batch, heads], heads contiguous" : "[heads], contiguous");
}

/* One number a sequence. */
static int check_batches(const call *call, role role, int64_t count) {
    const stw_py_array *array = &call->arrays[role];
    if (!call->given[role] || (array->rank == 1 && array->shape[0] == count && (count < 2 || array->strides[0] == 1)))
        return 0;
    char should[64];
    PyOS_snprintf(should, sizeof should, "[%lld], contiguous", (long long)count);
    return wrong_shape(call, role, should);
}

static int read_vectors(call *call) {
    stw_attn_desc *desc = &call->desc;
    if (call->given[ALIBI]) {
        if (check_heads(call, ALIBI, true)) return -1;
        desc->flags |= STW_ATTN_ALIBI;
        desc->alibi_stride_batch = call->arrays[ALIBI].rank == 2 ? call->arrays[ALIBI].strides[0] : 0;
    }
    if (call->given[SINK]) {
        if (check_heads(call, SINK, false)) return -1;
        desc->flags |= STW_ATTN_SINK;
    }
    if (call->given[DSINK]) {
        if (check_heads(call, DSINK, false)) return -1;
        desc->outputs |= STW_OUT_DSINK;
    }
    if (call->given[USED_Q] || call->given[USED_KV]) desc->flags |= STW_ATTN_HAS_USED_LENGTHS;
    static const role single[] = {SEED, OFFSET, STATUS};
    for (size_t i = 0; i < sizeof single / sizeof *single; ++i)
        if (call->given[single[i]] && stw_py_array_elements(&call->arrays[single[i]]) != 1)
            return wrong_shape(call, single[i], "of one element");
    for (role role = USED_Q; role <= K_OFFSETS; ++role)
        if (check_batches(call, role, desc->batch)) return -1;
    return check_batches(call, CU_Q, desc->batch + 1) || check_batches(call, CU_KV, desc->batch + 1) ? -1 : 0;
}

static int read_numbers(call *call) {
    stw_attn_desc *desc = &call->desc;
    if (desc->dtype == STW_F64) desc->scale_f64 = call->scale, desc->softcap_f64 = call->softcap;
    if (call->given[DLSE]) desc->flags |= STW_ATTN_DLSE;
    if (!call->flash) return 0;
    if (desc->mask || desc->flags & (STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SHIFT)) {
        stw_py_invalid("%s: flash_window excludes mask, window_left, window_right and diagonal_shift", call->who);
        return -1;
    }
    stw_status status =
        stw_attn_mask_from_flash(desc, call->flash_window[0] != 0, call->flash_window[1], call->flash_window[2]);
    if (!status) return 0;
    stw_py_raise(status);
    return -1;
}

static int read_desc(call *call, int layout) {
    const dims *dims = &layouts[layout];
    if (read_sizes(call, dims) || read_rows(call, dims) || read_row_numbers(call, LSE, &call->desc.lse) ||
        read_row_numbers(call, DLSE, &call->desc.dlse) || read_row_numbers(call, DELTA, &call->desc.delta) ||
        read_bias(call) || read_masks(call) || read_vectors(call) || read_numbers(call))
        return -1;
    return 0;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */
static void begin(call *call, const char *who, bool forward) { /* arrays are left as they are: 30 of them are 6 KiB */
    call->who = who;
    call->forward = forward;
    memset(&call->desc, 0, sizeof call->desc); /* with what lies between fields: kept plans are found by all bytes */
    memset(&call->args, 0, sizeof call->args);
    call->desc.struct_size = sizeof call->desc;
    call->args.struct_size = sizeof call->args;
    memset(call->given, 0, sizeof call->given);
    call->workspace = NULL;
    call->stream = call->mask_out = NULL;
    call->packed = call->flash = call->has_max_q = call->has_max_kv = false;
    call->scale = call->softcap = 0;
}

static void end(call *call) {
    for (int i = 0; i < ROLES; ++i)
        if (call->given[i]) stw_py_array_close(&call->arrays[i]);
}

static PyObject *run(call *call) {
    stw_context *context = call->context->context;
    const bool forward = call->forward;
    size_t size = 0;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = forward ? stw_attn_fwd_once_workspace(context, &call->desc, &size)
                     : stw_attn_bwd_once_workspace(context, &call->desc, &size);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    stw_py_workspace workspace;
    if (stw_py_workspace_open(call->context, call->workspace, size, (uintptr_t)call->stream, &workspace)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = forward
                 ? stw_attn_fwd_once(context, &call->desc, &call->args, workspace.data, workspace.size, call->stream)
                 : stw_attn_bwd_once(context, &call->desc, &call->args, workspace.data, workspace.size, call->stream);
    Py_END_ALLOW_THREADS
    if (status) stw_py_raise(status);
    stw_py_workspace_close(call->context, &workspace);
    if (status) return NULL;
    Py_RETURN_NONE;
}

static PyObject *attention(const char *who, bool forward, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    call call;
    begin(&call, who, forward);
    int layout = read_call(&call, args, count, names);
    PyObject *result = NULL;
    if (layout >= 0 && !read_desc(&call, layout)) {
        if (!forward && !call.desc.outputs) stw_py_invalid("%s: none of dq, dk, dv, dbias, dsink is given", who);
        else result = run(&call);
    }
    end(&call);
    return result;
}

PyObject *stw_py_attn_bwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    (void)module;
    return attention("attn_bwd", false, args, count, names);
}

PyObject *stw_py_attn_fwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    (void)module;
    return attention("attn_fwd", true, args, count, names);
}

static PyObject *run_mask(call *call) {
    const stw_py_array *mask = &call->arrays[MASK_OUT];
    stw_attn_desc *desc = &call->desc;
    int64_t elements;
    if (__builtin_mul_overflow(desc->batch * desc->heads_q, desc->max_seq_q, &elements) ||
        __builtin_mul_overflow(elements, desc->max_seq_kv, &elements) || stw_py_array_elements(mask) != elements ||
        !stw_py_array_contiguous(mask)) {
        wrong_shape(call, MASK_OUT, "[batch, heads, queries, keys], contiguous");
        return NULL;
    }
    stw_status status = call->packed ? stw_layout_thd(desc) : stw_layout_bshd(desc);
    if (status) return stw_py_raise(status);
    stw_py_plan *plan = stw_py_keep_plan(call->context, STW_PY_ATTN_FWD, desc);
    if (!plan) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = stw_dropout_mask(plan->plan, &call->args, call->mask_out, call->stream);
    Py_END_ALLOW_THREADS
    if (status) stw_py_raise(status);
    Py_DECREF((PyObject *)plan);
    if (status) return NULL;
    Py_RETURN_NONE;
}

PyObject *stw_py_dropout_mask(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    (void)module;
    call call;
    begin(&call, "dropout_mask", true);
    int layout = read_call(&call, args, count, names);
    PyObject *result = NULL;
    if (layout >= 0 && !call.given[MASK_OUT]) missing(&call, MASK_OUT);
    else if (layout >= 0 && !read_desc(&call, layout)) result = run_mask(&call);
    end(&call);
    return result;
}

int stw_py_add_attention(PyObject *module) {
    if (!(keywords = PyDict_New())) return -1;
    for (int i = 0; i < ROLES; ++i)
        if (stw_py_add_keyword(keywords, roles[i].name, i)) return -1;
    for (int i = 0; i < OPTIONS; ++i) {
        const stw_py_table *table = options[i].where == IN_ARGS ? stw_py_attn_args : stw_py_attn_desc;
        options[i].field = stw_py_find_field(table, options[i].name);
        if (stw_py_add_keyword(keywords, options[i].name, ROLES + i)) return -1;
    }
    return PyModule_AddIntConstant(module, "BSHD", STW_PY_BSHD) ||
                   PyModule_AddIntConstant(module, "BHSD", STW_PY_BHSD) ||
                   PyModule_AddIntConstant(module, "THD", STW_PY_THD)
               ? -1
               : 0;
}
