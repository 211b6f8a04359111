# SPDX-License-Identifier: MIT
"""The CSV of gpu_peers.py: lines of `# key: value` about the run, then a row a case. Needs no PyTorch."""
import csv
import io
import math
import sys

# What a ratio is given for, in the order of columns, and what it is called in print.
TITLES = {"fa3": "FA3", "cudnn": "cuDNN", "flash": "FA2", "efficient": "memory-efficient", "flex": "FlexAttention", "sdpa": "SDPA",
          "fa3_det": "FA3 deterministic", "flash_det": "FA2 deterministic", "plain": "ours without it", "baseline": "baseline"}
OURSELVES = ("plain", "baseline")


def best_peer(row):
    """(name, ratio) of the fastest peer, or None."""
    ratios = {name: float(row[f"ratio_{name}"]) for name in TITLES if name not in OURSELVES and row.get(f"ratio_{name}")}
    name = min(ratios, key=ratios.get, default=None)
    return (name, ratios[name]) if name else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def groups(rows):
    """(group, peer, [(ratio, case)]) of every group and whom it was compared with; "best" is the fastest peer of each case."""
    for group in dict.fromkeys(row["group"] for row in rows):
        of_group = [row for row in rows if row["group"] == group]
        best = [(best_peer(row)[1], row["case"]) for row in of_group if best_peer(row)]
        if best:
            yield group, "best", best
        for name in TITLES:
            ratios = [(float(row[f"ratio_{name}"]), row["case"]) for row in of_group if row.get(f"ratio_{name}")]
            if ratios:
                yield group, name, ratios


def write(path, about, rows):
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in about.items())
        writer = csv.DictWriter(file, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path):
    """(about, rows); ends the program where it is none of gpu_peers.py's."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        heads = [line[2:].rstrip("\n").partition(": ") for line in lines if line.startswith("# ")]
        about = {key: value for key, _, value in heads}
        rows = list(csv.DictReader(io.StringIO("".join(line for line in lines if not line.startswith("# ")))))
        for row in rows:
            if not row["case"] or not row["group"] or (not row["wrong"] and not float(row["ms_ours"]) > 0):
                raise ValueError(f"row {row}")
        if not rows or "device" not in about:
            raise ValueError("it has no rows, or names no device")
    except (OSError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        sys.exit(f"{path}: no CSV of gpu_peers.py: {error!r}")
    return about, rows
