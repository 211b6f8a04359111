/* SPDX-License-Identifier: MIT */
/* Nested operations with arrays: descriptor and arguments are read off the arrays; plans are kept by descriptor. */
#include "native.h"

#include <string.h>

typedef enum role {
    GRAD,
    X,
    Y,
    OTHER,
    WEIGHT,
    MEAN,
    RSTD,
    X_BASES,
    OTHER_BASES,
    GRAD_BASES,
    DX,
    DOTHER,
    DWEIGHT,
    DBIAS,
    STATUS,
    TENSORS,
    OFFSETS = TENSORS,
    USED,
    OFFSETS_HOST,
    USED_HOST, /* a tuple of one array an axis each */
    WORKSPACE,
    STREAM,
    ROLES
} role;

typedef struct role_info {
    const char *name;
    size_t pointer;  /* in stw_jagged_args, of an axis for the tuples */
    stw_dtype dtype; /* required, or NONE */
    uint32_t output; /* STW_JAGGED_D* */
    uint32_t flag;   /* set where it is given */
} role_info;

#define AT(field)      offsetof(stw_jagged_args, field)
#define IN_AXIS(field) offsetof(stw_jagged_offsets, field)
static const role_info roles[ROLES] = {
    [GRAD] = {"grad", AT(grad), 0, 0, 0},
    [X] = {"x", AT(x), 0, 0, 0},
    [Y] = {"y", AT(y), 0, 0, 0},
    [OTHER] = {"other", AT(other), 0, 0, 0},
    [WEIGHT] = {"weight", AT(weight), 0, 0, 0},
    [MEAN] = {"mean", AT(mean), STW_F32, 0, 0},
    [RSTD] = {"rstd", AT(rstd), STW_F32, 0, 0},
    [X_BASES] = {"x_bases", AT(x_bases), STW_I64, 0, STW_JAGGED_X_BASES},
    [OTHER_BASES] = {"other_bases", AT(other_bases), STW_I64, 0, STW_JAGGED_OTHER_BASES},
    [GRAD_BASES] = {"grad_bases", AT(grad_bases), STW_I64, 0, STW_JAGGED_GRAD_BASES},
    [DX] = {"dx", AT(dx), 0, STW_JAGGED_DX, 0},
    [DOTHER] = {"dother", AT(dother), 0, STW_JAGGED_DOTHER, 0},
    [DWEIGHT] = {"dweight", AT(dweight), 0, STW_JAGGED_DWEIGHT, 0},
    [DBIAS] = {"dbias", AT(dbias), 0, STW_JAGGED_DBIAS, 0},
    [STATUS] = {"status_out", AT(status_out), STW_I32, 0, 0},
    [OFFSETS] = {"offsets", IN_AXIS(offsets), 0, 0, 0},
    [USED] = {"used", IN_AXIS(used), 0, 0, STW_JAGGED_HAS_USED},
    [OFFSETS_HOST] = {"offsets_host", IN_AXIS(offsets_host), 0, 0, 0},
    [USED_HOST] = {"used_host", IN_AXIS(used_host), 0, 0, 0},
    [WORKSPACE] = {"workspace", 0, 0, 0, 0},
    [STREAM] = {"stream", 0, 0, 0, 0},
};

enum { AXES = 3, LISTS = WORKSPACE - OFFSETS };

static const char *const field_names[] = {
    "axis",  "ragged_axes", "storage",   "grad_storage", "other_storage", "dim",         "outer",
    "inner", "dim_size",    "dim_after", "index",        "out_features",  "padded",      "threshold",
    "shape", "grad_shape",  "flags",     "accumulate",   "components",    "cpu_threads", "weight_dtype"};
enum { FIELDS = sizeof field_names / sizeof *field_names };
static const stw_py_field *fields[FIELDS];

static PyObject *keywords; /* name -> number of a role, or ROLES + number of a field */

typedef struct call {
    stw_py_context *context;
    stw_jagged_desc desc;
    stw_jagged_args args;
    stw_py_array arrays[TENSORS];
    bool given[TENSORS];
    stw_py_array lists[LISTS][AXES];
    bool listed[LISTS][AXES];
    PyObject *tuples[LISTS];
    PyObject *workspace;
    void *stream;
    bool has_components;
} call;

static int refuse(const char *name, const char *what, const char *should) {
    stw_py_invalid("jagged_bwd: %s %s, it must be %s", name, what, should);
    return -1;
}

static int check_array(const call *call, const stw_py_array *array, bool host, bool written) {
    if (host ? array->device != STW_PY_HOST : !stw_py_on_device(call->context, array))
        return refuse(array->name, "is in other memory", host ? "in host memory" : "on the call's device");
    if (!stw_py_array_contiguous(array)) return refuse(array->name, "is not contiguous", "contiguous");
    return written && array->read_only ? refuse(array->name, "is read only", "writable") : 0;
}

static int set_tensor(call *call, role role, PyObject *value) {
    const role_info *info = &roles[role];
    stw_py_array *array = &call->arrays[role];
    if (stw_py_array_open(value, info->name, (uintptr_t)call->stream, array)) return -1;
    call->given[role] = true;
    if (check_array(call, array, false, info->output || role == STATUS)) return -1;
    if (info->dtype && array->dtype != info->dtype)
        return refuse(info->name, stw_py_dtype_name(array->dtype), stw_py_dtype_name(info->dtype));
    *(void **)((char *)&call->args + info->pointer) = array->data;
    call->desc.outputs |= info->output;
    call->desc.flags |= info->flag;
    return 0;
}

static int set_list(call *call, role role, PyObject *value) {
    const role_info *info = &roles[role];
    PyObject *tuple = PySequence_Tuple(value);
    Py_ssize_t count = tuple ? PyTuple_Size(tuple) : -1;
    int failed = count < 0 || (count > AXES && refuse(info->name, "has too many axes", "a tuple of up to three"));
    for (Py_ssize_t i = 0; !failed && i < count; ++i) {
        PyObject *object = PyTuple_GetItem(tuple, i);
        if (object == Py_None) continue;
        stw_py_array *array = &call->lists[role - OFFSETS][i];
        failed = stw_py_array_open(object, info->name, (uintptr_t)call->stream, array);
        if (failed) break;
        call->listed[role - OFFSETS][i] = true;
        failed = check_array(call, array, role == OFFSETS_HOST || role == USED_HOST, false);
        if (!failed && array->rank != 1) failed = refuse(info->name, "has not one dimension", "a tuple of vectors");
        if (!failed && array->dtype != STW_I32 && array->dtype != STW_I64)
            failed = refuse(info->name, stw_py_dtype_name(array->dtype), "i32 or i64");
        if (!failed && call->desc.index_dtype && call->desc.index_dtype != array->dtype)
            failed = refuse(info->name, stw_py_dtype_name(array->dtype), "of the type of the other offsets");
        if (failed) break;
        call->desc.index_dtype = array->dtype;
        call->desc.flags |= info->flag;
        *(const void **)((char *)&call->args.axis[i] + info->pointer) = array->data;
        const int64_t components = stw_py_array_elements(array) - (role == OFFSETS || role == OFFSETS_HOST);
        if (components < 0 || (call->has_components && call->desc.components != components))
            failed = refuse(info->name, "has another length", "components + 1 long (offsets) or components (used)");
        call->desc.components = components;
        call->has_components = true;
    }
    call->tuples[role - OFFSETS] = tuple; /* its arrays may be held by nobody else */
    return failed ? -1 : 0;
}

static int set_field(call *call, int number, PyObject *value) {
    const stw_py_field *field = fields[number];
    if (!strcmp(field->name, "flags")) {
        return stw_py_add_bits(&call->desc.flags, value, "flags");
    }
    if (!strcmp(field->name, "cpu_threads")) return stw_py_set_field(&call->args, field, value, NULL);
    if (!strcmp(field->name, "components")) {
        const int64_t components = PyLong_AsLongLong(value);
        if (PyErr_Occurred()) return -1;
        if (call->has_components && call->desc.components != components)
            return refuse("components", "is another number", "as many as there are offsets, less one");
        call->has_components = true;
        call->desc.components = components;
        return 0;
    }
    const int rank = PySequence_Check(value) ? (int)PySequence_Size(value) : 0;
    if (PyErr_Occurred()) return -1;
    if (!strcmp(field->name, "shape")) call->desc.shape_rank = rank;
    if (!strcmp(field->name, "grad_shape")) call->desc.grad_rank = rank;
    return stw_py_set_field(&call->desc, field, value, NULL);
}

static int read_call(call *call, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    int numbers[ROLES + FIELDS];
    if (count != 2 || named > (Py_ssize_t)(sizeof numbers / sizeof *numbers)) {
        PyErr_Format(PyExc_TypeError, "jagged_bwd(context, op, *, ...): two arguments without a name, got %zd", count);
        return -1;
    }
    if (!(call->context = stw_py_context_of(args[0]))) return -1;
    uint32_t op = 0;
    if (stw_py_add_bits(&op, args[1], "op")) return -1;
    call->desc.op = (stw_jagged_op)op;
    for (Py_ssize_t i = 0; i < named && !PyErr_Occurred(); ++i) {
        PyObject *name = PyTuple_GetItem(names, i), *number = PyDict_GetItemWithError(keywords, name);
        if (!number && !PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "jagged_bwd: there is no argument %R", name);
        numbers[i] = number ? (int)PyLong_AsLong(number) : 0;
        if (numbers[i] == STREAM && args[2 + i] != Py_None) call->stream = PyLong_AsVoidPtr(args[2 + i]);
    }
    if (PyErr_Occurred()) return -1;
    for (Py_ssize_t i = 0; i < named; ++i) {
        PyObject *value = args[2 + i];
        const int number = numbers[i];
        if (value == Py_None || number == STREAM) continue;
        if (number == WORKSPACE) call->workspace = value;
        else if (number < TENSORS ? set_tensor(call, (role)number, value)
                 : number < ROLES ? set_list(call, (role)number, value)
                                  : set_field(call, number - ROLES, value))
            return -1;
    }
    return 0;
}

/* Element types: those of the gradients are told where they differ from their tensor's. */
static int read_types(call *call) {
    stw_jagged_desc *desc = &call->desc;
    if (!call->given[GRAD]) return refuse("grad", "is missing", "given");
    const uint32_t ragged = desc->op == STW_JAGGED_MATMUL ? desc->ragged_axes : 1;
    for (int i = 0; i < AXES; ++i)
        if (ragged >> i & 1 && !call->listed[OFFSETS - OFFSETS][i])
            return refuse("offsets", "of a ragged axis are missing", "given");
    desc->dtype = call->arrays[GRAD].dtype;
    if (call->given[WEIGHT]) {
        if (desc->op == STW_JAGGED_LAYER_NORM || desc->op == STW_JAGGED_RMS_NORM) desc->flags |= STW_JAGGED_HAS_GAMMA;
        if (call->arrays[WEIGHT].dtype != desc->dtype) desc->weight_dtype = call->arrays[WEIGHT].dtype;
    }
    const stw_dtype weight = desc->weight_dtype ? desc->weight_dtype : desc->dtype;
    const struct {
        role role;
        stw_dtype *to, own;
    } gradients[] = {{DX, &desc->dx_dtype, desc->dtype},
                     {DOTHER, &desc->dother_dtype, desc->dtype},
                     {DWEIGHT, &desc->dweight_dtype, weight},
                     {DBIAS, &desc->dbias_dtype, weight}};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; ++i) {
        if (!call->given[gradients[i].role]) continue;
        const stw_dtype type = call->arrays[gradients[i].role].dtype;
        if (type != gradients[i].own) *gradients[i].to = type ? type : STW_U8; /* the library refuses U8 */
    }
    for (role role = X; role <= OTHER; ++role)
        if (call->given[role] && call->arrays[role].dtype != desc->dtype)
            return refuse(roles[role].name, stw_py_dtype_name(call->arrays[role].dtype), "of grad's type");
    if (!desc->index_dtype) desc->index_dtype = STW_I64; /* without offsets it is not read */
    if (call->given[X_BASES]) desc->x_elements = stw_py_array_elements(&call->arrays[call->given[X] ? X : DX]);
    if (call->given[OTHER_BASES])
        desc->other_elements = stw_py_array_elements(&call->arrays[call->given[OTHER] ? OTHER : DOTHER]);
    if (call->given[GRAD_BASES]) desc->grad_elements = stw_py_array_elements(&call->arrays[GRAD]);
    return 0;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------ */
static int64_t index_at(const stw_py_array *array, int64_t at) {
    return array->dtype == STW_I32 ? ((const int32_t *)array->data)[at] : ((const int64_t *)array->data)[at];
}

/* Elements of the component that select takes, where its lengths are in host memory; else -1, as for lengths that the
 * library refuses. */
static int64_t component_elements(const call *call) {
    const stw_jagged_desc *desc = &call->desc;
    const int mirror = call->context->device == STW_PY_HOST ? 0 : OFFSETS_HOST - OFFSETS;
    const int64_t b = desc->index < 0 ? desc->index + desc->components : desc->index;
    const stw_py_array *offsets = &call->lists[mirror][0], *used = &call->lists[mirror + 1][0];
    int64_t length = -1;
    if (call->listed[mirror + 1][0]) length = index_at(used, b);
    else if (call->listed[mirror][0] && !(desc->flags & STW_JAGGED_HAS_USED))
        length = index_at(offsets, b + 1) - index_at(offsets, b);
    if (length < 0 || length > desc->axis[0].total) return -1;
    return length * (desc->outer ? desc->outer : 1) * (desc->inner ? desc->inner : 1);
}

static int check_elements(const stw_py_array *array, int64_t needed) {
    const int64_t elements = stw_py_array_elements(array);
    if (needed < 0 || elements == needed) return 0;
    stw_py_invalid("jagged_bwd: %s has %lld elements, by the sizes of the call it must have %lld", array->name,
                   (long long)elements, (long long)needed);
    return -1;
}

/* The plan has found the descriptor good. */
static int check_sizes(const call *call) {
    const stw_jagged_desc *desc = &call->desc;
    stw_py_jagged_sizes sizes = stw_py_jagged_sizes_of(desc);
    const bool component = desc->op == STW_JAGGED_SELECT && desc->dim == STW_DIM_COMPONENT;
    if (component && call->given[GRAD]) sizes.grad = component_elements(call);
    const int64_t needed[TENSORS] = {
        [GRAD] = sizes.grad,
        [X] = sizes.x,
        [Y] = sizes.x,
        [OTHER] = sizes.other,
        [WEIGHT] = sizes.weight,
        [MEAN] = sizes.lines,
        [RSTD] = sizes.lines,
        [X_BASES] = desc->components,
        [OTHER_BASES] = desc->components,
        [GRAD_BASES] = desc->components,
        [DX] = sizes.dx,
        [DOTHER] = sizes.other,
        [DWEIGHT] = sizes.weight,
        [DBIAS] = sizes.columns,
        [STATUS] = 1,
    };
    for (role role = 0; role < TENSORS; ++role)
        if (call->given[role] && check_elements(&call->arrays[role], needed[role])) return -1;
    return 0;
}

static PyObject *run(call *call) {
    if (!call->desc.outputs) {
        refuse("none of dx, dother, dweight, dbias", "is given", "one at least");
        return NULL;
    }
    stw_py_plan *plan = stw_py_keep_plan(call->context, STW_PY_JAGGED_BWD, &call->desc);
    if (!plan) return NULL;
    stw_py_workspace workspace;
    const size_t size = stw_plan_workspace_size(plan->plan);
    if (check_sizes(call) ||
        stw_py_workspace_open(call->context, call->workspace, size, (uintptr_t)call->stream, &workspace)) {
        Py_DECREF((PyObject *)plan);
        return NULL;
    }
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_jagged_bwd(plan->plan, &call->args, workspace.data, workspace.size, call->stream);
    Py_END_ALLOW_THREADS
    if (status) stw_py_raise(status);
    stw_py_workspace_close(call->context, &workspace);
    Py_DECREF((PyObject *)plan);
    if (status) return NULL;
    Py_RETURN_NONE;
}

PyObject *stw_py_jagged_bwd(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    (void)module;
    call call;
    memset(&call, 0, sizeof call); /* with what lies between fields: kept plans are found by all bytes */
    call.desc.struct_size = sizeof call.desc;
    call.args.struct_size = sizeof call.args;
    PyObject *result = read_call(&call, args, count, names) || read_types(&call) ? NULL : run(&call);
    for (int i = 0; i < TENSORS; ++i)
        if (call.given[i]) stw_py_array_close(&call.arrays[i]);
    for (int i = 0; i < LISTS * AXES; ++i)
        if (call.listed[i / AXES][i % AXES]) stw_py_array_close(&call.lists[i / AXES][i % AXES]);
    for (int i = 0; i < LISTS; ++i) Py_XDECREF(call.tuples[i]);
    return result;
}

int stw_py_add_jagged(PyObject *module) {
    (void)module;
    if (!(keywords = PyDict_New())) return -1;
    for (int i = 0; i < ROLES + FIELDS; ++i) {
        const char *name = i < ROLES ? roles[i].name : field_names[i - ROLES];
        if (i >= ROLES) {
            const stw_py_field *field = stw_py_find_field(stw_py_jagged_desc, name);
            fields[i - ROLES] = field ? field : stw_py_find_field(stw_py_jagged_args, name);
        }
        if (!name) continue;
        if (stw_py_add_keyword(keywords, name, i)) return -1;
    }
    return 0;
}
