#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `./bootstrap.sh demo` rests on.

machine   cmake/machine.sh names the images for recorded machines
images    STERNWAY_IMAGES and STERNWAY_ARCHS build what they name, and refuse by name what they cannot
cache     cmake/cached.sh gives the image that a compiler would give, and compiles only once
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile


def expect(what, seen, wanted):
    if seen != wanted:
        sys.exit(f"{what}: {seen!r}, expected {wanted!r}")


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=250, **options)


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def machine(options, folder):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for name, capabilities, targets, images in (
            ("nothing", None, (), "none"), ("a100", "8.0\n8.0", (), "sm80:cubin"), ("h100", "9.0", (), "sm80:ptx,sm90"),
            ("blackwell", "10.0", (), "sm80:ptx"), ("t4", "7.5", (), "none"), ("no_answer", "", (), "none"),
            ("mixed", "8.6\n9.0", (), "sm80:cubin,sm80:ptx,sm90"), ("mi300x", None, (0, 90402, 90402), "gfx942"),
            ("mi250x", None, (0, 90010), "gfx90a"), ("mi355x", None, (0, 90500), "gfx950"), ("rdna", None, (0, 110000), "none"), ("both", "8.0", (90402,), "sm80:cubin,gfx942")):
        root = folder / name
        (root / "dev").mkdir(parents=True)
        (root / "bin").mkdir()
        if capabilities is not None:
            (root / "dev/nvidiactl").touch()
            script(root / "bin/nvidia-smi", f"#!/bin/sh\nprintf '%s\\n' '{capabilities}'\n")
        for number, target in enumerate(targets):
            (root / "dev/kfd").touch()
            (root / nodes / str(number)).mkdir(parents=True)
            (root / nodes / str(number) / "properties").write_text(f"simd_count 4\ngfx_target_version {target}\n")
        done = run("sh", options.source / "cmake/machine.sh", root, env={"PATH": f"{root}/bin:/usr/bin:/bin"})
        expect(f"images for {name} ({done.stderr})", done.stdout.strip(), images)


def images(options, folder):
    nvcc = script(folder / "nvcc", '#!/bin/sh\necho "Cuda compilation tools, release 13.0"\n')
    left_out = {"none": "CUDA images (STERNWAY_IMAGES=none)", "sm80:cubin": "sm90 images (STERNWAY_IMAGES=sm80:cubin)"}
    ptx = ["attn_bwd_sm80.ptx.fatbin", "attn_bwd_sm90.cubin.fatbin", "cp_sm80.ptx.fatbin", "jagged_sm80.ptx.fatbin", "jagged_sm90.cubin.fatbin"]
    for number, (words, made) in enumerate((
            ("none", []), ("sm80:cubin", ["attn_bwd_sm80.cubin.fatbin", "cp_sm80.cubin.fatbin", "jagged_sm80.cubin.fatbin"]),
            ("sm80:ptx,sm90", ptx),
            ("sm75", "sm75 is no image, accepted: all, none, or some of sm80, sm90"), ("", "STERNWAY_IMAGES is empty"),
            ("sm90", "sm90 needs sm80:ptx beside it"), ("gfx942", "STERNWAY_HIP=OFF leaves out"))):
        build = folder / f"build{number}"
        done = run(options.cmake, "--preset", "demo", "-B", build, f"-DCMAKE_C_COMPILER={options.cc}", f"-DSTERNWAY_IMAGES={words}",
                   f"-DSTERNWAY_NVCC={nvcc}", "-DSTERNWAY_HIP=OFF", "-DSTERNWAY_GLIBC=OFF", "-DSTERNWAY_IMAGE_CACHE=OFF", cwd=options.source)
        if isinstance(made, str):
            expect(f"STERNWAY_IMAGES={words}: refused ({done.stderr})", (done.returncode != 0, made in " ".join(done.stderr.split())),
                   (True, True))
            continue
        expect(f"STERNWAY_IMAGES={words}: {done.stderr}", done.returncode, 0)
        told = re.findall(r'STW_BUILD_WITHOUT=\W*(.*?)\\', (build / "compile_commands.json").read_text())
        wanted = ["backend HIP (STERNWAY_HIP=OFF)"] + ([left_out[words]] if words in left_out else [])
        expect(f"what `info` says is left out of STERNWAY_IMAGES={words}", set(told), {", ".join(wanted)})
        targets = run("ninja", "-C", build, "-t", "targets", "all").stdout.splitlines()
        expect(f"targets of STERNWAY_IMAGES={words}",
               sorted(line.split(":")[0][6:] for line in targets if line.startswith("image-")), made)
    both = sorted(ptx + ["attn_bwd_sm80.cubin.fatbin", "cp_sm80.cubin.fatbin", "jagged_sm80.cubin.fatbin"])
    for number, (archs, also, made) in enumerate((
            ("sm90", "all", ptx), ("sm90,sm80", "all", both), ("sm90", "sm90,sm80:ptx", ptx),
            ("sm80", "all", [name for name in both if "sm80" in name]),
            ("sm75", "all", "STERNWAY_ARCHS=sm75: accepted is all, or some of sm80, sm90"),
            ("", "all", "accepted is all, or some of"), ("sm90", "none", "STERNWAY_ARCHS=sm90 means the images sm80:ptx,sm90, "
             "STERNWAY_IMAGES=none others"), ("sm80", "sm80:cubin", "give one of the two"),
            ("gfx942", "all", "STERNWAY_ARCHS=gfx942: gfx942 belongs to the backend that STERNWAY_HIP=OFF leaves out"))):
        build = folder / f"archs{number}"
        done = run(options.cmake, "--preset", "demo", "-B", build, f"-DCMAKE_C_COMPILER={options.cc}", f"-DSTERNWAY_ARCHS={archs}",
                   f"-DSTERNWAY_IMAGES={also}", f"-DSTERNWAY_NVCC={nvcc}", "-DSTERNWAY_HIP=OFF", "-DSTERNWAY_GLIBC=OFF", "-DSTERNWAY_IMAGE_CACHE=OFF",
                   cwd=options.source)
        what = f"STERNWAY_ARCHS={archs} STERNWAY_IMAGES={also}"
        if isinstance(made, str):
            expect(f"{what}: refused ({done.stderr})", (done.returncode != 0, made in " ".join(done.stderr.split())), (True, True))
            continue
        expect(f"{what}: {done.stderr}", done.returncode, 0)
        targets = run("ninja", "-C", build, "-t", "targets", "all").stdout.splitlines()
        expect(f"targets of {what}", sorted(line.split(":")[0][6:] for line in targets if line.startswith("image-")), made)
        told = set(re.findall(r'STW_BUILD_WITHOUT=\W*(.*?)\\', (build / "compile_commands.json").read_text()))
        wanted = ["backend HIP (STERNWAY_HIP=OFF)"] + ([f"sm90 images (STERNWAY_ARCHS={archs})"] if "sm90" not in archs else [])
        expect(f"what `info` says is left out of {what}", told, {", ".join(wanted)})
    done = run(options.cmake, "--preset", "demo", "-B", folder / "tests", f"-DCMAKE_C_COMPILER={options.cc}", "-DSTERNWAY_TESTS=ON",
               cwd=options.source)
    expect("tests without images", "the tests need every image" in " ".join(done.stderr.split()), True)


# Preprocesses by cpp, "compiles" into text, flags and version, and counts how often. By --dryrun it tells where it is.
COMPILER = r"""#!/bin/sh
version=1
case " $* " in
*" --version "*) echo "compiler $version" && exit ;;
*" --dryrun "*) echo "#$ TOP=${0%/bin/*}" && echo "#$ ptxas $*" && exit ;;
esac
words=
while [ $# -gt 0 ]; do
    case "$1" in
    -o) out=$2; shift ;;
    -M) only=M ;; -E) only=E ;;
    -MF) deps=$2; shift ;; -MT) target=$2; shift ;; -Xcompiler) shift ;;
    -fatbin | -MD | -I* | -P) ;;
    /*) source=$1 ;;
    *) words="$words $1" ;;
    esac
    shift
done
if [ "$only" = E ]; then exec cpp -P "$source" "$out"; fi
printf '%s: %s\n' "$target" "$source" >"$deps"
if [ "$only" = M ]; then exit; fi
echo again >>COUNT
! grep -q WRONG "$source" || exit 3
! grep -q C7510 "$source" || echo 'ptxas info: (C7510) one by one'
cpp -P "$source" "$out" && echo "$words, version $version" >>"$out"
"""


def cache(options, folder):
    count, source, store = folder / "count", folder / "a.cu", folder / "store"
    (folder / "toolkit/bin").mkdir(parents=True)
    compiler = script(folder / "toolkit/bin/nvcc", COMPILER.replace("COUNT", str(count)))

    def build(where, *flags, compiler=compiler):
        """The status, the image, and how often the compiler ran."""
        count.unlink(missing_ok=True)
        out = folder / where / "a.fatbin"
        out.parent.mkdir(exist_ok=True)
        for path in (out, out.with_suffix(".d")):
            path.unlink(missing_ok=True)
        done = run("sh", options.source / "cmake/cached.sh", store, "nvcc", compiler, "-fatbin", *flags, f"-I{folder}/{where}", "-MD",
                   "-MF", out.with_suffix(".d"), "-MT", out, "-o", out, source)
        if not done.returncode:
            expect("the list of dependencies", out.with_suffix(".d").read_text(), f"{out}: {source}\n")
        return done.returncode, out.read_text() if out.exists() else "", len(count.read_text().split()) if count.exists() else 0

    source.write_text('#include "a.h"\nint x = X;\n')
    (folder / "a.h").write_text("#define X 1\n")
    expect("the first build", build("one", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 1))
    expect("the second one", build("one", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 0))
    expect("another folder", build("two", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 0))
    for name, flag, compiled in (("the same compiler by another name", "", 0), ("a name that adds a flag", "-g", 1)):
        (folder / "names" / f"of{flag}").mkdir(parents=True)
        named = script(folder / "names" / f"of{flag}" / "nvcc", f'#!/bin/sh\nexec {compiler} {flag} "$@"\n')
        expect(name, build("one", "-O3", compiler=named), (0, f"int x = 1;\n{flag and ' ' + flag} -O3, version 1\n", compiled))
    expect("another flag", build("one", "-O2"), (0, "int x = 1;\n -O2, version 1\n", 1))
    (folder / "a.h").write_text("#define X 2\n")
    expect("another header", build("one", "-O3"), (0, "int x = 2;\n -O3, version 1\n", 1))
    (folder / "a.h").write_text("/* the same again */\n#define X 1\n")
    expect("the first text", build("one", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 0))
    source.write_text('#include "a.h"\nint\n    x = X;\n')
    expect("the same words in other lines", build("one", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 0))
    source.write_text('#include "a.h"\nint x = X;\n')
    for path in store.glob("*.image"):
        path.write_text("damaged")
    expect("damaged images", build("one", "-O3"), (0, "int x = 1;\n -O3, version 1\n", 1))
    script(compiler, COMPILER.replace("COUNT", str(count)).replace("version=1", "version=2"))
    expect("another compiler", build("one", "-O3"), (0, "int x = 1;\n -O3, version 2\n", 1))
    for text, status in (("WRONG", 3), ("C7510", 1)):
        source.write_text(f"int {text};\n")
        for _ in range(2):
            expect(f"a failure, {text}", build("one", "-O3")[::2], (status, 1))
    source.write_text('#include "not_there.h"\n')
    expect("no text", build("one", "-O3")[0] != 0, True)
    expect("left behind", [path.name for path in store.glob("new.*")], [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks = {"machine": machine, "images": images, "cache": cache}
    parser.add_argument("check", choices=sorted(checks))
    parser.add_argument("--source", type=pathlib.Path, required=True)
    for name in ("cmake", "cc"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sternway-demo-") as name:
        checks[options.check](options, pathlib.Path(name))


if __name__ == "__main__":
    main()
