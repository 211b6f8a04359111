# SPDX-License-Identifier: MIT
"""Attention over ranks where Megatron-Core has its own: torchrun --nproc-per-node 4 examples/megatron_context_parallel.py

DotProductAttention below is built and called as the module of that name in megatron.core.transformer: [s, b, h, d] tensors
that hold chunks r and 2N-1-r of the sequence, as get_batch_on_this_cp_rank cuts them, give [s, b, h*d]. Megatron itself is
not needed: the program cuts a whole problem so, runs forward and backward on every rank, puts the parts together and
compares them with one device in float64. In a model the module goes into the layer's ModuleSpec as core_attention."""
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from sternway.torch import context_parallel

SCHEDULES = {None: "auto", "p2p": "ring", "all_gather": "all-gather", "a2a": "ulysses", "a2a+p2p": "2-D"}


class DotProductAttention(torch.nn.Module):
    """The arguments are Megatron-Core's. `pg_collection.cp` is the context-parallel group; without one, all ranks."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, attention_dropout=None, softmax_scale=None,
                 cp_comm_type=None, pg_collection=None):
        super().__init__()
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        if attention_type != "self" or dropout:
            raise NotImplementedError("self-attention without dropout")
        self.mask, self.scale, self.layer_number = attn_mask_type, softmax_scale, layer_number
        self.cp = context_parallel(getattr(pg_collection, "cp", None), order="zigzag", schedule=SCHEDULES[cp_comm_type],
                                   ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "0")))

    def forward(self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None, packed_seq_params=None):
        if attention_bias is not None or packed_seq_params is not None:
            raise NotImplementedError("a bias or a pack: the C interface takes them, this example does not")
        mask = self.mask if attn_mask_type is None else attn_mask_type
        causal = getattr(mask, "name", mask) == "causal"  # AttnMaskType.causal; attention_mask is not looked at then
        if not causal and attention_mask is not None:
            raise NotImplementedError("a mask in memory")
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))  # [b, h, s, d], nothing is copied
        out = self.cp.attention(q, k, v, is_causal=causal, scale=self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def chunks_of_rank(tensor, rank, size):
    """Megatron's cut of the sequence, the first dimension here, into 2*size chunks."""
    chunks = tensor.chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def whole_of_ranks(parts):
    """The sequence from what all ranks hold."""
    size, halves = len(parts), [part.chunk(2) for part in parts]
    return torch.cat([halves[r][0] for r in range(size)] + [halves[r][1] for r in reversed(range(size))])


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return whole_of_ranks(parts)


@dataclass
class Config:
    """Of a TransformerConfig what the module asks for."""
    attention_dropout: float = 0.0


def check(name, got, want):
    error = ((got.double() - want).square().mean() / want.square().mean()).sqrt().item()
    print(f"{name}: relative RMS error {error:.1e}")
    if not error < 1e-5:
        sys.exit(f"{name} is not that of one device")


def main():
    s, b, h, groups, d = 8 * 24, 2, 8, 4, 32
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(s, b, heads, d, generator=generator) for heads in (h, groups, groups)]
    gradient = torch.randn(s, b, h * d, generator=generator)
    for comm in (None, "p2p", "all_gather", "a2a"):
        if comm == "a2a" and groups % size:
            continue
        attention = DotProductAttention(Config(), 1, "causal", "self", cp_comm_type=comm)
        mine = [chunks_of_rank(t, rank, size).requires_grad_() for t in whole]
        context = attention(*mine, attention_mask=None)
        context.backward(chunks_of_rank(gradient, rank, size))
        results = [gathered(t) for t in (context.detach(), *(t.grad for t in mine))]
        attention.cp.close()
        if rank:
            continue
        leaves = [t.double().requires_grad_() for t in whole]
        alone = F.scaled_dot_product_attention(*(t.permute(1, 2, 0, 3) for t in leaves), is_causal=True, enable_gqa=True)
        alone = alone.permute(2, 0, 1, 3).flatten(2)
        wanted = [alone.detach(), *torch.autograd.grad(alone, leaves, gradient.double())]
        print(f"cp_comm_type {comm} on {size} ranks")
        for name, got, want in zip(("context", "dq", "dk", "dv"), results, wanted):
            check(name, got, want)
    dist.barrier()  # a rank that ends while another works was seen to abort in PyTorch's threads, once in twenty runs
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
