#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `cmake --install` leaves is usable, from any folder: the README's program builds and runs against it."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES C)
find_package(sternway REQUIRED)
add_executable(program example.c)
target_link_libraries(program PRIVATE sternway::sternway)
"""


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False, timeout=200)
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_program(program, library):
    text = run(program, STERNWAY_BACKEND="cpu", LD_LIBRARY_PATH=str(library))
    if text != "attention backward on cpu: STW_OK\n":
        sys.exit(f"{program} printed {text!r}")


def parse():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "build", "cc", "pkg-config", "example", "libdir", "sanitize"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def check_documents(folder):
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        if not (folder / name).is_file():
            sys.exit(f"{name} is not installed")
    named = re.findall(r"[\w/]+/README\.md", (folder / "README.md").read_text())
    for name in named:
        if not (folder / name).is_file():
            sys.exit(f"README.md names {name}, which is not installed")
    if not named:
        sys.exit("README.md names no other document: this check has nothing to check")


def main():
    options = parse()
    flags = [f"-fsanitize={options.sanitize}"] if options.sanitize else []
    with tempfile.TemporaryDirectory(prefix="sternway-install-") as name:
        first, prefix = pathlib.Path(name) / "first", pathlib.Path(name) / "moved here"
        run(options.cmake, "--install", options.build, "--prefix", first)
        first.rename(prefix)
        library, packages = prefix / options.libdir, prefix / options.libdir / "pkgconfig"
        run(prefix / "bin/sternway", "explain", "--backend", "cpu", "attn_bwd:f32:b1h1s8d8")
        check_documents(prefix / "share/doc/sternway")
        project = pathlib.Path(name) / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(CMAKE_PROJECT)
        (project / "example.c").write_text(pathlib.Path(options.example).read_text())
        run(options.cmake, "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_C_COMPILER={options.cc}", f"-DCMAKE_C_FLAGS={' '.join(flags)}")
        run(options.cmake, "--build", project / "build")
        check_program(project / "build/program", library)
        if not options.pkg_config or options.pkg_config.endswith("NOTFOUND"):
            print("pkg-config is not here: its file was not tried")
            sys.exit(77)
        plain = prefix.rename(pathlib.Path(name) / "plain")  # pkg-config quotes blanks, which compilers' callers rarely undo
        packages, library = plain / options.libdir / "pkgconfig", plain / options.libdir
        words = run(options.pkg_config, "--cflags", "--libs", "sternway", PKG_CONFIG_PATH=str(packages)).split()
        version = run(options.pkg_config, "--modversion", "sternway", PKG_CONFIG_PATH=str(packages)).strip()
        if f"sternway {version}\n" != run(plain / "bin/sternway", "--version"):
            sys.exit(f"pkg-config says version {version}")
        run(options.cc, *flags, project / "example.c", *words, "-o", project / "program")
        check_program(project / "program", library)


if __name__ == "__main__":
    main()
