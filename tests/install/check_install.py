#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `cmake --install` leaves is usable, from any folder: the README's program builds and runs against it."""
import argparse
import gzip
import pathlib
import re
import sys
import tempfile

import spdx
from consumer import Tools, Tree, by_find_package, by_name, by_pkg_config, by_static, run


def parse():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "build", "cc", "cxx", "pkg-config", "example", "libdir", "sanitize", "man-pages", "version"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def check_documents(folder):
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        if not (folder / name).is_file():
            sys.exit(f"{name} is not installed")
    pages = ("README.md", "docs/command.md", "docs/features.md", "docs/building.md")
    named = [(page, name) for page in pages for name in re.findall(r"\]\(([\w/.]*README\.md)", (folder / page).read_text())]
    for page, name in named:
        if not (folder / page).parent.joinpath(name).is_file():
            sys.exit(f"{page} names {name}, which is not installed")
    if len(named) < 5:
        sys.exit("the documents name hardly any other: this check has nothing to check")


def check_share(share, pages):
    for name in ("bash-completion/completions/sternway", "zsh/site-functions/_sternway",
                 "fish/vendor_completions.d/sternway.fish"):
        if not (share / name).is_file():
            sys.exit(f"share/{name} is not installed")
    for page in filter(None, pages.split(",")):
        installed = share / "man/man1" / pathlib.Path(page).name
        if ".SH NAME" not in gzip.decompress(installed.read_bytes()).decode():
            sys.exit(f"{installed} is no manual page")


def main():
    options = parse()
    flags = (f"-fsanitize={options.sanitize}",) if options.sanitize else ()
    has_pkg_config = options.pkg_config and not options.pkg_config.endswith("NOTFOUND")
    tools = Tools(options.cmake, options.cc, options.cxx, options.pkg_config if has_pkg_config else "", flags)
    example = pathlib.Path(options.example).read_text()
    with tempfile.TemporaryDirectory(prefix="sternway-install-") as name:
        work = pathlib.Path(name)
        run(options.cmake, "--install", options.build, "--prefix", work / "first")
        tree = Tree((work / "first").rename(work / "moved here"), options.libdir)
        run(tree.prefix / "bin/sternway", "explain", "--backend", "cpu", "attn_bwd:f32:b1h1s8d8")
        check_documents(tree.prefix / "share/doc/sternway")
        check_share(tree.prefix / "share", options.man_pages)
        by_find_package(tools, tree, example, work / "find_package")
        by_name(tools, tree, example, work / "by_name")
        spdx.check(tree.prefix, 1, options.version)
        if (tree.library / "libsternway.a").is_file():
            by_static(tools, tree, example, work / "static")
        if not has_pkg_config:
            print("pkg-config is not here: its file was not tried")
            sys.exit(77)
        # pkg-config quotes blanks, which compilers' callers rarely undo
        plain = Tree(tree.prefix.rename(work / "plain"), options.libdir)
        by_pkg_config(tools, plain, example, work / "pkg_config")


if __name__ == "__main__":
    main()
