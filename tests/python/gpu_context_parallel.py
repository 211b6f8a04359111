# SPDX-License-Identifier: MIT
"""context_parallel over NCCL on the GPUs of this machine, beside PyTorch's own and one device: gpu_context_parallel.py

Each of two processes has a GPU and the NCCL communicator of its group. out, dq, dk and dv are compared with
torch.distributed.tensor.experimental.context_parallel and with attention of the whole on one device, both held to
float64; and a second call, and a replayed CUDA graph of one, give the same bits. Skipped with fewer than two GPUs.
NCCL_NVLS_ENABLE=0: NVLink multicast stays off."""
import datetime
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

RANKS = 2
B, H, HK, S, D = 1, 8, 8, 2048, 128


def rms(got, want):
    return (got.double() - want).square().mean().sqrt().item()


def gradients(call, tensors, dout):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def replayed(call, tensors, dout):
    """The same of a CUDA graph that was captured, its results overwritten, and replayed. A call before has connected the ranks."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # PyTorch's NCCL watchdog asks for events in a thread of its own
        out = call(*leaves)
        results = [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    for result in results:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return [result.clone() for result in results]


def of_pytorch(whole, dout, mesh, rows):
    """PyTorch's context_parallel on this rank's rows; its load balancing is the zigzag order."""
    from torch.distributed.tensor.experimental import context_parallel as theirs
    from torch.nn.attention import SDPBackend, sdpa_kernel
    leaves = [t.detach().clone() for t in whole]
    buffers = [*leaves, dout.clone()]
    with theirs(mesh, buffers=buffers, buffer_seq_dims=[2] * 4), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for leaf in leaves:  # buffers are resized where they are entered and left, which tensors with gradients are not
            leaf.requires_grad_()
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        grads = torch.autograd.grad(out, leaves, buffers[3])
        results = [out.detach().clone(), *(g.clone() for g in grads)]
        for leaf in leaves:
            leaf.requires_grad_(False)
    return results


def rank_main(rank, store):
    from torch.distributed.device_mesh import init_device_mesh

    from sternway.torch import context_parallel
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    generator = torch.Generator().manual_seed(3)
    whole = [torch.randn(B, heads, S, D, generator=generator).to("cuda", torch.bfloat16) for heads in (H, HK, HK, H)]
    exact = gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [t.double() for t in whole[:3]],
                      whole[3].double())
    alone = gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), whole[:3], whole[3])
    for schedule in ("ring", "all-gather", "ulysses"):
        cp = context_parallel(schedule=schedule)
        own = [cp.shard(t, 2) for t in whole]
        runs = [gradients(lambda q, k, v: cp.attention(q, k, v, is_causal=True), own[:3], own[3]) for _ in range(2)]
        torch.cuda.synchronize()
        runs.append(replayed(lambda q, k, v: cp.attention(q, k, v, is_causal=True), own[:3], own[3]))
        for name, first, second, third, one, want in zip(("out", "dq", "dk", "dv"), *runs, alone, exact):
            error, allowed = rms(first, cp.shard(want, 2)), 1.25 * rms(cp.shard(one, 2), cp.shard(want, 2))
            print(f"rank {rank} {schedule} {name}: RMS error {error:.3e}, PyTorch's on one device times 1.25 {allowed:.3e}", flush=True)
            if not error <= allowed:
                sys.exit(f"rank {rank} {schedule} {name}: RMS error {error:.3e} is above {allowed:.3e}")
            if not torch.equal(first, second):
                sys.exit(f"rank {rank} {schedule} {name}: a second run has other bits")
            if not torch.equal(first, third):
                sys.exit(f"rank {rank} {schedule} {name}: a replayed graph has other bits")
        rows = cp.rows(S)
        cp.close()
    mesh = init_device_mesh("cuda", (RANKS,))
    theirs = of_pytorch(whole[:3], whole[3], mesh, rows)
    for name, got, ours, want in zip(("out", "dq", "dk", "dv"), theirs, runs[0], exact):
        here = want.index_select(2, rows.cuda())
        error, own = rms(got, here), rms(ours, here)
        print(f"rank {rank} {name}: RMS error of PyTorch's context_parallel {error:.3e}, of ours {own:.3e}", flush=True)
        if not own <= 1.25 * error:
            sys.exit(f"rank {rank} {name}: ours is {own / error:.2f} times PyTorch's")
    dist.destroy_process_group()


def main():
    if torch.cuda.device_count() < RANKS:
        print(f"skipped: {torch.cuda.device_count()} GPUs, {RANKS} are needed")
        sys.exit(77)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory(prefix="sternway-cp-") as folder:
        mp.spawn(rank_main, (os.path.join(folder, "store"),), RANKS)
    print("fine")


if __name__ == "__main__":
    main()
