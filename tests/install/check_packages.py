#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The Debian packages that cpack makes of the build: what is in which, their fields, lintian, and use of the unpacked tree.

lintian is asked where it is found (its errors fail; it decides about modes, owners, stripping, search paths, changelogs).
--keep FOLDER leaves the packages there.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from consumer import Tools, Tree, by_find_package, by_name, by_pkg_config, run

# package -> what must be in it; each file of a package must match one of the patterns
CONTENTS = {
    "libsternway0": [r"usr/lib/[^/]+/libsternway\.so\.0", r"usr/lib/[^/]+/libsternway\.so\.0\.\d+\.\d+"],
    "libsternway-dev": [r"usr/include/sternway/\w+\.h", r"usr/lib/[^/]+/libsternway\.so",
                        r"usr/lib/[^/]+/pkgconfig/sternway\.pc", r"usr/lib/[^/]+/cmake/sternway/sternway\w+(-release)?\.cmake",
                        r"usr/share/man/man3/(stw_\w+|sternway(_\w+)?\.h)\.3\.gz"],
    "sternway-tools": [r"usr/bin/sternway", r"usr/share/man/man1/sternway(-[a-z]+)?\.1\.gz",
                       r"usr/share/bash-completion/completions/sternway", r"usr/share/zsh/vendor-completions/_sternway",
                       r"usr/share/fish/vendor_completions\.d/sternway\.fish",
                       r"usr/share/doc/sternway/(README\.md|CHANGELOG\.md|SECURITY\.md|LICENSE)", r"usr/share/doc/sternway/.*/[\w-]+\.(md|svg|json)"],
}
DOCUMENTS = ("copyright", "changelog.Debian.gz", "changelog.gz")


def parse():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "cmake", "build", "cc", "cxx", "pkg-config", "example", "triplet", "version"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--keep")
    return parser.parse_args()


def check_contents(name, folder, sections):
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    wanted = CONTENTS[name] + [f"usr/share/doc/{name}/{re.escape(document)}" for document in DOCUMENTS]
    for section in {"man1", "man3"} - sections:
        wanted = [pattern for pattern in wanted if section not in pattern]
    missing = [pattern for pattern in wanted if not any(re.fullmatch(pattern, file) for file in files)]
    strangers = [file for file in files if not any(re.fullmatch(pattern, file) for pattern in wanted)]
    if missing or strangers:
        sys.exit(f"{name}: not there: {missing}; does not belong there: {strangers}")


def check_fields(name, package, version):
    field = {key: run("dpkg-deb", "-f", package, key).strip() for key in ("Package", "Version", "Depends", "Maintainer")}
    if field["Package"] != name or field["Version"] != f"{version}-1" or "@" not in field["Maintainer"]:
        sys.exit(f"{package}: {field}")
    needs = {"libsternway0": ["libc6 (>= "], "libsternway-dev": [f"libsternway0 (= {version}-1)"],
             "sternway-tools": [f"libsternway0 (= {version}-1)", "libc6 (>= ", "libcjson1"]}[name]
    if any(need not in field["Depends"] for need in needs):
        sys.exit(f"{package} depends on {field['Depends']!r}, which lacks one of {needs}")


def check_lintian(packages):
    if not shutil.which("lintian"):
        print("lintian is not here: the packages were not shown to it")
        return False
    words = ["--allow-root"] if os.geteuid() == 0 else []
    print(run("lintian", *words, "--fail-on", "error", *packages), end="")
    return True


def check_command(tree):
    """The command finds the unpacked library only if told: it has no search path of its own."""
    if re.search(r"R(UN)?PATH", run("readelf", "-d", tree.prefix / "bin/sternway")):
        sys.exit("usr/bin/sternway has a search path of its own")
    report = json.loads(run(tree.prefix / "bin/sternway", "info", "--json", LD_LIBRARY_PATH=str(tree.library)))
    if not report["archs"]:
        sys.exit(f"sternway info: {report}")


def main():
    options = parse()
    if not pathlib.Path(options.build, "CPackConfig.cmake").is_file():
        print("this build makes no packages: dpkg-dev was not here when it was configured")
        sys.exit(77)
    has_pkg_config = options.pkg_config and not options.pkg_config.endswith("NOTFOUND")
    tools = Tools(options.cmake, options.cc, options.cxx, options.pkg_config if has_pkg_config else "")
    manuals = pathlib.Path(options.build, "docs/man")
    sections = {section for section, pages in (("man1", "*.1.gz"), ("man3", "man3/*.3.gz")) if any(manuals.glob(pages))}
    with tempfile.TemporaryDirectory(prefix="sternway-packages-") as name:
        work = pathlib.Path(name)
        made, root = pathlib.Path(options.keep or work / "made"), work / "root"
        run(options.cpack, "-B", made, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",  # a tenth of xz's time
            "--config", f"{options.build}/CPackConfig.cmake")
        packages = {path.name.split("_")[0]: path for path in made.glob("*.deb")}
        if set(packages) != set(CONTENTS):
            sys.exit(f"cpack made {sorted(packages)}")
        for package, path in packages.items():
            run("dpkg-deb", "-x", path, work / package)
            check_contents(package, work / package, sections)
            check_fields(package, path, options.version)
            run("dpkg-deb", "-x", path, root)
        linted = check_lintian(packages.values())
        tree = Tree(root / "usr", f"lib/{options.triplet}", root)
        check_command(tree)
        example = pathlib.Path(options.example).read_text()
        by_find_package(tools, tree, example, work / "find_package")
        by_name(tools, tree, example, work / "by_name")
        if has_pkg_config:
            by_pkg_config(tools, tree, example, work / "pkg_config")
        if not linted or not has_pkg_config:
            sys.exit(77)


if __name__ == "__main__":
    main()
