#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_size.py LIBRARY MIB: the library, device code included, is not larger than that; prints what it is."""
import pathlib
import sys

size, limit = pathlib.Path(sys.argv[1]).stat().st_size, float(sys.argv[2])
print(f"{pathlib.Path(sys.argv[1]).name}: {size / 2**20:.1f} MiB of {limit:g}")
sys.exit(size > limit * 2**20)
