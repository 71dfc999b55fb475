#!/usr/bin/env bash
# Runs every check of the project: builds (g++, clang, sanitizers), tests, format, static analysis, layers, headers,
# consumers, links. On Debian and Ubuntu it installs what is missing. The last line is "N passed, N failed".
# Usage: ./test.sh            everything (CI)
#        ./test.sh quick      the release build, its tests and the checks of the tree
# Environment: BUILD (folder for builds, default build), CISTERN_TRACES (folder of traces, default data/traces).
set -uo pipefail
cd "$(dirname "$0")" || exit 1
. scripts/packages.sh

mode=${1:-all}
case $mode in
  all | quick) ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
build=${BUILD:-build}
mkdir -p "$build/log"
jobs=$(getconf _NPROCESSORS_ONLN)
passed=0
failed=0
faults=()
started=$SECONDS
# ThreadSanitizer needs address randomisation within bounds that some kernels pass; without it, all will do.
fixed=()
if setarch "$(uname -m)" -R true 2> /dev/null; then fixed=(setarch "$(uname -m)" -R); fi
if [ -n "${CISTERN_TRACES:-}" ]; then CISTERN_TRACES=$(cd "$CISTERN_TRACES" && pwd) && export CISTERN_TRACES; fi
export CTEST_OUTPUT_ON_FAILURE=1 CLICOLOR=0

count() {  # count PASSED FAILED NAME
  passed=$((passed + $1))
  failed=$((failed + $2))
  if [ "$2" -ne 0 ]; then faults+=("$3"); fi
}

section() {  # section TITLE COMMAND...: a heading, the command, how long it took; counts as one check.
  local title=$1 begin=$SECONDS
  shift
  printf '\n== %s\n' "$title"
  if "$@"; then
    count 1 0 "$title"
    printf -- '-- ok: %s (%d s)\n' "$title" $((SECONDS - begin))
  else
    count 0 1 "$title"
    printf -- '-- FAILED: %s (%d s)\n' "$title" $((SECONDS - begin))
    return 1
  fi
}

build_preset() {  # build_preset PRESET OPTION...: warnings are errors; the log is shown only when it fails.
  local preset=$1 log=$build/log/$1.log
  shift
  cmake --preset "$preset" -B "$build/$preset" -DCISTERN_WERROR=ON "$@" > "$log" 2>&1 &&
    cmake --build "$build/$preset" -j "$jobs" -- -k 0 >> "$log" 2>&1 && return 0
  grep -E 'error|warning|FAILED|CMake Error' -A 3 "$log" | head -n 60
  echo "whole log: $log"
  return 1
}

tests() {  # tests PRESET CTEST_OPTION...: each test counts.
  local title="tests, $1" log=$build/log/$1-tests.log begin=$SECONDS preset=$1 summary bad total
  shift
  printf '\n== %s\n' "$title"
  local prefix=()
  # A test forks while threads run and goes on in the child.
  if [ "$preset" = tsan ]; then prefix=(env "TSAN_OPTIONS=die_after_fork=0" "${fixed[@]}"); fi
  "${prefix[@]}" ctest --test-dir "$build/$preset" -j "$jobs" --no-tests=error "$@" > "$log" 2>&1
  summary=$(grep -E 'tests passed, [0-9]+ tests failed out of [0-9]+' "$log")
  if [ -z "$summary" ]; then
    tail -n 20 "$log"
    count 0 1 "$title"
    return
  fi
  bad=$(sed -E 's/.*, ([0-9]+) tests failed.*/\1/' <<< "$summary")
  total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<< "$summary")
  count $((total - bad)) "$bad" "$title"
  if [ "$bad" -ne 0 ]; then
    sed -n '/^The following tests FAILED/,$p' "$log"
    grep -E '\[  FAILED  \]|Failure$|ERROR: |WARNING: ThreadSanitizer|runtime error' -A 6 "$log" | head -n 80
    echo "whole log: $log"
  fi
  grep -E '\(Skipped\)|\*\*\*Skipped' "$log" | sed -E 's/ *\.{3,}.*//' | sort -u | head -n 10
  printf -- '-- %d of %d passed: %s (%d s)\n' $((total - bad)) "$total" "$title" $((SECONDS - begin))
}

format() {
  find include src tests tools bench examples \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.c' \) -print0 |
    xargs -0 -r clang-format --dry-run -Werror
}

packages=(g++ cmake ninja-build ccache git pkg-config python3 zlib1g-dev libfmt-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libbenchmark-dev)
browser() {  # For the test that looks at a report. Where chromium is no Debian package, that test is skipped.
  command -v chromium > /dev/null || command -v google-chrome > /dev/null || install_packages chromium ||
    echo "no browser: the tests of the report's look are skipped"
}

section "packages" install_packages "${packages[@]}" || exit 1
if [ "$mode" = all ]; then
  section "packages for the full run" install_packages clang clang-tidy clang-format
  section "browser" browser
fi

section "layers" python3 scripts/check_layers.py
section "C beside C++" python3 scripts/check_c_api.py
section "source rules" python3 scripts/check_source.py
section "links of the documentation" python3 scripts/check_docs.py
section "examples in the pages" env CXX=g++ python3 scripts/check_readme.py
if command -v clang-format > /dev/null; then section "format" format; fi
section "public headers alone, g++" env CXX=g++ CC=gcc python3 scripts/check_headers.py

if section "build release, g++ -Werror" build_preset release -DCMAKE_CXX_COMPILER=g++ -DCISTERN_BENCH=ON; then
  tests release
fi

if [ "$mode" = all ]; then
  section "public headers alone, clang" env CXX=clang++ CC=clang python3 scripts/check_headers.py
  section "consumers" tests/consumer/run.sh "$build/consumer"
  # Sanitized programs run several times slower; checks of the tree need no second run.
  if section "build clang -Werror, AddressSanitizer and UndefinedBehaviorSanitizer" build_preset clang-asan; then
    tests clang-asan -LE scripts
  fi
  # Only what has threads.
  if section "build g++ -Werror, ThreadSanitizer" build_preset tsan -DCMAKE_CXX_COMPILER=g++ -DCISTERN_EXAMPLES=OFF \
    -DCISTERN_TOOLS=OFF "-DCISTERN_TEST_FOLDERS=allocator;conformance;core;drivers;plan;pool;trace"; then
    tests tsan -LE scripts
  fi
  section "clang-tidy" python3 scripts/tidy.py "$build/clang-asan"
fi

printf '\n== total (%d s)\n' $((SECONDS - started))
if [ "${#faults[@]}" -ne 0 ]; then printf 'failed: %s\n' "${faults[@]}"; fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
