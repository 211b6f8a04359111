# SPDX-License-Identifier: MIT
"""Sternway: the backward of attention and of nested tensors on NVIDIA and AMD GPUs and on the CPU.

    gradients = sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal")     # numpy, CuPy, JAX arrays, torch tensors

sternway.masks makes masks of documents, prefixes and trees, sternway.jagged has the nested operations,
sternway.torch the PyTorch operators and the drop-in (`enable()`),
sternway.flash_attn the functions of the flash-attn package. Everything of the C interface is here too: Context,
AttnDesc, AttnArgs, JaggedDesc, JaggedArgs and the plans of a Context; attributes are the C fields
(include/sternway/*.h)."""
from __future__ import annotations

import importlib
from types import ModuleType
from typing import Callable

from . import jagged, masks
from ._context import Context
from ._describe import attn_desc
from ._native import (AttnArgs, AttnDesc, ContextOpts, DeviceInfo, DeviceLostError, DriverError, Error, ForkedError,
                      ImageInfo, InternalError, InvalidError, JaggedArgs, JaggedDesc, NoDeviceError, NoDriverError,
                      NoImageError, NoMemoryError, Plan, UnsupportedError, WorkspaceError, devices, embedded_images,
                      last_error, layout_bhsd, layout_bshd, layout_thd, mask_from_flash, status_name)
from ._native import set_log as _set_log
from ._native import version as _version
from .attention import Gradients, attn_bwd, attn_fwd, dropout_mask
from .buffer import Buffer
from .enums import (AttnFlag, Axis, Backend, ContextFlag, Data, Deterministic, DropoutMap, DType, JaggedData, JaggedDim,
                    IntervalForm, JaggedFlag, JaggedOp, JaggedOut, LogLevel, Mask, Memory, Out, Status, Storage)
from .report import explain, explain_jagged, info

__version__: str = _version()


def set_log(function: Callable[[int, str], None] | None) -> None:
    """Sends each line of the library's log to function(level, line), a LogLevel's number and the text without a
    newline, from whichever thread calls the library. None: STERNWAY_LOG_FILE or standard error again. The level in
    force is STERNWAY_LOG's."""
    _set_log(function)


def __getattr__(name: str) -> ModuleType:
    """sternway.torch and sternway.flash_attn, which need PyTorch, are imported when they are first used."""
    if name in ("torch", "flash_attn"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion and dir() show: the interface, without what is imported here."""
    return sorted((*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__", "flash_attn", "torch"))


__all__ = [
    "AttnArgs", "AttnDesc", "AttnFlag", "Axis", "Backend", "Buffer", "Context", "ContextFlag", "ContextOpts", "DType",
    "Data", "Deterministic", "DeviceInfo", "DeviceLostError", "DriverError", "DropoutMap", "Error", "ForkedError",
    "Gradients", "ImageInfo", "InternalError", "IntervalForm", "InvalidError", "JaggedArgs", "JaggedData", "JaggedDesc", "JaggedDim",
    "JaggedFlag", "JaggedOp", "JaggedOut", "LogLevel", "Mask", "Memory", "NoDeviceError", "NoDriverError",
    "NoImageError",
    "NoMemoryError", "Out", "Plan", "Status", "Storage", "UnsupportedError", "WorkspaceError", "attn_bwd", "attn_desc",
    "attn_fwd", "devices", "dropout_mask", "embedded_images", "explain", "explain_jagged", "info", "jagged",
    "last_error",
    "layout_bhsd", "layout_bshd", "layout_thd", "mask_from_flash", "masks", "set_log", "status_name"]
