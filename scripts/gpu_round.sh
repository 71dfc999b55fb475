#!/usr/bin/env bash
# One round on a computer with an NVIDIA GPU, which needs the vendor's driver and nothing to compile with.
#   scripts/gpu_round.sh build        on the building machine: programs with the C++ runtime linked in, into .gpu/
#   scripts/gpu_round.sh run [OUT]    on the GPU's machine, in the same tree: conformance, capture and thread tests, replays
#                                     with bytes checked, memcheck where compute-sanitizer is found. Logs go to OUT.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCISTERN_EXAMPLES=OFF \
    "-DCISTERN_TEST_FOLDERS=conformance;drivers" -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" &&
    cmake --build build/gpu --target cistern_cli cistern_tests_conformance cistern_tests_drivers || return 1
  mkdir -p .gpu/lib
  cp build/gpu/bin/cistern build/gpu/tests/cistern_tests_conformance build/gpu/tests/cistern_tests_drivers .gpu/
  # Libraries that a bare machine may lack.
  for program in .gpu/cistern .gpu/cistern_tests_conformance; do
    ldd "$program" | awk '/libfmt|libz\.|libbenchmark/ {print $3}' | xargs -r cp -Lt .gpu/lib
  done
  strip .gpu/cistern .gpu/cistern_tests_* .gpu/lib/*
}

step() {  # step NAME COMMAND...: output to a file, the last lines shown.
  local name=$1 status
  shift
  "$@" > "$out/$name.log" 2>&1
  status=$?
  printf '\n== %s (exit %d)\n' "$name" "$status"
  grep -vE '^\[( RUN|      OK|----)' "$out/$name.log" | tail -n "${lines:-12}"
  if [ "$status" -ne 0 ]; then failed=$((failed + 1)); fi
}

run() {
  out=${1:-.gpu/out}
  failed=0
  mkdir -p "$out"
  export CISTERN_CUDA_LIBRARY=libcuda.so.1 LD_LIBRARY_PATH=$PWD/.gpu/lib:${LD_LIBRARY_PATH:-}
  local filter='*cuda*:CudaCapture.*:CudaThreads.*'
  step info .gpu/cistern info
  step conformance timeout 150 .gpu/cistern_tests_conformance "--gtest_filter=$filter"
  step drivers timeout 120 .gpu/cistern_tests_drivers "--gtest_filter=$filter"
  lines=40 step replay timeout 150 .gpu/cistern replay --device cuda --repeat 10 data/traces/*.csv.gz
  lines=40 step replay-limit timeout 100 .gpu/cistern replay --device cuda --repeat 2 --memory-limit 1.05x data/traces/*.csv.gz
  step replay-json timeout 150 .gpu/cistern replay --device cuda --repeat 10 --json data/traces/*.csv.gz
  if command -v compute-sanitizer > /dev/null; then
    step memcheck timeout 150 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 .gpu/cistern_tests_conformance --gtest_filter='*cuda*'
  fi
  printf '\n%d steps failed\n' "$failed"
  [ "$failed" -eq 0 ]
}

case ${1:-} in
  build) build ;;
  run) run "${2:-}" ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
