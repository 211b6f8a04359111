# SPDX-License-Identifier: MIT
"""Which array library an argument belongs to, and what the calls need from that library: the context of its device, its
stream, workspace, and memory for results. Nothing is copied: the C module reads addresses, shapes and strides
itself."""
from __future__ import annotations

from typing import Any, Callable

from . import _native
from ._context import shared
from .enums import Backend, DType, Memory

# names of types as array libraries have them; the C interface's truth values are bytes
DTYPES: dict[str, int] = {
    "float16": DType.F16, "bfloat16": DType.BF16, "float32": DType.F32, "float64": DType.F64, "int8": DType.I8,
    "uint8": DType.U8, "bool": DType.U8, "int16": DType.I16, "int32": DType.I32, "int64": DType.I64}


def dtype_name(array: Any) -> str:
    """"float16", "bfloat16" ... of an array of any library. numpy has bfloat16 by ml_dtypes, whose arrays say so;
    uint16 is never taken for it."""
    return str(array.dtype).rpartition(".")[2]


class Library:
    """One array library. Results are handed back as they were made, unless `takes_over`."""
    name = "an unknown array library"
    takes_over = False  # results become other arrays by hand_over
    checks_outputs = False  # the caller's own arrays for results go through check_outputs

    def context(self, array: Any) -> _native.Context:
        """The context of the array's device."""
        raise NotImplementedError

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        """Sets the options of the call that the caller left out: stream, workspace, threads."""

    def prepare_attention(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        """The same of an attention call, which has one more: deterministic."""
        self.prepare(array, context, options)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        """New contiguous memory beside `like`, of its type unless `dtype` names another."""
        raise NotImplementedError

    def empty_like(self, array: Any) -> Any:
        """New memory of an array's shape and type with a contiguous last dimension."""
        return self.empty(array, tuple(array.shape))

    def check_outputs(self, outputs: tuple[Any, ...]) -> None:
        """With `takes_over` or `checks_outputs`: InvalidError for an array of the caller's that nobody may write."""

    def wait(self, inputs: tuple[Any, ...]) -> None:
        """With `takes_over`: until the inputs are there."""

    def finish(self, context: _native.Context, options: dict[str, Any]) -> None:
        """With `takes_over`: until the device is done with a call that had these options."""

    def hand_over(self, results: Any) -> Any:
        """With `takes_over`: the results as arrays of the library."""
        return results

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        return tuple(stride // array.itemsize for stride in array.strides)


class NumPy(Library):
    """Host memory. Which backend: STERNWAY_BACKEND, else the CPU."""
    name = "numpy"

    def __init__(self) -> None:
        import numpy
        self.new, self.with_strides = numpy.empty, numpy.lib.stride_tricks.as_strided

    def context(self, array: Any) -> _native.Context:
        return shared()

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        made = self.new(shape, dtype or like.dtype)
        return made if made.size else self._without_elements(made)

    def empty_like(self, array: Any) -> Any:
        made = self.new(array.shape, array.dtype)
        return made if made.size else self._without_elements(made)

    def _without_elements(self, array: Any) -> Any:
        """numpy's strides of an empty array are all 0, which a gradient's head_dim must not have."""
        strides = [array.itemsize]
        for extent in reversed(array.shape[1:]):
            strides.append(strides[-1] * max(extent, 1))
        return self.with_strides(array, strides=tuple(reversed(strides))[-array.ndim:])


class Torch(Library):
    """The tensor's device, PyTorch's current stream, workspace from its allocator, its threads and determinism."""
    name = "torch"
    checks_outputs = True

    def __init__(self) -> None:
        import torch

        from .torch import _bridge
        self.torch, self.bridge = torch, _bridge

    def check_outputs(self, outputs: tuple[Any, ...]) -> None:
        """No tensor that autograd tracks; autograd learns that the others change."""
        for tensor in outputs:
            if tensor is None or not isinstance(tensor, self.torch.Tensor):
                continue
            if tensor.requires_grad:
                raise _native.InvalidError("sternway: a tensor for a result requires a gradient, which autograd would "
                                           "not see; give its detach()")
            if not tensor.is_inference():
                self.torch.autograd.graph.increment_version(tensor)

    def context(self, array: Any) -> _native.Context:
        found: _native.Context = self.bridge.context(array.device)
        return found

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        if array.is_cuda:
            if "stream" not in options:
                options["stream"] = self.bridge.stream(array.device)
            if "workspace" not in options:
                options["workspace"] = self.bridge.workspace(array.device)
        elif "cpu_threads" not in options:
            options["cpu_threads"] = self.torch.get_num_threads()

    def prepare_attention(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        self.prepare(array, context, options)
        if "deterministic" not in options and self.torch.are_deterministic_algorithms_enabled():
            options["deterministic"] = True

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype) if dtype else like.dtype, device=like.device)

    def empty_like(self, array: Any) -> Any:
        made = self.torch.empty_like(array, requires_grad=False)  # a [B,H,S,D] view of [B,S,H,D] gets its strides
        return made if made.stride(-1) == 1 else self.empty(array, tuple(array.shape))

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())


class CuPy(Library):
    """The array's device, CuPy's current stream of it, workspace from CuPy's pool of that stream."""
    name = "cupy"

    def __init__(self) -> None:
        import cupy
        self.cupy = cupy
        self.backend = int(Backend.HIP if cupy.cuda.runtime.is_hip else Backend.CUDA)

    def context(self, array: Any) -> _native.Context:
        return shared(self.backend, Memory.DEVICE, array.device.id)

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        if "stream" not in options:
            with array.device:
                options["stream"] = self.cupy.cuda.get_current_stream().ptr
        if "workspace" not in options:
            options["workspace"] = lambda size: self.empty(array, (size,), "uint8")

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        with like.device:
            return self.cupy.empty(shape, dtype or like.dtype)


class Buffers(Library):
    """Buffers of this package: each knows its context, whose default stream the calls use."""
    name = "sternway"

    def context(self, array: Any) -> _native.Context:
        found: _native.Context = array.context
        return found

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        if context.backend != Backend.CPU and "workspace" not in options:
            options["workspace"] = lambda size: self.empty(array, (size,), "uint8")

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        from .buffer import Buffer
        return Buffer(like.context, shape, dtype or like.dtype)


class Other(Library):
    """Anything with DLPack: an array of a library that is not known here. Results go into arrays that the caller
    gives."""

    def context(self, array: Any) -> _native.Context:
        kind, device = array.__dlpack_device__()
        backend = {1: Backend.AUTO, 2: Backend.CUDA, 10: Backend.HIP}.get(kind)
        if backend is None:
            raise _native.UnsupportedError(f"sternway: DLPack device type {kind} of {type(array).__name__} "
                                           "(the CPU, CUDA and ROCm are supported)")
        return shared() if backend == Backend.AUTO else shared(backend, Memory.DEVICE, device)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        raise _native.InvalidError(f"sternway: results cannot be made as {type(like).__module__}.{type(like).__name__}"
                                   "; give the arrays that they go into")


def _jax() -> Library:
    from ._jax import Jax
    return Jax()


_makers: dict[str, Callable[[], Library]] = {"numpy": NumPy, "torch": Torch, "cupy": CuPy, "jax": _jax, "jaxlib": _jax,
                                         "sternway": Buffers}
_made: dict[str, Library] = {}
libraries: dict[type, Library] = {}  # by the type of an array; filled by library_of


def library_of(array: Any) -> Library:
    """The library of an array; InvalidError for what is none."""
    kind = type(array)
    found = libraries.get(kind)
    if found is not None:
        return found
    if any(base.__name__ == "MaskedArray" for base in kind.__mro__):
        raise _native.InvalidError("sternway: a numpy masked array; its mask would be lost, give the data and a bias "
                                   "of bool")
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _makers and hasattr(array, "dtype"):
            found = _made.get(root)
            if found is None:
                found = _made.setdefault(root, _makers[root]())
            break
    else:
        if not hasattr(array, "__dlpack_device__"):
            name = f"{kind.__module__}.{kind.__name__}"
            raise _native.InvalidError(f"sternway: {name} is not an array (of numpy, CuPy, JAX, PyTorch, or one "
                                       "with __dlpack__)")
        found = _made.setdefault("", Other())
    libraries[kind] = found
    return found


def dtype_of(array: Any) -> int:
    """DType of an array; UnsupportedError for a type that the library lacks."""
    name = dtype_name(array)
    found = DTYPES.get(name)
    if found is None:
        raise _native.UnsupportedError(f"sternway: element type {name}; one of {', '.join(DTYPES)} is expected")
    return int(found)


def address_of_stream(stream: Any) -> int:
    """The address of a stream: a number as it is, torch.cuda.Stream, cupy.cuda.Stream."""
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    return int(stream)
