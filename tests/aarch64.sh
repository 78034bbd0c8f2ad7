#!/usr/bin/env bash
# The portable path on another processor: cross-compiles for aarch64 what needs no library's aarch64
# build, and runs the tests of pixels, random numbers and plans under qemu.
#
#   bash tests/aarch64.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/aarch64
mkdir -p "$out/include"
# Headers without code of a processor's own; the rest of /usr/include is this processor's.
ln -sfn /usr/include/catch2 /usr/include/nlohmann "$out/include"

needs_libraries='#include <(jpeglib|png|liburing|tbb/|simdjson|cuda)'
mapfile -t sources < <(grep -LE "$needs_libraries" loader/src/*.cpp)
tests=(field_writer float_bits order plan_stream random resample slot_ring)

compile() {
  aarch64-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -Wshadow -Wconversion -Werror \
    -DHEADRACE_VERSION='"0"' -ffunction-sections -Iloader/include -Iloader/src -Itests/cpp -isystem "$out/include" \
    -c "$1" -o "$out/$(basename "$1" .cpp).o"
}
export -f compile
export out
printf '%s\n' "${sources[@]}" tests/cpp/main.cpp "${tests[@]/#/tests/cpp/test_}" |
  sed 's/\.cpp$//; s/$/.cpp/' |
  xargs -P "$(nproc)" -I{} bash -c 'compile {}'

objects=()
for source in "${sources[@]}"; do objects+=("$out/$(basename "$source" .cpp).o"); done
for test in "${tests[@]}"; do
  # What no test calls may refer to the decoders, which are missing here.
  aarch64-linux-gnu-g++ -static -Wl,--gc-sections -o "$out/test_$test" \
    "$out/test_$test.o" "$out/main.o" "${objects[@]}"
  echo "$test:"
  qemu-aarch64 "$out/test_$test"
done
