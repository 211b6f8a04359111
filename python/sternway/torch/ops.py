# SPDX-License-Identifier: MIT
"""The attention operators of `torch.ops.sternway`: attn_fwd (out and LSE; differentiable by attn_bwd), attn_bwd and
dropout_mask. They take tensors with any strides that the C API takes, without a copy; include/sternway/attn_bwd.h has
the formulas and what every argument means. sdpa() and sternway.flash_attn are built of them.

Layouts: "bhsd" (q [B,Hq,Sq,D], PyTorch's), "bshd" (q [B,Sq,Hq,D], flash-attn's), "thd" (packed, q [T,Hq,D], with
cu_seqlens and max_seq of both sides). LSE is [B,Hq,Sq], packed [Hq,T], f32, in problems of f64 tensors f64."""
from __future__ import annotations

from typing import Any

import torch

from .. import _native
from . import _bridge, _forward
from ._autograd import (below_autograd, call_plain, define, empty_gradient, is_plain, library, no_double_backward,
                        refuse_tangents)

_BHSD = int(_native.BHSD)
LAYOUTS = {"bhsd": _native.BHSD, "bshd": _native.BSHD, "thd": _native.THD}
_LSE_TYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32,
              torch.float64: torch.float64}
OUT_DQ, OUT_DK, OUT_DV, OUT_DBIAS, OUT_DSINK = 1, 2, 4, 8, 16

_TENSORS = ("Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? cu_seqlens_q=None, "
            "Tensor? cu_seqlens_kv=None, Tensor? used_q=None, Tensor? used_kv=None, Tensor? dropout_seed=None, "
            "Tensor? dropout_offset=None")
_SIZES = "str layout='bhsd', SymInt? max_seq_q=None, SymInt? max_seq_kv=None"
_DROPOUT = ("float dropout_p=0., int dropout_map=0, SymInt batch_offset=0, SymInt head_offset=0, "
            "SymInt heads_total=0, SymInt q_offset=0, SymInt k_offset=0")
_OPTIONS = (f"{_SIZES}, int mask=0, SymInt? window_left=None, SymInt? window_right=None, "
            f"SymInt? diagonal_shift=None, bool alibi_column=False, float? scale=None, float softcap=0., {_DROPOUT}, "
            "bool? deterministic=None")


_NAMES = ("bias", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "dropout_seed_ptr",
          "dropout_offset_ptr")


def _named(tensors: tuple[torch.Tensor | None, ...]) -> dict[str, torch.Tensor]:
    """The optional tensors that are given, under the names that the C module has for them."""
    return {name: tensor for name, tensor in zip(_NAMES, tensors) if tensor is not None} if tensors else {}


def _options(options: dict[str, Any], seeded: bool) -> tuple[int, dict[str, Any]]:
    """The layout's number, and the options as the C module takes them."""
    if not options:
        return _BHSD, options
    options = dict(options)
    layout = options.pop("layout", "bhsd")
    if layout not in LAYOUTS:
        raise _native.InvalidError(f"sternway: layout is {layout!r}; it is one of {', '.join(LAYOUTS)}")
    if options.pop("alibi_column", False):
        options["flags"] = _native.ATTN_ALIBI_COLUMN
    if options.get("deterministic", False) is None:
        del options["deterministic"]
    if options.get("dropout_p", 0.0) > 0 and not seeded:
        raise _native.InvalidError("sternway: dropout_p is above 0 and dropout_seed is absent: it and dropout_offset "
                                   "are tensors of one int64 on q's device")
    return LAYOUTS[layout], options


def _sizes(q: torch.Tensor, layout: str) -> tuple[Any, ...]:
    """Shape of LSE."""
    sizes = q.shape
    if layout == "bhsd":
        return sizes[:3]
    return (sizes[1], sizes[0]) if layout == "thd" else (sizes[0], sizes[2], sizes[1])


def _results(q: torch.Tensor, v: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for out and LSE. Out lies as q does where it has its shape, as PyTorch's flash operator has it, else as
    [B,Sq,Hq,Dv]. Packed results start as zeros, since rows between sequences are never written."""
    sizes, packed = q.shape, layout == "thd"
    if len(sizes) != (3 if packed else 4) or v.dim() != len(sizes):
        raise _native.InvalidError(f"sternway: q of {tuple(sizes)} and v of {tuple(v.shape)}: tensors of layout "
                                   f"{layout!r} have {3 if packed else 4} dimensions")
    lse_type = _LSE_TYPES.get(q.dtype)
    if lse_type is None:
        raise _native.UnsupportedError(f"sternway: q is {q.dtype}; f16, bf16, f32 and, on the CPU, f64 are there")
    width = v.shape[-1]
    if sizes[-1] == width:
        out = empty_gradient(q, packed)
    elif layout == "bhsd":
        out = q.new_empty((sizes[0], sizes[2], sizes[1], width)).transpose(1, 2)
    else:
        out = (q.new_zeros if packed else q.new_empty)((*sizes[:-1], width))
    make = torch.zeros if packed else torch.empty
    return out, make(_sizes(q, layout), dtype=lse_type, device=q.device)


def _attn_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tensors: torch.Tensor | None,
              **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    named = _named(tensors)
    layout, native = _options(options, "dropout_seed_ptr" in named)
    if native:
        native.pop("deterministic", None)
    if "bias" in named:
        named["bias"] = _bias_of(named["bias"], 0)
    if q.is_cuda:
        found = _forward.of_pytorch(q, k, v, named, options, _results)
        if found is not None:
            return found
    out, lse = _results(q, v, options.get("layout", "bhsd"))
    _bridge.attn_fwd(layout, q=q, k=k, v=v, out=out, lse=lse, **named, **native)
    return out, lse


def _attn_fwd_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tensors: torch.Tensor | None,
                   **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _results(q, v, options.get("layout", "bhsd"))


def _bias_of(bias: torch.Tensor, outputs: int) -> torch.Tensor:
    """The bias as the C API takes it: keys next to each other, and no broadcast by strides under a gradient, which
    has an element for each of the bias's."""
    sizes, strides = bias.shape, bias.stride()
    if sizes[-1] > 1 and strides[-1] not in (0, 1):
        return bias.contiguous()
    if outputs & OUT_DBIAS and any(size > 1 and stride == 0 for size, stride in zip(sizes, strides)):
        return bias.contiguous()
    return bias


def _gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
               sink: torch.Tensor | None, outputs: int, packed: bool) -> dict[str, torch.Tensor]:
    """Memory for the gradients asked for, in the order of their bits."""
    result = {}
    if outputs & ~(OUT_DQ | OUT_DK | OUT_DV | OUT_DBIAS | OUT_DSINK):
        raise _native.InvalidError(f"sternway: outputs is {outputs:#x}; the gradients are the bits 0x1f")
    for bit, name, of in ((OUT_DQ, "dq", q), (OUT_DK, "dk", k), (OUT_DV, "dv", v)):
        if outputs & bit:
            result[name] = empty_gradient(of, zeros=packed)
    if outputs & OUT_DBIAS:
        if bias is None or not bias.is_floating_point():
            raise _native.InvalidError("sternway: the gradient of a bias is asked for, and there is no bias of "
                                       "floating point numbers")
        result["dbias"] = torch.empty_like(bias, memory_format=torch.contiguous_format)
    if outputs & OUT_DSINK:
        if sink is None:
            raise _native.InvalidError("sternway: the gradient of the sink is asked for, and there is none")
        result["dsink"] = torch.empty_like(sink, memory_format=torch.contiguous_format)
    return result


def _attn_bwd(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
              lse: torch.Tensor, dlse: torch.Tensor | None = None, *tensors: torch.Tensor | None, outputs: int = 7,
              **options: Any) -> list[torch.Tensor]:
    named = _named(tensors)
    layout, native = _options(options, "dropout_seed_ptr" in named)
    if "bias" in named:
        named["bias"] = _bias_of(named["bias"], outputs)
    made = _gradients(q, k, v, named.get("bias"), named.get("sink"), outputs, layout == _native.THD)
    if made:
        _bridge.attn_bwd(layout, q=q, k=k, v=v, out=out, dout=dout, lse=lse, dlse=dlse, **made, **named, **native)
    return list(made.values())


def _attn_bwd_fake(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                   lse: torch.Tensor, dlse: torch.Tensor | None = None, *tensors: torch.Tensor | None,
                   outputs: int = 7, **options: Any) -> list[torch.Tensor]:
    named = _named(tensors)
    packed = options.get("layout", "bhsd") == "thd"
    return list(_gradients(q, k, v, named.get("bias"), named.get("sink"), outputs, packed).values())


def _mask_shape(q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor | None, options: dict[str, Any]):
    layout = options.get("layout", "bhsd")
    if layout == "thd":
        if cu_seqlens_q is None or options.get("max_seq_q") is None or options.get("max_seq_kv") is None:
            raise _native.InvalidError("sternway: layout 'thd' needs cu_seqlens_q, cu_seqlens_kv, max_seq_q and "
                                       "max_seq_kv")
        return (cu_seqlens_q.shape[0] - 1, q.shape[1], options["max_seq_q"], options["max_seq_kv"])
    return (*_sizes(q, layout), _sizes(k, layout)[2])


def _dropout_mask(q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor | None = None,
                  cu_seqlens_kv: torch.Tensor | None = None, used_q: torch.Tensor | None = None,
                  used_kv: torch.Tensor | None = None, dropout_seed: torch.Tensor | None = None,
                  dropout_offset: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    layout, native = _options(options, dropout_seed is not None)
    mask = torch.empty(_mask_shape(q, k, cu_seqlens_q, options), dtype=torch.bool, device=q.device)
    _bridge.dropout_mask(layout, q=q, k=k, mask_out=mask, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
                         used_q=used_q, used_kv=used_kv, dropout_seed_ptr=dropout_seed,
                         dropout_offset_ptr=dropout_offset, **native)
    return mask


def _dropout_mask_fake(q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor | None = None,
                       *tensors: torch.Tensor | None, **options: Any) -> torch.Tensor:
    return torch.empty(_mask_shape(q, k, cu_seqlens_q, options), dtype=torch.bool, device=q.device)


attn_fwd = define("attn_fwd", f"(Tensor q, Tensor k, Tensor v, {_TENSORS}, *, {_OPTIONS}) -> (Tensor out, Tensor lse)",
                  _attn_fwd, _attn_fwd_fake)
attn_bwd = define("attn_bwd", f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
                  f"Tensor? dlse=None, {_TENSORS}, *, int outputs=7, {_OPTIONS}) -> Tensor[]",
                  _attn_bwd, _attn_bwd_fake)
dropout_mask = define("dropout_mask", "(Tensor q, Tensor k, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, "
                      "Tensor? used_q=None, Tensor? used_kv=None, Tensor? dropout_seed=None, "
                      f"Tensor? dropout_offset=None, *, {_SIZES}, {_DROPOUT}) -> Tensor",
                      _dropout_mask, _dropout_mask_fake)
no_double_backward(attn_bwd, _attn_bwd)
attn_fwd.__doc__ = """O and LSE of attention, with autograd: sternway.attn_fwd as an operator. mask and dropout_map are
numbers (sternway.Mask, sternway.DropoutMap), dropout_seed and dropout_offset int64 tensors of one element."""
attn_bwd.__doc__ = """The gradients that `outputs` names (bits of sternway.Out, 7: dq, dk, dv), in that order, as a
list: sternway.attn_bwd as an operator; arguments as attn_fwd's."""
dropout_mask.__doc__ = "What is kept, bool [B,Hq,Sq,Sk]: sternway.dropout_mask as an operator; arguments as attn_fwd's."
library.impl("dropout_mask", lambda *args, **options: below_autograd(dropout_mask, *args, **options), "Autograd")


def backward_of(saved: tuple[torch.Tensor | None, ...], dout: torch.Tensor | None, dlse: torch.Tensor | None,
                needs: tuple[bool, ...], options: dict[str, Any]) -> list[torch.Tensor | None]:
    """Gradients of q, k, v, bias, alibi_slopes and sink, None where `needs` does not ask.
    saved: q, k, v, out, lse and the optional tensors of attn_fwd in its order."""
    q, k, v, out, lse, *tensors = saved
    result: list[torch.Tensor | None] = [None] * 6
    wanted = [(0, OUT_DQ), (1, OUT_DK), (2, OUT_DV), (3, OUT_DBIAS), (5, OUT_DSINK)]
    wanted = [(at, bit) for at, bit in wanted if needs[at]]
    if not wanted or (dout is None and dlse is None):
        return result
    if dout is None:
        dout = out.new_zeros(()).expand(out.shape)
    outputs = sum(bit for _, bit in wanted)
    args = (dout, q, k, v, out, lse, dlse, *tensors)
    if not torch.is_grad_enabled() and is_plain(dout, q, k, v):
        made = call_plain(_attn_bwd, attn_bwd, args, {"outputs": outputs, **options})
    else:
        made = attn_bwd(*args, outputs=outputs, **options)
    for (at, _), gradient in zip(wanted, made):
        result[at] = gradient
    return result


class _Attention(torch.autograd.Function):
    """attn_fwd with attn_bwd as its derivative."""

    @staticmethod
    def forward(ctx, options, q, k, v, *tensors):
        if is_plain(q, k, v):
            out, lse = call_plain(_attn_fwd, attn_fwd, (q, k, v, *tensors), options)
        else:
            out, lse = below_autograd(attn_fwd, q, k, v, *tensors, **options)
        tensors = tensors + (None,) * (9 - len(tensors))
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        needs = ctx.needs_input_grad[1:]
        made = backward_of(ctx.saved_tensors, dout, dlse, needs + (False,) * (6 - len(needs)), ctx.options)
        return (None, *(made + [None] * len(needs))[:len(needs)])


def _attn_fwd_autograd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tensors: torch.Tensor | None,
                       **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    refuse_tangents((q, k, v, *tensors))
    if len(tensors) > 1 and tensors[1] is not None and tensors[1].requires_grad and torch.is_grad_enabled():
        raise _native.InvalidError("sternway: alibi_slopes requires a gradient, and there is none of it")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or any(
            t is not None and t.requires_grad for t in tensors)):
        return _Attention.apply(options, q, k, v, *tensors)
    if is_plain(q, k, v):
        return call_plain(_attn_fwd, attn_fwd, (q, k, v, *tensors), options)
    return below_autograd(attn_fwd, q, k, v, *tensors, **options)


def call_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tensors: torch.Tensor | None,
             **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.ops.sternway.attn_fwd, less the dispatcher where nobody else is to see the call."""
    if torch.compiler.is_compiling() or not is_plain(q, k, v) or torch.is_autocast_enabled(q.device.type):
        return attn_fwd(q, k, v, *tensors, **options)
    return _attn_fwd_autograd(q, k, v, *tensors, **options)


def _attn_fwd_autocast(device_type: str, key: torch._C.DispatchKey):
    """Under autocast q, k and v get its type, as for PyTorch's own attention (f64 stays); a bias of f32 stays, which
    the library takes beside any type, and one of another type follows."""
    excluded = torch._C.DispatchKeySet(key)

    def autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tensors: torch.Tensor | None, **options: Any):
        dtype = torch.get_autocast_dtype(device_type)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            if torch.float64 not in (q.dtype, k.dtype, v.dtype):
                q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
                if tensors and tensors[0] is not None and tensors[0].dtype in (torch.float16, torch.bfloat16):
                    tensors = (tensors[0].to(dtype), *tensors[1:])
            return attn_fwd(q, k, v, *tensors, **options)

    return autocast


library.impl("attn_fwd", _attn_fwd_autograd, "Autograd")
library.impl("attn_fwd", _attn_fwd_autocast("cpu", torch._C.DispatchKey.AutocastCPU), "AutocastCPU")
library.impl("attn_fwd", _attn_fwd_autocast("cuda", torch._C.DispatchKey.AutocastCUDA), "AutocastCUDA")
