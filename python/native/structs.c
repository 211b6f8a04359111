/* SPDX-License-Identifier: MIT */
/* Python types of the C structs: one attribute a field, checked by the compiler (generate.py). */
#include "native.h"

#include <string.h>

#include "tables.inc"

const stw_py_table
    *const stw_py_attn_desc = &table_stw_attn_desc,
           *const stw_py_attn_args = &table_stw_attn_args, *const stw_py_jagged_desc = &table_stw_jagged_desc,
           *const stw_py_jagged_args = &table_stw_jagged_args, *const stw_py_context_opts = &table_stw_context_opts,
           *const stw_py_device_info = &table_stw_device_info, *const stw_py_image_info = &table_stw_image_info;

typedef struct struct_object {
    PyObject_HEAD PyObject *keep; /* dict of what pointer fields need alive, or NULL */
    union {
        max_align_t aligned;
        char bytes[1];
    } memory; /* as large as the struct */
} struct_object;

typedef struct struct_type {
    const char *name;
    const stw_py_table *table;
    PyObject *type;
} struct_type;

static struct_type struct_types[] = {
    {"sternway._native.AttnDesc", &table_stw_attn_desc, NULL},
    {"sternway._native.AttnArgs", &table_stw_attn_args, NULL},
    {"sternway._native.JaggedDesc", &table_stw_jagged_desc, NULL},
    {"sternway._native.JaggedArgs", &table_stw_jagged_args, NULL},
    {"sternway._native.ContextOpts", &table_stw_context_opts, NULL},
    {"sternway._native.DeviceInfo", &table_stw_device_info, NULL},
    {"sternway._native.ImageInfo", &table_stw_image_info, NULL},
};
enum { STRUCT_TYPES = sizeof struct_types / sizeof *struct_types };

const stw_py_field *stw_py_find_field(const stw_py_table *table, const char *name) {
    for (const stw_py_field *field = table->fields; field->name; ++field)
        if (!strcmp(field->name, name)) return field;
    return NULL;
}

static const stw_py_table *table_of(PyObject *object) {
    for (int i = 0; i < STRUCT_TYPES; ++i)
        if ((PyObject *)Py_TYPE(object) == struct_types[i].type) return struct_types[i].table;
    return NULL;
}

void *stw_py_struct(PyObject *object, const stw_py_table *table) {
    if (table_of(object) == table) return ((struct_object *)object)->memory.bytes;
    PyErr_Format(PyExc_TypeError, "expected the struct %s, got %R", table->name, (PyObject *)Py_TYPE(object));
    return NULL;
}

int stw_py_hold(PyObject *object, const stw_py_table *table, stw_py_held *held) {
    const void *memory = stw_py_struct(object, table);
    if (!memory) return -1;
    memcpy(&held->as, memory, table->size);
    Py_XINCREF(held->keep = ((struct_object *)object)->keep);
    return 0;
}

void stw_py_let_go(stw_py_held *held) { Py_XDECREF(held->keep); }

/* ---- one element ------------------------------------------------------------------------------------------------ */
static PyObject *get_struct(const char *base, const stw_py_table *table) {
    Py_ssize_t count = 0;
    while (table->fields[count].name) ++count;
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; ++i) {
        PyObject *value = stw_py_get_field(base, &table->fields[i]);
        if (!value) Py_CLEAR(tuple);
        else PyTuple_SetItem(tuple, i, value);
    }
    return tuple;
}

static PyObject *get_element(const char *at, const stw_py_field *field) {
    switch (field->kind) {
    case STW_PY_I32: return PyLong_FromLong(*(const int32_t *)at);
    case STW_PY_U32: return PyLong_FromUnsignedLong(*(const uint32_t *)at);
    case STW_PY_I64: return PyLong_FromLongLong(*(const int64_t *)at);
    case STW_PY_U64: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    case STW_PY_SIZE: return PyLong_FromSize_t(*(const size_t *)at);
    case STW_PY_F32: return PyFloat_FromDouble((double)*(const float *)at);
    case STW_PY_F64: return PyFloat_FromDouble(*(const double *)at);
    case STW_PY_POINTER:
        if (!*(void *const *)at) Py_RETURN_NONE;
        return PyLong_FromVoidPtr(*(void *const *)at);
    case STW_PY_TEXT:
        if (!*(const char *const *)at) Py_RETURN_NONE;
        return PyUnicode_FromString(*(const char *const *)at);
    case STW_PY_CHARS: return PyUnicode_DecodeUTF8(at, (Py_ssize_t)strnlen(at, field->size), "replace");
    case STW_PY_STRUCT: return get_struct(at, field->table);
    }
    Py_RETURN_NONE;
}

/* Holds `value` (NULL: nothing) and what owns its memory for the pointer at `at`, in place of what was held for it. */
static int keep_alive(PyObject **keep, const stw_py_field *field, const void *at, PyObject *value, PyObject *owner) {
    if (!keep) {
        PyErr_Format(PyExc_TypeError, "%s: a pointer cannot be given here", field->name);
        return -1;
    }
    if (!*keep && !(value && (*keep = PyDict_New()))) return value ? -1 : 0;
    if (Py_REFCNT(*keep) > 1) { /* a call runs with what is in it */
        PyObject *copy = PyDict_Copy(*keep);
        if (!copy) return -1;
        Py_DECREF(*keep);
        *keep = copy;
    }
    PyObject *key = PyLong_FromSsize_t((const char *)at - (const char *)keep);
    PyObject *held = value ? PyTuple_Pack(2, value, owner ? owner : Py_None) : (Py_INCREF(Py_None), Py_None);
    int failed = !key || !held || PyDict_SetItem(*keep, key, held);
    Py_XDECREF(held);
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

/* None, an address, a struct of ours or an array. */
static int set_pointer(void **at, const stw_py_field *field, PyObject *value, PyObject **keep) {
    if (value == Py_None || PyLong_Check(value)) {
        void *address = value == Py_None ? NULL : PyLong_AsVoidPtr(value);
        if (PyErr_Occurred()) return -1;
        *at = address;
        return keep ? keep_alive(keep, field, at, NULL, NULL) : 0;
    }
    if (table_of(value)) {
        if (keep_alive(keep, field, at, value, NULL)) return -1;
        *at = ((struct_object *)value)->memory.bytes;
        return 0;
    }
    stw_py_array array;
    if (stw_py_array_open(value, field->name, 0, &array)) return -1;
    void *data = array.data;
    int failed = keep_alive(keep, field, at, value, array.hold);
    stw_py_array_close(&array);
    if (!failed) *at = data;
    return failed;
}

static int set_text(const char **at, const stw_py_field *field, PyObject *value, PyObject **keep) {
    if (value == Py_None) {
        *at = NULL;
        return 0;
    }
    const char *text = PyUnicode_AsUTF8AndSize(value, NULL);
    if (!text || keep_alive(keep, field, at, value, NULL)) return -1;
    *at = text;
    return 0;
}

static int set_struct(char *base, const stw_py_table *table, PyObject *value, PyObject **keep) {
    PyObject *tuple = PySequence_Tuple(value);
    if (!tuple) return -1;
    int failed = 0;
    Py_ssize_t count = PyTuple_Size(tuple), i = 0;
    for (; !failed && table->fields[i].name && i < count; ++i)
        failed = stw_py_set_field(base, &table->fields[i], PyTuple_GetItem(tuple, i), keep);
    for (; !failed && table->fields[i].name; ++i) memset(base + table->fields[i].offset, 0, table->fields[i].size);
    if (!failed && i < count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd fields, got %zd values", table->name, i, count);
        failed = 1;
    }
    Py_DECREF(tuple);
    return failed ? -1 : 0;
}

static int set_element(char *at, const stw_py_field *field, PyObject *value, PyObject **keep) {
    if (field->kind == STW_PY_POINTER) return set_pointer((void **)at, field, value, keep);
    if (field->kind == STW_PY_TEXT) return set_text((const char **)at, field, value, keep);
    if (field->kind == STW_PY_STRUCT) return set_struct(at, field->table, value, keep);
    if (field->kind == STW_PY_F32 || field->kind == STW_PY_F64) {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) return -1;
        if (field->kind == STW_PY_F32) *(float *)at = (float)number;
        else *(double *)at = number;
        return 0;
    }
    if (field->kind == STW_PY_U64) return stw_py_u64(field->name, value, (uint64_t *)at);
    PyObject *index = PyNumber_Index(value);
    long long number = index ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (number == -1 && PyErr_Occurred()) return -1;
    bool fits = field->kind == STW_PY_I64 || (field->kind == STW_PY_I32 && number == (int32_t)number) ||
                (field->kind == STW_PY_U32 && number == (long long)(uint32_t)number) ||
                (field->kind == STW_PY_SIZE && number >= 0);
    if (!fits) {
        PyErr_Format(field->kind == STW_PY_CHARS ? PyExc_AttributeError : PyExc_OverflowError, "%s: %lld does not fit",
                     field->name, number);
        return -1;
    }
    if (field->kind == STW_PY_I32) *(int32_t *)at = (int32_t)number;
    else if (field->kind == STW_PY_U32) *(uint32_t *)at = (uint32_t)number;
    else *(int64_t *)at = number;
    return 0;
}

int stw_py_u64(const char *name, PyObject *value, uint64_t *number) {
    PyObject *index = PyNumber_Index(value);
    if (!index) return -1;
    *number = PyLong_AsUnsignedLongLong(index);
    if (*number == (uint64_t)-1 && PyErr_Occurred()) { /* a negative number: an i64 that is read as unsigned */
        PyErr_Clear();
        const long long with_sign = PyLong_AsLongLong(index);
        *number = (uint64_t)with_sign;
        if (with_sign == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            PyErr_Format(PyExc_OverflowError, "%s: %R does not fit into 64 bits", name, index);
        }
    }
    Py_DECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

int stw_py_add_bits(uint32_t *bits, PyObject *value, const char *name) {
    uint64_t more;
    if (stw_py_u64(name, value, &more)) return -1;
    if (more > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s: %R does not fit into 32 bits without a sign", name, value);
        return -1;
    }
    *bits |= (uint32_t)more;
    return 0;
}

int stw_py_add_keyword(PyObject *keywords, const char *name, int number) {
    PyObject *text = PyUnicode_InternFromString(name), *value = PyLong_FromLong(number);
    int failed = !text || !value || PyDict_SetItem(keywords, text, value);
    Py_XDECREF(text);
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */
PyObject *stw_py_get_field(const void *base, const stw_py_field *field) {
    const char *at = (const char *)base + field->offset;
    if (field->count == 1) return get_element(at, field);
    PyObject *tuple = PyTuple_New(field->count);
    size_t size = field->size / (size_t)field->count;
    for (int i = 0; tuple && i < field->count; ++i) {
        PyObject *value = get_element(at + size * (size_t)i, field);
        if (!value) Py_CLEAR(tuple);
        else PyTuple_SetItem(tuple, i, value);
    }
    return tuple;
}

int stw_py_set_field(void *base, const stw_py_field *field, PyObject *value, PyObject **keep) {
    char *at = (char *)base + field->offset;
    if (field->count == 1) return set_element(at, field, value, keep);
    PyObject *tuple = PySequence_Tuple(value);
    if (!tuple) return -1;
    int failed = 0, count = (int)PyTuple_Size(tuple);
    size_t size = field->size / (size_t)field->count;
    if (count > field->count) {
        PyErr_Format(PyExc_ValueError, "%s: at most %d values, got %d", field->name, field->count, count);
        failed = 1;
    }
    for (int i = 0; !failed && i < field->count; ++i) {
        if (i < count) failed = set_element(at + size * (size_t)i, field, PyTuple_GetItem(tuple, i), keep);
        else memset(at + size * (size_t)i, 0, size);
    }
    Py_DECREF(tuple);
    return failed ? -1 : 0;
}

/* ---- the types -------------------------------------------------------------------------------------------------- */
static PyObject *attribute_get(PyObject *self, void *field) {
    return stw_py_get_field(((struct_object *)self)->memory.bytes, field);
}

static int attribute_set(PyObject *self, PyObject *value, void *field) {
    struct_object *object = (struct_object *)self;
    if (value) return stw_py_set_field(object->memory.bytes, field, value, &object->keep);
    PyErr_SetString(PyExc_AttributeError, "a field of a struct cannot be deleted");
    return -1;
}

static PyObject *struct_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)keywords;
    if (PyTuple_Size(args)) {
        PyErr_SetString(PyExc_TypeError, "fields are given by name");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct_object *object = (struct_object *)allocate(type, 0);
    if (object) *(size_t *)object->memory.bytes = table_of((PyObject *)object)->size;
    return (PyObject *)object;
}

static int struct_init(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)args;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (keywords && PyDict_Next(keywords, &at, &key, &value))
        if (PyObject_SetAttr(self, key, value)) return -1;
    return 0;
}

static int struct_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct_object *)self)->keep);
    return 0;
}

static int struct_clear(PyObject *self) { /* no pointer stays to what is given up */
    char *bytes = ((struct_object *)self)->memory.bytes;
    memset(bytes + sizeof(size_t), 0, table_of(self)->size - sizeof(size_t));
    Py_CLEAR(((struct_object *)self)->keep);
    return 0;
}

static void struct_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((struct_object *)self)->keep);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Fields that are not zero. */
static PyObject *struct_repr(PyObject *self) {
    static const char zeros[1024];
    const stw_py_table *table = table_of(self);
    const char *base = ((struct_object *)self)->memory.bytes;
    PyObject *text = PyUnicode_FromFormat("<%s", table->name);
    for (const stw_py_field *field = table->fields + 1; text && field->name; ++field) {
        if (field->size <= sizeof zeros && !memcmp(base + field->offset, zeros, field->size)) continue;
        PyObject *value = stw_py_get_field(base, field);
        PyObject *longer = value ? PyUnicode_FromFormat("%U %s=%R", text, field->name, value) : NULL;
        Py_XDECREF(value);
        Py_DECREF(text);
        text = longer;
    }
    if (!text) return NULL;
    PyObject *whole = PyUnicode_FromFormat("%U>", text);
    Py_DECREF(text);
    return whole;
}

static PyObject *struct_copy(PyObject *self, PyObject *unused) {
    (void)unused;
    struct_object *from = (struct_object *)self;
    PyObject *copy = PyObject_CallNoArgs((PyObject *)Py_TYPE(self));
    if (!copy) return NULL;
    struct_object *to = (struct_object *)copy;
    memcpy(to->memory.bytes, from->memory.bytes, table_of(self)->size);
    if (from->keep && !(to->keep = PyDict_Copy(from->keep))) Py_CLEAR(copy);
    return copy;
}

static PyMethodDef struct_methods[] = {{"copy", struct_copy, METH_NOARGS, "A struct with the same fields."},
                                       {NULL, NULL, 0, NULL}};

static PyObject *describe_fields(const stw_py_table *table) {
    static const char *const kinds[] = {"i32", "u32",     "i64",  "u64",   "size",  "f32",
                                        "f64", "pointer", "text", "chars", "struct"};
    Py_ssize_t count = 0;
    while (table->fields[count].name) ++count;
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; ++i) {
        const stw_py_field *field = &table->fields[i];
        PyObject *row = Py_BuildValue("(snns)", field->name, (Py_ssize_t)field->offset, (Py_ssize_t)field->size,
                                      kinds[field->kind]);
        if (!row) Py_CLEAR(tuple);
        else PyTuple_SetItem(tuple, i, row);
    }
    return tuple;
}

static PyObject *make_type(const struct_type *spec) {
    Py_ssize_t count = 0;
    while (spec->table->fields[count].name) ++count;
    PyGetSetDef *attributes =
        PyMem_Calloc((size_t)count + 1, sizeof *attributes); /* lives as long as the type: for ever */
    if (!attributes) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; ++i) {
        const stw_py_field *field = &spec->table->fields[i];
        bool read_only = field->kind == STW_PY_CHARS || !strcmp(field->name, "struct_size");
        attributes[i] =
            (PyGetSetDef){field->name, attribute_get, read_only ? NULL : attribute_set, NULL, (void *)(uintptr_t)field};
    }
    PyType_Slot slots[] = {{Py_tp_new, (void *)struct_new},
                           {Py_tp_init, (void *)struct_init},
                           {Py_tp_repr, (void *)struct_repr},
                           {Py_tp_dealloc, (void *)struct_dealloc},
                           {Py_tp_traverse, (void *)struct_traverse},
                           {Py_tp_clear, (void *)struct_clear},
                           {Py_tp_getset, attributes},
                           {Py_tp_methods, struct_methods},
                           {0, NULL}};
    PyType_Spec type = {spec->name, (int)(offsetof(struct_object, memory) + spec->table->size), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return PyType_FromSpec(&type);
}

static int add_constants(PyObject *module) {
    PyObject *enums = PyDict_New();
    int failed = !enums;
    for (const stw_py_constant *constant = constants; !failed && constant->name; ++constant) {
        failed = PyModule_AddIntConstant(module, constant->name, (long)constant->value);
        const char *type = constant->type ? constant->type : "flags";
        PyObject *names = failed ? NULL : PyDict_GetItemString(enums, type),
                 *value = PyLong_FromLongLong(constant->value);
        if (!failed && !names && (names = PyDict_New())) {
            failed = PyDict_SetItemString(enums, type, names);
            Py_DECREF(names);
        }
        failed = failed || !names || !value || PyDict_SetItemString(names, constant->name, value);
        Py_XDECREF(value);
    }
    failed = failed || PyModule_AddObjectRef(module, "ENUMS", enums);
    Py_XDECREF(enums);
    return failed ? -1 : 0;
}

int stw_py_add_structs(PyObject *module) {
    for (int i = 0; i < STRUCT_TYPES; ++i) {
        struct_type *spec = &struct_types[i];
        if (!(spec->type = make_type(spec))) return -1;
        PyObject *fields = describe_fields(spec->table);
        int failed = !fields || PyObject_SetAttrString(spec->type, "fields", fields);
        Py_XDECREF(fields);
        if (failed || PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, spec->type)) return -1;
    }
    return add_constants(module);
}
