# SPDX-License-Identifier: MIT
"""JAX arrays. They are immutable, so every result is new: on the CPU numpy memory that JAX takes over when it is
written, on a GPU an array of JAX that nobody else has seen when it is written. The call is complete when it returns,
since JAX does not know the stream. Inside jax.jit use jax.pure_callback: a tracer has no memory."""
from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import Library, dtype_name
from ._context import shared
from .buffer import ElementType
from .enums import Backend, Memory


class Fresh:
    """A new JAX array on a GPU that the library may write: nobody else has it yet. JAX's own interface calls every
    array read only, and has no bfloat16."""
    _letters = {"bfloat16": "V", "uint8": "u", "int8": "i", "int16": "i", "int32": "i", "int64": "i"}

    def __init__(self, array: Any, name: str) -> None:
        self.array, self.shape, self.dtype = array, tuple(array.shape), ElementType(name)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        size = self.array.dtype.itemsize
        order, letter = "|" if size == 1 else "<", self._letters.get(self.dtype, "f")
        return {"shape": self.shape, "typestr": f"{order}{letter}{size}",
                "data": (self.array.unsafe_buffer_pointer(), False), "version": 3}


class Workspace:
    """Workspace of one call on a GPU, held until the device is done with it."""

    def __init__(self, library: Jax, like: Any) -> None:
        self.library, self.like = library, like
        self.held: list[Any] = []

    def __call__(self, size: int) -> Any:
        self.held.append(self.library.empty(self.like, (size,), "uint8"))
        return self.held[-1]


class Jax(Library):
    """jax.Array."""
    name = "jax"
    takes_over = True

    def __init__(self) -> None:
        import jax.dlpack
        import numpy
        self.jax, self.numpy = jax, numpy

    def _device(self, array: Any) -> Any:
        if isinstance(array, self.jax.core.Tracer):
            raise _native.InvalidError("sternway: a JAX tracer has no memory; in jax.jit use jax.pure_callback")
        devices = array.devices()
        if len(devices) != 1:
            raise _native.UnsupportedError(f"sternway: a JAX array over {len(devices)} devices (one is supported)")
        return next(iter(devices))

    def context(self, array: Any) -> _native.Context:
        device = self._device(array)
        if device.platform == "cpu":
            return shared()
        if device.platform not in ("gpu", "cuda", "rocm"):
            raise _native.UnsupportedError(f"sternway: JAX arrays on {device.platform} (cpu and gpu are supported)")
        backend = Backend.HIP if "rocm" in device.client.platform_version.lower() else Backend.CUDA
        return shared(backend, Memory.DEVICE, device.local_hardware_id or 0)

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        if context.backend != Backend.CPU and "workspace" not in options:
            options["workspace"] = Workspace(self, array)

    def check_outputs(self, outputs: tuple[Any, ...]) -> None:
        if any(isinstance(array, self.jax.Array) for array in outputs):
            raise _native.InvalidError("sternway: JAX arrays are immutable; leave the arrays of results out")

    def wait(self, inputs: tuple[Any, ...]) -> None:
        self.jax.block_until_ready([array for array in inputs if isinstance(array, self.jax.Array)])

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        context, name = self.context(like), dtype or dtype_name(like)
        if context.backend == Backend.CPU:
            return self.numpy.empty(shape, self.jax.numpy.dtype(name))
        made = self.jax.numpy.empty(shape, name, device=self._device(like))
        return Fresh(made.block_until_ready(), name)

    def strides(self, array: Any) -> tuple[int, ...]:
        sizes = [1]
        for extent in reversed(array.shape[1:]):
            sizes.append(sizes[-1] * extent)
        return tuple(reversed(sizes))[:len(array.shape)] if array.shape else ()

    def finish(self, context: _native.Context, options: dict[str, Any]) -> None:
        if context.backend != Backend.CPU:
            context.stream_synchronize(options.get("stream") or 0)

    def hand_over(self, results: Any) -> Any:
        made = [self._array(result) for result in results]
        return type(results)(*made) if hasattr(results, "_fields") else tuple(made)

    def _array(self, result: Any) -> Any:
        if not isinstance(result, self.numpy.ndarray):
            return result.array if isinstance(result, Fresh) else result
        # numpy's own DLPack lacks bfloat16
        lacks = result.dtype.name == "bfloat16"
        return self.jax.numpy.asarray(result) if lacks else self.jax.dlpack.from_dlpack(result)
