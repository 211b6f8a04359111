#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tables of the structs and constants of the public headers, in C: generate.py HEADERS... > tables.inc

The compiler fills in every offset and checks every size, so that a table which disagrees with a header does not compile.
tests/python/test_core_abi.py compares what Python sees with an independent reading."""
import pathlib
import re
import sys

SCALARS = {"int32_t": "I32", "uint32_t": "U32", "int64_t": "I64", "uint64_t": "U64", "size_t": "SIZE", "float": "F32",
           "double": "F64"}


def without_comments(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    return re.sub(r"\\\n", "", text)


def members(body):
    """(C type, pointer?, name, count) of each member of a struct."""
    for line in body.split(";"):
        line = " ".join(line.split())
        if not line:
            continue
        match = re.fullmatch(r"((?:const )?\w+) (\*?)(\w+)(?:\[(\w+)\])?", line)
        if not match:
            raise SystemExit(f"a member that is not understood: {line}")
        kind, pointer, name, count = match.groups()
        yield kind.removeprefix("const "), bool(pointer), name, count or "1"


def field_kind(kind, pointer, count, enums, structs):
    """The kind of a field and the table of its struct."""
    if pointer:
        return ("TEXT" if kind == "char" else "POINTER"), "NULL"
    if kind == "char" and count != "1":
        return "CHARS", "NULL"
    if kind in SCALARS:
        return SCALARS[kind], "NULL"
    if kind in enums:
        return "U32", "NULL"
    if kind in structs:
        return "STRUCT", f"&table_{kind}"
    raise SystemExit(f"a type that is not understood: {kind}")


def main():
    text = "".join(without_comments(pathlib.Path(name).read_text()) for name in sys.argv[1:])
    enums = {name: re.findall(r"\bSTW_(\w+) = ", body)
             for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", text, re.S)}
    structs = {name: list(members(body)) for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)}
    flags = re.findall(r"^#define STW_((?:OUT|ATTN|JAGGED|AXIS|DATA|CONTEXT)_\w+)\s+(?:0x|\d)", text, re.M)
    print("/* Made by generate.py of the headers in include/sternway. */")
    print("static const stw_py_constant constants[] = {")
    for name, values in enums.items():
        for value in values:
            print(f'    {{"{name}", "{value}", STW_{value}}},')
    for flag in flags:
        print(f'    {{NULL, "{flag}", STW_{flag}}},')
    print("    {NULL, NULL, 0},\n};")
    written = []
    while len(written) < len(structs):  # a struct after those that it holds
        for name, fields in structs.items():
            inside = {kind for kind, pointer, _, _ in fields if not pointer and kind in structs}
            if name in written or not inside <= set(written):
                continue
            written.append(name)
            print(f"static const stw_py_field fields_{name}[] = {{")
            for kind, pointer, member, count in fields:
                code, table = field_kind(kind, pointer, count, enums, structs)
                print(f'    {{"{member}", offsetof({name}, {member}), sizeof((({name} *)0)->{member}), STW_PY_{code}, '
                      f"{1 if code == 'CHARS' else count}, {table}}},")
            print(f'    {{NULL, 0, 0, 0, 0, NULL}},\n}};')
            print(f'static const stw_py_table table_{name} = {{"{name}", sizeof({name}), fields_{name}}};')
            for kind, pointer, member, count in fields:
                if not pointer and kind != "char":
                    plain = "uint32_t" if kind in enums else kind
                    print(f"_Static_assert(sizeof((({name} *)0)->{member}) == sizeof({plain}) * ({count}), \"{name}.{member}\");")


if __name__ == "__main__":
    main()
