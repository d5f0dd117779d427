#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The primitives for 64-bit ARM give the reference's bits: codec and check harness are built with
# Debian's cross compiler and run under user-mode emulation. Exit code 77: a tool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cc=aarch64-linux-gnu-gcc
emulator=qemu-aarch64-static
for tool in $cc $emulator; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: there is no $tool"
        exit 77
    fi
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

core=(src/core/{clock,cpu,env,log,mem,names,status,thread}.c)
"$cc" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wshadow -Wconversion -Werror -ffp-contract=off \
    -static -Iinclude -Isrc -Itests src/codec/*.c src/codec/arm/*.c "${core[@]}" \
    tests/check/*.c -o "$folder/check_kernels" -lpthread -lm
"$emulator" "$folder/check_kernels"
