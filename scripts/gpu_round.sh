#!/usr/bin/env bash
# One round on a computer with an NVIDIA GPU, which needs the vendor's driver and nothing to compile with; PyTorch is
# measured beside Cistern where it is installed.
#   scripts/gpu_round.sh build [DIR]        on the building machine: programs with the C++ runtime linked in, into DIR
#   scripts/gpu_round.sh run [DIR [OUT]]    on the GPU's machine, in the same tree: conformance, misuse, captures, replays
#                                           with kernels, benchmarks, memcheck. Prints one table; figures and logs in OUT.
# DIR is .gpu, OUT is DIR/out; both from the root of the tree, unless they are absolute. CISTERN_ROUND names the steps to
# run, with spaces between; all but `programs` (PyTorch programs on Cistern, some minutes) when it is empty. Exit status: 0
# when all of them ran and passed, 1 when not, 2 for a command or a step that is not known and a DIR that was not built.
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$0")/.." || exit 1
dir=${2:-.gpu}
case $dir in /*) at=$dir ;; *) at=$PWD/$dir ;; esac
steps=(info conformance drivers misuse pairs torch events behind verify replay_check fill hand_over checks programs memcheck)
turned=" pairs torch events "  # Run by turns: pairs_1, pairs_2 and pairs_3 are one each.
read -ra asked <<< "${CISTERN_ROUND:-}"

build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCISTERN_EXAMPLES=OFF -DCISTERN_BENCH=ON \
    "-DCISTERN_TEST_FOLDERS=conformance;drivers;allocator" -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" &&
    cmake --build build/gpu -j "${JOBS:-$(nproc)}" --target cistern_cli cistern_gpu_round cistern_tests_conformance \
      cistern_tests_drivers cistern_tests_allocator cistern_torch || return 1
  mkdir -p "$dir/lib"
  cp build/gpu/bin/cistern build/gpu/cistern_gpu_round build/gpu/tests/cistern_tests_{conformance,drivers,allocator} "$dir/"
  cp build/gpu/torch/libcistern_torch.so "$dir/"
  cp bench/gpu/torch/torch_events.cpp bench/gpu/torch/torch_round.py scripts/gpu_table.py scripts/gpu_round.sh "$dir/"
  # Libraries that a bare machine may lack.
  for program in "$dir/cistern" "$dir/cistern_tests_conformance" "$dir/cistern_gpu_round"; do
    ldd "$program" | awk '/libfmt|libz\.|libbenchmark/ {print $3}' | xargs -r cp -Lt "$dir/lib"
  done
  strip "$dir/cistern" "$dir/cistern_gpu_round" "$dir"/cistern_tests_* "$dir"/lib/*
}

step() {  # step NAME SECONDS COMMAND...: output to files; one line here, and the end of the output where it failed.
  local name=$1 seconds=$2 status start=$SECONDS
  shift 2
  if [ "${#asked[@]}" -ne 0 ]; then
    case " ${asked[*]} " in *" $name "* | *" ${name%_[0-9]} "*) ;; *) return ;; esac
  fi
  ran+="$name ${name%_[0-9]} "
  timeout "$seconds" "$@" > "$out/$name.json" 2> "$out/$name.log"
  status=$?
  figures+=("$out/$name.json")
  if [ "$status" -eq 0 ] && grep -qF '[  PASSED  ] 0 tests' "$out/$name.json"; then
    echo 'every test was skipped: nothing to test is there' >> "$out/$name.log"
    status=77
  fi
  printf '%-14s exit %d, %d s\n' "$name" "$status" $((SECONDS - start))
  printf '{"part": "step", "case": "%s", "figure": "exit", "value": %d}\n' "$name" "$status" >> "$out/steps.json"
  if [ "$status" -ne 0 ]; then
    failed=$((failed + 1))
    grep -hvE '^\[( RUN|      OK|----)|^\{' "$out/$name.json" "$out/$name.log" | tail -n 25
  fi
}

check_asked() {  # Every step that was asked for is one.
  local name
  for name in "${asked[@]}"; do
    case " ${steps[*]} " in *" $name "*) continue ;; esac
    case $name in *_[1-3]) case $turned in *" ${name%_[1-3]} "*) continue ;; esac ;; esac
    printf 'CISTERN_ROUND: "%s" is no step; expected some of: %s (and _1, _2, _3 of:%s)\n' "$name" "${steps[*]}" \
      "${turned% }" >&2
    return 1
  done
}

check_built() {
  local file
  for file in cistern cistern_gpu_round cistern_tests_{conformance,drivers,allocator} libcistern_torch.so \
    torch_events.cpp torch_round.py gpu_table.py; do
    if [ ! -e "$dir/$file" ]; then
      printf '%s: no %s; make the folder with: scripts/gpu_round.sh build %s\n' "$dir" "$file" "$dir" >&2
      return 1
    fi
  done
}

run() {
  check_asked && check_built || return 2
  out=${1:-$dir/out}
  failed=0
  ran=" "
  figures=("$out/steps.json")
  mkdir -p "$out" && : > "$out/steps.json" || return 2
  export CISTERN_CUDA_LIBRARY=libcuda.so.1 LD_LIBRARY_PATH=$at/lib:${LD_LIBRARY_PATH:-}
  local filter='*cuda*:CudaCapture.*:CudaThreads.*' traces=(data/traces/*.csv.gz)
  step info 60 "$dir/cistern" info
  step conformance 150 "$dir/cistern_tests_conformance" "--gtest_filter=$filter"
  step drivers 120 "$dir/cistern_tests_drivers" "--gtest_filter=$filter"
  step misuse 120 "$dir/cistern_tests_allocator" '--gtest_filter=CudaMisuse.*:CudaStreams.*'
  # By turns, since a shared host is slower at times; the table has the medians.
  for turn in 1 2 3; do
    step "pairs_$turn" 60 "$dir/cistern_gpu_round" pairs
    step "torch_$turn" 100 python3 "$dir/torch_round.py" pairs
  done
  if python3 -c 'import torch' 2> /dev/null; then
    step events 300 python3 "$dir/torch_round.py" events "$dir/cistern_gpu_round" "${traces[@]}"
  else
    for turn in 1 2 3; do
      step "events_$turn" 100 "$dir/cistern_gpu_round" events -- "${traces[@]}"
    done
  fi
  step behind 200 "$dir/cistern_gpu_round" behind -- "${traces[@]}"
  step verify 150 "$dir/cistern_gpu_round" verify -- "${traces[@]}"
  step replay_check 120 "$dir/cistern" replay --device cuda --repeat 2 --check "${traces[@]}"
  step fill 100 "$dir/cistern_gpu_round" fill
  step hand_over 100 "$dir/cistern_gpu_round" hand_over
  step checks 150 env PYTHONPATH=python CISTERN_TORCH_LIBRARY="$at/libcistern_torch.so" python3 bench/torch/checks.py
  case " ${asked[*]} " in
    *" programs "*)  # Minutes: only when it is asked for.
      step programs 560 env PYTHONPATH=python CISTERN_TORCH_LIBRARY="$at/libcistern_torch.so" \
        python3 bench/torch/compare.py --rounds 4 --seconds 400
      ;;
  esac
  if command -v compute-sanitizer > /dev/null; then
    step memcheck 200 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 \
      "$dir/cistern_tests_conformance" '--gtest_filter=*cuda*'
  fi
  local name
  for name in "${asked[@]}"; do
    case $ran in *" $name "*) continue ;; esac
    printf '%-14s did not run: this machine lacks what it needs, or it has another form here\n' "$name"
    failed=$((failed + 1))
  done
  if ! python3 "$dir/gpu_table.py" "${figures[@]}" --native data/traces/native.json; then
    printf '%-14s failed\n' table
    failed=$((failed + 1))
  fi
  printf '\n%d steps failed\n' "$failed"
  [ "$failed" -eq 0 ]
}

case ${1:-} in
  build) build ;;
  run) run "${3:-}" ;;
  *)
    sed -n '2,11s/^# \{0,1\}//p' "$self" >&2
    exit 2
    ;;
esac
