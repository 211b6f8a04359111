# SPDX-License-Identifier: MIT
"""Curves of documents of `sternway bench --json` (docs/schema/bench.json): TFLOP/s over the sequence length, a panel an
element type, mask and other options, a line a document and head dim. With --metric gbs GB/s, with --metric ms the median;
bars from the first to the third quartile. Problems of which no other length was timed, as a default bench has them, are bars
with their names; so are nested operations, which have no sequence length, in GB/s.

    build/release/bin/sternway bench --suite fa --json >now.json
    python bench/plot.py -o curves.png now.json [LABEL=older.json ...]
    python bench/plot.py -o peers.svg h200.csv             # a CSV of gpu_peers.py: beside the peers, with the GPU's peak
    python bench/plot.py -o classes.svg --picture classes h200.csv

Needs matplotlib, no display; a CSV needs neither. Nothing is measured here; a panel's title names the device of every
document."""
import argparse
import collections
import json
import pathlib
import re
import sys

SIZES = re.compile(r"b(\d+)h(\d+)(?:k(\d+))?s(\d+)(?:x(\d+))?d(\d+)(?:x(\d+))?$")
UNITS = {"tflops": "TFLOP/s", "gbs": "GB/s", "ms": "median, ms"}


def read(argument):
    """A (label, document) of FILE or LABEL=FILE; ends the program where it is none of bench's."""
    label, _, name = argument.rpartition("=")
    try:
        document = json.loads(pathlib.Path(name).read_text())
        rows = document["problems"]
        for row in rows:
            if not all(isinstance(row[key], (int, float)) for key in ("low_ms", "median_ms", "high_ms")):
                raise ValueError(f"{row['problem']}: a time is no number")
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{name}: no document of sternway bench --json: {error!r}")
    return label or f"{document['sternway']} on {document['device']}", document


def value_of(row, metric):
    """The value, and how far the quartiles lie below and above it; None where the row has none."""
    if metric == "ms":
        return row["median_ms"], row["median_ms"] - row["low_ms"], row["high_ms"] - row["median_ms"]
    if metric not in row or not row["low_ms"] > 0:
        return None
    value, median = row[metric], row["median_ms"]
    return value, value - value * median / row["high_ms"], value * median / row["low_ms"] - value


def curves(documents, metric):
    """{panel: {line: [(length, value, below, above)]}} of the attention problems, and {label: {problem: value}} of those in
    panels where every line would be a point."""
    panels = collections.defaultdict(lambda: collections.defaultdict(list))
    problems = collections.defaultdict(list)
    for label, document in documents:
        for row in document["problems"]:
            operation, dtype, sizes, *rest = row["problem"].split(":")
            match = SIZES.fullmatch(sizes)
            value = value_of(row, metric)
            if operation != "attn_bwd" or not match or not value:
                continue
            _, heads, kv_heads, length, _, dim, dim_v = match.groups()
            panel = " ".join([dtype, *rest]) or dtype
            name = f"{label}, D {dim}" + (f"/{dim_v}" if dim_v else "")
            name += f", {heads}:{kv_heads} heads" if kv_heads else ""
            panels[panel][name].append((int(length), *value))
            problems[panel].append((label, row["problem"].partition(":")[2], value))
    alone = collections.defaultdict(dict)
    for panel in [panel for panel, lines in panels.items() if all(len({p[0] for p in points}) == 1 for points in lines.values())]:
        del panels[panel]
        for label, problem, value in problems[panel]:
            alone[label][problem] = value
    return panels, alone


def bars(documents, metric):
    """{label: {problem: value}} of the nested operations."""
    found = collections.defaultdict(dict)
    for label, document in documents:
        for row in document["problems"]:
            value = value_of(row, metric)
            if row["problem"].startswith("jagged_") and value:
                found[label][row["problem"]] = value
    return found


def draw_curves(axis, panel, lines, metric):
    for name, points in sorted(lines.items()):
        lengths, values, below, above = zip(*sorted(points))
        axis.errorbar(lengths, values, yerr=(below, above), marker="o", capsize=2, label=name)
    axis.set_xscale("log", base=2)
    axis.set_title(panel)
    axis.set_xlabel("sequence length")
    axis.set_ylabel(UNITS[metric])
    axis.set_ylim(0, 1.08 * max(value + above for points in lines.values() for _, value, _, above in points))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def names_of(found):
    return list(dict.fromkeys(problem for values in found.values() for problem in values))


def draw_bars(axis, title, found, metric):
    problems = names_of(found)
    height = 0.8 / len(found)
    for n, (label, values) in enumerate(found.items()):
        here = [(i, values[problem]) for i, problem in enumerate(problems) if problem in values]
        axis.barh([i + n * height for i, _ in here], [v[0] for _, v in here], height, label=label,
                  xerr=([v[1] for _, v in here], [v[2] for _, v in here]), capsize=2)
    axis.set_yticks([i + 0.4 - height / 2 for i in range(len(problems))], problems, fontsize="small")
    axis.invert_yaxis()
    axis.set_title(title)
    axis.set_xlabel(UNITS[metric])
    axis.set_xlim(left=0)
    axis.grid(axis="x", alpha=0.3)
    if len(found) > 1:
        axis.legend(fontsize="small")


def draw_csv(options):
    """One picture of one CSV, as plain SVG: the same bytes everywhere."""
    import peers_csv
    import peers_svg
    if len(options.documents) > 1 or not options.output.endswith(".svg"):
        sys.exit("a CSV of gpu_peers.py is drawn alone, into an .svg")
    picture = getattr(peers_svg, options.picture)(*peers_csv.read(options.documents[0]))
    if not picture:
        sys.exit(f"{options.documents[0]}: no row of it belongs into the picture {options.picture}")
    pathlib.Path(options.output).write_text(picture, encoding="utf-8")
    print(f"{options.output}: {options.picture}")
    return 0


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("documents", nargs="+", metavar="[LABEL=]FILE")
    parse.add_argument("-o", "--output", required=True, help="picture: .png, .svg or .pdf")
    parse.add_argument("--metric", choices=list(UNITS), default="tflops")
    parse.add_argument("--picture", choices=["lengths", "classes"], default="lengths", help="of a CSV of gpu_peers.py")
    options = parse.parse_args()
    if any(name.endswith(".csv") for name in options.documents):
        return draw_csv(options)
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        sys.exit("matplotlib is needed: python3 -m pip install matplotlib")
    documents = [read(argument) for argument in options.documents]
    nested_metric = "gbs" if options.metric == "tflops" else options.metric
    (panels, alone), nested = curves(documents, options.metric), bars(documents, nested_metric)
    sets = [(title, found, metric) for title, found, metric in (("attention", alone, options.metric),
                                                                ("nested operations", nested, nested_metric)) if found]
    heights = [4.5] * len(panels) + [1.4 + 0.25 * (1 + len(found)) * len(names_of(found)) for _, found, _ in sets]
    if not heights:
        sys.exit(f"no problem of these documents has {UNITS[options.metric]}")
    figure, axes = plt.subplots(len(heights), 1, figsize=(9, 0.4 + sum(heights)), squeeze=False, layout="constrained",
                                height_ratios=heights)
    for axis, (panel, lines) in zip(axes[:, 0], panels.items()):
        draw_curves(axis, panel, lines, options.metric)
    for axis, (title, found, metric) in zip(axes[len(panels):, 0], sets):
        draw_bars(axis, title, found, metric)
    figure.suptitle("; ".join(f"{label}: {d['device']}, {d['arch']}, {d['date'][:10]}" for label, d in documents),
                    fontsize="small")
    figure.savefig(options.output)
    print(f"{options.output}: {sum(map(len, panels.values()))} lines in {len(panels)} panels"
          + "".join(f", {title}: bars of {len(names_of(found))} problems" for title, found, _ in sets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
