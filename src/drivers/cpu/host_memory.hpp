// How much memory this process may use: the computer's, or less where control groups say so.
// Reads files of the operating system; keeps no state. Thread-safe. Called by the CPU driver and by `cistern info`.
#pragma once

#include <cstddef>
#include <string>

namespace cistern::drivers {

// Bytes of the computer's memory; 0 when the system does not tell.
std::size_t physical_memory();

// Bytes of the smallest limit set on this process's control group or a parent (version 2 and 1); SIZE_MAX when there is
// none. `root` is put before every path that is read, so that tests can bring their own file tree.
std::size_t cgroup_memory_limit(const std::string& root = {});

// The smaller of the two.
std::size_t usable_memory();

}  // namespace cistern::drivers
