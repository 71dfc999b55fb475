#!/usr/bin/env bash
# Builds and runs a small user of Cistern in every way it can be used: installed (find_package, pkg-config; static and
# shared, the shared one moved to another place after the install), add_subdirectory, FetchContent. Library only: the
# configure runs with every optional package hidden. Prints one line a way; exit status 1 when any failed.
# Usage: run.sh WORK_FOLDER
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
work=${1:?usage: run.sh WORK_FOLDER}
jobs=$(getconf _NPROCESSORS_ONLN)
rm -rf "$work" && mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)
failed=0

launcher=()
if command -v ccache > /dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
generator=()
if command -v ninja > /dev/null; then generator=(-G Ninja); fi
hidden=()
for package in fmt nlohmann_json CLI11 ZLIB GTest benchmark; do hidden+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done

# A file URL may be refused by a git that is set to be careful; this run alone allows it.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always

way() {  # way NAME FUNCTION ARGUMENT...
  local name=$1 log
  log=$work/${1//[^a-z_]/-}.log
  shift
  if "$@" > "$log" 2>&1; then
    echo "ok      $name"
  else
    failed=1
    echo "FAILED  $name"
    tail -n 30 "$log"
  fi
}

build() {  # build SOURCE BUILD OPTION...
  local source=$1 build=$2
  shift 2
  cmake -S "$source" -B "$build" "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Debug "$@" &&
    cmake --build "$build" -j "$jobs"
}

install_library() {  # install_library PREFIX OPTION...
  local prefix=$1
  shift
  build "$tree" "$prefix-build" -DCISTERN_TOOLS=OFF -DCISTERN_TESTS=OFF -DCISTERN_EXAMPLES=OFF "${hidden[@]}" "$@" &&
    cmake --install "$prefix-build" --prefix "$prefix.first" && mv "$prefix.first" "$prefix"
}

find_package() {  # find_package PREFIX
  build "$here/find_package" "$1-find_package" "-DCMAKE_PREFIX_PATH=$1" && "$1-find_package/consumer"
}

pkg_config() {  # pkg_config PREFIX
  local pc
  pc=$(find "$1" -name cistern.pc) && export PKG_CONFIG_PATH=${pc%/*} || return 1
  local flags libs
  flags=$(pkg-config --cflags cistern) && libs=$(pkg-config --libs cistern) || return 1
  # Flags are words by design.
  # shellcheck disable=SC2086
  ${CXX:-c++} -std=c++20 "$here/main.cpp" $flags -o "$1-pkg_config" $libs || return 1
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir cistern) "$1-pkg_config"
}

wrong_version() {  # A request for another minor version is refused.
  [ -d "$1" ] || return 1
  sed 's/find_package(cistern 0.1/find_package(cistern 0.99/' "$here/find_package/CMakeLists.txt" > "$work/refused.txt"
  mkdir -p "$work/refused" && mv "$work/refused.txt" "$work/refused/CMakeLists.txt"
  ! cmake -S "$work/refused" -B "$work/refused/build" "${generator[@]}" "-DCMAKE_PREFIX_PATH=$1" || return 1
}

add_subdirectory() {
  build "$here/add_subdirectory" "$work/add_subdirectory" "-DCISTERN_TREE=$tree" "${hidden[@]}" &&
    "$work/add_subdirectory/consumer"
}

fetch_content() {  # The working tree, as one commit of a repository of its own.
  local copy=$work/repository commit
  mkdir "$copy" && cp -R "$tree/CMakeLists.txt" "$tree/cmake" "$tree/include" "$tree/src" "$copy" || return 1
  git -C "$copy" init -q && git -C "$copy" add -A &&
    git -C "$copy" -c user.name=consumer -c user.email=consumer@localhost -c commit.gpgsign=false commit -qm tree ||
    return 1
  commit=$(git -C "$copy" rev-parse HEAD) || return 1
  build "$here/fetch_content" "$work/fetch_content" "-DCISTERN_REPOSITORY=file://$copy" "-DCISTERN_COMMIT=$commit" \
    "${hidden[@]}" && "$work/fetch_content/consumer"
}

way "install, static" install_library "$work/static" -DCMAKE_BUILD_TYPE=Release
way "find_package, static" find_package "$work/static"
way "find_package, another version is refused" wrong_version "$work/static"
way "pkg-config, static" pkg_config "$work/static"
way "install, shared" install_library "$work/shared" -DBUILD_SHARED_LIBS=ON
way "find_package, shared" find_package "$work/shared"
way "pkg-config, shared" pkg_config "$work/shared"
way "add_subdirectory" add_subdirectory
way "FetchContent" fetch_content
exit "$failed"
