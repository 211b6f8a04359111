#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether two device images hold the same machine code, kernel names aside.

same_code.py BEFORE AFTER   each a .fatbin, .cubin, .co or PTX text

Prints one line a kernel that differs or that only one side has, and exits with 1; else how many kernels are
the same. A kernel is its instructions and, on NVIDIA's GPUs, its registers and stack. A renamed kernel counts
as the same one when its code is."""
import hashlib, os, re, struct, subprocess, sys, tempfile


def sections(elf):
    """(names, headers) of a 64-bit ELF file; a header is (name, type, flags, address, offset, size, link, info)."""
    shoff, = struct.unpack_from("<Q", elf, 40)
    entry, count, names_at = struct.unpack_from("<HHH", elf, 58)
    if count == 0:
        count, = struct.unpack_from("<Q", elf, shoff + 32)
    headers = []
    for i in range(count):
        name, kind, flags, address, offset, size, link, info = struct.unpack_from("<IIQQQQII", elf, shoff + i * entry)
        headers.append((name, kind, flags, address, offset, size, link, info))
    base = headers[names_at][4]
    return [string_at(elf, base + h[0]) for h in headers], headers


def string_at(data, at):
    return data[at:data.index(b"\0", at)].decode()


def kernels_of_elf(elf):
    """{name: digest} of a cubin or an AMD code object."""
    names, headers = sections(elf)
    machine, = struct.unpack_from("<H", elf, 18)
    found = {}
    if machine == 190:  # CUDA: a section a function
        for name, h in zip(names, headers):
            if name.startswith(".text."):
                code = elf[h[4]:h[4] + h[5]]
                registers = h[7] >> 24
                found[name[6:]] = hashlib.sha256(code + bytes([registers])).hexdigest()
        return found
    for name, h in zip(names, headers):
        if h[1] != 2:  # SHT_SYMTAB has local functions too
            continue
        strings = headers[h[6]][4]
        for at in range(h[4], h[4] + h[5], 24):
            label, info, other, index, value, size = struct.unpack_from("<IBBHQQ", elf, at)
            if info & 15 == 2 and 0 < index < len(headers):
                text = headers[index]
                begin = text[4] + value - text[3]
                found[string_at(elf, strings + label)] = hashlib.sha256(elf[begin:begin + size]).hexdigest()
    return found


def kernels_of_ptx(text):
    """{name: digest}: names of functions, variables and labels are replaced by the order they come in."""
    order = {}
    def number(match):
        return order.setdefault(match.group(0), f"N{len(order)}")
    found = {}
    for part in re.split(r"(?m)^(?=(?:\t|)(?:\.visible |\.weak )?\.entry )", text)[1:]:
        name = re.search(r"\.entry\s+(\S+?)\(", part).group(1)
        order.clear()
        body = re.sub(r"//.*", "", part)
        body = re.sub(r"[A-Za-z_$][\w$]*(?:stw|dev|_ZN?)[\w$]*", number, body)
        body = re.sub(re.escape(name) + r"\w*", "K", body)
        found[name] = hashlib.sha256(body.encode()).hexdigest()
    return found


def kernels_of(path):
    data = open(path, "rb").read()
    if data[:4] == b"\x7fELF":
        return kernels_of_elf(data)
    if b".entry" in data[:1 << 20]:
        return kernels_of_ptx(data.decode(errors="replace"))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for option in ("-xelf", "-xptx"):
            subprocess.run(["cuobjdump", option, "all", os.path.abspath(path)], cwd=folder, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        files = sorted(os.listdir(folder))
        if not files:
            sys.exit(f"{path}: cuobjdump finds nothing in it")
        for file in files:
            kind = re.sub(r"^.*?(sm_\w+|compute_\w+)?\.(cubin|ptx)$", r"\1.\2", file)
            for name, digest in kernels_of(os.path.join(folder, file)).items():
                found[f"{kind}:{name}"] = digest
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = map(kernels_of, sys.argv[1:])
    same = {name for name in before if after.get(name) == before[name]}
    lost = {name: d for name, d in before.items() if name not in same}
    new = {name: d for name, d in after.items() if name not in same}
    renamed = 0
    for name, digest in sorted(lost.items()):
        twin = next((n for n, d in sorted(new.items()) if d == digest and n not in before), None)
        if twin:
            del new[twin]
            renamed += 1
            continue
        print(f"differs: {name}" if name in after else f"gone: {name}")
        new.pop(name, None)
        renamed -= 1000000
    for name in sorted(new):
        print(f"new: {name}")
    if renamed < 0 or new:
        sys.exit(1)
    print(f"the same machine code: {len(same)} kernels, {renamed} more under another name")


if __name__ == "__main__":
    main()
