#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/cp_model.py: its arithmetic against figures worked out by hand, and the rows of dispatch/cp_rules.def, which come from it."""
import importlib.util
import pathlib
import re
import sys
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

    def test_ring_of_two(self):  # 4096 rows, 2 heads of 64: K and V 2 MiB, their sums 4 MiB; both, and the sums home
        problem = model.Problem(8192, 2, heads=2, kv_heads=2, head_dim=64)
        slow = model.Machine(tflops=1e9, link=1.0, latency=0)  # compute is nothing
        moved = 4096 * 2 * 64 * (4 + 8)
        home = 4096 * 2 * 64 * 8
        took, sent = model.ring(problem, slow)
        self.assertEqual(sent, moved + home)
        self.assertAlmostEqual(took, (moved + home / 2) / 1e9, places=9)

    def test_moves_hide_under_compute(self):
        problem, machine = model.Problem(1 << 20, 8), model.Machine()
        self.assertLess(seconds("ring", problem, machine), 1.01 * model.compute(problem, machine))

    def test_heads_that_do_not_divide(self):
        self.assertIsNone(model.ulysses(model.Problem(8192, 3, kv_heads=8), model.Machine()))
        self.assertIsNone(model.two_d(model.Problem(8192, 64, kv_heads=4), model.Machine()))


class Rules(unittest.TestCase):
    """What cp_rules.def chooses is near the model's best: within a twentieth where a GPU has thousands of rows, a quarter else."""

    def setUp(self):
        text = (ROOT / "dispatch/cp_rules.def").read_text()
        rows = re.findall(r'^STW_CP_RULE\((\w+), (\w+), (\w+), (\d+), (\w+), "', text, re.M)
        number = lambda word: int(word) if word.isdigit() else 1 << 62
        self.rules = [(name, number(low), number(high), int(nodes), number(rows)) for name, low, high, nodes, rows in rows]
        self.assertEqual(len(self.rules), text.count("\nSTW_CP_RULE("))

    def chosen(self, problem, machine):
        nodes = -(-problem.ranks // machine.per_node)
        for name, low, high, least, rows in self.rules:
            made = model.SCHEDULES[{"RING": "ring", "2D": "2-D", "ULYSSES": "ulysses", "ALL_GATHER": "all-gather"}[name]]
            if low <= problem.ranks <= high and nodes >= least and problem.rows / problem.ranks <= rows and made(problem, machine):
                return name, made(problem, machine)[0]
        raise AssertionError("no rule")

    def test_large_problems(self):
        machine = model.Machine()
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
                    self.assertLessEqual(took, 1.25 * best, f"{ranks} ranks, {rows} rows each, {kv_heads} key heads: {name}")


if __name__ == "__main__":
    unittest.main()
