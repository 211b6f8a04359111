# SPDX-License-Identifier: MIT
"""Masks in O(S) memory: which query rows do not see a key, as intervals= and interval_form= of attn_bwd, attn_fwd and
sternway.torch.flex_attention take them.

    mask = sternway.masks.documents(ids)                     # ids [B,S] or [S]: the document of each token
    sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal", **mask.options())

Arrays of numpy or tensors of PyTorch in, the same out, on the same device. docs/masks.md shows each mask,
docs/mathematics.md has the formulas; `sees` writes a mask out as pairs, for tests and for other libraries."""
from __future__ import annotations

from typing import Any, NamedTuple

from . import _native
from .enums import IntervalForm

BLOCK = 128  # rows and keys of a block of a block mask


class Intervals(NamedTuple):
    """bounds: int32 [B|1, Hk|1, S, n]; form: IntervalForm. An interval that ends before it begins hides nothing."""
    bounds: Any
    form: IntervalForm

    def options(self) -> dict[str, Any]:
        """Keywords of a call."""
        return {"intervals": self.bounds, "interval_form": self.form}


class BlockMask(NamedTuple):
    """blocks: bool or uint8 [B|1, Hq|1, Sq/128, Sk/128], False hides the block."""
    blocks: Any

    def options(self) -> dict[str, Any]:
        """Keywords of a call."""
        return {"block_mask": self.blocks}


def _numpy(array: Any) -> Any:
    import numpy
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return numpy.asarray(array)


def _like(array: Any, like: Any) -> Any:
    """An array of numpy as what `like` is, and where it is."""
    if not hasattr(like, "detach"):
        return array
    import torch
    return torch.from_numpy(array).to(like.device)


def _intervals(form: IntervalForm, like: Any, *columns: Any) -> Intervals:
    """Columns [B,S] or [S] as bounds [B,1,S,n]."""
    import numpy
    bounds = numpy.stack([numpy.asarray(column, numpy.int32) for column in numpy.broadcast_arrays(*columns)], -1)
    if bounds.ndim == 2:
        bounds = bounds[None]
    return Intervals(_like(numpy.ascontiguousarray(bounds[:, None]), like), form)


def _document_form(causal: bool, like: Any, start: Any, end: Any) -> Intervals:
    if causal:
        return _intervals(IntervalForm.FROM, like, end)
    return _intervals(IntervalForm.FROM_BELOW, like, end, start)


def documents(ids: Any, *, causal: bool = True) -> Intervals:
    """Documents see themselves alone. ids: [B,S] or [S], a different id begins a document. causal: for calls with
    mask="causal"; else documents are seen whole."""
    import numpy
    array = numpy.atleast_2d(_numpy(ids))
    size = array.shape[1]
    begins = numpy.ones(array.shape, bool)
    begins[:, 1:] = array[:, 1:] != array[:, :-1]
    j = numpy.arange(size)
    start = numpy.maximum.accumulate(numpy.where(begins, j, 0), 1)
    ends = numpy.concatenate([begins[:, 1:], numpy.ones((len(array), 1), bool)], 1)[:, :size]
    end = numpy.minimum.accumulate(numpy.where(ends, j + 1, size)[:, ::-1], 1)[:, ::-1]
    return _document_form(causal, ids, start, end)


def chunks(length: int, chunk: int, *, causal: bool = True, like: Any = None) -> Intervals:
    """Documents of `chunk` tokens each. length: of the sequence; like: an array whose library and device it is for."""
    import numpy
    if chunk < 1:
        raise _native.InvalidError(f"sternway: chunk is {chunk}, at least 1 is expected")
    start = numpy.arange(length) // chunk * chunk
    return _document_form(causal, like, start, numpy.minimum(start + chunk, length))


def prefix(length: int, prefixes: Any, *, like: Any = None) -> Intervals:
    """Every token sees the prefix, and what is not behind itself; for calls without a causal mask. prefixes: its
    tokens, a number or [B]."""
    import numpy
    j = numpy.arange(length)
    sizes = numpy.atleast_1d(_numpy(prefixes))[:, None]
    return _intervals(IntervalForm.FROM_BELOW, prefixes if like is None else like, numpy.full((1, length), length),
                      numpy.where(j < sizes, 0, j))


def tree(parents: Any, starts: Any, *, like: Any = None) -> Intervals:
    """A token sees its own node up to itself, and the nodes above; for calls with mask="causal". parents: [nodes], the
    node above each, -1 for none, in depth-first order; starts: [nodes + 1], the first token of each, then how many
    there are."""
    import numpy
    above, first = _numpy(parents).tolist(), _numpy(starts).tolist()
    end: list[int] = [first[len(above)]] * len(above)
    for n, parent in enumerate(above):
        walk = n - 1
        while walk >= 0 and walk != parent:  # these end where n begins: each node once in all
            end[walk] = first[n]
            walk = above[walk]
        if walk != parent or first[n + 1] < first[n]:
            raise _native.InvalidError(f"sternway: node {n} of the tree: parents are in depth-first order, starts do "
                                       "not decrease")
    return _intervals(IntervalForm.FROM, parents if like is None else like,
                      numpy.repeat(numpy.asarray(end), numpy.diff(numpy.asarray(first))))


def sliding(length: int, window: int, sinks: int = 0, *, like: Any = None) -> Intervals:
    """The first `sinks` keys are seen by all later tokens, others by the next `window` ones; with mask="causal"."""
    import numpy
    j = numpy.arange(length)
    return _intervals(IntervalForm.FROM, like, numpy.where(j < sinks, length, numpy.minimum(j + window + 1, length)))


def padding(rows: int, keys: int, firsts: Any, lengths: Any, *, like: Any = None) -> Intervals:
    """Keys before and behind the text are seen by nobody. firsts, lengths: a number or [B]."""
    import numpy
    j = numpy.arange(keys)
    first, length = (numpy.atleast_1d(_numpy(x))[:, None] for x in (firsts, lengths))
    hidden = (j < first) | (j >= first + length)
    return _intervals(IntervalForm.RANGE, lengths if like is None else like, numpy.zeros_like(j),
                      numpy.where(hidden, rows, 0))


def sees(mask: Intervals | BlockMask, rows: int, keys: int, *, causal: bool = False) -> Any:
    """The mask as pairs, bool [B,H,rows,keys] of numpy: True where the row sees the key."""
    import numpy
    i, j = numpy.arange(rows)[:, None], numpy.arange(keys)
    if isinstance(mask, BlockMask):
        blocks = _numpy(mask.blocks) != 0
        shown = blocks.repeat(BLOCK, 2).repeat(BLOCK, 3)[:, :, :rows, :keys]
    else:
        c = [_numpy(mask.bounds)[:, :, None, :, n].astype(numpy.int64) for n in range(mask.bounds.shape[-1])]
        hidden = {IntervalForm.FROM: lambda: i >= c[0], IntervalForm.RANGE: lambda: (i >= c[0]) & (i < c[1]),
                  IntervalForm.FROM_BELOW: lambda: (i >= c[0]) | (i < c[1]),
                  IntervalForm.RANGE_BELOW: lambda: ((i >= c[0]) & (i < c[1])) | (i < c[2]),
                  IntervalForm.TWO_RANGES: lambda: ((i >= c[0]) & (i < c[1])) | ((i >= c[2]) & (i < c[3]))}
        shown = ~hidden[mask.form]()
    return shown & (j <= i + keys - rows) if causal else shown


def _runs(shown: Any) -> tuple[Any, Any]:
    """Bounds [B,H,keys,4] of the first two runs of False along the rows of each column, and columns that have more."""
    import torch
    hidden = ~shown
    padded = torch.nn.functional.pad(hidden.to(torch.int8), (0, 0, 1, 1))
    steps = padded.diff(dim=2)  # 1 where a run begins, -1 behind its end
    rows = shown.shape[2]
    index = torch.arange(rows + 1, device=shown.device, dtype=torch.int32)[:, None]
    none = torch.full_like(index, rows + 1)
    bounds = []
    for _ in range(2):
        begin = torch.where(steps == 1, index, none).amin(2)
        end = torch.where(steps == -1, index, none).amin(2)
        found = begin <= rows
        bounds += [torch.where(found, begin, 0), torch.where(found, end, 0)]
        steps = torch.where((index == begin[:, :, None]) & (steps == 1), 0, steps)
        steps = torch.where((index == end[:, :, None]) & (steps == -1), 0, steps)
    return torch.stack(bounds, -1).to(torch.int32), (steps == 1).any(2)


def from_pairs(shown: Any, heads_kv: int | None = None) -> Intervals | BlockMask:
    """A tensor of PyTorch, bool [B,H,rows,keys], as a block mask where it is one, else as intervals. heads_kv: key
    heads, where H is the number of query heads. Raises UnsupportedError for a column of more than two hidden intervals,
    or where query heads that share a key head see differently."""
    import torch
    batch, heads, rows, keys = shown.shape
    pad = (0, -keys % BLOCK, 0, -rows % BLOCK)

    def of_blocks(pairs: Any, fill: bool) -> Any:
        whole = torch.nn.functional.pad(pairs, pad, value=fill)
        return whole.view(batch, heads, -1, BLOCK, whole.shape[3] // BLOCK, BLOCK)

    some, every = of_blocks(shown, False).any(5).any(3), of_blocks(shown, True).all(5).all(3)
    if bool((some == every).all()):
        return BlockMask(some)
    if heads > 1 and heads_kv is not None and heads != heads_kv:
        grouped = shown.view(batch, heads_kv, heads // heads_kv, rows, keys)
        if not bool((grouped == grouped[:, :, :1]).all()):
            raise _native.UnsupportedError("sternway: query heads that share a key head have masks of their own, which "
                                           "are no blocks of 128: intervals are those of a key head")
        shown = grouped[:, :, 0]
    bounds, more = _runs(shown)
    if bool(more.any()):
        at = more.nonzero()[0].tolist()
        raise _native.UnsupportedError(f"sternway: key {at[2]} of head {at[1]}, batch {at[0]}, is hidden from more than "
                                       "two intervals of rows, and the mask is no mask of whole blocks of 128; a bias of "
                                       "bool can say it")
    return Intervals(bounds, IntervalForm.TWO_RANGES)


def from_block_mask(block_mask: Any, heads_kv: int | None = None) -> Intervals | BlockMask:
    """FlexAttention's BlockMask, by its mask_mod, which is evaluated for every pair: O(S^2) bytes for the time of this
    call. heads_kv and errors: as of from_pairs."""
    from torch.nn.attention.flex_attention import create_mask
    batch, heads = block_mask.shape[:2]
    rows, keys = block_mask.seq_lengths
    return from_pairs(create_mask(block_mask.mask_mod, batch, heads, rows, keys, device=block_mask.kv_indices.device),
                      heads_kv)
