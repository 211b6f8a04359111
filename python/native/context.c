/* SPDX-License-Identifier: MIT */
/* Contexts, their plans, and the workspace of a call. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

PyObject *stw_py_context_type, *stw_py_plan_type;

/* ---- plans ------------------------------------------------------------------------------------------------------ */
static void plan_dealloc(PyObject *self) {
    stw_py_plan *plan = (stw_py_plan *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_BEGIN_ALLOW_THREADS
    stw_plan_destroy(plan->plan);
    Py_END_ALLOW_THREADS
    Py_XDECREF(plan->context);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Plans a descriptor; `hold`: the plan keeps its context, as one in the hands of the user does. */
static stw_py_plan *make_plan(stw_py_context *context, stw_py_operation operation, const void *desc, bool hold) {
    stw_plan *made = NULL;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = operation == STW_PY_ATTN_BWD   ? stw_attn_bwd_plan(context->context, desc, &made)
             : operation == STW_PY_ATTN_FWD ? stw_attn_fwd_plan(context->context, desc, &made)
                                            : stw_jagged_bwd_plan(context->context, desc, &made);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)stw_py_plan_type, Py_tp_alloc);
    stw_py_plan *plan = (stw_py_plan *)allocate((PyTypeObject *)stw_py_plan_type, 0);
    if (!plan) {
        stw_plan_destroy(made);
        return NULL;
    }
    plan->plan = made;
    plan->operation = operation;
    if (hold) Py_INCREF(plan->context = (PyObject *)context);
    return plan;
}

static PyObject *text_of(stw_status (*write)(const void *, char *, size_t, size_t *), const void *subject) {
    size_t needed = 0;
    stw_status status = write(subject, NULL, 0, &needed);
    if (status) return stw_py_raise(status);
    char *text = PyMem_Malloc(needed + 1);
    if (!text) return PyErr_NoMemory();
    status = write(subject, text, needed + 1, &needed);
    PyObject *result = status ? stw_py_raise(status) : PyUnicode_FromString(text);
    PyMem_Free(text);
    return result;
}

static stw_status write_plan(const void *plan, char *text, size_t capacity, size_t *needed) {
    return stw_plan_describe(plan, text, capacity, needed);
}

static PyObject *plan_describe(PyObject *self, PyObject *unused) {
    (void)unused;
    return text_of(write_plan, ((stw_py_plan *)self)->plan);
}

static PyObject *plan_workspace_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(stw_plan_workspace_size(((stw_py_plan *)self)->plan));
}

/* An address as an int, None or an array, whose memory must be contiguous and hold *bytes. Less than 0 asks for the
 * bytes of the array, NULL checks none. */
static int memory_of(PyObject *object, const char *name, bool written, void **address, Py_ssize_t *bytes) {
    *address = NULL;
    if (!object || object == Py_None) return 0;
    if (PyLong_Check(object)) {
        *address = PyLong_AsVoidPtr(object);
        return PyErr_Occurred() ? -1 : 0;
    }
    stw_py_array array;
    if (stw_py_array_open(object, name, 0, &array)) return -1;
    *address = array.data;
    const Py_ssize_t there = (Py_ssize_t)stw_py_array_bytes(&array);
    if (bytes && *bytes < 0) *bytes = there;
    const char *wrong = !stw_py_array_contiguous(&array) ? "is not contiguous"
                        : written && array.read_only     ? "is read only"
                        : bytes && there < *bytes        ? "is smaller than the call is told"
                                                         : NULL;
    if (wrong) stw_py_invalid("%s %s: it has %zd bytes", name, wrong, there);
    stw_py_array_close(&array);
    return wrong ? -1 : 0;
}

static int address_of(PyObject *object, const char *name, void **address) {
    return memory_of(object, name, false, address, NULL);
}

static PyObject *plan_run(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"args", "workspace", "workspace_size", "stream", NULL};
    stw_py_plan *plan = (stw_py_plan *)self;
    PyObject *arguments, *workspace = NULL, *stream = NULL;
    Py_ssize_t size = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OnO", names, &arguments, &workspace, &size, &stream))
        return NULL;
    const stw_py_table *table = plan->operation == STW_PY_JAGGED_BWD ? stw_py_jagged_args : stw_py_attn_args;
    void *address, *queue;
    stw_py_held call;
    if (memory_of(workspace, "workspace", true, &address, &size) || address_of(stream, "stream", &queue) ||
        stw_py_hold(arguments, table, &call))
        return NULL;
    size_t bytes = size < 0 ? stw_plan_workspace_size(plan->plan) : (size_t)size;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = plan->operation == STW_PY_ATTN_BWD ? stw_attn_bwd(plan->plan, &call.as.attn_args, address, bytes, queue)
             : plan->operation == STW_PY_ATTN_FWD
                 ? stw_attn_fwd(plan->plan, &call.as.attn_args, address, bytes, queue)
                 : stw_jagged_bwd(plan->plan, &call.as.jagged_args, address, bytes, queue);
    Py_END_ALLOW_THREADS
    stw_py_let_go(&call);
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *plan_dropout_mask(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"args", "mask", "stream", NULL};
    PyObject *arguments, *mask, *stream = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O", names, &arguments, &mask, &stream)) return NULL;
    void *address, *queue;
    stw_py_held call;
    if (memory_of(mask, "mask", true, &address, NULL) || address_of(stream, "stream", &queue) ||
        stw_py_hold(arguments, stw_py_attn_args, &call))
        return NULL;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_dropout_mask(((stw_py_plan *)self)->plan, &call.as.attn_args, address, queue);
    Py_END_ALLOW_THREADS
    stw_py_let_go(&call);
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

/* ---- kept plans ------------------------------------------------------------------------------------------------- */
stw_py_plan *stw_py_keep_plan(stw_py_context *context, stw_py_operation operation, const void *desc) {
    size_t size = operation == STW_PY_JAGGED_BWD ? sizeof(stw_jagged_desc) : sizeof(stw_attn_desc);
    for (int i = 0; i < STW_PY_KEPT_PLANS; ++i) {
        stw_py_kept *kept = &context->kept[i];
        if (!kept->plan || kept->operation != operation || memcmp(&kept->desc, desc, size)) continue;
        kept->used = ++context->clock;
        Py_INCREF(kept->plan);
        return (stw_py_plan *)kept->plan;
    }
    stw_py_plan *plan =
        make_plan(context, operation, desc, false); /* another thread may come in between: a plan more */
    if (!plan) return NULL;
    stw_py_kept *oldest = context->kept;
    for (int i = 1; i < STW_PY_KEPT_PLANS && oldest->plan; ++i)
        if (!context->kept[i].plan || context->kept[i].used < oldest->used) oldest = &context->kept[i];
    PyObject *given_up = oldest->plan; /* lives on while a call runs with it */
    Py_INCREF(oldest->plan = (PyObject *)plan);
    oldest->operation = operation;
    oldest->used = ++context->clock;
    memcpy(&oldest->desc, desc, size);
    Py_XDECREF(given_up);
    return plan;
}

bool stw_py_on_device(const stw_py_context *context, const stw_py_array *array) {
    return array->device == context->device || (array->device == STW_PY_SOME_GPU && context->device >= 0);
}

/* ---- workspace -------------------------------------------------------------------------------------------------- */
static int open_scratch(stw_py_context *context, size_t size, stw_py_workspace *workspace) {
    if (context->device >= 0) {
        stw_py_invalid("workspace: %zu bytes of device memory are needed, and none were given", size);
        return -1;
    }
    size_t capacity = size;
    if (context->scratch && context->scratch_size >= size) {
        workspace->scratch = context->scratch;
        capacity = context->scratch_size;
        context->scratch = NULL;
    } else {
        capacity = (size + 4095) / 4096 * 4096;
        workspace->scratch = aligned_alloc(256, capacity);
        if (!workspace->scratch) {
            PyErr_NoMemory();
            return -1;
        }
    }
    workspace->data = workspace->scratch;
    workspace->size = capacity;
    return 0;
}

int stw_py_workspace_open(stw_py_context *context, PyObject *from, size_t size, uintptr_t stream,
                          stw_py_workspace *workspace) {
    memset(workspace, 0, sizeof *workspace);
    if (!size) return 0;
    if (!from || from == Py_None) return open_scratch(context, size, workspace);
    if (PyCallable_Check(from)) workspace->object = PyObject_CallFunction(from, "n", (Py_ssize_t)size);
    else Py_INCREF(workspace->object = from);
    if (!workspace->object) return -1;
    if (workspace->object == Py_None) {
        Py_CLEAR(workspace->object);
        return open_scratch(context, size, workspace);
    }
    if (stw_py_array_open(workspace->object, "workspace", stream, &workspace->array)) {
        Py_CLEAR(workspace->object);
        return -1;
    }
    const stw_py_array *array = &workspace->array;
    workspace->data = array->data;
    workspace->size = stw_py_array_bytes(array);
    if (!stw_py_on_device(context, array) || !stw_py_array_contiguous(array) || array->read_only) {
        stw_py_invalid("workspace: contiguous memory of the call's device that can be written is needed");
        stw_py_workspace_close(context, workspace);
        return -1;
    }
    return 0;
}

void stw_py_workspace_close(stw_py_context *context, stw_py_workspace *workspace) {
    enum { KEPT_BYTES = 64 << 20 }; /* larger ones go back: a context does not hold the memory of its largest call */
    if (workspace->scratch && workspace->size <= KEPT_BYTES && !context->scratch) {
        context->scratch = workspace->scratch;
        context->scratch_size = workspace->size;
    } else {
        free(workspace->scratch);
    }
    if (workspace->object) stw_py_array_close(&workspace->array);
    Py_CLEAR(workspace->object);
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */
stw_py_context *stw_py_context_of(PyObject *object) {
    if (PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)stw_py_context_type)) return (stw_py_context *)object;
    PyErr_Format(PyExc_TypeError, "expected a Context, got %R", (PyObject *)Py_TYPE(object));
    return NULL;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"backend", "memory", "device", "arch", "cpu_threads", NULL};
    int backend = STW_BACKEND_AUTO, memory = STW_MEMORY_HOST, threads = 0;
    PyObject *device = Py_None, *arch = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|iiOOi", names, &backend, &memory, &device, &arch, &threads))
        return NULL;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = (stw_backend)backend;
    opts.memory = (stw_memory)memory;
    opts.cpu_threads = threads;
    if (device != Py_None) {
        opts.flags = STW_CONTEXT_HAS_DEVICE;
        const long ordinal = PyLong_AsLong(device);
        if (ordinal != (int32_t)ordinal) PyErr_Format(PyExc_OverflowError, "device: %ld does not fit", ordinal);
        opts.device = (int32_t)ordinal;
    }
    if (arch != Py_None) opts.arch = PyUnicode_AsUTF8AndSize(arch, NULL);
    if (PyErr_Occurred()) return NULL;
    stw_context *made = NULL;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_context_create(&opts, &made);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    stw_py_context *context = (stw_py_context *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    stw_py_kept *kept = context ? PyMem_Calloc(STW_PY_KEPT_PLANS, sizeof *kept) : NULL;
    if (!kept || !(context->owned = PySet_New(NULL))) {
        PyMem_Free(kept);
        stw_context_destroy(made);
        Py_XDECREF(context);
        return PyErr_NoMemory();
    }
    context->context = made;
    context->kept = kept;
    context->memory = opts.memory;
    const char *chosen = getenv("STERNWAY_DEVICE"); /* the library has read it and found it good */
    if (device == Py_None && chosen) opts.device = (int32_t)strtol(chosen, NULL, 10);
    context->device = opts.memory == STW_MEMORY_HOST || !strcmp(stw_context_arch(made), "cpu") ? -1 : opts.device;
    return (PyObject *)context;
}

static void context_dealloc(PyObject *self) {
    stw_py_context *context = (stw_py_context *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; context->kept && i < STW_PY_KEPT_PLANS; ++i) Py_XDECREF(context->kept[i].plan);
    PyMem_Free(context->kept);
    free(context->scratch);
    Py_XDECREF(context->owned);
    Py_BEGIN_ALLOW_THREADS
    stw_context_destroy(context->context); /* waits for its threads */
    Py_END_ALLOW_THREADS
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *context_arch(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(stw_context_arch(((stw_py_context *)self)->context));
}

static PyObject *context_memory(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong((long)((stw_py_context *)self)->memory);
}

static PyObject *context_device(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(((stw_py_context *)self)->device);
}

static PyObject *context_backend(PyObject *self, void *unused) {
    (void)unused;
    const char *arch = stw_context_arch(((stw_py_context *)self)->context);
    return PyLong_FromLong(!strcmp(arch, "cpu") ? STW_BACKEND_CPU
                           : arch[0] == 's'     ? STW_BACKEND_CUDA
                                                : STW_BACKEND_HIP);
}

static PyObject *plan_for(PyObject *self, PyObject *desc, stw_py_operation operation) {
    const stw_py_table *table = operation == STW_PY_JAGGED_BWD ? stw_py_jagged_desc : stw_py_attn_desc;
    const void *memory = stw_py_struct(desc, table);
    return memory ? (PyObject *)make_plan((stw_py_context *)self, operation, memory, true) : NULL;
}

static PyObject *context_attn_bwd_plan(PyObject *self, PyObject *desc) { return plan_for(self, desc, STW_PY_ATTN_BWD); }
static PyObject *context_attn_fwd_plan(PyObject *self, PyObject *desc) { return plan_for(self, desc, STW_PY_ATTN_FWD); }
static PyObject *context_jagged_bwd_plan(PyObject *self, PyObject *desc) {
    return plan_for(self, desc, STW_PY_JAGGED_BWD);
}

static PyObject *once_workspace(PyObject *self, PyObject *desc, bool backward) {
    const stw_attn_desc *problem = stw_py_struct(desc, stw_py_attn_desc);
    stw_context *context = ((stw_py_context *)self)->context;
    size_t size = 0;
    stw_status status;
    if (!problem) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = backward ? stw_attn_bwd_once_workspace(context, problem, &size)
                      : stw_attn_fwd_once_workspace(context, problem, &size);
    Py_END_ALLOW_THREADS
    return status ? stw_py_raise(status) : PyLong_FromSize_t(size);
}

static PyObject *context_attn_bwd_once_workspace(PyObject *self, PyObject *desc) {
    return once_workspace(self, desc, true);
}
static PyObject *context_attn_fwd_once_workspace(PyObject *self, PyObject *desc) {
    return once_workspace(self, desc, false);
}

static PyObject *once(PyObject *self, PyObject *args, PyObject *keywords, bool backward) {
    static char *names[] = {"desc", "args", "workspace", "workspace_size", "stream", NULL};
    PyObject *desc, *arguments, *workspace = NULL, *stream = NULL;
    Py_ssize_t size = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|OnO", names, &desc, &arguments, &workspace, &size, &stream))
        return NULL;
    void *address, *queue;
    stw_py_held problem, call;
    if (memory_of(workspace, "workspace", true, &address, &size) || address_of(stream, "stream", &queue) ||
        stw_py_hold(desc, stw_py_attn_desc, &problem))
        return NULL;
    if (stw_py_hold(arguments, stw_py_attn_args, &call)) {
        stw_py_let_go(&problem);
        return NULL;
    }
    if (size < 0) size = 0;
    stw_context *context = ((stw_py_context *)self)->context;
    stw_status status;
    const stw_attn_desc *read = &problem.as.attn_desc;
    const stw_attn_args *given = &call.as.attn_args;
    Py_BEGIN_ALLOW_THREADS
    status = backward ? stw_attn_bwd_once(context, read, given, address, (size_t)size, queue)
                      : stw_attn_fwd_once(context, read, given, address, (size_t)size, queue);
    Py_END_ALLOW_THREADS
    stw_py_let_go(&call);
    stw_py_let_go(&problem);
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *context_attn_bwd_once(PyObject *self, PyObject *args, PyObject *keywords) {
    return once(self, args, keywords, true);
}
static PyObject *context_attn_fwd_once(PyObject *self, PyObject *args, PyObject *keywords) {
    return once(self, args, keywords, false);
}

/* The addresses that the context has given out: a wrong one would be the end of the process. */
static PyObject *own(stw_py_context *context, void *pointer) {
    PyObject *address = PyLong_FromVoidPtr(pointer);
    if (address && pointer && PySet_Add(context->owned, address)) Py_CLEAR(address);
    return address;
}

static bool disown(stw_py_context *context, void *pointer) {
    PyObject *address = PyLong_FromVoidPtr(pointer);
    const bool there = address && PySet_Discard(context->owned, address) == 1;
    Py_XDECREF(address);
    return there;
}

static PyObject *context_buffer_alloc(PyObject *self, PyObject *bytes) {
    void *pointer = NULL;
    size_t size = PyLong_AsSize_t(bytes);
    if (size == (size_t)-1 && PyErr_Occurred()) return NULL;
    stw_status status;
    stw_py_context *context = (stw_py_context *)self;
    Py_BEGIN_ALLOW_THREADS
    status = stw_buffer_alloc(context->context, size, &pointer);
    Py_END_ALLOW_THREADS
    return status ? stw_py_raise(status) : own(context, pointer);
}

static PyObject *context_buffer_free(PyObject *self, PyObject *pointer) {
    void *address;
    if (address_of(pointer, "pointer", &address)) return NULL;
    stw_py_context *context = (stw_py_context *)self;
    if (address && !disown(context, address))
        return stw_py_invalid("buffer_free: %p is no buffer of the context", address);
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_buffer_free(context->context, address);
    Py_END_ALLOW_THREADS
    if (!status) Py_RETURN_NONE;
    stw_py_raise(status);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_XDECREF(own(context, address)); /* it is the context's still */
    PyErr_Restore(type, error, trace);
    return NULL;
}

static PyObject *context_copy(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"to", "from_", "bytes", "stream", NULL};
    PyObject *to, *from, *stream = NULL;
    Py_ssize_t bytes;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOn|O", names, &to, &from, &bytes, &stream)) return NULL;
    void *target, *source, *queue;
    if (bytes < 0) {
        stw_py_invalid("copy: bytes is %zd", bytes);
        return NULL;
    }
    if (memory_of(to, "to", true, &target, &bytes) || memory_of(from, "from_", false, &source, &bytes) ||
        address_of(stream, "stream", &queue))
        return NULL;
    stw_context *context = ((stw_py_context *)self)->context;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_copy(context, target, source, (size_t)bytes, queue);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *context_stream_create(PyObject *self, PyObject *unused) {
    (void)unused;
    stw_stream stream = NULL;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = stw_stream_create(((stw_py_context *)self)->context, &stream);
    Py_END_ALLOW_THREADS
    return status ? stw_py_raise(status) : PyLong_FromVoidPtr(stream);
}

static PyObject *stream_call(PyObject *self, PyObject *stream, stw_status (*function)(stw_context *, stw_stream)) {
    void *queue;
    if (address_of(stream, "stream", &queue)) return NULL;
    stw_context *context = ((stw_py_context *)self)->context;
    stw_status status;
    Py_BEGIN_ALLOW_THREADS
    status = function(context, queue);
    Py_END_ALLOW_THREADS
    if (status) return stw_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *context_stream_synchronize(PyObject *self, PyObject *stream) {
    return stream_call(self, stream, stw_stream_synchronize);
}

static PyObject *context_stream_destroy(PyObject *self, PyObject *stream) {
    return stream_call(self, stream, stw_stream_destroy);
}

/* ---- types ------------------------------------------------------------------------------------------------------ */
#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef plan_methods[] = {
    {"describe", plan_describe, METH_NOARGS, "Variant, tile, arch, workspace and why, as lines of text."},
    {"run", WITH_KEYWORDS(plan_run), METH_VARARGS | METH_KEYWORDS,
     "run(args, workspace=None, workspace_size=-1, stream=0)"},
    {"dropout_mask", WITH_KEYWORDS(plan_dropout_mask), METH_VARARGS | METH_KEYWORDS,
     "dropout_mask(args, mask, stream=0)"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef plan_attributes[] = {
    {"workspace_size", plan_workspace_size, NULL, "Bytes of workspace that a call needs.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef context_methods[] = {
    {"attn_bwd_plan", context_attn_bwd_plan, METH_O, "attn_bwd_plan(desc) -> Plan"},
    {"attn_fwd_plan", context_attn_fwd_plan, METH_O, "attn_fwd_plan(desc) -> Plan"},
    {"jagged_bwd_plan", context_jagged_bwd_plan, METH_O, "jagged_bwd_plan(desc) -> Plan"},
    {"attn_bwd_once_workspace", context_attn_bwd_once_workspace, METH_O, "attn_bwd_once_workspace(desc) -> bytes"},
    {"attn_fwd_once_workspace", context_attn_fwd_once_workspace, METH_O, "attn_fwd_once_workspace(desc) -> bytes"},
    {"attn_bwd_once", WITH_KEYWORDS(context_attn_bwd_once), METH_VARARGS | METH_KEYWORDS,
     "attn_bwd_once(desc, args, workspace=None, workspace_size=-1, stream=0)"},
    {"attn_fwd_once", WITH_KEYWORDS(context_attn_fwd_once), METH_VARARGS | METH_KEYWORDS,
     "attn_fwd_once(desc, args, workspace=None, workspace_size=-1, stream=0)"},
    {"buffer_alloc", context_buffer_alloc, METH_O, "buffer_alloc(bytes) -> address"},
    {"buffer_free", context_buffer_free, METH_O, "buffer_free(address)"},
    {"copy", WITH_KEYWORDS(context_copy), METH_VARARGS | METH_KEYWORDS, "copy(to, from_, bytes, stream=0)"},
    {"stream_create", context_stream_create, METH_NOARGS, "stream_create() -> address"},
    {"stream_synchronize", context_stream_synchronize, METH_O, "stream_synchronize(stream)"},
    {"stream_destroy", context_stream_destroy, METH_O, "stream_destroy(stream)"},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef context_attributes[] = {
    {"arch", context_arch, NULL, "The arch whose kernels the context runs: \"sm90\", \"gfx942\", \"cpu\".", NULL},
    {"backend", context_backend, NULL, "BACKEND_CPU, BACKEND_CUDA or BACKEND_HIP.", NULL},
    {"memory", context_memory, NULL, "MEMORY_*, as it was asked for.", NULL},
    {"device", context_device, NULL, "Ordinal of the GPU, -1 for host memory.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot plan_slots[] = {{Py_tp_dealloc, (void *)plan_dealloc},
                                   {Py_tp_methods, plan_methods},
                                   {Py_tp_getset, plan_attributes},
                                   {Py_tp_doc, "One problem class, ready to run; of Context.*_plan()."},
                                   {0, NULL}};
static PyType_Slot context_slots[] = {
    {Py_tp_new, (void *)context_new},
    {Py_tp_dealloc, (void *)context_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_attributes},
    {Py_tp_doc, "Context(backend=BACKEND_AUTO, memory=MEMORY_HOST, device=None, arch=None, cpu_threads=0): "
                "one backend on one device."},
    {0, NULL}};
static PyType_Spec plan_spec = {"sternway._native.Plan", sizeof(stw_py_plan), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, plan_slots};
static PyType_Spec context_spec = {"sternway._native.Context", sizeof(stw_py_context), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, context_slots};

int stw_py_add_contexts(PyObject *module) {
    if (!(stw_py_plan_type = PyType_FromSpec(&plan_spec)) || !(stw_py_context_type = PyType_FromSpec(&context_spec)))
        return -1;
    return PyModule_AddObjectRef(module, "Plan", stw_py_plan_type) ||
                   PyModule_AddObjectRef(module, "Context", stw_py_context_type)
               ? -1
               : 0;
}
