# SPDX-License-Identifier: MIT
"""One rank of test_context_parallel.py: cp_rank.py RANK SIZE STORE"""
import contextlib
import datetime
import gc
import pathlib
import re
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from sternway import masks
from sternway.torch import context_parallel


def whole(shape, seed, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def check(name, got, want, dtype):
    allowed = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    error = (got.double() - want).abs().max().item()
    if not error <= allowed * max(1.0, want.abs().max().item()):
        sys.exit(f"{name} of {dtype}: error {error:.3g}")


def one(cp, dtype, heads, kv_heads, rows, causal):
    tensors = [whole((2, h, rows, 16), seed, dtype) for seed, h in enumerate((heads, kv_heads, kv_heads, heads))]
    q, k, v, dout = (cp.shard(t, 2) for t in tensors)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = cp.attention(*leaves, is_causal=causal, total_q=rows, total_k=rows)
    got = torch.autograd.grad(out, leaves, dout)
    refs = [t.double().requires_grad_() for t in tensors[:3]]
    ref = F.scaled_dot_product_attention(*refs, is_causal=causal, enable_gqa=heads != kv_heads)
    want = torch.autograd.grad(ref, refs, tensors[3].double())
    check("out", out, cp.shard(ref, 2), dtype)
    for name, a, b in zip(("dq", "dk", "dv"), got, want):
        check(name, a, cp.shard(b, 2), dtype)


def masked(cp, dtype, batch, rows, mask, causal):
    """A mask of the whole problem, which each rank gives, against the same pairs in float64."""
    tensors = [whole((batch, heads, rows, 16), seed, dtype) for seed, heads in enumerate((12, 6, 6, 12))]
    leaves = [cp.shard(t, 2).requires_grad_() for t in tensors[:3]]
    out = cp.attention(*leaves, is_causal=causal, total_q=rows, total_k=rows, block_mask=mask)
    got = torch.autograd.grad(out, leaves, cp.shard(tensors[3], 2))
    pairs = torch.from_numpy(masks.sees(mask, rows, rows, causal=causal))
    pairs = pairs.repeat_interleave(12 // pairs.shape[1], 1)
    refs = [t.double().requires_grad_() for t in tensors[:3]]
    ref = F.scaled_dot_product_attention(*refs, attn_mask=pairs, enable_gqa=True)
    want = torch.autograd.grad(ref, refs, tensors[3].double())
    check("out under a mask", out, cp.shard(ref, 2), dtype)
    for name, a, b in zip(("dq", "dk", "dv"), got, want):
        check(f"{name} under a mask", a, cp.shard(b, 2), dtype)


def check_masks(cp, size):
    ids = torch.tensor([[4] * 9 + [5] * 20 + [6] * 8, [1] * 30 + [2] * 7])
    masked(cp, torch.float32, 2, 37, masks.documents(ids), True)
    masked(cp, torch.bfloat16, 2, 37, masks.prefix(37, [8, 13]), False)
    bounds = torch.tensor([[[j + 3 + h, j + 7, 0, j - 20] for j in range(37)] for h in range(6)]).int().clamp(0, 37)
    masked(cp, torch.float64, 2, 37, masks.Intervals(bounds[None], masks.IntervalForm.TWO_RANGES), False)
    blocks = torch.eye(2 * size, dtype=torch.bool)
    blocks[:, 0] = True  # each row sees a key
    masked(cp, torch.float32, 1, 256 * size, masks.BlockMask(blocks[None, None]), True)
    q = torch.zeros(1, 6, 4, 8)
    for wrong in (masks.documents(ids), masks.BlockMask(blocks[None, None]), masks.Intervals(bounds[None].long(), 5)):
        try:
            cp.attention(q, q, q, block_mask=wrong)
            sys.exit("a mask of other sizes was not refused")
        except ValueError as error:
            if "over ranks it is that of the whole problem" not in str(error):
                sys.exit(f"other words: {error}")


def program_of_the_document():
    """What docs/context-parallel.md prints, on whole tensors whose gradients then are this rank's rows."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/context-parallel.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    tensors = [whole((1, 4, 24, 16), seed, torch.float64).requires_grad_(seed < 3) for seed in range(4)]
    names = dict(zip(("q", "k", "v", "dout"), tensors), group=dist.group.WORLD)
    exec(compile(source, "docs/context-parallel.md", "exec"), names)  # noqa: S102
    refs = [t.detach().clone().requires_grad_() for t in tensors[:3]]
    ref = F.scaled_dot_product_attention(*refs, is_causal=True)
    cp = names["cp"]
    check("out of the document", names["out"], cp.shard(ref, 2), torch.float64)
    for name, a, b in zip(("dq", "dk", "dv"), tensors, torch.autograd.grad(ref, refs, tensors[3])):
        check(f"{name} of the document", cp.shard(a.grad, 2), cp.shard(b, 2), torch.float64)
    cp.close()


def threads_of_gloo() -> int:
    names = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            names.append(task.joinpath("comm").read_text())
    return sum("gloo" in name for name in names)


def main():
    gc.disable()  # what is left in cycles stays
    rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    for order in ("zigzag", "contiguous"):
        for schedule in ("auto", "ring", "all-gather", "ulysses"):
            cp = context_parallel(order=order, schedule=schedule)
            one(cp, torch.float32, 6, 6, 37, True)
            one(cp, torch.bfloat16, 12, 6, 24, False)
            one(cp, torch.float64, 6, 6, 11, True)
            if (order, schedule) in (("zigzag", "ring"), ("contiguous", "all-gather"), ("zigzag", "ulysses")):
                check_masks(cp, size)
            cp.close()
    program_of_the_document()
    cp = context_parallel(timeout=30.0)
    try:  # ranks that differ hear of it
        q = torch.zeros(1, 2 if rank else 4, 4, 8)
        cp.attention(q, q, q)
        sys.exit("ranks with other heads were not refused")
    except ValueError as error:
        if "attn.heads_q is 4 on rank 0 and 2 on rank 1" not in str(error):
            sys.exit(f"other words: {error}")
    cp.close()
    if not threads_of_gloo():
        sys.exit("this PyTorch gives gloo's threads no such names: the test has to find them otherwise")
    dist.destroy_process_group()
    if threads_of_gloo():
        sys.exit("gloo's threads run on after the group's end: something keeps the group")
    print("fine")


if __name__ == "__main__":
    main()
