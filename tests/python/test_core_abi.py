# SPDX-License-Identifier: MIT
"""The mirror of the C interface against an independent reading of the headers: every function, struct, field,
constant."""
from __future__ import annotations

import ast
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sternway = pytest.importorskip("sternway")
from sternway import _native  # noqa: E402

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADERS = sorted((INCLUDE / "sternway").glob("*.h"))
STRUCTS = {"stw_attn_desc": sternway.AttnDesc, "stw_attn_args": sternway.AttnArgs,
           "stw_jagged_desc": sternway.JaggedDesc,
           "stw_jagged_args": sternway.JaggedArgs, "stw_context_opts": sternway.ContextOpts,
           "stw_device_info": sternway.DeviceInfo, "stw_image_info": sternway.ImageInfo}
INNER = {"stw_attn_strides", "stw_attn_dim_strides", "stw_bias_strides", "stw_interval_strides",
         "stw_block_mask_strides", "stw_jagged_axis", "stw_jagged_offsets"}
ENUMS = {"stw_status": sternway.Status, "stw_log_level": sternway.LogLevel, "stw_dtype": sternway.DType,
         "stw_backend": sternway.Backend, "stw_memory": sternway.Memory, "stw_attn_mask": sternway.Mask,
         "stw_attn_intervals": sternway.IntervalForm,
         "stw_dropout_map": sternway.DropoutMap, "stw_deterministic": sternway.Deterministic,
         "stw_jagged_op": sternway.JaggedOp, "stw_jagged_dim": sternway.JaggedDim,
         "stw_jagged_storage": sternway.Storage}
FLAGS = {"STW_CONTEXT_": sternway.ContextFlag, "STW_OUT_": sternway.Out, "STW_ATTN_": sternway.AttnFlag,
         "STW_DATA_": sternway.Data, "STW_AXIS_": sternway.Axis, "STW_JAGGED_DATA_": sternway.JaggedData,
         "STW_JAGGED_D": sternway.JaggedOut, "STW_JAGGED_": sternway.JaggedFlag}
# each function of the C interface and what calls it in Python
FUNCTIONS = {
    "stw_status_name": "status_name", "stw_last_error": "last_error", "stw_version": "__version__",
    "stw_set_log": "set_log",
    "stw_devices": "devices", "stw_embedded_images": "embedded_images", "stw_context_create": "Context",
    "stw_context_destroy": "Context", "stw_context_arch": "Context.arch", "stw_buffer_alloc": "Context.buffer_alloc",
    "stw_buffer_free": "Context.buffer_free", "stw_copy": "Context.copy", "stw_stream_create": "Context.stream_create",
    "stw_stream_synchronize": "Context.stream_synchronize", "stw_stream_destroy": "Context.stream_destroy",
    "stw_layout_bshd": "layout_bshd", "stw_layout_bhsd": "layout_bhsd", "stw_layout_thd": "layout_thd",
    "stw_attn_mask_from_flash": "mask_from_flash", "stw_attn_bwd_plan": "Context.attn_bwd_plan",
    "stw_attn_fwd_plan": "Context.attn_fwd_plan", "stw_plan_destroy": "Plan",
    "stw_plan_workspace_size": "Plan.workspace_size",
    "stw_plan_describe": "Plan.describe", "stw_attn_bwd": "Plan.run", "stw_attn_fwd": "Plan.run",
    "stw_dropout_mask": "Plan.dropout_mask", "stw_explain_attn": "explain",
    "stw_explain_attn_fwd": "explain",
    "stw_attn_bwd_once_workspace": "Context.attn_bwd_once_workspace", "stw_attn_bwd_once": "Context.attn_bwd_once",
    "stw_attn_fwd_once_workspace": "Context.attn_fwd_once_workspace", "stw_attn_fwd_once": "Context.attn_fwd_once",
    "stw_jagged_bwd_plan": "Context.jagged_bwd_plan", "stw_jagged_bwd": "Plan.run",
    "stw_explain_jagged": "explain_jagged", "stw_mask_documents": "masks.documents", "stw_mask_chunks": "masks.chunks",
    "stw_mask_prefix": "masks.prefix", "stw_mask_tree": "masks.tree", "stw_mask_sliding": "masks.sliding",
    "stw_mask_padding": "masks.padding", "stw_mask_blocks": "masks.from_pairs",
    "stw_mask_blocks_of_intervals": "masks.from_pairs"}


def headers() -> str:
    if not HEADERS:
        pytest.skip("the headers are not beside this test")
    return "\n".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S) for path in HEADERS)


def struct_fields(text: str) -> dict[str, list[str]]:
    """Names of each struct's members, in order."""
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{([^}]*)\}", text):
        found[name] = [re.sub(r"\[.*", "", member.split()[-1]).lstrip("*") for member in body.split(";")
                       if member.strip()]
    return found


def test_every_function_has_a_counterpart():
    declared = set(re.findall(r"STW_API[\w\s*]*?\b(stw_\w+)\(", headers()))
    assert declared == set(FUNCTIONS)
    for name in FUNCTIONS.values():
        at = sternway
        for part in name.split("."):
            at = getattr(at, part)


def test_every_struct_and_its_members():
    fields = struct_fields(headers())
    assert set(fields) == set(STRUCTS) | INNER
    for name, kind in STRUCTS.items():
        assert [row[0] for row in kind.fields] == fields[name], name
        made = kind()
        assert made.struct_size > 0
        for field in fields[name]:
            getattr(made, field)


def test_offsets_and_sizes_by_the_compiler(tmp_path):
    """A C program prints offsetof and sizeof of every member of every struct."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    lines = []
    for name, members in struct_fields(headers()).items():
        if name in STRUCTS:
            lines += [f'printf("{name} {m} %zu %zu\\n", offsetof({name}, {m}), sizeof((({name} *)0)->{m}));'
                      for m in members]
            lines.append(f'printf("{name} - 0 %zu\\n", sizeof({name}));')
    source = tmp_path / "offsets.c"
    source.write_text("\n".join(["#include <stdio.h>", "#include <sternway/sternway.h>", "int main(void) {", *lines,
                                 "}\n"]))
    subprocess.run([compiler, f"-I{INCLUDE}", str(source), "-o", str(tmp_path / "offsets")], check=True)
    rows = subprocess.run([str(tmp_path / "offsets")], check=True, capture_output=True,
                          text=True).stdout.split("\n")[:-1]
    seen = 0
    for struct, member, offset, size in (row.split() for row in rows):
        if member == "-":
            assert STRUCTS[struct]().struct_size == int(size)
        else:
            mine = next(row for row in STRUCTS[struct].fields if row[0] == member)
            assert mine[1:3] == (int(offset), int(size)), (struct, member)
            seen += 1
    assert seen == sum(len(kind.fields) for kind in STRUCTS.values())


def test_every_enum_constant():
    declared = {name: {constant: int(value) for constant, value in re.findall(r"STW_(\w+) = (\d+)", body)}
                for body, name in re.findall(r"typedef enum \w+ \{([^}]*)\} (\w+);", headers())}
    assert set(declared) == set(ENUMS)
    for name, constants in declared.items():
        assert _native.ENUMS[name] == constants
        assert {int(member) for member in ENUMS[name]} == set(constants.values())
        for constant, value in constants.items():
            assert getattr(_native, constant) == value
            assert constant.endswith(ENUMS[name](value).name), (constant, ENUMS[name](value).name)


def test_every_flag():
    declared = {name: int(value, 0) for name, value in re.findall(
        r"^#define (STW_(?:CONTEXT|OUT|ATTN|DATA|AXIS|JAGGED)_\w+)\s+(0x[0-9a-fA-F]+|\d+)u?\b", headers(), re.M)}
    assert declared.pop("STW_JAGGED_RANK_MAX") == 8
    for name, value in declared.items():
        assert getattr(_native, name.removeprefix("STW_")) == value
        prefix = next(prefix for prefix in FLAGS if name.startswith(prefix))
        member = name.removeprefix(prefix if prefix != "STW_JAGGED_D" else "STW_JAGGED_")
        assert int(FLAGS[prefix][member]) == value, name
    assert len(declared) == sum(len(kind.__members__) for kind in set(FLAGS.values()))


def test_fields_take_what_they_hold():
    desc = sternway.AttnDesc(batch=2, q=(1, 2, 3), bias=(4, 5, 6, 1), scale=0.5, dropout_p=0.1, window_left=2 ** 40)
    assert desc.q == (1, 2, 3) and desc.bias == (4, 5, 6, 1) and desc.scale == 0.5 and desc.window_left == 2 ** 40
    desc.q = (7,)
    assert desc.q == (7, 0, 0)
    twin = desc.copy()
    twin.batch = 9
    assert desc.batch == 2
    with pytest.raises(OverflowError):
        desc.flags = 2 ** 32
    with pytest.raises((AttributeError, TypeError)):
        sternway.AttnDesc(bach=2)
    with pytest.raises(AttributeError):
        desc.struct_size = 4
    jagged = sternway.JaggedDesc(axis=((5, 6), (7, 8)), shape=(2, -1, 3))
    assert jagged.axis == ((5, 6), (7, 8), (0, 0)) and jagged.shape[:3] == (2, -1, 3)
    inside = sternway.JaggedDesc(attn=desc)
    del desc
    assert inside.attn  # kept alive by the outer struct
    args = sternway.AttnArgs(q=4096, dropout_seed=2 ** 64 - 1)
    assert args.q == 4096 and args.k is None and args.dropout_seed == 2 ** 64 - 1


def test_keepalive_of_arrays():
    np = pytest.importorskip("numpy")
    array = np.ones(3, "f")
    before = sys.getrefcount(array)
    args = sternway.AttnArgs(q=array)
    assert args.q == array.ctypes.data and sys.getrefcount(array) > before
    del args
    assert sys.getrefcount(array) == before


def test_stub():
    """_native.pyi declares what the module has: every name, every field of every struct, every method."""
    stub = pathlib.Path(sternway.__file__).parent / "_native.pyi"
    if not stub.exists():
        pytest.skip("the stub is not beside the module")
    declared: dict[str, ast.AST] = {}
    for node in ast.parse(stub.read_text()).body:
        name = node.target.id if isinstance(node, ast.AnnAssign) else getattr(node, "name", None)
        if name:
            declared[name] = node
    assert set(declared) == {name for name in dir(_native) if not name.startswith("__")}
    for name, node in declared.items():
        kind = getattr(_native, name)
        if isinstance(node, ast.ClassDef) and not issubclass(kind, Exception):
            inside = {child.target.id if isinstance(child, ast.AnnAssign) else child.name for child in node.body}
            assert inside - {"__init__", "__new__"} == {item for item in vars(kind) if not item.startswith("__")}, name


def test_exceptions():
    for status in sternway.Status:
        if status:
            kind = getattr(sternway, "".join(part.capitalize() for part in status.name.split("_")) + "Error")
            assert issubclass(kind, sternway.Error) and kind.status == status
            assert sternway.status_name(status).endswith(status.name)
    assert issubclass(sternway.InvalidError, ValueError) and issubclass(sternway.UnsupportedError, NotImplementedError)
    assert issubclass(sternway.NoMemoryError, MemoryError) and issubclass(sternway.Error, RuntimeError)


def test_version():
    version = [re.search(rf"STW_VERSION_{part} (\d+)", headers()).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    assert sternway.__version__ == ".".join(version)
