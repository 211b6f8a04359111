#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Compiles a device image, or takes it from a folder of images compiled before: cached.sh FOLDER KIND COMMAND...
# KIND is nvcc or clang. COMMAND has `-o IMAGE`, writes a list of dependencies beside it, and ends with the source; cmake/image.cmake
# calls this. An image is found by the sha256 of the preprocessed text, the command without names of folders, and the
# compiler. What cannot be preprocessed is compiled as if there were no cache.
set -u
folder=$1 kind=$2
shift 2
here=$(dirname "$0")

compile() {
    if [ "$kind" = nvcc ]; then sh "$here/nvcc_checked.sh" "$@"; else "$@"; fi
}

hash() { sha256sum "$@" | cut -d ' ' -f 1; }

# The compiler's own words, and the programs that it starts. An nvcc may be a script that calls the toolkit's: --dryrun
# tells where the toolkit is and which flags its programs get, so that one toolkit by two names is one compiler.
identity() {
    "$1" --version
    at=$(command -v "$1") && at=$(readlink -f "$at") || return 1
    tools=$at
    if [ "$kind" = nvcc ] && dry=$("$1" --dryrun -x cu /dev/null 2>&1) && top=$(echo "$dry" | sed -n 's/^#\$ TOP=//p') && [ -x "$top/bin/nvcc" ]; then
        echo "$dry" | grep -E 'cicc|ptxas' | grep -v '^#\$ [A-Z_]*=' | sed 's/"[^"]*"//g'
        tools=$top/bin/nvcc
    fi
    for file in "$tools" "${tools%/*}/ptxas" "${tools%/*}/../nvvm/bin/cicc"; do [ ! -f "$file" ] || hash <"$file"; done
}

image= text= previous=
for word in "$@"; do
    [ "$previous" != -o ] || image=$word
    previous=$word
done
[ -n "$image" ] && mkdir -p "$folder" 2>/dev/null && text=$(mktemp "$folder/new.XXXXXX" 2>/dev/null) || { compile "$@"; exit; }
trap 'rm -f "$text" "$text".*' EXIT

# Runs the command for the preprocessor ("E") or, of nvcc, for the dependencies alone ("M"). clang writes them with the text.
variant() (
    want=$1 out=$2 skip= first=$3
    shift 3
    for word in "$@"; do
        shift
        case $skip in
        drop) skip= && continue ;;
        keep) skip= && set -- "$@" "$word" && continue ;;
        esac
        case $kind$want:$word in
        *:-o | nvccE:-MF | nvccE:-MT) skip=drop ;;
        nvccM:-MF | nvccM:-MT) skip=keep && set -- "$@" "$word" ;;
        *:-c | *:-fatbin | *:-MD) ;;
        *) set -- "$@" "$word" ;;
        esac
    done
    case $kind$want in
    nvccE) "$first" -E -Xcompiler -P "$@" -o "$out" ;;
    nvccM) "$first" -M "$@" ;;
    *) "$first" -E -P "$@" -o "$out" ;;
    esac
)

# What decides an image beside the text: the words without folders, and what nvcc reads from the environment.
flags() (
    echo "${NVCC_PREPEND_FLAGS:-}" "${NVCC_APPEND_FLAGS:-}"
    for word in "$@"; do
        case $word in
        -I*) ;;
        *) printf '%s\n' "${word##*/}" ;;
        esac
    done
)

variant E "$text" "$@" >/dev/null 2>&1 && [ -s "$text" ] && identity "$1" >"$text.key" 2>/dev/null || { compile "$@"; exit; }
flags "$@" >>"$text.key"
tr -s '[:space:]' '\n' <"$text" | hash >>"$text.key" # how lines break decides nothing
entry=$folder/$(hash <"$text.key").image

if [ -f "$entry" ] && [ "$(hash <"$entry")" = "$(cat "$entry.sha256" 2>/dev/null)" ] &&
    { [ "$kind" = clang ] || variant M "" "$@" >/dev/null 2>&1; }; then
    cp "$entry" "$image" && touch "$entry" && exit 0
fi
compile "$@" || exit
cp "$image" "$text.image" && hash <"$text.image" >"$text.sha256" && mv "$text.sha256" "$entry.sha256" && mv "$text.image" "$entry"
# The 96 that were used last stay: about 12 states of the sources.
ls -t "$folder"/*.image 2>/dev/null | tail -n +97 | while read -r old; do rm -f "$old" "$old.sha256"; done
exit 0
