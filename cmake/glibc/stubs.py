#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""stubs.py 2.28 FOLDER COMPILER: libraries to link with, so that what is linked runs on that glibc and every newer one.

They hold the names of the compiler's own libc and libm without code, each with its newest version that 2.28 has too: a name
that came later is an undefined reference, not a program that an older system does not load. Functions that libc took over
from libpthread and libdl in 2.32 to 2.34 are in those two again. What an old glibc linked into every program is in stat.c and
start.c. Prints why where there is nothing to do (the compiler's glibc is as old), and exits 3.
"""
import collections
import pathlib
import re
import subprocess
import sys

THREADS = re.compile(r"_?_?pthread_|_pthread_|sem_|call_once$|(cnd|mtx|thrd|tss)_")
DYNAMIC = re.compile(r"dl[a-z]+1?$")
OTHERS = re.compile(r"aio_|__mq_|mq_|lio_|shm_|timer_|gai_|getaddrinfo_a|forkpty|openpty|log(in|out|wtmp)|login_tty|ns_name_|__isnanf128")
SYMBOL = re.compile(r"^\s*\d+: [0-9a-f]+ +(?P<size>0x[0-9a-f]+|\d+) (?P<type>FUNC|IFUNC|OBJECT) +\w+ +DEFAULT +\d+ "
                    r"(?P<name>[^\s@]+)(?P<at>@@?)GLIBC_(?P<version>[0-9.]+)$", re.M)


def number(version):
    return tuple(int(part) for part in version.split("."))


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def names_of(library):
    """name -> {version: (type, size)}, of the names that programs may still be linked with."""
    names, current = collections.defaultdict(dict), set()
    for symbol in SYMBOL.finditer(run("readelf", "-W", "--dyn-syms", library)):
        names[symbol["name"]][number(symbol["version"])] = symbol["type"], int(symbol["size"], 0)
        if symbol["at"] == "@@":
            current.add(symbol["name"])
    return {name: versions for name, versions in names.items() if name in current}


def home_of(name, versions, most):
    """The library of the old glibc that has the name, or None where it is one that nothing here links."""
    moved = any(version > most and (2, 32) <= version <= (2, 34) for version in versions)
    if not moved or name == "__libc_start_main":
        return "libc.so.6"
    if OTHERS.match(name):
        return None
    if DYNAMIC.match(name):
        return "libdl.so.2"
    return "libpthread.so.0" if THREADS.match(name) else "libc.so.6"


def make(compiler, soname, symbols, folder):
    """symbols: (name, version, type, size)."""
    text, nodes = [".section .note.GNU-stack,\"\",@progbits\n"], collections.defaultdict(list)
    for name, version, kind, size in symbols:
        nodes[version].append(name)
        if kind == "OBJECT":
            text.append(f".bss\n.globl {name}\n.type {name},@object\n.size {name},{size}\n.balign 32\n{name}: .zero {max(size, 1)}\n")
        else:
            text.append(f".text\n.globl {name}\n.type {name},@function\n.size {name},1\n{name}: .byte 0\n")
    script = "".join(f"GLIBC_{'.'.join(map(str, version))} {{ global: {'; '.join(names)}; }};\n"
                     for version, names in sorted(nodes.items()))
    source, versions, made = folder / f"{soname}.s", folder / f"{soname}.map", folder / soname
    source.write_text("".join(text))
    versions.write_text(script)
    run(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", "-o", made, source)


def main():
    most, folder, compiler = number(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    where = {soname: pathlib.Path(run(compiler, f"-print-file-name={soname}").strip())
             for soname in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2")}
    if not all(path.is_absolute() for path in where.values()):
        print("the compiler's C library is not glibc")
        return 3
    newest = max(version for versions in names_of(where["libc.so.6"]).values() for version in versions)
    if newest <= most:
        print(f"glibc {'.'.join(map(str, newest))} is here")
        return 3
    folder.mkdir(parents=True, exist_ok=True)
    symbols = collections.defaultdict(list)
    for soname, path in where.items():
        for name, versions in names_of(path).items():
            old = [version for version in versions if version <= most]
            home = home_of(name, versions, most) if soname == "libc.so.6" else soname
            if old and home:
                symbols[home].append((name, max(old), *versions[max(old)]))
    for soname, names in symbols.items():
        make(compiler, soname, sorted(names), folder)
    archive, objects = folder / "libc_nonshared.a", [folder / "stat.o", folder / "start.o"]
    for made in objects:
        run(compiler, "-c", "-O2", "-fPIC", "-o", made, pathlib.Path(__file__).with_name(f"{made.stem}.c"))
    archive.unlink(missing_ok=True)
    run("ar", "qcsD", archive, *objects)
    own = [run(compiler, f"-print-file-name={name}").strip() for name in ("libc_nonshared.a", "ld-linux-x86-64.so.2")]
    (folder / "libc.so").write_text(f"/* made by stubs.py */\nGROUP ( AS_NEEDED ( \"{folder}/libpthread.so.0\" \"{folder}/libdl.so.2\" ) "
                                    f"\"{folder}/libc.so.6\" \"{archive}\" \"{own[0]}\" AS_NEEDED ( \"{own[1]}\" ) )\n")
    (folder / "libm.so").unlink(missing_ok=True)
    (folder / "libm.so").symlink_to("libm.so.6")
    return 0


if __name__ == "__main__":
    sys.exit(main())
