#!/usr/bin/env bash
# Builds Cistern and replays the recorded traces of data/traces through the real allocator on the CPU: prints a table and
# writes report.html. On Debian and Ubuntu it installs what the build needs. Usage: ./run.sh [TRACE...]
set -euo pipefail
cd "$(dirname "$0")"
. scripts/packages.sh

install_packages g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev

build=build/run
log=$build/build.log
mkdir -p "$build"
echo "Building (log: $log)"
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCISTERN_TESTS=OFF -DCISTERN_EXAMPLES=OFF &&
  cmake --build "$build" --target cistern_cli; } > "$log" 2>&1; then
  tail -n 40 "$log"
  exit 1
fi

traces=("$@")
if [ "${#traces[@]}" -eq 0 ]; then traces=(data/traces/*.csv.gz); fi
report=$PWD/report.html
"$build/bin/cistern" replay --device cpu --report "$report" "${traces[@]}"
echo "Report: $report"
