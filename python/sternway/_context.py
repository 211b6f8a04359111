# SPDX-License-Identifier: MIT
"""Contexts: one backend on one device. The functions of the package keep one for each (backend, kind of memory, device)
and find it by the arrays; a program that wants another makes a Context and gives it as `context=`."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _native
from .enums import Backend, Memory

if TYPE_CHECKING:
    from typing_extensions import Self

BACKENDS: dict[str, int] = {item.name.lower(): int(item) for item in Backend}
MEMORY: dict[str, int] = {item.name.lower(): int(item) for item in Memory}


def number(names: dict[str, int], value: str | int, what: str) -> int:
    """The number of a name, of an enum's member or of a plain number. InvalidError names the choices."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    found = names.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        shown = repr(value) if isinstance(value, (str, bool, float)) else f"of type {type(value).__name__}"
        raise _native.InvalidError(f"sternway: {what} is {shown}; one of {', '.join(map(repr, names))} is expected")
    return found


class Context(_native.Context):
    """stw_context_create(). backend: "auto" (STERNWAY_BACKEND, else the best that fits), "cpu", "cuda", "hip";
    memory: "host", "device", "buffers", where the tensors of its calls live; device: the driver's ordinal, None:
    STERNWAY_DEVICE, else 0; arch: "sm80" forces its kernels; cpu_threads: 0 = STERNWAY_CPU_THREADS, else all
    allowed cores. Enums and plain numbers do too. Any thread may use it; it ends with its last reference and its
    last plan. Raises NoDriverError, NoDeviceError, NoImageError, InvalidError, DriverError, NoMemoryError."""
    __slots__ = ()

    def __new__(cls, backend: str | int = "auto", memory: str | int = "host", device: int | None = None,
                arch: str | None = None, cpu_threads: int = 0) -> Self:
        return super().__new__(cls, backend=number(BACKENDS, backend, "backend"),
                               memory=number(MEMORY, memory, "memory"), device=device, arch=arch,
                               cpu_threads=cpu_threads)


_contexts: dict[tuple[int, int, int | None], _native.Context] = {}


def shared(backend: int = _native.BACKEND_AUTO, memory: int = _native.MEMORY_HOST, device: int | None = None
           ) -> _native.Context:
    """The process's context of a backend, a kind of memory and a device, made at its first use. Two threads that meet
    here at once may both make one; the first that is stored is everybody's."""
    key = (backend, memory, device)
    found = _contexts.get(key)
    if found is None:
        found = _contexts.setdefault(key, _native.Context(backend=backend, memory=memory, device=device))
    return found


def _after_fork() -> None:
    """A child has none of the threads of a CPU context, and makes its own. GPU contexts stay: their calls raise
    ForkedError, whose text says what to do, where a new context would fail in the driver."""
    for key in [key for key in _contexts if key[1] == _native.MEMORY_HOST]:
        del _contexts[key]


os.register_at_fork(after_in_child=_after_fork)
