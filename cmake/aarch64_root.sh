#!/bin/sh
# SPDX-License-Identifier: MIT
#
# aarch64_root.sh FOLDER: unpacks there Debian 12's packages that Sternway is compiled and linked with for aarch64. Needs
# mmdebstrap.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --include=libc6-dev,libgcc-12-dev,libcjson-dev,libcmocka-dev bookworm "$1"
# Absolute links would lead out of the folder.
find "$1/usr/lib" -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -ms --relative-to="${link%/*}" "$1$(readlink "$link")")" "$link"
done
