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

import spdx
from consumer import Tools, Tree, by_find_package, by_name, by_pkg_config, by_static, run

# package -> what must be in it; each file of a package must match one of the patterns
CONTENTS = {
    "libsternway0": [r"usr/lib/[^/]+/libsternway\.so\.0", r"usr/lib/[^/]+/libsternway\.so\.0\.\d+\.\d+"],
    "libsternway-dev": [r"usr/include/sternway/\w+\.h", r"usr/lib/[^/]+/libsternway\.so",
                        r"usr/lib/[^/]+/pkgconfig/sternway\.pc", r"usr/lib/[^/]+/cmake/sternway/sternway\w+(-release)?\.cmake",
                        r"usr/share/man/man3/(stw_\w+|sternway(_\w+)?\.h)\.3\.gz", r"usr/lib/[^/]+/libsternway\.a",
                        r"usr/share/doc/libsternway-dev/examples/(main\.c|README\.md|\w+\.(py|txt|safetensors))"],
    "sternway-tools": [r"usr/bin/sternway", r"usr/share/man/man1/sternway(-[a-z]+)*\.1\.gz",
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
    wanted = CONTENTS[name] + [f"usr/share/doc/{name}/{re.escape(document)}" for document in (*DOCUMENTS, f"{name}.spdx.json")]
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


def check_installed_size(package, folder):
    """As dpkg-gencontrol counts: KiB of each file, rounded up, and 1 of everything else."""
    everything = [folder, *folder.rglob("*")]
    size = sum(-(-path.stat().st_size // 1024) if path.is_file() and not path.is_symlink() else 1 for path in everything)
    told = int(run("dpkg-deb", "-f", package, "Installed-Size"))
    if abs(told - size) > 1:  # the root folder is in the archive or not
        sys.exit(f"{package}: Installed-Size {told}, its files take {size}")


def check_lintian(packages):
    if not shutil.which("lintian"):
        print("lintian is not here: the packages were not shown to it")
        return False
    words = ["--allow-root"] if os.geteuid() == 0 else []
    print(run("lintian", *words, "--fail-on", "error", *packages), end="")
    return True


def check_debug(packages, build):
    """Made where the build has debug information: for the library and the command, under their build-ids."""
    if not packages:
        return
    for package, file in (("libsternway0-dbgsym", "lib/libsternway.so"), ("sternway-tools-dbgsym", "bin/sternway")):
        name = re.search(r"Build ID: ([0-9a-f]+)", run("readelf", "-n", build / file)).group(1)
        if f"usr/lib/debug/.build-id/{name[:2]}/{name[2:]}.debug" not in run("dpkg-deb", "-c", packages.get(package, "")):
            sys.exit(f"{package} has no debug information of {file}")


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
        run(options.cpack, "-G", "DEB", "-B", made, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",  # a tenth of xz's time
            "--config", f"{options.build}/CPackConfig.cmake")
        packages = {path.name.split("_")[0]: path for path in made.glob("*.deb")}
        debug = {name: packages.pop(name) for name in list(packages) if name.endswith("-dbgsym")}
        check_debug(debug, pathlib.Path(options.build))
        if set(packages) != set(CONTENTS):
            sys.exit(f"cpack made {sorted(packages)}")
        for package, path in packages.items():
            run("dpkg-deb", "-x", path, work / package)
            check_contents(package, work / package, sections)
            check_fields(package, path, options.version)
            check_installed_size(path, work / package)
            run("dpkg-deb", "-x", path, root)
        spdx.check(root / "usr", len(packages), options.version)
        linted = check_lintian(packages.values())
        tree = Tree(root / "usr", f"lib/{options.triplet}", root)
        check_command(tree)
        example = pathlib.Path(options.example).read_text()
        by_find_package(tools, tree, example, work / "find_package")
        by_name(tools, tree, example, work / "by_name")
        by_static(tools, tree, example, work / "static")
        if has_pkg_config:
            by_pkg_config(tools, tree, example, work / "pkg_config")
        if not linted or not has_pkg_config:
            sys.exit(77)


if __name__ == "__main__":
    main()
