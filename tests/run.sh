#!/usr/bin/env bash
# Every check and test, in the order of their price. Stops at the first that fails.
#
#   bash tests/run.sh [--quick]
#
# --quick leaves out clang-tidy, the sanitizers, the fuzzers and the other processor. The environment variables are those of setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
source tests/steps.sh

quick=
case ${1:-} in
  '') ;;
  --quick) quick=yes ;;
  *) die "usage: bash tests/run.sh [--quick]" ;;
esac

bash tests/setup.sh --dev
export PATH="${HEADRACE_VENV:-$root/.venv}/bin:$PATH"
start_log "$root/build/log/run.log"

cpp_files() { git ls-files '*.h' '*.cpp' '*.cu'; }
format_cpp() { cpp_files | xargs clang-format --dry-run -Werror; }
build() { cmake --preset "$1" -DHEADRACE_WERROR=ON && cmake --build --preset "$1"; }
bench_build() {
  cmake --preset release -DHEADRACE_BENCH=ON &&
    cmake --build --preset release --target bench_stages bench_instructions bench_reading
}
instructions() {
  set -o pipefail
  bench/instructions.py build/release/bench/bench_instructions | tee "$counts"
}
tidy() {
  find loader/src -name '*.cpp' -print0 |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/release
}
fuzz() {
  local format fresh pictures=${HEADRACE_CORPUS:-../shared/corpus}
  [[ -d $pictures ]] || pictures=
  for format in jpeg png; do
    fresh=build/fuzz/inputs-$format
    mkdir -p "$fresh"
    "build/fuzz/tests/fuzz/fuzz_$format" -max_total_time=20 -max_len=20000 \
      -artifact_prefix=build/fuzz/ "$fresh" ${pictures:+"$pictures"} || return
  done
  mkdir -p build/fuzz/inputs-trace
  build/fuzz/tests/fuzz/fuzz_trace -max_total_time=5 -artifact_prefix=build/fuzz/ \
    build/fuzz/inputs-trace tests/fuzz/traces
}

# GCC 12's ThreadSanitizer fails on kernels that randomise more address bits than it expects.
same_addresses=()
if setarch -R true 2>/dev/null; then same_addresses=(setarch -R); fi

closing_lines=()
# cpp_tests PRESET: builds, runs, keeps ctest's closing line.
cpp_tests() {
  step "C++ build ($1)" build "$1"
  step "C++ tests ($1)" "${same_addresses[@]}" ctest --preset "$1"
  closing_lines+=("ctest $1: $(grep 'tests passed' "$log" | tail -n 1)")
}

remedy='Remedy: clang-format -i on the files named above.' step "clang-format" format_cpp
step "ruff check" ruff check
remedy='Remedy: ruff format' step "ruff format" ruff format --check
step "mypy" mypy
step "include rules" pytest -q tests/python/test_include_rules.py
cpp_tests release
counts=$root/build/log/instructions.txt
step "benchmarks' build" bench_build
step "instruction counts" instructions
cat "$counts"
if [[ -z $quick ]]; then
  step "clang-tidy" tidy
  cpp_tests asan
  cpp_tests tsan
  step "fuzzer build" build fuzz
  step "fuzzers" fuzz
  step "portable path on aarch64" bash tests/aarch64.sh
fi

echo "Python tests:"
pytest_log=$root/build/log/pytest.log
pytest 2>&1 | tee "$pytest_log" || die "Python tests failed. The whole log: $pytest_log"

printf '\nAll checks passed in %d s.\n' "$SECONDS"
printf '%s\n' "${closing_lines[@]}" "pytest: $(tail -n 1 "$pytest_log")"
