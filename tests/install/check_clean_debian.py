#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The packages install by apt in a Debian made for the purpose, run there, and go again without a trace.

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
apt-get install -y --no-install-recommends /packages/*.deb >/dev/null
sternway info
sternway conform --backend cpu --cases 20 | tail -n 1
cc /packages/example.c $(pkg-config --cflags --libs sternway) -o /tmp/program
STERNWAY_BACKEND=cpu /tmp/program
apt-get purge -y sternway-tools libsternway-dev libsternway0 >/dev/null
if ldconfig -p | grep sternway; then exit 1; fi
if find /usr /etc /var/lib/dpkg/info -name '*sternway*' | grep .; then exit 1; fi
echo all gone
"""


def main():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "build", "example"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not pathlib.Path(options.build, "CPackConfig.cmake").is_file():
        print("needs root, mmdebstrap, and a build that makes packages")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sternway-debian-") as name:
        root = pathlib.Path(name) / "root"
        made = subprocess.run(["mmdebstrap", "--variant=minbase", "--mode=root",
                               "--include=gcc,libc6-dev,pkg-config,libcjson1", "bookworm", root], check=False,
                              capture_output=True, text=True)
        if made.returncode:
            print(f"no Debian could be made: {made.stderr[-600:]}")
            sys.exit(77)
        packages = root / "packages"
        packages.mkdir()
        subprocess.run([options.cpack, "-G", "DEB", "-B", packages, "--config", f"{options.build}/CPackConfig.cmake"], check=True,
                       capture_output=True)
        shutil.rmtree(packages / "_CPack_Packages", ignore_errors=True)
        shutil.copy(options.example, packages / "example.c")
        done = subprocess.run(["chroot", root, "/bin/sh", "-c", SESSION], check=False, capture_output=True, text=True,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})
        print(done.stdout, done.stderr)
        for wanted in ("sternway ", " passed, 0 failed", "attention backward on cpu: STW_OK", "all gone"):
            if wanted not in done.stdout:
                sys.exit(f"exit status {done.returncode}, nothing said {wanted!r}")


if __name__ == "__main__":
    main()
