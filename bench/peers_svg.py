# SPDX-License-Identifier: MIT
"""Pictures of a CSV of gpu_peers.py, the same bytes for the same CSV: TFLOP/s over the sequence length beside the peers, and the
ratio to the best peer by class."""
import math
import pathlib
import re
import sys

import peers_csv

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs/figures"))
from make_figures import Picture  # noqa: E402

COLOURS = {"ours": "#2f6fab", "fa3": "#d9822b", "cudnn": "#8f8f8f", "flash": "#c9c9c9"}
PANEL_WIDTH, PANEL_HEIGHT = 400, 190


def peak_of(device):
    """The vendor's TFLOP/s of 16-bit products, from the table of `sternway bench`, or None."""
    table = re.findall(r'\{"([^"]+)", ([\d.]+), [\d.]+\}', (ROOT / "tools/bench/suites.c").read_text())
    return next((float(tflops) for name, tflops in table if name in device), None)


def line(picture, x1, y1, x2, y2, colour="#bbb", extra=""):
    picture.parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{colour}" stroke-width=".8"{extra}/>')


def length_of(row):
    return int(re.search(r"s(\d+)", row["case"].split(":")[1])[1])


def lengths(about, rows):
    """The suite fa: a panel a group, bars for ours and every peer that ran; None where the CSV has no such rows."""
    rows = [row for row in rows if row["suite"] == "fa" and row.get("tflops")]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    if not groups:
        return None
    names = ["ours"] + [name for name in COLOURS if any(row.get(f"ratio_{name}") for row in rows)]
    peak = peak_of(about["device"])
    top = math.ceil((peak or max(float(row["tflops"]) for row in rows)) / 100) * 100
    picture = Picture()
    picture.words(20, 20, "Attention backward, bf16, 16384 tokens, heads x head_dim 2048: TFLOP/s over the sequence length", 13)
    for n, group in enumerate(groups):
        left, base = 46 + n % 2 * (PANEL_WIDTH + 50), 44 + PANEL_HEIGHT + n // 2 * (PANEL_HEIGHT + 58)
        picture.words(left, base - PANEL_HEIGHT - 4, group, 12)
        for level in range(0, top + 1, 200):
            y = base - level * PANEL_HEIGHT / top
            line(picture, left, y, left + PANEL_WIDTH, y)
            picture.words(left - 28, round(y) + 3, str(level), 9)
        if peak:
            y = base - peak * PANEL_HEIGHT / top
            line(picture, left, y, left + PANEL_WIDTH, y, "#b33", ' stroke-dasharray="4 3"')
            picture.words(left + PANEL_WIDTH - 64, round(y) + 11, f"peak {peak:g}", 9)
        here = sorted((row for row in rows if row["group"] == group), key=length_of)
        slot = PANEL_WIDTH / len(here)
        width = (slot - 12) / len(names)
        for k, row in enumerate(here):
            x = left + k * slot + 6
            picture.words(round(x), base + 13, str(length_of(row)), 9)
            for m, name in enumerate(names):
                ratio = 1.0 if name == "ours" else float(row.get(f"ratio_{name}") or 0)
                if ratio:
                    tall = float(row["tflops"]) / ratio * PANEL_HEIGHT / top
                    picture.cell(round(x + m * width, 1), round(base - tall, 1), "", COLOURS[name], round(width - 1, 1), round(tall, 1))
    y = 44 + -(-len(groups) // 2) * (PANEL_HEIGHT + 58)
    for n, name in enumerate(names):
        picture.cell(46 + n * 110, y, "", COLOURS[name], 12, 12)
        picture.words(64 + n * 110, y + 11, "Sternway" if name == "ours" else peers_csv.TITLES[name], 11)
    picture.words(66 + len(names) * 110, y + 11, f"one {about['device']}, {about['date']}", 11)
    return picture.svg()


def classes(about, rows):
    """The best peer's time over ours by group: a bar to the geometric mean, a mark at the least."""
    found = [(group, [ratio for ratio, _ in ratios]) for group, name, ratios in peers_csv.groups(rows) if name == "best"]
    if not found:
        return None
    low, high, left, width, step = 0.125, 8.0, 250, 460, 18

    def x_of(ratio):
        return left + width * math.log(min(max(ratio, low), high) / low) / math.log(high / low)

    picture, top = Picture(), 50
    bottom = top + len(found) * step
    picture.words(20, 20, "The best peer's time over ours by class, geometric mean; the mark is the least of its problems", 13)
    for ratio in (0.125, 0.25, 0.5, 1, 2, 4, 8):
        line(picture, x_of(ratio), top - 4, x_of(ratio), bottom, "#333" if ratio == 1 else "#ccc")
        picture.words(round(x_of(ratio)) - 8, top - 8, f"{ratio:g}", 9)
    for n, (group, ratios) in enumerate(found):
        y, mean = top + n * step, peers_csv.geometric_mean(ratios)
        picture.words(20, y + 12, group, 10)
        begin, end = sorted((x_of(1), x_of(mean)))
        picture.cell(round(begin, 1), y + 3, "", COLOURS["ours"] if mean >= 1 else COLOURS["fa3"], round(end - begin, 1), 11)
        line(picture, x_of(min(ratios)), y + 1, x_of(min(ratios)), y + 16, "#000", ' stroke-linecap="round"')
        picture.words(left + width + 12, y + 12, f"{mean:.2f}, least {min(ratios):.2f} of {len(ratios)}", 10)
    picture.words(20, bottom + 16, f"above 1 we are faster; one {about['device']}, {about['date']}", 10)
    return picture.svg()
