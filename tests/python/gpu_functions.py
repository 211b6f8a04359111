# SPDX-License-Identifier: MIT
"""Gradients of sternway.flash_attn, sternway.torch.sdpa and of nested layers under enable(), on a GPU.

    python tests/python/gpu_functions.py [--device cuda|cpu] [--only NAME]

Each tensor is compared with the plain formulas in float64. The bound is flash-attn's own: twice the error of the plain
formulas in the tensors' type, and four roundings of that type. The exit status is 1 when a row failed. Not collected by
pytest: a program for a machine with a GPU; the CPU mode tests the program itself."""
from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F

import sternway.flash_attn
import sternway.torch
from gpu_table import Table


def plain(q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, slopes=None, bias=None, visible=None, top_left=False):
    """Attention of [B,S,H,D] tensors by its formulas, in the type of q; rows without a key are zeros."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(t.transpose(1, 2).repeat_interleave(groups, 1) for t in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    s = q @ k.transpose(-1, -2) * q.shape[3] ** -0.5
    s = softcap * torch.tanh(s / softcap) if softcap else s
    shift = 0 if top_left else keys - rows
    distance = torch.arange(keys, device=q.device) - torch.arange(rows, device=q.device)[:, None] - shift
    s = s if slopes is None else s - slopes.to(s.dtype).view(-1, 1, 1) * distance.abs()
    s = s if bias is None else s + bias
    seen = torch.ones_like(distance, dtype=torch.bool)
    seen &= distance <= (0 if causal else window[1] if window[1] >= 0 else keys + rows)
    seen &= distance >= (-window[0] if window[0] >= 0 else -keys - rows)
    seen = seen if visible is None else seen & visible
    p = torch.softmax(s.masked_fill(~seen, -torch.inf), -1)
    return (p.nan_to_num(0.0) @ v).transpose(1, 2)


def results(function, leaves, dtype, grad) -> list[torch.Tensor]:
    """Output and gradients of function over leaves of a type."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in leaves]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]


def compare(table: Table, name: str, ours, formula, leaves, dtype, names="out dq dk dv") -> None:
    """Rows of the output's and each gradient's largest error, relative to the largest element."""
    leaves = [t.to(dtype) for t in leaves]  # the same rounded numbers for all three
    exact_out = formula(*(t.double() for t in leaves))
    grad = torch.randn_like(exact_out).to(dtype)
    exact = results(formula, leaves, torch.float64, grad)
    theirs, mine = results(formula, leaves, dtype, grad), results(ours, leaves, dtype, grad)
    for label, e, t, m in zip(names.split(), exact, theirs, mine):
        top = e.abs().max()
        floor = 4 * torch.finfo(dtype).eps
        bound = 2 * ((t.double() - e).abs().max() / top).item() + floor
        table.row(f"{name} {str(dtype)[6:]}: {label}", ((m.double() - e).abs().max() / top).item(), bound)


def flash(device: str, table: Table) -> None:
    fa, big = sternway.flash_attn, device == "cuda"
    rows, keys, dim = (383, 517, 128) if big else (37, 53, 24)
    slopes = torch.rand(6, device=device) * 0.3
    q, k, v = (torch.randn(2, n, h, dim, device=device) for n, h in ((rows, 6), (keys, 2), (keys, 2)))
    cases = {"causal": {"causal": True}, "window": {"window_size": (29, 11)},
             "softcap": {"softcap": 9.0, "causal": True},
             "alibi": {"alibi_slopes": slopes, "causal": True}, "plain": {}}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for name, options in cases.items():
            formula = {"causal": options.get("causal", False), "window": options.get("window_size", (-1, -1)),
                       "softcap": options.get("softcap", 0.0), "slopes": options.get("alibi_slopes")}
            compare(table, f"flash_attn_func {name}", lambda q, k, v: fa.flash_attn_func(q, k, v, **options),
                    lambda q, k, v: plain(q, k, v, **formula), (q, k, v), dtype)


def varlen(device: str, table: Table) -> None:
    lengths = (131, 1, 0, 257) if device == "cuda" else (13, 1, 0, 27)
    ends = torch.tensor([0, *lengths], device=device).cumsum(0)
    qkv = torch.randn(sum(lengths), 3, 4, 64 if device == "cuda" else 24, device=device)
    cu = ends.int()

    def ours(qkv):
        return sternway.flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, max(lengths), causal=True)

    def formula(qkv):
        parts = [plain(*(t[None] for t in qkv[a:b].unbind(1)), causal=True)[0] for a, b in zip(ends, ends[1:]) if b > a]
        return torch.cat(parts)

    for dtype in (torch.bfloat16, torch.float32):
        compare(table, "flash_attn_varlen_qkvpacked_func", ours, formula, (qkv,), dtype, "out dqkv")


def sdpa(device: str, table: Table) -> None:
    rows, keys, dim = (251, 333, 64) if device == "cuda" else (31, 45, 24)
    q, k, v = (torch.randn(2, n, h, dim, device=device) for n, h in ((rows, 6), (keys, 3), (keys, 3)))
    bias = torch.randn(1, 6, rows, keys, device=device)
    visible = torch.rand(2, 1, rows, keys, device=device) < 0.8
    visible[0, 0, 5] = False

    def call(q, k, v, **options):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return sternway.torch.sdpa(q, k, v, enable_gqa=True, **options).transpose(1, 2)

    compiled = torch.compile(call, fullgraph=True)
    for dtype in (torch.bfloat16, torch.float32):
        compare(table, "sdpa causal", lambda *t: call(*t, is_causal=True),
                lambda *t: plain(*t, causal=True, top_left=True), (q, k, v), dtype)
        compare(table, "sdpa causal, compiled", lambda *t: compiled(*t, is_causal=True),
                lambda *t: plain(*t, causal=True, top_left=True), (q, k, v), dtype)
        compare(table, "sdpa bool mask", lambda *t: call(*t, attn_mask=visible),
                lambda *t: plain(*t, visible=visible), (q, k, v), dtype)
        compare(table, "sdpa bias", lambda q, k, v, b: call(q, k, v, attn_mask=b),
                lambda q, k, v, b: plain(q, k, v, bias=b), (q, k, v, bias), dtype, "out dq dk dv dbias")


def nested(device: str, table: Table) -> None:
    """A feed-forward block over nested tensors of both layouts: linear, gelu, layer norm, softmax, sum."""
    lengths, width = (17, 1, 60, 33), 48
    parts = [torch.randn(n, width, device=device) for n in lengths]
    weights = [torch.randn(3 * width, width, device=device) * 0.1, torch.randn(3 * width, device=device),
               torch.rand(width, device=device) + 0.5, torch.randn(width, device=device)]

    def block(x, w, b, gamma, beta):
        y = F.linear(F.layer_norm(x, (width,), gamma, beta), w, b)
        return torch.softmax(F.gelu(y) + F.silu(y), -1)

    def dense(*leaves):
        return torch.cat([block(p, *leaves[len(lengths):]) for p in leaves[:len(lengths)]])

    for layout in (torch.strided, torch.jagged):
        def ours(*leaves):
            x = torch.nested.as_nested_tensor(list(leaves[:len(lengths)]), layout=layout)
            return torch.cat(list(block(x, *leaves[len(lengths):]).unbind()))

        for dtype in (torch.float32, torch.bfloat16):
            sternway.torch.reset_stats()
            name = f"nested {str(layout)[6:]}"
            with sternway.torch.enable():
                compare(table, name, ours, dense, (*parts, *weights), dtype, "out dx0 dx1 dx2 dx3 dw db dgamma dbeta")
            stats = sternway.torch.stats()
            table.row(f"{name}: backwards taken", sum(row["taken"] for row in stats.values()), 4, least=True)
            for operator, row in stats.items():
                table.note(f"{operator}: taken {row['taken']}, fallback {row['fallback']} {list(row['reasons'])}")


def graph(device: str, table: Table) -> None:
    """A captured backward gives the eager bits, replayed on new numbers; and so does a side stream."""
    if device != "cuda":
        table.note("CUDA graph and streams: not on the CPU")
        return
    leaves = [torch.randn(2, 4, 193, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    grad = torch.randn_like(leaves[0])

    def step():
        return torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, grad)

    torch.use_deterministic_algorithms(True)
    with sternway.torch.enable(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        eager = step()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = step()
        torch.cuda.synchronize()
        table.row("side stream: elements that differ", sum((a != b).sum().item() for a, b in zip(eager, beside)), 0)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            held = step()
        for seed in range(3):
            torch.manual_seed(seed)
            with torch.no_grad():
                for leaf in leaves:
                    leaf.copy_(torch.randn_like(leaf))
            captured.replay()
            torch.cuda.synchronize()
            table.row(f"CUDA graph, replay {seed}: elements that differ",
                      sum((a != b).sum().item() for a, b in zip(step(), held)), 0)
    torch.use_deterministic_algorithms(False)


def bad_input(device: str, table: Table) -> None:
    """Errors of the library's, before anything is launched."""
    q = torch.randn(1, 4, 9, 16, device=device)
    cases = {"head counts": lambda: sternway.torch.sdpa(q, q[:, :3], q[:, :3], enable_gqa=True),
             "dtype": lambda: sternway.flash_attn.flash_attn_func(q.int(), q.int(), q.int()),
             "mixed dtypes": lambda: sternway.torch.sdpa(q, q.double(), q),
             "rows": lambda: sternway.torch.sdpa(q, q, q[:, :, :5])}
    if device == "cuda":
        cases["devices"] = lambda: sternway.torch.sdpa(q, q.cpu(), q.cpu())
    for name, case in cases.items():
        try:
            case()
            raised, text = False, ""
        except (ValueError, NotImplementedError, RuntimeError) as error:
            raised, text = True, str(error)
        table.row(f"bad input, {name}: raises", raised, 1, least=True)
        table.note(text[:150])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="a check: flash, varlen, sdpa, nested, graph, bad_input")
    options = parser.parse_args()
    torch.manual_seed(7)
    table = Table(f"PyTorch {torch.__version__} on {options.device}")
    for check in (flash, varlen, sdpa, nested, graph, bad_input):
        if options.only in check.__name__:
            table.run(check.__name__, lambda t: check(options.device, t))
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
