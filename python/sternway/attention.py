# SPDX-License-Identifier: MIT
"""Attention on arrays of numpy, CuPy, JAX and PyTorch: backward, forward with LSE, dropout mask. One C call each, on
the arrays as they are; results are arrays of the caller's library. The formulas are in include/sternway/attn_bwd.h."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._arrays import Library, libraries, library_of
from ._options import GRADIENTS, LAYOUTS, Options, check_added, layout_number, output_bits, resolve

if TYPE_CHECKING:
    from typing_extensions import Unpack

_backward, _forward, _mask = _native.attn_bwd, _native.attn_fwd, _native.dropout_mask
_QKV = GRADIENTS["dq"] | GRADIENTS["dk"] | GRADIENTS["dv"]


class Gradients(NamedTuple):
    """What attn_bwd returns; None for a gradient that was not asked for."""
    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsink: Any = None


def attn_bwd(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, layout: str | int = "bhsd", dq: Any = None,
             dk: Any = None, dv: Any = None, dbias: Any = None, dsink: Any = None,
             outputs: tuple[str, ...] | str | int | None = None, context: _native.Context | None = None,
             **options: Unpack[Options]) -> Gradients:
    """Gradients of O = attention(Q, K, V): FlashAttention-2, arXiv 2307.08691, algorithm 2, with bias, dLSE, sink and
    softcap by the chain rule.

    dout, q, k, v, out, lse: what the forward took and gave; q [B,Hq,Sq,D] under layout "bhsd", [B,Sq,Hq,D] under
    "bshd", packed [T,Hq,D] under "thd"; k and v with Hk heads (Hq a multiple of it), v, out and dout with a head_dim of
    their own. f16, bf16, f32, on the CPU f64; any strides, broadcasts too. lse [B,Hq,Sq] f32 (f64 problems: f64),
    natural logarithm, any strides; packed [Hq,T] or [B,Hq,max_seq_q]. out may be None with a given delta.
    dq, dk, dv, dbias, dsink: arrays that get the gradients, of the input's type or f32, head_dim contiguous; written
    over, and added to only under accumulate=. outputs: which gradients are wanted beside those, ("dq", "dbias") or Out
    bits, in new arrays of the caller's library (dbias: of the bias's shape, 1 where it is broadcast by a stride of 0);
    absent: none if an array is given, else dq, dk and dv.
    context: another one than the device's shared one. Further keywords: sternway._options.Score.

    Returns Gradients; rows of a packed array that no sequence has are not written. On a GPU the work is asynchronous in
    the stream. Nothing is copied but inputs whose head_dim is not contiguous. Raises InvalidError (the arguments
    contradict each other; the text names one), UnsupportedError (a limit), NoDriverError, NoDeviceError, NoImageError,
    WorkspaceError, DriverError; nothing was launched then."""
    library = libraries.get(type(q)) or library_of(q)
    if options:
        resolve(options)  # type: ignore[arg-type]
    if library.takes_over:
        library.check_outputs((dq, dk, dv, dbias, dsink))
        library.wait((dout, q, k, v, out, lse, *options.values()))
    elif library.checks_outputs and not (dq is None and dk is None and dv is None and dbias is None and dsink is None):
        library.check_outputs((dq, dk, dv, dbias, dsink))
    if outputs is not None or (dq is None and dk is None and dv is None and dbias is None and dsink is None):
        wanted = _QKV if outputs is None else output_bits(outputs, "outputs")
        added = options.get("accumulate")
        if added:
            check_added(added, wanted, (dq, dk, dv, dbias, dsink))
        if wanted & 1 and dq is None:
            dq = _gradient(library, "q", q)
        if wanted & 2 and dk is None:
            dk = _gradient(library, "k", k)
        if wanted & 4 and dv is None:
            dv = _gradient(library, "v", v)
        if wanted & 8 and dbias is None:
            dbias = _bias_gradient(library, _needed(options, "bias", "dbias"))
        if wanted & 16 and dsink is None:
            dsink = _gradient(library, "sink", _needed(options, "sink", "dsink"))
    if context is None:
        context = library.context(q)
    library.prepare_attention(q, context, options)  # type: ignore[arg-type]
    number = LAYOUTS.get(layout)  # type: ignore[arg-type]
    _backward(context, layout_number(layout) if number is None else number, dout=dout, q=q, k=k, v=v, out=out, lse=lse,
              dq=dq, dk=dk, dv=dv, dbias=dbias, dsink=dsink, **options)
    gradients = Gradients(dq, dk, dv, dbias, dsink)
    if library.takes_over:
        library.finish(context, options)  # type: ignore[arg-type]
        return library.hand_over(gradients)  # type: ignore[no-any-return]
    return gradients


def _needed(options: Any, name: str, gradient: str) -> Any:
    value = options.get(name)
    if value is None:
        raise _native.InvalidError(f"sternway: {gradient} is asked for without {name}")
    return value


def _gradient(library: Library, name: str, array: Any) -> Any:
    """Memory for the gradient of an array."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise _native.InvalidError(f"sternway: {name} is {type(array).__name__}, an array is expected")
    return library.empty_like(array)


def _bias_gradient(library: Library, bias: Any) -> Any:
    """Memory for dBias; a dimension that an expanded bias repeats has one element in it."""
    strides = library.strides(bias)
    shape = tuple(1 if stride == 0 else extent for extent, stride in zip(bias.shape, strides))
    return library.empty(bias, shape)


def _lse_shape(layout: int, q: Any) -> tuple[int, ...]:
    if layout == _native.THD:
        return q.shape[1], q.shape[0]
    return (q.shape[0], q.shape[1], q.shape[2]) if layout == _native.BHSD else (q.shape[0], q.shape[2], q.shape[1])


def _rank(layout: int, name: str, array: Any) -> None:
    """InvalidError before memory for results is made of a shape that is none."""
    expected = 3 if layout == _native.THD else 4
    shape = getattr(array, "shape", None)
    if shape is None or len(shape) != expected:
        what = type(array).__name__ if shape is None else f"of the shape {tuple(shape)}"
        raise _native.InvalidError(f"sternway: {name} is {what}; an array of {expected} dimensions is expected")


def attn_fwd(q: Any, k: Any, v: Any, *, layout: str | int = "bhsd", out: Any = None, lse: Any = None,
             context: _native.Context | None = None, **options: Unpack[Options]) -> tuple[Any, Any]:
    """O and LSE of attention(Q, K, V), as attn_bwd takes them; shapes, types and keywords as there.

    out, lse: arrays that get the results; absent: new ones, out of q's type [..., Dv], lse f32 (f64 problems: f64)
    [B,Hq,Sq], packed [Hq,T]. Rows that see no key: O zero, LSE the sink or -inf.
    Returns (out, lse). Raises as attn_bwd."""
    library = libraries.get(type(q)) or library_of(q)
    if options:
        resolve(options)  # type: ignore[arg-type]
    number = LAYOUTS.get(layout)  # type: ignore[arg-type]
    if number is None:
        number = layout_number(layout)
    if library.takes_over:
        library.check_outputs((out, lse))
        library.wait((q, k, v, *options.values()))
    elif library.checks_outputs and not (out is None and lse is None):
        library.check_outputs((out, lse))
    if out is None:
        _rank(number, "q", q)
        _rank(number, "v", v)
        out = library.empty_like(q) if q.shape[-1] == v.shape[-1] else library.empty(q, (*q.shape[:-1], v.shape[-1]))
    if lse is None:
        _rank(number, "q", q)
        lse = library.empty(q, _lse_shape(number, q), "float64" if "float64" in str(q.dtype) else "float32")
    if context is None:
        context = library.context(q)
    library.prepare_attention(q, context, options)  # type: ignore[arg-type]
    _forward(context, number, q=q, k=k, v=v, out=out, lse=lse, **options)
    if library.takes_over:
        library.finish(context, options)  # type: ignore[arg-type]
        return library.hand_over((out, lse))  # type: ignore[no-any-return]
    return out, lse


def dropout_mask(q: Any, k: Any, *, layout: str | int = "bhsd", mask_out: Any = None,
                 context: _native.Context | None = None, **options: Unpack[Options]) -> Any:
    """The elements that calls with these keywords keep: uint8 [B, Hq, Sq, Sk] (packed: max_seq_q, max_seq_kv), 1 =
    kept, 0 = dropped or outside the used lengths. Attention masks do not enter. q and k give sizes and the device
    alone.

    mask_out: contiguous memory for it, uint8 or bool. Raises as attn_bwd."""
    library: Library = libraries.get(type(q)) or library_of(q)
    if options:
        resolve(options)  # type: ignore[arg-type]
    number = LAYOUTS.get(layout)  # type: ignore[arg-type]
    if number is None:
        number = layout_number(layout)
    if library.takes_over:
        library.check_outputs((mask_out,))
        library.wait(tuple(options.values()))
    elif library.checks_outputs and mask_out is not None:
        library.check_outputs((mask_out,))
    if mask_out is None:
        _rank(number, "q", q)
        _rank(number, "k", k)
        if number == _native.THD:
            batch = _needed(options, "cu_seqlens_q", "the mask of layout thd").shape[0] - 1
            rows, keys = (_needed(options, name, "the mask of layout thd") for name in ("max_seq_q", "max_seq_kv"))
            shape = (batch, q.shape[1], rows, keys)
        else:
            heads, rows, keys = _lse_shape(number, q)[1], _lse_shape(number, q)[2], _lse_shape(number, k)[2]
            shape = (q.shape[0], heads, rows, keys)
        mask_out = library.empty(q, shape, "uint8")
    if context is None:
        context = library.context(q)
    library.prepare_attention(q, context, options)  # type: ignore[arg-type]
    options.pop("workspace", None)
    _mask(context, number, mask_out=mask_out, q=q, k=k, **options)
    if library.takes_over:
        library.finish(context, options)  # type: ignore[arg-type]
        return library.hand_over((mask_out,))[0]
    return mask_out
