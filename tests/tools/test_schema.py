# SPDX-License-Identifier: MIT
"""What `--json` prints against docs/schema, by the checker below and by jsonschema where Python has it; `info` on every
recorded machine of tests/loader, and its text in 80 columns there; `explain` on a terminal."""
import copy
import json
import os
import pathlib
import pty
import re
import unittest

from command import CommandTest, SOURCE, TOOL, sternway

try:
    import jsonschema
except ImportError:
    jsonschema = None

FAKES, KFD, MACHINES = (pathlib.Path(os.environ.get(f"STERNWAY_{name}", "")) for name in ("FAKES", "KFD", "MACHINES"))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
LINE = "attn_bwd:f32:b1h2s48d16:causal_br"


def is_type(value, name):
    if name in ("number", "integer"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and (name == "number" or value == int(value))
    return isinstance(value, TYPES[name])


def faults(schema, value, at="$"):
    """What is wrong with the value, by the keywords that these schemas use; any other keyword is a fault itself."""
    known = {"$schema", "title", "description", "type", "properties", "required", "additionalProperties", "items", "enum",
             "pattern", "minimum"}
    found = [f"{at}: the schema says {word}, which nobody checks" for word in schema.keys() - known]
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(is_type(value, name) for name in names):
        return found + [f"{at}: {value!r} is no {' or '.join(names)}"]
    if value not in schema.get("enum", [value]):
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{at}: {value!r} does not match {schema['pattern']}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{at}: {value!r} is below {schema['minimum']}")
    if isinstance(value, dict):
        found += [f"{at}: {key} is missing" for key in schema["required"] if key not in value]
        found += [f"{at}: {key} is not in the schema" for key in value if key not in schema["properties"]]
        for key in value.keys() & schema["properties"].keys():
            found += faults(schema["properties"][key], value[key], f"{at}.{key}")
    if isinstance(value, list):
        for n, item in enumerate(value):
            found += faults(schema["items"], item, f"{at}[{n}]")
    return found


def resolved(schema):
    """The schema with those that it refers to in their places, whose descriptions give way to its own."""
    if isinstance(schema, list):
        return [resolved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {key: resolved(value) for key, value in schema.items() if key != "$ref"}
    if "$ref" in schema:
        inner = schema_of(schema["$ref"].removesuffix(".json"))
        whole = {key: value for key, value in inner.items() if not key.startswith("$")} | whole
    return whole


def schema_of(name):
    return resolved(json.loads((SOURCE / f"docs/schema/{name}.json").read_text()))


class SchemaTest(CommandTest):
    def assert_valid(self, name, text):
        schema, document = schema_of(name), json.loads(text)
        self.assertEqual(faults(schema, document), [])
        if jsonschema:
            jsonschema.validate(document, schema)
        return document

    def run_json(self, name, *arguments, code=0, schema=None, env=None):
        done = sternway(name, "--json", *arguments, env=env)
        self.assert_exit(done, code)
        return self.assert_valid(schema or name, done.stdout)


class Schema(SchemaTest):
    def test_every_object_is_closed_and_every_key_described(self):
        def walk(schema, at):
            if schema["type"] == "object":
                self.assertIs(schema["additionalProperties"], False, at)
                self.assertLessEqual(set(schema["required"]), set(schema["properties"]), at)
                for key, inner in schema["properties"].items():
                    self.assertTrue(inner.get("description"), f"{at}.{key}")
                    walk(inner, f"{at}.{key}")
            if schema["type"] == "array":
                walk(schema["items"], f"{at}[]")
        for path in (SOURCE / "docs/schema").glob("*.json"):
            if path.stem in ("info", "explain", "bench", "tune", "doctor", "error"):
                if jsonschema:
                    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
                walk(schema_of(path.stem), path.stem)

    def test_the_checker_finds_what_is_wrong(self):
        document = self.run_json("info")
        schema = schema_of("info")

        def with_change(change):
            changed = copy.deepcopy(document)
            change(changed)
            return faults(schema, changed)
        for change in (lambda d: d.pop("devices"), lambda d: d.update(more=1), lambda d: d.update(version=1),
                       lambda d: d["devices"][-1].pop("table"), lambda d: d["devices"][-1].update(memory_bytes=-1),
                       lambda d: d["devices"][-1].update(usable=1), lambda d: d["devices"][-1].update(device=0.5),
                       lambda d: d["archs"][0].update(backend="tpu"), lambda d: d["environment"].append({}),
                       lambda d: d["images"].append({"arch": "sm80", "kind": "ptx", "ops": "jagged", "bytes": 1, "hash": "x"})):
            self.assertTrue(with_change(change))

    def test_info(self):
        self.run_json("info")
        self.run_json("info", "--verify")
        self.assertIn("environment_error", self.run_json("info", code=1, env={"STERNWAY_LOG": "loud"}))

    def test_explain(self):
        self.run_json("explain", LINE)
        self.run_json("explain", "jagged_softmax:bf16:c8l400t1000i64:inner:used:i64")
        nested = self.run_json("explain", "jagged_attention:i32:attn_bwd:bf16:b4h2s50x40d64:thd")
        self.assertTrue(nested["packed_plan"]["tile"] and "tile" not in nested["plan"])
        self.assertIsNone(self.run_json("explain", "--backend", "cpu", "attn_bwd:f32:b1h4k3s8d8", code=2)["chosen"])

    def test_bench(self):
        options = ("--backend", "cpu", "--seconds", "0.005")
        lines = (LINE, "jagged_gelu:f32:c4l50t200i6", "attn_bwd:f32:b0h1s8d64")
        document = self.run_json("bench", *options, "--peak", "1", *lines)
        self.assertFalse(document["problems"][2]["verified"])
        old = self.path("old.json")
        for row in document["problems"]:
            row["low_ms"], row["high_ms"] = row["low_ms"] * 1e-6, row["high_ms"] * 1e6
        old.write_text(json.dumps(document))
        self.assertIn("verdict", self.run_json("bench", *options, "--compare", old, *lines)["compare"])
        self.assertNotIn("verdict", self.run_json("bench", *options, "--compare", old, "attn_bwd:f32:b1h1s8d8")["compare"])

        self.assertIn("over_ranks", self.run_json("bench", *options, "--cp", LINE)["problems"][0])

    def test_tune(self):
        self.run_json("tune", "--arch", "cpu", "--seconds", "0.005", LINE, "attn_bwd:f32:b0h1s8d8", code=1)
        self.assertNotIn("rules", self.run_json("tune", "--arch", "cpu", "nonsense", code=2))

    def test_errors(self):
        for name, *arguments in (("explain", "nonsense"), ("bench", "--backend", "tpu", LINE), ("tune", "--arch", "x" * 40, LINE)):
            self.run_json(name, *arguments, code=2, schema="error")


@unittest.skipUnless(FAKES.is_dir() and str(FAKES) != ".", "this build has no fake drivers")
class Machines(SchemaTest):
    """tests/loader's recorded machines: NVML's list by the fake, the kernel driver's by a preloaded opendir and open."""

    def environment(self, machine, drivers=()):
        env = {"LD_LIBRARY_PATH": ":".join(str(FAKES / name) for name in ("nvml", *drivers))}
        if (machine / "nvml.txt").exists():
            env["FAKE_NVML"] = str(machine / "nvml.txt")
        if KFD.is_file():
            env.update(LD_PRELOAD=str(KFD), CDNA_EMU_KFD=str(machine / "sys/class/kfd"))
        return env

    def test_every_machine_is_readable_in_80_columns(self):
        seen = set()
        for machine in sorted(MACHINES.iterdir()):
            for drivers in ((), ("cuda-12.0", "hip6"), ("cuda-13.0", "hip5")):
                with self.subTest(machine=machine.name, drivers=drivers):
                    env = self.environment(machine, drivers)
                    done = sternway("info", env=env)
                    self.assert_exit(done, 0)
                    own = str(FAKES)  # the build's own path, as long as it likes
                    long = [line for line in done.stdout.splitlines() if len(line) > 80 and own not in line]
                    self.assertEqual(long, [])
                    document = self.assert_valid("info", sternway("info", "--json", env=env).stdout)
                    seen |= {(device["backend"], device["table"]) for device in document["devices"]}
        for backend, arch in (("cuda", "sm90"), ("cuda", "sm80"), ("cuda", ""), ("cpu", "cpu")):
            self.assertIn((backend, self.table(arch)), seen)
        if KFD.is_file():
            self.assertLessEqual({("hip", self.table(arch)) for arch in ("gfx90a", "gfx942", "")}, seen)

    def table(self, arch):
        """The tuning table of a device that takes the arch's images, which a build without compilers for them lacks."""
        images = {image["arch"] for image in json.loads(sternway("info", "--json").stdout)["images"]}
        return arch if arch in images | {"cpu"} else ""

    def test_tables(self):
        def tables(name):
            report = self.assert_valid("info", sternway("info", "--json", env=self.environment(MACHINES / name)).stdout)
            return {(row["arch"], row["table"]) for row in report["devices"]}
        self.assertIn(("sm90", self.table("sm90")), tables("h100"))
        self.assertIn(("sm89", self.table("sm80")), tables("l40s-x2"))
        self.assertIn(("sm120", self.table("sm80")), tables("sm120"))

    def drivers(self, *names):
        env = self.environment(MACHINES / "no-gpu", names)
        env.pop("LD_PRELOAD", None)
        document = self.assert_valid("info", sternway("info", "--json", env=env).stdout)
        return document, {row["backend"]: row for row in document["drivers"]}

    def test_drivers(self):
        document, rows = self.drivers("cuda-13.0", "hip6")
        self.assertTrue(rows["cuda"]["usable"] and rows["hip"]["usable"])
        self.assertEqual(rows["cuda"]["path"], str((FAKES / "cuda-13.0/libcuda.so.1").resolve()))
        self.assertEqual((rows["hip"]["library"], rows["hip"]["note"]), ("libamdhip64.so.6", ""))
        major = int(document["cuda"]["release"].split(".")[0]) if "cuda" in document else 0  # of the images
        _, none = self.drivers()
        if not none["cuda"]["library"]:
            self.assertIn("libcuda.so.1: ", none["cuda"]["note"])
        env = {**self.environment(MACHINES / "no-gpu", ("cuda",)), "FAKE_FAIL": "cuDriverGetVersion:1"}
        text = sternway("info", env=env).stdout
        self.assertIn("not usable: cuDriverGetVersion does not answer", text)
        if major > 12:
            env = {**self.environment(MACHINES / "no-gpu", ("cuda",)), "FAKE_CUDA_VERSION": "12040"}
            self.assertIn("not usable: CUDA 12.4 is older than this build's images", sternway("info", env=env).stdout)


class Terminal(CommandTest):
    def test_explain_folds_on_a_terminal_only(self):
        parent, child = pty.openpty()
        done = sternway("explain", LINE)
        self.assertTrue(any(len(line) > 80 for line in done.stdout.splitlines()) or "not chosen" not in done.stdout)
        env = {key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")}
        pid = os.posix_spawn(TOOL, [TOOL, "explain", LINE], env,
                             file_actions=[(os.POSIX_SPAWN_DUP2, child, 1), (os.POSIX_SPAWN_CLOSE, parent)])
        os.close(child)
        text = b""
        try:
            while chunk := os.read(parent, 4096):
                text += chunk
        except OSError:  # the other side is closed
            pass
        os.waitpid(pid, 0)
        os.close(parent)
        folded = text.decode().replace("\r\n", "\n")
        self.assertEqual([line for line in folded.splitlines() if len(line) > 80], [])
        self.assertEqual(folded.replace("\n", " ").split(), done.stdout.replace("\n", " ").split())


if __name__ == "__main__":
    unittest.main()
