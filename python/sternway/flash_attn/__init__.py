# SPDX-License-Identifier: MIT
"""flash-attn's functions over Sternway: `import sternway.flash_attn as flash_attn` is the whole change.

The functions have flash-attn 2.8's signatures and semantics (flash_attn_interface), on NVIDIA and AMD GPUs and on the
CPU, in f16, bf16 and also f32 (f64 on the CPU). The backward is the library's; the forward on a GPU is PyTorch's flash
operator where that takes the problem, else the library's. bert_padding holds the helpers of that name. Not here: paged
and cached keys (inference), and flash-attn's layers, modules and losses.

A program that imports flash_attn by itself, deep in another package, gets this one after install()."""
from __future__ import annotations

import importlib
import sys

from . import bert_padding, flash_attn_interface
from .flash_attn_interface import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                                   flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
                                   flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)

# The release of flash-attn whose interface this is, with a local part that names us: programs compare it with the
# release they need. The library's own version is sternway's.
__version__ = "2.8.4+sternway"

__all__ = ["bert_padding", "flash_attn_func", "flash_attn_interface", "flash_attn_kvpacked_func",
           "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "install"]


def install() -> None:
    """Makes `import flash_attn` in this process import this package, for libraries that import it themselves (call it
    before importing them). Who looks for an installed distribution named flash-attn in importlib.metadata, as
    Transformers does, still finds none. Raises ImportError where flash-attn itself has been imported already."""
    found = sys.modules.get("flash_attn")
    if found is not None and found is not sys.modules[__name__]:
        raise ImportError(f"sternway.flash_attn.install(): flash_attn is imported already, from "
                          f"{getattr(found, '__file__', 'an unknown place')}")
    sys.modules["flash_attn"] = sys.modules[__name__]
    for name in ("bert_padding", "flash_attn_interface"):
        sys.modules[f"flash_attn.{name}"] = importlib.import_module(f"{__name__}.{name}")
