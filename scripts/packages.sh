# Sourced by run.sh and test.sh: installs Debian or Ubuntu packages that are missing. Does nothing, and needs no network,
# when all are there. On other systems it only says what is needed.
#
# shellcheck shell=bash

# have_package NAME
have_package() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

# install_packages NAME...   Exit status 1 when something is missing and cannot be installed.
install_packages() {
  local missing=() name as_root=()
  if ! command -v dpkg-query > /dev/null; then
    echo "No Debian packages here. Needed: see docs/README.md (a C++20 compiler, CMake, Ninja, fmt, nlohmann_json, CLI11, zlib)."
    return 0
  fi
  for name in "$@"; do
    have_package "$name" || missing+=("$name")
  done
  [ "${#missing[@]}" -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "Missing packages: ${missing[*]}. Install them as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  # The package lists may be there already; only when that fails are they fetched anew.
  apt_install "${missing[@]}" 2> /dev/null || { "${as_root[@]}" apt-get update -qq && apt_install "${missing[@]}"; }
}

# Uses as_root of its caller.
apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}
