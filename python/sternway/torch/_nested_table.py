# SPDX-License-Identifier: MIT
"""Operators on jagged nested tensors, which never reach a kernel of the dispatcher.

A jagged nested tensor is a Python subclass: __torch_dispatch__ looks its function up in a table, JAGGED_OPS_TABLE of
torch.nested._internal.ops (there in PyTorch 2.6 to 2.15), and pointwise functions that the table lacks run on the
values. enable() puts an entry of ours there for each operator it names, in front of what was found before; an entry
whose operator is not enabled passes on what it gets. A PyTorch without that table keeps its own functions for jagged
tensors, and enable() says so once in the log.

to_padded_tensor and _nested_from_padded are each other's backward: in a backward they are taken over, as forwards they
stay PyTorch's."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nested._internal import ops as _jagged_ops

from . import _takeover

_TABLE: dict[Any, Callable] | None = getattr(_jagged_ops, "JAGGED_OPS_TABLE", None)


def in_backward(*args: Any, **kwargs: Any) -> bool:
    """Whether the autograd engine runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1


class NestedOperator(_takeover.Operator):
    """An operator of nested tensors: its kernels in the dispatcher, and its entry in the table of jagged ones."""

    jagged: Callable | None = None  # its implementation for jagged tensors
    is_backward: Callable | None = None  # of the arguments; calls that are no backward are PyTorch's, without a word
    entered = False

    def attempt(self, implementation: Callable, strict: bool, args: tuple, kwargs: dict) -> tuple[bool, Any]:
        if self.is_backward is not None and not self.is_backward(*args, **kwargs):
            return False, None
        return super().attempt(implementation, strict, args, kwargs)

    def install(self) -> None:
        super().install()
        if self.jagged is None or self.entered:
            return
        self.entered = True
        if _TABLE is None:
            _takeover.log.warning("%s of jagged nested tensors stays PyTorch's: PyTorch %s has no table of their"
                                  " functions", self.name, torch.__version__)
            return
        _TABLE[self.overload] = _entry(self, _TABLE.get(self.overload) or _default(self.overload))


def _default(overload: torch._ops.OpOverload) -> Callable:
    """What PyTorch does with an operator that its table lacks."""
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(overload)

    def pointwise(*args: Any, **kwargs: Any) -> Any:
        return _jagged_ops.jagged_binary_pointwise(overload, *args, **kwargs)

    return pointwise if torch.Tag.pointwise in overload.tags else missing


def _entry(operator: NestedOperator, theirs: Callable) -> Callable:
    name = operator.name

    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        return theirs(*args, **kwargs)

    def entry(*args: Any, **kwargs: Any) -> Any:
        strict = _takeover._active.get(name)
        if strict is None or getattr(_takeover._passing, "depth", 0):
            return theirs(*args, **kwargs)
        taken, results = operator.attempt(operator.jagged, strict, args, kwargs)
        return results if taken else _takeover._pass(call, None, args, kwargs)

    return entry


def register(name: str, schema: str | tuple[str, ...], strided: Callable | None, jagged: Callable | None,
             keys: tuple[str, ...] = ("NestedTensorCPU", "NestedTensorCUDA"),
             is_backward: Callable | None = None) -> None:
    """As _takeover.register, with an implementation for each layout; None where the other layout alone has the
    operator. Both get the operator's arguments and return its results, or raise Fallback. is_backward: for operators
    that are forwards too, whether a call with these arguments is a backward."""
    operator = NestedOperator(name, "nested")
    operator.jagged, operator.is_backward = jagged, is_backward
    operator = _takeover._operators.setdefault(name, operator)
    _takeover.register(name, keys if strided is not None else (), strided, schema, group="nested")
