# SPDX-License-Identifier: MIT
"""The nested operations of Sternway's C interface over ctypes: on torch tensors for cpu_jagged.py (Call), on addresses for
jagged_peers.py and tests/gpu/check_jagged.py (Plan).

A nested tensor is its flat values. A Call is planned once and run many times."""
import ctypes
import pathlib
import re

import torch

from sternway_api import ENUM, i32, i64, ptr, size_t, u32

f64 = ctypes.c_double
DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4, torch.int32: 8, torch.int64: 9}
# stw_jagged_op: "matmul" is 1
HEADER = pathlib.Path(__file__).resolve().parents[1] / "include/sternway/jagged_desc.h"
OPS = {name.lower(): int(n) for name, n in re.findall(r"^    STW_JAGGED_(\w+) = (\d+),? ", HEADER.read_text(), re.M)}
# PyTorch's pointwise functions: the forward of x, the backward of (grad, x)
A, F = torch.ops.aten, torch.nn.functional
POINTWISE = {"gelu": (F.gelu, lambda g, x: A.gelu_backward(g, x, approximate="none")),
             "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda g, x: A.gelu_backward(g, x, approximate="tanh")),
             "silu": (F.silu, A.silu_backward),
             "threshold": (torch.relu, lambda g, x: A.threshold_backward(g, x, 0))}
OUTER, RAGGED, INNER, COMPONENT = 1, 2, 3, 4
DX, DOTHER, DWEIGHT, DBIAS = 1, 2, 4, 8
HAS_USED, FULL, HAS_GAMMA = 1, 2, 4
X_TRANSPOSED, OTHER_TRANSPOSED, GRAD_TRANSPOSED = 0x10, 0x20, 0x40
X_BASES, OTHER_BASES, GRAD_BASES = 0x100, 0x200, 0x400
I32, I64 = 8, 9
DIMS = {None: 0, "outer": OUTER, "ragged": RAGGED, "inner": INNER, "component": COMPONENT}
STORAGE = {"components": 0, "jagged": 1}
AXES = {"m": 0, "k": 1, "n": 2}


class Axis(ctypes.Structure):
    _fields_ = [("size", i64), ("total", i64)]


class Offsets(ctypes.Structure):
    _fields_ = [(n, ptr) for n in ("offsets", "used", "offsets_host", "used_host")]


class Desc(ctypes.Structure):
    _fields_ = ([("struct_size", size_t)]
                + [(n, ENUM) for n in ("op", "dtype", "index_dtype", "dx_dtype", "dother_dtype", "dweight_dtype",
                                       "dbias_dtype", "weight_dtype")]
                + [(n, u32) for n in ("outputs", "accumulate", "flags")]
                + [(n, ENUM) for n in ("storage", "grad_storage", "other_storage")]
                + [("components", i64), ("axis", Axis * 3), ("ragged_axes", u32), ("dim", ENUM)]
                + [(n, i64) for n in ("outer", "inner", "dim_size", "dim_after", "index", "out_features", "padded")]
                + [("threshold", f64), ("shape_rank", i32), ("grad_rank", i32), ("shape", i64 * 8),
                   ("grad_shape", i64 * 8)]
                + [(n, i64) for n in ("x_elements", "other_elements", "grad_elements")] + [("attn", ptr)])


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", size_t), ("axis", Offsets * 3)]
                + [(n, ptr) for n in ("grad", "x", "y", "other", "weight", "mean", "rstd", "x_bases", "other_bases",
                                      "grad_bases", "dx", "dother", "dweight", "dbias", "status_out", "attn")])


class Call:
    """One planned call of an op. `axes`: {axis number: (offsets, longest, total) or a constant extent}; `fields` of the
    descriptor and `tensors` of the arguments by name."""

    def __init__(self, api, op, axes, components, tensors, **fields):
        first = tensors["grad"]
        self.api, self.keep, self.plan = api, (tensors, axes), ptr()
        desc = Desc(struct_size=ctypes.sizeof(Desc), op=OPS[op], dtype=DTYPES[first.dtype], index_dtype=9,
                    components=components)
        self.args = Args(struct_size=ctypes.sizeof(Args))
        for number, axis in axes.items():
            if isinstance(axis, int):
                desc.axis[number].size = axis
                continue
            offsets, desc.axis[number].size, desc.axis[number].total = axis
            self.args.axis[number].offsets = offsets.data_ptr()
            if op == "matmul":
                desc.ragged_axes |= 1 << number
        for name, value in fields.items():
            setattr(desc, name, (i64 * 8)(*value) if isinstance(value, (list, tuple)) else value)
        for name, tensor in tensors.items():
            setattr(self.args, name, tensor.data_ptr())
        lib = api.lib
        lib.stw_jagged_bwd.argtypes = [ptr, ptr, ptr, size_t, ptr]
        api.check(lib.stw_jagged_bwd_plan(api.context, ctypes.byref(desc), ctypes.byref(self.plan)))
        self.size = lib.stw_plan_workspace_size(self.plan)
        self.memory = torch.empty(self.size, dtype=torch.uint8, device=first.device)
        self.workspace = self.memory.data_ptr()
        self.reference = ctypes.byref(self.args)

    def run(self, stream=None):
        status = self.api.lib.stw_jagged_bwd(self.plan, self.reference, self.workspace, self.size, stream)
        if status:
            self.api.check(status)

    def __del__(self):
        self.api.lib.stw_plan_destroy(self.plan)


class Plan:
    """A plan; fields of the descriptor by name, axes as (size, total)."""

    def __init__(self, api, op, dtype, axes=(), **fields):
        self.api, self.plan = api, ptr()
        api.lib.stw_jagged_bwd_plan.argtypes = [ptr, ptr, ptr]
        api.lib.stw_jagged_bwd.argtypes = [ptr, ptr, ptr, size_t, ptr]
        desc = Desc(struct_size=ctypes.sizeof(Desc), op=OPS[op], dtype=dtype)
        for i, (size, total) in enumerate(axes):
            desc.axis[i] = Axis(size, total)
        for name, value in fields.items():
            setattr(desc, name, (i64 * 8)(*value) if isinstance(value, (list, tuple)) else value)
        api.check(api.lib.stw_jagged_bwd_plan(api.context, ctypes.byref(desc), ctypes.byref(self.plan)))
        self.size = api.lib.stw_plan_workspace_size(self.plan)

    def args(self, axes=(), **pointers):
        """Arguments of a call; axes as (offsets, used) addresses, pointers as addresses."""
        args = Args(struct_size=ctypes.sizeof(Args))
        for i, pair in enumerate(axes):
            args.axis[i].offsets, args.axis[i].used = pair
        for name, value in pointers.items():
            setattr(args, name, value)
        return args

    def run(self, args, workspace, stream=None):
        status = self.api.lib.stw_jagged_bwd(self.plan, ctypes.byref(args), workspace, self.size, stream)
        if status:
            self.api.check(status)

    def text(self):
        text = ctypes.create_string_buffer(8192)
        self.api.check(self.api.lib.stw_plan_describe(self.plan, text, len(text), None))
        return text.value.decode()

    def __del__(self):
        if self.plan:
            self.api.lib.stw_plan_destroy(self.plan)
