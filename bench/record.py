#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Keeps docs/performance/nvidia.md: the rows of runs of gpu_peers.py go into one CSV a GPU there (h200.csv), and the document's
tables and pictures are made of these. Nothing is measured here.

    python bench/record.py run1.csv run2.csv ...     # rows of the same case are replaced, the last one counts; then all is drawn
    python bench/record.py                           # draws again
    python bench/record.py --check                   # exit status 1 where document or pictures are not those of the CSVs"""
import argparse
import pathlib
import re
import sys

import gpu_cases
import peers_csv
import peers_svg

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs/performance"
BEGIN, END = "<!-- made by bench/record.py from here ... -->", "<!-- ... to here -->"
OF_RUN = ("date", "commit", "command", "timing", "versions", "baseline")  # of a run; device and driver are the file's
PICTURES = {"lengths": peers_svg.lengths, "classes": peers_svg.classes}


def slug(device):
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"^NVIDIA ", "", device).lower()).strip("_")


def order_of(rows):
    """By suite and place in it, whatever the run's order was; what no suite has any more is left out."""
    places = {case.name: (suite, case.group, n) for suite, make in gpu_cases.SUITES.items() if suite != "classes" for n, case in enumerate(make())}
    suites = list(gpu_cases.SUITES)
    known = [{**row, "suite": places[row["case"]][0], "group": places[row["case"]][1]} for row in rows if row["case"] in places]
    return sorted(known, key=lambda row: (suites.index(row["suite"]), places[row["case"]][2]))


def add(paths, fresh):
    """Rows of runs into the CSV of their GPU. A row says which run it is of."""
    for path in paths:
        about, rows = peers_csv.read(path)
        kept = FOLDER / f"{slug(about['device'])}.csv"
        of_run = {key: about.get(key, "") for key in OF_RUN}
        old = [] if kept in fresh or not kept.exists() else peers_csv.read(kept)[1]
        fresh.discard(kept)
        for row in rows:
            if row["wrong"]:
                print(f"{path}: {row['case']} is wrong, which the document says: {row['wrong']}", file=sys.stderr)
        merged = {row["case"]: row for row in old}
        merged.update({row["case"]: {**row, **of_run} for row in rows})
        device = {key: about[key] for key in ("device", "driver") if key in about}
        peers_csv.write(kept, {**device, **of_run}, order_of(list(merged.values())))
        print(f"{path}: {len(rows)} rows into {kept.name}, which has {len(merged)}")


# ---- the document ---------------------------------------------------------------------------------------------------


def against(row):
    """Whom the row is held against: the best peer, else our own call without the feature."""
    best = peers_csv.best_peer(row)
    if best:
        return best
    return ("plain", float(row["ratio_plain"])) if row.get("ratio_plain") else None


def mean_of(ratios):
    return peers_csv.geometric_mean([ratio for ratio, _ in ratios])


def classes_table(rows):
    """Of every group: the best peer, what the feature costs beside our own call without it, and an older build's time over ours."""
    found = {}
    for group, name, ratios in peers_csv.groups(rows):
        if name in ("best", "plain", "baseline"):
            found.setdefault(group, {})[name] = ratios
    older = "/".join(sorted({row["baseline"] for row in rows if row.get("ratio_baseline")}))
    lines = ["| class | problems | best peer's time / ours: mean | least, at | ours / ours without the feature: mean | most |"
             + (f" {older}'s time / ours: mean | least |" if older else ""), "|---" * (8 if older else 6) + "|"]
    for group, sets in found.items():
        best, plain, before = (sets.get(name) for name in ("best", "plain", "baseline"))
        cells = [f"{mean_of(best):.3f}", f"{min(best)[0]:.3f}, `{min(best)[1]}`"] if best else ["-", "-"]
        cells += [f"{1 / mean_of(plain):.2f}", f"{1 / min(plain)[0]:.2f}"] if plain else ["-", "-"]
        if older:
            cells += [f"{mean_of(before):.3f}", f"{min(before)[0]:.3f}"] if before else ["-", "-"]
        lines.append(f"| {group} | {len(best or plain or before)} | " + " | ".join(cells) + " |")
    return lines


def problems_table(rows):
    lines = ["| problem | ours, ms | TFLOP/s | best peer | its time / ours | others |", "|---|---|---|---|---|---|"]
    for row in rows:
        if row["wrong"]:
            lines.append(f"| `{row['case']}` | **wrong** | - | - | - | {row['wrong']} |")
            continue
        held = against(row)
        titles = {**peers_csv.TITLES, "baseline": row.get("baseline") or "baseline"}
        others = [f"{title} {float(row[f'ratio_{name}']):.3f}" for name, title in titles.items() if row.get(f"ratio_{name}") and name != (held and held[0])]
        lines.append(f"| `{row['case']}`{' (graph)' if row.get('graph') else ''} | {float(row['ms_ours']):.4g} | {float(row['tflops']):.4g} | "
                     + (f"{peers_csv.TITLES[held[0]]} | {held[1]:.3f}" if held else "- | -") + f" | {', '.join(others)} |")
    return lines


def runs_table(rows):
    """The runs that the rows are of."""
    lines = ["| date | commit | problems | timing | versions | command |", "|---|---|---|---|---|---|"]
    runs = {}
    for row in rows:
        runs.setdefault(tuple(row[key] for key in ("date", "commit", "timing", "versions", "command")), []).append(row)
    for (date, commit, timing, versions, command), of_run in runs.items():
        lines.append(f"| {date} | {commit} | {len(of_run)} | {timing} | {versions} | `{command}` |")
    return lines


def section(path):
    """(text of the GPU's part, {name of picture: bytes})."""
    about, rows = peers_csv.read(path)
    pictures = {f"{path.stem}_{name}.svg": draw(about, rows) for name, draw in PICTURES.items()}
    pictures = {name: text for name, text in pictures.items() if text}
    lines = [f"## {about['device']}", f"Driver {about.get('driver', 'unknown')}; every row is in [{path.name}]({path.name}).", ""]
    for name in pictures:
        lines += [f"![{about['device']}, {name.rpartition('_')[2][:-4]}]({name})", ""]
    lines += ["### Classes", *classes_table(rows), "", "### Problems", *problems_table(rows), "", "### Runs", *runs_table(rows)]
    return "\n".join(lines), pictures


def made():
    """{path: text} of the document and the pictures."""
    document = FOLDER / "nvidia.md"
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    behind = rest.partition(END)[2]
    files, parts = {}, []
    for path in sorted(FOLDER.glob("*.csv")):
        text, pictures = section(path)
        parts.append(text)
        files.update({FOLDER / name: picture for name, picture in pictures.items()})
    files[document] = before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + behind
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="CSV")
    parser.add_argument("--fresh", action="store_true", help="drop the older rows of the GPUs of these runs")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    add(options.runs, {FOLDER / f"{slug(peers_csv.read(path)[0]['device'])}.csv" for path in options.runs} if options.fresh else set())
    files = made()
    other = [path.name for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check and other:
        sys.exit(f"docs/performance: {', '.join(other)} are not what bench/record.py makes of the CSVs")
    for path, text in files.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
    print(f"{len(files)} files, {len(other)} of them {'changed' if not options.check else 'other'}")


if __name__ == "__main__":
    main()
