#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tarball runs on a system whose glibc still has libpthread and libdl: Debian 11's 2.31, the oldest that Debian's archive has.

Needs root, mmdebstrap and a Debian archive in reach: a part of `full`. Skipped by name (77) without them. The system is
made in a folder of its own and used by chroot; nothing of this one is touched.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SESSION = """set -e
ldd --version | head -n 1
cd /sternway-*
export LD_LIBRARY_PATH=$PWD/lib STERNWAY_BACKEND=cpu
bin/sternway info --verify | head -n 1
bin/sternway conform --backend cpu --cases 100 | tail -n 1
bin/sternway run share/doc/sternway/examples/causal_gqa.safetensors | tail -n 1
cc share/doc/sternway/examples/main.c -Iinclude -Llib -lsternway -o /tmp/shared && /tmp/shared
cc share/doc/sternway/examples/main.c -Iinclude lib/libsternway.a -lm -lpthread -ldl -o /tmp/static && /tmp/static
"""  # LD_LIBRARY_PATH: without /proc the loader does not know where a program lies


def main():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "build"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    config = pathlib.Path(options.build, "CPackConfig.cmake")
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not config.is_file():
        print("needs root, mmdebstrap, and a build that makes packages")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sternway-glibc-") as name:
        root = pathlib.Path(name) / "root"
        made = subprocess.run(["mmdebstrap", "--variant=minbase", "--mode=root", "--include=gcc,libc6-dev", "bullseye", root,
                               "http://deb.debian.org/debian"], check=False, capture_output=True, text=True)
        if made.returncode:
            print(f"no Debian 11 could be made: {made.stderr[-600:]}")
            sys.exit(77)
        subprocess.run([options.cpack, "-G", "TGZ", "-B", pathlib.Path(name) / "made", "--config", config], check=True,
                       capture_output=True)
        tarball = next((pathlib.Path(name) / "made").glob("*.tar.gz"))
        subprocess.run(["tar", "-xzf", tarball, "-C", root], check=True)
        done = subprocess.run(["chroot", root, "/bin/sh", "-c", SESSION], check=False, capture_output=True, text=True,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})
        print(done.stdout, done.stderr)
        for wanted in ("2.31", "sternway ", " passed, 0 failed", "references met, 0 missed"):
            if wanted not in done.stdout:
                sys.exit(f"exit status {done.returncode}, nothing said {wanted!r}")
        if done.stdout.count("attention backward on cpu: STW_OK") != 2:
            sys.exit("a program linked there does not run")


if __name__ == "__main__":
    main()
