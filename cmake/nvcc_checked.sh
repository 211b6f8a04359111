#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs a compilation and shows what it says. ptxas tells by notes C75xx, with exit status 0, that it takes matrix products of a
# warpgroup one by one: such a kernel is right, and several times slower. Here that is a failure. Called by cmake/image.cmake.
words=$("$@" 2>&1)
status=$?
[ -z "$words" ] || printf '%s\n' "$words" >&2
[ $status -eq 0 ] || exit $status
case $words in
*'(C75'*) echo "ptxas does not let matrix products run beside each other: notes C75xx above" >&2; exit 1 ;;
esac
