/* SPDX-License-Identifier: MIT */
/* Arrays of other libraries, described without a copy: PyTorch by its exchange table of C functions (2.10 and newer) or
 * its methods, numpy by __array_struct__, everything else by __cuda_array_interface__ or __dlpack__. */
#include "native.h"

#include <string.h>

/* ---- DLPack, as its header of version 1 lays it out ------------------------------------------------------------- */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM = 10, DL_ROCM_HOST = 11, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t rank;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_version {
    uint32_t major;
    uint32_t minor;
} dl_version;

typedef struct dl_managed_versioned {
    dl_version version;
    void *manager;
    void *deleter;
    uint64_t flags; /* bit 0: read only */
    dl_tensor tensor;
} dl_managed_versioned;

typedef struct dl_exchange {
    dl_version version;
    void *older;
    void *allocate;
    void *from_object;
    void *to_object;
    int (*describe)(void *object, dl_tensor *tensor);
    void *stream;
} dl_exchange;

/* numpy's array interface, version 3 */
typedef struct numpy_array {
    int two;
    int rank;
    char kind;
    int item_size;
    int flags;
    Py_ssize_t *shape;
    Py_ssize_t *strides; /* in bytes */
    void *data;
    PyObject *description;
} numpy_array;
enum { NUMPY_NATIVE = 0x200, NUMPY_WRITEABLE = 0x400 };

/* ---- names of attributes, made once ----------------------------------------------------------------------------- */
enum { DTYPE, SHAPE, STRIDE, DATA_PTR, GET_DEVICE, IS_NEGATIVE, ARRAY_STRUCT, CUDA_INTERFACE, DLPACK_METHOD, NAMES };

static PyObject *name_of(int which) {
    static const char *const texts[NAMES] = {"dtype",      "shape",  "stride",           "data_ptr",
                                             "get_device", "is_neg", "__array_struct__", "__cuda_array_interface__",
                                             "__dlpack__"};
    static PyObject *made[NAMES];
    if (!made[which]) made[which] = PyUnicode_InternFromString(texts[which]);
    return made[which];
}

static PyObject *attribute(PyObject *object, int which) {
    PyObject *name = name_of(which);
    return name ? PyObject_GetAttr(object, name) : NULL;
}

static PyObject *call_method(PyObject *object, int which) {
    PyObject *name = name_of(which);
    return name ? PyObject_CallMethodObjArgs(object, name, NULL) : NULL;
}

/* ---- element types ---------------------------------------------------------------------------------------------- */
const char *stw_py_dtype_name(stw_dtype dtype) {
    static const char *const names[] = {
        "an unknown type", "f16", "bf16", "f32", "f64", "i8", "u8", "i16", "i32", "i64"};
    return dtype >= STW_F16 && dtype <= STW_I64 ? names[dtype] : names[0];
}

static stw_dtype dtype_of(char kind, int bytes) { /* numpy's letters; 'B' bfloat16 */
    switch (kind) {
    case 'f': return bytes == 2 ? STW_F16 : bytes == 4 ? STW_F32 : bytes == 8 ? STW_F64 : STW_DTYPE_NONE;
    case 'B': return bytes == 2 ? STW_BF16 : STW_DTYPE_NONE;
    case 'b': return bytes == 1 ? STW_U8 : STW_DTYPE_NONE;
    case 'u': return bytes == 1 ? STW_U8 : bytes == 8 ? STW_I64 : STW_DTYPE_NONE; /* u64: seeds */
    case 'i':
        return bytes == 1   ? STW_I8
               : bytes == 2 ? STW_I16
               : bytes == 4 ? STW_I32
               : bytes == 8 ? STW_I64
                            : STW_DTYPE_NONE;
    default: return STW_DTYPE_NONE;
    }
}

/* An array of numpy's void type is one of ml_dtypes if its type is called bfloat16. */
static char void_kind(PyObject *object) {
    PyObject *dtype = PyObject_GetAttrString(object, "dtype"),
             *name = dtype ? PyObject_GetAttrString(dtype, "name") : NULL;
    bool bfloat16 = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;
    Py_XDECREF(name);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return bfloat16 ? 'B' : 'V';
}

static int set_dtype(stw_py_array *array, char kind, int bytes) {
    array->dtype = dtype_of(kind, bytes);
    array->truth = kind == 'b';
    return 0;
}

static int set_rank(stw_py_array *array, Py_ssize_t rank) {
    if (rank >= 0 && rank <= STW_PY_RANK_MAX) {
        array->rank = (int)rank;
        return 0;
    }
    stw_py_invalid("%s has %zd dimensions, at most %d are possible", array->name, rank, STW_PY_RANK_MAX);
    return -1;
}

static void set_contiguous(stw_py_array *array) {
    int64_t stride = 1;
    for (int i = array->rank - 1; i >= 0; --i) {
        array->strides[i] = stride;
        stride = (int64_t)((uint64_t)stride * (uint64_t)(array->shape[i] > 0 ? array->shape[i] : 1));
    }
}

static int set_byte_stride(stw_py_array *array, int dimension, int64_t bytes, int item_size) {
    if (item_size > 0 && bytes % item_size == 0) {
        array->strides[dimension] = bytes / item_size;
        return 0;
    }
    stw_py_invalid("%s: its strides are no multiples of the element's size", array->name);
    return -1;
}

/* ---- sources ---------------------------------------------------------------------------------------------------- */
static int take_dl_tensor(const dl_tensor *tensor, stw_py_array *array) {
    if (set_rank(array, tensor->rank)) return -1;
    static const char kinds[] = {'i', 'u', 'f', '?', 'B', '?', 'b'};
    set_dtype(array, tensor->code < sizeof kinds && tensor->lanes == 1 ? kinds[tensor->code] : '?', tensor->bits / 8);
    switch (tensor->device_type) {
    case DL_CPU:
    case DL_CUDA_HOST:
    case DL_ROCM_HOST: array->device = -1; break;
    case DL_CUDA:
    case DL_ROCM:
    case DL_CUDA_MANAGED: array->device = tensor->device_id; break;
    default:
        stw_py_invalid("%s is on a device of DLPack's kind %d; host memory and CUDA or ROCm devices are possible",
                       array->name, (int)tensor->device_type);
        return -1;
    }
    array->data = (char *)tensor->data + (tensor->data ? tensor->byte_offset : 0);
    for (int i = 0; i < array->rank; ++i) array->shape[i] = tensor->shape[i];
    if (!tensor->strides) set_contiguous(array);
    for (int i = 0; tensor->strides && i < array->rank; ++i) array->strides[i] = tensor->strides[i];
    return 0;
}

static int open_dlpack(PyObject *object, PyObject *method, uintptr_t stream, stw_py_array *array) {
    (void)object;
    PyObject *capsule = NULL;
    if (stream) {
        PyObject *arguments = PyTuple_New(0), *keywords = Py_BuildValue("{s:n}", "stream", (Py_ssize_t)stream);
        if (arguments && keywords) capsule = PyObject_Call(method, arguments, keywords);
        Py_XDECREF(arguments);
        Py_XDECREF(keywords);
    } else {
        capsule = PyObject_CallNoArgs(method);
    }
    if (!capsule) return -1;
    array->hold = capsule;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->version.major != 1) {
            stw_py_invalid("%s: DLPack version %u is not known", array->name, managed->version.major);
            return -1;
        }
        array->read_only = managed->flags & 1;
        return take_dl_tensor(&managed->tensor, array);
    }
    const dl_tensor *tensor = PyCapsule_GetPointer(capsule, "dltensor"); /* the first member of a managed one */
    return tensor ? take_dl_tensor(tensor, array) : -1;
}

static int open_numpy(PyObject *object, PyObject *capsule, stw_py_array *array) {
    Py_INCREF(array->hold = capsule); /* the object may make its array for this capsule alone */
    const numpy_array *numpy = PyCapsule_GetPointer(capsule, NULL);
    if (!numpy || set_rank(array, numpy->rank)) return -1;
    if (!(numpy->flags & NUMPY_NATIVE)) {
        stw_py_invalid("%s: its bytes are in the other order", array->name);
        return -1;
    }
    set_dtype(array, numpy->kind == 'V' ? void_kind(object) : numpy->kind, numpy->item_size);
    array->device = -1;
    array->data = numpy->data;
    array->read_only = !(numpy->flags & NUMPY_WRITEABLE);
    for (int i = 0; i < array->rank; ++i) {
        array->shape[i] = numpy->shape[i];
        if (numpy->strides && set_byte_stride(array, i, numpy->strides[i], numpy->item_size)) return -1;
    }
    if (!numpy->strides) set_contiguous(array);
    return 0;
}

static PyObject *item(PyObject *mapping, const char *key) { /* borrowed, NULL if absent or None */
    PyObject *value = PyDict_Check(mapping) ? PyDict_GetItemString(mapping, key) : NULL;
    return value == Py_None ? NULL : value;
}

/* __cuda_array_interface__ does not name the device: the driver refuses a pointer of another one. */
static int open_cuda(PyObject *object, PyObject *interface, stw_py_array *array) {
    PyObject *shape = item(interface, "shape"), *data = item(interface, "data"), *type = item(interface, "typestr"),
             *strides = item(interface, "strides");
    const char *letters = type ? PyUnicode_AsUTF8AndSize(type, NULL) : NULL;
    if (!shape || !data || !letters || !PyTuple_Check(shape) || !PyTuple_Check(data) || PyTuple_Size(data) != 2 ||
        (strides && !PyTuple_Check(strides)) || !letters[0] || !letters[1]) {
        stw_py_invalid("%s: its __cuda_array_interface__ is not complete", array->name);
        return -1;
    }
    if (set_rank(array, PyTuple_Size(shape))) return -1;
    int bytes = 0;
    for (const char *c = letters + 2; *c >= '0' && *c <= '9' && bytes < 1000; ++c) bytes = bytes * 10 + (*c - '0');
    set_dtype(array, letters[1] == 'V' ? void_kind(object) : letters[1], bytes);
    PyObject *mask = item(interface, "mask");
    if (letters[0] == '>' || mask) {
        stw_py_invalid(mask ? "%s: masked arrays are not possible" : "%s: its bytes are in the other order",
                       array->name);
        return -1;
    }
    array->data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    array->read_only = PyObject_IsTrue(PyTuple_GetItem(data, 1)) == 1;
    PyObject *number = item(interface, "device"); /* not in the standard */
    array->device = number ? (int)PyLong_AsLong(number) : STW_PY_SOME_GPU;
    if (PyErr_Occurred()) return -1;
    PyObject *device = PyObject_GetAttrString(object, "device"),
             *id = device ? PyObject_GetAttrString(device, "id") : NULL;
    if (id && PyLong_Check(id)) array->device = (int)PyLong_AsLong(id); /* CuPy's */
    Py_XDECREF(id);
    Py_XDECREF(device);
    PyErr_Clear();
    for (int i = 0; i < array->rank; ++i) {
        array->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (strides && set_byte_stride(array, i, PyLong_AsLongLong(PyTuple_GetItem(strides, i)), bytes)) return -1;
    }
    if (!strides) set_contiguous(array);
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- PyTorch before 2.10 ---------------------------------------------------------------------------------------- */
static int torch_dtype(PyObject *object, stw_py_array *array) {
    static const struct {
        const char *name, kind, bytes;
    } types[] = {{"torch.float16", 'f', 2}, {"torch.bfloat16", 'B', 2}, {"torch.float32", 'f', 4},
                 {"torch.float64", 'f', 8}, {"torch.int8", 'i', 1},     {"torch.uint8", 'u', 1},
                 {"torch.bool", 'b', 1},    {"torch.int16", 'i', 2},    {"torch.int32", 'i', 4},
                 {"torch.int64", 'i', 8},   {"torch.uint64", 'u', 8}};
    enum { TYPES = sizeof types / sizeof *types };
    static PyObject *known[TYPES]; /* dtype objects are single; they live for ever */
    PyObject *dtype = attribute(object, DTYPE);
    if (!dtype) return -1;
    for (int i = 0; i < TYPES; ++i) {
        if (known[i] == dtype) {
            Py_DECREF(dtype);
            return set_dtype(array, types[i].kind, types[i].bytes);
        }
    }
    PyObject *text = PyObject_Str(dtype);
    for (int i = 0; text && i < TYPES; ++i) {
        if (PyUnicode_CompareWithASCIIString(text, types[i].name)) continue;
        known[i] = dtype;
        Py_DECREF(text);
        return set_dtype(array, types[i].kind, types[i].bytes);
    }
    Py_XDECREF(text);
    Py_DECREF(dtype);
    return PyErr_Occurred() ? -1 : 0; /* NONE */
}

static int open_torch_methods(PyObject *object, stw_py_array *array) {
    PyObject *shape = attribute(object, SHAPE), *strides = shape ? call_method(object, STRIDE) : NULL;
    PyObject *data = strides ? call_method(object, DATA_PTR) : NULL,
             *device = data ? call_method(object, GET_DEVICE) : NULL;
    int failed = !device || set_rank(array, PyTuple_Size(shape));
    if (!failed) {
        array->data = PyLong_AsVoidPtr(data);
        array->device = (int)PyLong_AsLong(device);
        for (int i = 0; i < array->rank; ++i) {
            array->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
            array->strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        }
        failed = PyErr_Occurred() != NULL || torch_dtype(object, array);
    }
    Py_XDECREF(device);
    Py_XDECREF(data);
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    return failed ? -1 : 0;
}

/* A view that negates what is in memory: the imaginary part of a conjugate, whose strides are all even. */
static int refuse_negative(PyObject *object, const stw_py_array *array) {
    for (int i = 0; i < array->rank; ++i)
        if (array->shape[i] > 1 && array->strides[i] & 1) return 0;
    PyObject *negative = call_method(object, IS_NEGATIVE);
    int yes = negative ? PyObject_IsTrue(negative) : -1;
    Py_XDECREF(negative);
    if (yes > 0) stw_py_invalid("%s negates what is in memory; its resolve_neg() is possible", array->name);
    return yes ? -1 : 0;
}

/* ---- which source ----------------------------------------------------------------------------------------------- */
typedef enum source { EXCHANGE = 1, TORCH, NUMPY, CUDA, DLPACK, NO_ARRAY } source;

typedef struct known_type {
    PyTypeObject *type; /* held, so that no other type gets its address */
    source source;
    const dl_exchange *exchange;
    bool torch;
} known_type;

static known_type known_types[16];
static int known_count;

static bool is_torch(PyTypeObject *type) {
    PyObject *modules = PyImport_GetModuleDict(), *torch = modules ? PyDict_GetItemString(modules, "torch") : NULL;
    PyObject *tensor = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    bool yes = tensor && PyType_Check(tensor) && PyType_IsSubtype(type, (PyTypeObject *)tensor);
    Py_XDECREF(tensor);
    PyErr_Clear();
    return yes;
}

static bool has(PyTypeObject *type, const char *name) {
    PyObject *value = PyObject_GetAttrString((PyObject *)type, name);
    Py_XDECREF(value);
    PyErr_Clear();
    return value != NULL;
}

static known_type learn(PyTypeObject *type) {
    known_type known = {type, NO_ARRAY, NULL, is_torch(type)};
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        known.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (known.exchange->version.major == 1 && known.exchange->describe) known.source = EXCHANGE;
    }
    Py_XDECREF(capsule);
    PyErr_Clear();
    if (known.source == EXCHANGE) return known;
    if (known.torch) known.source = TORCH;
    else if (has(type, "__array_struct__")) known.source = NUMPY;
    else if (has(type, "__cuda_array_interface__")) known.source = CUDA;
    else if (has(type, "__dlpack__")) known.source = DLPACK;
    return known;
}

static known_type know(PyTypeObject *type) {
    for (int i = 0; i < known_count; ++i)
        if (known_types[i].type == type) return known_types[i];
    known_type known = learn(type);
    if (known_count < (int)(sizeof known_types / sizeof *known_types) && known.source != NO_ARRAY) {
        Py_INCREF(type);
        known_types[known_count++] = known;
    }
    return known;
}

/* Every library has such shapes; an object that only claims one may not. */
static int check_extents(const stw_py_array *array) {
    int64_t elements = 1;
    bool good = true;
    for (int i = 0; i < array->rank; ++i)
        good = array->shape[i] >= 0 && !__builtin_mul_overflow(elements, array->shape[i], &elements) && good;
    if (!good) stw_py_invalid("%s: its shape is negative, or has 2^63 elements or more", array->name);
    return good ? 0 : -1;
}

static int open_attribute(PyObject *object, int which, uintptr_t stream, stw_py_array *array, source source) {
    PyObject *value = attribute(object, which);
    if (!value && source == CUDA) { /* an array type of GPU and host memory, as JAX's */
        PyErr_Clear();
        source = DLPACK;
        value = attribute(object, DLPACK_METHOD);
    }
    if (!value) return -1;
    int failed = source == NUMPY  ? open_numpy(object, value, array)
                 : source == CUDA ? open_cuda(object, value, array)
                                  : open_dlpack(object, value, stream, array);
    Py_DECREF(value);
    return failed;
}

int stw_py_array_open(PyObject *object, const char *name, uintptr_t stream, stw_py_array *array) {
    array->name = name;
    array->hold = NULL;
    array->truth = array->read_only = false;
    known_type known = know(Py_TYPE(object));
    int failed = -1;
    dl_tensor tensor;
    switch (known.source) {
    case EXCHANGE: failed = known.exchange->describe(object, &tensor) || take_dl_tensor(&tensor, array); break;
    case TORCH: failed = open_torch_methods(object, array); break;
    case NUMPY: failed = open_attribute(object, ARRAY_STRUCT, stream, array, NUMPY); break;
    case CUDA: failed = open_attribute(object, CUDA_INTERFACE, stream, array, CUDA); break;
    case DLPACK: failed = open_attribute(object, DLPACK_METHOD, stream, array, DLPACK); break;
    case NO_ARRAY:
        PyErr_Format(PyExc_TypeError,
                     "%s: an array is needed (DLPack, __cuda_array_interface__, numpy, PyTorch), got %R", name,
                     (PyObject *)Py_TYPE(object));
    }
    if (!failed) failed = check_extents(array) || (known.torch && refuse_negative(object, array));
    if (!failed) {
        if (!stw_py_array_elements(array)) set_contiguous(array); /* numpy's strides of empty arrays are 0 */
        return 0;
    }
    if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s: its library does not describe it", name);
    stw_py_array_close(array);
    return -1;
}

void stw_py_array_close(stw_py_array *array) {
    if (!array->hold) return;
    PyObject *type, *error, *trace; /* a destructor in Python would lose an exception that is on its way */
    PyErr_Fetch(&type, &error, &trace);
    Py_CLEAR(array->hold);
    PyErr_Restore(type, error, trace);
}

bool stw_py_array_contiguous(const stw_py_array *array) {
    int64_t stride = 1;
    if (!stw_py_array_elements(array)) return true;
    for (int i = array->rank - 1; i >= 0; --i) {
        if (array->shape[i] != 1 && array->strides[i] != stride) return false;
        stride *= array->shape[i];
    }
    return true;
}

size_t stw_py_array_bytes(const stw_py_array *array) {
    static const size_t bytes[] = {0, 2, 2, 4, 8, 1, 1, 2, 4, 8};
    return (size_t)stw_py_array_elements(array) * bytes[array->dtype];
}

int64_t stw_py_array_elements(const stw_py_array *array) {
    int64_t elements = 1;
    for (int i = 0; i < array->rank; ++i) elements *= array->shape[i];
    return elements;
}
