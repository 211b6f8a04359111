#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Builds the C module into python/sternway for work on the package: build.sh BUILD_FOLDER [PYTHON]; CMake does the same in a build.
set -eu
build=$(cd "$1" && pwd) python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
include=$here/../../include
tables=$(mktemp -d)
trap 'rm -rf "$tables"' EXIT
"$python" "$here/generate.py" "$include"/sternway/*.h >"$tables/tables.inc"
${CC:-cc} -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -I"$tables" -I"$include" \
    -I"$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$here"/*.c \
    -o "$here/../sternway/_native.abi3.so" -L"$build/lib" -lsternway -Wl,-rpath,"$build/lib"
