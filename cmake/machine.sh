#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Prints STERNWAY_IMAGES for the GPUs of this machine: "none", or the images that they run, as in sm80:ptx,sm90.
# machine.sh [ROOT]: ROOT stands before /dev, /proc and /sys (tests). No driver is started by it, but nvidia-smi asks NVIDIA's.
root=${1:-}
images=

add() { case ,$images, in *,"$1",*) ;; *) images=$images${images:+,}$1 ;; esac; }

# Compute capability 8.x runs sm80's binaries, 9.0 its binaries in the PTX image and sm90's main loop, newer ones the PTX.
if [ -e "$root/dev/nvidiactl" ] || [ -e "$root/proc/driver/nvidia/version" ]; then
    for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null); do
        case $capability in
        8.[0-9]*) add sm80:cubin ;;
        9.0) add sm80:ptx && add sm90 ;;
        9.[0-9]* | [1-9][0-9].[0-9]*) add sm80:ptx ;;
        *) echo "an NVIDIA GPU of compute capability $capability: no kernels for it, 8.0 is the oldest" >&2 ;;
        esac
        found=1
    done
    [ -n "${found:-}" ] || echo "an NVIDIA driver is here, and nvidia-smi names no GPU: no CUDA images" >&2
fi

# gfx_target_version 90010 is gfx90a: major, minor, and the step in hexadecimal digits.
if [ -e "$root/dev/kfd" ]; then
    for file in "$root"/sys/class/kfd/kfd/topology/nodes/*/properties; do
        version=$(sed -n 's/^gfx_target_version //p' "$file" 2>/dev/null)
        [ "${version:-0}" -gt 0 ] 2>/dev/null || continue
        arch=gfx$((version / 10000))$(printf '%x%x' $((version / 100 % 100)) $((version % 100)))
        case $arch in
        gfx90a | gfx942 | gfx950) add "$arch" ;;
        *) echo "an AMD GPU $arch: no kernels for it" >&2 ;;
        esac
    done
fi
echo "${images:-none}"
