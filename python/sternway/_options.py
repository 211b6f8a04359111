# SPDX-License-Identifier: MIT
"""What attention calls take by keyword beside their tensors, and how names become the C interface's numbers."""
from __future__ import annotations

from typing import Any, Callable, TypedDict

from . import _native
from ._arrays import address_of_stream
from ._context import number
from .enums import DropoutMap, IntervalForm, Mask, Out

LAYOUTS: dict[str, int] = {"bhsd": _native.BHSD, "bshd": _native.BSHD, "thd": _native.THD}
MASKS: dict[str, int] = {item.name.lower(): int(item) for item in Mask} | {"causal": int(Mask.CAUSAL_BOTTOM_RIGHT)}
FORMS: dict[str, int] = {item.name.lower(): int(item) for item in IntervalForm}
MAPS: dict[str, int] = {item.name.lower(): int(item) for item in DropoutMap}
GRADIENTS: dict[str, int] = {item.name.lower(): int(item) for item in Out if item.name}
_ALL_GRADIENTS = sum(GRADIENTS.values())


class Score(TypedDict, total=False):
    """Keywords of attn_bwd, attn_fwd and dropout_mask; one left out or None is absent.

    Score (include/sternway/attn_bwd.h, whose formulas these are):
      mask              None, "causal_top_left" (j <= i), "causal_bottom_right" or "causal" (j <= i + Lk - Lq)
      window            (left, right): i + shift - left <= j <= i + shift + right; None is no bound
      flash_window      (causal, left, right) as FlashAttention 2 reads them; in place of mask and window
      diagonal_shift    replaces the shift of the mask and the window
      scale             of Q K^T; absent: 1/sqrt(D)
      softcap           c of c*tanh(x/c)
      bias              [B|1, Hq|1, Sq|1, Sk|1], of q's type or f32, added and not multiplied by scale; bool or uint8:
                        False hides the pair
      intervals         [B|1, Hk|1, Sk, bounds] int32 (packed [1, Hk|1, T, bounds]): rows that do not see a key, with
                        interval_form, an IntervalForm or its name; sternway.masks makes them
      block_mask        [B|1, Hq|1, Sq/128, Sk/128] bool or uint8: False hides the block
      alibi_slopes      [Hq] or [B,Hq] f32: S += -slope*|i + shift - j|
      sink              [Hq] f32, a logit a head
      dlse              as lse: the gradient that flows into LSE (backward)
      dropout_p, dropout_map ("philox", "mem_eff", "flash2"), dropout_seed, dropout_offset (ints), or
      dropout_seed_ptr, dropout_offset_ptr (arrays of one 64-bit integer, or addresses)
    Lengths:
      cu_seqlens_q, cu_seqlens_kv   [B+1] int32 starts in rows, layout "thd"; max_seq_q, max_seq_kv: the longest
      used_q, used_kv               [B] int32: rows in use of each sequence
      q_offsets, k_offsets          [B] int64, or q_offset, k_offset: where the local rows are in the whole problem
      batch_offset, head_offset, heads_total: this call is a shard of a larger problem
    How:
      flags             further AttnFlag bits: ALIBI_COLUMN, WRITE_DELTA, GIVEN_DELTA with delta=
      accumulate        gradients that are added to what their f32 array holds: names, or Out bits
      deterministic     True, False; absent: PyTorch's setting for tensors where it is on, else
                        STERNWAY_DETERMINISTIC
      status_out        [1] int32: the Data bits of what was wrong in lengths
      cpu_threads       CPU backend: at most so many; absent: torch.get_num_threads() for tensors, else the context's
      workspace         an array of bytes or a function of their number; absent: the array library's allocator
      stream            where a GPU runs it: an address, a torch or CuPy stream; absent: the library's current one"""
    mask: str | int | None
    window: tuple[int | None, int | None] | None
    flash_window: tuple[bool, int, int] | None
    diagonal_shift: int | None
    scale: float | None
    softcap: float | None
    bias: Any
    intervals: Any
    interval_form: str | int | None
    block_mask: Any
    alibi_slopes: Any
    sink: Any
    dlse: Any
    delta: Any
    dropout_p: float | None
    dropout_map: str | int | None
    dropout_seed: int | None
    dropout_offset: int | None
    dropout_seed_ptr: Any
    dropout_offset_ptr: Any
    used_q: Any
    used_kv: Any
    q_offsets: Any
    k_offsets: Any
    q_offset: int | None
    k_offset: int | None
    batch_offset: int | None
    head_offset: int | None
    heads_total: int | None
    flags: int | None
    accumulate: str | tuple[str, ...] | int | None
    deterministic: bool | None
    status_out: Any
    cpu_threads: int | None
    workspace: Any
    stream: Any


class Options(Score, total=False):
    """Score's keywords, and those of packed sequences."""
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    max_seq_q: int | None
    max_seq_kv: int | None


def layout_number(layout: str | int) -> int:
    """The number of a layout that is no key of LAYOUTS."""
    return number(LAYOUTS, layout, "layout")


def _mask(options: dict[str, Any], value: str | int) -> None:
    if hasattr(value, "shape"):
        raise _native.InvalidError("sternway: mask is an array; a mask of single pairs is a bias of bool, bias=, True: "
                                   "visible")
    options["mask"] = number(MASKS, value, "mask")


def _window(options: dict[str, Any], value: tuple[int | None, int | None]) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise _native.InvalidError(f"sternway: window is {value!r}; it is a pair, (left, right), None for no bound")
    left, right = value
    for bound in value:
        if isinstance(bound, int) and bound < 0:
            raise _native.InvalidError(f"sternway: window is {value!r}; its bounds window_left and window_right are 0 "
                                       "or more, None for no bound")
    del options["window"]
    options["window_left"], options["window_right"] = left, right


def _map(options: dict[str, Any], value: str | int) -> None:
    options["dropout_map"] = number(MAPS, value, "dropout_map")


def _form(options: dict[str, Any], value: str | int) -> None:
    options["interval_form"] = number(FORMS, value, "interval_form")


def _accumulate(options: dict[str, Any], value: str | tuple[str, ...] | int) -> None:
    options["accumulate"] = output_bits(value, "accumulate")


def _causal(options: dict[str, Any], value: Any) -> None:
    raise TypeError("sternway: there is no argument 'causal' or 'is_causal'; mask=\"causal\" is aligned bottom-right "
                    "as flash-attn's, mask=\"causal_top_left\" as PyTorch's is_causal")


def _stream(options: dict[str, Any], value: Any) -> None:
    options["stream"] = address_of_stream(value)


_named: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "mask": _mask, "window": _window, "dropout_map": _map, "interval_form": _form, "accumulate": _accumulate, "stream": _stream,
    "causal": _causal, "is_causal": _causal}


def output_bits(names: str | tuple[str, ...] | int, what: str) -> int:
    """Out bits of "dq" or ("dq", "dk")."""
    if isinstance(names, int) and not isinstance(names, bool):
        if names & ~_ALL_GRADIENTS:
            raise _native.InvalidError(f"sternway: {what} is {names:#x}; {_ALL_GRADIENTS:#x} are all the bits of Out")
        return int(names)
    bits = 0
    for name in names if isinstance(names, (tuple, list, set, frozenset)) else (names,):
        bits |= number(GRADIENTS, name, what)
    return bits


def resolve(options: dict[str, Any]) -> None:
    """Names to numbers, in place. Keywords that hold None cost nothing: the C module leaves them out."""
    for name in options.keys() & _named.keys():
        value = options[name]
        if value is not None:
            _named[name](options, value)
        else:
            del options[name]
