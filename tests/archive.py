#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small files of a folder as one text file that reads well in a review.

unpack FOLDER ARCHIVE...   makes FOLDER anew, with a folder of each archive's name
pack FOLDER ARCHIVE        writes the archive of FOLDER; the head of an archive that is there stays
check ARCHIVE...           each archive is what packing its files gives

An archive begins with its head, lines of free text. `== PATH` begins a file, whose lines follow up to the next `== `.
`== PATH | unended`: the last line has no newline. `== PATH | escaped`: lines as in a Python string, newlines are those
written as such. `== PATH | hex`: bytes in hexadecimal. Folders that hold no file, links and modes are not kept."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

TEXT = rb"[\t\n\x20-\x7e]"  # what a review shows as it is


def decode(kind, body):
    if kind == "hex":
        return bytes.fromhex(body)
    if kind == "escaped":
        return body.replace("\n", "").encode().decode("unicode_escape").encode("latin-1")
    return (body[:-1] if kind else body).encode()


def read(archive):
    """(head, {path: bytes})."""
    head, *parts = re.split(r"^== ", archive.read_bytes().decode("ascii"), flags=re.M)
    files = {}
    for part in parts:
        title, _, body = part.partition("\n")
        name, _, kind = title.partition(" | ")
        if name in files or name.startswith("/") or ".." in name.split("/") or kind not in ("", "unended", "escaped", "hex"):
            sys.exit(f"{archive}: == {title}: twice, not below the folder, or of an unknown kind")
        files[name] = decode(kind, body)
    return head, files


def section(name, data):
    readable = len(re.findall(TEXT, data))
    if 2 * readable < len(data):
        lines = [data[at:at + 32].hex(" ", -4) for at in range(0, len(data), 32)]
        return "\n".join([f"== {name} | hex", *lines, ""])
    if readable < len(data) or re.search(rb"^== ", data, re.M):
        lines = [line.decode("latin-1").encode("unicode_escape").decode() for line in data.splitlines(True)]
        return "\n".join([f"== {name} | escaped", *lines, ""])
    if not data or data.endswith(b"\n"):
        return f"== {name}\n{data.decode()}"
    return f"== {name} | unended\n{data.decode()}\n"


def render(head, files):
    """Paths in the order of a tree, numbers by value."""
    order = sorted(files, key=lambda name: [(int(n or 0), w) for n, w in re.findall(r"(\d*)([^\d]*)", name)])
    return head + "".join(section(name, files[name]) for name in order)


def unpack(folder, *archives):
    shutil.rmtree(folder, ignore_errors=True)
    for archive in archives:
        for name, data in read(archive)[1].items():
            path = folder / archive.stem / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def pack(folder, archive):
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    archive.write_text(render(read(archive)[0] if archive.exists() else "", files))


def check(archives):
    wrong = []
    for archive in archives:
        with tempfile.TemporaryDirectory() as name:
            again = Path(name) / archive.name
            again.write_text(read(archive)[0])
            unpack(Path(name) / "files", archive)
            pack(Path(name) / "files" / archive.stem, again)
            if again.read_bytes() != archive.read_bytes():
                wrong.append(archive)
    print(*(f"{archive}: not what `archive.py pack` writes" for archive in wrong), f"{len(archives)} archives", sep="\n")
    return 1 if wrong or not archives else 0


def main():
    command, *paths = sys.argv[1:]
    paths = [Path(path) for path in paths]
    return check(paths) if command == "check" else {"unpack": unpack, "pack": pack}[command](*paths)


if __name__ == "__main__":
    sys.exit(main())
