# SPDX-License-Identifier: MIT
"""Memory of a context's device as an array: what stw_buffer_alloc gives, with a shape and a type. Other libraries read it
by DLPack and, on CUDA and ROCm, by __cuda_array_interface__ without a copy."""
from __future__ import annotations

import ctypes
import math
from typing import Any

from . import _native
from ._context import number
from .enums import Backend, DType

# DLPack's type code and bits (dlpack.h: kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4), bytes, numpy's typestr
_TYPES: dict[int, tuple[int, int, str]] = {
    DType.F16: (2, 16, "<f2"), DType.BF16: (4, 16, "<V2"), DType.F32: (2, 32, "<f4"), DType.F64: (2, 64, "<f8"),
    DType.I8: (0, 8, "|i1"), DType.U8: (1, 8, "|u1"), DType.I16: (0, 16, "<i2"), DType.I32: (0, 32, "<i4"),
    DType.I64: (0, 64, "<i8")}
_NAMES = {item.name.lower(): int(item) for item in DType if item}
_DEVICES = {Backend.CPU: 1, Backend.CUDA: 2, Backend.HIP: 10}  # kDLCPU, kDLCUDA, kDLROCM


class _Tensor(ctypes.Structure):
    """DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_exported: dict[int, tuple[Any, ...]] = {}  # by address, until the reader gives a tensor back
_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]


def _delete(address: int) -> None:
    """The reader is done with a tensor."""
    _exported.pop(address, None)


def _drop(capsule: int) -> None:
    """A capsule that nobody read still holds its tensor."""
    if _capsule_is(capsule, b"dltensor"):
        _exported.pop(_capsule_pointer(capsule, b"dltensor"), None)


_deleter, _dropper = _callback(_delete), _callback(_drop)  # both live as long as the module


class Buffer:
    """Memory of a context's device, row-major, 256-byte aligned, its content not set.

    shape: extents; dtype: a DType or its name ("f32"). Lives until its last reader, DLPack's included, is done; freed by
    the context. Host-readable on the CPU backend only: copy_from() and copy_to() work everywhere.
    Raises NoMemoryError, DriverError, InvalidError."""

    def __init__(self, context: _native.Context, shape: tuple[int, ...], dtype: str | int = DType.F32) -> None:
        self.pointer = 0
        self.context, self.shape = context, tuple(int(extent) for extent in shape)
        self.dtype = DType(number(_NAMES, dtype, "dtype"))
        self.itemsize = _TYPES[self.dtype][1] // 8
        self.nbytes = math.prod(self.shape) * self.itemsize
        self.pointer = context.buffer_alloc(self.nbytes)

    def __del__(self) -> None:
        if self.pointer:
            self.context.buffer_free(self.pointer)

    def copy_from(self, host: Any, stream: int = 0) -> None:
        """From contiguous host memory with the buffer protocol, or an address. The memory may be used again on return."""
        self.context.copy(self.pointer, _host(host, self.nbytes, False), self.nbytes, stream)

    def copy_to(self, host: Any, stream: int = 0) -> None:
        """Into contiguous host memory with the buffer protocol, or an address; complete on return."""
        self.context.copy(_host(host, self.nbytes, True), self.pointer, self.nbytes, stream)
        self.context.stream_synchronize(stream)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.context.backend == Backend.CPU:
            raise AttributeError("__cuda_array_interface__: the memory is the host's")
        return {"shape": self.shape, "typestr": _TYPES[self.dtype][2], "data": (self.pointer, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DEVICES[Backend(self.context.backend)], max(self.context.device, 0)

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        """A capsule of DLPack 0.x. Whoever wrote the buffer in another stream than the reader's waits first."""
        rank = len(self.shape)
        shape, strides = (ctypes.c_int64 * rank)(*self.shape), (ctypes.c_int64 * rank)(*self.strides)
        code, bits, _typestr = _TYPES[self.dtype]
        managed = _Managed(_Tensor(self.pointer, *self.__dlpack_device__(), rank, code, bits, 1, shape, strides, 0), None,
                           ctypes.cast(_deleter, ctypes.c_void_p))
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, strides, self)
        return _new_capsule(address, b"dltensor", ctypes.cast(_dropper, ctypes.c_void_p))

    def __repr__(self) -> str:
        return f"<sternway.Buffer {self.shape} {self.dtype.name} of {self.context.arch}>"


def _host(memory: Any, size: int, written: bool) -> int:
    """The address of host memory of `size` bytes."""
    if isinstance(memory, int):
        return memory
    interface = getattr(memory, "__array_interface__", None)
    view = memoryview(memory)
    if view.nbytes != size or not view.c_contiguous or (view.readonly and (written or interface is None)):
        raise _native.InvalidError(f"sternway.Buffer: {size} contiguous, writable bytes of host memory are expected, got "
                                   f"{view.nbytes}, contiguous: {view.c_contiguous}, read-only: {view.readonly}")
    if interface is not None:
        return int(interface["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if size else 0
