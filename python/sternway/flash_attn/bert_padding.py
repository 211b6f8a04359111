# SPDX-License-Identifier: MIT
"""Padded batches to packed ones and back, as flash_attn.bert_padding does. Plain indexing of PyTorch's, whose gradients
are PyTorch's own."""
from __future__ import annotations

import torch


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows `indices` [N] of input [M, ...] (any strides, two dimensions or more): [N, ...]. In the gradient each row
    goes back to its place, repeated indices add up."""
    return input.index_select(0, indices)


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """[first_axis_dim, ...] with values [N, ...] at rows `indices` [N], zeros elsewhere. Indices must differ."""
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_copy(0, indices, values)


def index_first_axis_residual(input: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """index_first_axis() and the input itself, for a residual connection."""
    return index_first_axis(input, indices), input


def _pack(hidden_states: torch.Tensor, chosen: torch.Tensor, lengths: torch.Tensor
          ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Chosen rows, their indices, the running sum int32 [N + 1] of the lengths and the longest, which reads one number
    back from the device."""
    indices = chosen.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Takes the padding out of a batch.

    hidden_states [B, S, ...]; attention_mask [B, S], bool or integers, 1 for a token; unused_mask [B, S], 1 for a place
    that is kept in the pack and not used. Returns the tokens [T, ...], their indices int64 [T] in the flattened batch,
    cu_seqlens int32 [B + 1], the longest sequence (a number: reads back from the device) and the used lengths
    int32 [B] (tokens of attention_mask alone). T counts both masks."""
    places = attention_mask if unused_mask is None else attention_mask + unused_mask
    packed = _pack(hidden_states, places, places.sum(dim=-1, dtype=torch.int32))
    return (*packed, attention_mask.sum(dim=-1, dtype=torch.int32))


def unpad_input_for_concatenated_sequences(hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
                                           ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """As unpad_input(), for rows that hold several sequences one behind the other.

    attention_mask_in_length [B, S], integers: each row begins with the lengths of its sequences, zeros behind them; a
    row [2, 3, 0, 0, 0, 0] is two sequences of 2 and 3 tokens and one place of padding. Returns the tokens, their
    indices, cu_seqlens over all sequences, the longest."""
    used = attention_mask_in_length.sum(dim=-1, keepdim=True)
    places = torch.arange(attention_mask_in_length.shape[-1], device=used.device) < used
    lengths = attention_mask_in_length.flatten()
    return _pack(hidden_states, places, lengths[lengths.nonzero().flatten()].to(torch.int32))


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """[batch, seqlen, ...] out of the tokens [T, ...] that unpad_input() gave with these indices, zeros in the
    padding."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
