# SPDX-License-Identifier: MIT
"""The constants of the C headers as enums: sternway.Mask.CAUSAL_TOP_LEFT is STW_MASK_CAUSAL_TOP_LEFT. Every function
takes the plain numbers too, which `sternway._native` has under the C names without STW_."""
from __future__ import annotations

import enum

from . import _native as c


class Status(enum.IntEnum):
    """stw_status: what an exception's `status` is."""
    OK = c.OK
    INVALID = c.E_INVALID
    UNSUPPORTED = c.E_UNSUPPORTED
    NO_DRIVER = c.E_NO_DRIVER
    NO_DEVICE = c.E_NO_DEVICE
    NO_IMAGE = c.E_NO_IMAGE
    WORKSPACE = c.E_WORKSPACE
    NO_MEMORY = c.E_NO_MEMORY
    DRIVER = c.E_DRIVER
    INTERNAL = c.E_INTERNAL
    DEVICE_LOST = c.E_DEVICE_LOST
    FORKED = c.E_FORKED


class LogLevel(enum.IntEnum):
    """stw_log_level."""
    ERROR = c.LOG_ERROR
    WARN = c.LOG_WARN
    INFO = c.LOG_INFO
    TRACE = c.LOG_TRACE


class DType(enum.IntEnum):
    """stw_dtype."""
    NONE = c.DTYPE_NONE
    F16 = c.F16
    BF16 = c.BF16
    F32 = c.F32
    F64 = c.F64
    I8 = c.I8
    U8 = c.U8
    I16 = c.I16
    I32 = c.I32
    I64 = c.I64


class Backend(enum.IntEnum):
    """stw_backend."""
    AUTO = c.BACKEND_AUTO
    CPU = c.BACKEND_CPU
    CUDA = c.BACKEND_CUDA
    HIP = c.BACKEND_HIP


class Memory(enum.IntEnum):
    """stw_memory."""
    HOST = c.MEMORY_HOST
    DEVICE = c.MEMORY_DEVICE
    BUFFERS = c.MEMORY_BUFFERS


class Mask(enum.IntEnum):
    """stw_attn_mask."""
    NONE = c.MASK_NONE
    CAUSAL_TOP_LEFT = c.MASK_CAUSAL_TOP_LEFT
    CAUSAL_BOTTOM_RIGHT = c.MASK_CAUSAL_BOTTOM_RIGHT


class IntervalForm(enum.IntEnum):
    """stw_attn_intervals."""
    NONE = c.INTERVALS_NONE
    FROM = c.INTERVALS_FROM
    RANGE = c.INTERVALS_RANGE
    FROM_BELOW = c.INTERVALS_FROM_BELOW
    RANGE_BELOW = c.INTERVALS_RANGE_BELOW
    TWO_RANGES = c.INTERVALS_TWO_RANGES


class DropoutMap(enum.IntEnum):
    """stw_dropout_map."""
    PHILOX = c.DROPOUT_PHILOX
    MEM_EFF = c.DROPOUT_MEM_EFF
    FLASH2 = c.DROPOUT_FLASH2


class Deterministic(enum.IntEnum):
    """stw_deterministic: a field of AttnDesc; calls take True, False and None."""
    ENV = c.DETERMINISTIC_ENV
    ON = c.DETERMINISTIC_ON
    OFF = c.DETERMINISTIC_OFF


class JaggedOp(enum.IntEnum):
    """stw_jagged_op."""
    MATMUL = c.JAGGED_MATMUL
    LINEAR = c.JAGGED_LINEAR
    SOFTMAX = c.JAGGED_SOFTMAX
    SUM = c.JAGGED_SUM
    SELECT = c.JAGGED_SELECT
    GELU = c.JAGGED_GELU
    GELU_TANH = c.JAGGED_GELU_TANH
    SILU = c.JAGGED_SILU
    THRESHOLD = c.JAGGED_THRESHOLD
    LAYER_NORM = c.JAGGED_LAYER_NORM
    RESHAPE = c.JAGGED_RESHAPE
    TO_PADDED = c.JAGGED_TO_PADDED
    FROM_PADDED = c.JAGGED_FROM_PADDED
    ATTENTION = c.JAGGED_ATTENTION
    LOG_SOFTMAX = c.JAGGED_LOG_SOFTMAX
    RMS_NORM = c.JAGGED_RMS_NORM


class JaggedDim(enum.IntEnum):
    """stw_jagged_dim."""
    NONE = c.DIM_NONE
    OUTER = c.DIM_OUTER
    RAGGED = c.DIM_RAGGED
    INNER = c.DIM_INNER
    COMPONENT = c.DIM_COMPONENT


class Storage(enum.IntEnum):
    """stw_jagged_storage."""
    COMPONENTS = c.STORAGE_COMPONENTS
    JAGGED = c.STORAGE_JAGGED


class Axis(enum.IntEnum):
    """STW_AXIS_*: places in the `axis` and `offsets` of matmul and of nested attention."""
    M = c.AXIS_M
    K = c.AXIS_K
    N = c.AXIS_N
    Q = c.AXIS_Q
    KV = c.AXIS_KV


class ContextFlag(enum.IntFlag):
    """STW_CONTEXT_*, flags of ContextOpts."""
    HAS_DEVICE = c.CONTEXT_HAS_DEVICE


class Out(enum.IntFlag):
    """STW_OUT_*, bits of AttnDesc.outputs and .accumulate."""
    DQ = c.OUT_DQ
    DK = c.OUT_DK
    DV = c.OUT_DV
    DBIAS = c.OUT_DBIAS
    DSINK = c.OUT_DSINK


class AttnFlag(enum.IntFlag):
    """STW_ATTN_*, bits of AttnDesc.flags."""
    HAS_SCALE = c.ATTN_HAS_SCALE
    HAS_WINDOW_LEFT = c.ATTN_HAS_WINDOW_LEFT
    HAS_WINDOW_RIGHT = c.ATTN_HAS_WINDOW_RIGHT
    HAS_SHIFT = c.ATTN_HAS_SHIFT
    HAS_USED_LENGTHS = c.ATTN_HAS_USED_LENGTHS
    GIVEN_DELTA = c.ATTN_GIVEN_DELTA
    WRITE_DELTA = c.ATTN_WRITE_DELTA
    ALIBI = c.ATTN_ALIBI
    ALIBI_COLUMN = c.ATTN_ALIBI_COLUMN
    SINK = c.ATTN_SINK
    DLSE = c.ATTN_DLSE
    PACKED_Q = c.ATTN_PACKED_Q
    PACKED_KV = c.ATTN_PACKED_KV
    HAS_DIM_STRIDES = c.ATTN_HAS_DIM_STRIDES
    ANY_ADDRESS = c.ATTN_ANY_ADDRESS
    BLOCK_MASK = c.ATTN_BLOCK_MASK


class Data(enum.IntFlag):
    """STW_DATA_*, bits that an attention call writes to status_out."""
    CU_SEQLENS_Q = c.DATA_CU_SEQLENS_Q
    CU_SEQLENS_KV = c.DATA_CU_SEQLENS_KV
    USED_Q = c.DATA_USED_Q
    USED_KV = c.DATA_USED_KV
    OFFSETS = c.DATA_OFFSETS
    INTERVALS = c.DATA_INTERVALS


class JaggedOut(enum.IntFlag):
    """STW_JAGGED_D*, bits of JaggedDesc.outputs and .accumulate."""
    DX = c.JAGGED_DX
    DOTHER = c.JAGGED_DOTHER
    DWEIGHT = c.JAGGED_DWEIGHT
    DBIAS = c.JAGGED_DBIAS


class JaggedFlag(enum.IntFlag):
    """STW_JAGGED_*, bits of JaggedDesc.flags."""
    HAS_USED = c.JAGGED_HAS_USED
    FULL = c.JAGGED_FULL
    HAS_GAMMA = c.JAGGED_HAS_GAMMA
    X_TRANSPOSED = c.JAGGED_X_TRANSPOSED
    OTHER_TRANSPOSED = c.JAGGED_OTHER_TRANSPOSED
    GRAD_TRANSPOSED = c.JAGGED_GRAD_TRANSPOSED
    X_BASES = c.JAGGED_X_BASES
    OTHER_BASES = c.JAGGED_OTHER_BASES
    GRAD_BASES = c.JAGGED_GRAD_BASES


class JaggedData(enum.IntFlag):
    """STW_JAGGED_DATA_*, bits that a jagged call writes to status_out."""
    OFFSETS = c.JAGGED_DATA_OFFSETS
    USED = c.JAGGED_DATA_USED
    INDEX = c.JAGGED_DATA_INDEX
    BASES = c.JAGGED_DATA_BASES
