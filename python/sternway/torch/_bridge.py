# SPDX-License-Identifier: MIT
"""What the calls need from PyTorch: the context of a tensor's device, the current stream, workspace from PyTorch's
allocator, determinism and threads as the user set them."""
from __future__ import annotations

import os

import torch

from .. import _native

_contexts: dict[tuple[str, int], _native.Context] = {}
os.register_at_fork(after_in_child=_contexts.clear)  # threads and GPU contexts of the parent's do not live in a child


def context(device: torch.device) -> _native.Context:
    """The context of a device, made at its first use: host memory for the CPU, else that GPU's memory.
    Raises what the library says: NoDriverError, NoDeviceError, NoImageError."""
    key = (device.type, device.index or 0)
    found = _contexts.get(key)
    if found is None:
        if device.type == "cpu":
            found = _native.Context(backend=_native.BACKEND_CPU, memory=_native.MEMORY_HOST)
        elif device.type == "cuda":
            backend = _native.BACKEND_HIP if torch.version.hip else _native.BACKEND_CUDA
            found = _native.Context(backend=backend, memory=_native.MEMORY_DEVICE, device=key[1])
        else:
            raise _native.UnsupportedError(f"sternway: tensors on {device} (cpu and cuda devices are supported)")
        found = _contexts.setdefault(key, found)
    return found


def stream(device: torch.device) -> int:
    """Address of PyTorch's current stream; 0 on the CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def workspace(device: torch.device):
    """Workspace of n bytes from PyTorch's allocator, which knows streams and the private pools of graphs. Its memory
    may be handed out again when the call returns: whoever gets it works in the same stream."""
    if device.type == "cpu":
        return None
    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


def deterministic() -> bool | None:
    """True under torch.use_deterministic_algorithms, warn_only included: no call is refused or slowed past the
    deterministic mode's bounds. None leaves it to STERNWAY_DETERMINISTIC."""
    return True if torch.are_deterministic_algorithms_enabled() else None


def _common(device: torch.device) -> dict:
    return {"workspace": workspace(device), "stream": stream(device), "cpu_threads": torch.get_num_threads()}


def attn_bwd(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.attn_bwd on q's device."""
    device = q.device
    keywords.setdefault("deterministic", deterministic())
    _native.attn_bwd(context(device), layout, q=q, **_common(device), **keywords)


def attn_fwd(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.attn_fwd on q's device."""
    device = q.device
    _native.attn_fwd(context(device), layout, q=q, **_common(device), **keywords)


def dropout_mask(layout: int, *, q: torch.Tensor, **keywords) -> None:
    """_native.dropout_mask on q's device."""
    _native.dropout_mask(context(q.device), layout, q=q, stream=stream(q.device), **keywords)


def jagged_bwd(op: int, *, grad: torch.Tensor, **keywords) -> None:
    """_native.jagged_bwd on grad's device."""
    device = grad.device
    _native.jagged_bwd(context(device), op, grad=grad, **_common(device), **keywords)
