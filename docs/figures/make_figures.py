#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the pictures of the documents: python3 docs/figures/make_figures.py writes the .svg files beside itself. Those of
docs/mathematics.md follow the formulas written there. The test docs_figures compares all with what is committed. Pictures of
measured times are bench/record.py's."""
import pathlib
import sys

CELL = 26
COLOURS = ("#cfe3f7", "#f9dcc0", "#d3edcf", "#efd0e6", "#f6f0b8", "#d9d9f3", "#c9eeee", "#eed5d5")
HIDDEN = "#f2f2f2"


class Picture:
    """Cells and words on a white ground; knows how large it is."""

    def __init__(self):
        self.parts, self.width, self.height = [], 0, 0

    def cell(self, x, y, text="", fill="#ffffff", width=CELL, height=CELL, size=9):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>')
        if text:
            self.parts.append(f'<text class="c" x="{x + width / 2:g}" y="{y + height / 2 + size / 3:.4g}" font-size="{size}">'
                              f"{text}</text>")
        self.width, self.height = max(self.width, x + width + 8), max(self.height, y + height + 8)

    def words(self, x, y, text, size=11):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}">{text}</text>')
        self.width, self.height = max(self.width, x + int(len(text) * size * .56) + 8), max(self.height, y + 8)

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" font-family="sans-serif">\n'
                "<style>rect{stroke:#777;stroke-width:.6}.c{text-anchor:middle}</style>\n"
                '<rect width="100%" height="100%" fill="#fff" style="stroke:none"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def masks():
    """Who sees whom, Lq 4 and Lk 6; the number in a cell is j - i - shift."""
    picture, q, k = Picture(), 4, 6
    kinds = (("causal top-left", 0, lambda d: d <= 0), ("causal bottom-right", k - q, lambda d: d <= 0),
             ("window left 2, right 1", k - q, lambda d: -2 <= d <= 1),
             ("causal top-left, window left 1", 0, lambda d: -1 <= d <= 0))
    for n, (name, shift, sees) in enumerate(kinds):
        left, top = 30 + n % 2 * (k * CELL + 90), 44 + n // 2 * (q * CELL + 60)
        picture.words(left, top - 22, f"{name}: shift {shift}")
        for j in range(k):
            picture.words(left + j * CELL + 9, top - 5, str(j), 9)
        for i in range(q):
            picture.words(left - 14, top + i * CELL + 16, str(i), 9)
            for j in range(k):
                distance = j - i - shift
                picture.cell(left + j * CELL, top + i * CELL, str(distance), COLOURS[0] if sees(distance) else HIDDEN)
    picture.words(30, picture.height + 14, "rows: query i; columns: key j; in a cell j - (i + shift); blue: seen")
    return picture


def intervals():
    """Masks of docs/masks.md on 12 tokens, as the bounds of their intervals give them."""
    picture, size, cell = Picture(), 12, 13
    lengths = (5, 3, 4)
    starts = [sum(lengths[:n]) for n, length in enumerate(lengths) for _ in range(length)]
    ends = [start + length for start, length in zip(starts, (length for length in lengths for _ in range(length)))]
    branch = [size if j < 4 else 4 + (j - 4) // 4 * 4 + 4 for j in range(size)]
    kinds = (  # name, beside a causal mask, rows that do not see key j: from [0] on, and below [1]
        ("documents, causal: from", True, [(end, 0) for end in ends]),
        ("documents: from, below", False, list(zip(ends, starts))),
        ("prefix of 4: from, below", False, [(size, 0 if j < 4 else j) for j in range(size)]),
        ("tree, causal: from", True, [(end, 0) for end in branch]),
        ("window 2, 1 sink, causal: from", True, [(size if j < 1 else j + 3, 0) for j in range(size)]),
        ("padding: range", False, [(0 if j < 2 or j > 9 else size, 0) for j in range(size)]))
    for n, (name, causal, hidden) in enumerate(kinds):
        left, top = 14 + n % 3 * (size * cell + 34), 30 + n // 3 * (size * cell + 34)
        picture.words(left, top - 6, name, 10)
        for i in range(size):
            for j in range(size):
                seen = hidden[j][1] <= i < hidden[j][0] and not (causal and j > i)
                picture.cell(left + j * cell, top + i * cell, "", COLOURS[0] if seen else HIDDEN, cell, cell)
    return picture


def layouts():
    """The order of rows of head_dim elements in memory."""
    picture, heads, wide = Picture(), 2, 48
    dense = [(b, s, h) for b in range(2) for s in range(3) for h in range(heads)]
    rows = (("bshd [B,S,H,D]: B 2, S 3, H 2", dense),
            ("bhsd [B,H,S,D]", sorted(dense, key=lambda e: (e[0], e[2], e[1]))),
            ("thd [T,H,D], packed: lengths 2 and 4, cu_seqlens 0,2,6",
             [(b, s, h) for b, length in ((0, 2), (1, 4)) for s in range(length) for h in range(heads)]))
    for n, (name, order) in enumerate(rows):
        top = 30 + n * 62
        picture.words(10, top - 6, name)
        for place, (b, s, h) in enumerate(order):
            picture.cell(10 + place * wide, top, f"b{b} s{s} h{h}", COLOURS[2 * b + h], wide, CELL, 9)
    picture.words(10, picture.height + 14, "a cell is one row of head_dim elements; memory runs from left to right")
    return picture


def lse():
    picture, heads, wide = Picture(), 2, 48
    packed = [(b, s) for b, length in ((0, 2), (1, 4)) for s in range(length)]
    rows = (("[B,H,S], strides batch H*S, head S, seq 1: B 2, H 2, S 3",
             [(b, s, h) for b in range(2) for h in range(heads) for s in range(3)]),
            ("[H,T], packed (2 and 4 rows): batch 0, head T, seq 1", [(b, s, h) for h in range(heads) for b, s in packed]),
            ("[T,H], packed: batch 0, head 1, seq H", [(b, s, h) for b, s in packed for h in range(heads)]),
            ("[B,H,max_seq_q], though packed: batch H*max, head max, seq 1",
             [(b, s, h) for b in range(2) for h in range(heads) for s in range(4)]))
    for n, (name, order) in enumerate(rows):
        top = 30 + n * 56
        picture.words(10, top - 6, name)
        for place, (b, s, h) in enumerate(order):
            unused = n == 3 and b == 0 and s >= 2
            picture.cell(10 + place * wide, top, "" if unused else f"b{b} s{s} h{h}", HIDDEN if unused else COLOURS[2 * b + h],
                         wide, CELL, 9)
    picture.words(10, picture.height + 14, "a cell is one f32; grey: not read, not written")
    return picture


def counters(title, entry):
    """A grid of 8 queries and 8 keys: `entry(i, j)` is (counter, word)."""
    picture, wide, seen = Picture(), 62, []
    picture.words(30, 18, title)
    for j in range(8):
        picture.words(30 + j * wide + 22, 40, f"j {j}", 9)
    for i in range(8):
        picture.words(6, 62 + i * CELL, f"i {i}", 9)
        for j in range(8):
            counter, word = entry(i, j)
            if counter not in seen:
                seen.append(counter)
            picture.cell(30 + j * wide, 46 + i * CELL, f"{counter} . {word}", COLOURS[seen.index(counter) % 8], wide, CELL, 10)
    picture.words(30, picture.height + 14, "counter . word of the four it gives; one colour: one Philox call (colours repeat)")
    return picture


def philox():
    return counters("PHILOX: counter (i/4, j, ...), word i%4, of one batch and head", lambda i, j: (f"{i // 4},{j}", i % 4))


def mem_eff():
    return counters("MEM_EFF: n = i*Sk + j (b = h = offset = 0, Sk 8); counter n/4, word n%4",
                    lambda i, j: ((i * 8 + j) // 4, (i * 8 + j) % 4))


def flash2():
    """The left half of a block of 16 x 32: lane and byte of every position."""
    picture, wide, owner = Picture(), 34, {}
    for lane in range(32):
        for a in range(2):
            for t in range(2):
                for c in range(4):
                    row, column = lane // 4 + 8 * (c >> 1), 16 * a + 8 * t + 2 * (lane % 4) + (c & 1)
                    owner[row, column] = (lane, 8 * a + 4 * t + c)
    picture.words(24, 16, "FLASH2: lane / byte of its 16 bytes, left half of a block of 16 queries and 32 keys (colour: lane % 4)")
    for row in range(16):
        picture.words(4, 46 + row * 18, str(row), 9)
        for column in range(16):
            if row == 0:
                picture.words(24 + column * wide + 10, 29, str(column), 9)
            lane, byte = owner[row, column]
            picture.cell(24 + column * wide, 33 + row * 18, f"{lane}/{byte}", COLOURS[lane % 4], wide, 18, 8)
    picture.words(24, picture.height + 14, "columns 16 to 31: the same lanes, bytes 8 to 15")
    return picture


def jagged():
    """Three components of 3, 0 and 5 positions, a gap behind; used lengths 2, 0, 4."""
    picture, offsets, used, total, wide = Picture(), (0, 3, 3, 8), (2, 0, 4), 10, 46
    picture.words(10, 18, "values, one cell a position (outer * inner elements): offsets 0,3,3,8; used 2,0,4; total 10")
    for place in range(total):
        owners = [b for b in range(3) if offsets[b] <= place < offsets[b + 1]]
        text, fill = "gap", HIDDEN
        if owners:
            b, r = owners[0], place - offsets[owners[0]]
            text, fill = (f"b{b} r{r}", COLOURS[b]) if r < used[b] else ("unused", "#e3e3e3")
        picture.words(10 + place * wide + 18, 40, str(place), 9)
        picture.cell(10 + place * wide, 46, text, fill, wide)
    picture.words(10, 96, "the same padded to 4 positions, [components, outer, 4, inner]")
    for b in range(3):
        for r in range(4):
            there = r < used[b]
            picture.cell(10 + (4 * b + r) * wide, 104, f"b{b} r{r}" if there else "0", COLOURS[b] if there else "#ffffff", wide)
    picture.words(10, 152, "unused: not read, its gradient is 0; gap: neither read nor written")
    return picture


def dispatch():
    """The way of one call, from the program to the kernels."""
    picture = Picture()

    def box(x, y, width, fill, *lines):
        picture.cell(x, y, "", fill, width, 16 * len(lines) + 14)
        for n, line in enumerate(lines):
            picture.parts.append(f'<text class="c" x="{x + width / 2:g}" y="{y + 21 + 16 * n}" font-size="{12 if n == 0 else 10.5}"'
                                 f'{" font-weight=" + chr(34) + "bold" + chr(34) if n == 0 else ""}>{line}</text>')

    def arrow(x, y, to_x, to_y):
        picture.parts.append(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="#555" stroke-width="1.4" marker-end="url(#a)"/>')

    picture.parts.append('<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                         '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>')
    def band(y, fill, when, *boxes):
        """A stage of dispatch: when it runs, and its steps."""
        picture.cell(20, y, "", fill, 700, 70)
        picture.parts.append(f'<text x="30" y="{y + 31}" font-size="12" font-weight="bold">{when[0]}</text>'
                             f'<text x="30" y="{y + 47}" font-size="10.5">{when[1]}</text>')
        for n, lines in enumerate(boxes):
            box(132 + 198 * n, y + 4, 180, "#ffffff", *lines)
            if n:
                arrow(132 + 198 * n - 18, y + 35, 132 + 198 * n - 2, y + 35)

    box(132, 14, 378, "#ffffff", "your program", "descriptor, pointers, stream: the same on every machine")
    box(528, 14, 192, HIDDEN, "environment", "STERNWAY_BACKEND, ...")
    arrow(222, 60, 222, 82)
    arrow(618, 60, 618, 82)
    band(84, COLOURS[1], ("a context", "once a device"),
         ("probe", "devices by /sys, /dev, NVML:", "no driver is started"),
         ("candidates", "the backend that is named, or", "all that fit, the best first"),
         ("open", "driver by dlopen, the image of", "the arch; else the next one"))
    arrow(222, 154, 222, 172)
    band(174, COLOURS[4], ("a plan", "once a problem"),
         ("check", "the whole descriptor; what is", "refused is refused here"),
         ("rules", "of the arch's tuning table, the", "first whose loop takes it"),
         ("variant", "kernels, tiles, workspace;", "explain says why"))
    arrow(222, 244, 222, 262)
    band(264, COLOURS[5], ("a call", "every step"),
         ("bind", "checks pointers; no lock,", "no allocation"),
         ("launch", "preprocess, main loop,", "postprocess; never waits"))
    for x, fill, lines in ((20, COLOURS[2], ("CPU", "AVX-512, AVX2, portable", "every feature, f64,", "always deterministic")),
                           (262, COLOURS[0], ("CUDA", "sm80: every feature,", "every GPU from 8.0 on", "sm90: own loops on 9.0")),
                           (504, COLOURS[3], ("HIP (preview)", "gfx90a, gfx942, gfx950:", "own loop, and sm80's kernels", "compiled for AMD"))):
        box(x, 360, 216, fill, *lines)
        arrow(420, 334, x + 108, 358)
    picture.words(20, 462, "Drivers are loaded when a context is created; the library links the C library alone.", 11)
    return picture


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for draw in (masks, intervals, layouts, lse, philox, mem_eff, flash2, jagged, dispatch):
        (folder / f"{draw.__name__}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
