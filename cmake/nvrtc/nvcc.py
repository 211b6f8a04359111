#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""nvcc -fatbin, for cmake/image.cmake, by NVRTC, ptxas and nvFatbin of one CUDA 12 release (PyPI has no nvcc of it).

nvcc.py --root FOLDER [nvcc's options]: FOLDER is `nvidia` of nvidia-cuda-nvrtc-cu12, -nvcc-cu12 (ptxas) and nvidia-nvfatbin-cu12.
Understood: --version; -fatbin -gencode=arch=A,code=C or code=[C,D]... -Xfatbin O -std= -O3 -I -Werror W -MD -MF F -MT T -o OUT SOURCE.
"""
import argparse
import ctypes
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HEAD = struct.Struct("<IHHQ")  # of a container: magic, version, its own size, that of the entries


def load(root, pattern):
    found = sorted(root.glob(pattern))
    if not found:
        sys.exit(f"nvcc.py: no {pattern} under {root}")
    return ctypes.CDLL(str(found[-1]))


def need(error, what):
    if error:
        sys.exit(f"nvcc.py: {what}: error {error}")


def strings(words):
    return (ctypes.c_char_p * len(words))(*[os.fsencode(word) for word in words])


def release(nvrtc):
    major, minor = ctypes.c_int(), ctypes.c_int()
    need(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return f"{major.value}.{minor.value}"


def text_of(nvrtc, program, what):
    size = ctypes.c_size_t()
    need(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    text = ctypes.create_string_buffer(size.value)
    need(getattr(nvrtc, f"nvrtcGet{what}")(program, text), f"nvrtcGet{what}")
    return text.raw[:-1]  # behind it a zero


def compile_ptx(nvrtc, options, arch):
    """PTX of the source for compute_XY; any word of the compiler's ends the build."""
    program = ctypes.c_void_p()
    source = pathlib.Path(options.source)
    need(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), os.fsencode(source), 0, None, None),
         "nvrtcCreateProgram")
    words = [f"--gpu-architecture={arch}", f"--std={options.std}", "--device-as-default-execution-space",
             f"--include-path={HERE / 'include'}", *[f"--include-path={folder}" for folder in (source.parent, *options.I)]]
    error = nvrtc.nvrtcCompileProgram(program, len(words), strings(words))
    log = text_of(nvrtc, program, "ProgramLog").decode().strip()
    if error or log:
        sys.exit(f"{log}\nnvcc.py: {source} for {arch}: " + (f"error {error}" if error else "warnings are errors"))
    ptx = text_of(nvrtc, program, "PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def assemble(options, ptx, code):
    with tempfile.TemporaryDirectory() as name:
        source, cubin = pathlib.Path(name, "a.ptx"), pathlib.Path(name, "a.cubin")
        source.write_bytes(ptx)
        ptxas = options.root / "cuda_nvcc/bin/ptxas"
        if subprocess.run([ptxas, "-O3", f"-arch={code}", source, "-o", cubin], check=False).returncode:
            sys.exit(f"nvcc.py: ptxas refuses {options.source} for {code}")
        return cubin.read_bytes()


def contain(root, images):
    """images: (code, bytes), PTX where the code is compute_XY. PTX is packed by zstd: drivers that do not read that are older
    than its version too. Binaries are packed by LZ4, which every driver of CUDA 12 reads."""
    kinds = ([image for image in images if not image[0].startswith("compute")], ["-64", "-compress-all"]), \
        ([image for image in images if image[0].startswith("compute")], ["-64", "-compress-all", "-compress-mode=size"])
    return joined([contain_alike(root, alike, words) for alike, words in kinds if alike])


def joined(containers):
    """One container of the entries of all: behind its head of 16 bytes an image is entry upon entry."""
    entries = b""
    for container in containers:
        magic, version, head, size = HEAD.unpack_from(container)
        if (magic, version, head) != (0xBA55ED50, 1, HEAD.size) or len(container) < head + size:
            sys.exit("nvcc.py: nvFatbin made another container than that of CUDA 12")
        entries += container[head:head + size]
    return HEAD.pack(0xBA55ED50, 1, HEAD.size, len(entries)) + entries


def contain_alike(root, images, words):
    fatbin = load(root, "nvfatbin/lib/libnvfatbin.so.*")
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    need(fatbin.nvFatbinCreate(ctypes.byref(handle), strings(words), ctypes.c_size_t(len(words))), "nvFatbinCreate")
    for code, image in images:
        arch, length = os.fsencode(code.split("_")[1]), ctypes.c_size_t(len(image))
        if code.startswith("compute"):
            need(fatbin.nvFatbinAddPTX(handle, image + b"\0", ctypes.c_size_t(len(image) + 1), arch, b"", b""), "nvFatbinAddPTX")
        else:
            need(fatbin.nvFatbinAddCubin(handle, image, length, arch, b""), "nvFatbinAddCubin")
    need(fatbin.nvFatbinSize(handle, ctypes.byref(size)), "nvFatbinSize")
    out = ctypes.create_string_buffer(size.value)
    need(fatbin.nvFatbinGet(handle, out), "nvFatbinGet")
    fatbin.nvFatbinDestroy(ctypes.byref(handle))
    return out.raw


def write_dependencies(options):
    """NVRTC tells none: the host's preprocessor does."""
    folders = [HERE / "include", *options.I]
    subprocess.run([os.environ.get("CC", "cc"), "-x", "c++", "-M", "-MF", options.MF, "-MT", options.MT, "-D__CUDACC__",
                    "-D__CUDA_ARCH__=900", *[f"-I{folder}" for folder in folders], options.source], check=True)


def parse():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-fatbin", action="store_true")
    parser.add_argument("-gencode", action="append", default=[])
    parser.add_argument("-std", default="c++17")
    parser.add_argument("-I", action="append", default=[])
    parser.add_argument("-MD", action="store_true")
    for name in ("-Xfatbin", "-Werror", "-MF", "-MT", "-o"):
        parser.add_argument(name)
    parser.add_argument("-O3", action="store_true")
    parser.add_argument("source", nargs="?")
    words = sys.argv[1:]
    for at, word in enumerate(words):  # its value begins with a hyphen
        if word == "-Xfatbin":
            words[at:at + 2] = [f"-Xfatbin={words[at + 1]}"]
    return parser.parse_args(words)


def main():
    options = parse()
    nvrtc = load(options.root, "cuda_nvrtc/lib/libnvrtc.so.*")
    if options.version:
        print(f"NVRTC, ptxas and nvFatbin in nvcc's place\nCuda compilation tools, release {release(nvrtc)}")
        return
    ptx, images = {}, []
    for words in options.gencode:
        arch, codes = (word.split("=")[1] for word in words.split(",", 1))
        if arch not in ptx:
            ptx[arch] = compile_ptx(nvrtc, options, arch)
        for code in codes.strip("[]").split(","):
            images.append((code, ptx[arch] if code.startswith("compute") else assemble(options, ptx[arch], code)))
    pathlib.Path(options.o).write_bytes(contain(options.root, images))
    if options.MD:
        write_dependencies(options)


if __name__ == "__main__":
    main()
