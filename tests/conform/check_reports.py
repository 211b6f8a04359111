#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `sternway conform` leaves behind and takes back: --report, --junit, --progress, --merge of good, failed, damaged,
duplicate and contradicting reports, and replays of what failed. check_reports.py TOOL SCHEMA [PRELOAD]: the library with
wrong results (wrong_result.c), where one can be preloaded."""

import atexit
import copy
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

TOOL, SCHEMA = map(os.path.abspath, sys.argv[1:3])
PRELOAD = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
LINES = ["attn_bwd:bf16:b2h4k2s65x33d40:causal_br", "attn_bwd:f32:b1h2s17d16:dropout0.2", "jagged_gelu:bf16:c5l20t60i16",
         "jagged_sum:i32:c5l20t60i16:ragged"]
failures = []
folder = tempfile.mkdtemp(prefix="conform_reports_")
atexit.register(shutil.rmtree, folder, ignore_errors=True)


def run(*args, **more):
    """Variables in capitals; the rest goes to subprocess.run. Of variants the processor's own: it may lack others, which are skips."""
    if "--backend" in args and "--variant" not in args:
        args = ("--variant", "auto", *args)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("STERNWAY_", "WRONG_"))}
    environment.update((k, more.pop(k)) for k in list(more) if k.isupper())
    done = subprocess.run([TOOL, "conform", *args], capture_output=True, text=True, env=environment, timeout=280, cwd=folder, **more)
    return done.returncode, done.stdout, done.stderr


def check(what, good, *shown):
    if not good:
        failures.append(what)
        print("FAIL", what, *shown)


def path(name):
    return os.path.join(folder, name)


def content(name):
    """What the file holds; None where there is none."""
    if not os.path.exists(path(name)):
        return None
    with open(path(name)) as file:
        return file.read()


def load(name):
    with open(path(name)) as file:
        return json.load(file)


def save(name, document):
    with open(path(name), "w") as file:
        file.write(document if isinstance(document, str) else json.dumps(document))
    return name


def totals(text):
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", text.splitlines()[-1])
    return tuple(int(x) for x in found.groups()) if found else None


# ---- the report and its documentation -------------------------------------------------------------------------------

status, out, err = run("--backend", "cpu", "-v", "--report", "a.json", "--junit", "a.xml", "--node", "node1", *LINES)
check("a run with files", status == 0 and totals(out), out, err)
a = load("a.json")
check("the report has the totals of the lines", (a["passed"], a["failed"], a["skipped"]) == totals(out), a["passed"], out)
check("... and of its cases", [sum(c["outcome"] == x for c in a["cases"]) for x in ("ok", "FAIL", "skip")] ==
      [a["passed"], a["failed"], a["skipped"]])
check("... node, arch, command", a["node"] == "node1" and a["arch"] == "cpu" and a["command"][-1] == LINES[-1] and a["schema"] == 1)
printed = {tuple(x.split()[2:4]): x for x in out.splitlines() if x.startswith("ok given ") and ":pool" not in x}
for case in a["cases"]:
    if case["problem"].startswith("pool:"):
        continue
    line = printed.get((case["problem"], case["variant"]), "")
    worst = max((v["max_ratio"] for v in case.values() if isinstance(v, dict) and "max_ratio" in v), default=None)
    check("a case of the report is the printed one", f"seed={case['seed']}" in line and worst is not None and
          f"max={worst:.3f}:" in line, case, line)
with open(SCHEMA) as file:
    documented = set(re.findall(r"^\| `([a-z_]+)`", file.read(), re.M))
keys = set(a) | {k for c in a["cases"] for k, v in c.items() if not isinstance(v, dict)} | {k for f in a["features"] for k in f}
check("every field is documented", keys <= documented, keys - documented)
status, out, err = run("--backend", "cpu", "--json", "--report", "b.json", "--node", "node2", *LINES)
check("--json and --report are the same document", status == 0 and json.loads(out) == load("b.json"), err)


def junit(name):
    root = ET.parse(path(name)).getroot()
    cases = root.findall("./testsuite/testcase")
    for suite in [root, *root.findall("testsuite")]:
        inside = suite.findall(".//testcase")
        counts = [len(inside), *(sum(c.find(x) is not None for c in inside) for x in ("failure", "error", "skipped"))]
        check("JUnit counts", [int(suite.get(x)) for x in ("tests", "failures", "errors", "skipped")] == counts, suite.attrib)
    return root, cases


root, cases = junit("a.xml")
check("JUnit: a test case a result", root.tag == "testsuites" and len(cases) == a["passed"] and
      {c.get("classname") for c in cases} == {"node1.cpu.given"}, len(cases))
check("JUnit: names are PROBLEM and variant", {c.get("name").split()[0] for c in cases} >= set(LINES))

status, out, err = run("--backend", "cpu", "--progress", LINES[0])
check("--progress tells where there is no terminal", status == 0 and re.search(r"^conform cpu: (\d+) of \1 results, 0 failed", err, re.M), err)
status, out, err = run("--backend", "cpu", LINES[0])
check("... and nothing without it", status == 0 and err == "", err)

terminal, end = os.openpty()
environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
done = subprocess.run([TOOL, "conform", "--backend", "cpu", LINES[0]], stdout=subprocess.PIPE, stderr=end, timeout=280, env=environment)
os.close(end)
seen = b""
try:
    while True:
        seen += os.read(terminal, 4096) or b"\0"
except OSError:  # the other end is closed
    pass
os.close(terminal)
check("a line on a terminal, taken away at the end", done.returncode == 0 and re.search(rb"\r\x1b\[Kconform cpu: \d+ of \d+ results", seen) and
      seen.endswith(b"\r\x1b[K"), seen)

# ---- files that cannot be written: known before anything runs -------------------------------------------------------

for args, text in ((("--report", "."), "not a regular file"), (("--junit", "nowhere/x.xml"), "nowhere"),
                   (("--report", "x", "--junit", "x"), "the same file"), (("--node", "a b"), "--node"), (("--node", ""), "--node"),
                   (("--devices", "0,x"), "not a number"), (("--devices", "0,0"), "twice"), (("--devices", ""), "not a number"),
                   (("--devices", "1"), "device 1"), (("--merge",), "")):
    before = sorted(os.listdir(folder))
    status, out, err = run("--backend", "cpu", *args, *LINES[:1])
    check(f"refused: {args}", status in (1, 2) and text in out + err and "ok " not in out, status, out, err)
    check(f"... and nothing was left: {args}", sorted(os.listdir(folder)) == before)
save("keep.json", "old")
status, out, err = run("--backend", "cpu", "--report", "keep.json", "attn_bwd:bad")
check("a line that is none leaves an old report alone", status == 2 and open(path("keep.json")).read() == "old", err)

# ---- reports that are cut off while they are written: the old one stays whole until the new one is ------------------

def limited(killed):
    """No file may grow beyond 1 KiB: writing fails, or ends the process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if killed else signal.SIG_IGN)


old = "old " * 1000
for option in ("--report", "--junit"):
    for killed in (False, True):
        save("whole", old)
        before = sorted(os.listdir(folder))
        status, out, err = run("--backend", "cpu", "--jobs", "0", option, "whole", *LINES, preexec_fn=lambda: limited(killed),
                               restore_signals=False)
        left = sorted(set(os.listdir(folder)) - set(before))
        name = f"{option} {'killed' if killed else 'refused'} on the way"
        check(name, status == (-signal.SIGXFSZ if killed else 1) and (killed or "whole: cannot be written: File too large" in err), status, err)
        check(f"{name}: the old one is whole", content("whole") == old)
        check(f"{name}: nothing beside it", killed or left == [], left)
        for part in left:
            os.remove(path(part))
    with open(path("whole")) as reader:
        status, out, err = run("--backend", "cpu", option, "whole", LINES[0])
        check(f"{option}: who reads the old one goes on to", status == 0 and reader.read() == old and content("whole") != old, status, err)
os.remove(path("whole"))

status, out, err = run("--merge")
check("--merge without files", status == 2 and "files" in err, err)
status, out, err = run("--backend", "cpu", "--devices", "all", LINES[0])
check("--devices all on the CPU is the one", status == 0 and totals(out)[0] >= 1, out, err)
status, out, err = run("--arch", "gfx942", "--report", "none.json", LINES[0])
check("a run without its arch leaves a report that says so", status == 1 and load("none.json")["exit_status"] == 1 and
      load("none.json")["skipped"] == 1 and load("none.json")["errors"], out, err)

# ---- merges ---------------------------------------------------------------------------------------------------------

both = a["passed"] + load("b.json")["passed"]
status, out, err = run("--merge", "a.json", "b.json")
check("two nodes", status == 0 and totals(out) == (both, 0, 0) and re.search(r"^node1 cpu +\d+ +0 +0", out, re.M) and
      re.search(r"^node2 cpu ", out, re.M) and "feature on cpu" in out and f"{len(LINES)} distinct problems ran on cpu" in out, out, err)
status, out, err = run("--merge", "a.json", "b.json", "--json", "--junit", "m.xml", "--report", "m.json")
m = json.loads(out)
root, cases = junit("m.xml")
check("a merge as document and JUnit", status == 0 and m == load("m.json") and m["passed"] == both and len(m["nodes"]) == 2 and
      len(cases) == both and {c.get("classname") for c in cases} == {"node1.cpu.given", "node2.cpu.given"}, err)
status, out, err = run("--merge", "a.json", "a.json", "b.json")
check("the same report twice counts once, by name", status == 0 and totals(out) == (both, 0, 0) and
      "a.json: the same report as a.json: counted once" in out, out, err)
again = copy.deepcopy(a)
again["id"] = "another-run"
save("again.json", again)
status, out, err = run("--merge", "a.json", "again.json")
check("the same results in another run count once, by name", status == 0 and totals(out) == (a["passed"], 0, 0) and
      f"{a['passed']} results of node node1 on cpu are in a.json as well" in out, out, err)
status, out, err = run("--merge", "a.json", "--require", "cpu")
check("an arch that must have run has", status == 0, err)
status, out, err = run("--merge", "a.json", "--require", "sm90")
check("... and one that has not fails the merge", status == 1 and "--require sm90" in err, out, err)
for more in (("--filter", "x"), ("--long",), ("--list",), ("--backend", "cpu"), ("--devices", "0"), ("--variant", "auto")):
    status, out, err = run("--merge", "a.json", *more)
    check(f"--merge and {more}", status == 2 and "--merge reads reports" in err and not out, out, err)
status, out, err = run("--merge", "a.json", "none.json", "--junit", "none.xml")
root, cases = junit("none.xml")
check("... a skip and an error in JUnit", len(cases) == a["passed"] + 2 and len(root.findall(".//skipped")) == 1 and
      len(root.findall(".//error")) == len(load("none.json")["errors"]) == 1, len(cases))
check("a node on which nothing ran fails the merge", status == 1 and "none.json" in err and "nothing ran" in err, out, err)


def changed(change, base=a):
    document = copy.deepcopy(base)
    change(document)
    return document


def to_failed(d):
    d["cases"][0]["outcome"] = "FAIL"
    d["cases"][0]["text"] = "dq: <wrong> & \"bad\""
    d["passed"] -= 1
    d["failed"] += 1
    d["exit_status"] = 1


save("failed.json", changed(lambda d: (to_failed(d), d.update(id="f", node="node3"))))
status, out, err = run("--merge", "a.json", "failed.json", "--junit", "f.xml")
root, cases = junit("f.xml")
check("a failed case fails the merge and is named", status == 1 and totals(out) == (2 * a["passed"] - 1, 1, 0) and
      f"FAIL node3 cpu given {a['cases'][0]['problem']}" in out, out, err)
check("... in JUnit with its text", [f.get("message") for f in root.iter("failure")] == ["dq: <wrong> & \"bad\""])

for name, document, text in (
        ("ok here, failed there", changed(lambda d: (to_failed(d), d.update(id="f"))), "is FAIL here and ok there"),
        ("the same run with another content", changed(lambda d: d.update(seconds=123456)), "another content"),
        ("another version", changed(lambda d: d.update(id="v", node="n", version="9.9.9")), "another build"),
        ("other images", changed(lambda d: d.update(id="v", node="n", images=["0123456789abcdef"])), "another build")):
    save("c.json", document)
    status, out, err = run("--merge", "a.json", "c.json")
    check(f"contradiction: {name}", status == 1 and text in err and "c.json" in err and "a.json" in err, out, err)
    status, out, err = run("--merge", "c.json", "a.json")
    check(f"contradiction: {name}, the other way round", status == 1 and "contradicts" in err, out, err)

def with_escapes(d):
    d.update(id="e\x1b[31m", node="n\x1b]0;x\x07")
    d["errors"].append("all \x1b[2J gone \u009b31m \x7f")
    to_failed(d)
    d["cases"][0].update(text="\x1b[8mhidden", row="r\x1b[1A", variant="v\r")
    d["cases"][1]["d\x1bq"] = d["cases"][1].pop("dq", {"max_ratio": 0.5})


save("escapes.json", changed(with_escapes))
for name in ("escapes.json", "no\x1b[31m.json"):
    status, out, err = run("--merge", "a.json", name, "--junit", "e.xml", "--report", "e.json")
    raw = [c for c in out + err + content("e.xml") + content("e.json") if (ord(c) < 0x20 and c != "\n" and c != "\t") or 0x7f <= ord(c) < 0xa0]
    check(f"what a terminal would act on is not printed: {name!r}", status == 1 and raw == [], raw, out, err)
    check(f"... and what it stands in is: {name!r}", ("all ?[2J gone ??31m ?" in err and "?[8mhidden" in out) or "no?[31m.json" in err, out, err)

text = json.dumps(a)
damaged = {
    "empty": "", "cut off": text[:len(text) // 2], "more behind it": text + "{}", "a zero byte": text + "\0x", "no JSON": "hello",
    "a list": "[]", "a number": "7", "another document": "{\"report\": \"something\"}",
    "no cases": changed(lambda d: d.pop("cases")), "cases no list": changed(lambda d: d.update(cases={})),
    "a case no object": changed(lambda d: d["cases"].append(3)), "an unknown outcome": changed(lambda d: d["cases"][0].update(outcome="good")),
    "a case lost": changed(lambda d: d["cases"].pop()), "a total changed": changed(lambda d: d.update(passed=d["passed"] + 1)),
    "a failure hidden": changed(lambda d: (to_failed(d), d.update(failed=0, passed=d["passed"] + 1))),
    "status 0 with a failure": changed(lambda d: (to_failed(d), d.update(exit_status=0))),
    "a case twice": changed(lambda d: (d["cases"].append(d["cases"][0]), d.update(passed=d["passed"] + 1))),
    "another schema": changed(lambda d: d.update(schema=2)), "no schema": changed(lambda d: d.pop("schema")),
    "no node": changed(lambda d: d.update(node="")), "a node that is a number": changed(lambda d: d.update(node=7)),
    "no id": changed(lambda d: d.pop("id")), "errors no list": changed(lambda d: d.update(errors="x")),
    "a negative total": changed(lambda d: d.update(skipped=-1)), "half a total": changed(lambda d: d.update(skipped=0.5)),
    "a total that is text": changed(lambda d: d.update(passed=str(d["passed"]))),
    "a ratio that is text": changed(lambda d: d["cases"][0]["dq"].update(max_ratio="0.1")),
    "a negative ratio": changed(lambda d: d["cases"][0]["dq"].update(max_ratio=-1)),
    "no problem": changed(lambda d: d["cases"][0].pop("problem")), "no seed": changed(lambda d: d["cases"][0].pop("seed")),
    "a long problem": changed(lambda d: d["cases"][0].update(problem="a" * 5000)), "a merge": load("m.json")}
for name, document in damaged.items():
    save("d.json", document)
    status, out, err = run("--merge", "a.json", "d.json")
    check(f"damaged: {name}", status == 1 and re.search(r"d\.json: damaged: ", err) and totals(out) == (a["passed"], 0, 0), out, err)
status, out, err = run("--merge", "a.json", "not-there.json", ".")
check("files that cannot be read", status == 1 and err.count("cannot be read") == 2, err)
status, out, err = run("--merge", "d.json")
check("nothing to merge", status == 1 and "nothing ran" in err, err)

# ---- what fails can be found again ----------------------------------------------------------------------------------

if PRELOAD:
    wrong = {"LD_PRELOAD": PRELOAD, "WRONG_DQ": "cpu_portable_32x32", "WRONG_DX_BYTE": "40"}
    status, out, err = run("--backend", "cpu", "--variant", "cpu_portable_32x32", "--report", "w.json", "--junit", "w.xml", *LINES, **wrong)
    w = load("w.json")
    failed = [x for x in out.splitlines() if x.startswith("FAIL given") and "pool:" not in x]
    check("wrong results fail", status == 1 and len(failed) == len(LINES) and w["failed"] == totals(out)[1] >= len(LINES), out, err)
    root, cases = junit("w.xml")
    replays = [f.text for f in root.iter("failure") if f.text]
    check("JUnit: every failure has its replay", len(replays) == len(LINES), replays)
    for line, replay in zip(failed, replays):
        words = shlex.split(replay.replace("replay: sternway conform ", ""))
        status, again, err = run(*words, **wrong)
        expected = re.sub(r" given (\S+)", lambda f: f" given {f.group(1)}:seed{re.search(r' seed=([0-9]+)', line).group(1)}", line)
        check("a replay with its seed fails in the same way", status == 1 and expected in again.splitlines(), expected, again)
    # ---- a worker that dies fails its case, and the others go on
    for jobs in ("1", "2"):
        for variable, text in (("WRONG_CRASH", "the process died of signal 11"), ("WRONG_EXIT", "the process ended with status 0")):
            status, out, err = run("--backend", "cpu", "--jobs", jobs, "--report", "x.json", *LINES, LD_PRELOAD=PRELOAD, **{variable: "d16"})
            x = load("x.json")
            bad = [c for c in x["cases"] if c["outcome"] == "FAIL"]
            check(f"{variable}, {jobs} jobs: its case fails by name", status == 1 and [c["problem"] for c in bad] == [LINES[1]] and
                  bad[0]["text"] == text and f"FAIL given {LINES[1]}" in out, out, err)
            check(f"{variable}, {jobs} jobs: the others go on", {c["problem"] for c in x["cases"] if c["outcome"] == "ok"} >=
                  {LINES[0], *LINES[2:]} and totals(out)[1] == 1, out, err)
        status, out, err = run("--backend", "cpu", "--jobs", jobs, *LINES, LD_PRELOAD=PRELOAD, WRONG_DESTROY="1")
        check(f"WRONG_DESTROY, {jobs} jobs: the run fails, no case does", status == 1 and totals(out)[1] == 0 and
              "outside its cases, the process died of signal 11" in err and "the run is not complete" in err, out, err)
    # ---- a merge that lacks memory is never a good one
    one = [c for c in a["cases"] if c["problem"] == LINES[0]][:1]
    save("good.json", changed(lambda d: d.update(id="g", cases=one, passed=1, features=[], command=[])))
    save("bad.json", changed(lambda d: (d.update(id="b", node="n", cases=copy.deepcopy(one), passed=1, features=[], command=[]), to_failed(d))))
    passed = []
    for more, numbers in (({"WRONG_EVER": "1"}, range(3, 260, 5)), ({}, range(3, 500, 11))):
        for number in numbers:
            status, out, err = run("--merge", "good.json", "bad.json", LD_PRELOAD=PRELOAD, WRONG_MALLOC=str(number), **more)
            passed += [(number, more, status, err)] if status not in (1, 2) else []
    check("a merge without memory", passed == [], passed)
    status, out, err = run("--merge", "a.json", "w.json")
    check("... and its report fails a merge", status == 1 and totals(out)[1] == w["failed"], out, err)
    # --large samples components: a wrong byte in the last one is seen, one in a component between is not looked at
    large = ["--backend", "cpu", "--variant", "auto", "--large", "jagged_gelu:bf16:c100l20t2000i16:lens_full"]
    for byte, expected in ((0, 1), (100 * 640 - 1, 1), (99 * 640 + 7, 1), (10 * 640, 0), (50 * 640 + 1, 1)):
        status, out, err = run(*large, LD_PRELOAD=PRELOAD, WRONG_DX_BYTE=str(byte))
        check(f"a wrong byte {byte} of a sampled component", status == expected, out, err)
    status, out, err = run(*large, LD_PRELOAD=PRELOAD, WRONG_DX_BYTE=str(100 * 640 + 5))
    check("a byte behind the tensor", status == 1 and "behind dx" in out, out, err)

print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
