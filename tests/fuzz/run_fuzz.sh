#!/bin/sh
# SPDX-License-Identifier: MIT
#
# run_fuzz.sh PROGRAM DICTIONARY SEEDS WORK_FOLDER: fuzzes for STW_FUZZ_SECONDS seconds, from the seeds and what
# earlier runs found, with another seed each time, which it prints; without: 15 seconds, always along the same way.
# STW_FUZZ_LONG names the target that gets ten minutes instead, or says all.
# What it finds goes to the work folder, never into the tree.
set -eu
program=$1 dictionary=$2 seeds=$3 work=$4
case "${STW_FUZZ_LONG:-}" in all | "${program##*/fuzz_}") STW_FUZZ_SECONDS=600 ;; esac
if [ -z "${STW_FUZZ_SECONDS:-}" ]; then
    rm -rf "$work/found"
    set -- -max_total_time=15 -seed=1
else
    set -- -max_total_time="$STW_FUZZ_SECONDS"
fi
mkdir -p "$work/found"
set -- "$@" -timeout=120 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1
if [ -f "$dictionary" ]; then
    set -- "$@" -dict="$dictionary"
fi
exec "$program" "$@" -artifact_prefix="$work/crash-" "$work/found" "$seeds"
