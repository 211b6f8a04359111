# SPDX-License-Identifier: MIT
"""A stranger's program built against an installed tree: by find_package, by pkg-config, by plain -lsternway, by the static
library, and in C++.

Used by check_install.py, check_packages.py, check_tarball.py and check_rpm.py. A tree is a Tree: its prefix, the library folder in it, and, for a package
unpacked into a folder, that folder as the root.
"""
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

CMAKE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(stranger LANGUAGES C)
find_package(sternway REQUIRED)
add_executable(program example.c)
target_link_libraries(program PRIVATE sternway::sternway)
"""

# Every public header, in C++, and a call that needs the library.
CXX_PROGRAM = """#include <cstdio>
int main() {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = nullptr;
    opts.memory = STW_MEMORY_BUFFERS;
    stw_status status = stw_context_create(&opts, &context);
    std::printf("%s on %s\\n", stw_status_name(status), status ? stw_last_error() : stw_context_arch(context));
    stw_context_destroy(context);
    return status != STW_OK;
}
"""


@dataclasses.dataclass
class Tree:
    prefix: pathlib.Path
    libdir: str
    root: pathlib.Path = None

    @property
    def library(self):
        return self.prefix / self.libdir

    @property
    def cmake_word(self):
        """Debian's CMake does not look into lib64."""
        return f"-Dsternway_DIR={self.library}/cmake/sternway" if self.libdir == "lib64" else f"-DCMAKE_PREFIX_PATH={self.prefix}"


@dataclasses.dataclass
class Tools:
    cmake: str
    cc: str
    cxx: str
    pkg_config: str  # may be empty
    flags: tuple = ()


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False, timeout=280)
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_program(program, tree, expected="attention backward on cpu: STW_OK\n"):
    text = run(program, STERNWAY_BACKEND="cpu", LD_LIBRARY_PATH=str(tree.library))
    if text != expected:
        sys.exit(f"{program} printed {text!r}")
    linked = run("ldd", program, LD_LIBRARY_PATH=str(tree.library))
    if str(tree.library.resolve()) not in linked.replace(str(tree.library), str(tree.library.resolve())):
        sys.exit(f"{program} runs with another library than the tree's:\n{linked}")


def by_find_package(tools, tree, example, folder):
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(CMAKE_PROJECT)
    (folder / "example.c").write_text(example)
    run(tools.cmake, "-G", "Ninja", "-S", folder, "-B", folder / "build", tree.cmake_word,
        f"-DCMAKE_C_COMPILER={tools.cc}", f"-DCMAKE_C_FLAGS={' '.join(tools.flags)}")
    run(tools.cmake, "--build", folder / "build")
    check_program(folder / "build/program", tree)


def by_pkg_config(tools, tree, example, folder):
    folder.mkdir()
    (folder / "example.c").write_text(example)
    environment = {"PKG_CONFIG_LIBDIR": str(tree.library / "pkgconfig"), "PKG_CONFIG_PATH": ""}
    if tree.root:
        environment.update(PKG_CONFIG_SYSROOT_DIR=str(tree.root), PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1",
                           PKG_CONFIG_ALLOW_SYSTEM_LIBS="1")
    words = run(tools.pkg_config, "--cflags", "--libs", "sternway", **environment).split()
    version = run(tools.pkg_config, "--modversion", "sternway", **environment).strip()
    if f"sternway {version}\n" != run(tree.prefix / "bin/sternway", "--version", LD_LIBRARY_PATH=str(tree.library)):
        sys.exit(f"pkg-config says version {version}")
    run(tools.cc, *tools.flags, folder / "example.c", *words, "-o", folder / "program")
    check_program(folder / "program", tree)


STATIC_PROJECT = CMAKE_PROJECT.replace("sternway::sternway)", "sternway::sternway_static)")


def by_static(tools, tree, example, folder):
    """The static library, by find_package and by its name: nothing of the program is looked for when it starts."""
    archive = tree.library / "libsternway.a"
    names = re.findall(r"^[0-9a-f]+ [A-Z] (\w+)$", run("nm", "-g", "--defined-only", archive), re.M)
    shared = re.findall(r" T (stw_\w+)", run("nm", "-D", "--defined-only", next(tree.library.glob("libsternway.so.*"))))
    if sorted(names) != sorted(shared) or not names:
        sys.exit(f"libsternway.a and libsternway.so have other names: {sorted(set(names) ^ set(shared))}")
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(STATIC_PROJECT)
    (folder / "example.c").write_text(example)
    run(tools.cmake, "-G", "Ninja", "-S", folder, "-B", folder / "build", tree.cmake_word, f"-DCMAKE_C_COMPILER={tools.cc}")
    run(tools.cmake, "--build", folder / "build")
    private = re.search(r"^Libs.private: (.*)$", (tree.library / "pkgconfig/sternway.pc").read_text(), re.M).group(1).split()
    run(tools.cc, folder / "example.c", "-I", tree.prefix / "include", archive, *private, "-o", folder / "program")
    for program in (folder / "build/program", folder / "program"):
        if "sternway" in run("readelf", "-d", program):
            sys.exit(f"{program} wants the shared library")
        text = run(program, STERNWAY_BACKEND="cpu")
        if text != "attention backward on cpu: STW_OK\n":
            sys.exit(f"{program} printed {text!r}")


def by_name(tools, tree, example, folder):
    folder.mkdir()
    (folder / "example.c").write_text(example)
    headers = sorted(path.name for path in (tree.prefix / "include/sternway").glob("*.h"))
    headers.remove("cp_mpi.h")  # it needs an MPI
    if "sternway.h" not in headers:
        sys.exit(f"the headers installed are {headers}")
    includes = "".join(f"#include <sternway/{name}>\n" for name in headers)
    (folder / "example.cpp").write_text(includes + CXX_PROGRAM)
    words = ["-I", tree.prefix / "include", "-L", tree.library, "-lsternway"]
    run(tools.cc, *tools.flags, folder / "example.c", *words, "-o", folder / "program")
    check_program(folder / "program", tree)
    if tools.flags:  # a C++ compiler of another make than the C compiler has another sanitizer
        return
    run(tools.cxx, "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", folder / "example.cpp", *words,
        "-o", folder / "program_cxx")
    check_program(folder / "program_cxx", tree, "STW_OK on cpu\n")
