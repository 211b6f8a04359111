# SPDX-License-Identifier: MIT
"""What -o and --report leave of the file that they replace, and of others beside it."""
import os
import unittest

from command import CommandTest, read_file, small_problem, sternway, write_file

LINE = "attn_bwd:f32:b1h2s48d16:causal_br"


class Replace(CommandTest):
    def run_output(self, **options):
        path = write_file(self.path("in"), small_problem())
        return sternway("run", "--backend", "cpu", "-o", self.path("out"), path, **options)

    def test_permissions_stay(self):
        for mode in (0o600, 0o640, 0o664):
            self.path("out").write_text("old")
            self.path("out").chmod(mode)
            self.assert_exit(self.run_output(), 0)
            self.assertEqual(self.path("out").stat().st_mode & 0o7777, mode)
            self.path("out").unlink()
        for mask in (0o022, 0o077):
            self.assert_exit(self.run_output(preexec_fn=lambda: os.umask(mask)), 0)
            self.assertEqual(self.path("out").stat().st_mode & 0o7777, 0o666 & ~mask)
            self.path("out").unlink()

    def test_owner_stays(self):
        if os.getuid():
            self.skipTest("only root may give files away")
        self.path("out").write_text("old")
        os.chown(self.path("out"), 12345, 23456)
        self.assert_exit(self.run_output(), 0)
        self.assertEqual((self.path("out").stat().st_uid, self.path("out").stat().st_gid), (12345, 23456))

    def test_parts_of_processes_that_died(self):
        """Whatever files lie there already, and whatever process ids come again."""
        def leave_parts():
            for name in ("out", "r.json"):
                self.path(f"{name}.{os.getpid()}.part").write_text("left")
        self.assert_exit(self.run_output(preexec_fn=leave_parts), 0)
        done = sternway("conform", "--backend", "cpu", "--report", self.path("r.json"), LINE, preexec_fn=leave_parts)
        self.assert_exit(done, 0)
        self.assertEqual([path.read_text() for path in self.folder.glob("*.part")], ["left"] * 4)

    def test_long_names_and_links(self):
        path = write_file(self.path("in"), small_problem())
        name = self.path("n" * 255)
        self.assert_exit(sternway("run", "--backend", "cpu", "-o", name, path), 0)
        self.assertEqual(set(read_file(name)[0]), {"dq", "dk", "dv"})
        self.path("link").symlink_to("target")
        self.path("target").write_text("old")
        self.assert_exit(sternway("run", "--backend", "cpu", "-o", self.path("link"), path), 0)
        self.assertTrue(self.path("link").is_symlink())
        self.assertEqual(set(read_file(self.path("target"))[0]), {"dq", "dk", "dv"})
        self.assertEqual(list(self.folder.glob("*.part")), [])
        self.assert_refused(sternway("run", "--backend", "cpu", "-o", self.path("n" * 256), path), "File name too long")


if __name__ == "__main__":
    unittest.main()
