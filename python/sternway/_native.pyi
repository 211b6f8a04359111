# SPDX-License-Identifier: MIT
"""The C module: the C interface of include/sternway/*.h as it is, and its calls with arrays. Constants have the C names
without STW_."""
from typing import Any, Callable

from typing_extensions import Self

Fields = tuple[tuple[str, int, int, str], ...]
Triple = tuple[int, ...]

class Error(RuntimeError):
    status: int

class InvalidError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class NoDriverError(Error): ...
class NoDeviceError(Error): ...
class NoImageError(Error): ...
class WorkspaceError(Error): ...
class NoMemoryError(Error, MemoryError): ...
class DriverError(Error): ...
class InternalError(Error): ...
class DeviceLostError(Error): ...
class ForkedError(Error): ...

class AttnDesc:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    dtype: int
    dq_dtype: int
    dk_dtype: int
    dv_dtype: int
    dbias_dtype: int
    bias_dtype: int
    batch: int
    heads_q: int
    heads_kv: int
    head_dim_qk: int
    head_dim_v: int
    max_seq_q: int
    max_seq_kv: int
    total_q: int
    total_kv: int
    q: Triple
    k: Triple
    v: Triple
    out: Triple
    dout: Triple
    dq: Triple
    dk: Triple
    dv: Triple
    lse: Triple
    dlse: Triple
    delta: Triple
    bias: Triple
    dbias: Triple
    alibi_stride_batch: int
    outputs: int
    accumulate: int
    mask: int
    flags: int
    window_left: int
    window_right: int
    diagonal_shift: int
    scale: float
    softcap: float
    dropout_p: float
    dropout_map: int
    deterministic: int
    batch_offset: int
    head_offset: int
    heads_total: int
    dim: Triple
    scale_f64: float
    softcap_f64: float
    interval_form: int
    intervals: Triple
    block_mask: Triple
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> AttnDesc: ...

class AttnArgs:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    q: Any
    k: Any
    v: Any
    out: Any
    dout: Any
    lse: Any
    dlse: Any
    delta: Any
    bias: Any
    alibi_slopes: Any
    sink: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    used_q: Any
    used_kv: Any
    q_offsets: Any
    k_offsets: Any
    q_offset: int
    k_offset: int
    dropout_seed_ptr: Any
    dropout_offset_ptr: Any
    dropout_seed: int
    dropout_offset: int
    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsink: Any
    status_out: Any
    cpu_threads: int
    intervals: Any
    block_mask: Any
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> AttnArgs: ...

class JaggedDesc:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    op: int
    dtype: int
    index_dtype: int
    dx_dtype: int
    dother_dtype: int
    dweight_dtype: int
    dbias_dtype: int
    weight_dtype: int
    outputs: int
    accumulate: int
    flags: int
    storage: int
    grad_storage: int
    other_storage: int
    components: int
    axis: tuple[tuple[Any, ...], ...]
    ragged_axes: int
    dim: int
    outer: int
    inner: int
    dim_size: int
    dim_after: int
    index: int
    out_features: int
    padded: int
    threshold: float
    shape_rank: int
    grad_rank: int
    shape: tuple[int, ...]
    grad_shape: tuple[int, ...]
    x_elements: int
    other_elements: int
    grad_elements: int
    attn: Any
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> JaggedDesc: ...

class JaggedArgs:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    axis: tuple[tuple[Any, ...], ...]
    grad: Any
    x: Any
    y: Any
    other: Any
    weight: Any
    mean: Any
    rstd: Any
    x_bases: Any
    other_bases: Any
    grad_bases: Any
    dx: Any
    dother: Any
    dweight: Any
    dbias: Any
    status_out: Any
    attn: Any
    cpu_threads: int
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> JaggedArgs: ...

class ContextOpts:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    backend: int
    memory: int
    flags: int
    device: int
    arch: str | None
    cpu_threads: int
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> ContextOpts: ...

class DeviceInfo:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    backend: int
    device: int
    usable: int
    compute_units: int
    memory_bytes: int
    @property
    def arch(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def note(self) -> str: ...
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> DeviceInfo: ...

class ImageInfo:
    fields: Fields
    @property
    def struct_size(self) -> int: ...
    backend: int
    intact: int
    bytes: int
    hash: int
    @property
    def arch(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def ops(self) -> str: ...
    def __init__(self, **fields: Any) -> None: ...
    def copy(self) -> ImageInfo: ...

class Plan:
    @property
    def workspace_size(self) -> int: ...
    def describe(self) -> str: ...
    def run(self, args: AttnArgs | JaggedArgs, workspace: Any = None, workspace_size: int = -1,
            stream: int = 0) -> None: ...
    def dropout_mask(self, args: AttnArgs, mask: Any, stream: int = 0) -> None: ...

class Context:
    def __new__(cls, backend: int = 0, memory: int = 1, device: int | None = None, arch: str | None = None,
                cpu_threads: int = 0) -> Self: ...
    @property
    def arch(self) -> str: ...
    @property
    def backend(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def device(self) -> int: ...
    def attn_bwd_plan(self, desc: AttnDesc, /) -> Plan: ...
    def attn_fwd_plan(self, desc: AttnDesc, /) -> Plan: ...
    def jagged_bwd_plan(self, desc: JaggedDesc, /) -> Plan: ...
    def attn_bwd_once_workspace(self, desc: AttnDesc, /) -> int: ...
    def attn_fwd_once_workspace(self, desc: AttnDesc, /) -> int: ...
    def attn_bwd_once(self, desc: AttnDesc, args: AttnArgs, workspace: Any = None, workspace_size: int = -1,
                      stream: int = 0) -> None: ...
    def attn_fwd_once(self, desc: AttnDesc, args: AttnArgs, workspace: Any = None, workspace_size: int = -1,
                      stream: int = 0) -> None: ...
    def buffer_alloc(self, bytes: int, /) -> int: ...
    def buffer_free(self, pointer: int, /) -> None: ...
    def copy(self, to: Any, from_: Any, bytes: int, stream: int = 0) -> None: ...
    def stream_create(self) -> int: ...
    def stream_synchronize(self, stream: int, /) -> None: ...
    def stream_destroy(self, stream: int, /) -> None: ...

def version() -> str: ...
def last_error() -> str: ...
def status_name(status: int, /) -> str: ...
def devices() -> list[dict[str, Any]]: ...
def embedded_images() -> list[dict[str, Any]]: ...
def layout_bshd(desc: AttnDesc, /) -> None: ...
def layout_bhsd(desc: AttnDesc, /) -> None: ...
def layout_thd(desc: AttnDesc, /) -> None: ...
def mask_from_flash(desc: AttnDesc, causal: bool, left: int, right: int, /) -> None: ...
def explain_attn(opts: ContextOpts, desc: AttnDesc, /) -> str: ...
def explain_attn_fwd(opts: ContextOpts, desc: AttnDesc, /) -> str: ...
def explain_jagged(opts: ContextOpts, desc: JaggedDesc, /) -> str: ...
def set_log(function: Callable[[int, str], Any] | None, /) -> None: ...
def attn_bwd(context: Context, layout: int, /, **keywords: Any) -> None: ...
def attn_fwd(context: Context, layout: int, /, **keywords: Any) -> None: ...
def dropout_mask(context: Context, layout: int, /, **keywords: Any) -> None: ...
def jagged_bwd(context: Context, op: int, /, **keywords: Any) -> None: ...

ENUMS: dict[str, dict[str, int]]
ATTN_ALIBI: int
ATTN_ALIBI_COLUMN: int
ATTN_ANY_ADDRESS: int
ATTN_BLOCK_MASK: int
ATTN_DLSE: int
ATTN_GIVEN_DELTA: int
ATTN_HAS_DIM_STRIDES: int
ATTN_HAS_SCALE: int
ATTN_HAS_SHIFT: int
ATTN_HAS_USED_LENGTHS: int
ATTN_HAS_WINDOW_LEFT: int
ATTN_HAS_WINDOW_RIGHT: int
ATTN_PACKED_KV: int
ATTN_PACKED_Q: int
ATTN_SINK: int
ATTN_WRITE_DELTA: int
AXIS_K: int
AXIS_KV: int
AXIS_M: int
AXIS_N: int
AXIS_Q: int
BACKEND_AUTO: int
BACKEND_CPU: int
BACKEND_CUDA: int
BACKEND_HIP: int
BF16: int
BHSD: int
BSHD: int
CONTEXT_HAS_DEVICE: int
DATA_CU_SEQLENS_KV: int
DATA_CU_SEQLENS_Q: int
DATA_INTERVALS: int
DATA_OFFSETS: int
DATA_USED_KV: int
DATA_USED_Q: int
DETERMINISTIC_ENV: int
DETERMINISTIC_OFF: int
DETERMINISTIC_ON: int
DIM_COMPONENT: int
DIM_INNER: int
DIM_NONE: int
DIM_OUTER: int
DIM_RAGGED: int
DROPOUT_FLASH2: int
DROPOUT_MEM_EFF: int
DROPOUT_PHILOX: int
DTYPE_NONE: int
E_DEVICE_LOST: int
E_DRIVER: int
E_FORKED: int
E_INTERNAL: int
E_INVALID: int
E_NO_DEVICE: int
E_NO_DRIVER: int
E_NO_IMAGE: int
E_NO_MEMORY: int
E_UNSUPPORTED: int
E_WORKSPACE: int
F16: int
F32: int
F64: int
I16: int
I32: int
I64: int
I8: int
INTERVALS_FROM: int
INTERVALS_FROM_BELOW: int
INTERVALS_NONE: int
INTERVALS_RANGE: int
INTERVALS_RANGE_BELOW: int
INTERVALS_TWO_RANGES: int
JAGGED_ATTENTION: int
JAGGED_DATA_BASES: int
JAGGED_DATA_INDEX: int
JAGGED_DATA_OFFSETS: int
JAGGED_DATA_USED: int
JAGGED_DBIAS: int
JAGGED_DOTHER: int
JAGGED_DWEIGHT: int
JAGGED_DX: int
JAGGED_FROM_PADDED: int
JAGGED_FULL: int
JAGGED_GELU: int
JAGGED_GELU_TANH: int
JAGGED_GRAD_BASES: int
JAGGED_GRAD_TRANSPOSED: int
JAGGED_HAS_GAMMA: int
JAGGED_HAS_USED: int
JAGGED_LAYER_NORM: int
JAGGED_LINEAR: int
JAGGED_LOG_SOFTMAX: int
JAGGED_MATMUL: int
JAGGED_OTHER_BASES: int
JAGGED_OTHER_TRANSPOSED: int
JAGGED_RANK_MAX: int
JAGGED_RESHAPE: int
JAGGED_RMS_NORM: int
JAGGED_SELECT: int
JAGGED_SILU: int
JAGGED_SOFTMAX: int
JAGGED_SUM: int
JAGGED_THRESHOLD: int
JAGGED_TO_PADDED: int
JAGGED_X_BASES: int
JAGGED_X_TRANSPOSED: int
LOG_ERROR: int
LOG_INFO: int
LOG_TRACE: int
LOG_WARN: int
MASK_CAUSAL_BOTTOM_RIGHT: int
MASK_CAUSAL_TOP_LEFT: int
MASK_NONE: int
MEMORY_BUFFERS: int
MEMORY_DEVICE: int
MEMORY_HOST: int
OK: int
OUT_DBIAS: int
OUT_DK: int
OUT_DQ: int
OUT_DSINK: int
OUT_DV: int
STORAGE_COMPONENTS: int
STORAGE_JAGGED: int
THD: int
U8: int
