# SPDX-License-Identifier: MIT
"""Planned calls of the nested operations: on torch tensors for cpu_jagged.py (Call), on addresses for jagged_peers.py
and tests/gpu/check_jagged.py (Plan). A nested tensor is its flat values.

They use the package's view of the C interface, see calls.py."""
from __future__ import annotations

import torch
from torch import Tensor

from calls import DTYPES, Machine, native

# PyTorch's pointwise functions: the forward of x, the backward of (grad, x)
A, F = torch.ops.aten, torch.nn.functional
POINTWISE = {"gelu": (F.gelu, lambda g, x: A.gelu_backward(g, x, approximate="none")),
             "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"),
                           lambda g, x: A.gelu_backward(g, x, approximate="tanh")),
             "silu": (F.silu, A.silu_backward),
             "threshold": (torch.relu, lambda g, x: A.threshold_backward(g, x, 0))}
OPS = {name.removeprefix("JAGGED_").lower(): number for name, number in native.ENUMS["stw_jagged_op"].items()}
DIMS = {None: native.DIM_NONE, "outer": native.DIM_OUTER, "ragged": native.DIM_RAGGED, "inner": native.DIM_INNER,
        "component": native.DIM_COMPONENT}
STORAGE = {"components": native.STORAGE_COMPONENTS, "jagged": native.STORAGE_JAGGED}
NO_AXIS = (0, 0)
ABSENT = (None, None, None, None)


def descriptor(op: str, dtype: int, axes: list[tuple[int, int]], fields: dict) -> native.JaggedDesc:
    """Axes as (size, total); shapes may be shorter than the field."""
    desc = native.JaggedDesc(op=OPS[op], dtype=dtype, axis=(*axes, *[NO_AXIS] * (3 - len(axes))))
    for name, value in fields.items():
        setattr(desc, name, (*value, *[0] * (8 - len(value))) if isinstance(value, (list, tuple)) else value)
    return desc


class Plan:
    """A plan; fields of the descriptor by name, axes as (size, total)."""

    def __init__(self, machine: Machine, op: str, dtype: int, axes=(), **fields) -> None:
        self.plan = machine.context.jagged_bwd_plan(descriptor(op, dtype, list(axes), fields))
        self.size = self.plan.workspace_size

    def args(self, axes=(), **pointers) -> native.JaggedArgs:
        """Arguments of a call; axes as (offsets, used) addresses, pointers as addresses."""
        given = [(*pair, None, None) for pair in axes]
        return native.JaggedArgs(axis=(*given, *[ABSENT] * (3 - len(given))), **pointers)

    def run(self, args: native.JaggedArgs, workspace: int, stream: int = 0) -> None:
        self.plan.run(args, workspace, self.size, stream)

    def text(self) -> str:
        return self.plan.describe()


class Call:
    """One planned call of an op, with memory of its own. `axes`: {axis number: (offsets, longest, total) or a constant
    extent}; `fields` of the descriptor and `tensors` of the arguments by name."""

    def __init__(self, machine: Machine, op: str, axes: dict, components: int, tensors: dict[str, Tensor],
                 **fields) -> None:
        self.keep = (tensors, axes)
        sizes, starts, ragged = [NO_AXIS] * 3, [(None, None)] * 3, 0
        for number, axis in axes.items():
            if isinstance(axis, int):
                sizes[number] = (axis, 0)
                continue
            sizes[number], starts[number] = tuple(axis[1:]), (axis[0].data_ptr(), None)
            ragged |= 1 << number
        if op == "matmul":
            fields["ragged_axes"] = ragged
        first = tensors["grad"]
        self.plan = Plan(machine, op, DTYPES[first.dtype], sizes, index_dtype=native.I64, components=components,
                         **fields)
        self.arguments = self.plan.args(starts, **{name: tensor.data_ptr() for name, tensor in tensors.items()})
        self.memory = torch.empty(self.plan.size, dtype=torch.uint8, device=first.device)
        self.workspace = self.memory.data_ptr()

    def run(self, stream: int = 0) -> None:
        self.plan.run(self.arguments, self.workspace, stream)
