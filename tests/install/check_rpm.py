#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The RPM packages that cpack makes of the build: contents, what they want, rpmlint's errors, use of the unpacked tree."""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile

import glibc
import spdx
from consumer import Tools, Tree, by_find_package, by_name, by_static, run

# package -> a file that must be in it, what it must want
PACKAGES = {
    "sternway-libs": (r"/usr/lib64/libsternway\.so\.0", "libc.so.6"),
    "sternway-devel": (r"/usr/include/sternway/sternway\.h", "sternway-libs"),
    "sternway-static": (r"/usr/lib64/libsternway\.a", "sternway-devel"),
    "sternway": (r"/usr/bin/sternway", "libcjson.so.1"),
}
# rpmlint is Fedora's taste of Debian: what a signing build service adds, and what is so on purpose.
ALLOWED = re.compile(r"no-signature|static-library-without-debuginfo|outside-libdir-files|non-versioned-file-in-library-package|"
                     r"missing-hash-section")  # GNU_HASH alone: every loader since 2006 has it


def parse():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "cmake", "build", "cc", "cxx", "example", "version", "glibc"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def check_rpmlint(packages):
    if not shutil.which("rpmlint"):
        print("rpmlint is not here: the packages were not shown to it")
        return
    import subprocess  # its exit status tells errors that are allowed here as well
    words = subprocess.run(["rpmlint", *packages], check=False, capture_output=True, text=True).stdout
    if f"{len(packages)} packages" not in words:
        sys.exit(f"rpmlint did not read them:\n{words}")
    errors = [line for line in words.splitlines() if re.search(r": E: ", line) and not ALLOWED.search(line)]
    if errors:
        sys.exit("\n".join(errors))


def main():
    options = parse()
    config = pathlib.Path(options.build, "CPackConfig.cmake")
    if not shutil.which("rpmbuild") or not config.is_file() or "sternway-libs" not in config.read_text():
        print("this build makes no .rpm: rpmbuild was not here when it was configured")
        sys.exit(77)
    tools = Tools(options.cmake, options.cc, options.cxx, "")
    with tempfile.TemporaryDirectory(prefix="sternway-rpm-") as name:
        work = pathlib.Path(name)
        made, root = work / "made", work / "root"
        root.mkdir()
        run(options.cpack, "-G", "RPM", "-B", made, "-D", "CPACK_RPM_COMPRESSION_TYPE=gzip",  # a tenth of xz's time
            "--config", config)
        packages = {run("rpm", "-qp", "--qf", "%{NAME}", path): path for path in made.glob("*.rpm")}
        if set(packages) != set(PACKAGES):
            sys.exit(f"cpack made {sorted(packages)}")
        for package, path in packages.items():
            file, want = PACKAGES[package]
            names, wants = (run("rpm", "-qp", word, path) for word in ("--list", "--requires"))
            if not re.search(f"^{file}$", names, re.M) or want not in wants:
                sys.exit(f"{path.name} has no {file}, or does not want {want}:\n{names}\n{wants}")
            if run("rpm", "-qp", "--qf", "%{VERSION}-%{RELEASE} %{LICENSE}", path) != f"{options.version}-1 MIT":
                sys.exit(f"{path.name}: version or licence")
            folders = [line for line in run("rpm", "-qpl", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", path).splitlines()
                       if line.startswith("d") and re.search(r" (/usr|/usr/(bin|include|lib64|share|share/doc|share/man.*))$", line)]
            if folders:
                sys.exit(f"{path.name} owns folders of the system: {folders}")
            run(options.cmake, "-E", "chdir", root, options.cmake, "-E", "tar", "xf", path)
        check_rpmlint(list(packages.values()))
        if options.glibc and options.glibc != "OFF":
            glibc.check(root, options.glibc, beside=("libcjson.so.1",), least=2)
        spdx.check(root / "usr", len(PACKAGES), options.version)
        tree = Tree(root / "usr", "lib64", root)
        example = pathlib.Path(options.example).read_text()
        by_find_package(tools, tree, example, work / "find_package")
        by_name(tools, tree, example, work / "by_name")
        by_static(tools, tree, example, work / "static")


if __name__ == "__main__":
    main()
