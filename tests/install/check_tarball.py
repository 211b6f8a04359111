#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tarball of `cpack -G TGZ`: it wants no newer glibc than it says, and is used where it is unpacked.

--keep FOLDER leaves it there.
"""
import argparse
import pathlib
import sys
import tempfile

import glibc
import spdx
from consumer import Tools, Tree, by_find_package, by_name, by_pkg_config, by_static, run

COMPONENTS = ("bundled", "development", "library", "tools")  # and static, where it is made


def parse():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "cmake", "build", "cc", "cxx", "pkg-config", "example", "libdir", "version", "glibc"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--keep")
    return parser.parse_args()


def check_the_check(tools, work):
    """A program that is linked as usual wants the glibc that is here; 2.34 changed how programs start."""
    (work / "usual.c").write_text("int main(void) { return 0; }\n")
    run(tools.cc, work / "usual.c", "-o", work / "usual")
    here = glibc.number(run("getconf", "GNU_LIBC_VERSION").split()[1])
    if here >= (2, 34) and glibc.wanted(work / "usual") < (2, 34):
        sys.exit("a program made here is said to want an old glibc: this check has nothing to check")


def main():
    options = parse()
    if not pathlib.Path(options.build, "CPackConfig.cmake").is_file():
        print("this build makes no packages")
        sys.exit(77)
    has_pkg_config = options.pkg_config and not options.pkg_config.endswith("NOTFOUND")
    tools = Tools(options.cmake, options.cc, options.cxx, options.pkg_config if has_pkg_config else "")
    with tempfile.TemporaryDirectory(prefix="sternway-tarball-") as name:
        work = pathlib.Path(name)
        made = pathlib.Path(options.keep or work / "made")
        run(options.cpack, "-G", "TGZ", "-B", made, "--config", f"{options.build}/CPackConfig.cmake")
        tarballs = list(made.glob("*.tar.gz"))
        if len(tarballs) != 1:
            sys.exit(f"cpack made {tarballs}")
        (work / "unpacked").mkdir()
        run("tar", "-xzf", tarballs[0], "-C", work / "unpacked")
        inside = list((work / "unpacked").iterdir())
        if [path.name for path in inside] != [tarballs[0].name.removesuffix(".tar.gz")]:
            sys.exit(f"{tarballs[0].name} unpacks to {inside}")
        tree = Tree(inside[0], options.libdir)
        if options.glibc and options.glibc != "OFF":
            check_the_check(tools, work)
            glibc.check(tree.prefix, options.glibc, least=3)
        has_static = (tree.library / "libsternway.a").is_file()
        spdx.check(tree.prefix, len(COMPONENTS) + has_static, options.version)
        print(run(tree.prefix / "bin/sternway", "conform", "--backend", "cpu", "--cases", "20").splitlines()[-1])
        example = (tree.prefix / "share/doc/sternway/examples/main.c").read_text()
        if example.strip() != pathlib.Path(options.example).read_text().strip():
            sys.exit("examples/main.c is not the README's program")
        by_find_package(tools, tree, example, work / "find_package")
        by_name(tools, tree, example, work / "by_name")
        if has_pkg_config:
            by_pkg_config(tools, tree, example, work / "pkg_config")
        if has_static:
            by_static(tools, tree, example, work / "static")
        print(f"{tarballs[0].name}: {tarballs[0].stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
