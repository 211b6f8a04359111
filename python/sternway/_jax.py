# SPDX-License-Identifier: MIT
"""JAX arrays. They are immutable, so every result is new: on the CPU numpy memory that the library writes and JAX takes
over, on a GPU a Buffer. The call is complete when it returns, since JAX does not know the stream. Inside jax.jit use
jax.pure_callback: a tracer has no memory."""
from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import DTYPES, Library, dtype_name
from ._context import shared
from .buffer import Buffer
from .enums import Backend, Memory


class Workspace:
    """Workspace of one call on a GPU, held until the device is done with it."""

    def __init__(self, context: _native.Context) -> None:
        self.context = context
        self.held: list[Buffer] = []

    def __call__(self, size: int) -> Buffer:
        self.held.append(Buffer(self.context, (size,), "u8"))
        return self.held[-1]


class Jax(Library):
    """jax.Array."""
    name = "jax"
    takes_over = True

    def __init__(self) -> None:
        import jax
        import jax.dlpack
        import numpy
        self.jax, self.numpy = jax, numpy

    def _platform(self, array: Any) -> tuple[str, int]:
        if isinstance(array, self.jax.core.Tracer):
            raise _native.InvalidError("sternway: a JAX tracer has no memory; call through jax.pure_callback in jax.jit")
        devices = array.devices()
        if len(devices) != 1:
            raise _native.UnsupportedError(f"sternway: a JAX array over {len(devices)} devices (one is supported)")
        device = next(iter(devices))
        return device.platform, device.local_hardware_id or 0

    def context(self, array: Any) -> _native.Context:
        platform, device = self._platform(array)
        if platform == "cpu":
            return shared()
        if platform not in ("gpu", "cuda", "rocm"):
            raise _native.UnsupportedError(f"sternway: JAX arrays on {platform} (cpu and gpu are supported)")
        version = self.jax.extend.backend.get_backend().platform_version if hasattr(self.jax, "extend") else ""
        backend = Backend.HIP if platform == "rocm" or "rocm" in version.lower() else Backend.CUDA
        return shared(backend, Memory.DEVICE, device)

    def prepare(self, array: Any, context: _native.Context, options: dict[str, Any]) -> None:
        if context.backend != Backend.CPU and "workspace" not in options:
            options["workspace"] = Workspace(context)

    def wait(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        if any(isinstance(array, self.jax.Array) for array in outputs):
            raise _native.InvalidError("sternway: JAX arrays are immutable; leave the arrays of results out")
        self.jax.block_until_ready([array for array in inputs if isinstance(array, self.jax.Array)])

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        context, name = self.context(like), dtype or dtype_name(like)
        if context.backend == Backend.CPU:
            return self.numpy.empty(shape, self.jax.numpy.dtype(name))
        return Buffer(context, shape, DTYPES[name])

    def strides(self, array: Any) -> tuple[int, ...]:
        sizes = [1]
        for extent in reversed(array.shape[1:]):
            sizes.append(sizes[-1] * extent)
        return tuple(reversed(sizes))[:len(array.shape)] if array.shape else ()

    def hand_over(self, results: Any, options: dict[str, Any]) -> Any:
        """The results as JAX arrays, when the device is done."""
        made = [self._array(result, options) for result in results]
        return type(results)(*made) if hasattr(results, "_fields") else tuple(made)

    def _array(self, result: Any, options: dict[str, Any]) -> Any:
        if isinstance(result, Buffer):
            result.context.stream_synchronize(options.get("stream", 0))
            return self.jax.dlpack.from_dlpack(result)
        if isinstance(result, self.numpy.ndarray):
            # numpy's own DLPack lacks bfloat16
            bf16 = result.dtype.name == "bfloat16"
            return self.jax.numpy.asarray(result) if bf16 else self.jax.dlpack.from_dlpack(result)
        return result
