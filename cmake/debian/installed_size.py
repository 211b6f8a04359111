#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""installed_size.py PACKAGE.deb...: writes the field Installed-Size as dpkg-gencontrol counts it, in KiB: each file rounded
up, 1 for each folder and link. CPack counts a link as the file that it leads to, which is the library twice."""
import gzip
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile


def members(archive):
    """The parts of an ar archive: (header, content)."""
    at, found = 8, []
    while at < len(archive):
        header = archive[at:at + 60]
        size = int(header[48:58])
        found.append((header, archive[at + 60:at + 60 + size]))
        at += 60 + size + size % 2
    return found


def size_of(package):
    content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as data:
        return sum(-(-entry.size // 1024) if entry.isfile() else 1 for entry in data)


def with_size(control, size):
    """control.tar.gz with that size in it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(control)) as before, tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as after:
        for entry in before:
            content = before.extractfile(entry).read() if entry.isfile() else b""
            if pathlib.PurePosixPath(entry.name).name == "control":
                content, count = re.subn(rb"^Installed-Size: \d+$", b"Installed-Size: %d" % size, content, flags=re.M)
                if count != 1:
                    sys.exit("control has no line Installed-Size")
                entry.size = len(content)
            after.addfile(entry, io.BytesIO(content) if entry.isfile() else None)
    return gzip.compress(made.getvalue(), 9, mtime=int(os.environ.get("SOURCE_DATE_EPOCH", 0)))


def main():
    for package in map(pathlib.Path, sys.argv[1:]):
        archive, parts = package.read_bytes(), []
        for header, content in members(archive):
            if header.startswith(b"control.tar.gz"):
                content = with_size(content, size_of(package))
                header = header[:48] + b"%-10d" % len(content) + header[58:]
            parts.append(header + content + b"\n" * (len(content) % 2))
        package.write_bytes(archive[:8] + b"".join(parts))


if __name__ == "__main__":
    main()
