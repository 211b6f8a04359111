# SPDX-License-Identifier: MIT
"""Memory of a context's device as an array: what stw_buffer_alloc gives, with a shape and a type. Other libraries read
it without a copy: numpy by __array_interface__ (np.asarray) on the CPU backend, CuPy and numba by
__cuda_array_interface__."""
from __future__ import annotations

import ctypes
import math
from typing import Any

from . import _native
from ._context import number
from .enums import Backend, DType


class ElementType(str):
    """A type of elements as array libraries name it, "bfloat16"."""

    @property
    def name(self) -> str:
        return str(self)


# name, numpy's letter, bytes; bfloat16 is one of numpy's void types, as ml_dtypes has it
_TYPES: dict[int, tuple[str, str, int]] = {
    DType.F16: ("float16", "f", 2), DType.BF16: ("bfloat16", "V", 2), DType.F32: ("float32", "f", 4),
    DType.F64: ("float64", "f", 8), DType.I8: ("int8", "i", 1), DType.U8: ("uint8", "u", 1),
    DType.I16: ("int16", "i", 2),
    DType.I32: ("int32", "i", 4), DType.I64: ("int64", "i", 8)}
_NAMES: dict[str, int] = {item.name.lower(): int(item) for item in DType if item}
_NAMES.update({row[0]: int(item) for item, row in _TYPES.items()})


class _ArrayInterface(ctypes.Structure):
    """PyArrayInterface of numpy's array interface, version 3."""
    _fields_ = [("two", ctypes.c_int), ("nd", ctypes.c_int), ("typekind", ctypes.c_char), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p),
                ("descr", ctypes.c_void_p)]


_WRITABLE = 0x701  # C-contiguous, aligned, native byte order, writable
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Buffer:
    """Memory of a context's device, row-major, 256-byte aligned, its content not set.

    shape: extents; dtype: a DType or a name ("f32", "float32"). Freed by the context when its last reference goes,
    those of arrays that read it included. copy_from() and copy_to() work on every backend.
    Raises NoMemoryError, DriverError, InvalidError."""

    def __new__(cls, context: _native.Context, shape: tuple[int, ...], dtype: str | int = DType.F32) -> Buffer:
        return super().__new__(_HostBuffer if context.backend == Backend.CPU else _DeviceBuffer)

    def __init__(self, context: _native.Context, shape: tuple[int, ...], dtype: str | int = DType.F32) -> None:
        self.pointer = 0
        self.context, self.shape = context, tuple(int(extent) for extent in shape)
        self.code = DType(number(_NAMES, dtype, "dtype"))
        name, self.letter, self.itemsize = _TYPES[self.code]
        self.dtype = ElementType(name)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.itemsize
        self.pointer = context.buffer_alloc(self.nbytes)

    def __del__(self) -> None:
        if self.pointer:
            try:
                self.context.buffer_free(self.pointer)
            except _native.ForkedError:
                pass  # a child's copy of what is the parent's

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return tuple(math.prod(self.shape[i + 1:]) * self.itemsize for i in range(len(self.shape)))

    def copy_from(self, host: Any, stream: int = 0) -> None:
        """From contiguous host memory with the buffer protocol, or an address. The memory may be used again on
        return."""
        self.context.copy(self.pointer, _host(host, self.nbytes, False), self.nbytes, stream)

    def copy_to(self, host: Any, stream: int = 0) -> None:
        """Into contiguous host memory with the buffer protocol, or an address; complete on return."""
        self.context.copy(_host(host, self.nbytes, True), self.pointer, self.nbytes, stream)
        self.context.stream_synchronize(stream)

    def _interface(self) -> dict[str, Any]:
        order = "|" if self.itemsize == 1 else "<"
        return {"shape": self.shape, "typestr": f"{order}{self.letter}{self.itemsize}", "data": (self.pointer, False),
                "version": 3}

    def __repr__(self) -> str:
        return f"<sternway.Buffer {self.shape} {self.dtype} of {self.context.arch}>"


class _HostBuffer(Buffer):
    """A Buffer of the CPU backend."""

    def __init__(self, context: _native.Context, shape: tuple[int, ...], dtype: str | int = DType.F32) -> None:
        super().__init__(context, shape, dtype)
        rank = len(self.shape)
        self._extents = (ctypes.c_ssize_t * (2 * rank))(*self.shape, *self.strides)
        at = ctypes.addressof(self._extents)
        self._struct = _ArrayInterface(2, rank, self.letter.encode(), self.itemsize, _WRITABLE, at,
                                       at + rank * ctypes.sizeof(ctypes.c_ssize_t), self.pointer, None)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._interface()

    @property
    def __array_struct__(self) -> object:
        """A capsule of a struct that lives in this object, which readers hold."""
        return _capsule(ctypes.addressof(self._struct), None, None)


class _DeviceBuffer(Buffer):
    """A Buffer of a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface() | {"device": self.context.device}


def _host(memory: Any, size: int, written: bool) -> int:
    """The address of host memory of `size` bytes."""
    if isinstance(memory, int):
        return memory
    interface = getattr(memory, "__array_interface__", None)
    view = memoryview(memory)
    if view.nbytes != size or not view.c_contiguous or (view.readonly and (written or interface is None)):
        raise _native.InvalidError(f"sternway.Buffer: {size} contiguous, writable bytes of host memory are expected, "
                                   f"got {view.nbytes}, contiguous: {view.c_contiguous}, read-only: {view.readonly}")
    if interface is not None:
        return int(interface["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if size else 0
