# SPDX-License-Identifier: MIT
"""Backward of nested (jagged) tensor operations on arrays of numpy, CuPy, JAX and PyTorch; formulas in
include/sternway/jagged_bwd.h.

A nested tensor is its `values` and `offsets`. `values` has the dimensions of a component with the ragged one at
`ragged_dim`, where it counts all components' positions: [total, inner...] or [outer..., total, inner...]. Component b
is positions offsets[b] to offsets[b+1] of it; of those the first used[b] take part. With storage="components"
(PyTorch's strided layout) whole components lie one behind the other; `shape` then says the dimensions, since values may
be flat.

Every function returns new arrays of the caller's library, or the arrays given as dx, dother, dweight, dbias, which are
of the input's type or f32, contiguous, and written over unless `accumulate` names them. Positions that no component
uses are left as they are. All are deterministic. They raise what attn_bwd raises."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping

from . import _native
from ._arrays import Library, address_of_stream, libraries, library_of
from ._context import number
from ._geometry import along, around
from ._jagged_types import Call, Common, MatmulGradients, Products, Shape
from .attention import Gradients, attn_bwd
from .enums import Axis, JaggedDim, JaggedFlag, JaggedOp, JaggedOut, Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._jagged_types import Placed
    from ._options import Score

OPS: dict[str, int] = {item.name.lower(): int(item) for item in JaggedOp}
STORAGE: dict[str, int] = {item.name.lower(): int(item) for item in Storage}
OUTPUTS: dict[str, int] = {item.name.lower(): int(item) for item in JaggedOut if item.name}
_ALL_OUTPUTS = sum(OUTPUTS.values())


def _bits(names: str | tuple[str, ...] | int, what: str) -> int:
    if isinstance(names, int) and not isinstance(names, bool):
        if names & ~_ALL_OUTPUTS:
            raise _native.InvalidError(f"sternway: {what} is {names:#x}; {_ALL_OUTPUTS:#x} are all the bits of "
                                       "JaggedOut")
        return int(names)
    several = names if isinstance(names, (tuple, list, set, frozenset)) else (names,)
    return sum({number(OUTPUTS, name, what) for name in several})


def _resolve(fields: dict[str, Any]) -> None:
    """Names to numbers, in place."""
    if fields.get("accumulate") is not None:
        fields["accumulate"] = _bits(fields["accumulate"], "accumulate")
    if fields.get("stream") is not None:
        fields["stream"] = address_of_stream(fields["stream"])


def _new(library: Library, common: Mapping[str, Any], name: str, like: Any, shape: Shape) -> Any:
    """Memory for a result; one that is added to has to be the caller's."""
    if common.get("accumulate") and _bits(common["accumulate"], "accumulate") & OUTPUTS[name]:
        raise _native.InvalidError(f"sternway: accumulate names {name}, but no array is given to add to: {name}=")
    return library.empty(like, shape)


def backward(op: str | int, *, grad: Any, context: _native.Context | None = None, **fields: Any) -> None:
    """One operation as the C interface has it: `op` a JaggedOp or its name; tensors by keyword (grad x y other weight
    mean rstd x_bases other_bases grad_bases dx dother dweight dbias status_out), offsets=(o0, ...), used, offsets_host,
    used_host; fields of stw_jagged_desc by name (axis=((size, total), ...), dim, outer, inner, ...). What is computed
    is what dx, dother, dweight and dbias are given for."""
    library = libraries.get(type(grad)) or library_of(grad)
    _resolve(fields)
    offsets = fields.get("offsets")
    if hasattr(offsets, "shape"):
        raise _native.InvalidError("sternway: offsets is an array; a tuple with the array of each axis is expected")
    if not fields.get("components") and all(array is None for array in offsets or ()):
        raise _native.InvalidError("sternway: offsets is None; where no dimension is ragged, components= says how many")
    if library.checks_outputs:
        library.check_outputs((fields.get("dx"), fields.get("dother"), fields.get("dweight"), fields.get("dbias")))
    if context is None:
        context = library.context(grad)
    library.prepare(grad, context, fields)
    _native.jagged_bwd(context, number(OPS, op, "op"), grad=grad, **fields)
    if library.takes_over:
        library.finish(context, fields)


_KEYWORDS = Common.__optional_keys__
_PASSED = ("accumulate", "status_out", "cpu_threads", "workspace", "stream", "context")


def _passed(common: Mapping[str, Any], flags: int = 0, axes: int = 1) -> dict[str, Any]:
    """The keywords that backward() takes as they are. TypeError for one that no function has."""
    known = _KEYWORDS if axes == 1 else Call.__optional_keys__
    unknown = common.keys() - known
    if unknown:
        raise TypeError(f"sternway: there is no argument {min(unknown)!r}; {', '.join(sorted(known))} are possible")
    fields: dict[str, Any] = {name: common[name] for name in _PASSED if name in common}
    for name in ("used", "offsets_host", "used_host"):
        value = common.get(name)
        if value is not None:
            fields[name] = (value,) if axes == 1 else value
    flags |= JaggedFlag.FULL if common.get("full") else 0
    if flags:
        fields["flags"] = int(flags)
    return fields


class _Nested:
    """The geometry of a nested tensor: the descriptor's fields of `shape` with the total at `ragged`."""

    def __init__(self, common: Mapping[str, Any], shape: Shape) -> None:
        self.shape = tuple(common.get("shape") or shape)
        self.ragged = common.get("ragged_dim", 0)
        if not -len(self.shape) <= self.ragged < len(self.shape):
            raise _native.InvalidError(f"sternway: ragged_dim {self.ragged} is no dimension of {self.shape}")
        self.ragged %= len(self.shape)
        self.total = self.shape[self.ragged]
        self.storage = number(STORAGE, common.get("storage", "jagged"), "storage")
        longest = common.get("max_length")
        self.longest = self.total if longest is None else longest

    def fields(self) -> dict[str, Any]:
        return {"axis": ((self.longest, self.total),), "storage": self.storage, **around(self.shape, self.ragged)}

    def along(self, dim: int) -> dict[str, Any]:
        """Fields of a dimension that the operation works along."""
        if not -len(self.shape) <= dim < len(self.shape):
            raise _native.InvalidError(f"sternway: dim {dim} is no dimension of {self.shape}")
        return along(self.shape, self.ragged, dim % len(self.shape))

    @property
    def empty(self) -> bool:
        """Nothing in it; the C interface takes an extent of 0 for an absent one."""
        return 0 in self.shape[:self.ragged] + self.shape[self.ragged + 1:]


def _ready(library: Library, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """For arrays that may still be computed, and may be such that nobody writes them."""
    library.check_outputs(outputs)
    library.wait(inputs)


def _one(op: JaggedOp, grad: Any, offsets: Any, dx: Any, common: Mapping[str, Any], nested: _Nested, shape: Shape,
         **fields: Any) -> Any:
    """An operation whose only result is dx, of `shape`."""
    library = libraries.get(type(grad)) or library_of(grad)
    if library.takes_over:
        _ready(library, (grad, offsets, common.get("used"), *fields.values()), (dx,))
    if dx is None:
        dx = _new(library, common, "dx", grad, shape)
    if not nested.empty:
        backward(op, grad=grad, offsets=(offsets,), dx=dx, **fields, **nested.fields(), **_passed(common))
    return library.hand_over((dx,))[0] if library.takes_over else dx


def gelu_backward(grad: Any, x: Any, offsets: Any, *, approximate: str = "none", dx: Any = None,
                  **common: Unpack[Common]) -> Any:
    """dX = G*(Phi(x) + x*phi(x)), Phi and phi of the normal distribution; approximate="tanh": the derivative of
    x/2*(1 + tanh(sqrt(2/pi)*(x + 0.044715 x^3))). grad and x: values of one nested tensor, f16, bf16 or f32."""
    if approximate not in ("none", "tanh"):
        raise _native.InvalidError(f"sternway: approximate is {approximate!r}; 'none' or 'tanh' is expected")
    op = JaggedOp.GELU if approximate == "none" else JaggedOp.GELU_TANH
    return _one(op, grad, offsets, dx, common, _Nested(common, x.shape), x.shape, x=x)


def silu_backward(grad: Any, x: Any, offsets: Any, *, dx: Any = None, **common: Unpack[Common]) -> Any:
    """dX = G*s*(1 + x*(1 - s)), s = 1/(1 + exp(-x))."""
    return _one(JaggedOp.SILU, grad, offsets, dx, common, _Nested(common, x.shape), x.shape, x=x)


def threshold_backward(grad: Any, x: Any, offsets: Any, threshold: float = 0.0, *, dx: Any = None,
                       **common: Unpack[Common]) -> Any:
    """dX = x <= threshold ? 0 : G (relu: threshold 0); NaN x gives G. On the CPU f64 and integers too."""
    return _one(JaggedOp.THRESHOLD, grad, offsets, dx, common, _Nested(common, x.shape), x.shape, x=x,
                threshold=threshold)


def softmax_backward(grad: Any, y: Any, offsets: Any, dim: int, *, dx: Any = None, **common: Unpack[Common]) -> Any:
    """dX = Y*(G - sum(G*Y)) along dimension `dim` of the nested tensor's shape; y is the softmax's result."""
    nested = _Nested(common, y.shape)
    return _one(JaggedOp.SOFTMAX, grad, offsets, dx, common, nested, y.shape, y=y, **nested.along(dim))


def log_softmax_backward(grad: Any, y: Any, offsets: Any, dim: int, *, dx: Any = None,
                         **common: Unpack[Common]) -> Any:
    """dX = G - exp(Y)*sum(G) along dimension `dim` of the nested tensor's shape; y is the result, the logarithm of a
    softmax."""
    nested = _Nested(common, y.shape)
    return _one(JaggedOp.LOG_SOFTMAX, grad, offsets, dx, common, nested, y.shape, y=y, **nested.along(dim))


def sum_backward(grad: Any, offsets: Any, shape: Shape, dim: int, *, dx: Any = None, **common: Unpack[Placed]) -> Any:
    """dX = G spread over the segments of dimension `dim` of `shape` (that of x's values). grad: the values without that
    dimension; along the ragged one dense [components, outer..., inner...]."""
    nested = _Nested(common, shape)
    return _one(JaggedOp.SUM, grad, offsets, dx, common, nested, tuple(shape), **nested.along(dim))


def select_backward(grad: Any, offsets: Any, shape: Shape, dim: int | None, index: int, *, dx: Any = None,
                    **common: Unpack[Placed]) -> Any:
    """dX = 0 but for slice `index` (negative: from the end) of dimension `dim` of `shape`, which is grad. Along the
    ragged dimension grad is dense [components, outer..., inner...]; dim None selects component `index` as a whole, grad
    then [outer..., used length, inner...]."""
    nested = _Nested(common, shape)
    where = {"dim": int(JaggedDim.COMPONENT)} if dim is None else nested.along(dim)
    return _one(JaggedOp.SELECT, grad, offsets, dx, common, nested, tuple(shape), index=index, **where)


def to_padded_backward(grad: Any, offsets: Any, total: int, *, dx: Any = None, **common: Unpack[Common]) -> Any:
    """Of nested -> padded: grad dense [components, outer..., padded, inner...] to dX [outer..., total, inner...];
    positions from `padded` on get 0."""
    ragged = common.get("ragged_dim", 0)
    shape = tuple(grad.shape[1:])
    if not 0 <= ragged < len(shape):
        raise _native.InvalidError(f"sternway: ragged_dim {ragged} is no dimension of {shape}")
    padded, shape = shape[ragged], (*shape[:ragged], total, *shape[ragged + 1:])
    return _one(JaggedOp.TO_PADDED, grad, offsets, dx, common, _Nested(common, shape), shape, padded=padded)


def from_padded_backward(grad: Any, offsets: Any, padded: int, *, dx: Any = None, **common: Unpack[Common]) -> Any:
    """Of padded -> nested: grad nested values to dX dense [components, outer..., padded, inner...], zeros in the
    padding."""
    nested = _Nested(common, grad.shape)
    shape = (offsets.shape[0] - 1, *nested.shape[:nested.ragged], padded, *nested.shape[nested.ragged + 1:])
    return _one(JaggedOp.FROM_PADDED, grad, offsets, dx, common, nested, shape, padded=padded)


def reshape_backward(grad: Any, offsets: Any, shape: Shape, grad_shape: Shape, *, dx: Any = None,
                     grad_storage: str | int = "components", **common: Unpack[Placed]) -> Any:
    """The gradient of components of `grad_shape` as components of `shape`; each has exactly one -1, the ragged extent,
    and element k of the one, row-major, is element k of the other. `storage` is dX's, grad_storage grad's; both
    "components" unless given. dX: flat under "components", else `shape` with the total for -1."""
    if list(shape).count(-1) != 1 or list(grad_shape).count(-1) != 1:
        raise _native.InvalidError(f"sternway: exactly one -1 is expected in shape {tuple(shape)} and in grad_shape "
                                   f"{tuple(grad_shape)}")
    library = libraries.get(type(grad)) or library_of(grad)
    if library.takes_over:
        _ready(library, (grad, offsets, common.get("used")), (dx,))
    size = math.prod(extent for extent in shape if extent != -1)
    elements = math.prod(grad.shape)
    total = elements // size if size else 0
    storage = number(STORAGE, common.get("storage", "components"), "storage")
    if dx is None:
        jagged = storage == Storage.JAGGED
        dx = _new(library, common, "dx", grad,
                  tuple(total if e == -1 else e for e in shape) if jagged else (total * size,))
    longest = common.get("max_length")
    backward(JaggedOp.RESHAPE, grad=grad, offsets=(offsets,), dx=dx, storage=storage, shape=tuple(shape),
             axis=((total if longest is None else longest, total),), grad_shape=tuple(grad_shape),
             grad_storage=number(STORAGE, grad_storage, "grad_storage"), **_passed(common))
    return library.hand_over((dx,))[0] if library.takes_over else dx


def linear_backward(grad: Any, x: Any, weight: Any, offsets: Any, *, dx: Any = None, dweight: Any = None,
                    dbias: Any = None, outputs: tuple[str, ...] | str | int | None = None,
                    **common: Unpack[Common]) -> Products:
    """Of Y = X W^T + bias: dX = G W, dW = G^T X, dbias = column sums of G, over all rows in use. x [outer..., ragged,
    K], weight [N,K], grad [outer..., ragged, N]. outputs as for attn_bwd; absent: all three, unless arrays are
    given."""
    library = libraries.get(type(grad)) or library_of(grad)
    if library.takes_over:
        _ready(library, (grad, x, weight, offsets, common.get("used")), (dx, dweight, dbias))
    if outputs is not None or (dx is None and dweight is None and dbias is None):
        wanted = 13 if outputs is None else _bits(outputs, "outputs")
        if dx is None and wanted & JaggedOut.DX:
            dx = _new(library, common, "dx", grad, x.shape)
        if dweight is None and wanted & JaggedOut.DWEIGHT:
            dweight = _new(library, common, "dweight", weight, weight.shape)
        if dbias is None and wanted & JaggedOut.DBIAS:
            dbias = _new(library, common, "dbias", weight, weight.shape[:1])
    nested = _Nested(common, x.shape)
    if nested.ragged != len(nested.shape) - 2:
        raise _native.InvalidError(f"sternway: linear's ragged dimension is the last but one, not {nested.ragged} of "
                                   f"{nested.shape}")
    backward(JaggedOp.LINEAR, grad=grad, x=x, weight=weight, offsets=(offsets,), dx=dx, dweight=dweight, dbias=dbias,
             out_features=weight.shape[0], **nested.fields(), **_passed(common))
    results = Products(dx, dweight, dbias)
    return library.hand_over(results) if library.takes_over else results


def layer_norm_backward(grad: Any, x: Any, mean: Any, rstd: Any, offsets: Any, *, weight: Any = None,
                        normalized: int = 1,
                        dx: Any = None, dweight: Any = None, dbias: Any = None,
                        outputs: tuple[str, ...] | str | int | None = None, **common: Unpack[Common]) -> Products:
    """Over the last `normalized` dimensions (M elements), h = (x - mean)*rstd, g = G*gamma: dX = rstd*(g - avg(g) -
    h*avg(g*h)), dGamma = sum G*h, dBeta = sum G. mean, rstd: f32, one a line; with the ragged dimension among the
    normalised ones [components, outer...], without weight. weight: gamma [M], absent: 1. outputs
    absent: dx, and with a weight dweight and dbias, unless arrays are given."""
    return _norm(JaggedOp.LAYER_NORM, grad, x, mean, rstd, offsets, weight, normalized, dx, dweight, dbias, outputs, common)


def rms_norm_backward(grad: Any, x: Any, rstd: Any, offsets: Any, *, weight: Any = None, normalized: int = 1,
                      dx: Any = None, dweight: Any = None, outputs: tuple[str, ...] | str | int | None = None,
                      **common: Unpack[Common]) -> Products:
    """Over the last `normalized` dimensions (M elements), h = x*rstd, g = G*gamma: dX = rstd*(g - h*avg(g*h)), dGamma =
    sum G*h. rstd = (avg(x^2) + eps)^-1/2: f32, one a line. weight: gamma [M], absent: 1. outputs absent: dx, and with a
    weight dweight, unless arrays are given."""
    return _norm(JaggedOp.RMS_NORM, grad, x, None, rstd, offsets, weight, normalized, dx, dweight, None, outputs, common)


def _norm(op: JaggedOp, grad: Any, x: Any, mean: Any, rstd: Any, offsets: Any, weight: Any, normalized: int, dx: Any,
          dweight: Any, dbias: Any, outputs: tuple[str, ...] | str | int | None, common: Common) -> Products:
    library = libraries.get(type(grad)) or library_of(grad)
    if library.takes_over:
        _ready(library, (grad, x, mean, rstd, weight, offsets, common.get("used")), (dx, dweight, dbias))
    if outputs is not None or (dx is None and dweight is None and dbias is None):
        every = JaggedOut.DX | JaggedOut.DWEIGHT | (JaggedOut.DBIAS if op == JaggedOp.LAYER_NORM else 0)
        wanted = (int(JaggedOut.DX) if weight is None else every) if outputs is None else _bits(outputs, "outputs")
        if wanted & ~every:
            raise _native.InvalidError(f"sternway: outputs {outputs!r} names a gradient that {op.name.lower()} has not")
        gamma = tuple(x.shape[len(x.shape) - normalized:]) if weight is None else weight.shape
        if dx is None and wanted & JaggedOut.DX:
            dx = _new(library, common, "dx", grad, x.shape)
        like = grad if weight is None else weight
        if dweight is None and wanted & JaggedOut.DWEIGHT:
            dweight = _new(library, common, "dweight", like, gamma)
        if dbias is None and wanted & JaggedOut.DBIAS:
            dbias = _new(library, common, "dbias", like, gamma)
    nested = _Nested(common, x.shape)
    size = math.prod(nested.shape[len(nested.shape) - normalized:])
    behind = len(nested.shape) - nested.ragged  # that many dimensions are the ragged one and inner
    if not 1 <= normalized <= behind:
        raise _native.InvalidError(f"sternway: normalized is {normalized}; of {nested.shape} the last 1 to "
                                   f"{behind} dimensions can be normalised")
    along = {"dim": int(JaggedDim.RAGGED)} if normalized == behind else {"dim": int(JaggedDim.INNER), "dim_size": size}
    backward(op, grad=grad, x=x, mean=mean, rstd=rstd, weight=weight, offsets=(offsets,), dx=dx, dweight=dweight,
             dbias=dbias, **along, **nested.fields(), **_passed(common))
    results = Products(dx, dweight, dbias)
    return library.hand_over(results) if library.takes_over else results


def matmul_backward(grad: Any, x: Any, other: Any, *, m: Any, k: Any, n: Any, outer: int = 1, dx: Any = None,
                    dother: Any = None, outputs: tuple[str, ...] | str | int | None = None, x_transposed: bool = False,
                    other_transposed: bool = False, grad_transposed: bool = False, x_bases: Any = None,
                    other_bases: Any = None, grad_bases: Any = None, storage: str | int = "components",
                    grad_storage: str | int = "components", other_storage: str | int = "components",
                    components: int | None = None, **common: Unpack[Call]) -> MatmulGradients:
    """Of C_b = A_b B_b, `outer` products a component: dA = G B^T, dB = A^T G, each only if wanted. x, other, grad: the
    values of A [m,k], B [k,n] and G [m,n], any shape.

    m, k, n: an extent that all components share, or (offsets, total) or (offsets, total, longest) of a ragged one. A
    matrix with two ragged extents needs *_bases: [components] int64, where each component's matrices start.
    *_transposed: its matrices are stored with rows and columns exchanged. storage: x's and dA's, other_storage,
    grad_storage; "jagged": values [outer, rows, columns] with the total for the ragged extent. components: where no
    axis is ragged. `used`, offsets_host and used_host are tuples of three."""
    library = libraries.get(type(grad)) or library_of(grad)
    if library.takes_over:
        _ready(library, (grad, x, other, x_bases, other_bases, grad_bases,
                         *(extent[0] for extent in (m, k, n) if not isinstance(extent, int))), (dx, dother))
    if outputs is not None or (dx is None and dother is None):
        wanted = 3 if outputs is None else _bits(outputs, "outputs")
        if dx is None and wanted & JaggedOut.DX:
            dx = _new(library, common, "dx", grad, x.shape)
        if dother is None and wanted & JaggedOut.DOTHER:
            dother = _new(library, common, "dother", grad, other.shape)
    sizes: list[tuple[int, int]] = []
    offsets: list[Any] = []
    ragged = 0
    for axis, extent in zip((Axis.M, Axis.K, Axis.N), (m, k, n)):
        if isinstance(extent, int):
            sizes.append((extent, 0))
            offsets.append(None)
        else:
            sizes.append((extent[2] if len(extent) > 2 else extent[1], extent[1]))
            offsets.append(extent[0])
            ragged |= 1 << axis
    flags = sum(int(flag) for flag, given in (
        (JaggedFlag.X_TRANSPOSED, x_transposed), (JaggedFlag.OTHER_TRANSPOSED, other_transposed),
        (JaggedFlag.GRAD_TRANSPOSED, grad_transposed)) if given)
    fields: dict[str, Any] = {name: value for name, value in (
        ("x_bases", x_bases), ("other_bases", other_bases), ("grad_bases", grad_bases), ("components", components))
        if value is not None}
    # a matrix is read only for the other one's gradient
    backward(JaggedOp.MATMUL, grad=grad, x=None if dother is None else x, other=None if dx is None else other, dx=dx,
             dother=dother, offsets=tuple(offsets), axis=tuple(sizes), ragged_axes=ragged, outer=outer,
             storage=number(STORAGE, storage, "storage"), other_storage=number(STORAGE, other_storage, "other_storage"),
             grad_storage=number(STORAGE, grad_storage, "grad_storage"), **fields, **_passed(common, flags, 3))
    results = MatmulGradients(dx, dother)
    return library.hand_over(results) if library.takes_over else results


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, offsets_q: Any, offsets_kv: Any, *,
                       max_length_q: int | None = None, max_length_kv: int | None = None,
                       **options: Unpack[Score]) -> Gradients:
    """Attention of nested q, k, v: attn_bwd's packed problem, values [T,H,D], with these offsets (int64 ones are copied
    to int32). max_length_*: the longest; absent: the total. used_q, used_kv and all other keywords as for attn_bwd."""
    return attn_bwd(dout, q, k, v, out, lse, layout="thd", cu_seqlens_q=_int32(offsets_q),
                    cu_seqlens_kv=_int32(offsets_kv),
                    max_seq_q=q.shape[0] if max_length_q is None else max_length_q,
                    max_seq_kv=k.shape[0] if max_length_kv is None else max_length_kv, **options)


def _int32(offsets: Any) -> Any:
    if "int64" not in str(offsets.dtype):
        return offsets
    return offsets.astype("int32") if hasattr(offsets, "astype") else offsets.int()


for _function in (gelu_backward, silu_backward, threshold_backward, softmax_backward, log_softmax_backward,
                  sum_backward, select_backward, to_padded_backward, from_padded_backward, reshape_backward, linear_backward, layer_norm_backward,
                  rms_norm_backward, matmul_backward):
    if _function.__doc__ and Call.__doc__:  # so that help() has them; python -OO has no texts
        _function.__doc__ += f"\n\n    {Call.__doc__}"
