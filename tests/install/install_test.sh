#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a build into an empty prefix, moves the prefix, and builds and runs a user's project
# against it by find_package and by pkg-config. Usage: install_test.sh BUILD CMAKE CC
set -eu

build=$1 cmake=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "installing"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix" # nothing may remember where it was installed
prefix=$work/prefix

echo "find_package"
"$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" ||
    { cat "$work/cmake.log"; exit 1; }
"$cmake" --build "$work/consumer" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/consumer/consumer_c"
"$work/consumer/consumer_cxx"

echo "find_package refuses another version"
sed 's/dscomm 0.1/dscomm 0.9/' "$here/consumer/CMakeLists.txt" >"$work/CMakeLists.txt"
mkdir "$work/other"
mv "$work/CMakeLists.txt" "$work/other"
cp "$here"/consumer/consumer.c "$here"/consumer/consumer_cxx.cc "$work/other"
if "$cmake" -S "$work/other" -B "$work/other/b" -DCMAKE_PREFIX_PATH="$prefix" >"$work/o.log" 2>&1; then
    echo "version 0.9 was found"
    exit 1
fi
grep -q 'not accepted' "$work/o.log" || { cat "$work/o.log"; exit 1; }

echo "pkg-config"
pc=$(dirname "$(find "$prefix" -name dscomm.pc)")
PKG_CONFIG_PATH=$pc
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion dscomm)" = 0.1.0 ]
lib=$(pkg-config --variable=libdir dscomm)
# shellcheck disable=SC2046
"$cc" -std=c11 -Wall -Werror "$here/consumer/consumer.c" $(pkg-config --cflags --libs dscomm) -lm \
    -o "$work/by_pkg_config"
LD_LIBRARY_PATH=$lib "$work/by_pkg_config"

echo "installed files"
for file in "$lib/libdscomm.so" "$lib/libdscomm.so.0" "$prefix/include/dscomm/dscomm.h"; do
    [ -e "$file" ] || { echo "$file is missing"; exit 1; }
done
if grep -rl "$work/first" "$prefix"; then
    echo "these files remember the prefix"
    exit 1
fi
echo "all right"
