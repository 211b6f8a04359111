# SPDX-License-Identifier: MIT
"""Real texts in one sequence under a document mask, beside each text alone.

examples/minilm.safetensors holds q, k, v and dout of a pretrained encoder on 16 English texts of 7 to 106 tokens, one
behind the other, with exact gradients. Here all 448 tokens are one sequence, and intervals keep the texts apart; once as
the encoder sees them (whole), once causally, as a language model is trained on packed texts.

    python examples/documents.py"""
from __future__ import annotations

import json
import pathlib
import struct

import numpy
import sternway

FILE = pathlib.Path(__file__).with_name("minilm.safetensors")
TYPES = {"F32": numpy.float32, "F64": numpy.float64, "I32": numpy.int32}


def read(prefix: str) -> dict[str, numpy.ndarray]:
    """Tensors of one problem of a safetensors file."""
    data = FILE.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name.startswith(prefix) and entry.get("dtype") in TYPES:
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name[len(prefix):]] = numpy.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def error(value: numpy.ndarray, exact: numpy.ndarray) -> float:
    """The largest difference, as a part of the largest value."""
    return float(numpy.abs(value - exact).max() / numpy.abs(exact).max())


def main() -> None:
    t = read("layer0.")
    starts = t["cu_seqlens_q"]
    ids = numpy.repeat(numpy.arange(len(starts) - 1), numpy.diff(starts))
    q, k, v, dout = (t[name][None] for name in ("q", "k", "v", "dout"))  # [T,H,D] becomes [1,T,H,D]
    for causal in (False, True):
        options = {"layout": "bshd", "mask": "causal" if causal else None}
        mask = sternway.masks.documents(ids, causal=causal)
        out, lse = sternway.attn_fwd(q, k, v, **options, **mask.options())
        together = sternway.attn_bwd(dout, q, k, v, out, lse, **options, **mask.options())
        again = sternway.attn_bwd(dout, q, k, v, out, lse, **options, **mask.options())
        alone = [numpy.empty_like(x) for x in (q, k, v)]
        for start, end in zip(starts, starts[1:]):
            text = [x[:, start:end] for x in (q, k, v, dout)]
            out, lse = sternway.attn_fwd(*text[:3], **options)
            for whole, part in zip(alone, sternway.attn_bwd(text[3], *text[:3], out, lse, **options)):
                whole[:, start:end] = part
        kind = "causal" if causal else "whole "
        for name, one, other, twice in zip(("dq", "dk", "dv"), together, alone, again):
            assert (one == twice).all(), "the same bits run after run"
            difference = error(one, other)
            words = f"{kind} {name}: {len(starts) - 1} texts in one sequence, from each alone {difference:.1e}"
            if not causal:
                exact = t[f"{name}_ref"][None]
                words += f", from the exact gradient {error(one, exact):.1e}, alone {error(other, exact):.1e}"
                assert error(one, exact) < 2e-6
            assert difference < 2e-6
            print(words)


if __name__ == "__main__":
    main()
