// Where a plan is written to: a file that says why it could not be written. No state, no locking.
#pragma once

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "cistern/error.hpp"

namespace cistern::planner {

// Calls write(stream) on the file. Throws invalid_argument, with the system's reason, when it cannot be opened or
// written.
template <class Write>
void write_file(const std::string& path, Write write) {
  // Streams keep no reason; the system's last one is theirs.
  const auto refuse = [&](const char* what) {
    const std::string why = errno != 0 ? " (" + std::generic_category().message(errno) + ")" : "";
    throw invalid_argument(path + ": " + what + why + "; expected a file that can be written");
  };
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  if (!out) refuse("cannot be opened");
  write(out);
  out.flush();
  if (!out) refuse("writing failed");
}

}  // namespace cistern::planner
