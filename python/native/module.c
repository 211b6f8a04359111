/* SPDX-License-Identifier: MIT */
/* The C module sternway._native: the C interface as it is, and its calls with arrays. */
#include "native.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- exceptions ------------------------------------------------------------------------------------------------- */
static struct {
    const char *name;
    PyObject **also; /* a builtin exception that it is, too */
    PyObject *type;
} exceptions[] = {
    [STW_OK] = {"Error", &PyExc_RuntimeError, NULL}, /* the base of all */
    [STW_E_INVALID] = {"InvalidError", &PyExc_ValueError, NULL},
    [STW_E_UNSUPPORTED] = {"UnsupportedError", &PyExc_NotImplementedError, NULL},
    [STW_E_NO_DRIVER] = {"NoDriverError", NULL, NULL},
    [STW_E_NO_DEVICE] = {"NoDeviceError", NULL, NULL},
    [STW_E_NO_IMAGE] = {"NoImageError", NULL, NULL},
    [STW_E_WORKSPACE] = {"WorkspaceError", NULL, NULL},
    [STW_E_NO_MEMORY] = {"NoMemoryError", &PyExc_MemoryError, NULL},
    [STW_E_DRIVER] = {"DriverError", NULL, NULL},
    [STW_E_INTERNAL] = {"InternalError", NULL, NULL},
    [STW_E_DEVICE_LOST] = {"DeviceLostError", NULL, NULL},
    [STW_E_FORKED] = {"ForkedError", NULL, NULL},
};
enum { EXCEPTIONS = sizeof exceptions / sizeof *exceptions };

static int add_exceptions(PyObject *module) {
    for (int i = 0; i < EXCEPTIONS; ++i) {
        char name[64];
        snprintf(name, sizeof name, "sternway.%s", exceptions[i].name);
        PyObject *also = exceptions[i].also ? *exceptions[i].also : NULL;
        PyObject *bases = i == 0 ? Py_BuildValue("(O)", also)
                          : also ? Py_BuildValue("(OO)", exceptions[0].type, also)
                                 : Py_BuildValue("(O)", exceptions[0].type);
        PyObject *members = bases ? Py_BuildValue("{s:i}", "status", i) : NULL;
        exceptions[i].type = members ? PyErr_NewException(name, bases, members) : NULL;
        Py_XDECREF(members);
        Py_XDECREF(bases);
        if (!exceptions[i].type || PyModule_AddObjectRef(module, exceptions[i].name, exceptions[i].type)) return -1;
    }
    return 0;
}

void *stw_py_raise(stw_status status) {
    const int number = status > 0 && (int)status < EXCEPTIONS ? (int)status : STW_E_INTERNAL;
    const char *text = stw_last_error();
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (message) PyErr_SetObject(exceptions[number].type, message);
    Py_XDECREF(message);
    return NULL;
}

static void raise_text(stw_status status, const char *format, va_list arguments) {
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    PyErr_SetString(exceptions[status].type, text);
}

void *stw_py_invalid(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    raise_text(STW_E_INVALID, format, arguments);
    va_end(arguments);
    return NULL;
}

void *stw_py_unsupported(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    raise_text(STW_E_UNSUPPORTED, format, arguments);
    va_end(arguments);
    return NULL;
}

/* ---- functions of the C interface ------------------------------------------------------------------------------- */
static PyObject *version(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    const unsigned number = stw_version();
    return PyUnicode_FromFormat("%u.%u.%u", number / 10000, number / 100 % 100, number % 100);
}

static PyObject *last_error(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    const char *text = stw_last_error();
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *status_name(PyObject *module, PyObject *number) {
    (void)module;
    long status = PyLong_AsLong(number);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(stw_status_name((stw_status)status));
}

/* A list of dicts of infos that the library writes; the table's fields but struct_size. */
static PyObject *list_infos(const stw_py_table *table, stw_status (*list)(void *, size_t, size_t *)) {
    size_t count = 0;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = list(NULL, 0, &count);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    char *infos = PyMem_Calloc(count ? count : 1, table->size);
    if (!infos) return PyErr_NoMemory();
    const size_t capacity = count;
    for (size_t i = 0; i < capacity; ++i) *(size_t *)(infos + i * table->size) = table->size;
    Py_BEGIN_ALLOW_THREADS
    status = list(infos, capacity, &count);
    Py_END_ALLOW_THREADS
    if (count > capacity) count = capacity;
    PyObject *result = status ? stw_py_raise(status) : PyList_New(0);
    for (size_t i = 0; result && i < count; ++i) {
        PyObject *row = PyDict_New();
        int failed = !row;
        for (const stw_py_field *field = table->fields + 1; !failed && field->name; ++field) {
            PyObject *value = stw_py_get_field(infos + i * table->size, field);
            failed = !value || PyDict_SetItemString(row, field->name, value);
            Py_XDECREF(value);
        }
        if (failed || PyList_Append(result, row)) Py_CLEAR(result);
        Py_XDECREF(row);
    }
    PyMem_Free(infos);
    return result;
}

static stw_status list_devices(void *infos, size_t capacity, size_t *count) {
    return stw_devices(infos, capacity, count);
}
static stw_status list_images(void *infos, size_t capacity, size_t *count) {
    return stw_embedded_images(infos, capacity, count);
}

static PyObject *devices(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return list_infos(stw_py_device_info, list_devices);
}

static PyObject *embedded_images(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return list_infos(stw_py_image_info, list_images);
}

static PyObject *lay_out(PyObject *object, stw_status (*function)(stw_attn_desc *)) {
    stw_attn_desc *desc = stw_py_struct(object, stw_py_attn_desc);
    stw_status status = desc ? function(desc) : STW_OK;
    if (!desc) return NULL;
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *layout_bshd(PyObject *module, PyObject *desc) { return (void)module, lay_out(desc, stw_layout_bshd); }
static PyObject *layout_bhsd(PyObject *module, PyObject *desc) { return (void)module, lay_out(desc, stw_layout_bhsd); }
static PyObject *layout_thd(PyObject *module, PyObject *desc) { return (void)module, lay_out(desc, stw_layout_thd); }

static PyObject *mask_from_flash(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *object;
    int causal;
    long long left, right;
    if (!PyArg_ParseTuple(args, "OpLL", &object, &causal, &left, &right)) return NULL;
    stw_attn_desc *desc = stw_py_struct(object, stw_py_attn_desc);
    if (!desc) return NULL;
    stw_status status = stw_attn_mask_from_flash(desc, causal, left, right);
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

enum explained { ATTN_BWD, ATTN_FWD, JAGGED };

static PyObject *explain(PyObject *args, enum explained what) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, "OO", &first, &second)) return NULL;
    const stw_context_opts *opts = stw_py_struct(first, stw_py_context_opts);
    const void *desc = opts ? stw_py_struct(second, what == JAGGED ? stw_py_jagged_desc : stw_py_attn_desc) : NULL;
    if (!desc) return NULL;
    char *text = NULL;
    size_t size = 0, needed = 0;
    stw_status status = STW_OK;
    PyObject *result = NULL;
    for (int round = 0; round < 3; ++round) { /* the text is written once its size is known */
        Py_BEGIN_ALLOW_THREADS
        status = what == JAGGED     ? stw_explain_jagged(opts, desc, text, size, &needed)
                 : what == ATTN_FWD ? stw_explain_attn_fwd(opts, desc, text, size, &needed)
                                    : stw_explain_attn(opts, desc, text, size, &needed);
        Py_END_ALLOW_THREADS
        if (status || (text && needed <= size)) break;
        size = needed + 1;
        char *longer = PyMem_Realloc(text, size);
        if (!longer) break;
        text = longer;
        text[0] = 0;
    }
    if (status) stw_py_raise(status);
    else result = text ? PyUnicode_FromString(text) : PyErr_NoMemory();
    PyMem_Free(text);
    return result;
}

static PyObject *explain_attn(PyObject *module, PyObject *args) { return (void)module, explain(args, ATTN_BWD); }
static PyObject *explain_attn_fwd(PyObject *module, PyObject *args) { return (void)module, explain(args, ATTN_FWD); }
static PyObject *explain_jagged(PyObject *module, PyObject *args) { return (void)module, explain(args, JAGGED); }

/* ---- log -------------------------------------------------------------------------------------------------------- */
static PyObject *log_function;

/* Called without the GIL, by whichever thread called the library. */
static void write_log(void *user, stw_log_level level, const char *line) {
    (void)user;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *error_type, *error, *trace;
    PyErr_Fetch(&error_type, &error, &trace);
    PyObject *function = log_function;
    Py_XINCREF(function);
    PyObject *result = function ? PyObject_CallFunction(function, "is", (int)level, line) : NULL;
    if (function && !result) PyErr_WriteUnraisable(function);
    Py_XDECREF(result);
    Py_XDECREF(function);
    PyErr_Restore(error_type, error, trace);
    PyGILState_Release(state);
}

static PyObject *set_log(PyObject *module, PyObject *function) {
    (void)module;
    if (function != Py_None && !PyCallable_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "set_log: a callable (level, line) or None is needed");
        return NULL;
    }
    PyObject *before = log_function;
    log_function = function == Py_None ? NULL : function;
    Py_XINCREF(log_function);
    PyThreadState *state = PyEval_SaveThread(); /* the log's lock may be held by a thread that waits for the GIL */
    stw_set_log(function == Py_None ? NULL : write_log, NULL);
    PyEval_RestoreThread(state);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* ---- the module ------------------------------------------------------------------------------------------------- */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"attn_bwd", FAST(stw_py_attn_bwd), METH_FASTCALL | METH_KEYWORDS,
     "attn_bwd(context, layout, *, q, k, v, out, dout, lse, dq, dk, dv, ..., workspace=None, stream=0)"},
    {"attn_fwd", FAST(stw_py_attn_fwd), METH_FASTCALL | METH_KEYWORDS,
     "attn_fwd(context, layout, *, q, k, v, out, lse, ..., workspace=None, stream=0)"},
    {"dropout_mask", FAST(stw_py_dropout_mask), METH_FASTCALL | METH_KEYWORDS,
     "dropout_mask(context, layout, *, mask_out, q, k, dropout_p, ..., stream=0)"},
    {"jagged_bwd", FAST(stw_py_jagged_bwd), METH_FASTCALL | METH_KEYWORDS,
     "jagged_bwd(context, op, *, grad, offsets, dx, ..., workspace=None, stream=0)"},
    {"version", version, METH_NOARGS, "The library's version, \"major.minor.patch\"."},
    {"last_error", last_error, METH_NOARGS, "The text of this thread's last failed call."},
    {"status_name", status_name, METH_O, "\"STW_E_INVALID\" and so on."},
    {"devices", devices, METH_NOARGS, "The devices of this machine: a list of dicts."},
    {"embedded_images", embedded_images, METH_NOARGS, "The device images in the library: a list of dicts."},
    {"layout_bshd", layout_bshd, METH_O, "Fills the strides of an AttnDesc: contiguous [B,S,H,D]."},
    {"layout_bhsd", layout_bhsd, METH_O, "Fills the strides of an AttnDesc: contiguous [B,H,S,D]."},
    {"layout_thd", layout_thd, METH_O, "Fills the strides of an AttnDesc: contiguous [T,H,D] on packed sides."},
    {"mask_from_flash", mask_from_flash, METH_VARARGS, "mask_from_flash(desc, causal, left, right)"},
    {"explain_attn", explain_attn, METH_VARARGS, "explain_attn(opts, desc) -> text"},
    {"explain_attn_fwd", explain_attn_fwd, METH_VARARGS, "explain_attn_fwd(opts, desc) -> text"},
    {"explain_jagged", explain_jagged, METH_VARARGS, "explain_jagged(opts, desc) -> text"},
    {"set_log", set_log, METH_O, "set_log(callable(level, line) or None)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "sternway._native",
                                        "Sternway's C interface: structs, plans, and calls with arrays.",
                                        -1,
                                        functions,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (add_exceptions(module) || stw_py_add_structs(module) || stw_py_add_contexts(module) ||
        stw_py_add_attention(module) || stw_py_add_jagged(module))
        Py_CLEAR(module);
    return module;
}
