# SPDX-License-Identifier: MIT
"""What the calls need from PyTorch: the context of a tensor's device, the current stream, workspace from PyTorch's
allocator, determinism and threads as the user set them."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

from .. import _native

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of torch.cuda.current_stream()'s time


class _Device(NamedTuple):
    """What stays the same from call to call on one device."""

    context: _native.Context
    index: int  # -1: the CPU
    workspace: Callable[[int], torch.Tensor] | None


_devices: dict[torch.device, _Device] = {}
os.register_at_fork(after_in_child=_devices.clear)  # threads and GPU contexts of the parent's do not live in a child


def _open(device: torch.device) -> _Device:
    if device.type == "cpu":
        return _Device(_native.Context(backend=_native.BACKEND_CPU, memory=_native.MEMORY_HOST), -1, None)
    if device.type != "cuda":
        raise _native.UnsupportedError(f"sternway: tensors on {device} (cpu and cuda devices are supported)")
    index = torch.cuda.current_device() if device.index is None else device.index
    backend = _native.BACKEND_HIP if torch.version.hip else _native.BACKEND_CUDA
    made = _native.Context(backend=backend, memory=_native.MEMORY_DEVICE, device=index)
    place = torch.device("cuda", index)
    return _Device(made, index, lambda size: torch.empty(size, dtype=torch.uint8, device=place))


def _device(device: torch.device) -> _Device:
    found = _devices.get(device)
    return found if found is not None else _devices.setdefault(device, _open(device))


def context(device: torch.device) -> _native.Context:
    """The context of a device, made at its first use: host memory for the CPU, else that GPU's memory.
    Raises what the library says: NoDriverError, NoDeviceError, NoImageError."""
    return _device(device).context


def stream(device: torch.device) -> int:
    """Address of PyTorch's current stream; 0 on the CPU."""
    index = _device(device).index
    if index < 0:
        return 0
    return _raw_stream(index) if _raw_stream else torch.cuda.current_stream(device).cuda_stream


def workspace(device: torch.device) -> Callable[[int], torch.Tensor] | None:
    """Gives n bytes from PyTorch's allocator, which knows streams and the private pools of graphs; None: the C module's
    own memory. It may be handed out again when the call returns: whoever gets it works in the same stream."""
    return _device(device).workspace


def deterministic() -> bool | None:
    """True under torch.use_deterministic_algorithms, warn_only included: no call is refused for it. None leaves it to
    STERNWAY_DETERMINISTIC."""
    return True if torch.are_deterministic_algorithms_enabled() else None


_thread = threading.local()  # .made_current: GPUs whose context PyTorch has made current in this thread


def _make_current(found: _Device) -> None:
    """The library leaves a thread's current context as it is. In a thread of autograd's that is none until PyTorch's
    first kernel there, and its next product by cuBLAS would warn of that."""
    torch.zeros(1, device=torch.device("cuda", found.index))
    _thread.made_current = getattr(_thread, "made_current", frozenset()) | {found.index}


def _common(device: torch.device) -> tuple[_native.Context, dict]:
    found = _devices.get(device) or _device(device)
    if found.index < 0:
        return found.context, {"cpu_threads": min(torch.get_num_threads(), 1024)}
    if found.index not in getattr(_thread, "made_current", ()):
        _make_current(found)
    return found.context, {"workspace": found.workspace, "stream": stream(device)}


def attn_bwd(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.attn_bwd on q's device."""
    context, common = _common(q.device)
    if keywords.get("deterministic") is None:
        keywords["deterministic"] = deterministic()
    _native.attn_bwd(context, layout, q=q, **common, **keywords)


def attn_fwd(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.attn_fwd on q's device."""
    context, common = _common(q.device)
    _native.attn_fwd(context, layout, q=q, **common, **keywords)


def dropout_mask(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.dropout_mask on q's device."""
    _native.dropout_mask(context(q.device), layout, q=q, stream=stream(q.device), **keywords)


def jagged_bwd(op: int, *, grad: torch.Tensor, **keywords) -> None:
    """_native.jagged_bwd on grad's device."""
    context, common = _common(grad.device)
    _native.jagged_bwd(context, op, grad=grad, **common, **keywords)
