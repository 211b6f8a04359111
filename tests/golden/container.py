# SPDX-License-Identifier: MIT
"""The safetensors container of the golden and example files: one writer and one reader.

Used by make_golden.py, make_dropout_maps.py, make_windows.py and ../../examples/make_examples.py; `sternway run` and the
conformance suite read the result. The writer is our own because the usual one orders the metadata keys
differently from run to run: here the same tensors always give the same bytes. Tensors lie back to back,
widest element type first, so that every one of them is aligned to its element size.
"""
import json
import struct

import torch

DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}


def tensor_bytes(tensor):
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    return flat.numpy().tobytes()


def write_file(path, tensors, metadata):
    """Writes {name: tensor} and {key: string} to a safetensors file."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, offset = {"__metadata__": {key: metadata[key] for key in sorted(metadata)}}, 0
    for name in order:
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensor_bytes(tensors[name]))


def write_problems(path, problems, about):
    """Writes {problem name: Problem}, each name a prefix of its tensors and metadata keys."""
    tensors, metadata = {}, dict(about, torch_version=torch.__version__.split("+")[0])
    for name, problem in problems.items():
        tensors.update({f"{name}.{key}": value for key, value in problem.tensors.items()})
        metadata.update({f"{name}.{key}": value for key, value in problem.meta.items()})
    write_file(path, tensors, metadata)


def read_problems(path):
    """Reads a file back, through the safetensors package, as {problem name: (tensors, metadata)}."""
    from safetensors import safe_open
    problems = {}
    with safe_open(str(path), framework="pt") as file:
        for key in file.keys():
            name, _, leaf = key.rpartition(".")
            problems.setdefault(name, ({}, {}))[0][leaf] = file.get_tensor(key)
        for key, value in file.metadata().items():
            name, dot, leaf = key.rpartition(".")
            if dot:
                problems[name][1][leaf] = value
    return problems
