#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/cp_model.py: its arithmetic against figures worked out by hand, and the rows of dispatch/cp_rules.def, which come from it."""
import contextlib
import importlib.util
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop() if len(sys.argv) > 1 else ".").resolve()
spec = importlib.util.spec_from_file_location("cp_model", ROOT / "bench/cp_model.py")
model = importlib.util.module_from_spec(spec)
sys.modules["cp_model"] = model
spec.loader.exec_module(model)


def seconds(name, problem, machine):
    return model.SCHEDULES[name](problem, machine)[0]


class Arithmetic(unittest.TestCase):
    def test_flops(self):  # 5 products of 1000 x 1000 x 64, half of them hidden, 2 flops a product, 3 heads
        self.assertEqual(model.Problem(1000, 1, heads=3, kv_heads=3, head_dim=64).flops(), 5 * 1000 * 1000 * 64 * 2 * 3 / 2)

    def test_one_rank_sends_nothing(self):
        problem, machine = model.Problem(8192, 1), model.Machine()
        self.assertEqual(model.ring(problem, machine), (model.compute(problem, machine), 0))
        self.assertEqual(model.all_gather(problem, machine)[1], 0)

    def test_ring_of_two(self):  # 4096 rows, 2 heads of 64: K and V in the first tick, the sums home in the last
        problem = model.Problem(8192, 2, heads=2, kv_heads=2, head_dim=64)
        slow = model.Machine(tflops=1e9, link=1.0, latency=0, memory=1e12)  # compute is nothing
        inputs, sums = 4096 * 2 * 64 * 4, 4096 * 2 * 64 * 8
        took, sent = model.ring(problem, slow)
        self.assertEqual(sent, inputs + sums)
        self.assertAlmostEqual(took, (inputs + sums) / 1e9, places=9)

    def test_last_sums_under_the_own_block(self):  # of a step of 1 s: 3/4 under 2.1 s of K and V, 1/4 under 4.2 s of sums
        problem = model.Problem(8192, 2, heads=2, kv_heads=2, head_dim=64)
        slow = model.Machine(tflops=problem.flops() / 2 / 1e12 / 2, link=4096 * 2 * 64 * 4 / 2.1 / 1e9, latency=0,
                             memory=1e12)
        self.assertAlmostEqual(model.ring(problem, slow)[0], 2.1 + 1 + 4.2, places=9)

    def test_moves_hide_under_compute(self):
        problem, machine = model.Problem(1 << 20, 8), model.Machine()
        self.assertLess(seconds("ring", problem, machine), 1.01 * model.compute(problem, machine))

    def test_links_of_a_node(self):  # a switch gives all its rate to one peer; separate links one each
        switch, links = model.MACHINES["nvlink"], model.MACHINES["xgmi"]
        self.assertEqual([model.bandwidth(switch, ranks, to_all) for ranks, to_all in ((2, False), (8, True), (16, True))],
                         [450, 450, 50])
        self.assertEqual([model.bandwidth(links, ranks, to_all) for ranks, to_all in ((8, False), (2, True), (4, True), (8, True))],
                         [64, 64, 192, 448])
        problem = model.Problem(8192, 2, heads=2, kv_heads=2, head_dim=64)
        slow = model.replace(links, tflops=1e9, latency=0, memory=1e12)
        self.assertAlmostEqual(seconds("ring", problem, slow), 4096 * 2 * 64 * (4 + 8) / 64e9, places=9)

    def test_sizes_of_the_issue(self):
        """On both machines a schedule is picked that no other beats, and more GPUs of large problems take less time."""
        for name, machine in model.MACHINES.items():
            for rows in (1 << 17, 1 << 20, 1 << 22, 1 << 24):
                times = []
                for ranks in (8, 64, 512, 4096):
                    problem = model.Problem(rows, ranks, head_dim=128)
                    chosen, took, _ = model.choose(problem, machine)
                    others = [done[0] for make in model.SCHEDULES.values() if (done := make(problem, machine))]
                    self.assertLessEqual(took, min(others) + 1e-9, f"{name} {ranks} {rows} {chosen}")
                    self.assertLessEqual(model.efficiency(problem, machine, took), 1)
                    times.append(took)
                if rows >= 1 << 22:
                    self.assertEqual(times, sorted(times, reverse=True), f"{name} {rows}")

    def test_groups_of_heads(self):  # 16 heads of 65536 keys a rank; of 4 heads of 32768 the whole is one group
        self.assertEqual(model.groups_of(model.Problem(65536, 2, heads=32, kv_heads=32)), 8)
        self.assertEqual(model.groups_of(model.Problem(32768, 2, heads=32, kv_heads=8)), 1)
        self.assertEqual(model.groups_of(model.Problem(65536, 2, heads=12, kv_heads=12)), 3)

    def test_ulysses_of_two(self):
        """One head a rank, 4096 rows each: half of Q, dO, K, V, dQ, dK and dV in 16 bits moves, and LSE and delta in f32."""
        problem = model.Problem(8192, 2, heads=2, kv_heads=2, head_dim=64)
        slow = model.Machine(tflops=1e9, link=1.0, link_all=1.0, latency=0, memory=1e12)
        took, sent = model.ulysses(problem, slow)
        self.assertEqual(sent, 4096 * (7 * 64 * 2 + 2 * 4))
        self.assertAlmostEqual(took, sent / 1e9, places=9)
        copied, _ = model.ulysses(problem, model.replace(slow, link=1e9, link_all=1e9, memory=1.0))
        self.assertAlmostEqual(copied, sent * (4 + 2) / 1e9, places=6)

    def test_heads_that_do_not_divide(self):
        self.assertIsNone(model.ulysses(model.Problem(8192, 3, kv_heads=8), model.Machine()))
        self.assertIsNone(model.two_d(model.Problem(8192, 64, kv_heads=4), model.Machine()))


class Rules(unittest.TestCase):
    """What cp_rules.def chooses is near the model's best: within a twentieth where a GPU has thousands of rows, three tenths else."""

    def setUp(self):
        text = (ROOT / "dispatch/cp_rules.def").read_text()
        rows = re.findall(r'^STW_CP_RULE\((\w+), (\w+), (\w+), (\d+), (\w+), (\d+), "', text, re.M)
        number = lambda word: int(word) if word.isdigit() else 1 << 62
        self.rules = [(name, number(low), number(high), int(nodes), number(rows), int(groups))
                      for name, low, high, nodes, rows, groups in rows]
        self.assertEqual(len(self.rules), text.count("\nSTW_CP_RULE("))

    def chosen(self, problem, machine):
        nodes = -(-problem.ranks // machine.per_node)
        for name, low, high, least, rows, groups in self.rules:
            made = model.SCHEDULES[{"RING": "ring", "2D": "2-D", "ULYSSES": "ulysses", "ALL_GATHER": "all-gather"}[name]]
            if not low <= problem.ranks <= high or nodes < least or problem.rows / problem.ranks > rows:
                continue
            if not made(problem, machine) or groups and (nodes > 1 or model.groups_of(problem) < groups):
                continue
            return name, made(problem, machine)[0]
        raise AssertionError("no rule")

    def test_large_problems(self):
        for machine in model.MACHINES.values():
            self.large_problems(machine)

    def large_problems(self, machine):
        for ranks in (8, 64, 512, 4096):
            for rows in (1 << 17, 1 << 20, 1 << 22, 1 << 24):
                problem = model.Problem(rows, ranks)
                name, took = self.chosen(problem, machine)
                self.assertLessEqual(took, 1.05 * model.choose(problem, machine)[1], f"{ranks} ranks, {rows} rows: {name}")

    def test_short_shards_in_a_node(self):
        machine = model.Machine()
        for ranks in (2, 4, 8):
            for rows in (128, 256, 512, 4096):
                for kv_heads in (8, 32):
                    problem = model.Problem(rows * ranks, ranks, kv_heads=kv_heads)
                    name, took = self.chosen(problem, machine)
                    best = model.choose(problem, machine)[1]
                    self.assertLessEqual(took, 1.3 * best, f"{ranks} ranks, {rows} rows each, {kv_heads} key heads: {name}")


class Measured(unittest.TestCase):
    """Rows of `sternway bench --cp --json` beside the model: 15% are allowed."""

    def row(self, median_ms, line="attn_bwd:bf16:b1h2s8192d64:causal_br", **over):
        """Two ranks; one device takes 100 ms, the messages of 4096 rows, K and V, and their f32 sums home, 2 ms."""
        bytes_sent = 4096 * 2 * 64 * (4 + 8)
        known = {"ranks": 2, "schedule": "ring", "single_ms": 100, "communication_ms": 2, "sent_bytes": bytes_sent, **over}
        return {"problem": line, "median_ms": median_ms, "over_ranks": known}

    def compare(self, *rows):
        printed = io.StringIO()
        with tempfile.TemporaryDirectory(prefix="sternway-cp-") as folder, contextlib.redirect_stdout(printed):
            path = pathlib.Path(folder) / "rows.json"
            path.write_text(json.dumps({"problems": list(rows)}))
            return model.compare(path), printed.getvalue()

    def test_by_hand(self):
        """Two steps of 25 ms hide all moves; of 40 ms, a third K and V, the first 18.75 and the last 6.25 ms hide theirs."""
        ((line, schedule, measured, modelled),) = model.measured_rows({"problems": [self.row(52)]})
        self.assertEqual((line, schedule), ("attn_bwd:bf16:b1h2s8192d64:causal_br", "ring"))
        self.assertAlmostEqual(measured, 0.052, places=12)
        inputs, sums = 4096 * 2 * 64 * 4, 4096 * 2 * 64 * 8
        memory = (2 * inputs + 3.5 * sums + sums) / 3e12  # at 3 TB/s: of the own block and the end, of the other rank's block
        self.assertAlmostEqual(modelled, 50e-3 + memory, places=12)
        ((*_, modelled),) = model.measured_rows({"problems": [self.row(52, communication_ms=40)]})
        latency = model.Machine.latency
        self.assertAlmostEqual(modelled, 18.75e-3 + 25e-3 + (40e-3 * 2 / 3 + latency) + memory, places=12)

    def test_within_and_beyond(self):
        for median, good in ((52, True), (45, True), (43, False), (58, True), (59, False)):
            met, text = self.compare(self.row(median))
            self.assertEqual((met, text.startswith("ok  ")), (good, good), text)
        self.assertFalse(self.compare(self.row(52), self.row(80))[0])

    def test_other_rows(self):
        forward, one_device = self.row(52, line="attn_fwd:bf16:b1h2s8192d64"), {"problem": "attn_bwd:bf16:b1h1s8d8", "median_ms": 1}
        self.assertFalse(self.compare(forward, one_device)[0])
        self.assertTrue(self.compare(forward, one_device, self.row(52))[0])
        grouped = self.row(52, line="attn_bwd:bf16:b2h8k2s4096d128", communication_ms=200)
        ((*_, modelled),) = model.measured_rows({"problems": [grouped]})
        self.assertGreater(modelled, 0.05)

    def test_what_was_measured(self):
        for path in sorted((ROOT / "docs/performance").glob("cp_*.json")):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertTrue(model.compare(path), f"{path}:\n{printed.getvalue()}")


if __name__ == "__main__":
    unittest.main()
